"""A run of the stem ``cache``: requests and sessions over one tree beside the law, with the owner of each page at
every moment.

The operations are those of ``RequestCalls``, and operations on the requests' mamba states. Where rows and the tree
exchange pages, the tree's nodes tell what became of the pages, and which node a request holds.
"""

from __future__ import annotations

from collections.abc import Collection

from conformance.driver.diff import FieldDifference, Names
from conformance.driver.lockstep import Calls, EngineCall, Finding, Ignores, Law, nothing
from conformance.driver.operations import Tokens, operation, operations_of
from conformance.driver.protocol import Json, Key, Misuse
from conformance.driver.shadow import Shadow
from conformance.stems.cache.flights import Flights, PassOfRow
from conformance.stems.cache.nodes import CacheNodes
from conformance.stems.cache.projection import (
    NOTHING,
    CacheView,
    RowHold,
    holds_without_handle,
    node_problems,
    project_cache,
)
from conformance.stems.cache.protocol import CacheEngine, CacheSnapshot, LockHold
from conformance.stems.cache.states import CacheStates
from conformance.stems.cache.stories import Stories
from conformance.stems.configs import is_windowed, swa_size
from conformance.stems.lock_ref.projection import paths
from conformance.stems.mamba_slots.projection import hidden_state_change
from conformance.stems.requests.calls import MOST_REQUESTS, RequestCalls, Tail
from conformance.stems.requests.request import Sampled, token
from conformance.stems.session_trim.projection import judge_rows, lengths_of, project_rows, row_problems
from conformance.stems.session_trim.protocol import SessionTrimSnapshot
from conformance.stems.session_trim.run import first_rows, with_lists_sorted, with_pages_freed
from conformance.stems.swa_mapping.projection import is_read, pair_problems, settled_swa
from spec import cache as law
from spec import lock_ref_state, mamba_slots_state
from spec.cache_state import CacheState
from spec.finite import Seq
from spec.lengths import in_pages
from spec.logic import but
from spec.mamba_slots_state import MambaSlotsState
from spec.session_trim_state import RUNNING, SAVED, SessionTrimState

REQUESTS = 3  # how many requests own state slots in the law


