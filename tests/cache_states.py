"""The states of a session cache beside the law, and what each of them means: after which tokens it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cache_walk import Scheduler
from torch import Tensor

from impl.mamba_slots import Holder, MambaStates
from spec import mamba_slots_state as law
from spec.finite import Seq
from spec.lengths import in_pages
from spec.mamba_slots_state import FIRST, OWN, ROLES, RUNNING, across, has_two, is_held, is_session, kept
from spec.session_trim_state import SAVED

if TYPE_CHECKING:
    from test_impl_cache_law import Both


class Kind(NamedTuple):
    """How many states there are, and what a request's track buffer is."""

    slots: int
    buffer: int
    lazy: bool = False


KINDS = (Kind(7, 0), Kind(9, 1), Kind(11, 2), Kind(9, 2, lazy=True))
SPIED = {
    "alloc_for_match": "match",
    "alloc": "equip",
    "donate": "bequeath",
    "donate_mamba_ping_pong_slot": "swap",
    "track": "track",
    "alloc_second": "second",
    "give_second": "give_second",
    "free_mamba_cache": "free",
}


def three(one: Holder) -> list[int]:
    """What a holder names, 0 for what is absent."""
    slots = (one.mamba_pool_idx, *(one.mamba_ping_pong_track_buffer or ()), None, None)[:3]
    return [0 if slot is None else int(slot) for slot in slots]


class States:
    """The states of the cache and those of the law; nothing where the cache has none."""

    def __init__(self, both: Both, kind: Kind | None, rows: int) -> None:
        self.both, self.kind, self.rows = both, kind, rows
        self.engine: MambaStates | None = None
        if kind:
            self.engine = MambaStates(rows, kind.slots, buffer_size=kind.buffer, lazy=kind.lazy, debug=True)
        self.need = 0 if not kind else 1 + (1 if kind.lazy else kind.buffer)
        self.room = 0  # what there was for the request that came last
        self.giving: tuple[str, int, list[int]] = ("", 0, [])
        self.text: dict[int, tuple[int, ...]] = {}  # of each slot: after which tokens it was written
        self.boundary = 0  # how many tokens there are up to the boundary that is tracked now

    def initial(self, sessions: int, nodes: int) -> law.MambaSlotsState:
        """Without states there are owners of them, and no slot is handed out."""
        kind = self.kind or Kind(1, 0)
        return law.initial(kind.slots, self.rows, sessions, nodes, (kind.buffer > 0, kind.buffer == 2, kind.lazy))

    def copy(self, source: Tensor, to: Tensor) -> None:
        """The contents are copied."""
        for one, other in zip(source.tolist(), to.tolist(), strict=True):
            self.text[other] = self.text[one]
            self.both.log.append(("copied", (one, other), None))

    # What is called.

    def spy(self) -> None:
        if self.engine is None:
            return
        for name, event in SPIED.items():
            self._spy(name, event)
        pool = self.engine.mamba_allocator
        begin, end = pool.alloc_group_begin, pool.alloc_group_end

        def began(num_reqs: int) -> None:
            begin(num_reqs)
            self.both.log.append(("group", (num_reqs, pool.group_slots.tolist()), None))

        def ended() -> None:
            end()
            self.both.log.append(("group_end", (), None))

        pool.alloc_group_begin, pool.alloc_group_end = began, ended  # type: ignore[method-assign]
        self.both.spy(self.both.cache.tree, "give_state", "give_state")
        self.both.spy(self.both.cache.locks, "evict_mamba", "evict_mamba")

    def _spy(self, name: str, event: str) -> None:
        """Holders are logged as the law's requests, with what they have after the call."""
        real = getattr(self.engine, name)

        def spied(given: Any, *more: Any) -> Any:
            answer = real(given, *more)
            holders = given if isinstance(given, list) else [given]
            self.both.log += [(event, (one.req_pool_idx - 1, three(one)), answer) for one in holders]
            return answer

        setattr(self.engine, name, spied)

    # The law's steps. A row's request has the row's number.

    def saw_group(self, need: int, chosen: list[int], _: None) -> None:
        self.both.step("state_group_begin", need, Seq(chosen))

    def saw_group_end(self, _: None) -> None:
        self.both.step("state_group_end")

    def saw_match(self, row: int, has: list[int], _: Tensor) -> None:
        st = self.both.state
        self.both.step("state_match", row, st.tree.node(st.handle(row)), has[OWN], True)

    def saw_copied(self, source: int, to: int, _: None) -> None:
        """A session takes an earlier state back. Other copies are a part of the call that asks for them."""
        st = self.both.state.states
        if is_held(st, to) and is_session(st, st.owner(to)):
            self.both.step("state_take_back", st.owner(to) - st.limit + 1, source, True)

    def saw_equip(self, row: int, has: list[int], _: list[int]) -> None:
        names, arrives = self.both.state.states.names, self.both.tail
        self.both.step("state_admit", row, row, *(0 if names(row, k) else has[k] for k in ROLES), arrives)

    def saw_bequeath(self, row: int, has: list[int], _: Tensor) -> None:
        self.giving = "donate", row, has

    def saw_swap(self, row: int, has: list[int], _: Tensor) -> None:
        self.giving = "swap", row, has

    def saw_give_state(self, node: int, slot: Tensor, _: None) -> None:
        (what, row, has), self.giving = self.giving, ("", 0, [])
        if what == "donate":
            self.both.step("state_donate", row, node)
            return
        if what:
            self.both.step("state_swap", row, node, has[kept(self.both.state.states, row)])
        else:
            self.both.step("state_copy", self.both.row, node, int(slot), True)

    def saw_track(self, row: int, _: list[int], __: None) -> None:
        st = self.both.state.states
        if st.buffered:
            upto = in_pages(self.boundary, self.both.page)
            self.both.step("state_write", row, FIRST + st.next(row), upto)
        if has_two(st) and not st.lazy:
            self.both.step("state_track", row)

    def saw_second(self, row: int, has: list[int], _: bool) -> None:
        st, role = self.both.state.states, across(self.both.state.states, row)
        if st.names(row, role) == 0 and has[role]:
            self.both.step("state_second", row, has[role])

    def saw_give_second(self, row: int, _: list[int], __: None) -> None:
        self.both.step("state_give_second", row)

    def saw_free(self, row: int, _: list[int], __: None) -> None:
        held = self.both.state.rows
        saved = held.phase(row) == SAVED
        self.both.step(*(("state_close", held.session(row)) if saved else ("state_release", row)))

    def saw_evict_mamba(self, node: int, _: None) -> None:
        self.both.step("state_evict", node)

    def moved(self, name: str, *args: int) -> None:
        """What stays with the row moves between its request and the session's slot."""
        if self.engine is not None:
            self.both.step(name, *args)

    # Comparing.

    def same(self) -> None:
        if self.engine is None:
            return
        st, cache = self.both.state, self.both.cache
        assert self.engine.mamba_allocator.available_size() == st.states.available
        for row in range(self.rows):
            session = st.rows.session(row)
            owner = row if st.rows.phase(row) != SAVED else st.states.limit + session - 1
            has = [st.states.table(owner, k) for k in ROLES]
            assert (three(cache.mamba.of[row]) if row in cache.mamba.of else [0, 0, 0]) == has
            assert (st.states.phase(row) == RUNNING) == (has != [0, 0, 0] and not is_session(st.states, owner))
        for node, entry in cache.tree.entries.items():
            assert (0 if entry.state is None else int(entry.state)) == st.states.table(st.states.first_node + node, OWN)
            assert node == 0 or entry.children or entry.state is not None  # a leaf without one is of no use
            assert entry.state is None or self.text[int(entry.state)] == tuple(cache.tree.tokens(node))

    def own(self, row: int) -> int:
        """The slot of a row's own state."""
        return three(self.both.cache.mamba.of[row])[OWN]


