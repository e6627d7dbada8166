"""Who does the trials: processes of this machine, or the tasks of a Ray cluster
(``conformance.search.campaign.cluster``).

Both are a function that takes trials one by one and yields each with its result when it has ended. An engine that
crashes or hangs ends its trial and no other; so does whoever kills the process of a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Lock

from conformance.driver import watchdog
from conformance.driver.protocol import EngineError, Json
from conformance.driver.trace import Trace
from conformance.search.connection import EngineDied, Served, Subject, ToolError, died
from conformance.search.served import run_in
from conformance.traces.outcome import How, Outcome

Finished = tuple[Json, Json]  # a trial, and its result
Runs = Callable[[Iterator[Json]], Iterator[Finished]]
Hears = Callable[[Json, int], object]  # is told of a trial how many operations it has sent
KILLED, NO_VERDICT, FAILED = "killed", "no verdict", "failed"  # the kinds of lost trials
NOTHING: Json = {
    **{"runs": 0, "steps": 0, "seconds": 0.0, "cut_short": True, "ran": {}},
    **{"coverage": [], "covering": [], "findings": [], "again": [], "replayed": [], "claimed": None},
}
TRIES = 3  # how often the process that has loaded the engine is started again for one trial


class EngineWorker:
    """An engine that is loaded in a process, which forks a child for each trial. It is loaded again where the process
    ends. ``limit``: see ``Served``.
    """

    def __init__(self, subject: Subject, limit: float | None = None) -> None:
        self.subject, self.limit, self.lock = subject, limit, Lock()
        self.started: list[Served] = []
        self.hello = self._start()

    def _start(self) -> Json:
        self.served = Served(self.subject, self.limit)
        self.started.append(self.served)
        try:
            return self.served.ready()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends all processes that were started, and their children."""
        for served in self.started:
            served.__exit__()

    def _again(self, ended: Served) -> None:
        """Loads the engine again, unless another thread has. Trials that the ended process has forked go on."""
        with self.lock:
            if self.served is ended:
                self._start()

    def trial(self, asked: Json, hears: Callable[[int], object] = lambda _: None) -> Json:
        """The result of a trial, also where its process died, and where there is no verdict."""
        for _ in range(TRIES):
            served = self.served
            file = served.scratch / f"run-{asked['run']}"
            try:
                with served.connect() as connection:
                    result: Json = connection.ask(asked, lambda said: _heard(hears, said))
                    return {**result, "lost": None}
            except EngineDied as error:
                if file.exists() or served.alive():
                    return self._died(served, asked, str(error))
                self._again(served)  # the trial waited for a child of the process that has ended: nothing was sent
            except EngineError as error:
                return lost(NO_VERDICT, str(error), run_in(file))
            except ToolError as error:
                return lost(FAILED, f"{error}\n{error.report}", run_in(file))
            except OSError:
                self._again(served)
            finally:
                file.unlink(missing_ok=True)
        return lost(KILLED, "the process of the engine ended again and again", None)

    def _died(self, served: Served, asked: Json, why: str) -> Json:
        """What the death of a trial's process says: a finding if the engine is the reason, else a lost trial.

        The engine is the reason where it hung, where a signal such as SIGSEGV ended it, and where the run kills the
        process again.
        """
        trace = run_in(served.scratch / f"run-{asked['run']}")
        dump = watchdog.written_in(served.scratch / f"death-{asked['run']}")
        if trace is None or not trace.steps:
            return lost(KILLED, f"{why}, before an operation was sent", None)
        again = self._repeated(asked, trace)
        reason = watchdog.reason(dump, asked["limit"])
        if not reason and again is None:
            return lost(KILLED, "the process was ended from outside: its run can be repeated without harm", trace)
        found = again or died(trace)
        first = found.first
        assert first is not None, "a death is a finding"
        words = f"{reason or first.detail}{'' if again else '; repeated alone, the run does not show it'}"
        row = first.row(trace, how=How.DRAWN, detail=words)
        return {**NOTHING, "lost": None, "findings": [row], "steps": len(trace.steps), "runs": 1}

    def _repeated(self, asked: Json, trace: Trace) -> Outcome | None:
        """What the run shows in a process of its own, if it breaks a law or kills the process."""
        run = f"{asked['run']}-again"
        request = {"do": "outcome", "stem": trace.stem, "trace": trace.as_json(), "run": run, "limit": asked["limit"]}
        for _ in range(TRIES):
            served = self.served
            try:
                with served.connect() as connection:
                    shown = Outcome.from_json(connection.ask(request))
                    return shown if shown.first else None
            except EngineDied:
                if served.alive():
                    return died(trace)
                self._again(served)
            except OSError:
                self._again(served)
        return None


def _heard(hears: Callable[[int], object], said: Json) -> None:
    hears(said["steps"])


def lost(kind: str, why: str, trace: Trace | None) -> Json:
    """The result of a trial that has none. ``kind``: its process was ended from outside, the engine has no verdict, or
    Slotproof failed. ``why``: the reason in words. ``trace``: the run that was being sent.
    """
    return {**NOTHING, "lost": {"kind": kind, "why": why, "trace": None if trace is None else trace.as_json()}}


@contextmanager
def processes(subject: Subject, workers: int, hears: Hears, limit: float | None = None) -> Iterator[tuple[Json, Runs]]:
    """Trials in processes of this machine, so many at a time: what was loaded, and the function that does trials.
    ``limit``: see ``Served``.
    """
    loaded = EngineWorker(subject, limit)

    def one(asked: Json) -> Json:
        return loaded.trial(asked, lambda steps: hears(asked, steps))

    def runs(trials: Iterator[Json]) -> Iterator[Finished]:
        with ThreadPoolExecutor(workers) as pool:
            try:
                yield from in_turn(trials, workers, lambda asked: pool.submit(one, asked))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                loaded.served.kill()  # ends the connections for which the threads wait
                raise

    try:
        yield loaded.hello, runs
    finally:
        loaded.close()


def in_turn(
    trials: Iterator[Json],
    workers: int,
    begin: Callable[[Json], Future[Json]],
    deaths: tuple[type[Exception], ...] = (),
) -> Iterator[Finished]:
    """Begins trials, so many at a time, and yields each with its result when it ends. A trial is only asked for when a
    worker is free, so that it knows what all trials before it have found. ``deaths``: the errors that say that the
    worker of a trial has ended.
    """
    under_way: dict[Future[Json], Json] = {}
    while True:
        while len(under_way) < workers and (asked := next(trials, None)) is not None:
            under_way[begin(asked)] = asked
        if not under_way:
            return
        for future in wait(under_way, return_when=FIRST_COMPLETED).done:
            asked = under_way.pop(future)
            try:
                result = future.result()
            except deaths as error:
                result = lost(KILLED, f"its worker ended: {type(error).__name__}", None)
            yield asked, result
