"""Rows that start from a tail, steps that are rolled back or interrupted, checkpoints, and locks that give back their
SWA part early: each is lawful, and beside it a mutant that is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from driven import Variant, done
from test_impl_cache import new
from test_impl_session_trim import new as new_rows
from test_impl_session_trim import seen
from test_impl_swa_mapping import ints

from conformance.driver.lockstep import Finding, LockStep
from conformance.driver.protocol import Json, Misuse
from conformance.engines.ours.cache import OurCache, cache
from conformance.engines.ours.lock_ref import lock_ref
from conformance.planted.faults.known_bugs import FAULTS
from conformance.stems.cache.protocol import LockHold
from conformance.stems.session_trim.protocol import SessionTrimSnapshot
from conformance.stems.stem_registry import start
from impl.lock_ref import LockHandle, LockTree
from impl.mamba_slots import MambaStates
from impl.paths import HeldNodes
from spec.finite import Seq
from spec.lengths import Length
from spec.lock_ref_state import ROOT

ROWS = {"page_size": 2, "size": 12, "size_swa": 12, "window": 3, "need_sort": False, "rows": 3, "sessions": 2}
CACHE = {**ROWS, "tree": "unified", "components": ["full", "swa"]}
STATES: Json = {
    "components": ["full", "swa", "mamba"],
    "size_mamba": 8,
    "buffered": False,
    "doubled": False,
    "lazy": False,
}


def begun(stem: str = "cache", make: Any = cache, **config: Any) -> LockStep:
    """A run on small pools: pages of two tokens, a window of three."""
    return start(stem, make, {**CACHE, **config})


def state_of(lock: LockStep) -> Any:
    """The law's state of a whole cache."""
    return lock.law.state


# A request that starts from an SWA tail.

TAIL: list[Json] = [
    {"op": "admit_tail", "request": 0, "more": 9},
    *({"op": "decode", "requests": [0], "slide": True} for _ in range(4)),
    {"op": "finish", "request": 0},
    {"op": "quiesce"},
]


@pytest.mark.parametrize("stem", ["session_trim", "cache"])
def test_a_row_starts_from_a_tail_is_cached_and_decodes(stem: str) -> None:
    lock = begun(stem)
    lock.do(**TAIL[0])
    rows = lock.law.state if stem == "session_trim" else lock.law.state.rows
    assert (rows.cursor(0), rows.protected(0), rows.committed(0)) == (2, 4, 4), "a window before the eighth token"
    for step in TAIL[1:]:
        lock.do(**step)
    assert done(lock)["admit_tail"] == 1
    if stem == "cache":
        assert done(lock)["insert_leaf"] >= 2, "a tombstone below the cursor, and a leaf with SWA pages behind it"


def test_a_row_that_hides_its_tail_is_found() -> None:
    lock = begun("session_trim", FAULTS["tail_starts_at_prefix"].make)
    with pytest.raises(Finding) as caught:
        lock.do(**TAIL[0])
    assert (caught.value.law, caught.value.kind) == ("admit_tail", "choice")


class ShortTail(OurCache):
    """A cache whose tail leaves out a page of the window."""

    def admit_tail(self, request: int, session: int, tokens: list[int]) -> Any:
        """Frees the first SWA page of the tail, and moves the cursor."""
        answer = super().admit_tail(request, session, tokens)
        row = self.running[request].row
        at = int(self.rows.cursor[row])
        page = self.rows.token_slots.read(ints(row), ints(at), ints(at + self.page_size))
        self.engine.pools.free_swa(page)
        self.rows.cursor[row] = at + self.page_size
        return answer


def test_a_tail_that_is_shorter_than_the_window_is_found() -> None:
    lock = begun("session_trim", lambda config: ShortTail(cache(config).engine))
    with pytest.raises(Finding, match="the tail holds the window before the next token") as caught:
        lock.do("admit_tail", request=0, more=8)
    assert caught.value.law == "admit_tail"


def with_prefix() -> LockStep:
    """A request that starts from a tail behind a cached prefix of four tokens."""
    lock = begun()
    lock.do("admit", request=0, more=5)
    lock.do("finish", request=0)
    lock.do("admit_tail", request=1, more=10)
    return lock