class StateScheduler(Scheduler):
    """Also computes states, and tracks them."""

    def written(self, row: int) -> None:
        """The row's state is now the one after what it has computed."""
        self.both.carried.text[self.both.carried.own(row)] = tuple(self.texts[row][: self.of(row)[2]])

    def ready(self, row: int) -> None:
        """What the row goes on from is the state after what it has computed."""
        computed = self.of(row)[2]
        found = self.both.carried.text.get(self.both.carried.own(row), ()) if computed else ()
        assert found == tuple(self.texts[row][:computed])

    def lengths(self) -> dict[int, int]:
        for row in self.texts:
            self.ready(row)
        return {row: self.of(row)[2] for row in self.texts}

    def chunk(self) -> None:
        """As without states; what is computed is tracked, often at once, before the tree gets it."""
        short = self.some(lambda row: self.of(row)[2] == self.of(row)[3] < len(self.texts[row]))
        to = [min(len(self.texts[row]), self.of(row)[3] + self.random.randint(1, 4 * self.page)) for row in short]
        if short and self.both.grow("extend", short, to):
            for row in short:
                self.written(row)
                self.tracks(row)
            if self.random.random() < 0.8:
                self.call("cache_unfinished", short, [self.texts[row] for row in short])

    def came(self, row: int) -> None:
        self.written(row)
        self.tracks(row)

    def decode(self) -> None:
        before = self.lengths()
        super().decode()
        for row in [row for row in self.texts if self.of(row)[2] > before[row]]:
            self.written(row)
            self.tracks(row)

    def draft(self) -> None:
        before = self.lengths()
        super().draft()
        for row in [row for row in self.texts if self.of(row)[2] > before[row]]:
            self.written(row)

    def resume(self) -> None:
        super().resume()
        self.lengths()

    def tracks(self, row: int) -> None:
        """Around a boundary, which may lie behind."""
        kind, (protected, _, committed, _) = self.both.carried.kind, self.of(row)
        at = committed // self.page * self.page
        if not kind or not kind.buffer or at <= protected or self.random.random() < 0.2:
            return
        if kind.lazy:
            self.call("boundary", [row])
        one = self.both.cache.mamba.of[row]
        slot = three(one)[1 + (one.mamba_next_track_idx or 0)]
        self.both.carried.text[slot], self.both.carried.boundary = tuple(self.texts[row][:at]), at
        self.call("track", [row], [at])
        if kind.lazy and self.random.random() < 0.7:
            self.call("settle", [row])

    def settle(self) -> None:
        kind = self.both.carried.kind
        if kind and kind.lazy and (batch := self.some(lambda _: True)):
            self.call("settle", batch)

    def shed(self) -> None:
        """The tree gives up states."""
        if self.random.random() < 0.5:
            self.call("evict", 0, 0, self.random.randint(1, 2))


STATE_OPS = {"settle": 1, "shed": 2, "chunk": 5}
