"""Harm: what a broken law does to a request.

A law of ownership that breaks is a cause. The harm is that a request reads what was computed for other tokens, and it
may come many operations later. So the run is driven on after the finding, without the law, along a few plans; each plan
starts the run again. A plan ends at
the first slot that a forward pass reads and that has wrong contents, and the search at the first that has another's.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from conformance import origin
from conformance.contents.moves import Move, Onward
from conformance.contents.onward_pools import OnwardPools
from conformance.contents.onward_rows import OnwardRows
from conformance.contents.onward_tree import OnwardTree
from conformance.contents.shadow import Wrong
from conformance.engines.protocol import EngineError, Json, Misuse, Unsupported
from conformance.lockstep import Finding, LockStep
from conformance.plain import first_line, message_of
from conformance.stems import start
from conformance.traces import Trace

BUDGET = 210  # how many calls all plans send together
SECONDS = 60  # after this time the engine hangs
ONWARD: dict[str, Callable[[Any], Any]] = {
    "allocator": OnwardPools,
    "swa_mapping": OnwardPools,
    "session_trim": OnwardRows,
    "cache": OnwardRows,
    "lock_ref": OnwardTree,
}
# The names of the moves of each plan, which is repeated. A plan leaves out the moves that a stem does not have.
PLANS: tuple[tuple[str, ...], ...] = (
    ("decode", "stranger", "decode", "leave"),
    ("stranger", "leave", "decode"),
    ("stranger", "again", "decode"),
    ("finish", "stranger", "decode", "again", "decode", "leave"),
    ("turn", "stranger", "decode", "finish", "leave"),
    ("evict", "stranger", "decode", "again", "decode", "leave"),
    ("again", "finish", "evict", "stranger", "decode", "leave"),
)


@dataclass(frozen=True)
class Harm:
    """What came of a broken law.

    ``request``: who reads wrong contents; empty where nobody was found to do so. ``reads``: what it reads, such as
    ``request 0's tokens``. ``step``: the number of the operation in which it reads, counted from the first of the
    trace. ``where``: the slot, in words. ``onward``: the calls that were sent after the trace, in words.
    ``operations``: how many calls all plans sent. ``stops``: the first exception that the engine raised meanwhile.
    """

    request: str = ""
    reads: str = ""
    step: int | None = None
    where: str = ""
    onward: tuple[str, ...] = ()
    operations: int = 0
    stops: str = ""

    @classmethod
    def of(cls, wrong: Wrong, onward: list[str], operations: int) -> Harm:
        """The harm that a forward pass shows."""
        return cls(wrong.reader, wrong.reads, wrong.step, str(wrong), tuple(onward), operations)

    @property
    def rank(self) -> int:
        """How grave it is: 0 where a request reads another's tokens, 1 where it reads other wrong contents, 2 where no
        harm was found.
        """
        return 2 if not self.request else 1 if self.reads[-7:] != "'s tokens" else 0

    @property
    def sentence(self) -> str:
        """The harm in one sentence."""
        if self.request:
            return f"{self.request} reads {self.reads} in step {self.step}"
        return f"none found in {self.operations} operations"

    def as_json(self) -> Json:
        """The harm as plain data, as ``docs/json.md`` says it."""
        return {"sentence": self.sentence, **asdict(self), "request": self.request or None, "reads": self.reads or None}


def harm(trace: Trace, make: Callable[[Json], Any], budget: int = BUDGET) -> Harm:
    """Drives the engine on after the last operation of ``trace``, which breaks a law, and looks for the harm.

    ``make`` builds the engine. The search is made in a forked process, since a broken engine may kill its process.
    """
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(writable, lambda: search(trace, make, budget))
    os.close(writable)
    with open(readable, encoding="utf-8") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    if not told:
        died = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {status}"
        return Harm(stops="it does not answer" if died == "SIGALRM" else f"the process died: {died}")
    found = json.loads(told)
    if "error" in found:
        raise EngineError(found["error"])
    return Harm(**{**found, "onward": tuple(found["onward"])})


def _answer(writable: int, look: Callable[[], Harm]) -> None:
    """Writes what was found as JSON, and ends the process."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        try:
            told: Json = asdict(look())
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        with open(writable, "w", encoding="utf-8") as pipe:
            json.dump(told, pipe)
    finally:
        os._exit(0)


def search(trace: Trace, make: Callable[[Json], Any], budget: int = BUDGET) -> Harm:
    """As ``harm``, in this process."""
    sent, stops = 0, ""
    best: Harm | None = None
    for plan in PLANS:
        lock = broken(trace, make)
        if lock is None or trace.stem not in ONWARD:
            break
        if lock.run.shadow.wrong is not None:
            return Harm.of(lock.run.shadow.wrong, [], 0)
        said: list[str] = []
        try:
            for line, wrong in _follow(plan, ONWARD[trace.stem](lock.run)):
                sent += 1
                said.append(line)
                if wrong is not None:
                    best = min(filter(None, (best, Harm.of(wrong, said, sent))), key=lambda h: h.rank)
                    break
                if sent >= budget or len(said) >= -(-budget // len(PLANS)):
                    break
        except Exception as error:
            stops = stops or _in_words(error)
        if sent >= budget or (best is not None and best.rank == 0):
            break
    return best or Harm(operations=sent, stops=stops)


def _in_words(error: Exception) -> str:
    """An exception after a law was broken. Where Slotproof's own code raised it, most often since it cannot read the
    broken state, it says nothing about the engine.
    """
    where = origin.place(error)
    what = f"{type(error).__name__}: {first_line(message_of(error))}"
    return what if where is None else f"cannot be driven on, at {where}: {what}"


def _follow(plan: tuple[str, ...], onward: Onward) -> Move:
    """The moves of a plan, again and again, until none of them sends anything."""
    yield from onward.moves["begin"]()
    sends = True
    while sends:
        sends = False
        for name in plan:
            for said in onward.moves[name]() if name in onward.moves else ():
                sends = True
                yield said


def broken(trace: Trace, make: Callable[[Json], Any]) -> LockStep | None:
    """The run after the last operation of ``trace``; ``None`` where the engine does not get there."""
    try:
        lock = start(trace.stem, make, trace.config, strict=False)
    except Unsupported:
        return None
    for step in trace.steps:
        try:
            lock.do(**step)
        except Finding:
            return lock
        except (Misuse, Unsupported):
            return None
    return lock
