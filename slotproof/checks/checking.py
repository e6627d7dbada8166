"""``slotproof check``: random runs of an engine beside the law, alone or compared with a base.

Each engine is loaded in a process of its own (``conformance.search.served``); this process starts them, deals out the
stems, and says what was found.
"""

from __future__ import annotations

import json as jsonlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.progress import Progress

from conformance.driver import watchdog
from conformance.driver.lockstep import LATENT, VIOLATION
from conformance.driver.naming import UsageError
from conformance.driver.protocol import EngineError, Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.search.connection import DIED, Connection, EngineDied, Served, Subject, ToolError
from conformance.search.enough import NOT_ENOUGH
from conformance.search.served import run_in
from conformance.stems.found import rooms
from conformance.traces import cause_files
from conformance.traces.compare import Status, compare, in_words
from conformance.traces.outcome import Break, How, Outcome, not_built
from conformance.traces.trace_files import LISTS
from slotproof.checks import emit, remarks, repaired, weigh
from slotproof.checks.again import Again
from slotproof.checks.by_cause import name_causes
from slotproof.checks.pieces import Piece, Shares, pieces, together
from slotproof.checks.subjects import Base, base_of
from slotproof.checks.unbuilt import must_be_as_before
from slotproof.console import version
from slotproof.console.codes import BROKEN, FAILED, HOLDS
from slotproof.console.screen import choose, progress

SCHEMA = 1
DEFAULT_BUDGET, MINIMUM_BUDGET, MAXIMUM_BUDGET = 60.0, 5.0, 86_400.0  # seconds
ENDING = 5.0  # seconds of the budget that are kept for the end of the command
NAMING = 0.08  # the part of a budget that is kept for naming the causes of findings
SOON = 0.2  # the part of the limit of a call in which a base is built that shows another engine to hang
RETRIES = 3  # how often a stem is tried again after the engine has killed its process
STEM_OF_ENGINE = "stem of this engine"  # what a name of a stem must be, in the words of an error


@dataclass(frozen=True)
class CheckOptions:
    """What was asked for on the command line.

    ``base``: what to compare with, see ``slotproof.checks.subjects.base_of``; ``None`` to judge the subject alone.
    ``budget``: seconds for the whole command, from the first operation on, when the engines are loaded; the minimum of
    each stem (``conformance.search.enough``) is done also where that takes longer. ``examples``: drawn runs for each
    stem, ``None`` for as many as the budget allows. ``call_limit``: seconds after which a call to the engine hangs.
    ``first``: with a base, the search ends with the first violation that is new or worse, once it is shrunk.
    ``repaired``: the known causes of the release are repaired, see ``slotproof.checks.repaired``.
    """

    subject: Subject
    base: str | None = None
    stems: tuple[str, ...] = ()
    examples: int | None = None
    steps: int = 0
    seed: int | None = None
    budget: float | None = None
    workers: int = 2
    json: Path | None = None
    junit: Path | None = None
    sarif: Path | None = None
    format: str = emit.TEXT
    again: bool = True
    call_limit: float = 60.0
    first: bool = False
    repaired: bool = False


@dataclass
class Bench:
    """The processes of a check: the subject, and the base if there is one. ``repairs``: the known causes that are
    repaired in the subject.
    """

    subject: Served
    base: Served | None
    why: str
    repairs: Sequence[str] = ()

    @property
    def own(self) -> bool:
        """The subject is our own implementation."""
        return bool(self.subject.hello["own"])

    def connect(self) -> Connection:
        """A connection to the subject, with its repairs."""
        return self.subject.connect(self.repairs)


def run(options: CheckOptions) -> int:
    """Checks the stems, writes the report, prints it, and returns the exit code."""
    with emit.muted(options.format):
        report = report_of(options)
        emit.write(report, options.json, options.junit, options.format, options.sarif)
    emit.show(report, options.format)
    return int(report["exit"])