def test_a_prefix_is_held_without_its_window() -> None:
    """The law once asked that every lock of a row holds a whole window; then this state was unlawful."""
    lock = begun(make=lambda config: Variant(cache(config), cache=lambda *_: None))
    lock.do("admit", request=0, more=5)
    lock.do("finish", request=0)
    lock.do("admit_tail", request=1, more=10)
    state = state_of(lock)
    assert (state.rows.protected(0), state.rows.cursor(0)) == (2, 3)
    assert state.tree.top(state.handle(0)) == ROOT
    assert not lock.law.stem.broken(state)
    lock.do("evict", swa=12)
    assert done(lock)["evict_swa"] == 1, "nobody reads the SWA pages of the prefix"
    lock.do("decode", requests=[1], slide=True)
    lock.do("quiesce")


def test_a_prompt_from_elsewhere_reads_what_the_tree_has() -> None:
    lock = with_prefix()
    assert done(lock)["admit_tail"] == 1
    assert done(lock)["continue_prefill"] == 2
    lock.do("decode", requests=[1], slide=True)
    lock.do("quiesce")


def test_a_tail_without_room_changes_nothing() -> None:
    lock = begun(size=4, size_swa=4)
    lock.do("admit", request=0, more=5)
    lock.do("admit_tail", request=1, more=7, fork=1)
    assert lock.law.counts["admit_tail", "refused"] == 1
    lock.do("quiesce")


BAD_TAILS = {
    "inside a page": (8, 3, "whole pages"),
    "into the window": (8, 6, "at most 5"),
    "before the prefix": (8, 0, "from 2 to"),
    "longer than a row": (99, 4, "max_tokens"),
}


@pytest.mark.parametrize("name", BAD_TAILS)
def test_a_bad_tail_is_refused_and_changes_nothing(name: str) -> None:
    to, first, says = BAD_TAILS[name]
    rows = new_rows(2, window=3, rows=2, full=6, swa=6)
    prefix = rows.pools.alloc(2)
    assert prefix is not None
    before = seen(rows)
    with pytest.raises(ValueError, match=says):
        rows.admit_tail(prefix, to, first)
    assert seen(rows) == before


# The SWA part of a lock, given back early.


def early(make: Any = cache, **config: Any) -> LockStep:
    """A request that holds a cached prefix of four tokens, and has decoded past its window."""
    lock = begun(make=make, **config)
    for request in (0, 1):
        lock.do("admit", request=request, more=5)
    lock.do("finish", request=0)
    for _ in range(4):
        lock.do("decode", requests=[1], slide=True)
    return lock


def test_a_window_that_has_left_the_tree_is_given_back() -> None:
    lock = early()
    assert state_of(lock).tree.top(state_of(lock).handle(1)) != ROOT
    lock.do("release_swa", request=1)
    state = state_of(lock)
    assert state.tree.top(state.handle(1)) == ROOT
    assert not lock.law.stem.broken(state)
    lock.do("evict", full=24, swa=24)
    assert (done(lock)["evict_swa"], done(lock).get("evict_leaf", 0)) == (1, 0), "the full pages are still locked"
    lock.do("decode", requests=[1])
    lock.do("finish", request=1)
    lock.do("quiesce")


def test_a_window_that_is_read_in_the_tree_is_not_given_back() -> None:
    lock = begun()
    lock.do("admit", request=0, more=5)
    lock.do("release_swa", request=0)
    assert "release_swa" not in done(lock), "our cache sees that it cannot"
    faulty = begun(make=FAULTS["early_release_under_window"].make)
    faulty.do("admit", request=0, more=5)
    with pytest.raises(Finding) as caught:
        faulty.do("release_swa", request=0)
    assert (caught.value.law, caught.value.kind) == ("release_swa", "promise")


def test_a_turn_of_a_session_keeps_its_window() -> None:
    """A cut of its row may bring the window back into the tree."""
    lock = begun()
    lock.do("admit", request=0, more=5, session=1)
    for _ in range(6):
        lock.do("decode", requests=[0], slide=True)
    lock.do("release_swa", request=0)
    assert "release_swa" not in done(lock)
    lock.do("finish", request=0, sent=0)
    lock.do("quiesce")


def test_a_cut_into_a_window_that_was_given_back_is_unlawful() -> None:
    """The row of a session that gave back its window cannot be saved with less than the prefix and a window."""
    lock = begun()
    lock.do("admit", request=0, more=5, session=1)
    for _ in range(6):
        lock.do("decode", requests=[0])
    lock.law.engine_step("release_swa", 0, state_of(lock).handle(0))
    save = lock.law.stem.transitions["save"]
    assert save(state_of(lock), 0, Length(4, 0)).kept, "the prefix of two pages, and three tokens behind it"
    (sentence,) = save(state_of(lock), 0, Length(3, 0)).broken()
    assert sentence == "the row's lock holds the SWA part of each node in the window before the next token"


