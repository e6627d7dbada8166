"""The machine that draws runs of ``lock_ref``: keys that share prefixes, tiny pools, few lock handles.

A rule sends what a request of an engine can send in the present state, and nothing else.
"""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from conformance.driver.protocol import Json, Key
from conformance.stems.kinds import LOCKED
from conformance.stems.lock_ref.exclusions import LockRefExclusion as Exclusion
from conformance.stems.lock_ref.projection import common_length
from conformance.stems.lock_ref.run import HANDLES, BadCall, Caller, LockRefRun
from conformance.stems.machine import StemMachine
from spec import lock_ref_state

CONFIG = {
    "page_size": st.integers(0, 1),
    "tree": st.integers(0, LOCKED - 1),  # which of the trees that the engine declares
    "size": st.integers(6, 16),  # pages
    "size_swa": st.integers(6, 16),
    "size_mamba": st.integers(2, 5),
    "window": st.integers(2, 4),
}
PAGE_SIZES = (1, 2)
MOST = {"size": 16, "size_swa": 16, "size_mamba": 5}  # for an engine that refuses smaller pools
lengths, forks, picks, cuts = st.integers(1, 10), st.integers(0, 6), st.integers(0, 11), st.integers(0, 4)
BAD = get_args(BadCall)


def keys(length: int, fork: int) -> list[int]:
    """A key of ``length`` token ids: 1, 2, 3 and so on, and other ids after position ``fork``. Up to a fork two keys
    are equal.
    """
    return [n if n <= fork or not fork else 20 + n for n in range(1, length + 1)]


def grown(machine: Any) -> bool:
    """The tree has nodes."""
    return machine.run is not None and bool(machine.run.numbers)


def held(machine: Any) -> bool:
    """Callers have lock handles."""
    return machine.run is not None and bool(machine.run.handles())


