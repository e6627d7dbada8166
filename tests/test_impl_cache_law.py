"""The session cache beside the law itself: every step that a call takes is a lawful one, and both come to one state."""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from cache_states import KINDS, STATE_OPS, Kind, States, StateScheduler
from cache_walk import OPS, SESSIONS, Scheduler
from test_impl_cache import PAGES, drained, new

from conformance.stems.swa_mapping.projection import waiting_alone
from impl.lock_ref import LockHandle
from spec import cache as law
from spec import (
    cache_flight,
    cache_state,
    cache_theorems,
    lock_ref_state,
    mamba_in_cache,
    session_trim_state,
    swa_mapping,
)
from spec.finite import Seq, Set
from spec.lengths import in_pages, in_tokens, touched
from spec.pool import HELD, PENDING
from spec.session_trim_state import (
    IDLE,
    LEAVING,
    RUNNING,
    allocated,
    committed,
    cursor,
    full_pool,
    protected,
    swa_pool,
    text,
)

STEPS = int(os.environ.get("SLOTPROOF_STEPS", "600"))
LIMIT = 3
STORY = 0  # the texts of requests are not told apart here
# What a call of the cache does to its parts, in order: the name, the arguments, the answer.
OF_LOCKS = ("split", "add_leaf", "restore", "restore_swa", "evict_leaf", "evict_swa", "acquire", "release", "merge")
SPIED = {
    "rows": {
        **{"admit": "come", "admit_tail": "come_tail", "donate": "donate", "donate_swa": "donate_swa"},
        **{"dedupe": "dedupe", "finish": "finish", "restore": "cut"},
    },
    "locks": {name: name for name in (*OF_LOCKS, "release_swa")},
}


