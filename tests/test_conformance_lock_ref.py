"""The radix tree in lock-step: what an engine does wrong is named by the law that it breaks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from driven import Variant

from conformance.driver.lockstep import UNSUPPORTED, VIOLATION, Finding, LockStep
from conformance.driver.protocol import Json, Misuse, Unsupported
from conformance.engines.ours.lock_ref import lock_ref
from conformance.engines.registry import every_kind
from conformance.planted.faults.known_bugs import FAULTS
from conformance.search.check import Search, check
from conformance.stems.lock_ref.exclusions import LockRefExclusion as Exclusion
from conformance.stems.lock_ref.protocol import LockRefSnapshot, PrefixMatch
from conformance.stems.lock_ref.rules import LockRefMachine, keys
from conformance.stems.lock_ref.run import LockRefRun
from conformance.stems.machine import Sink
from conformance.telling.tell import tell
from spec import lock_ref as law
from spec.lock_ref_state import COUNTED, SKIPPED

CONFIG = {"page_size": 1, "size": 12, "size_swa": 12, "size_mamba": 3, "window": 2}
LONG, SHORT = [1, 2, 3, 4, 5], [1, 2]


def started(*components: str, make: Callable[[Json], Any] = lock_ref, **config: Any) -> tuple[LockRefRun, LockStep]:
    """A run on a tree with these components, and its driver."""
    known = {**CONFIG, "kind": "unified", "components": ["full", *components], **config}
    run = LockRefRun(make(known), known)
    return run, LockStep(run, known)


def held(make: Callable[[Json], Any] = lock_ref) -> tuple[LockRefRun, LockStep]:
    """A run with a handle on two nodes, the upper one outside the window."""
    run, lock = started("swa", make=make)
    lock.do("insert", tokens=[1, 2, 3, 4])
    lock.do("match", tokens=SHORT)
    lock.do("acquire", handle=1, tokens=[1, 2, 3, 4])
    return run, lock


def engine_of(run: LockRefRun) -> Any:
    """The engine, of which tests change what no caller may change."""
    return run.engine


def node_of(run: LockRefRun, tokens: list[int]) -> int:
    """The engine's number of the node that ends at these tokens."""
    return run.engine.match(tokens).node


def judge(run: LockRefRun, lock: LockStep) -> None:
    """Reads the engine again and judges what it shows."""
    run.seen = run.snapshot()
    lock.judge("match")


def test_a_tombstone_gets_other_full_slots_only_when_nobody_reads_it() -> None:
    run, lock = held()
    lock.do("evict", swa=2)
    lock.do("insert", tokens=SHORT)
    assert run.law.counts["restore", "done"] == 0, "the handle reads the slots of the tombstone"
    assert run.law.counts["restore_swa", "done"] == 1, "the tombstone keeps them and gets SWA slots"
    run, lock = held()
    lock.do("evict", swa=2)
    lock.do("release", handle=1)
    lock.do("insert", tokens=SHORT)
    assert (run.law.counts["restore", "done"], run.law.counts["restore_swa", "done"]) == (1, 0)


def test_a_lock_that_is_lost_is_named() -> None:
    run, lock = held()
    engine_of(run).locks.full_ref[node_of(run, SHORT)] = 0
    words = r"the full lock count of node \[1, 2\] is 0, the law has 1"
    with pytest.raises(Finding, match=words) as found:
        judge(run, lock)
    assert found.value.law == "full_pairs"


def test_a_size_that_is_off_is_named() -> None:
    run, lock = held()
    engine_of(run).locks.sizes[0] += 1
    with pytest.raises(Finding, match="the evictable full size is 1, the law has 0") as found:
        judge(run, lock)
    assert found.value.law == "full_evictable_is_sum"


def test_an_eviction_under_a_lock_is_named_with_the_values() -> None:
    run, lock = held()
    tree, node = engine_of(run), node_of(run, [1, 2, 3, 4])

    def evict(*_: int) -> None:
        tree.locks.swa[node] = False
        tree.pools.give_swa(tree.entries[node].full)

    run.engine = Variant(tree, evict=evict)
    with pytest.raises(Finding) as found:
        lock.do("evict", swa=1)
    assert (found.value.law, found.value.kind) == ("evict_swa", "promise")
    promise = '"nobody holds the node\'s SWA part" is false'
    assert found.value.detail == f"evict broke a promise of evict_swa: {promise}: node [1, 2, 3, 4] (held by handle 1)"


