"""A run of the stem ``lock_ref``: a radix tree beside the law, with operations on keys (token ids) and on lock
handles.

The engine chooses which nodes there are. A node is known by its *key*: the token ids from the root to its end. After
each call the run compares the engine's tree with the law's, and takes the law's step for each split, new leaf,
restored tombstone and eviction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from conformance.driver.diff import FieldDifference, Names
from conformance.driver.lockstep import Calls, EngineCall, Finding, Ignores, Law, Operation, nothing, refusing
from conformance.driver.operations import KeyTokens, operation, operations_of
from conformance.driver.protocol import Json, Key, Misuse, Unsupported
from conformance.driver.shadow import Shadow
from conformance.stems.lock_ref.contents import NodeContents
from conformance.stems.lock_ref.projection import KeyedTree, judge_slots, paths, project_tree, shown_locks
from conformance.stems.lock_ref.protocol import Inserted, LockRefEngine, PrefixMatch
from conformance.stems.lock_ref.steps import TreeSteps
from conformance.stems.pools.contents import HOLE
from spec import lock_ref as law
from spec import lock_ref_state
from spec.lock_ref_state import HELD, ROOT, SKIPPED, LockRefState

BadCall = Literal[
    "release_again", "release_swa_again", "acquire_outside", "acquire_root", "evict_held", "split_outside"
]
Caller = Literal["request", "session", "temporary"]  # who releases a handle, see ``LockRefEngine.release``
HANDLES = 4
MATCHING = "the request that matches"
OWN_HANDLE = HANDLES + 1  # the handle that the tree itself takes while it evicts a state for a copy


class LockRefRun:
    """Operations on one tree.

    ``steps``: explains the engine's tree as steps of the law. ``numbers``, ``keys`` and ``rows`` are those of
    ``steps``, see ``TreeSteps``. ``held``: the engine's number of each handle that locks a node. ``on_root``: the
    handles that lock nothing, since nothing matched. ``early``: the handles whose SWA part was released early.
    ``pins``: the handles of callers that only keep a node in the tree. ``contents``: what inserts write, and what
    matches and handles read.
    """

    def __init__(self, engine: LockRefEngine, config: Json, strict: bool = True, ignores: Ignores = nothing) -> None:
        self.engine, self.lacks = engine, engine.lacks
        self.page_size: int = config["page_size"]
        self.window: int = config["window"]
        self.components: tuple[str, ...] = tuple(config["components"])
        self.windowed, self.stateful = "swa" in self.components, "mamba" in self.components
        self.most_nodes: int = config["size"]  # a node has at least one page
        empty = lock_ref_state.initial(0, OWN_HANDLE, self.window, self.windowed, self.stateful)
        self.shadow = Shadow()
        self.law = Law(law.stem, empty, strict, ignores)
        self.law.names = Names(self._node_name, handle=handle_name, source=self._source_name, holders=self._holders)
        self.steps = TreeSteps(self.law, self.page_size, self.most_nodes)
        self.numbers, self.keys, self.rows = self.steps.numbers, self.steps.keys, self.steps.rows
        self.held: dict[int, int] = {}
        self.on_root: set[int] = set()
        self.early: set[int] = set()
        self.pins: set[int] = set()
        self.contents = NodeContents(self.shadow, self.window, self.page_size)
        self.operations: Mapping[str, Operation] = operations_of(self)
        self.seen: KeyedTree = self.snapshot()
        self._pages = {name: frozenset(free) for name, free in self.seen.tree.free.items()}

    # Operations.

    @operation
    def insert(self, tokens: KeyTokens, cursor: int = 0, protected: int = 0) -> Calls:
        """A request inserts its row.

        ``tokens``: the key of the row. ``protected``: the length of its cached prefix in tokens, which callers must
        hold. ``cursor``: the SWA slots of the tokens below it were freed before.
        """
        if max(cursor, protected) > len(tokens) or cursor % self.page_size or protected % self.page_size:
            raise Misuse("cursor and cached prefix are whole pages of the row")
        if cursor and not self.windowed:
            raise Misuse("a tree without a window has no cursor")
        if protected and Key(tokens[:protected]) not in self.held_keys():
            raise Misuse("a request that shares a prefix with the tree holds it")
        if cursor and not protected <= cursor <= self.last_cursor(len(tokens)):
            raise Misuse("the cursor starts where the row is the request's own, and stays behind its window")
        before = self.seen.nodes
        answer: Inserted | None = yield EngineCall("insert", lambda: self.engine.insert(tokens, cursor, protected))
        if answer is None:
            self.law.counts["insert", "refused"] += 1
            self._explain()  # the tree may have evicted nodes to make room
            return
        source = len(self.rows) + 1
        self.rows[source] = [HOLE] * protected + answer.fresh
        who = f"the request of insert {source}"
        self.contents.inserted(who, tokens, protected, answer.fresh, before, self.seen.nodes)
        self._explain(source)

    @operation
    def match(self, tokens: KeyTokens) -> Calls:
        """A request matches its prefix."""
        found: PrefixMatch = yield EngineCall("match", lambda: self.engine.match(tokens))
        self.contents.matched(MATCHING, found, tokens, self.seen.nodes)
        self._explain()
        self._judge_match(found, tokens)

    @operation
    def acquire(self, handle: int, tokens: KeyTokens) -> Calls:
        """A request locks the prefix that it matches. Where nothing matches, nothing is locked."""
        self._must_be_new(handle)
        found: PrefixMatch = yield EngineCall("match", lambda: self.engine.match(tokens))
        self.contents.matched(handle_name(handle), found, tokens, self.seen.nodes)
        self._explain()
        self._judge_match(found, tokens)
        if not found.length:
            self.on_root.add(handle)
            return
        self.held[handle] = yield EngineCall("acquire", lambda: self.engine.acquire(found.node))
        node = self.numbers[Key(tokens[: found.length])]
        self.law.caller_step("acquire", handle, node, self.top(node), False)
        self._explain()

    def _must_be_new(self, handle: int) -> None:
        if handle in self.on_root or not 1 <= handle <= HANDLES or self.state.active(handle) == 1:
            raise Misuse(f"handle {handle} is not new")

    @operation
    def pin(self, handle: int, tokens: KeyTokens) -> Calls:
        """A caller that keeps a node in the tree locks it, also where nodes of its window are tombstones."""
        self._must_be_new(handle)
        key = Key(tokens)
        if key not in self.numbers:
            raise Misuse("no node of the tree ends where the tokens end")
        self.held[handle] = yield EngineCall("pin", lambda: self.engine.pin(self.seen.nodes[key].id))
        self.pins.add(handle)
        self.law.caller_step("acquire", handle, self.numbers[key], *self._shown_lock(handle, self.numbers[key]))
        self._explain()

    @operation
    def compact(self) -> Calls:
        """The tree merges nodes into their parents, where all handles hold both alike."""
        yield EngineCall("compact", self.engine.compact)
        self.law.counts["compact", "done"] += 1
        self._explain()

    @operation
    def release(self, handle: int, caller: Caller = "request") -> Calls:
        """A handle is released. ``caller``: see ``LockRefEngine.release``."""
        if handle in self.on_root:
            self.on_root.remove(handle)
            return
        if caller == "temporary" and handle in self.early:
            raise Misuse("a lock around one call is not given back in parts")
        if caller != "temporary" and self.around_one_call(handle):
            raise Unsupported(f"no {caller} of this engine locks over tombstones (handle {handle})")
        self.law.caller_step("release", handle)
        self.early.discard(handle)
        self.pins.discard(handle)
        number = self.held.pop(handle)
        yield EngineCall("release", lambda: self.engine.release(number, caller))
        self._explain()

    @operation
    def release_swa(self, handle: int) -> Calls:
        """A request that has decoded past its window releases the SWA part of its handle early."""
        if not self.releasable(handle):
            raise Misuse("only a handle that fills its window gives its SWA part back early")
        self.law.caller_step("release_swa", handle)
        if "state_goes_early" not in self.lacks and self.law.state.state(handle) != SKIPPED:
            self.law.caller_step("release_state", handle)
        self.early.add(handle)
        yield EngineCall("release_swa", lambda: self.engine.release_swa(self.held[handle]))
        self._explain()

    @operation
    def evict(self, full: int = 0, swa: int = 0, mamba: int = 0) -> Calls:
        """The tree is asked to free memory, and chooses what it evicts."""
        yield EngineCall("evict", lambda: self.engine.evict(full, swa, mamba))
        self.law.counts["evict", "done"] += 1
        self._explain()

    @operation
    def copy_on_write(self, tokens: KeyTokens) -> Calls:
        """A request matches and wants a copy of the state. If no slot is free for the copy, the tree evicts another
        state for it; until then it keeps a lock of its own on the node that matched.
        """
        target = self.boundary(tokens)
        if not target or not self.spare_state(self.numbers[target]):
            raise Misuse("nobody could give up a state")
        matched: PrefixMatch = yield EngineCall("match", lambda: self.engine.match(tokens))
        self.contents.matched(MATCHING, matched, tokens, self.seen.nodes)
        self._explain()
        self._judge_match(matched, tokens)
        if Key(tokens[: matched.length]) != target:
            return
        found: PrefixMatch = yield EngineCall("copy_on_write", lambda: self.engine.copy_on_write(tokens))
        self.contents.matched(MATCHING, found, tokens, self.seen.nodes)
        node = self.numbers[target]
        self.law.caller_step("acquire", OWN_HANDLE, node, self.top(node), False)
        self._explain()
        self._judge_match(found, tokens)
        self.law.caller_step("release", OWN_HANDLE)
        self.law.counts["copy_on_write", "done"] += 1

    @operation
    def bad(self, kind: BadCall) -> Calls:
        """Bad input: the engine must answer with a clear error, and nothing may change."""
        yield refusing(lambda: self.engine.bad(kind), self.law, kind)

    # What callers can send now.

    @property
    def state(self) -> LockRefState:
        """The law's tree."""
        state: LockRefState = self.law.state
        return state

    def handles(self) -> list[int]:
        """The handles that callers have."""
        return sorted({*self.held, *self.on_root})

    def held_keys(self) -> set[Key]:
        """The keys of the nodes that requests have locked."""
        return {self.keys[self.state.node(handle)] for handle in self.held if handle not in self.pins}

    def last_cursor(self, length: int) -> int:
        """The highest cursor that a row of this length can have, in tokens.

        A row keeps its window and a page. A key that was cut back to a tracked state may end before the cursor.
        """
        cut_back = self.stateful and self.page_size > 1
        return length if cut_back else length - self.window - self.page_size

    def releasable(self, handle: int) -> bool:
        """The handle still has its window, and the nodes whose SWA lock counts it raised fill the window."""
        st = self.state
        if handle not in self.held or st.top(handle) == ROOT or self.around_one_call(handle):
            return False
        tokens: int = sum(
            lock_ref_state.span(st, n) for n in self.numbers.values() if lock_ref_state.holds_swa(st, handle, n)
        )
        return tokens >= self.window

    def around_one_call(self, handle: int) -> bool:
        """The handle was taken over tombstones, and only a lock around one call is taken over tombstones."""
        return handle in self.pins and "pinned_by_requests" in self.lacks

    def boundary(self, tokens: Sequence[int]) -> Key:
        """The longest prefix of the tokens at which a node ends that can be locked; empty for the root."""
        last = len(tokens) // self.page_size * self.page_size
        prefixes = (Key(tokens[:n]) for n in range(last, 0, -1))
        return next((key for key in prefixes if key in self.numbers and self.lockable(key)), ())

    def lockable(self, key: Key) -> bool:
        """The node with this key can be locked: it has no tombstone in its window, and a state where the tree has
        states.
        """
        st, node = self.state, self.numbers[key]
        top = self.top(node)
        window = [n for n in lock_ref_state.path(st, node) if lock_ref_state.between(st, top, n, node)]
        return all(st.swa(n) == 1 for n in window) and (not self.stateful or st.mamba(node) == 1)

    def spare_state(self, node: int) -> bool:
        """A state is free, or another node than ``node`` can give up its state."""
        st = self.state
        return bool(self.seen.tree.free.get("mamba")) or any(
            n != node and st.mamba(n) == 1 and st.mamba_ref(n) == 0 for n in self.numbers.values()
        )

    def top(self, node: int) -> int:
        """Where the window of a lock on the node ends: the first node, from this node upward, at which the window is
        filled.
        """
        if not self.windowed:
            return ROOT
        st = self.state
        return next(top for top in lock_ref_state.path(st, node) if lock_ref_state.window_top(st, top, node))

    def _shown_lock(self, handle: int, node: int) -> tuple[int, bool]:
        """Where the window of a lock ends that the engine has taken, and whether it counts missing parts.

        Of the lawful choices the first that explains the lock counts that the engine shows, or the first of all. An
        engine that does not show the lock counts of missing parts says by the ability ``counts_missing`` what it does.
        """
        order = (False, True) if "counts_missing" in self.lacks else (True, False)
        st, acquire = self.state, self.law.stem.transitions["acquire"]
        tops = lock_ref_state.path(st, node) if self.windowed else [ROOT]
        steps = {(top, counts): acquire(st, handle, node, top, counts) for top in tops for counts in order}
        lawful = [choice for choice, step in steps.items() if step.kept]
        explains = (c for c in lawful if not shown_locks(steps[c].then, self.seen.nodes, self.numbers))
        return next(explains, next(iter(lawful or steps)))

    # What the engine has done.

    def _judge_match(self, found: PrefixMatch, tokens: Sequence[int]) -> None:
        """Raises ``Finding`` unless the match ends at a node that can be locked, and gives the slots of the path to
        it.
        """
        key = Key(tokens[: found.length])
        if key and key not in self.numbers:
            raise self._wrong_match(f"match ends at {list(key)}, where no node ends")
        if key and not self.lockable(key):
            raise self._wrong_match(f"match offers {list(key)}, which cannot be locked")
        slots: list[int] = []
        for above, node in self.seen.nodes.items():  # parents first
            if key[: len(above)] == above:
                slots += node.parts["full"].slots or ()
        if slots != found.slots:
            raise self._wrong_match(f"match gives the slots {found.slots}, not {slots}")

    def _wrong_match(self, what: str) -> Finding:
        return Finding("acquire", self.law.sentence("acquire"), what)

    def _explain(self, source: int = 0) -> None:
        """Explains the engine's tree as steps of the law. ``source``: the number of the insert from which new slots
        come, or 0.
        """
        self.steps.explain(self.seen.nodes, source)

    # The law's numbers in words.

    def _node_name(self, node: int) -> str:
        """A node by its tokens."""
        if node == ROOT:
            return "the root"
        return f"node {list(self.keys[node])}" if node in self.keys else f"node {node}"

    def _holders(self, node: int) -> str:
        """The handles that hold a node."""
        held = (handle for handle in self.state.handles.items() if lock_ref_state.holds_full(self.state, handle, node))
        return " and ".join(map(handle_name, held))

    def _source_name(self, source: int) -> str:
        """An insert by its slots."""
        slots = [slot for slot in self.rows.get(source, ()) if slot != HOLE]
        return f"slots {slots}" if source in self.rows else "no slots of an insert"

    # What the driver needs.

    def snapshot(self) -> KeyedTree:
        """The tree, and its nodes by their keys."""
        found = self.engine.snapshot()
        return KeyedTree(found, paths(found))

    def follow(self) -> None:
        """Each operation explains what its calls have changed. Those who hold a node read it."""
        st = self.state
        self.contents.released([handle_name(handle) for handle in self.held])
        for handle in self.held:
            node = st.node(handle)
            parts = (
                n for n in lock_ref_state.path(st, node) if st.swa(n) == 1 and lock_ref_state.holds_swa(st, handle, n)
            )
            window = [(int(lock_ref_state.begin(st, n)), int(st.stop(n))) for n in parts]
            state = st.state(handle) == HELD and st.mamba(node) == 1
            self.contents.held(handle_name(handle), self.keys[node], window, state, self.seen.nodes)

    def project(self) -> Any:
        """The law's tree with the lock counts and the sizes that the engine shows."""
        return project_tree(self.state, self.seen, self.numbers)

    def hidden(self, change: FieldDifference) -> bool:
        """Nothing is hidden from a caller."""
        del change
        return False

    def beyond_state(self) -> list[str]:
        """Nothing to add: ``judge`` looks at the slots."""
        return []

    def judge(self) -> None:
        """Raises ``Finding`` unless every slot is free or belongs to one node, and each node has the slots that the
        law says.
        """
        judge_slots(self.seen, self.steps.lawful_slots(), self._pages, self.page_size)


def handle_name(handle: int) -> str:
    return "the tree's own lock" if handle == OWN_HANDLE else f"handle {handle}"