class Both:
    """A cache, and the state of the law."""

    def __init__(self, page: int, window: int, full: int, swa: int, kind: Kind | None = None) -> None:
        self.carried = States(self, kind, LIMIT)
        states, copy = self.carried.engine, self.carried.copy
        self.cache = new(page, window=window, rows=LIMIT, full=full, swa=swa, states=states, copy=copy)
        self.page = page
        pools = swa_mapping.initial(page, full, swa, LIMIT + full + 1, False)
        empty = session_trim_state.initial(pools, LIMIT, SESSIONS, in_pages(window, page))
        nodes = lock_ref_state.initial(full, LIMIT + 2, -(-window // page), True, kind is not None)
        self.state = law.initial(empty, nodes, self.carried.initial(SESSIONS, full + 1))
        self.taken: set[str] = set()
        self.log: list[tuple[str, tuple[Any, ...], Any]] = []
        self.numbers: dict[LockHandle, int] = {}
        self.found: dict[LockHandle, tuple[Any, ...]] = {}  # what each handle held when it was taken
        self.upto = 0  # how far a donation reaches whose node comes next
        self.row = 0  # whose pages move
        self.tail = False  # a request comes whose tokens, and state, were computed elsewhere
        self.locked: LockHandle | None = None  # what a request holds that has no row yet
        self.coming: tuple[int, int] | None = None  # the row and the session of a request that holds nothing yet
        for part, names in SPIED.items():
            for name, event in names.items():
                self.spy(getattr(self.cache, part), name, event)
        self.carried.spy()

    def spy(self, part: Any, name: str, event: str) -> None:
        real = getattr(part, name)

        def spied(*args: Any, **named: Any) -> Any:
            answer = real(*args, **named)
            self.log.append((event, (*args, *named.values()), answer))
            if name == "acquire":
                self.found |= {handle: self.lock(handle) for handle in answer}
            return answer

        setattr(part, name, spied)

    # The law's steps.

    def step(self, name: str, *args: Any) -> None:
        step = law.stem.transitions[name](self.state, *args)
        assert step.granted, (name, args, step.broken())
        assert all(call.step.granted for call in step.calls), (name, args)
        self.state, self.taken = step.then, self.taken | {name}
        if done := waiting_alone(self.state.rows.pools.now):  # our allocator gives these back at once
            self.step("settle_swa", Set(done), True)

    def follow(self) -> None:
        """What the call did, as steps of the law; rows that left and held nothing are idle at its end."""
        self.replay(self.log)
        for row in range(LIMIT):
            if self.state.rows.phase(row) == LEAVING:
                self.step("free_rest", row, 0)
        self.same()

    def replay(self, log: list[tuple[str, tuple[Any, ...], Any]]) -> None:
        """The steps of what is logged, which is forgotten."""
        seen, log[:] = list(log), []
        for name, args, answer in seen:
            part = self if hasattr(self, "saw_" + name) else self.carried
            getattr(part, "saw_" + name)(*args, answer)

    def saw_come(
        self, prefixes: Sequence[torch.Tensor], sessions: Sequence[int | None], rows: list[int] | None
    ) -> None:
        if rows is None:
            return
        self.coming = rows[0], sessions[0] or 0
        if prefixes[0].numel() == 0:
            self.step("admit", *self.coming, STORY, 0, 0, 0, False, Seq())
            self.come()

    def saw_come_tail(
        self, prefix: torch.Tensor, to: int, start: int, session: int | None, found: tuple[int, torch.Tensor] | None
    ) -> None:
        if found is None:
            return
        handle, self.locked = self.locked, None
        lock = (0, 0, 0, False, Seq()) if handle is None else (self.numbers[handle], *self.found[handle])
        heads = found[1][:: self.page]
        swa = self.cache.pools.translate_loc_from_full_to_swa(heads[(start - prefix.numel()) // self.page :])
        tail = start // self.page, in_pages(to, self.page)
        pages = Seq((heads // self.page).tolist()), Seq((swa // self.page).tolist())
        self.step("admit_tail", found[0], session or 0, STORY, *lock, *tail, *pages)
        self.come()

    def saw_release_swa(self, handles: list[LockHandle], _: None) -> None:
        for handle in handles:
            number = self.numbers[handle]
            self.step("release_swa", self.state.holder(number) - 1, number)

    def come(self) -> None:
        self.coming, self.carried.room = None, self.state.states.available + self.state.tree.mamba_evictable

    def saw_cut(self, sessions: Sequence[int], prefix: Sequence[int], _: torch.Tensor) -> None:
        for session, length in zip(sessions, prefix, strict=True):
            self.step("restore", session, in_pages(length, self.page))

    def saw_finish(self, batch: Sequence[int], _: None) -> None:
        for row in batch:
            self.step("finish", row)

    def saw_split(self, child: int, at: int, new_node: int) -> None:
        self.step("split", child, new_node, at // self.page)

    def saw_evict_leaf(self, node: int, _: None) -> None:
        self.step("evict_leaf_and_state" if self.state.tree.mamba(node) else "evict_leaf", node)

    def saw_evict_swa(self, node: int, _: None) -> None:
        self.step("evict_swa", node)

    def leaves(self, row: int, upto: int) -> None:
        self.row, self.upto = row, upto
        if self.state.rows.phase(row) == RUNNING:
            self.step("finish", row)

    def saw_donate(self, row: int, upto: int, _: torch.Tensor) -> None:
        self.leaves(row, upto)

    def saw_donate_swa(self, row: int, _: torch.Tensor, upto: int, __: None) -> None:
        self.leaves(row, upto)

    def saw_restore_swa(self, node: int, _: None) -> None:
        self.step("revive_in_place", self.row, node, self.state.rows.pools.group > 0)

    def saw_merge(self, node: int, above: int) -> None:
        self.step("merge", node, above)

    def saw_dedupe(self, row: int, _: torch.Tensor, upto: int, __: None) -> None:
        self.leaves(row, upto)
        self.step("drop_duplicates", row, upto // self.page)

    def saw_add_leaf(self, under: int, stop: int, live: bool, leaf: int) -> None:
        assert stop == self.upto
        self.step("insert_leaf", self.row, under, leaf, stop // self.page, live)

    def saw_restore(self, node: int, _: None) -> None:
        self.step("revive_tombstone", self.row, node)

    def saw_acquire(self, _: Sequence[int], handles: list[LockHandle]) -> None:
        for handle in handles:
            spare = (h for h in self.state.tree.handles.items() if self.state.tree.active(h) != 1)
            self.numbers[handle] = next(spare)
            if self.coming:
                self.step("admit", *self.coming, STORY, self.numbers[handle], *self.found[handle])
                self.come()
            elif self.state.rows.phase(self.row) == LEAVING:
                old, lock = self.state.handle(self.row), (self.numbers[handle], *self.found[handle])
                self.step("continue_prefill", self.row, old, *lock)
            else:
                self.locked = handle

    def saw_release(self, handles: list[LockHandle], _: None) -> None:
        for handle in handles:
            number, self.locked = self.numbers.pop(handle), None
            row = self.state.holder(number) - 1
            if row >= 0 and self.state.rows.phase(row) == LEAVING:
                self.step("free_rest", row, number)

    def lock(self, handle: LockHandle) -> tuple[Any, ...]:
        """The handle's node, where its SWA part ends, and the pages of the path."""
        slots = [slot for n in self.cache.tree.path(handle.node) for slot in self.cache.tree.entries[n].slots.tolist()]
        return handle.node, handle.top, False, Seq(slot // self.page for slot in slots[:: self.page])

    # Calls.

    def admit(self, prompt: list[int], session: int) -> int | None:
        idle, self.row = self.cache.rows.available_size(), 0
        found = self.cache.admit([prompt], [session or None])
        self.follow()
        assert (found is not None) == (idle > 0 and self.carried.need <= self.carried.room)
        return found[0] if found else None

    def admit_tail(self, prompt: list[int], session: int) -> int | None:
        self.tail = True
        found = self.cache.admit_tail(prompt, session or None)
        self.follow()
        self.tail = False
        if found is not None:  # what was computed elsewhere is there at once
            self.step("receive", found, 1, 0)
            self.step("arrive", found, 1)
        return found

    def roll_back(self, row: int, to: int) -> None:
        end = in_pages(to, self.page)
        if law.stem.transitions["roll_back"](self.state, row, end).kept:
            self.cache.roll_back([row], [to])
            self.step("roll_back", row, end)
        else:
            with pytest.raises(ValueError, match="to"):
                self.cache.roll_back([row], [to])
        self.same()

    def grow(self, name: str, batch: list[int], to: list[int]) -> bool:
        st, before = self.state, [touched(allocated(self.state.rows, row)) for row in batch]
        need = sum(-(-n // self.page) for n in to) - sum(before)
        sides = ((full_pool(st.rows), st.tree.full_evictable), (swa_pool(st.rows), st.tree.swa_evictable))
        fits = all(need <= pool.available + (spare if st.rows.pools.group == 0 else 0) for pool, spare in sides)
        call = getattr(self.cache, name)
        slots = call(batch) if name == "decode" else call(batch, to)
        assert (slots is not None) == fits
        self.replay(self.log)
        for row, first, end in zip(batch, before, to, strict=True) if fits else ():
            heads = self.cache.rows.req_to_token[row, first * self.page : end : self.page].to(torch.int64)
            swa = self.cache.pools.translate_loc_from_full_to_swa(heads)
            chosen = Seq((heads // self.page).tolist()), Seq((swa // self.page).tolist())
            self.step(name, row, *([] if name == "decode" else [in_pages(end, self.page)]), *chosen)
        self.same()
        return fits

    def close(self, session: int) -> None:
        old = self.state.handle(row := self.state.rows.slot(session) - 1)
        self.cache.close([session])
        self.replay([event for event in self.log if event[0] == "free"])
        self.log = [event for event in self.log if event[0] != "free"]
        self.step("close", session, old)
        assert self.state.rows.phase(row) == IDLE
        self.follow()

    def save(self, row: int, agreed: int) -> None:
        self.cache.save([row], [agreed])
        self.step("save", row, in_pages(agreed, self.page))
        copied = [event for event in self.log if event[0] == "copied"]  # in the session's slot, after the row was cut
        self.replay([event for event in self.log if event[0] != "copied"])
        self.carried.moved("state_save", row, self.state.rows.session(row))
        self.replay(copied)
        self.log.clear()
        self.same()

    def resume(self, session: int, given: int) -> None:
        (row,) = self.cache.resume([session], [given])
        self.carried.moved("state_restore", session, row)
        self.step("resume", session, STORY, in_pages(given, self.page))
        self.carried.moved("state_admit", row, row, 0, 0, 0, False)
        self.same()

    # Comparing.

    def same(self) -> None:
        self.carried.same()
        for row in range(LIMIT):
            self.same_row(row)
        law_rows, pools = self.state.rows, self.cache.pools
        assert self.cache.rows.slot == {s: law_rows.slot(s) - 1 for s in (1, 2) if law_rows.slot(s)}
        full, swa = full_pool(law_rows), swa_pool(law_rows)
        assert pools.full_attn_allocator.held.tolist()[1:] == [full.place(p) == HELD for p in full.pages.items()]
        assert pools.swa_attn_allocator.held.tolist()[1:] == [
            swa.place(p) in (HELD, PENDING) for p in swa.pages.items()
        ]
        for node in self.state.tree.nodes.items():
            self.same_node(node)
        locks, law_tree = self.cache.locks, self.state.tree
        for size in ("full_evictable", "full_protected", "swa_evictable", "swa_protected"):
            assert getattr(locks, size + "_size")() == getattr(law_tree, size) * self.page
        for size in ("mamba_evictable", "mamba_protected"):
            assert getattr(locks, size + "_size")() == getattr(law_tree, size)

    def same_row(self, row: int) -> None:
        law_rows, r = self.state.rows, self.cache.rows
        of = [in_tokens(f(law_rows, row), self.page) for f in (protected, cursor, committed, allocated, text)]
        assert [int(r.phase[row]), *r.lengths[:5, row].tolist()] == [law_rows.phase(row), *of]
        pages = (r.req_to_token[row, : int(r.allocated[row]) : self.page] // self.page).tolist()
        assert pages == [self.state.reads(row, i) for i in range(len(pages))]
        handle = self.cache.handles.get(row)
        assert self.state.handle(row) == (self.numbers[handle] if handle else 0)
        if handle:
            number = self.numbers[handle]
            law_tree = self.state.tree
            held = law_tree.node(number), law_tree.top(number), law_tree.state(number) == 1
            assert (handle.node, handle.top, handle.state) == held

    def same_node(self, node: int) -> None:
        law_tree, locks, entries = self.state.tree, self.cache.locks, self.cache.tree.entries
        assert (node in entries) == (law_tree.alive(node) == 1)
        if node not in entries:
            return
        for name in ("parent", "swa", "mamba", "full_ref", "swa_ref", "mamba_ref"):
            assert int(getattr(locks, name)[node]) == getattr(law_tree, name)(node), name
        begin, stop, slots = lock_ref_state.begin(law_tree, node), law_tree.stop(node), entries[node].slots
        table, home = full_pool(self.state.rows).table, cache_state.home(self.state, node)
        assert (entries[node].start, entries[node].stop) == (begin * self.page, stop * self.page)
        assert (slots[:: self.page] // self.page).tolist() == [table(home, i) for i in range(begin, stop)]


# Of what an engine can do with states ours gives the tree none that it has already, and always its newest one.
ALONE = {"state_match_again", "state_renew", "state_turn_lazy", "release_state"}  # what only other engines do
STATEFUL = {transition.__name__ for transition in mamba_in_cache.TRANSITIONS} - ALONE
# Ours is told of no forward pass and of no transfer that fails, and gives a row its tail at once.
OF_SERVERS = {*(transition.__name__ for transition in cache_flight.TRANSITIONS), "extend_elsewhere", "fall_short"}
ALL_SLIDING = {"leave_window"}  # where every layer has a window: tests/test_all_sliding.py
WINDOWS = (0.4, 1, 1.5, 2.3)  # in pages


def walked(page: int, windows: float, kind: Kind | None) -> set[str]:
    """A random run; the steps that it took."""
    random = Random(f"{page} {windows} {kind}")
    both = Both(page, max(1, int(windows * page)), full=10, swa=8, kind=kind)
    scheduler = Scheduler(both, random) if kind is None else StateScheduler(both, random)
    ops = OPS if kind is None else OPS | STATE_OPS
    for op in random.choices(list(ops), list(ops.values()), k=STEPS):
        getattr(scheduler, op)()
    assert law.stem.broken(both.state) == []
    scheduler.end()
    assert drained(both.cache)
    assert cache_theorems.quiescent(both.state)
    assert cache_theorems.states_are_quiescent(both.state)
    return both.taken


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("page", PAGES)
def test_each_step_is_lawful_and_all_is_given_back(page: int) -> None:
    taken = set[str]().union(*(walked(page, windows, None) for windows in WINDOWS))
    assert taken == set(law.stem.transitions) - STATEFUL - ALONE - ALL_SLIDING - OF_SERVERS


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("page", PAGES)
def test_so_is_each_step_with_states(page: int) -> None:
    taken = set[str]().union(*(walked(page, windows, kind) for windows, kind in zip(WINDOWS, KINDS, strict=True)))
    assert not STATEFUL - taken
