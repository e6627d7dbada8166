"""Forward passes in flight over the whole cache: a copy of a state leaves alone what a pass in flight still writes.

Requests end while their last pass is in flight, as where steps overlap, and their state slots are handed out again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from driven import NEWEST, driven
from test_conformance_cache import started

from conformance.driver.lockstep import Finding, LockStep
from conformance.driver.protocol import Json, Misuse
from conformance.engines.ours.cache import OurCache, cache
from conformance.stems.cache.protocol import CacheSnapshot
from spec.in_flight import flying

ONE: Json = {"components": ["full", "mamba"], "size_mamba": 4, "buffered": True, "doubled": False, "lazy": False}
UNDISTURBED = "no pass in flight uses a slot of a copy that is made at once"


class CopiesAtOnce(OurCache):
    """Our cache on a server that runs each copy of a state beside the passes in flight."""

    def cache_snapshot(self) -> CacheSnapshot:
        seen = super().cache_snapshot()
        assert seen.states is not None
        written = {target for _, target in seen.states.copies or ()}
        return replace(seen, states=replace(seen.states, at_once=frozenset(written)))


def at_once(config: Json) -> CopiesAtOnce:
    """Our engine, with such copies."""
    plain = cache(config)
    return CopiesAtOnce(plain.engine, plain.lacks, plain.copied)


def ended_in_flight(make: Any = cache, **config: Any) -> LockStep:
    """A tree with a state, and a request that has ended while its last pass is in flight: its slot is free again."""
    lock = started(make, **{**ONE, "rows": 1, "sessions": 0, "page_size": 2, "window": 4, **config})
    lock.do("admit", request=0, more=5)
    lock.do("finish", request=0)
    lock.do("admit", request=1, more=3, fork=1)
    lock.do("decode", requests=[1])
    lock.do("decode", requests=[1], flies=True)
    lock.do("finish", request=1, sent=2)
    return lock


def in_flight(lock: LockStep) -> int:
    return len(list(flying(lock.law.state.flight).items()))


def test_a_pass_goes_on_when_its_request_has_ended() -> None:
    lock = ended_in_flight()
    assert in_flight(lock) == 1
    lock.do("land")
    assert in_flight(lock) == 0
    with pytest.raises(Misuse, match="no pass is in flight"):
        lock.do("land")


def test_a_copy_at_once_under_a_pass_of_a_request_that_has_ended_is_found() -> None:
    lock = ended_in_flight(at_once)
    with pytest.raises(Finding, match=UNDISTURBED) as caught:
        lock.do("admit", request=2, more=6)
    assert caught.value.law == "state_match"


def test_its_lawful_neighbours_are_not() -> None:
    """A copy in the order of the passes, and one after the event of the pass."""
    ordered, landed = ended_in_flight(), ended_in_flight(at_once)
    landed.do("land")
    for lock in (ordered, landed):
        lock.do("admit", request=2, more=6)
        assert lock.law.counts["state_match", "done"] == 1
        lock.do("quiesce")


def test_a_pass_whose_result_is_needed_is_done() -> None:
    """A request that ends by the result of its last pass is no longer in flight, and neither is one that is aborted."""
    for leaves in ({"op": "finish"}, {"op": "finish", "sent": 2}, {"op": "abort"}, {"op": "retract"}):
        lock = started(**{**ONE, "size_mamba": 9, "rows": 1, "sessions": 0, "page_size": 2})
        lock.do("admit", request=0, more=3)
        lock.do("decode", requests=[0])
        lock.do("decode", requests=[0], flies=True)
        lock.do(request=0, **leaves)
        assert in_flight(lock) == ("sent" in leaves), leaves


def test_no_pass_stays_in_flight_where_steps_do_not_overlap() -> None:
    for config in ({"components": ["full", "swa"]}, {**ONE, "size_mamba": 9, "buffered": False}):
        lock = started(**config)
        lock.do("admit", request=0, more=3)
        with pytest.raises(Misuse, match="track buffers"):
            lock.do("decode", requests=[0], flies=True)


# The same run on real releases. 0.5.12 copies at a match, on the stream of the scheduler; the releases after it put the
# copy off to the pass of the batch (pull request 24954).
DRIVE = """
    import json, sys
    from conformance.driver.lockstep import Finding
    from conformance.engines.registry import load
    from conformance.stems.stem_registry import start

    make = load("sglang", release=sys.argv[1]).makers["cache"]
    config = {"page_size": 2, "size": 24, "size_swa": 24, "window": 4, "need_sort": False, "rows": 1, "sessions": 0,
              "components": ["full", "mamba"], "size_mamba": 4, "buffered": True, "doubled": False, "lazy": False}
    said = []
    for lands in (False, True):
        run = start("cache", make, config, strict=True)
        run.do("admit", request=0, more=5)
        run.do("finish", request=0)
        run.do("admit", request=1, more=3, fork=1)
        run.do("decode", requests=[1])
        run.do("decode", requests=[1], flies=True)
        run.do("finish", request=1, sent=2)
        if lands:
            run.do("land")
        try:
            run.do("admit", request=2, more=6)
            said.append(run.law.counts["state_match", "done"])
        except Finding as finding:
            said.append(str(finding))
    print(json.dumps(said))
"""


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize("release", ["0.5.12", "0.5.13", NEWEST])
def test_releases_put_their_copies_off_from_0_5_13_on(release: str) -> None:
    said: list[Any] = driven(release, DRIVE)
    beside, after = said
    assert after == 1
    if release == "0.5.12":
        assert UNDISTURBED in beside
    else:
        assert beside == 1