class Paired(LockTree):
    """Locks whose early release of the SWA part gives back the state, too, as SGLang 0.5.23 does."""

    notes = True  # that the state is given back

    def release_swa(self, handles: Iterable[LockHandle], *, with_state: bool = False) -> None:
        """Gives back the SWA parts and the states of the handles."""
        given = list(handles)
        super().release_swa(given, with_state=with_state)
        for handle in given:
            node = torch.tensor([[handle.node * handle.state]])
            none = torch.zeros_like(node)
            self.counts.shift(HeldNodes(none, none, node), -1)
            if self.notes:
                self.held[handle.number, 2] = 0


class Forgetful(Paired):
    """Locks that do not note that the state was given back, so that it is given back twice."""

    notes = False


def with_states(locks: type[LockTree]) -> LockStep:
    """As ``early``, in a cache with states; a request that ends at a page gives its state to the tree."""
    lock = begun(make=lambda config: cache(config, locks=locks), **STATES)
    lock.do("admit", request=0, more=4)
    lock.do("admit", request=1, more=5)
    for _ in range(4):
        lock.do("decode", requests=[1], slide=True)
    return lock


def test_a_state_may_be_given_back_with_the_window() -> None:
    lock = with_states(Paired)
    lock.do("release_swa", request=1)
    assert (done(lock)["release_swa"], done(lock)["release_state"]) == (1, 1)
    lock.do("evict", states=8)
    lock.do("quiesce")
    kept = with_states(LockTree)
    kept.do("release_swa", request=1)
    assert "release_state" not in done(kept), "or it stays locked"
    kept.do("quiesce")


def test_a_state_that_is_given_back_twice_is_found() -> None:
    lock = with_states(Forgetful)
    with pytest.raises(Finding) as caught:
        lock.do("release_swa", request=1)
    assert caught.value.law == "mamba_pairs"


def test_the_stem_of_locks_knows_both_designs() -> None:
    config = {**STATES, "page_size": 1, "size": 8, "size_swa": 8, "window": 2, "kind": "unified"}
    steps: list[Json] = [
        {"op": "insert", "tokens": [1, 2], "cursor": 0, "protected": 0},
        {"op": "acquire", "handle": 1, "tokens": [1, 2]},
        {"op": "release_swa", "handle": 1},
        {"op": "release", "handle": 1, "caller": "request"},
    ]

    def run(locks: type[LockTree], early: bool) -> LockStep:
        lock = start("lock_ref", lambda c: lock_ref(c, locks=locks, state_goes_early=early), config)
        for step in steps:
            lock.do(**step)
        return lock

    assert done(run(Paired, True))["release_state"] == 1
    assert "release_state" not in done(run(LockTree, False))
    for locks, early in ((Paired, False), (LockTree, True), (Forgetful, True)):
        with pytest.raises(Finding, match="mamba"):
            run(locks, early)


# Checkpoints.


def test_a_request_checkpoints_while_it_decodes() -> None:
    lock = begun()
    lock.do("admit", request=0, more=3)
    for _ in range(5):
        lock.do("decode", requests=[0])
    lock.do("reserve", request=0, more=3)
    lock.do("checkpoint", request=0, upto=5)
    state = state_of(lock)
    assert (state.rows.protected(0), state.tree.stop(state.tree.node(state.handle(0)))) == (2, 2)
    lock.do("commit", request=0, count=2)
    lock.do("checkpoint", request=0, upto=10)
    assert state_of(lock).rows.protected(0) == 5
    assert done(lock)["continue_prefill"] == 3
    lock.do("finish", request=0)
    lock.do("quiesce")


def test_an_answer_is_not_cut_before_its_checkpoint() -> None:
    """An engine looks for the end of the answer in each step: it puts nothing into the tree that it cuts off later."""
    lock = begun()
    lock.do("admit", request=0, more=3)
    for _ in range(5):
        lock.do("decode", requests=[0])
    lock.do("checkpoint", request=0, upto=5)
    lock.do("checkpoint", request=0, upto=4)
    with pytest.raises(Misuse, match="the first 5 tokens"):
        lock.do("finish", request=0, sent=1)
    lock.do("finish", request=0, sent=2)
    lock.do("quiesce")


