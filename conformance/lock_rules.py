"""Hypothesis draws the runs of the radix tree: keys that share prefixes, tiny pools, few handles.

A rule sends what a request of the engine can send in this state, and nothing else.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from conformance.lock_ref import HANDLES, LockRefRun
from conformance.machine import Json
from conformance.stateful import Machine
from conformance.tree_slots import Key
from spec import tree

TREES = (
    ("unified", ["full", "swa"]),
    ("swa_radix", ["full", "swa"]),
    ("unified", ["full", "swa", "mamba"]),
    ("unified", ["full", "mamba"]),
)
CONFIG = {
    "page_size": st.integers(0, 1),
    "tree": st.integers(0, len(TREES) - 1),
    "size": st.integers(6, 16),  # pages
    "size_swa": st.integers(6, 16),
    "size_mamba": st.integers(2, 5),
    "window": st.integers(2, 4),
}
PAGE_SIZES = (1, 2)
lengths, forks, picks, cuts = st.integers(1, 10), st.integers(0, 6), st.integers(0, 11), st.integers(0, 4)
BAD = ("release_again", "release_swa_again", "acquire_outside", "acquire_root", "evict_held", "split_outside")


def keys(length: int, fork: int) -> list[int]:
    """Tokens 1, 2, 3 …, and others from the fork on; up to a fork two keys are the same."""
    return [n if n <= fork or not fork else 20 + n for n in range(1, length + 1)]


def grown(machine: Any) -> bool:
    """The tree has nodes."""
    return machine.run is not None and bool(machine.run.at)


def held(machine: Any) -> bool:
    """Somebody has a handle."""
    return machine.run is not None and bool(machine.run.handles())


class LockRefRuns(Machine):
    """Requests that insert, match, lock and release, and evictions between them."""

    run: LockRefRun

    @initialize(config=st.fixed_dictionaries(CONFIG))
    def start(self, config: Json) -> None:
        """A subject and a spec of a drawn size and kind."""
        sizes = [size for size in self.page_sizes if size in PAGE_SIZES]
        kind, components = TREES[config["tree"]]
        known = {name: config[name] for name in ("size", "size_swa", "size_mamba", "window")}
        known |= {"kind": kind, "components": components, "page_size": sizes[config["page_size"] % len(sizes)]}
        self.run = LockRefRun(type(self).make(known), known, self.strict, self.avoid)

    # What a caller can send now.

    def found(self, drawn: int, cut: int) -> list[int]:
        """A key of the tree, ``cut`` tokens shorter."""
        key = sorted(self.run.at)[drawn % len(self.run.at)]
        return list(key[: max(1, len(key) - cut)])

    def handle(self, drawn: int) -> int:
        """One of the handles that callers have."""
        have = self.run.handles()
        return have[drawn % len(have)]

    def cursor(self, tokens: list[int], protected: int, drawn: int) -> int:
        """Where the SWA part of the row may start."""
        run = self.run
        whole, last = len(tokens) // run.page_size * run.page_size, run.last_cursor(len(tokens))
        last = min(last, whole - run.page_size) if self.avoids("cursor_past_key") else last
        cursor = min(drawn, last) // run.page_size * run.page_size
        return cursor if run.windowed and cursor > 0 and cursor >= protected else 0

    def restores_held(self, tokens: list[int], cursor: int, protected: int) -> bool:
        """The insert meets a tombstone whose full part somebody holds."""
        state = self.run.state
        held = [(k, n) for k, n in self.run.at.items() if state.swa(n) == 0 and state.full_ref(n) > 0]
        return any(_common(k, tokens) > max(tree.begin(state, n), protected, cursor) for k, n in held)

    # Rules.

    @rule(length=lengths, fork=forks, cursor=picks, shared=st.booleans())
    def insert(self, length: int, fork: int, cursor: int, shared: bool) -> None:
        """A request caches its row; it may have its prefix from the tree."""
        tokens = keys(length, fork)
        mine = [len(key) for key in self.run.held_keys() if key == Key(tokens[: len(key)])]
        protected = max(mine, default=0) if shared else 0
        cursor = self.cursor(tokens, protected, cursor)
        if not (self.avoids("restore_held") and self.restores_held(tokens, cursor, protected)):
            self.do("insert", tokens=tokens, cursor=cursor, protected=protected)

    @rule(drawn=picks, cut=cuts)
    @precondition(grown)
    def match(self, drawn: int, cut: int) -> None:
        """A request looks for its prefix."""
        self.do("match", tokens=self.found(drawn, cut))

    @rule(drawn=picks, cut=cuts)
    @precondition(grown)
    def acquire(self, drawn: int, cut: int) -> None:
        """A request locks its prefix."""
        tokens, free = self.found(drawn, cut), set(range(1, HANDLES + 1)) - set(self.run.handles())
        if free and len(tokens) >= self.run.page_size:
            self.do("acquire", handle=min(free), tokens=tokens)

    @rule(drawn=picks, caller=st.sampled_from(("request", "session", "temporary")))
    @precondition(held)
    def release(self, drawn: int, caller: str) -> None:
        """A request ends, a session ends, or a lock around one call."""
        handle = self.handle(drawn)
        early = handle in self.run.early
        if early and (caller == "temporary" or (caller == "session" and self.avoids("session_after_early"))):
            caller = "request"
        self.do("release", handle=handle, caller=caller)

    @rule(drawn=picks)
    @precondition(held)
    def release_swa(self, drawn: int) -> None:
        """A request has decoded past its window."""
        handle = self.handle(drawn)
        known = self.avoids("early_release") or (self.run.stateful and self.avoids("early_release_state"))
        if not known and self.run.releasable(handle) and self.offered("release_swa"):
            self.do("release_swa", handle=handle)

    @rule(part=picks, amount=st.integers(1, 4), all_parts=st.booleans())
    @precondition(grown)
    def evict(self, part: int, amount: int, all_parts: bool) -> None:
        """Somebody needs room, of one component or of all."""
        have = self.run.components
        wanted = have if all_parts and amount == 1 else (have[part % len(have)],)
        self.do("evict", **{name: amount for name in have if name in wanted})

    @rule(drawn=picks, cut=cuts)
    @precondition(grown)
    def copy_on_write(self, drawn: int, cut: int) -> None:
        """A request wants a state of its own; one that nobody can give up is not asked for."""
        tokens = self.found(drawn, cut)
        if not self.run.stateful or self.avoids("copy_on_write") or not self.offered("copy_on_write"):
            return
        target = self.run.boundary(tokens)
        if target and self.run.spare_state(self.run.at[target]):
            self.do("copy_on_write", tokens=tokens)

    @rule(kind=st.sampled_from(BAD))
    @precondition(lambda self: grown(self) and self.run.subject.traits.rejects)
    def bad(self, kind: str) -> None:
        """Bad input, for subjects that promise to answer it."""
        self.do("bad", kind=kind)


def _common(key: Key, tokens: list[int]) -> int:
    same = 0
    while same < min(len(key), len(tokens)) and key[same] == tokens[same]:
        same += 1
    return same