def report_of(options: CheckOptions) -> Json:
    """The report of a check as plain data; ``docs/json.md`` says what its fields mean."""
    begun = time.monotonic()
    choose(options.stems, rooms(), "stem")
    registry.must_have(options.subject.engine, options.subject.options)
    if options.repaired:
        repaired.must_be_possible(options.subject, options.base)
    with _bench(options) as bench:
        hello = bench.subject.hello
        stems = choose(options.stems, hello["stems"], STEM_OF_ENGINE)
        loaded = time.monotonic()
        deadline = None if options.budget is None else loaded + options.budget - ENDING
        again = Again(options.subject.engine, options.subject.options, kept=options.again and not options.repaired)
        with progress() as bar:
            until = None if deadline is None else deadline - _kept_for_naming(options)
            judged = _judge_all(stems, bench, options, until, again, bar)
        found = [row for j in judged for name in ("new", "worse") for row in j.get(name, [])]
        if bench.base is not None:
            repaired.leave_needed(found, bench.subject, bench.base, deadline)
        name_causes([row for row in found if not row["repaired"]], bench.subject, deadline, bench.repairs)
        if bench.repairs:
            repaired.tell_without(found, bench.subject, bench.repairs)
        again.keep(found, stems)
        ended = time.monotonic()
        over = 0.0 if options.budget is None else max(ended - loaded - options.budget, 0.0)
        return {**_report(judged, bench, options, ended - begun), "over": round(over, 1)}


def _kept_for_naming(options: CheckOptions) -> float:
    """The seconds in which no stem is searched any more, so that the causes of what was found are named, and beside a
    base the repairs that a finding needs: of an engine that has causes. A search takes all its time also where it has
    found something.
    """
    has_causes = any(cause.engine == options.subject.engine for cause in cause_files.every())
    return NAMING * options.budget if options.budget and has_causes else 0.0


@contextmanager
def _bench(options: CheckOptions) -> Iterator[Bench]:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slotproof-base-")))
        base: Base | None = None if options.base is None else base_of(options.subject, options.base, scratch)
        subject = stack.enter_context(Served(options.subject, options.call_limit))
        beside = None if base is None else stack.enter_context(Served(base.subject, options.call_limit))
        subject.ready()
        if beside is not None:
            try:
                beside.ready()
            except EngineError as error:
                raise EngineError(f"the base cannot be loaded: {error}") from error
        must_be_as_before(options.subject, subject.hello, None if base is None else base.subject)
        repairs = repaired.standing(subject) if options.repaired else []
        yield Bench(subject, beside, "" if base is None else base.why, repairs)


def _judge_all(
    stems: list[str], bench: Bench, options: CheckOptions, deadline: float | None, again: Again, bar: Progress
) -> list[Json]:
    """The judgements on all stems, several pieces at a time (``slotproof.checks.pieces``)."""
    todo = pieces(stems, options.workers, limited=deadline is not None and options.examples is None)
    shares = Shares(todo, options.workers, deadline)
    found: list[str] = []  # the stems with a violation
    whole = bar.add_task(bench.subject.hello["label"], total=len(todo))

    def one(piece: Piece) -> Json:
        seconds = shares.begins(piece)
        if found and options.first:
            return weigh.nothing_judged(piece.stem)
        task = bar.add_task(piece.run, total=None)
        try:
            judged = _judge(piece, bench, options, seconds, again, lambda said: _tell(bar, task, piece.run, said))
            found.extend([piece.stem] if judged["verdict"] == VIOLATION else [])
            return judged
        finally:
            shares.ends(piece)
            bar.remove_task(task)
            bar.advance(whole)

    with ThreadPoolExecutor(options.workers) as pool:
        try:
            judged = list(zip(todo, pool.map(one, todo), strict=True))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            bench.subject.kill()  # ends the connections for which the threads wait
            raise
    return [together([part for piece, part in judged if piece.stem == stem]) for stem in stems]


def _tell(bar: Progress, task: Any, name: str, said: Json) -> None:
    bar.update(task, description=f"{name}: {said['progress']}, {said['steps']} operations")


