"""The whole cache in lock-step: requests and sessions over one tree, and whose each page is at every moment.

The operations are those on rows (``conformance.session_trim``), and those on the states that requests carry; where a
row meets the tree, the nodes tell what became of its pages, and which node its request holds.
"""

from __future__ import annotations

from typing import Any

from conformance.asked import Asked
from conformance.cache_nodes import TreeNodes
from conformance.cache_seen import (
    NOTHING,
    Held,
    Look,
    reader_differences,
    tree_differences,
    with_locks,
    with_nodes,
    with_readers,
)
from conformance.cache_states import CarriedStates
from conformance.cache_steps import CarriedRun
from conformance.machine import Finding, Misuse
from conformance.pair_seen import stale_entries
from conformance.row_seen import lengths_of
from conformance.subjects import treeview
from conformance.subjects.rowview import Seen
from conformance.tree_slots import Key, paths
from spec import cache as law
from spec import states, tree
from spec.finite import Seq
from spec.lengths import in_pages
from spec.logic import Invariant, but
from spec.pool import Pool
from spec.rows import SAVED, Rows, full_pool
from spec.whole import Whole

OFTEN = 16  # one comparison in so many looks at every law, though nothing differs
REQUESTS = 3  # with states so many requests have numbers


class CacheRun(CarriedRun):
    """One cache beside the spec."""

    stem = law.stem
    subject: Any
    state: Whole
    nodes: treeview.Seen
    tree: TreeNodes

    def first(self) -> Whole:
        """Before the first call. A node has a page at least; a row that comes back holds two handles for a moment."""
        config, nodes = self.config, self.config["size"]
        self.stateful = "mamba" in config["components"]
        kept = tree.initial(nodes, self.limit + 1, -(-config["window"] // self.page_size), True, self.stateful)
        buffered, doubled, lazy = (self.stateful and bool(config[name]) for name in ("buffered", "doubled", "lazy"))
        count = config["size_mamba"] if self.stateful else 1
        slots = states.initial(count, REQUESTS, config["sessions"], nodes + 1, (buffered, doubled, lazy))
        return law.initial(self.first_rows(nodes + 1), kept, slots)

    def followed(self) -> Any:
        """The nodes, and the states."""
        self.compared = 0
        self.theorems = [law_ for law_ in self.stem.invariants.values() if law_.theorem]
        self.carried = CarriedStates(self)
        self.held_by: dict[tuple[str, int], Any] = {}
        return TreeNodes(self.page_size, lambda: self.state, self.must)

    def do(self, op: str, **arguments: Any) -> None:
        """One operation, if the subject has what the configuration asks for."""
        if self.subject.missing:
            raise Misuse(self.subject.missing)
        super().do(op, **arguments)

    @property
    def life(self) -> Rows:
        """Rows and pools."""
        return self.state.life

    def with_life(self, life: Rows) -> Whole:
        """The state with these rows and pools."""
        return but(self.state, life=life)

    def pool_of(self, state: Any) -> Pool:
        """Rows are measured in the full pool."""
        return full_pool(state.life)

    def look(self) -> Seen:
        """What the engine shows now, its tree and its states too."""
        self.nodes, self.held_by = self.subject.nodes(), self.subject.holds()
        self.tree.seen = paths(self.nodes)
        if self.stateful:
            self.carried.seen = self.subject.states()
        return super().look()

    # Where a row meets the tree.

    def begin_row(self, request: int, row: int, asked: Asked, pages: int) -> None:
        """A row begins with the pages of the node that was matched, and holds it."""
        if pages:
            self.must("admit", row, asked.session, *self.lock(request, pages, "admit"))
        else:
            self.must("admit_cold", row, asked.session)
        if self.stateful:
            self.carried.begin(request, row)

    def resume_row(self, request: int, row: int, asked: Asked) -> None:
        """A session's row goes on, with its states."""
        if self.stateful:
            self.must("state_restore", asked.session, request)
        super().resume_row(request, row, asked)
        if self.stateful:
            self.carried.begin(request, row, copied=False)

    def lock(self, request: int, pages: int, name: str) -> tuple[int, int, int, Seq]:
        """A handle, what the request holds by it, and the first pages that it reads."""
        held = self.held("request", request)
        if held == NOTHING:
            what = f"request {request} reads {pages} pages of the tree, and holds nothing"
            raise Finding(name, self.sentence(name), what)
        st, size = self.state.tree, self.page_size
        handle = next(h for h in st.handles.items() if st.active(h) != 1)
        return (
            handle,
            held.node,
            held.top,
            Seq(slot // size for slot in self.view(request).slots[: pages * size : size]),
        )

    def held(self, kind: str, number: int) -> Held:
        """What a request, or the slot of a session, holds as the engine shows it."""
        hold = self.held_by.get((kind, number))
        if hold is None:
            return NOTHING
        known = {node.id: self.tree.at.get(key, -1) for key, node in self.tree.seen.items()}
        return Held(self.tree.at.get(Key(hold.text), -1), known.get(hold.top, -1), int(hold.state))

    def pass_on(self, request: int, row: int) -> None:
        """What the tree has of a prompt between two calls is the row's no more; the row comes back, and reads it."""
        self.look()
        self.tree.cut()
        self.tree.lose(self.tree.replaced())
        asked, upto = self.asked[request], self.view(request).lengths.protected // self.page_size
        text = asked.tokens + asked.sampled
        if not self.tree.new(text) and upto == self.life.protected(row):
            self.carried.kept_for_want(row)
            self.carried.renew(request)
            return
        self.must("finish", row)
        self.tree.take(row, text)
        self.tree.copies(row, upto)
        self.carried.share(request)
        old, lock = self.state.handle(row), self.lock(request, upto, "come_back")
        if old:
            self.must("come_back", row, old, *lock)
        else:
            self.must("come_back_cold", row, *lock)

    def save_row(self, row: int, session: int, text: list[int]) -> None:
        """A session's slot has the row, and its states. A state cannot be cut, so the row may be cut further."""
        super().save_row(row, session, text)
        if self.stateful:
            assert self.seen is not None, "the run has looked"
            kept = self.seen.sessions[session].lengths.committed
            if kept < lengths_of(self.life, row).committed:
                self.must("restore", session, in_pages(kept, self.page_size))
            self.carried.save(row, session)

    def give_row_up(self, row: int, text: list[int]) -> None:
        """A row has left: what the tree did not take of it is given back, and what it held is let go of."""
        self.tree.cut()
        self.must("finish", row)
        self.tree.take(row, text)
        if self.stateful:
            self.carried.leave(row)
        old = self.state.handle(row)
        if old:
            self.must("depart", row, old)
        else:
            self.must("depart_cold", row)

    def close_slot(self, session: int) -> None:
        """The slot's row is given back, and what it held is let go of."""
        if self.stateful:
            self.must("state_close", session)
        old = self.state.handle(self.life.slot(session) - 1)
        if old:
            self.must("close", session, old)
        else:
            self.must("close_cold", session)

    def op_evict(self, full: int = 0, swa: int = 0, states: int = 0) -> None:
        """The tree is asked for so many tokens of either side, and for states; it chooses them."""
        self.ask("evict", lambda: self.subject.evict(full, swa, *([states] if self.stateful else [])))
        self.counts["evict", "done"] += 1

    # What can be observed.

    def observed(self) -> Whole:
        """The cache as the engine shows it; where nothing differs, it is the law's own state."""
        if self.seen is None:
            self.read()
        look = self.looked()
        rows = with_readers(but(self.state, life=self.observed_rows()), look)
        seen = but(rows, life=with_nodes(rows, look), tree=with_locks(self.state, look))
        if self.stateful:
            seen = but(seen, states=self.carried.observed())
        return seen if self.differences(seen) or self.stale(seen) else self.state

    def looked(self) -> Look:
        """The nodes, and the rows that are in use with what each holds."""
        held = {row: self.held("request", request) for request, row in self.row_of.items()}
        for session in self.life.sessions.items():
            row = self.life.slot(session) - 1
            if row >= 0 and self.life.phase(row) == SAVED:
                held[row] = self.held("session", session)
        return Look(self.tree, self.nodes, self.used(), held)

    def differences(self, seen: Any) -> str:
        """Rows, pools, nodes, locks and readers, and states."""
        if seen is self.state:
            return ""
        found, look = self.rows_differ(seen.life), self.looked()
        found += tree_differences(self.state, seen, look) + reader_differences(self.state, seen, look)
        return "; ".join(found + (self.carried.differ(seen.states) if self.stateful else []))

    def stale(self, seen: Whole) -> str:
        """What nobody may read: the mapping of free slots, and what requests that are gone still name."""
        named = self.carried.details(seen.states) if self.stateful else ""
        return stale_entries(self.life.pools.now, seen.life.pools.now) or named

    def details(self, seen: Any) -> str:
        """The same."""
        return self.stale(seen) or "nothing that a caller can tell"

    def judge_readers(self, seen: Seen) -> None:
        """The nodes tell more."""

    def broken(self, seen: Any) -> list[tuple[Invariant, str]]:
        """The laws that are broken. Where nothing differs the state is the law's own, in which they are proved: there
        the theorems alone are looked at each time, and the laws now and then.
        """
        self.compared += 1
        if seen is self.state and self.compared % OFTEN:
            return [(theorem, "") for theorem in self.theorems if not theorem.holds(seen)]
        return super().broken(seen)