def first_state(config: Json, stateful: bool, stories: Stories, requests: int = REQUESTS) -> CacheState:
    """The law's state before the first call. ``stories``: the texts that requests will have. ``requests``: how many of
    them can own state slots at a time.

    There are as many node numbers as pages, since a node has at least one page, unless the configuration says that
    fewer are enough (``nodes``); where requests have states there is one more, so that ``state_renew`` always finds a
    number without a state. There is one handle more than rows, since a row that continues its prefill holds two handles
    for a moment.
    """
    nodes: int = config["nodes" if "nodes" in config else "size"] + stateful
    window = -(-config["window"] // config["page_size"])
    kept = lock_ref_state.initial(nodes, config["rows"] + 1, window, is_windowed(config), stateful)
    buffered, doubled, lazy = (stateful and bool(config[name]) for name in ("buffered", "doubled", "lazy"))
    count = config["size_mamba"] if stateful else 1
    slots = mamba_slots_state.initial(count, requests, config["sessions"], nodes + 1, (buffered, doubled, lazy))
    jobs = 2 * config["rows"]  # two steps in flight
    return law.initial(first_rows(config, nodes + 1), kept, slots, stories.contents(), jobs)


class CacheRun:
    """Operations on one cache. ``stateful``: its requests and nodes have mamba states. ``owners``: how many requests
    can own state slots at a time. ``sampled``: which token is sampled at a position of the text of a fork.
    """

    def __init__(
        self,
        engine: CacheEngine,
        config: Json,
        strict: bool = True,
        ignores: Ignores = nothing,
        owners: int = REQUESTS,
        sampled: Sampled = token,
    ) -> None:
        self.engine, self.lacks, self.config = engine, engine.lacks, config
        self.stateful = "mamba" in config["components"]
        self.most_requests = REQUESTS if self.stateful else MOST_REQUESTS
        self.shadow = Shadow()
        self.stories = Stories(config["page_size"], self.shadow.texts, sampled)
        self.law = Law(law.stem, first_state(config, self.stateful, self.stories, owners), strict, ignores)
        self.tree = CacheNodes(config["page_size"], self.law)
        self.states = CacheStates(self.law, self.tree)
        self.flights = Flights(self.law)
        self.calls = self.states.calls = RequestCalls(self, config)
        self.operations = operations_of(self.calls, self)
        self.law.names = Names(self._node_name, self._row_name, self._owner_name, holders=self._holders)
        self.seen: CacheSnapshot = self.snapshot()
        self.engine_rows = frozenset(self.seen.rows.free_rows)  # the engine's numbers of its rows: all are idle now
        self.view: CacheView = self._by_number()

    # Names.

    def _node_name(self, number: int) -> str:
        key = next((list(key) for key, n in self.tree.at.items() if n == number), None)
        if key is None:
            return f"node {number}" if number else "the root"
        return f"node {key}"

    def _holders(self, number: int) -> str:
        """The rows whose requests hold a node."""
        st = self.law.state
        held = (h for h in st.tree.handles.items() if lock_ref_state.holds_full(st.tree, h, number))
        return " and ".join(self._row_name(st.holder(h) - 1) for h in held)

    def _row_name(self, row: int) -> str:
        requests = {r: request for request, r in self.calls.row_of.items()}
        if row in requests:
            return f"row {row} (request {requests[row]})"
        first = self.law.state.rows.limit
        if row >= first:
            return self._node_name(row - first)
        return f"row {row}"

    def _owner_name(self, owner: int) -> str:
        return self.states.owner_name(owner)

    # The parts of the law's state and of the snapshot.

    @property
    def rows(self) -> SessionTrimState:
        """The law's rows and pools."""
        found: SessionTrimState = self.law.state.rows
        return found

    @property
    def rows_seen(self) -> SessionTrimSnapshot:
        """Rows and pools of the last snapshot."""
        return self.seen.rows

    def snapshot(self) -> CacheSnapshot:
        """Everything, in one read."""
        seen = self.engine.cache_snapshot()
        self.tree.seen = paths(seen.tree)
        if seen.states is not None:
            self.states.seen = seen.states
            self.calls.passes.copied(seen.states)
        return seen

    def held(self, kind: str, number: int) -> RowHold:
        """What a request or a session's slot holds, as the engine shows it. ``kind``: ``request`` or ``session``."""
        hold = self.seen.holds.get((kind, number))
        if hold is None:
            return NOTHING
        known = {node.id: self.tree.at.get(key, -1) for key, node in self.tree.seen.items()}
        top = lock_ref_state.ROOT if hold.top is None else known.get(hold.top, -1)
        return RowHold(self.tree.at.get(Key(hold.text), -1), top, int(hold.state))

    def _by_number(self) -> CacheView:
        """The last snapshot, with the law's numbers."""
        rows = self.rows
        held = {row: self.held("request", request) for request, row in self.calls.row_of.items()}
        for session in rows.sessions.items():
            row = rows.slot(session) - 1
            if row >= 0 and rows.phase(row) == SAVED:
                held[row] = self.held("session", session)
        used = self.calls.used()
        return CacheView(self.tree.page_size, self.tree.at, self.tree.seen, self.seen.tree, used, held)

    # What rows and the tree exchange.

    def follow_tree(self) -> None:
        """Explains what locks have given back early, and what the tree has split and freed."""
        for request, row in self.calls.row_of.items():
            self._given_back(row, self.seen.holds.get(("request", request)))
        self.tree.follow()

    def has_bare(self, page: int) -> bool:
        """The engine's tree has this full page, and not its SWA page."""
        return self.tree.has_bare(page)

    def _given_back(self, row: int, hold: LockHold | None) -> None:
        """Explains that the lock of a row has no SWA part any more, or no state."""
        handle, st = self.law.state.handle(row), self.law.state.tree
        if hold is None or not handle or self.rows.phase(row) != RUNNING:
            return
        if hold.top is None and st.top(handle) != lock_ref_state.ROOT:
            self.law.engine_step("release_swa", row, handle)
        if not hold.state and st.state(handle) == 1:
            self.law.engine_step("release_state", row, handle)

    def locked(self, request: int) -> None:
        """Notes where the window of a request's lock ends: the request is admitted, and its row comes later.

        A turn that goes on with its session's row takes no lock: the row has one.
        """
        hold, session = self.seen.holds.get(("request", request)), self.calls.requests[request].session
        if hold is None or hold.top is None or (session and self.rows.slot(session)):
            return
        top = next((key for key, node in self.tree.seen.items() if node.id == hold.top), None)
        if top is not None:
            self.tree.locked_early(request, top)

    def begin_row(self, request: int, row: int, session: int, pages: int) -> None:
        """Explains that a row begins with the pages of the node that was matched, and locks it."""
        top = self.tree.top_of_early(request)
        lock = self._lock(request, row, pages, "admit", top) if pages else (0, 0, 0, False, Seq())
        self.law.engine_step("admit", row, session, self._story(request), *lock)
        if self.stateful:
            self.states.begin(request, row)

    def begin_tail(self, request: int, row: int, session: int, pages: int, tail: Tail) -> None:
        """Explains that a row begins with the pages of the node that was matched, or with fewer of them, even none, and
        has slots for what is computed elsewhere.
        """
        locks = pages or self.held("request", request).node > lock_ref_state.ROOT
        lock = self._lock(request, row, pages, "admit_tail") if locks else (0, 0, 0, False, Seq())
        self.law.engine_step("admit_tail", row, session, self._story(request), *lock, *tail)
        if self.stateful:
            self.states.begin(request, row, arrives=True)

    def has_come(self, row: int, first: int = 0) -> None:
        """Explains that a row has at once what is computed elsewhere. ``first``: the page index from which it has it of
        the SWA pool.
        """
        self.flights.receives(row, first)
        self.flights.received(row, True)

    def _story(self, request: int) -> int:
        """The law's number of the whole text of a request."""
        return self.stories.of(self.calls.requests[request])

    def _lock(
        self, request: int, row: int, pages: int, name: str, early: int | None = None
    ) -> tuple[int, int, int, bool, Seq]:
        """A new handle for the row, the node and the window's end that it holds, whether it counts what is missing, and
        the first ``pages`` pages that the request reads.

        Raises ``Finding`` if the request holds nothing. ``name``: the transition for which this is. ``early``: the
        window's end of a lock that was taken before the row began.
        """
        held = self.held("request", request)
        if held == NOTHING:
            what = f"request {request} reads {pages} pages of the tree, and holds nothing"
            raise Finding(name, self.law.sentence(name), what)
        st, size = self.law.state.tree, self.tree.page_size
        handle = next((h for h in st.handles.items() if st.active(h) != 1), None)
        if handle is None:
            what = f"request {request} holds a node, and the rows hold as many as they can have"
            raise Finding(name, self.law.sentence(name), what)
        read = Seq(slot // size for slot in self.calls.view(request).slots[: pages * size : size])
        top = held.top if early is None else early
        top = self._window_top(held.node) if held.top == lock_ref_state.ROOT else top
        counts = held.state == 1 and st.nodes.has(held.node) and st.mamba(held.node) != 1
        counts = counts or self._counts(row, top, held.node)
        return handle, held.node, top, bool(counts), read

    def _counts(self, row: int, top: int, node: int) -> bool:
        """The lock of a row that the engine has just taken from ``node`` to ``top`` counts tombstones: it raised their
        lock counts. An engine that does not show these says by the ability ``counts_missing`` what it does.
        """
        st, old = self.law.state.tree, self.law.state.handle(row)
        numbers = {number: key for key, number in self.tree.at.items()}
        for n in lock_ref_state.path(st, node):
            if st.swa(n) == 1 or not lock_ref_state.between(st, top, n, node):
                continue
            shown = self.tree.seen[numbers[n]].parts["swa"].lock if numbers[n] in self.tree.seen else None
            if shown is None:
                return "counts_missing" not in self.lacks
            if shown > st.swa_ref(n) - bool(lock_ref_state.holds_swa(st, old, n)):
                return True
        return False

    def _window_top(self, node: int) -> int:
        """The node at which the window of a lock on ``node`` ends, 0 if there is no such node, or no window."""
        st = self.law.state.tree
        if not st.windowed:
            return lock_ref_state.ROOT
        return next(
            (top for top in lock_ref_state.path(st, node) if lock_ref_state.window_top(st, top, node)),
            lock_ref_state.ROOT,
        )

    def follow_tracks(self) -> None:
        """Explains which tracks requests that run write next, and which slots of track buffers came and went."""
        if self.stateful and self.law.state.states.buffered:
            for request in self.calls.row_of:
                self.states.follow_tracks(request)

    def resume_row(self, request: int, session: int) -> None:
        """Explains that a session's row goes on, with its states."""
        row, long = self.rows.slot(session) - 1, len(self.calls.requests[request].tokens)
        if self.stateful:
            self.states.taken_back(session)
            self.law.engine_step("state_restore", session, self.states.of(request))
        self.law.engine_step("resume", session, self._story(request), in_pages(long, self.tree.page_size))
        if self.stateful:
            self.states.begin(request, row, copied=False)

    def share(self, request: int, row: int) -> None:
        """Explains what the tree took of a prompt between two calls: the row gives it away, goes on, and reads it in
        the tree.
        """
        self.tree.split()
        self._gave_up_state(row)
        self.tree.lose(self.tree.replaced())
        text, upto = self.calls.requests[request].text, self.calls.view(request).lengths.protected
        upto //= self.tree.page_size
        given = self.stateful and self.tree.given()
        same = not self.tree.new(text) and not given and upto == self.rows.protected(row)
        if same and not self._locks_more(request, row):
            if self.stateful:
                self.states.kept_for_want(row)
                self.states.share(request)
            return
        self.law.engine_step("finish", row)
        self.tree.take(row, text, self.rows_seen.pools)
        self.tree.duplicates(row, upto)
        if self.stateful:
            self.states.share(request)
        old = self.law.state.handle(row)
        self.law.engine_step("continue_prefill", row, old, *self._lock(request, row, upto, "continue_prefill"))

    def _locks_more(self, request: int, row: int) -> bool:
        """The engine has locked the node of a row anew: the lock holds an SWA part or a state that was given back,
        or its window ends at another node, since a node was split after the last lock.
        """
        held, handle, st = self.held("request", request), self.law.state.handle(row), self.law.state.tree
        if held == NOTHING or not handle or held.node != st.node(handle):
            return False
        swa = bool(st.windowed) and held.top not in (lock_ref_state.ROOT, st.top(handle))
        return swa or (held.state == 1 and st.state(handle) != 1)

    def _gave_up_state(self, row: int) -> None:
        """Explains that a row gave back the state of its lock, and the tree evicted that state: no state slot was free
        for the next one. The row locks a state again when it goes on.
        """
        handle, st = self.law.state.handle(row), self.law.state.tree
        if not self.stateful or not handle or st.state(handle) != 1:
            return
        node = st.node(handle)
        key = next(key for key, number in self.tree.at.items() if number == node)
        if key in self.tree.seen and not self.tree.has_state(key, node):
            self.law.engine_step("release_state", row, handle)

    def save_row(self, row: int, session: int, text: list[int]) -> None:
        """Explains that a session's slot has the row and its states. A state cannot be cut, so the row may be cut
        further.
        """
        size = self.tree.page_size
        self.law.engine_step("save", row, in_pages(len(text), size))
        if self.stateful:
            kept = self.rows_seen.sessions[session].lengths.committed
            if kept < lengths_of(self.rows, row).committed:
                self.law.engine_step("restore", session, in_pages(kept, size))
            self.states.save(row, session)
            self.states.taken_back(session)

    def free_row(self, row: int, text: list[int]) -> None:
        """Explains that a row has left: the tree took a part of it, the rest was freed, and its lock was released."""
        self.tree.split()
        self.law.engine_step("finish", row)
        self.tree.take(row, text, self.rows_seen.pools)
        if self.stateful:
            self.states.leave(row)
        self.law.engine_step("free_rest", row, self.law.state.handle(row))

    def close_slot(self, session: int) -> None:
        """Explains that the slot's row was freed, and that its lock was released."""
        if self.stateful:
            self.law.engine_step("state_close", session)
        self.law.engine_step("close", session, self.law.state.handle(self.rows.slot(session) - 1))

    def undone(self) -> None:
        """Explains that pages were handed out and given back in one call."""
        self.law.state = but(self.law.state, rows=with_pages_freed(self.rows, self.rows_seen.pools))

    def waits(self, request: int) -> None:
        """Explains that a request that waits may have got a copy of a state, or its session an earlier one."""
        if self.stateful:
            if session := self.calls.requests[request].session:
                self.states.taken_back(session)
            self.states.copied(request)

    def withdrawn(self, request: int) -> None:
        """Explains that a request that waited has freed the state that it had."""
        if self.stateful:
            self.states.withdrawn(request)

    def least_checkpoint(self, request: int) -> int:
        """The length of the newest state that the tree may get of the request; 0 without states."""
        return self.states.newest_length(request, self.calls.computed(request)) if self.stateful else 0

    def fits_beside(self, request: int, prefix: int) -> bool:
        """There are enough states for the request; a session's later turn has them already."""
        session = self.calls.requests[request].session
        turn = not self.stateful or (session and self.rows.slot(session))
        return bool(turn or self.states.fits(request, prefix > 0))

    # Passes in flight. Without states no pass uses what the law of passes speaks of.

    @property
    def overlaps(self) -> bool:
        """Steps overlap in servers whose requests have track buffers, and not in those whose tree gets copies."""
        return self.stateful and bool(self.law.state.states.buffered)

    @property
    def flies(self) -> bool:
        """A pass is in flight."""
        return self.flights.any

    def launched(self, requests: Collection[int], flies: bool) -> None:
        """Explains that one pass over these requests was launched. Where it ``flies``, it alone is in flight: the
        result of the pass before it is there, as where a scheduler processes that result next.
        """
        if self.stateful:
            self.flights.launched(map(self._pass_of, requests))
            self.flights.ended_but(1 if flies else 0)

    def _pass_of(self, request: int) -> PassOfRow:
        """The pass over the newest token of a request. A prefill is done before anything else happens, so that it does
        not matter where it begins.
        """
        return PassOfRow(self.calls.row_of[request], (self.calls.computed(request) - 1) // self.tree.page_size)

    def landed(self, request: int | None = None) -> None:
        """Explains that the passes in flight are done, where one of them is of this request (``None``: any)."""
        if request is None or self.flights.of(self.calls.row_of[request]):
            self.flights.ended_but(0)

    # States.

    def passed(self, request: int) -> bool:
        """A request that runs has computed a whole page after its cached prefix."""
        row = self.calls.row_of[request]
        return bool(self.calls.computed(request) // self.tree.page_size > self.rows.protected(row))

    def tracks(self, request: int) -> bool:
        """Whether the state at the last page boundary must be tracked after this forward pass. If so, the law has
        taken the step.
        """
        if not (self.stateful and self.law.state.states.buffered and self.passed(request)):
            return False
        self.states.tracked(request, self._boundary(request))
        return True

    def _boundary(self, request: int) -> int:
        """How many tokens of a request are computed up to the last page boundary."""
        return self.calls.computed(request) // self.tree.page_size * self.tree.page_size

    @operation
    def track(self, request: int) -> Calls:
        """A tracking boundary: the state is written to the track buffer."""
        self.calls.running(request)
        if self.calls.computed(request) // self.tree.page_size < self.rows.protected(self.calls.row_of[request]):
            raise Misuse("there is no page boundary after the cached prefix")
        self.states.tracked(request, self._boundary(request))
        self.calls.passes.tracked(request, self.calls.requests[request])
        yield EngineCall("track", lambda: self.engine.track(request))

    @operation
    def release_swa(self, request: int) -> Calls:
        """A request that decodes gives back the SWA part of its lock early, where the engine would do so now."""
        self.calls.running(request)
        if self.calls.prefilling(request):
            raise Misuse("a request gives back a part of its lock once its prompt is computed")
        yield EngineCall("release_swa", lambda: self.engine.release_swa(request))

    @operation
    def boundary(self, request: int) -> Calls:
        """Before a tracking boundary a lazy track buffer gets its second slot, if one is free."""
        self.calls.running(request)
        yield EngineCall("boundary", lambda: self.engine.boundary(request))
        self.follow_tree()
        self.states.second(request)

    @operation
    def settle(self, request: int) -> Calls:
        """After a tracking boundary a lazy track buffer gives back the slot that is not written next."""
        self.calls.running(request)
        self.law.caller_step("state_give_second", self.states.of(request))
        yield EngineCall("settle", lambda: self.engine.settle(request))

    @operation
    def evict(self, full: Tokens = 0, swa: Tokens = 0, states: int = 0) -> Calls:
        """The tree is asked to free so many tokens of each pool, and states; it chooses which."""
        swa = swa if self.rows.pools.windowed else 0
        yield EngineCall("evict", lambda: self.engine.evict(full, swa, states))
        self.law.counts["evict", "done"] += 1

    @operation
    def compact(self) -> Calls:
        """The tree merges nodes into their parents, where all requests hold both alike."""
        yield EngineCall("compact", self.engine.compact)
        self.law.counts["compact", "done"] += 1

    def evict_everything(self) -> None:
        """Asks the tree to free as many tokens as both pools have."""
        size = self.tree.page_size
        self.engine.evict(self.config["size"] * size, swa_size(self.config) * size, 0)

    def tree_pages(self) -> list[int]:
        """The full pages that the tree has."""
        size = self.tree.page_size
        slots = [slot for node in self.tree.seen.values() for slot in node.parts["full"].slots or []]
        return sorted({slot // size for slot in slots})

    # What the driver needs.

    def follow(self) -> None:
        """Takes the steps for what the tree split and freed, for SWA pages that no longer wait, and for lists that were
        sorted.
        """
        self.follow_tree()
        for ended in settled_swa(self.rows.pools.now, self.rows_seen.pools):
            self.law.engine_step("settle_swa", *ended)
        rows = with_lists_sorted(self.rows, self.rows_seen.pools)
        if rows is not self.rows:
            self.law.state = but(self.law.state, rows=rows)

    def project(self) -> CacheState:
        """The law's state as the engine shows it; the law's own state object if nothing differs."""
        st: CacheState = self.law.state
        view = self.view = self._by_number()
        rows = project_rows(st.rows, self.rows_seen, view.rows, self.calls.slots())
        seen = project_cache(st if rows is st.rows else but(st, rows=rows), view)
        if not self.stateful:
            return seen
        slots = self.states.project()
        return seen if slots is st.states else but(seen, states=slots)

    def hidden(self, change: FieldDifference) -> bool:
        """Hidden from callers are the mapping of a slot that no row uses, and what a request that is gone
        still names.
        """
        if isinstance(change.new, MambaSlotsState):
            return hidden_state_change(change, self.law.state.states, self.states.here())
        return change.field == "to_page" and not is_read(self.rows.pools.now, *change.key)

    def beyond_state(self) -> list[str]:
        """Pages that are listed twice, available sizes that are wrong, and locks that no row should have."""
        found = pair_problems(self.rows.pools.now, self.rows_seen.pools) + node_problems(self.view)
        found += row_problems(self.tree.page_size, self.view.rows)
        if self.stateful:
            found += self.states.problems()
        return found + holds_without_handle(self.law.state, self.view)

    def judge(self) -> None:
        """Raises ``Finding`` unless each of the engine's rows is idle or has one owner."""
        judge_rows(self.rows_seen, self.view.rows.values(), self.engine_rows)