def test_slots_replaced_under_a_reader_are_named_with_the_values() -> None:
    _, lock = held(FAULTS["restore_under_lock"].make)
    lock.do("evict", swa=2)
    with pytest.raises(Finding) as found:
        lock.do("insert", tokens=SHORT)
    assert found.value.law == "restore"
    assert found.value.detail.endswith(" is false: node [1, 2] (held by handle 1), slots [5, 6]")


def test_a_slot_with_two_owners_is_named() -> None:
    run, lock = held()
    engine_of(run).pools.free["full"].append(1)
    with pytest.raises(Finding, match=r"full pages \[1\] of node \[1, 2\] are free"):
        judge(run, lock)


def test_a_slot_without_an_owner_is_named() -> None:
    run, lock = held()
    engine_of(run).pools.free["swa"].pop()
    with pytest.raises(Finding, match=r"SWA pages \[12\] have no owner"):
        judge(run, lock)


def test_slots_of_another_insert_are_named() -> None:
    run, lock = held()
    engine_of(run).entries[node_of(run, SHORT)].full.reverse()
    with pytest.raises(Finding, match=r"node \[1, 2\] has the full slots \[2, 1\], the law has \[1, 2\]"):
        judge(run, lock)


def test_a_match_that_cannot_be_locked_is_named() -> None:
    run, lock = started("swa")
    lock.do("insert", tokens=LONG, cursor=2)
    real = run.engine.match(LONG)
    run.engine = Variant(run.engine, match=lambda _: PrefixMatch(2, real.node, real.slots[:2]))
    with pytest.raises(Finding, match="which cannot be locked"):
        lock.do("match", tokens=SHORT)


def test_a_node_that_no_insert_has_brought_is_named() -> None:
    run, lock = held()
    tree = engine_of(run)

    def match(tokens: list[int]) -> PrefixMatch:
        tree.insert([7, 8], 0, 0)
        found: PrefixMatch = tree.match(tokens)
        return found

    run.engine = Variant(tree, match=match)
    with pytest.raises(Finding, match=r"node \[7, 8\] has new slots, and the call was no insert") as found:
        lock.do("match", tokens=SHORT)
    assert found.value.law == "add_leaf"


def test_a_state_is_taken_and_copied() -> None:
    run, lock = started("mamba", size_mamba=2)
    lock.do("insert", tokens=SHORT)
    lock.do("insert", tokens=[7, 8])
    lock.do("copy_on_write", tokens=SHORT)
    assert run.law.counts["evict_leaf", "done"] == 1


def test_what_no_caller_sends_is_misuse() -> None:
    _, lock = held()
    unlawful: dict[str, dict[str, Any]] = {
        "insert": {"tokens": LONG, "protected": 1},
        "acquire": {"handle": 1, "tokens": LONG},
        "release": {"handle": 2},
        "release_swa": {"handle": 2},
        "copy_on_write": {"tokens": LONG},
    }
    for op, arguments in unlawful.items():
        with pytest.raises((Misuse, Unsupported)):
            lock.do(op, **arguments)
    with pytest.raises(Misuse, match="behind its window"):
        lock.do("insert", tokens=LONG, cursor=4)


def test_a_handle_on_the_root_holds_nothing() -> None:
    run, lock = started("swa")
    lock.do("acquire", handle=1, tokens=SHORT)
    assert run.handles() == [1]
    lock.do("release", handle=1)
    assert run.handles() == []