class LockRefMachine(StemMachine):
    """Requests that insert, match, lock and release, and evictions between them."""

    run: LockRefRun | None

    @initialize(config=st.fixed_dictionaries(CONFIG))
    def start(self, config: Json) -> None:
        """Makes an engine of a drawn size and kind, and the law."""
        sizes = [size for size in self.page_sizes if size in PAGE_SIZES]
        trees = [tree for tree in self.kinds.locked if self.parts is None or tree[1] == self.parts]
        if not trees:
            return
        kind, components = trees[config["tree"] % len(trees)]
        known = {name: config[name] for name in ("size", "size_swa", "size_mamba", "window")}
        known |= {"kind": kind, "components": [*components], "page_size": sizes[config["page_size"] % len(sizes)]}
        kinds = dict.fromkeys((kind, parts, size) for kind, parts in trees for size in sizes)
        of_kind = [{"kind": kind, "components": [*parts], "page_size": size} for kind, parts, size in kinds]
        self.begin_one_of(known, [{**known, **more, **kind} for more in ({}, MOST) for kind in of_kind])

    @property
    def begun(self) -> LockRefRun:
        """The run, after the start."""
        assert self.run is not None
        return self.run

    # What a caller can send now.

    def found(self, drawn: int, cut: int) -> list[int]:
        """A key that ends at a node of the tree, ``cut`` tokens shorter."""
        known = sorted(self.begun.numbers)
        key = known[drawn % len(known)]
        return list(key[: max(1, len(key) - cut)])

    def handle(self, drawn: int) -> int:
        """One of the handles that callers have."""
        have = self.begun.handles()
        return have[drawn % len(have)]

    def cursor(self, tokens: list[int], protected: int, drawn: int) -> int:
        """A cursor for the row that is inserted, in tokens: its SWA slots below are gone."""
        run = self.begun
        whole, last = len(tokens) // run.page_size * run.page_size, run.last_cursor(len(tokens))
        last = min(last, whole - run.page_size) if self.excludes(Exclusion.CURSOR_PAST_KEY) else last
        cursor = min(drawn, last) // run.page_size * run.page_size
        return cursor if run.windowed and cursor > 0 and cursor >= protected else 0

    def restores_held(self, tokens: list[int], cursor: int, protected: int) -> bool:
        """The insert meets a tombstone whose full part a handle holds."""
        state = self.begun.state
        tombstones = [(k, n) for k, n in self.begun.numbers.items() if state.swa(n) == 0 and state.full_ref(n) > 0]
        return any(
            common_length(k, tokens) > max(lock_ref_state.begin(state, n), protected, cursor) for k, n in tombstones
        )

    # Rules.

    @rule(length=lengths, fork=forks, cursor=picks, shared=st.booleans())
    def insert(self, length: int, fork: int, cursor: int, shared: bool) -> None:
        """A request inserts its row. With ``shared`` its prefix is a key that callers hold."""
        if self.run is None:  # Hypothesis needs one rule that is always possible
            return
        tokens = keys(length, fork)
        mine = [len(key) for key in self.begun.held_keys() if key == Key(tokens[: len(key)])]
        protected = max(mine, default=0) if shared else 0
        cursor = self.cursor(tokens, protected, cursor)
        if not (self.excludes(Exclusion.RESTORE_HELD) and self.restores_held(tokens, cursor, protected)):
            self.do("insert", tokens=tokens, cursor=cursor, protected=protected)

    @rule(drawn=picks, cut=cuts)
    @precondition(grown)
    def match(self, drawn: int, cut: int) -> None:
        """A request matches its prefix."""
        self.do("match", tokens=self.found(drawn, cut))

    @rule(drawn=picks, cut=cuts)
    @precondition(grown)
    def acquire(self, drawn: int, cut: int) -> None:
        """A request locks its prefix."""
        tokens, free = self.found(drawn, cut), set(range(1, HANDLES + 1)) - set(self.begun.handles())
        if free and len(tokens) >= self.begun.page_size:
            self.do("acquire", handle=min(free), tokens=tokens)

    @rule(drawn=picks)
    @precondition(grown)
    def pin(self, drawn: int) -> None:
        """A caller keeps a node in the tree, whatever has become of the node's window."""
        free = set(range(1, HANDLES + 1)) - set(self.begun.handles())
        if free and self.offers("pin"):
            self.do("pin", handle=min(free), tokens=self.found(drawn, 0))

    @rule()
    @precondition(grown)
    def compact(self) -> None:
        """The tree merges nodes."""
        if self.offers("compact"):
            self.do("compact")

    @rule(drawn=picks, caller=st.sampled_from(get_args(Caller)))
    @precondition(held)
    def release(self, drawn: int, caller: str) -> None:
        """A handle is released: by a request that ends, by a session that ends, or after one call that it protected."""
        handle = self.handle(drawn)
        early = handle in self.begun.early
        if early and (caller == "temporary" or (caller == "session" and self.excludes(Exclusion.SESSION_AFTER_EARLY))):
            caller = "request"
        if self.begun.around_one_call(handle):
            caller = "temporary"
        self.do("release", handle=handle, caller=caller)

    @rule(drawn=picks)
    @precondition(held)
    def release_swa(self, drawn: int) -> None:
        """A request has decoded past its window, and releases its SWA part."""
        handle = self.handle(drawn)
        with_state = self.begun.stateful and self.excludes(Exclusion.EARLY_RELEASE_STATE)
        known = self.excludes(Exclusion.EARLY_RELEASE) or with_state
        if not known and self.begun.releasable(handle) and self.offers("release_swa"):
            self.do("release_swa", handle=handle)

    @rule(part=picks, amount=st.integers(1, 4), all_parts=st.booleans())
    @precondition(grown)
    def evict(self, part: int, amount: int, all_parts: bool) -> None:
        """The tree is asked to free one component, or all."""
        have = self.begun.components
        wanted = have if all_parts and amount == 1 else (have[part % len(have)],)
        self.do("evict", **{name: amount for name in have if name in wanted})

    @rule(drawn=picks, cut=cuts)
    @precondition(grown)
    def copy_on_write(self, drawn: int, cut: int) -> None:
        """A request wants its own copy of a state. Sent only if the tree can free a state for it."""
        run, tokens = self.begun, self.found(drawn, cut)
        if not run.stateful or self.excludes(Exclusion.COPY_ON_WRITE) or not self.offers("copy_on_write"):
            return
        target = run.boundary(tokens)
        if target and run.spare_state(run.numbers[target]):
            self.do("copy_on_write", tokens=tokens)

    @rule(kind=st.sampled_from(BAD))
    @precondition(lambda self: grown(self) and "bad" not in self.run.lacks)
    def bad(self, kind: str) -> None:
        """Bad input, for engines that promise to answer it."""
        self.do("bad", kind=kind)