def test_a_turn_checkpoints_its_input_alone() -> None:
    lock = begun()
    lock.do("admit", request=0, more=4, session=1)
    for _ in range(4):
        lock.do("decode", requests=[0])
    lock.do("checkpoint", request=0, upto=4)
    with pytest.raises(Misuse, match="only its input"):
        lock.do("checkpoint", request=0, upto=6)
    with pytest.raises(Misuse, match="tokens that are computed"):
        lock.do("checkpoint", request=0, upto=9)


class SlidesFirst(OurCache):
    """A cache that moves the window of a request before it inserts."""

    def checkpoint(self, request: int, upto: int) -> None:
        """Moves the window, and inserts."""
        self.slide(request)
        super().checkpoint(request, upto)


def test_a_window_may_move_before_an_insert() -> None:
    lock = begun(make=lambda config: SlidesFirst(cache(config).engine))
    lock.do("admit", request=0, more=3)
    for _ in range(7):
        lock.do("decode", requests=[0])
    lock.do("checkpoint", request=0, upto=10)
    assert (done(lock)["slide"], state_of(lock).rows.protected(0)) == (1, 5)
    lock.do("quiesce")


def test_pages_that_a_checkpoint_keeps_are_found() -> None:
    lock = begun(make=FAULTS["donated_pages_stay"].make)
    with pytest.raises(Finding):
        lock.do("admit", request=0, more=4)


# Steps that are rolled back.


def test_a_draft_is_rolled_back_inside_a_page() -> None:
    lock = begun("session_trim")
    lock.do("admit", request=0, more=4)
    lock.do("reserve", request=0, more=4)
    lock.do("commit", request=0, count=1)
    lock.do("roll_back", request=0, count=2)
    lock.do("roll_back", request=0, count=1)
    assert lock.law.state.pools.now.full.whole(0) == 2
    with pytest.raises(Misuse, match="no further than to what is computed"):
        lock.do("roll_back", request=0, count=1)
    lock.do("decode", requests=[0])
    lock.do("quiesce")


def test_a_rolled_back_row_is_as_before() -> None:
    """In the law a row that grows and is rolled back has the lengths and the pages that it had."""
    lock = begun("session_trim")
    lock.do("admit", request=0, more=3)
    law, before = lock.law.stem.transitions, lock.law.state
    pages = [next(p for p in pool.pages.items() if pool.place(p) == 0) for pool in pools_of(before)]
    grown = law["extend"](before, 0, Length(2, 1), *(Seq([page]) for page in pages)).then
    back = law["roll_back"](grown, 0, Length(1, 1))
    assert back.granted, back.broken()
    after = back.then
    for name in ("phase", "protected", "cursor", "committed", "committed_rest", "session"):
        assert getattr(after, name)(0) == getattr(before, name)(0)
    for was, now in zip(pools_of(before), pools_of(after), strict=True):
        assert [now.table(0, i) for i in was.indices.items()] == [was.table(0, i) for i in was.indices.items()]
        assert (now.whole(0), now.rest(0), now.available) == (was.whole(0), was.rest(0), was.available)


def pools_of(state: Any) -> tuple[Any, Any]:
    return state.pools.now.full, state.pools.now.swa


def test_a_roll_back_into_a_window_that_is_gone_is_refused() -> None:
    rows = new_rows(2, window=3, rows=2, full=8, swa=8)
    (row,) = rows.admit([ints()]) or [-1]
    rows.extend([row], [12])
    rows.slide_to([row], [8])
    before = seen(rows)
    with pytest.raises(ValueError, match="window"):
        rows.roll_back([row], [10])
    assert seen(rows) == before
    rows.roll_back([row], [11])
    assert rows.lengths[:4, row].tolist() == [0, 8, 11, 11]


def test_a_roll_back_that_reads_a_window_given_back_is_refused() -> None:
    c = new(2, window=3, full=12, swa=12)
    text = list(range(12))
    (first,) = c.admit([text[:5]]) or [-1]
    c.extend([first], [5])
    c.cache_finished([first], [text[:5]])
    row = c.admit_tail(text[:10])
    assert row is not None
    assert c.release_swa([row]) == [True]
    with pytest.raises(ValueError, match="at least 7 tokens"):
        c.roll_back([row], [6])
    c.roll_back([row], [9])
    assert int(c.rows.allocated[row]) == 9


# Steps that are interrupted.

