"""Harm: what a broken law does to a request.

A law of ownership that breaks is a cause. The harm is that a request reads what was computed for other tokens, and it
may come many operations later. So the run is driven on after the finding, without the law, along a few plans; each plan
starts the run again. A plan ends at the first slot that a forward pass reads and that has wrong contents. The search
ends at the first slot that has the tokens of another request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from conformance.driver import exception_origin
from conformance.driver.clock import Clock
from conformance.driver.forking import asked, uses_cuda
from conformance.driver.lockstep import ANSWERED, Finding, LockStep
from conformance.driver.onward import Move, Onward
from conformance.driver.printable import first_line, message_of
from conformance.driver.protocol import Json, Misuse, Unsupported
from conformance.driver.shadow import WrongSlot
from conformance.driver.trace import Trace
from conformance.driver.world import is_small, world_of
from conformance.stems.requests.onward import ANOTHER
from conformance.stems.stem_registry import ROOMS, start
from conformance.traces.harm_found import Harm

CALLS = 30  # how many calls one plan sends
LATE = "no time was left to look on the run before it was shrunk"
WITH_REQUESTS = ("session_trim", "cache")
BESIDE = (2, 4)  # how many tokens another request has that is there from the first operation on
# The names of the moves of each plan, which is repeated. A plan leaves out the moves that a stem does not have.
PLANS: tuple[tuple[str, ...], ...] = (
    ("guest", "decode", "leave"),
    ("decode", "stranger", "decode", "leave"),
    ("stranger", "leave", "decode"),
    ("stranger", "again", "decode"),
    ("finish", "stranger", "decode", "again", "decode", "leave"),
    ("turn", "stranger", "decode", "finish", "leave"),
    ("evict", "stranger", "decode", "again", "decode", "leave"),
    ("again", "finish", "evict", "stranger", "decode", "leave"),
    ("hold", "again", "evict", "guest", "stranger", "decode", "leave"),
)


def harm(
    trace: Trace,
    step: int,
    make: Callable[[Json], Any],
    drawn: Trace | None = None,
    seconds: float | None = None,
) -> Json:
    """Drives the engine on after operation ``step`` of ``trace``, which breaks a law, and looks for the harm.

    ``make`` builds the engine. ``drawn``: the run from which the trace was shrunk; where the trace has too small a
    world for harm, this run is looked at too. ``seconds``: how long the search may take, ``None`` without a limit.
    Returns the harm as plain data. The search is made in a forked process, since a broken engine may kill its process;
    with an engine on CUDA, in this one.
    """
    clock = Clock(seconds)
    clock.begin()
    small = Trace(trace.stem, trace.config, trace.steps[:step])
    if seconds == 0:
        return Harm(world=world_of(small), cut_short=True).as_json()
    found = replace(_harm_of(small, make, clock), world=world_of(small))
    if found.request or found.ended or drawn is None or drawn.steps == small.steps or not is_small(small):
        return found.as_json()
    if clock.is_up():
        return replace(found, world=f"{found.world}, too few to show it; {LATE}", cut_short=True).as_json()
    larger = replace(_harm_of(drawn, make, clock), world=world_of(drawn), drawn=drawn.as_json())
    if larger.request:
        return larger.as_json()
    both = f"{found.world}; and before the run was shrunk with {larger.world}"
    calls, late = found.operations + larger.operations, found.cut_short or larger.cut_short
    return replace(found, operations=calls, world=both, stops=found.stops or larger.stops, cut_short=late).as_json()


def _harm_of(trace: Trace, make: Callable[[Json], Any], clock: Clock) -> Harm:
    """As ``search``, in a process of its own; on CUDA in this one, since a forked process could not use it."""
    if uses_cuda():
        return search(trace, make, clock)
    found, ended = asked(lambda: asdict(search(trace, make, clock)))
    return Harm(**{**found, "onward": tuple(found["onward"])}) if found else Harm(stops=ended)


def search(trace: Trace, make: Callable[[Json], Any], clock: Clock | None = None) -> Harm:
    """The harm that plans of calls after the last operation of ``trace`` show, as far as the time allows."""
    found, driven_on = _Search(), after(trace, make)
    if driven_on is None:
        return found.best
    if ends_engine(trace, driven_on.law):
        return Harm(ended=True)
    for beside in (0, *(BESIDE if trace.stem in WITH_REQUESTS else ())):
        for plan in PLANS:
            if clock is not None and clock.is_up():
                return replace(found.best, cut_short=True)
            reached = after(with_another(trace, beside), make)
            if reached is None or reached.law != driven_on.law:
                break  # with another request beside it the trace shows something else
            found.follow(plan, reached.lock, beside)
            if found.best.rank == 0:
                return found.best
    return found.best


def ends_engine(trace: Trace, law: str) -> bool:
    """Where the last operation of a trace breaks this law, the engine itself has ended."""
    room = ROOMS[trace.stem]
    return law in room.ends or (law == ANSWERED and trace.steps[-1]["op"] in room.loop)


class _Search:
    """What the plans so far have shown. ``best``: the gravest harm; where there is none, how many calls were sent."""

    def __init__(self) -> None:
        self.best = Harm()

    def follow(self, plan: tuple[str, ...], lock: LockStep, beside: int) -> None:
        """Drives a run on along one plan. ``beside``: how many tokens the other request has, 0 for none."""
        said: list[str] = []
        wrong: WrongSlot | None = lock.run.shadow.wrong
        stops = ""
        try:
            onward = follow(plan, ROOMS[lock.trace.stem].onward(lock.run))
            while wrong is None and len(said) < CALLS and (sent := next(onward, None)):
                line, wrong = sent
                said.append(line)
        except Exception as error:
            stops = _in_words(error)
        calls = self.best.operations + len(said)
        here = Harm(operations=calls, stops=stops) if wrong is None else Harm.of(wrong, said, calls, beside)
        if here.rank < self.best.rank:
            self.best = here
        self.best = replace(self.best, operations=calls, stops=self.best.stops or stops)


def with_another(trace: Trace, tokens: int) -> Trace:
    """The trace with one request more, which comes first and has ``tokens`` tokens, in pools with room for it. With 0
    the trace as it is.

    A trace is shrunk until its pools are tiny. Then the request that reads wrong contents may never run again.
    """
    if not tokens:
        return trace
    config, pages = dict(trace.config), -(-tokens // trace.config["page_size"])
    more = {"size": pages, "size_swa": pages, "rows": 1, "size_mamba": 3}
    config |= {name: config[name] + n for name, n in more.items() if name in config}
    used = {step["request"] for step in trace.steps if "request" in step}
    other = {"op": "admit", "request": min({*range(len(used) + 1)} - used), "more": tokens, "fork": ANOTHER}
    return Trace(trace.stem, config, [other, *trace.steps])


class Reached(NamedTuple):
    """A run after the last operation of a trace, and the law that broke then; empty if none did."""

    lock: LockStep
    law: str


def after(trace: Trace, make: Callable[[Json], Any]) -> Reached | None:
    """The run after a trace; ``None`` where the engine does not get there."""
    try:
        lock = start(trace.stem, make, trace.config, strict=False)
        for step in trace.steps[:-1]:
            lock.do(**step)
    except (Finding, Misuse, Unsupported):
        return None
    latents = len(lock.law.latents)
    try:
        lock.do(**trace.steps[-1])
    except Finding as finding:
        return Reached(lock, finding.law)
    except (Misuse, Unsupported):
        return None
    return Reached(lock, next((latent.law for latent in lock.law.latents[latents:]), ""))


def _in_words(error: Exception) -> str:
    """An exception after a law was broken. Where Slotproof's own code raised it, most often since it cannot read the
    broken state, it says nothing about the engine.
    """
    where = exception_origin.place(error)
    what = f"{type(error).__name__}: {first_line(message_of(error))}".removesuffix(": ")
    return what if where is None else f"cannot be driven on, at {where}: {what}"


def follow(plan: tuple[str, ...], onward: Onward) -> Move:
    """The moves of a plan, again and again, until none of them sends anything."""
    yield from onward.moves["begin"]()
    sends = True
    while sends:
        sends = False
        for name in plan:
            for said in onward.moves[name]() if name in onward.moves else ():
                sends = True
                yield said
