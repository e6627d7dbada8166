"""The radix tree in lock-step: what a subject does wrong is named by the law that it breaks."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.check import check
from conformance.faults.restore_under_lock import RESTORE_UNDER_LOCK
from conformance.lock_ref import LockRefRun
from conformance.machine import VIOLATION, Finding, Misuse, Trace
from conformance.story import tell
from conformance.subjects import ours

CONFIG = {"page_size": 1, "size": 12, "size_swa": 12, "size_mamba": 3, "window": 2}
LONG, SHORT = [1, 2, 3, 4, 5], [1, 2]


def started(*components: str, make: Any = ours.lock_ref, **config: Any) -> LockRefRun:
    """A run on a tree with these components."""
    known = {**CONFIG, "kind": "unified", "components": ["full", *components], **config}
    return LockRefRun(make(known), known)


def held(*components: str) -> LockRefRun:
    """A run with a handle on two nodes, the upper one outside the window."""
    run = started(*(components or ("swa",)))
    run.do("insert", tokens=[1, 2, 3, 4])
    run.do("match", tokens=SHORT)
    run.do("acquire", handle=1, tokens=[1, 2, 3, 4])
    return run


def node_of(run: LockRefRun, tokens: list[int]) -> int:
    """The subject's number of the node that ends at these tokens."""
    return int(run.subject.match(tokens).node)


def test_a_tombstone_is_restored_when_nobody_reads_it() -> None:
    run = held()
    run.do("evict", swa=2)
    run.do("insert", tokens=SHORT)
    assert run.counts["restore", "done"] == 0, "the handle reads the slots of the tombstone"
    run.do("release", handle=1)
    run.do("insert", tokens=SHORT)
    assert run.counts["restore", "done"] == 1


def test_a_lock_that_is_lost_is_named() -> None:
    run = held()
    run.subject.engine.full_ref[node_of(run, SHORT)] = 0
    with pytest.raises(Finding, match=r"full lock of node \[1, 2\] is 0, not 1") as found:
        run.compare("match")
    assert found.value.law == "full_pairs"


def test_a_size_that_is_off_is_named() -> None:
    run = held()
    run.subject.engine.sizes[0] += 1
    with pytest.raises(Finding, match="full_evictable is 1, not 0") as found:
        run.compare("match")
    assert found.value.law == "full_evictable_is_sum"


def test_an_eviction_under_a_lock_is_named() -> None:
    run = held()
    subject, node = run.subject, node_of(run, [1, 2, 3, 4])

    def evict(*_: int) -> None:
        subject.engine.swa[node] = False
        subject.pools.give_swa(subject.entries[node].full)

    subject.evict = evict
    with pytest.raises(Finding, match="nobody holds the node's SWA part") as found:
        run.do("evict", swa=1)
    assert found.value.law == "evict_swa"


def test_a_slot_with_two_owners_is_named() -> None:
    run = held()
    run.subject.pools.free["full"].append(1)
    with pytest.raises(Finding, match=r"full pages \[1\] of node \[1, 2\] are free"):
        run.compare("match")


def test_a_slot_without_an_owner_is_named() -> None:
    run = held()
    run.subject.pools.free["swa"].pop()
    with pytest.raises(Finding, match=r"swa pages \[12\] have no owner"):
        run.compare("match")


def test_slots_of_another_insert_are_named() -> None:
    run = held()
    entry = run.subject.entries[node_of(run, SHORT)]
    entry.full.reverse()
    with pytest.raises(Finding, match=r"node \[1, 2\] has the slots \[2, 1\], not \[1, 2\]"):
        run.compare("match")


def test_a_match_that_cannot_be_locked_is_named() -> None:
    run = started("swa")
    run.do("insert", tokens=LONG, cursor=2)
    run.subject.match = lambda _: type(run.subject).match(run.subject, LONG)
    real = run.subject.match(LONG)
    run.subject.match = lambda _: type(real)(2, real.node, real.slots[:2])
    with pytest.raises(Finding, match="which cannot be locked"):
        run.do("match", tokens=SHORT)


def test_a_state_is_taken_and_copied() -> None:
    run = started("mamba", size_mamba=2)
    run.do("insert", tokens=SHORT)
    run.do("insert", tokens=[7, 8])
    run.do("copy_on_write", tokens=SHORT)
    assert run.counts["evict_leaf", "done"] == 1


def test_what_no_caller_sends_is_misuse() -> None:
    run = held()
    unlawful: dict[str, dict[str, Any]] = {
        "insert": {"tokens": LONG, "protected": 1},
        "acquire": {"handle": 1, "tokens": LONG},
        "release": {"handle": 2},
        "release_swa": {"handle": 2},
        "copy_on_write": {"tokens": LONG},
    }
    for op, arguments in unlawful.items():
        with pytest.raises(Misuse):
            run.do(op, **arguments)
    with pytest.raises(Misuse, match="behind its window"):
        run.do("insert", tokens=LONG, cursor=4)


def test_a_handle_on_the_root_holds_nothing() -> None:
    run = started("swa")
    run.do("acquire", handle=1, tokens=SHORT)
    assert run.handles() == [1]
    run.do("release", handle=1)
    assert run.handles() == []


def test_a_story_of_a_tree_says_what_changed() -> None:
    run = held()
    run.do("release_swa", handle=1)
    told = tell(run.trace, ours.lock_ref)
    assert "node 1 (tokens 0 to 4) is new: full lock 0, SWA lock 0" in told[0].changed
    assert "node 1 (tokens 2 to 4): SWA lock 1 → SWA lock 0" in told[3].changed
    assert told[3].picture["words"][1].startswith("  node 1")


def test_a_reader_whose_slots_are_replaced_is_found_and_the_run_shrinks() -> None:
    found = check("lock_ref", RESTORE_UNDER_LOCK.make)
    assert (found.verdict, found.law) == (VIOLATION, "restore")
    assert isinstance(found.trace, Trace)
    assert len(found.trace.steps) <= 8
