"""A run that goes on from a copy shows what a run from the first operation shows, and what cannot be copied is not."""

from __future__ import annotations

import functools
from collections import deque
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from driven import Variant
from shrunk_beside import shrunk

from conformance.driver.copying import Uncopyable, copied
from conformance.driver.lockstep import Finding, LockStep
from conformance.driver.resume import Resumed
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.planted.faults.kept import kept_run
from conformance.planted.faults.known_bugs import ALL, Fault
from conformance.stems.stem_registry import STEMS, start
from spec.finite import Map, Seq, Set

EACH_STEM = [next(fault for fault in ALL if fault.stem == stem) for stem in dict.fromkeys(f.stem for f in ALL)]


def plain(value: Any) -> Any:
    """A state of the law as plain data, without what a run keeps in it for itself."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Map):
        return value.default, sorted(value.items())
    return value if isinstance(value, (int, str)) else repr(value) if isinstance(value, (Seq, Set)) else type(value)


def told(lock: LockStep, steps: list[Any]) -> Any:
    """What the run finds in these operations, all of it, and the state of the law before."""
    for step in steps:
        before = plain(lock.law.state)
        try:
            lock.do(**step)
        except Finding as finding:
            return str(finding), finding.kind, finding.latent, finding.harm, before
    raise AssertionError("no operation breaks a law")


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.name)
def test_a_copy_goes_on_as_the_run_does_and_touches_nothing_of_it(fault: Fault) -> None:
    """The copy is driven first: what it changed in the run would show there."""
    trace = kept_run(fault).trace
    for count in range(len(trace.steps)):
        lock = start(fault.stem, fault.make, trace.config)
        for step in trace.steps[:count]:
            lock.do(**step)
        copy = copied(lock)
        assert told(copy, trace.steps[count:]) == told(lock, trace.steps[count:])


@pytest.mark.parametrize("fault", EACH_STEM, ids=lambda fault: fault.stem)
def test_shrinking_ends_at_one_run_with_copies_and_without(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of drawn findings of all faults: ``tests/shrunk_beside.py``. Here copies are used wherever they can be had."""
    monkeypatch.setattr(Resumed, "_is_worth", lambda *_, **__: True)
    trace = kept_run(fault).trace
    lock = start(fault.stem, fault.make, trace.config)
    for step in trace.steps[:-1]:
        lock.do(**step)
    with pytest.raises(Finding) as caught:
        lock.do(**trace.steps[-1])
    whole, copies = (shrunk(fault, (caught.value, trace), way) for way in (False, True))
    assert whole[0] == copies[0]
    assert whole[1] > copies[1]


def test_a_function_with_variables_of_the_run_gets_those_of_the_copy() -> None:
    heard: list[int] = []
    copies: Any = copied((lambda: heard, heard))
    hear = copies[0]
    hear().append(1)
    assert heard == []


def test_two_views_of_one_memory_stay_two_views_of_one_memory() -> None:
    whole = torch.arange(4)
    copy, view = copied((whole, whole[1:3]))
    view[0] = 9
    assert (copy.tolist(), whole.tolist()) == ([0, 9, 2, 3], [0, 1, 2, 3])


def test_what_refers_to_itself_is_copied_once() -> None:
    ring: list[Any] = [deque([1], maxlen=2)]
    ring.append(ring)
    copy = copied(ring)
    assert copy[1] is copy is not ring
    assert copy[0].maxlen == 2
    append = copied([ring[0], ring[0].append, functools.partial(ring[0].append, 5)])
    append[2]()
    assert (list(append[0]), list(ring[0])) == ([1, 5], [1])


class Foreign:
    """An engine that is not ours may keep a part of its state in variables of its module."""


class ListOfItsOwn(list[int]):
    """More than its fields."""


@pytest.mark.parametrize(
    "value",
    [Foreign(), ListOfItsOwn(), (n for n in [1]), open],
    ids=["of_another", "list_of_its_own", "generator", "builtin"],
)
def test_what_is_not_known_to_be_safe_is_refused(value: Any) -> None:
    if value is open:
        assert copied(value) is open
        return
    with pytest.raises(Uncopyable):
        copied([value])


def test_an_engine_that_is_not_ours_is_driven_from_the_first_operation_each_time() -> None:
    made = registry.load("ours").makers["allocator"]
    config = {"page_size": 1, "size": 4, "rows": 2, "need_sort": False}
    begun: list[Any] = []

    def fresh(known: Any) -> LockStep:
        begun.append(known)
        return start("allocator", lambda c: Variant(made(c)), known)

    trace = Trace("allocator", config, [{"op": "extend", "rows": [0], "more": [1]}, {"op": "clear"}])
    resumed = Resumed(fresh)
    resumed.follow(trace)
    for _ in range(2):
        lock = resumed.at(trace)
        for step in trace.steps[len(lock.trace.steps) :]:
            lock.do(**step)
            resumed.keep(lock)
    assert len(begun) == 2
    assert "allocator" in STEMS
