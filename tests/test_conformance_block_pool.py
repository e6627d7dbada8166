"""Runs of ``block_pool``: every fault is found, every wrong snapshot and answer is named, and what an engine may choose
is let through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from driven import Variant, done, judge, sampled

from conformance.driver import lockstep
from conformance.driver.lockstep import CONFORMS, ENOUGH, REFUSED, Finding, LockStep
from conformance.driver.protocol import Json, Misuse
from conformance.driver.shadow import BLOCKS, READS_OWN
from conformance.engines import registry
from conformance.engines.ours.block_pool import OurBlocks
from conformance.planted.faults.kept import kept_run
from conformance.planted.faults.known_bugs import FAULTS
from conformance.search.check import Search, check
from conformance.search.harm import harm
from conformance.stems.block_pool.faults import FAULTS as MINE
from conformance.stems.block_pool.protocol import BlockPoolSnapshot, Name
from conformance.stems.block_pool.run import FINDS, OFFERED, BlockPoolRun
from conformance.stems.fault import Fault
from conformance.stems.stem_registry import start
from conformance.telling.tell import tell
from conformance.traces.outcome import outcome
from impl.block_pool import BlockPool

STEM = "block_pool"
OURS = registry.load("ours").makers[STEM]
SMALL: Json = {"blocks": 5, "rows": 4, "indices": 3, "groups": 2, "caching": True}


def run(make: Callable[[Json], Any] = OURS, **config: Any) -> LockStep:
    """A run on a small pool."""
    return start(STEM, make, {**SMALL, **config})


def run_of(lock: LockStep) -> BlockPoolRun:
    assert isinstance(lock.run, BlockPoolRun)
    return lock.run


def begun(make: Callable[[Json], Any] = OURS) -> LockStep:
    """Row 2 holds block 1, which is computed and found under [1]; row 4 holds block 2, which nobody has computed."""
    lock = run(make)
    lock.do("admit", row=2, text=[1, 2], to=1)
    lock.do("compute", row=2, to=1)
    lock.do("admit", row=4, text=[1, 3], to=1)
    return lock


# Faults.


@pytest.mark.parametrize("seed", sampled([None, 1, 2], 3))
@pytest.mark.parametrize("fault", MINE, ids=lambda fault: fault.name)
def test_each_fault_is_found_in_one_search(fault: Fault, seed: int | None) -> None:
    assert check(STEM, fault.make, Search(examples=300, seed=seed)).verdict != CONFORMS


@pytest.mark.parametrize("fault", MINE, ids=lambda fault: fault.name)
def test_the_kept_run_of_a_fault_holds_on_ours_and_does_no_harm_there(fault: Fault) -> None:
    trace = kept_run(fault).trace
    assert outcome(trace, OURS).breaks == ()
    (shown,) = outcome(trace, fault.make).breaks
    assert shown.step == len(trace.steps)
    found = harm(trace, len(trace.steps), OURS)
    assert (found["request"], found["stops"]) == (None, "")
    assert found["operations"] > 100


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("hit_is_not_counted", "row 2 reads row 1's tokens in step 7"),
        ("hit_stays_in_queue", "row 1 reads row 2's tokens in step 9"),
        ("freed_for_all", "row 2 reads row 1's tokens in step 7"),
        ("hash_of_block_alone", "row 1 reads row 5's tokens in step 6"),
        ("hash_without_group", "row 1 reads row 4's tokens in step 8"),
        ("hash_before_computed", "row 1 reads a block that nobody has written in step 5"),
        ("freed_twice", "row 1 reads another block of its own in step 4"),
    ],
)
def test_the_harm_of_a_fault_is_found(name: str, sentence: str) -> None:
    trace = kept_run(FAULTS[name]).trace
    assert harm(trace, len(trace.steps), FAULTS[name].make)["sentence"] == sentence


def test_a_leak_has_no_harm_of_this_kind() -> None:
    trace = kept_run(FAULTS["queue_is_cut"]).trace
    assert harm(trace, len(trace.steps), FAULTS["queue_is_cut"].make)["request"] is None


def test_a_story_says_what_changed() -> None:
    trace = kept_run(FAULTS["hash_before_computed"]).trace
    told = tell(trace, FAULTS["hash_before_computed"].make)
    assert "place 0 of row 3: no block → block 1" in told[0].changed
    assert "hash_names_content" in told[-1].wrong


# What the snapshot shows.

ONE, OTHER = Name(0, (1,)), Name(1, (1,))
# Each: what is wrong in the snapshot after ``begun``, and the words that say it.
WRONG: dict[str, tuple[Json, str]] = {
    "a count that is too small": ({"refs": {1: 0}}, "the number of holders of block 1 is 0, the law has 1"),
    "a count that is too large": ({"refs": {3: 1}}, "the number of holders of block 3 is 1, the law has 0"),
    "a count that is not shown": ({"refs": {1: None}}, "the holders of block 1 are not shown"),
    "a block twice in the queue": ({"free": [3, 4, 3], "backward": [3, 4, 3]}, "block 3 is in the free queue 2 times"),
    "other links backward": ({"backward": [5, 3, 4]}, r"the free queue is \[3, 4, 5\] from its head, and \[5, 3, 4\]"),
    "a shorter chain backward": ({"backward": [5, 4]}, r"\[3, 4, 5\] from its head, and \[5, 4\] from its tail"),
    "a held block in the queue": (
        {"free": [3, 4, 5, 1], "backward": [1, 5, 4, 3], "available": 4},
        "block 1 has 1 holder and is in the free queue",
    ),
    "a held block in the place of a free one": (
        {"free": [3, 4, 1], "backward": [1, 4, 3]},
        "block 1 has 1 holder and is in the free queue; block 5 has no holder and is not in the free queue",
    ),
    "a free block not in the queue": (
        {"free": [3, 4], "backward": [4, 3], "available": 2},
        "block 5 has no holder and is not in the free queue",
    ),
    "the null block in the queue": (
        {"free": [3, 4, 5, 0], "backward": [0, 5, 4, 3]},
        "the free queue has block 0, which is the null block",
    ),
    "a block outside the pool": (
        {"free": [3, 4, 9], "backward": [9, 4, 3]},
        "the free queue has block 9, which is no block of the pool",
    ),
    "another number of free blocks": (
        {"available": 2},
        "the pool reports 2 blocks free, and 3 blocks in its free queue",
    ),
    "another null block": ({"null": 5}, "the null block is block 5, and not block 0"),
    "a null block with a hash": ({"null_named": True}, "the null block has a hash"),
    "a block that is found and does not say so": ({"named": {}}, r"finds block 1 under \[1\] in group 0, which is not"),
    "a block that is not found and says so": (
        {"found": {}},
        r"block 1 has the hash of \[1\] in group 0, and the prefix cache does not find it there",
    ),
    "a block that is found under a longer text": (
        {"found": {Name(0, (1, 2)): (1,)}, "named": {1: (Name(0, (1, 2)),)}},
        r"what the prefix cache finds block 1 for is \[1, 2\], the law has \[1\]",
    ),
    "a block of another group": (
        {"found": {OTHER: (1,)}, "named": {1: (OTHER,)}},
        r"block 1 of group 0 has the hash of \[1\] in group 1",
    ),
    "a hash that no text has": (
        {"found": {None: (1,)}, "named": {1: (None,)}},
        r"what the prefix cache finds block 1 for is a text that no row has, the law has \[1\]",
    ),
    "the hash of no text": (
        {"found": {ONE: (1,), Name(0, ()): (3,)}, "named": {1: (ONE,), 3: (Name(0, ()),)}},
        "what the prefix cache finds block 3 for is a text that no row has, the law has nothing",
    ),
    "a block that is found before it is computed": (
        {"found": {ONE: (1, 2)}, "named": {1: (ONE,), 2: (ONE,)}},
        r"what the prefix cache finds block 2 for is \[1\], the law has nothing",
    ),
    "a block with two hashes": (
        {"found": {ONE: (1,), Name(0, (2,)): (1,)}, "named": {1: (ONE, Name(0, (2,)))}},
        r"block 1 has 2 hashes: \[1\] in group 0, \[2\] in group 0",
    ),
    "a block that is found twice": ({"found": {ONE: (1, 1)}}, r"finds block 1 2 times under \[1\] in group 0"),
    "a null block that is found": ({"found": {ONE: (1, 0)}}, "finds block 0, which is the null block"),
    "a block outside that is found": ({"found": {ONE: (1, 9)}}, "finds block 9, which is no block of the pool"),
}


def shown_wrong(seen: BlockPoolSnapshot, change: Json) -> BlockPoolSnapshot:
    """The snapshot with one thing changed; a change of the counts names blocks alone, ``None`` leaves one out."""
    if "refs" in change:
        refs = {block: count for block, count in {**seen.refs, **change["refs"]}.items() if count is not None}
        change = {"refs": refs}
    return replace(seen, **change)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_a_snapshot_is_said(name: str) -> None:
    change, words = WRONG[name]
    lock = begun()
    assert shown_wrong(lock.run.seen, {}) == lock.run.seen
    lock.run.seen = shown_wrong(lock.run.seen, change)
    with pytest.raises(Finding, match=words):
        lock.judge("admit")


def test_a_right_snapshot_is_let_through() -> None:
    lock = begun()
    seen = run_of(lock).seen
    assert (seen.free, seen.available, seen.named, seen.found) == ([3, 4, 5], 3, {1: (ONE,)}, {ONE: (1,)})
    lock.run.seen = replace(seen, free=[5, 3, 4], backward=[4, 3, 5])  # in which order they are evicted is its choice
    lock.judge("admit")


# What the engine answers.

MATCH: Json = {"op": "admit", "row": 2, "text": [1, 1], "hits": 2}
NEW: Json = {"op": "admit", "row": 1, "text": [5, 5], "to": 2}
LEAVE: Json = {"op": "release", "row": 2}
GROW: Json = {"op": "grow", "row": 2, "to": 2}
COMPUTE: Json = {"op": "compute", "row": 2, "to": 2}
RESET: Json = {"op": "reset"}
FOUND, FREE = "each block found has the hash of the row's own text", "the blocks handed out were free"
# Each: the call, what it answers in the place of our engine, the operations, the law that breaks, and the words.
ANSWERS: list[tuple[str, Callable[..., Any], tuple[Json, ...], str, str]] = [
    ("get", lambda _, count: [3] * count, (NEW,), "take", "the blocks handed out are all different"),
    ("get", lambda ours, count: ours.get(count + 1), (NEW,), "take", "as many blocks are handed out as the call needs"),
    ("get", lambda *_: [1, 4], (NEW,), "take", FREE),
    ("get", lambda *_: [0, 3], (NEW,), "take", FREE),
    ("get", lambda *_: [9, 3], (NEW,), "take", FREE),
    ("get", lambda *_: None, (NEW,), ENOUGH, "take said out of memory"),
    ("find", lambda *_: None, (LEAVE, MATCH), FINDS, r"for \[1\] in group 0 it answered none"),
    ("find", lambda *_: 2, (LEAVE, MATCH), "join", FOUND),
    ("find", lambda *_: 9, (LEAVE, MATCH), "join", FOUND),
    ("find", lambda *_: 0, (LEAVE, MATCH), "join", FOUND),
    ("touch", lambda *_: None, (LEAVE, MATCH), "count_is_holders", "the number of holders of block 1 is 0"),
    ("free", lambda *_: None, (LEAVE,), "count_is_holders", "the number of holders of block 1 is 1, the law has 0"),
    ("cache", lambda *_: None, (GROW, COMPUTE), OFFERED, r"block 3 of row 2 was offered for \[1, 2\], and no block is"),
    ("evict", lambda *_: None, ({"op": "evict", "row": 2, "first": 0, "last": 1},), "evict", "finds block 1"),
    ("reset", lambda *_: True, (RESET,), "reset", "exactly where every block is free"),
    ("reset", lambda *_: False, (LEAVE, {**LEAVE, "row": 4}, RESET), "reset", "exactly where every block is free"),
]


@pytest.mark.parametrize(("call", "answer", "steps", "law", "words"), ANSWERS)
def test_a_wrong_answer_is_a_finding(
    call: str, answer: Callable[..., Any], steps: Sequence[Json], law: str, words: str
) -> None:
    made: list[Variant] = []

    def make(config: Json) -> Variant:
        made.append(Variant(OURS(config)))
        return made[-1]

    lock = begun(make)
    for step in steps[:-1]:
        lock.do(**step)
    setattr(made[-1], call, lambda *arguments: answer(made[-1].engine, *arguments))
    with pytest.raises(Finding, match=words) as caught:
        lock.do(**steps[-1])
    assert caught.value.law == law


def test_a_call_that_does_not_fit_is_refused() -> None:
    lock = run(lambda config: Variant(OURS(config), get=lambda count: [1, 2, 3][:count]), blocks=2)
    with pytest.raises(Finding, match="take was granted") as caught:
        lock.do("admit", row=1, text=[1, 1, 1], to=3)
    assert caught.value.law == REFUSED


def test_a_request_that_does_not_fit_gives_back_what_it_found() -> None:
    lock = begun()
    lock.do("release", row=2)
    lock.do("admit", row=1, text=[7, 7, 7], to=3)
    lock.do("admit", row=2, text=[1, 2, 3], hits=3, to=3)
    assert done(lock)["join"] == 1
    assert lock.law.counts["take", "refused"] == 1
    assert (list(run_of(lock).tables), run_of(lock).seen.available) == ([4, 1], 1)
    lock.do("admit", row=2, text=[1, 2, 3], hits=3, to=1)
    assert run_of(lock).tables[2].blocks == [1], "it is still found"


# What the engine may choose.


class KeepsOneOfTwins(OurBlocks):
    """Where a block with this hash is found already, the new one gets no hash."""

    def cache(self, group: int, text: Sequence[int], blocks: Sequence[int], first: int, last: int) -> None:
        """Offers what is new, place by place."""
        for place in range(first, last):
            if self.find(group, text[: place + 1]) is None:
                super().cache(group, text, blocks, place, place + 1)


class FindsTheNewest(BlockPool):
    """Of several blocks with one hash the newest is found."""

    def find(self, block_hash: Any) -> int | None:
        """The newest block with this hash."""
        return next(reversed(self.known.get(block_hash, {})), None)


class TakesTheLast(BlockPool):
    """Blocks are handed out from the tail of the queue."""

    def alloc(self, count: int) -> list[int] | None:
        """Puts the last blocks to the head first."""
        if count <= self.available_size():
            for block in list(self.queue())[: self.available_size() - count]:
                self._unlink(block)
                self._link(block)
        return super().alloc(count)


@pytest.mark.soak(but=1)
@pytest.mark.parametrize(
    "make",
    [
        lambda config: KeepsOneOfTwins(BlockPool(config["blocks"])),
        lambda config: OurBlocks(FindsTheNewest(config["blocks"])),
        lambda config: OurBlocks(TakesTheLast(config["blocks"])),
        lambda config: OurBlocks(BlockPool(config["blocks"], debug=True)),
        lambda config: OurBlocks(BlockPool(config["blocks"]), lacks=("evict", "reset")),
    ],
    ids=["one of twins", "newest", "from the tail", "debug", "without evict and reset"],
)
def test_what_is_lawful_is_let_through(make: Callable[[Json], Any]) -> None:
    found = check(STEM, make, Search(examples=100, seed=3))
    assert found.verdict == CONFORMS, f"{found.law}: {found.detail} {found.trace}"
    assert found.transitions["join done"] > 100


# What is read.


def test_who_shares_a_block_of_another_text_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep.LockStep, "_laws", lambda *_: None)
    monkeypatch.setattr(lockstep, "against_lines", lambda *_: [])
    monkeypatch.setattr(lockstep.Law, "_must_hold", lambda *_: None)
    monkeypatch.setattr(BlockPoolRun, "beyond_state", lambda _: [])
    lock = run(FAULTS["hash_of_block_alone"].make)
    lock.do("admit", row=2, text=[1, 2], to=2)
    lock.do("compute", row=2, to=2)
    lock.do("admit", row=4, text=[2], hits=1)
    with pytest.raises(Finding) as caught:
        lock.do("compute", row=4, to=1)
    assert caught.value.law == READS_OWN
    where = "the block at place 0 of its table is block 2, which row 2 wrote in step 2"
    assert caught.value.detail == f"row 4 reads row 2's tokens in step 4: {where}"


def test_a_block_of_another_group_has_other_contents() -> None:
    lock = run()
    for row in (1, 2):
        lock.do("admit", row=row, text=[1], to=1)
        lock.do("compute", row=row, to=1)
    one, other = (lock.run.shadow.holds(BLOCKS, block) for block in (1, 2))
    assert one is not None
    assert other is not None
    assert one.prefix != other.prefix


def test_null_blocks_are_neither_written_nor_read() -> None:
    lock = begun()
    lock.do("grow", row=2, to=2)
    lock.do("compute", row=2, to=2)
    lock.do("slide", row=2, to=1)
    assert run_of(lock).tables[2].blocks == [0, 3]
    lock.do("compute", row=2, to=2)
    lock.do("release", row=2)
    lock.do("admit", row=2, text=[1, 2, 2], skip=1, hits=2, to=3)
    assert run_of(lock).tables[2].blocks[:2] == [0, 3], "what the window does not reach is skipped"
    lock.do("compute", row=2, to=3)
    assert lock.run.shadow.holds(BLOCKS, 0) is None
    assert lock.run.shadow.wrong is None


def test_a_block_that_is_not_computed_can_be_moved_to_a_place_without_one() -> None:
    lock = begun()
    lock.do("grow", row=2, to=3, skip=1)
    assert run_of(lock).tables[2].blocks == [1, 0, 3]
    lock.do("move", row=2, place=2, to=1)
    assert run_of(lock).tables[2].blocks == [1, 3, 0]
    lock.do("compute", row=2, to=2)
    assert run_of(lock).seen.named[3] == (Name(0, (1, 2)),)


def test_a_row_that_does_not_grow_skips_no_place() -> None:
    lock = run(blocks=1)
    lock.do("admit", row=1, text=[1, 2, 3], to=1)
    lock.do("grow", row=1, to=3, skip=1)
    assert run_of(lock).tables[1].blocks == [1]
    assert lock.law.counts["take", "refused"] == 1


def test_a_transfer_holds_blocks_until_it_is_done() -> None:
    lock = begun()
    lock.do("release", row=4)
    lock.do("lend", row=2, other=4)
    lock.do("release", row=2)
    assert run_of(lock).seen.refs[1] == 1
    with pytest.raises(Misuse, match="no row 4"):
        lock.do("lend", row=4, other=4)
    lock.do("release", row=4)
    lock.do("reset")
    assert done(lock)["reset"] == 1
    assert run_of(lock).seen.found == {}


def test_without_a_prefix_cache_nothing_is_looked_for() -> None:
    lock = run(lambda config: Variant(OURS(config), find=pytest.fail, cache=pytest.fail), caching=False)
    lock.do("admit", row=1, text=[1], to=1)
    lock.do("compute", row=1, to=1)
    with pytest.raises(Misuse, match="no prefix cache"):
        lock.do("admit", row=3, text=[1], hits=1)
    with pytest.raises(Misuse, match="no prefix cache"):
        lock.do("evict", row=1, first=0, last=1)
    judge(lock)