def _judge(
    piece: Piece, bench: Bench, options: CheckOptions, seconds: float | None, again: Again, said: Callable[[Json], None]
) -> Json:
    """The judgement of one piece of a stem. Where the engine kills its process, that is a finding, and what the search
    had found until then is lost with the process; so it goes on with another seed, and without a base to the first
    finding alone.
    """
    begun, deaths, judged = time.monotonic(), [], None
    stem, first = piece.stem, piece.seed(options.seed)
    for attempt in range(RETRIES):
        left = None if seconds is None else max(seconds - (time.monotonic() - begun), 0.1)
        seed = first if attempt == 0 else (first or 0) + 7_919 * attempt
        asked: Json = {
            **{"stem": stem, "run": piece.run, "further": piece.number > 0},
            **{"engine": options.subject.engine, "seconds": left, "seed": seed},
            **{"examples": options.examples, "steps": options.steps, "strict": bench.own},
        }
        if bench.base is None:
            asked |= {"do": "alone", "listed": options.subject.release, "repaired": bench.repairs}
            asked["first"] = attempt > 0
        else:
            listed = bench.base.subject.release or bench.base.hello["says"]
            kept = again.of(stem) if piece.number == 0 else []
            asked |= {"do": "beside", "base": bench.base.path, "subject": bench.subject.path, "listed": listed}
            asked |= {"again": kept, "roots": bench.base.hello["roots"], "first": options.first}
        with bench.connect() as connection:
            try:
                judged = connection.ask(asked, said)
                break
            except EngineDied:
                hung = watchdog.hung(watchdog.written_in(bench.subject.scratch / f"death-{piece.run}"))
                deaths += _deaths(piece, bench)
                if hung and deaths:
                    break  # another try would take as long
    judged = judged or weigh.nothing_judged(stem)
    for status, row in deaths:
        judged[status] = [*judged.get(status, []), row]
        if status in (Status.NEW, Status.WORSE):
            judged["verdict"] = VIOLATION
    return judged


def _deaths(piece: Piece, bench: Bench) -> list[tuple[Status, Json]]:
    """The run that killed the process of the subject, or in which a call did not end, compared with the base. Empty if
    a call did not end in time, but ends when it is sent again.

    Raises ``EngineError`` if a maker did this and no base shows that it should not (``_unmade``), and ``ToolError`` if
    the run does not kill the process again.
    """
    subject, files = bench.subject, bench.subject.scratch
    dump, trace = watchdog.written_in(files / f"death-{piece.run}"), run_in(files / f"run-{piece.run}")
    reason = watchdog.reason(dump, subject.limit or 0.0)
    if config := watchdog.written_in(files / f"making-{piece.run}"):
        what = reason.replace("the call did", "it did") or f"the process ended: {subject.last_line()}"
        made = Trace(piece.stem, jsonlib.loads(config))
        if bench.base is not None and _builds_soon(bench.base, made):
            return _unmade(made, bench, what, watchdog.hung(dump))
        raise EngineError(f"{subject.hello['label']}: the maker of {piece.stem} was called with {config}: {what}")
    if trace is None or not trace.steps:
        raise ToolError(f"the process of {subject.hello['label']} ended: {reason or subject.last_line()}", "")
    with bench.connect() as connection:
        found = connection.outcome(trace).first
    if found is None and watchdog.hung(dump):
        return []
    if found is None:
        message = f"the process of {subject.hello['label']} ended in a run that can be repeated without harm"
        raise ToolError(message, jsonlib.dumps(trace.as_json()))
    found = replace(found, detail=reason) if reason and found.detail == DIED else found
    theirs = Outcome()
    if bench.base is not None:
        with bench.base.connect() as connection:
            theirs = connection.outcome(trace)
    status = compare(found, theirs)
    words = in_words(status, found, theirs) if bench.base else ""
    return [(status, found.row(trace, base=words, how=How.DRAWN))]


def _builds_soon(base: Served, made: Trace) -> bool:
    """The base is built from this configuration, in a small part of the time after which a maker hangs. So where the
    machine is slow, the time that a maker took says nothing.
    """
    begun = time.monotonic()
    with base.connect() as connection:
        built = connection.outcome(made) == Outcome()
    return built and (base.limit is None or time.monotonic() - begun < SOON * base.limit)


def _unmade(made: Trace, bench: Bench, what: str, hung: bool) -> list[tuple[Status, Json]]:
    """The finding that a maker has no end, or kills the process, where it does so again. Empty if it ends now."""
    with bench.connect() as connection:
        again = connection.outcome(made)
    if again == Outcome() and hung:
        return []
    if again == Outcome():
        raise ToolError(f"the process of {bench.subject.hello['label']} ended in a maker that ends now", str(made))
    found = Break.of(not_built(what), 0)
    return [(Status.NEW, found.row(made, base="the base is built from this configuration", how=How.DRAWN))]