def test_the_engine_is_read_once_for_each_call() -> None:
    run, lock = started("swa", "mamba")
    counted = {"calls": 0, "reads": 0}

    def snapshot() -> LockRefSnapshot:
        counted["reads"] += 1
        return tree.snapshot()

    def counting(name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            counted["calls"] += 1
            return getattr(tree, name)(*arguments)

        return call

    tree = run.engine
    names = ("insert", "match", "acquire", "release", "release_swa", "evict", "copy_on_write", "bad")
    run.engine = Variant(tree, snapshot=snapshot, **{name: counting(name) for name in names})
    lock.do("insert", tokens=LONG)
    lock.do("acquire", handle=1, tokens=LONG)
    lock.do("copy_on_write", tokens=LONG)
    lock.do("release_swa", handle=1)
    lock.do("bad", kind="acquire_root")
    lock.do("evict", full=1, swa=1, mamba=1)
    lock.do("release", handle=1, caller="session")
    assert counted == {"calls": 9, "reads": 9}


def test_a_story_of_a_tree_says_what_changed() -> None:
    _, lock = held()
    lock.do("release_swa", handle=1)
    lock.do("release", handle=1)
    lock.do("evict", full=2)
    told = tell(lock.trace, lock_ref)
    assert "node [1, 2, 3, 4]: not in the tree → in the tree" in told[0].changed
    assert told[3].changed == "the SWA lock count of node [1, 2, 3, 4]: 1 → 0"
    tree = told[3].picture["panels"][0]["items"]
    assert [(node["key"], node["depth"]) for node in tree[:3]] == [("root", 0), ("node 2", 1), ("node 1", 2)]
    assert "node [1, 2, 3, 4]: in the tree → not in the tree" in told[5].changed


# What the rules leave out.


def machine(make: Callable[[Json], Any] = lock_ref, **config: Any) -> Callable[..., LockRefMachine]:
    """A started machine, as a function of what is left out. ``config``: what the start draws."""
    drawn = {"page_size": 0, "tree": 0, "size": 12, "size_swa": 12, "size_mamba": 3, "window": 2, **config}

    def start(*exclude: Exclusion) -> LockRefMachine:
        known = {"make": staticmethod(make), "run_class": LockRefRun, "sink": Sink(), "exclude": exclude}
        known["kinds"] = every_kind()
        made: LockRefMachine = type("Drawn", (LockRefMachine,), known)()
        made.start(config=drawn)
        return made

    return start


def restores_under_reader(drawn: LockRefMachine) -> None:
    drawn.insert(length=4, fork=0, cursor=0, shared=False)
    drawn.match(drawn=0, cut=2)
    drawn.acquire(drawn=1, cut=0)
    drawn.evict(part=1, amount=2, all_parts=False)
    drawn.insert(length=2, fork=0, cursor=0, shared=False)


def releases_early(drawn: LockRefMachine) -> None:
    drawn.insert(length=4, fork=0, cursor=0, shared=False)
    drawn.acquire(drawn=0, cut=0)
    drawn.release_swa(drawn=0)


def releases_rest_as_session(drawn: LockRefMachine) -> None:
    releases_early(drawn)
    drawn.release(drawn=0, caller="session")


def copies(drawn: LockRefMachine) -> None:
    drawn.insert(length=4, fork=0, cursor=0, shared=False)
    drawn.copy_on_write(drawn=0, cut=0)


def inserts_past_cursor(drawn: LockRefMachine) -> None:
    drawn.insert(length=4, fork=0, cursor=4, shared=False)


WITH_STATES = [parts for _, parts in every_kind().locked].index(("full", "swa", "mamba"))
# For each exclusion a situation whose last operation is left out, and what the start draws for it.
SITUATIONS: dict[Exclusion, tuple[Callable[[LockRefMachine], None], Json]] = {
    Exclusion.RESTORE_HELD: (restores_under_reader, {}),
    Exclusion.SESSION_AFTER_EARLY: (releases_rest_as_session, {}),
    Exclusion.EARLY_RELEASE: (releases_early, {}),
    Exclusion.EARLY_RELEASE_STATE: (releases_early, {"tree": WITH_STATES}),
    Exclusion.COPY_ON_WRITE: (copies, {"tree": WITH_STATES}),
    Exclusion.CURSOR_PAST_KEY: (inserts_past_cursor, {"tree": WITH_STATES, "page_size": 1}),
}


@pytest.mark.parametrize("exclusion", Exclusion)
def test_each_exclusion_leaves_something_out(exclusion: Exclusion) -> None:
    situation, config = SITUATIONS[exclusion]
    everything, left_out = machine(**config)(), machine(**config)(exclusion)
    situation(everything)
    situation(left_out)
    assert everything.lock.trace.steps[-1] not in left_out.lock.trace.steps


def test_a_configuration_that_the_engine_does_not_support_starts_no_run() -> None:
    def make(_: Json) -> Any:
        raise Unsupported("no tree")

    assert machine(make)().run is None
    result = check("lock_ref", make, Search(examples=3))
    assert (result.verdict, result.steps) == (UNSUPPORTED, 0)


def test_keys_share_their_tokens_up_to_the_fork() -> None:
    assert keys(4, 2) == [1, 2, 23, 24]
    assert keys(2, 0) == [1, 2]


def test_our_tree_conforms() -> None:
    found = check("lock_ref", lock_ref, Search(examples=40))
    assert (found.verdict, found.detail) == ("conforms", None)


def test_a_reader_whose_slots_are_replaced_is_found_and_the_run_shrinks() -> None:
    found = check("lock_ref", FAULTS["restore_under_lock"].make, Search())
    assert (found.verdict, found.law) == (VIOLATION, "restore")
    assert found.trace is not None
    assert len(found.trace.steps) <= 8


# Locks over tombstones, tombstones that come to life while they are held, and merged nodes.

TEXT = [1, 2, 3, 4, 5, 6]
STYLES = {"skips": False, "counts": True}  # how our tree locks over a tombstone


def counting(counts: bool) -> Callable[[Json], Any]:
    """Our tree, which skips the tombstones of a lock or counts them."""
    return functools.partial(lock_ref, counting=counts)


def pinned(counts: bool) -> tuple[LockRefRun, LockStep]:
    """A run with a handle on the tombstone [1, 2, 3]; [4, 5, 6] below it is live."""
    run, lock = started("swa", make=counting(counts))
    lock.do("insert", tokens=TEXT, cursor=3)
    lock.do("pin", handle=1, tokens=TEXT[:3])
    return run, lock


def swa_locks(run: LockRefRun) -> dict[int, int]:
    """The SWA lock counts that the engine shows, by the length of the node's key; those of 0 are left out."""
    found = {len(key): node.parts["swa"].lock for key, node in run.seen.nodes.items()}
    return {length: count for length, count in found.items() if count}


@pytest.mark.parametrize("counts", STYLES.values(), ids=STYLES)
def test_a_lock_over_a_tombstone_skips_it_or_counts_it(counts: bool) -> None:
    run, lock = pinned(counts)
    state = run.state
    assert state.grip(1, run.numbers[1, 2, 3]) == (COUNTED if counts else SKIPPED)
    assert swa_locks(run) == ({3: 1} if counts else {})
    assert engine_of(run).locks.swa_protected_size() == 0, "a tombstone has no SWA slots to protect"
    lock.do("release", handle=1)
    assert swa_locks(run) == {}


@pytest.mark.parametrize("counts", STYLES.values(), ids=STYLES)
def test_a_held_tombstone_comes_to_life_and_keeps_its_full_slots(counts: bool) -> None:
    run, lock = pinned(counts)
    node, before = run.numbers[1, 2, 3], run.state
    old = law.stem.transitions["restore"](before, node, 7).broken()
    assert old == ["nobody holds the node whose full slots are replaced"], "the law without restore_swa refused it"
    slots = run.seen.nodes[1, 2, 3].parts["full"].slots
    lock.do("insert", tokens=TEXT[:3])
    assert (run.law.counts["restore_swa", "done"], run.law.counts["restore", "done"]) == (1, 0)
    assert run.seen.nodes[1, 2, 3].parts["full"].slots == slots
    assert engine_of(run).locks.swa_protected_size() == (3 if counts else 0), "who counted the tombstone holds it now"
    lock.do("acquire", handle=2, tokens=TEXT[:3])
    lock.do("release", handle=1)
    assert swa_locks(run) == {3: 1}, "the lock of the second handle stays"
    lock.do("release", handle=2)


ORDERS: dict[str, list[Json]] = {
    "split, revive, release": [
        {"op": "match", "tokens": [1]},
        {"op": "insert", "tokens": [1, 2]},
        {"op": "acquire", "handle": 2, "tokens": [1, 2]},
        {"op": "release", "handle": 1},
    ],
    "revive, split, evict, release": [
        {"op": "insert", "tokens": [1, 2, 3]},
        {"op": "match", "tokens": [1]},
        {"op": "evict", "swa": 3},
        {"op": "release", "handle": 1},
    ],
    "split, merge, revive, release": [
        {"op": "match", "tokens": [1, 2]},
        {"op": "compact"},
        {"op": "insert", "tokens": [1, 2, 3]},
        {"op": "acquire", "handle": 2, "tokens": [1, 2, 3]},
        {"op": "compact"},
        {"op": "release", "handle": 1},
        {"op": "compact"},
    ],
    "lock below, revive, early release, merge": [
        {"op": "pin", "handle": 3, "tokens": TEXT},
        {"op": "insert", "tokens": [1, 2, 3]},
        {"op": "release_swa", "handle": 3},
        {"op": "release", "handle": 1},
        {"op": "compact"},
        {"op": "release", "handle": 3},
    ],
}


@pytest.mark.parametrize("counts", STYLES.values(), ids=STYLES)
@pytest.mark.parametrize("steps", ORDERS.values(), ids=ORDERS)
def test_whatever_happens_to_a_skipped_node_the_release_gives_back_what_was_taken(
    steps: list[Json], counts: bool
) -> None:
    run, lock = pinned(counts)
    for step in steps:
        lock.do(step["op"], **{name: value for name, value in step.items() if name != "op"})
    for handle in run.handles():
        lock.do("release", handle=handle)
    assert swa_locks(run) == {}
    assert engine_of(run).locks.swa_protected_size() == 0


def test_a_merge_is_explained_and_moves_no_slot() -> None:
    run, lock = started("swa")
    lock.do("insert", tokens=TEXT)
    slots = run.seen.nodes[tuple(TEXT)].parts["full"].slots
    lock.do("match", tokens=[1, 2])
    lock.do("match", tokens=[1, 2, 3, 4])
    lock.do("acquire", handle=1, tokens=TEXT)
    lock.do("compact")
    assert list(map(len, run.seen.nodes)) == [4, 6], "the window of the handle ends after token 4"
    lock.do("release", handle=1)
    lock.do("compact")
    assert run.law.counts["merge", "done"] == 2
    assert run.seen.nodes[tuple(TEXT)].parts["full"].slots == slots
    lock.do("insert", tokens=[1, 2, 3])
    lock.do("evict", full=12)


def test_a_merge_that_takes_a_lock_end_away_is_named() -> None:
    run, lock = started("swa")
    lock.do("insert", tokens=TEXT)
    lock.do("match", tokens=SHORT)
    lock.do("acquire", handle=1, tokens=SHORT)
    locks, leaf = engine_of(run).locks, node_of(run, TEXT)
    locks.mergeable = lambda node: node == leaf and bool(locks.parent[leaf])
    with pytest.raises(Finding) as found:
        lock.do("compact")
    assert (found.value.law, found.value.kind) == ("merge", "promise")
    assert '"every handle holds both nodes alike" is false' in found.value.detail


def test_an_early_release_takes_the_state_only_where_the_engine_pairs_it() -> None:
    def pairing(config: Json) -> Any:
        made = lock_ref(config)
        early = functools.partial(made.locks.release_swa, with_state=True)
        made.lacks = frozenset(made.lacks) - {"state_goes_early"} if pairs else made.lacks
        return Variant(made, release_swa=lambda handle: early([made.held[handle]]))

    for pairs in (True, False):
        _, lock = started("swa", "mamba", make=pairing)
        lock.do("insert", tokens=LONG)
        lock.do("acquire", handle=1, tokens=LONG)
        if pairs:
            lock.do("release_swa", handle=1)
            lock.do("release", handle=1)
        else:
            with pytest.raises(Finding, match="mamba_pairs"):
                lock.do("release_swa", handle=1)


def test_a_pin_of_a_node_that_is_not_there_is_a_misuse() -> None:
    _, lock = held()
    with pytest.raises(Misuse, match="no node of the tree ends"):
        lock.do("pin", handle=2, tokens=[1])
    with pytest.raises(Misuse, match="not new"):
        lock.do("pin", handle=1, tokens=SHORT)


def test_our_tree_that_counts_tombstones_conforms() -> None:
    found = check("lock_ref", counting(True), Search(examples=40))
    assert (found.verdict, found.detail) == ("conforms", None)


def test_a_lock_over_tombstones_that_no_request_takes_is_given_back_whole() -> None:
    """Where only a lock around one call is taken over tombstones, no request gives it back, or its SWA part alone."""

    def around_one_call(config: Json) -> Any:
        made = lock_ref(config)
        return Variant(made, lacks={*made.lacks, "pinned_by_requests"})

    run, lock = started("swa", make=around_one_call)
    lock.do("insert", tokens=LONG)
    lock.do("acquire", handle=1, tokens=LONG)
    lock.do("pin", handle=2, tokens=LONG)
    assert [run.releasable(handle) for handle in (1, 2)] == [True, False]
    with pytest.raises(Unsupported, match="no session of this engine locks over tombstones"):
        lock.do("release", handle=2, caller="session")
    lock.do("release", handle=2, caller="temporary")
    lock.do("release", handle=1)
