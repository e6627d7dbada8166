"""The radix tree in lock-step: operations on key sequences and handle numbers, and what can be observed of the tree.

Which nodes there are is the subject's choice. Splits, leaves, restores and evictions are read off its tree after each
operation (a node is known by the tokens from the root to its end) and asked of the law one by one; what the subject
did and the law does not allow is a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from conformance.machine import Finding, Json, LockStep, Misuse
from conformance.pools import HOLE
from conformance.subjects.treeview import Match, Node, Seen
from conformance.tree_slots import Key, judge_slots, paths
from spec import lock_ref as law
from spec import tree
from spec.finite import Domain
from spec.logic import but
from spec.tree import ROOT

HANDLES = 4
TEMPORARY = HANDLES + 1  # the lock that a tree takes for itself around an eviction
COUNTS = {"full": "full_ref", "swa": "swa_ref", "mamba": "mamba_ref"}


class LockRefRun(LockStep):
    """One radix tree beside the spec."""

    stem = law.stem

    def __init__(self, subject: Any, config: Json, strict: bool = True, avoid: Iterable[str] = ()) -> None:
        super().__init__(subject, config, strict, avoid)
        self.page_size: int = config["page_size"]
        self.components = tuple(config["components"])
        self.windowed, self.stateful = "swa" in self.components, "mamba" in self.components
        self.state = tree.initial(config["size"], TEMPORARY, config["window"], self.windowed, self.stateful)
        self.at: dict[Key, int] = {}  # the spec's number of each node
        self.rows: dict[int, list[int]] = {}  # the slots of each insert, by position
        self.numbers: dict[int, int] = {}  # handle -> the subject's number for it
        self.idle: set[int] = set()  # handles on the root: they hold nothing
        self.early: set[int] = set()  # handles whose SWA part went early
        self.whole: dict[str, set[int]] = {}  # the pages of each pool

    def offers(self, name: str) -> bool:
        """The subject's tree has the call."""
        return bool(self.subject.offers(name))

    def do(self, op: str, **arguments: Any) -> None:
        """One operation; before the first one every page is free."""
        if not self.whole:
            self.whole = {name: set(free) for name, free in self.subject.observe().free.items()}
        super().do(op, **arguments)

    # Operations.

    def op_insert(self, tokens: list[int], cursor: int = 0, protected: int = 0) -> None:
        """A request caches its row: ``protected`` tokens it had from the tree and holds, the SWA part lives from the
        cursor on.
        """
        if protected and Key(tokens[:protected]) not in self.held_keys():
            raise Misuse("a request that shares a prefix with the tree holds it")
        if cursor and not protected <= cursor <= self.last_cursor(len(tokens)):
            raise Misuse("the cursor starts where the row is the request's own, and stays behind its window")
        answer = self.ask("insert", lambda: self.subject.insert(tokens, cursor, protected))
        if answer is None:
            self.counts["insert", "refused"] += 1
            return
        source = len(self.rows) + 1
        self.rows[source] = [HOLE] * protected + answer.fresh
        self.follow(source)

    def op_match(self, tokens: list[int]) -> None:
        """A request looks for its prefix."""
        self.matched(lambda: self.subject.match(tokens), "match", tokens)

    def op_acquire(self, handle: int, tokens: list[int]) -> None:
        """A request locks the prefix that it finds; on the root there is nothing to hold."""
        if handle in self.idle or not 1 <= handle <= HANDLES or self.state.active(handle) == 1:
            raise Misuse(f"handle {handle} is not new")
        found = self.matched(lambda: self.subject.match(tokens), "match", tokens)
        if not found.length:
            self.idle.add(handle)
            return
        node = self.at[Key(tokens[: found.length])]
        self.step("acquire", handle, node, self.top(node))
        self.numbers[handle] = self.ask("acquire", lambda: self.subject.acquire(found.node))
        self.follow()

    def op_release(self, handle: int, caller: str = "request") -> None:
        """A handle is given back with what its ``caller`` has kept of it."""
        if handle in self.idle:
            self.idle.remove(handle)
            return
        if caller == "temporary" and handle in self.early:
            raise Misuse("a lock around one call is not given back in parts")
        self.step("release", handle)
        self.early.discard(handle)
        self.ask("release", lambda: self.subject.release(self.numbers.pop(handle), caller))
        self.follow()

    def op_release_swa(self, handle: int) -> None:
        """A request that has decoded past its window gives back the SWA part early."""
        self.must_offer("release_swa")
        if not self.releasable(handle):
            raise Misuse("only a handle that fills its window gives its SWA part back early")
        self.step("release_swa", handle)
        self.early.add(handle)
        self.ask("release_swa", lambda: self.subject.release_swa(self.numbers[handle]))
        self.follow()

    def op_evict(self, full: int = 0, swa: int = 0, mamba: int = 0) -> None:
        """The tree is asked for room; it chooses the victims."""
        self.ask("evict", lambda: self.subject.evict(full, swa, mamba))
        self.counts["evict", "done"] += 1
        self.follow()

    def op_copy_on_write(self, tokens: list[int]) -> None:
        """A request matches and wants a copy of the state; the tree may evict for it, under a lock of its own."""
        self.must_offer("copy_on_write")
        target = self.boundary(tokens)
        if not target or not self.spare_state(self.at[target]):
            raise Misuse("nobody could give up a state")
        plain = self.matched(lambda: self.subject.match(tokens), "match", tokens)
        if Key(tokens[: plain.length]) != target:
            return
        node = self.at[target]
        self.step("acquire", TEMPORARY, node, self.top(node))
        self.matched(lambda: self.subject.copy_on_write(tokens), "copy_on_write", tokens)
        self.step("release", TEMPORARY)
        self.counts["copy_on_write", "done"] += 1

    # What callers can send now.

    def handles(self) -> list[int]:
        """The handles that callers have."""
        return sorted({*self.numbers, *self.idle})

    def held_keys(self) -> set[Key]:
        """The keys that callers hold."""
        keys = {n: key for key, n in self.at.items()}
        return {keys[self.state.node(h)] for h in self.numbers}

    def last_cursor(self, length: int) -> int:
        """A row keeps its window and a page; a key that was cut back to a tracked state may end before the cursor."""
        cut_back = self.stateful and self.page_size > 1
        return length if cut_back else length - int(self.config["window"]) - self.page_size

    def releasable(self, handle: int) -> bool:
        """The handle still holds an SWA part, and that part fills the window."""
        st, top = self.state, self.state.top(handle)
        return handle in self.numbers and top != ROOT and st.stop(st.node(handle)) - tree.begin(st, top) >= st.window

    def boundary(self, tokens: Sequence[int]) -> Key:
        """The longest prefix that a request may use, splits allowed (the root is empty)."""
        last = len(tokens) // self.page_size * self.page_size
        return next((k for n in range(last, 0, -1) if (k := Key(tokens[:n])) in self.at and self.lawful(k)), ())

    def lawful(self, key: Key) -> bool:
        """The node at the key can be locked: no tombstone in its window, and a state where the tree has states."""
        node = self.at[key]
        st, top = self.state, self.top(node)
        window = [n for n in tree.path(st, node) if tree.between(st, top, n, node)]
        return all(st.swa(n) == 1 for n in window) and (not self.stateful or st.mamba(node) == 1)

    def spare_state(self, node: int) -> bool:
        """A state is free, or a node other than ``node`` could give its own up."""
        st = self.state
        others = (n for n in self.at.values() if n != node and st.mamba(n) == 1 and st.mamba_ref(n) == 0)
        return bool(self.subject.observe().free.get("mamba")) or any(True for _ in others)

    def top(self, node: int) -> int:
        """Where a lock on the node ends: the first node upward that fills the window."""
        if not self.windowed:
            return ROOT
        st = self.state
        return next(t for t in tree.path(st, node) if tree.window_top(st, t, node))

    # The subject's own doings.

    def must(self, name: str, key: Key, *arguments: Any) -> None:
        """The subject did what the transition ``name`` says; the law must allow it."""
        wrong = self.stem.transitions[name](self.state, *arguments).broken()
        if wrong:
            slots = self.slots_of().get(key, "new")
            raise Finding(name, self.sentence(name), f"not so: {'; '.join(wrong)} (node {list(key)}, slots {slots})")
        self.step(name, *arguments)

    def matched(self, call: Any, name: str, tokens: list[int]) -> Match:
        """The subject's match: it must be a node that can be locked, in that node's slots."""
        found: Match = self.ask(name, call)
        seen = self.follow()
        key = Key(tokens[: found.length])
        if key and key not in self.at:
            raise Finding("acquire", self.sentence("acquire"), f"match ends at {list(key)}, where no node ends")
        if key and not self.lawful(key):
            raise Finding("acquire", self.sentence("acquire"), f"match offers {list(key)}, which cannot be locked")
        held = [s for k in sorted(seen) if key[: len(k)] == k for s in seen[k].parts["full"].slots or ()]
        if held != found.slots:
            raise Finding("acquire", self.sentence("acquire"), f"match gives the slots {found.slots}, not {held}")
        return found

    def follow(self, source: int = 0) -> dict[Key, Node]:
        """The spec's tree becomes the subject's, by the steps that the law allows."""
        seen = paths(self.subject.observe())
        for key in sorted(seen):
            if key not in self.at:
                self._split(key)
        for key in sorted(set(self.at) & set(seen)):
            self._parts(key, seen[key], source)
        for key in sorted(set(seen) - set(self.at)):
            self._leaf(key, seen[key], source)
        for key in sorted(set(self.at) - set(seen), key=len, reverse=True):
            self.must("evict_leaf", key, self.at[key])
            del self.at[key]
        return seen

    def _split(self, key: Key) -> None:
        below = (k for k, n in self.at.items() if k[: len(key)] == key and tree.begin(self.state, n) < len(key))
        if child := next(below, None):
            new = self._number()
            self.must("split", child, self.at[child], new, len(key))
            self.at[key] = new

    def _parts(self, key: Key, node: Node, source: int) -> None:
        number, has = self.at[key], self.has(node)
        for name in ("swa", "mamba"):
            had = getattr(self.state, name)(number)
            if had and not has[name]:
                self.must(f"evict_{name}", key, number)
            elif has[name] and not had:
                self.must(*(("restore", key, number, source) if name == "swa" else ("set_mamba", key, number)))

    def _leaf(self, key: Key, node: Node, source: int) -> None:
        new, has, under = self._number(), self.has(node), self.at.get(key[: len(key) - len(node.key)], ROOT)
        self.must("add_leaf", key, under, new, len(key), source, bool(has["swa"]), bool(has["mamba"]))
        self.at[key] = new

    def _number(self) -> int:
        free = (n for n in self.state.nodes.items() if n not in self.at.values())
        number: int | None = next(free, None)
        if number is None:
            raise Finding("own_slots", self.stem.invariants["own_slots"].sentence, "more nodes than pages")
        return number

    @staticmethod
    def has(node: Node) -> dict[str, int]:
        """Which parts the node has besides the full one."""
        return {n: int(n in node.parts and node.parts[n].slots is not None) for n in ("swa", "mamba")}

    # What can be observed.

    def compare(self, op: str) -> None:
        """The laws and the counts, then who owns which slot."""
        super().compare(op)
        judge_slots(self.subject.observe(), self.slots_of(), self.whole, self.page_size)

    def slots_of(self) -> dict[Key, list[int]]:
        """The full slots that each node must have."""
        st = self.state
        return {k: self.rows[st.source(n)][tree.begin(st, n) : st.stop(n)] for k, n in self.at.items()}

    def observed(self) -> Any:
        """The tree as the subject shows it: lock counts and sizes."""
        look: Seen = self.subject.observe()
        seen, st = paths(look), self.state
        refs = {}
        for part, name in COUNTS.items():
            refs[name] = getattr(st, name)
            for key, n in self.at.items():
                if key in seen and part in seen[key].parts:
                    refs[name] = refs[name].put(n, seen[key].parts[part].lock)
        sizes = {f"{part}_evictable": look.evictable.get(part, 0) for part in COUNTS}
        sizes |= {f"{part}_protected": look.protected.get(part, 0) for part in COUNTS}
        return but(st, **refs, **sizes, nodes=Domain(1, max(self.at.values(), default=0)))

    def differences(self, seen: Any) -> str:
        """Lock counts and sizes."""
        keys, found = {n: list(k) for k, n in self.at.items()}, []
        for part, name in COUNTS.items():
            was, now = getattr(self.state, name), getattr(seen, name)
            found += [f"{part} lock of node {keys[n]} is {now(n)}, not {was(n)}" for n in keys if was(n) != now(n)]
        for name in tree.SIZES:
            was, now = getattr(self.state, name), getattr(seen, name)
            found += [f"{name} is {now}, not {was}"] if was != now else []
        return "; ".join(found)