# The report.


def _report(judged: list[Json], bench: Bench, options: CheckOptions, seconds: float) -> Json:
    subject = bench.subject.hello
    lists = {name: [row for j in judged for row in j.get(name, [])] for name in LISTS}
    results = [_result(j) for j in judged]
    report = {
        "schema": SCHEMA,
        "slotproof": version.of("slotproof"),
        "subject": _subject(options.subject, subject),
        "base": None if bench.base is None else {**_subject(bench.base.subject, bench.base.hello), "why": bench.why},
        "options": {
            **{"stems": list(options.stems), "examples": options.examples, "steps": options.steps},
            **{"seed": options.seed, "budget": options.budget, "workers": options.workers},
            **{"device": options.subject.device, "repaired": [*bench.repairs]},
        },
        "seconds": round(seconds, 1),
        **lists,
        "results": results,
    }
    code, reason = _exit(report)
    return {**report, "exit": code, "reason": reason}


def _result(judged: Json) -> Json:
    """The judgement on a stem without its findings, which are in the lists: only the first of the gravest is named."""
    rows = [row for name in ("new", "worse", "known") for row in judged.get(name, [])]
    gravest = next((row for row in rows if row["severity"] == judged["verdict"]), {"law": None, "kind": None})
    done = ("enough", "runs", "steps", "refused", "transitions", "avoided", "claimed", "too_seldom", "never_reached")
    return {
        **{"stem": judged["stem"], "verdict": judged["verdict"], "law": gravest["law"], "kind": gravest["kind"]},
        **{key: judged[key] for key in (*done, "cut_short", "seconds", "over", "ran")},
        **{name: len(judged.get(name, [])) for name in LISTS},
    }


def _subject(asked: Subject, hello: Json) -> Json:
    source = None if asked.source is None else str(asked.source)
    named = {"engine": asked.engine, "label": hello["label"], "release": asked.release, "source": source}
    set_by_user = {"options": dict(asked.options), "notes": hello.get("notes", [])}
    return {**named, **set_by_user, "own": hello["own"], "isolation": hello["isolation"], "roots": hello["roots"]}


def _exit(report: Json) -> tuple[int, str]:
    """The exit code and its reason. A latent finding alone fails only our own implementation."""
    beside = report["base"] is not None
    failing = {name for name in LISTS for row in report[name] if weigh.fails(name, row, report)}
    if failing & {"new", "worse"}:
        return BROKEN, "something new is broken" if beside else "a law is broken"
    if "known" in failing:
        return BROKEN, "a law is broken, as is known of this release"
    if "gone" in failing:
        return BROKEN, "a known difference of this release no longer occurs: take it off its list"
    few = [f"{r['stem']} ({weigh.too_little(r)})" for r in report["results"] if not r["enough"]]
    if few:
        return FAILED, f"{NOT_ENOUGH}, so no verdict: {'; '.join(few)}"
    without = [r["stem"] for r in report["results"] if weigh.undecided(r, report)]
    if without:
        return BROKEN, f"no run could be started on {', '.join(without)}"
    latent = any(row["severity"] == LATENT for name in ("new", "worse") for row in report[name])
    if beside:
        gone = remarks.hidden(report)
        hides = f"; but {remarks.HIDES.format('violation')} ({gone} gone)" if gone else ""
        return HOLDS, ("nothing new but latent findings" if latent else "nothing new") + hides
    held = "no violation" if latent else "every law holds"
    gone = len(report["gone"])
    return HOLDS, f"{held}; {gone} known differences of the release do not occur with these options" if gone else held


def seconds(budget: str | None, source: Path | None) -> float | None:
    """The budget in seconds: a number with ``s`` or ``m``. By default a minute for a source folder, else none."""
    if budget is None:
        return None if source is None else DEFAULT_BUDGET
    number = budget.removesuffix("s").removesuffix("m")
    try:
        asked = float(number) * (60 if budget.endswith("m") else 1)
    except ValueError:
        asked = 0.0
    if not MINIMUM_BUDGET <= asked <= MAXIMUM_BUDGET:
        raise UsageError(f"--budget {budget}: expected a time from 5s to 24 hours, such as 60s or 10m")
    return asked


def workers() -> int:
    """How many stems are judged at a time: one for each processor, six at most."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 6)
