"""The calls that led to the harm of a broken law, sent again and told one by one.

``conformance.search.harm`` drives a run on along many plans and keeps what the best of them sent, in words. Here the
plan is found again by these words, and each of its calls gets a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from conformance.driver.forking import forked
from conformance.driver.onward import Move, Onward
from conformance.driver.protocol import Json
from conformance.driver.shadow import WrongSlot
from conformance.driver.trace import Trace
from conformance.search.harm import PLANS, after, follow, with_another
from conformance.stems.stem_registry import ROOMS
from conformance.telling.memory import MemoryPicture
from conformance.traces.harm_found import Harm

NOTHING: Json = {"wrong": "", "engine": [], "deeper": False, "below": [], "raised": []}


def driven_on(trace: Trace, step: int, make: Callable[[Json], Any], harm: Json) -> list[Json]:
    """The steps after operation ``step`` of a trace up to the harm, as plain data with the keys of
    ``conformance.telling.tell.ToldOperation``. Their pictures have no law.

    ``harm``: as ``conformance.search.harm.harm`` says it. Empty where no call was sent, and where no plan shows this
    harm again. Sent in a process of its own, since a broken engine may end it.
    """
    if not harm["onward"] or harm["drawn"]:
        return []
    small = with_another(Trace(trace.stem, trace.config, trace.steps[:step]), harm["beside"])
    told: list[Json] | None = forked(lambda: next(_told(small, make, harm), []))
    return told or []


def _told(trace: Trace, make: Callable[[Json], Any], harm: Json) -> Iterator[list[Json]]:
    for plan in PLANS:
        reached = after(trace, make)
        if reached is None:
            return
        run = reached.lock.run
        steps: list[Json] = []
        onward = ROOMS[trace.stem].onward(run)
        drawer = MemoryPicture(trace.config, run.shadow, bool(harm["beside"]))
        before = drawer.panels(run.seen, _rows(onward))
        for line, wrong in _as_far_as_it_goes(follow(plan, onward)):
            if len(steps) == len(harm["onward"]) or line != harm["onward"][len(steps)]:
                break
            now = drawer.panels(run.seen, _rows(onward))
            picture = {"does": "", "before": before, "panels": now, **_harmed(drawer, wrong, run.seen, harm)}
            steps.append({**NOTHING, "call": line, "changed": "nothing", "picture": picture, "driven_on": True})
            before = now
            if wrong is not None:
                if len(steps) == len(harm["onward"]) and Harm.of(wrong, beside=harm["beside"]).reads == harm["reads"]:
                    yield steps
                break


def _as_far_as_it_goes(calls: Move) -> Move:
    """The calls of a plan until the engine raises an exception: another plan is the one that is looked for then."""
    while True:
        try:
            sent = next(calls, None)
        except Exception:
            return
        if sent is None:
            return
        yield sent


def _rows(onward: Onward) -> dict[str, list[int]]:
    """The slots of a caller's rows, where the caller keeps them."""
    slots: dict[int, list[int]] = getattr(onward, "slots", {})
    return {f"row {row}": mine for row, mine in slots.items() if mine}


def _harmed(drawer: MemoryPicture, wrong: WrongSlot | None, seen: Any, harm: Json) -> Json:
    """What a picture says of the first slot that has wrong contents."""
    if wrong is None:
        return {}
    return {"harmed": {"page": drawer.page_of(wrong, seen), "reader": harm["request"], "says": harm["where"]}}