INTERRUPTED: list[list[Json]] = [
    [{"op": "interrupted_admit", "request": 0, "more": 5}],
    [{"op": "admit", "request": 1, "more": 5}, {"op": "interrupted_admit", "request": 0, "more": 7}],
    [
        {"op": "admit", "request": 0, "more": 3, "session": 1},
        {"op": "finish", "request": 0},
        {"op": "interrupted_admit", "request": 0, "more": 4, "session": 1},
    ],
    [{"op": "admit", "request": 0, "more": 7, "chunk": 1}, {"op": "interrupted_chunk", "request": 0}],
    [{"op": "admit", "request": 0, "more": 5}, {"op": "interrupted_decode", "requests": [0]}],
]


@pytest.mark.parametrize("need_sort", [False, True])
@pytest.mark.parametrize("steps", INTERRUPTED, ids=lambda steps: f"{len(steps)}_{steps[-1]['op']}")
def test_an_interrupted_step_leaves_everything_as_it_was(steps: list[Json], need_sort: bool) -> None:
    lock = begun(need_sort=need_sort)
    for step in steps[:-1]:
        lock.do(**step)
    engine: Any = lock.run
    before = engine.engine.cache_snapshot()
    lock.do(**steps[-1])
    after = engine.engine.cache_snapshot()
    assert with_no_mapping(after.rows) == with_no_mapping(before.rows)
    assert sum(n for (_, outcome), n in lock.law.counts.items() if outcome == "interrupted") == 1
    lock.do("quiesce")


def with_no_mapping(rows: SessionTrimSnapshot) -> SessionTrimSnapshot:
    """Without the mapping: what slots of a page map to that no token has, nobody reads."""
    return replace(rows, pools=replace(rows.pools, mapping=[]))


def test_an_interrupted_step_that_takes_a_page_is_found() -> None:
    lock = begun("session_trim", FAULTS["interrupted_step_takes_page"].make)
    lock.do("admit", request=0, more=5)
    with pytest.raises(Finding) as caught:
        lock.do("interrupted_decode", requests=[0])
    assert caught.value.law == "one_owner"


class Leaking(OurCache):
    """A cache that keeps the row and the slots of an admission that an exception ended."""

    def interrupted_admit(self, request: int, session: int, tokens: list[int], most: int) -> int:
        """Admits; nobody knows the row."""
        del request, session, most
        rows = self.engine.admit([tokens])
        assert rows is not None
        return int(self.rows.protected[rows[0]])


def test_a_row_that_nobody_has_after_an_exception_is_found() -> None:
    lock = begun("session_trim", lambda config: Leaking(cache(config).engine))
    with pytest.raises(Finding, match="no owner"):
        lock.do("interrupted_admit", request=0, more=5)


def test_an_interrupted_step_is_sent_outside_of_free_groups() -> None:
    lock = begun()
    lock.do("admit", request=0, more=5)
    lock.do("begin_group")
    with pytest.raises(Misuse, match="outside of free groups"):
        lock.do("interrupted_decode", requests=[0])


def test_a_copy_of_a_state_that_fails_leaves_everything_as_it_was() -> None:
    states = MambaStates(3, 8, buffer_size=0, device="cpu")
    fails: list[bool] = []

    def copy(*_: Any) -> None:
        if fails:
            raise RuntimeError("no copy")

    c = new(2, window=3, rows=3, full=12, swa=12, states=states, copy=copy)
    (first,) = c.admit([list(range(5))]) or [-1]
    c.extend([first], [4])
    c.cache_finished([first], [list(range(4))])
    before = seen(c.rows), c.locks.full_ref.tolist(), states.mamba_allocator.available_size()
    fails.append(True)
    with pytest.raises(RuntimeError, match="no copy"):
        c.admit([list(range(9))])
    assert (seen(c.rows), c.locks.full_ref.tolist(), states.mamba_allocator.available_size()) == before
    with pytest.raises(RuntimeError, match="no copy"):
        c.admit_tail(list(range(9)))
    assert c.locks.full_ref.tolist() == before[1]
    assert states.mamba_allocator.available_size() == before[2]
    c.check()


def test_what_a_snapshot_shows_of_a_lock_without_its_window() -> None:
    lock = early()
    lock.do("release_swa", request=1)
    run: Any = lock.run
    hold = run.seen.holds["request", 1]
    assert isinstance(hold, LockHold)
    assert (hold.top, len(hold.text)) == (None, 4)
