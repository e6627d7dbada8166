"""A radix tree beside the law: operations on keys (token ids) and on lock handles.

Which nodes there are is the engine's choice. After each call the run compares the engine's tree with the law's, where a
node is known by the tokens from the root to its end, and takes the law's step for each split, new leaf, restored
tombstone and eviction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from conformance.diff import Change, Names
from conformance.engines.protocol import Inserted, Json, Key, Match, Misuse, NodeSnapshot, TreeEngine
from conformance.kinds import KeyTokens
from conformance.lock_ref.seen import KeyedTree, has_part, judge_slots, paths, project_tree
from conformance.lockstep import Call, Calls, Finding, Law, Operation, refusing
from conformance.pool_calls import HOLE
from spec import lock_ref as law
from spec import tree
from spec.finite import Domain
from spec.logic import but
from spec.tree import ROOT, Tree

HANDLES = 4
OWN_HANDLE = HANDLES + 1  # the lock that a tree takes for itself while it evicts a state for a copy


class LockRefRun:
    """``numbers``: the law's number of each node, by its key. ``rows``: the full slots of each insert, by position.

    ``held``: the engine's number of each handle that locks a node. ``on_root``: the handles that lock nothing, since
    nothing matched. ``early``: the handles whose SWA part was given back early.
    """

    def __init__(self, engine: TreeEngine, config: Json, strict: bool = True, exclude: Collection[str] = ()) -> None:
        self.engine, self.lacks, self.exclude = engine, engine.lacks, exclude
        self.page_size: int = config["page_size"]
        self.window: int = config["window"]
        self.components: tuple[str, ...] = tuple(config["components"])
        self.windowed, self.stateful = "swa" in self.components, "mamba" in self.components
        self.most_nodes: int = config["size"]  # a node has a page at least
        empty = tree.initial(0, OWN_HANDLE, self.window, self.windowed, self.stateful)
        self.law = Law(law.stem, empty, strict)
        self.law.names = Names(self._node_name, handle=_handle_name, source=self._source_name, holders=self._holders)
        self.numbers: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}  # the key of each number, also of the last node that had it and has left
        self.rows: dict[int, list[int]] = {}
        self.held: dict[int, int] = {}
        self.on_root: set[int] = set()
        self.early: set[int] = set()
        self.operations: Mapping[str, Operation] = {
            "insert": self.insert,
            "match": self.match,
            "acquire": self.acquire,
            "release": self.release,
            "release_swa": self.release_swa,
            "evict": self.evict,
            "copy_on_write": self.copy_on_write,
            "bad": self.bad,
        }
        self.seen: KeyedTree = self.snapshot()
        self._pages = {name: frozenset(free) for name, free in self.seen.tree.free.items()}
        self._lawful: tuple[Any, dict[Key, list[int]]] = (None, {})

    # Operations.

    def insert(self, tokens: KeyTokens, cursor: int = 0, protected: int = 0) -> Calls:
        """A request caches its row. The tree has the first ``protected`` tokens, which the request holds; the SWA side
        of the tokens below ``cursor`` was given back before.
        """
        if protected and Key(tokens[:protected]) not in self.held_keys():
            raise Misuse("a request that shares a prefix with the tree holds it")
        if cursor and not protected <= cursor <= self.last_cursor(len(tokens)):
            raise Misuse("the cursor starts where the row is the request's own, and stays behind its window")
        answer: Inserted | None = yield Call("insert", lambda: self.engine.insert(tokens, cursor, protected))
        if answer is None:
            self.law.counts["insert", "refused"] += 1
            return
        source = len(self.rows) + 1
        self.rows[source] = [HOLE] * protected + answer.fresh
        self._explain(source)

    def match(self, tokens: KeyTokens) -> Calls:
        """A request looks for its prefix."""
        found: Match = yield Call("match", lambda: self.engine.match(tokens))
        self._explain()
        self._judge_match(found, tokens)

    def acquire(self, handle: int, tokens: KeyTokens) -> Calls:
        """A request locks the prefix that it finds; where nothing matches there is nothing to lock."""
        if handle in self.on_root or not 1 <= handle <= HANDLES or self.state.active(handle) == 1:
            raise Misuse(f"handle {handle} is not new")
        found: Match = yield Call("match", lambda: self.engine.match(tokens))
        self._explain()
        self._judge_match(found, tokens)
        if not found.length:
            self.on_root.add(handle)
            return
        self.held[handle] = yield Call("acquire", lambda: self.engine.acquire(found.node))
        node = self.numbers[Key(tokens[: found.length])]
        self.law.caller_step("acquire", handle, node, self.top(node))
        self._explain()

    def release(self, handle: int, caller: str = "request") -> Calls:
        """A handle is given back with what its ``caller`` has kept of it."""
        if handle in self.on_root:
            self.on_root.remove(handle)
            return
        if caller == "temporary" and handle in self.early:
            raise Misuse("a lock around one call is not given back in parts")
        self.law.caller_step("release", handle)
        self.early.discard(handle)
        number = self.held.pop(handle)
        yield Call("release", lambda: self.engine.release(number, caller))
        self._explain()

    def release_swa(self, handle: int) -> Calls:
        """A request that has decoded past its window gives back the SWA part early."""
        if not self.releasable(handle):
            raise Misuse("only a handle that fills its window gives its SWA part back early")
        self.law.caller_step("release_swa", handle)
        self.early.add(handle)
        yield Call("release_swa", lambda: self.engine.release_swa(self.held[handle]))
        self._explain()

    def evict(self, full: int = 0, swa: int = 0, mamba: int = 0) -> Calls:
        """The tree is asked for room; it chooses what it evicts."""
        yield Call("evict", lambda: self.engine.evict(full, swa, mamba))
        self.law.counts["evict", "done"] += 1
        self._explain()

    def copy_on_write(self, tokens: KeyTokens) -> Calls:
        """A request matches and wants a copy of the state; the tree may evict for it, under a lock of its own."""
        target = self.boundary(tokens)
        if not target or not self.spare_state(self.numbers[target]):
            raise Misuse("nobody could give up a state")
        plain: Match = yield Call("match", lambda: self.engine.match(tokens))
        self._explain()
        self._judge_match(plain, tokens)
        if Key(tokens[: plain.length]) != target:
            return
        found: Match = yield Call("copy_on_write", lambda: self.engine.copy_on_write(tokens))
        node = self.numbers[target]
        self.law.caller_step("acquire", OWN_HANDLE, node, self.top(node))
        self._explain()
        self._judge_match(found, tokens)
        self.law.caller_step("release", OWN_HANDLE)
        self.law.counts["copy_on_write", "done"] += 1

    def bad(self, kind: str) -> Calls:
        """Bad input: a clear error, and nothing changed."""
        yield refusing(lambda: self.engine.bad(kind), self.law, kind)

    # What callers can send now.

    @property
    def state(self) -> Tree:
        """The law's tree."""
        state: Tree = self.law.state
        return state

    def handles(self) -> list[int]:
        """The handles that callers have."""
        return sorted({*self.held, *self.on_root})

    def held_keys(self) -> set[Key]:
        """The keys that callers hold."""
        return {self._keys[self.state.node(handle)] for handle in self.held}

    def last_cursor(self, length: int) -> int:
        """A row keeps its window and a page; a key that was cut back to a tracked state may end before the cursor."""
        cut_back = self.stateful and self.page_size > 1
        return length if cut_back else length - self.window - self.page_size

    def releasable(self, handle: int) -> bool:
        """The handle still holds an SWA part, and that part fills the window."""
        st, top = self.state, self.state.top(handle)
        return handle in self.held and top != ROOT and st.stop(st.node(handle)) - tree.begin(st, top) >= st.window

    def boundary(self, tokens: Sequence[int]) -> Key:
        """The longest prefix that a request may use and at which a node ends; empty for the root."""
        last = len(tokens) // self.page_size * self.page_size
        prefixes = (Key(tokens[:n]) for n in range(last, 0, -1))
        return next((key for key in prefixes if key in self.numbers and self.lockable(key)), ())

    def lockable(self, key: Key) -> bool:
        """The node at the key can be locked: no tombstone in its window, and a state where the tree has states."""
        st, node = self.state, self.numbers[key]
        top = self.top(node)
        window = [n for n in tree.path(st, node) if tree.between(st, top, n, node)]
        return all(st.swa(n) == 1 for n in window) and (not self.stateful or st.mamba(node) == 1)

    def spare_state(self, node: int) -> bool:
        """A state is free, or a node other than ``node`` could give its own up."""
        st = self.state
        return bool(self.seen.tree.free.get("mamba")) or any(
            n != node and st.mamba(n) == 1 and st.mamba_ref(n) == 0 for n in self.numbers.values()
        )

    def top(self, node: int) -> int:
        """Where a lock on the node ends: the first node upward that fills the window."""
        if not self.windowed:
            return ROOT
        st = self.state
        return next(top for top in tree.path(st, node) if tree.window_top(st, top, node))

    # What the engine has done.

    def _judge_match(self, found: Match, tokens: Sequence[int]) -> None:
        """A match ends at a node that can be locked, and gives the slots of the path to it."""
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
        """The law's tree becomes the engine's by steps that the law allows. ``source``: the insert that new slots are
        from.
        """
        shown, numbers = self.seen.nodes, self.numbers
        for key in sorted(shown.keys() - numbers.keys()):
            self._explain_split(key)
        for key in sorted(shown.keys() & numbers.keys()):
            self._explain_parts(key, shown[key], source)
        for key in sorted(shown.keys() - numbers.keys()):
            self._explain_leaf(key, shown[key], source)
        for key in sorted(numbers.keys() - shown.keys(), key=len, reverse=True):
            self.law.engine_step("evict_leaf", numbers[key])
            del numbers[key]

    def _explain_split(self, key: Key) -> None:
        st = self.state
        below = (k for k, n in self.numbers.items() if k[: len(key)] == key and tree.begin(st, n) < len(key))
        if child := next(below, None):
            new = self._number_for(key)
            self.law.engine_step("split", self.numbers[child], new, len(key))

    def _explain_parts(self, key: Key, node: NodeSnapshot, source: int) -> None:
        number, st = self.numbers[key], self.state
        if has_part(node, "swa") and st.swa(number) != 1:
            self._must_be_inserted("restore", key, source)
            self.law.engine_step("restore", number, source)
        elif st.swa(number) == 1 and not has_part(node, "swa"):
            self.law.engine_step("evict_swa", number)
        if has_part(node, "mamba") != (st.mamba(number) == 1):
            self.law.engine_step("evict_mamba" if st.mamba(number) == 1 else "set_mamba", number)

    def _explain_leaf(self, key: Key, node: NodeSnapshot, source: int) -> None:
        self._must_be_inserted("add_leaf", key, source)
        under = self.numbers.get(key[: len(key) - len(node.key)], ROOT)
        new = self._number_for(key)
        parts = has_part(node, "swa"), has_part(node, "mamba")
        self.law.engine_step("add_leaf", under, new, len(key), source, *parts)

    def _must_be_inserted(self, name: str, key: Key, source: int) -> None:
        """Only an insert brings slots."""
        if not source:
            what = f"node {list(key)} has new slots, and the call was no insert"
            raise Finding(name, self.law.sentence(name), what)

    def _number_for(self, key: Key) -> int:
        """A number for a new node. The law's tree gets room for the node now, so that laws about pairs and triples of
        nodes look at few of them.
        """
        taken = set(self.numbers.values())
        number = next(n for n in range(1, len(taken) + 2) if n not in taken)
        if number > self.most_nodes:
            raise Finding("own_slots", law.stem.invariants["own_slots"].sentence, "more nodes than pages")
        if not self.state.nodes.has(number):
            self.law.state = but(self.state, nodes=Domain(1, number))
        self.numbers[key], self._keys[number] = number, key
        return number

    # How the law's numbers are said.

    def _node_name(self, node: int) -> str:
        """A node by its tokens."""
        if node == ROOT:
            return "the root"
        return f"node {list(self._keys[node])}" if node in self._keys else f"node {node}"

    def _holders(self, node: int) -> str:
        """The handles that hold a node."""
        held = (handle for handle in self.state.handles.items() if tree.holds_full(self.state, handle, node))
        return " and ".join(map(_handle_name, held))

    def _source_name(self, source: int) -> str:
        """An insert by its slots."""
        slots = [slot for slot in self.rows.get(source, ()) if slot != HOLE]
        return f"slots {slots}" if source in self.rows else "no slots of an insert"

    # What the driver asks.

    def snapshot(self) -> KeyedTree:
        """The tree, and its nodes by their keys."""
        found = self.engine.snapshot()
        return KeyedTree(found, paths(found))

    def follow(self) -> None:
        """A tree does nothing of its own accord: each operation explains what its calls have changed."""

    def project(self) -> Any:
        """The lock counts and the sizes that the tree shows."""
        return project_tree(self.state, self.seen, self.numbers)

    def hidden(self, change: Change) -> bool:
        """Nothing is hidden from a caller."""
        del change
        return False

    def beyond_state(self) -> list[str]:
        """The lock counts and the sizes say it all."""
        return []

    def judge(self) -> None:
        """Every slot is free or belongs to one node, to the one that the law names."""
        judge_slots(self.seen, self._lawful_slots(), self._pages, self.page_size)

    def _lawful_slots(self) -> dict[Key, list[int]]:
        """The full slots that each node must have."""
        st = self.state
        if self._lawful[0] is not st:
            slots = {k: self.rows[st.source(n)][tree.begin(st, n) : st.stop(n)] for k, n in self.numbers.items()}
            self._lawful = (st, slots)
        return self._lawful[1]


def _handle_name(handle: int) -> str:
    return "the tree's own lock" if handle == OWN_HANDLE else f"handle {handle}"
