"""Locks on the nodes of a tree: law by law, errors that change nothing, random runs beside a model in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import locks
from impl.lock_ref import LockHandle, LockTree

TABLES = ("parent", "start", "stop", "alive", "swa", "mamba", "full_ref", "swa_ref", "mamba_ref", "token", "born")
SIZES = tuple(f"{part}_{kind}_size" for part in ("full", "swa", "mamba") for kind in ("evictable", "protected"))


def sizes(tree: LockTree) -> list[int]:
    return [getattr(tree, name)() for name in SIZES]


def seen(tree: LockTree) -> dict[str, Any]:
    """Everything that a call may change."""
    tables = {name: getattr(tree, name).tolist() for name in TABLES}
    handles = {h.number: (h.node, h.top, h.state) for h in tree.active}
    return tables | {"sizes": sizes(tree), "paths": tree.paths.table.tolist(), "handles": handles}


def nodes(tree: LockTree, name: str) -> dict[int, int]:
    """The counts that are not zero."""
    return {n: count for n, count in enumerate(getattr(tree, name).tolist()) if count}


@pytest.fixture
def tree() -> LockTree:
    """1 has tokens 0..4, 2 below it 4..10, 3 below that 10..12; 4 lies beside 2 with 4..6; the window is 4."""
    tree = LockTree(8, window=4, stateful=True, debug=True)
    one = tree.add_leaf(0, 4)
    two = tree.add_leaf(one, 10, mamba=True)
    tree.add_leaf(two, 12)
    tree.add_leaf(one, 6)
    return tree


def test_an_empty_tree_has_nothing() -> None:
    tree = LockTree(3, window=1)
    assert sizes(tree) == [0] * 6
    assert tree.acquire([]) == []
    tree.release([])
    tree.release_swa([])
    tree.check()


@pytest.mark.parametrize(
    ("node", "full", "swa", "top"),
    [(1, {1: 1}, {1: 1}, 1), (2, {1: 1, 2: 1}, {2: 1}, 2), (3, {1: 1, 2: 1, 3: 1}, {2: 1, 3: 1}, 2),
     (4, {1: 1, 4: 1}, {1: 1, 4: 1}, 1)],
)  # fmt: skip
def test_a_lock_goes_to_the_root_and_its_swa_part_until_the_window_is_filled(
    tree: LockTree, node: int, full: dict[int, int], swa: dict[int, int], top: int
) -> None:
    before = seen(tree)
    (handle,) = tree.acquire([node])
    assert (nodes(tree, "full_ref"), nodes(tree, "swa_ref")) == (full, swa)
    assert (handle.node, handle.top, handle.active, handle.holds_swa) == (node, top, True, True)
    spans = {1: 4, 2: 6, 3: 2, 4: 2}
    assert tree.full_protected_size() == sum(spans[n] for n in full)
    assert tree.swa_protected_size() == sum(spans[n] for n in swa)
    assert tree.full_evictable_size() + tree.full_protected_size() == 14
    tree.release([handle])
    assert not handle.active
    assert not handle.holds_swa
    assert seen(tree) == before


def test_a_node_that_fills_the_window_exactly_is_its_end() -> None:
    tree = LockTree(3, window=4, debug=True)
    top = tree.add_leaf(tree.add_leaf(0, 2), 6)
    handle = tree.acquire([top])[0]
    assert (handle.top, nodes(tree, "swa_ref")) == (2, {2: 1})


def test_a_state_is_held_by_its_own_node_alone(tree: LockTree) -> None:
    handles = tree.acquire([2, 3])
    assert nodes(tree, "mamba_ref") == {2: 1}
    assert [h.state for h in handles] == [True, False]
    assert (tree.mamba_evictable_size(), tree.mamba_protected_size()) == (0, 1)
    tree.set_mamba(3)  # after the lock: the handle does not hold it
    tree.release(handles[1:])
    assert nodes(tree, "mamba_ref") == {2: 1}


def test_a_batch_counts_every_request_and_moves_a_node_once(tree: LockTree) -> None:
    handles = tree.acquire(torch.tensor([2, 3, 2, 4], dtype=torch.int32))
    assert nodes(tree, "full_ref") == {1: 4, 2: 3, 3: 1, 4: 1}
    assert nodes(tree, "swa_ref") == {1: 1, 2: 3, 3: 1, 4: 1}
    assert sizes(tree) == [0, 14, 0, 14, 0, 1]
    tree.release(handles[:2])
    assert sizes(tree) == [2, 12, 2, 12, 0, 1]
    tree.release(handles[2:])
    assert sizes(tree) == [14, 0, 14, 0, 1, 0]


def test_an_early_release_gives_back_the_swa_part_alone(tree: LockTree) -> None:
    first, second = tree.acquire([3, 3])
    tree.release_swa([first])
    assert (first.active, first.holds_swa, first.top) == (True, False, 0)
    assert (nodes(tree, "swa_ref"), nodes(tree, "full_ref")[3]) == ({2: 1, 3: 1}, 2)
    tree.release_swa([second])
    tree.evict_swa(3)
    tree.release([second, first])
    assert sizes(tree)[:4] == [14, 0, 12, 0]


def test_a_split_copies_locks_and_takes_the_boundary(tree: LockTree) -> None:
    ended, below, beside = tree.acquire([2, 3, 4])
    token = int(tree.token[2])
    before = sizes(tree)
    new = tree.split(2, 7)
    assert (int(tree.parent[2]), int(tree.parent[new]), int(tree.start[2]), int(tree.stop[new])) == (new, 1, 7, 7)
    assert (int(tree.token[new]), bool(tree.mamba[2]), bool(tree.mamba[new])) == (token, True, False)
    assert [h.top for h in (ended, below, beside)] == [new, new, 1]
    assert nodes(tree, "swa_ref") == {1: 1, 2: 2, 3: 1, 4: 1, new: 2}
    assert sizes(tree) == before
    later = tree.acquire([3])[0]
    assert later.top == 2  # 7..12 fills the window now
    tree.release([ended, below, beside, later])
    assert not nodes(tree, "full_ref")
    assert sizes(tree) == [14, 0, 14, 0, 1, 0]


def test_a_path_may_grow_by_any_number_of_splits_and_leaves() -> None:
    tree = LockTree(60, window=3, debug=True)
    node = tree.add_leaf(0, 30)
    handle = tree.acquire([node])
    for at in range(1, 30):
        tree.split(node, at)
    leaf = node
    for stop in range(31, 50):
        leaf = tree.add_leaf(leaf, stop)
    tree.release(handle)
    assert sizes(tree) == [49, 0, 49, 0, 0, 0]
    tree.acquire([leaf])
    assert (tree.full_protected_size(), tree.swa_protected_size()) == (49, 3)


def test_only_what_the_window_covers_is_lockable(tree: LockTree) -> None:
    tree.evict_swa(1)
    assert tree.lockable([0, 1, 2, 3, 4, 5]).tolist() == [False, False, True, True, False, False]
    tree.evict_swa(2)
    assert tree.lockable(torch.tensor([2, 3])).tolist() == [False, False]
    tree.restore(2)
    tree.restore(1)
    assert tree.lockable([1, 2, 3, 4]).all()


def test_a_node_number_is_used_again_and_its_old_handles_stay_released(tree: LockTree) -> None:
    old = tree.acquire([3])
    tree.release(old)
    tree.evict_leaf(3)
    assert tree.add_leaf(4, 9) == 3
    new = tree.acquire([3])
    assert (new[0].number, nodes(tree, "full_ref")) == (old[0].number, {1: 1, 3: 1, 4: 1})
    with pytest.raises(ValueError, match="released already"):
        tree.release(old)


def test_without_window_and_states_only_the_full_part_is_there() -> None:
    tree = LockTree(4, window=0, windowed=False, debug=True)
    leaf = tree.add_leaf(tree.add_leaf(0, 2), 5, swa=True, mamba=True)
    handles = tree.acquire([leaf, leaf])
    assert (nodes(tree, "swa_ref"), nodes(tree, "mamba_ref"), handles[0].top) == ({}, {}, 0)
    assert sizes(tree) == [0, 5, 0, 0, 0, 0]
    new = tree.split(leaf, 3)
    with pytest.raises(ValueError, match="holds no SWA part"):
        tree.release_swa(handles)
    with pytest.raises(ValueError, match="the tree has no SWA part"):
        tree.restore(new)
    with pytest.raises(ValueError, match="the tree has no mamba states"):
        tree.set_mamba(new)
    tree.release(handles)
    assert sizes(tree) == [5, 0, 0, 0, 0, 0]


Act = Callable[[LockTree, list[LockHandle]], object]
# On the tree of the fixture with handles on 2 (released), 3 (its SWA part released), 4; node 5 is a tombstone on 3.
WRONG: dict[str, tuple[Act, str]] = {
    "lock the root": (lambda t, _: t.acquire([4, 0]), "node 0 cannot be locked"),
    "lock a dead node": (lambda t, _: t.acquire([4, 7]), "node 7 cannot be locked"),
    "lock over a tombstone": (lambda t, _: t.acquire([4, 5]), "nodes: node 5 .* tombstone"),
    "lock beyond the tree": (lambda t, _: t.acquire([4, 9]), "nodes must lie within"),
    "lock below the root": (lambda t, _: t.acquire(torch.tensor([-1])), "nodes must lie within"),
    "lock a table": (lambda t, _: t.acquire(torch.ones((1, 1), dtype=torch.int64)), "nodes must have one dimension"),
    "ask for a node beyond": (lambda t, _: t.lockable([9]), "nodes must lie within"),
    "release twice": (lambda t, h: t.release([h[2], h[0]]), r"handles\[1\] is released already"),
    "release in one batch twice": (lambda t, h: t.release([h[1], h[2], h[1]]), r"handles\[2\] is in the batch twice"),
    "release another's": (lambda t, h: t.release([h[2], *other()]), r"handles\[1\] is of another tree"),
    "release the SWA part twice": (lambda t, h: t.release_swa([h[2], h[1]]), r"handles\[1\] holds no SWA part"),
    "release the SWA part late": (lambda t, h: t.release_swa([h[0]]), r"handles\[0\] is released already"),
    "the SWA part in one batch twice": (lambda t, h: t.release_swa([h[2], h[2]]), "in the batch twice"),
    "another's SWA part": (lambda t, _: t.release_swa(other()), r"handles\[0\] is of another tree"),
    "look at a released handle": (lambda _, h: h[0].node, "released"),
    "evict a held leaf": (lambda t, _: t.evict_leaf(4), "node 4 is held"),
    "evict an inner node": (lambda t, _: t.evict_leaf(3), "not a leaf"),
    "evict the root": (lambda t, _: t.evict_leaf(0), "node must be a node below the root"),
    "evict a dead node": (lambda t, _: t.evict_leaf(8), "there is no node 8"),
    "evict beyond": (lambda t, _: t.evict_leaf(99), "there is no node 99"),
    "evict a held SWA part": (lambda t, _: t.evict_swa(4), "SWA part is held"),
    "evict a tombstone": (lambda t, _: t.evict_swa(5), "has no SWA part"),
    "evict a held state": (lambda t, _: t.evict_mamba(4), "state is held"),
    "evict no state": (lambda t, _: t.evict_mamba(3), "has no mamba state"),
    "restore what a reader has": (lambda t, _: t.restore(6), "node 6 is held"),
    "restore what is no tombstone": (lambda t, _: t.restore(2), "not a tombstone"),
    "a second state": (lambda t, _: t.set_mamba(4), "has a mamba state already"),
    "split at the start": (lambda t, _: t.split(2, 4), "at must lie within"),
    "split at the stop": (lambda t, _: t.split(2, 10), "at must lie within"),
    "split the root": (lambda t, _: t.split(0, 1), "child must be a node below the root"),
    "a leaf without tokens": (lambda t, _: t.add_leaf(1, 4), "stop must lie behind 4"),
    "an endless leaf": (lambda t, _: t.add_leaf(1, 1 << 70), "stop must lie behind"),
    "a leaf nowhere": (lambda t, _: t.add_leaf(8, 99), "under: there is no node 8"),
    "handles are handles": (lambda t, _: t.release([4]), "handles must be LockHandle"),  # type: ignore[list-item]
    "one handle": (lambda t, h: t.release(h[2]), "sequence"),  # type: ignore[arg-type]
    "nodes are integers": (lambda t, _: t.acquire(torch.ones(1)), "nodes must hold integers"),
    "a leaf of half a token": (lambda t, _: t.add_leaf(0, 0.5), "stop must be an int"),  # type: ignore[arg-type]
}


def other() -> list[LockHandle]:
    tree = LockTree(1, window=1)
    return tree.acquire([tree.add_leaf(0, 1)])


@pytest.mark.parametrize("name", WRONG)
def test_an_error_changes_nothing(tree: LockTree, name: str) -> None:
    act, message = WRONG[name]
    tree.set_mamba(4)
    tree.add_leaf(3, 13, swa=False)
    tree.split(3, 11)  # 6, with 10..11
    handles = tree.acquire([2, 3, 4])
    tree.release(handles[:1])
    tree.release_swa(handles[1:2])
    tree.evict_swa(6)
    before = seen(tree)
    with pytest.raises((ValueError, TypeError), match=message):
        act(tree, handles)
    assert seen(tree) == before
    assert [h.active for h in handles] == [False, True, True]
    tree.release(handles[1:])
    assert not nodes(tree, "full_ref")


def test_a_full_tree_says_so_and_stays(tree: LockTree) -> None:
    for stop in range(20, 24):
        tree.add_leaf(0, stop)
    before = seen(tree)
    with pytest.raises(RuntimeError, match="the tree is full: it has room for 8 nodes"):
        tree.add_leaf(0, 1)
    with pytest.raises(RuntimeError, match="the tree is full"):
        tree.split(2, 5)
    assert seen(tree) == before


@pytest.mark.parametrize(("capacity", "window"), [(0, 1), (1, 0)])
def test_sizes_must_be_possible(capacity: int, window: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        LockTree(capacity, window=window)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.full_ref[2].add_(1), "full_ref"),
        (lambda t: t.counts.protected.add_(1), "full_protected_size"),
        (lambda t: t.swa[2].fill_(False), "holds what is not there"),
        (lambda t: t.token[2].fill_(99), "its boundary lies on its path"),
        (lambda t: t.paths.table[3, 0].fill_(4), "path of node 3"),
        (lambda t: t.stop[1].fill_(3), "start of node"),
    ],
)
def test_check_says_what_differs(tree: LockTree, spoil: Callable[[LockTree], object], message: str) -> None:
    tree.acquire([2])
    tree.check()
    spoil(tree)
    with pytest.raises(AssertionError, match=message):
        tree.check()


# Random runs beside a model: a dict of nodes, and for each handle the sets of nodes that it holds.


class Model:
    """What the tree must be, without a count: sets of holders."""

    def __init__(self, window: int, windowed: bool, stateful: bool, counting: bool) -> None:
        self.window, self.windowed, self.stateful, self.counting = window, windowed, stateful, counting
        self.parent: dict[int, int] = {}
        self.stop = {0: 0}
        self.values: dict[str, set[int]] = {"full": set(), "swa": set(), "mamba": set()}
        self.handles: list[tuple[LockHandle, dict[str, set[int]]]] = []

    def path(self, node: int) -> list[int]:
        return [] if node == 0 else [node, *self.path(self.parent[node])]

    def span(self, node: int) -> int:
        return self.stop[node] - self.stop[self.parent[node]]

    def near(self, node: int) -> set[int]:
        return {n for n in self.path(node) if self.windowed and self.stop[node] - self.stop[n] < self.window}

    def lockable(self, node: int) -> bool:
        return node in self.values["full"] and self.near(node) <= self.values["swa"]

    def lock(self, handle: LockHandle, node: int) -> None:
        near, own = self.near(node), {node} if self.stateful else set()
        swa, own = (near, own) if self.counting else (near & self.values["swa"], own & self.values["mamba"])
        self.handles.append((handle, {"full": set(self.path(node)), "swa": set(swa), "mamba": own, "window": near}))

    def mergeable(self, node: int) -> bool:
        above = self.parent.get(node, 0)
        children = [n for n, parent in self.parent.items() if parent == above]
        parts = [parts for _, parts in self.handles]
        alike = all((above in those[part]) == (node in those[part]) for those in parts for part in ("full", "swa"))
        swa = (above in self.values["swa"]) == (node in self.values["swa"])
        return above != 0 and len(children) == 1 and alike and swa and above not in self.values["mamba"]

    def merge(self, node: int) -> None:
        above = self.parent[node]
        self.parent[node] = self.parent.pop(above)
        del self.stop[above]
        for _, parts in self.handles:
            if above in parts["window"]:
                parts["window"].add(node)
        for those in (*self.values.values(), *(those for _, parts in self.handles for those in parts.values())):
            those.discard(above)

    def held(self, part: str, node: int) -> int:
        return sum(node in parts[part] for _, parts in self.handles)

    def leaf(self, node: int, under: int, stop: int, swa: bool, mamba: bool) -> None:
        self.parent[node], self.stop[node] = under, stop
        for part, there in (("full", True), ("swa", swa and self.windowed), ("mamba", mamba and self.stateful)):
            self.values[part] |= {node} if there else set()

    def cut(self, child: int, new: int, at: int) -> None:
        self.parent[new], self.parent[child], self.stop[new] = self.parent[child], new, at
        every = [self.values[part] for part in ("full", "swa")]
        every += [parts[part] for _, parts in self.handles for part in ("full", "swa", "window")]
        for those in every:
            those.update({new} if child in those else ())

    def sizes(self) -> list[int]:
        found = []
        for part, there in self.values.items():
            for held in (False, True):
                which = [n for n in there if (self.held(part, n) > 0) == held]
                found.append(len(which) if part == "mamba" else sum(map(self.span, which)))
        return found


CAPACITY = 12


class Both:
    """The tree and the model, moved together."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        window, windowed, stateful, counting = self.number(1, 6), self.flag(), self.flag(), self.flag()
        self.model = Model(window, windowed, stateful, counting)
        self.tree, self.single = (
            LockTree(CAPACITY, window=window, windowed=windowed, stateful=stateful, counting=counting) for _ in range(2)
        )
        self.twin: dict[LockHandle, LockHandle] = {}

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def flag(self) -> bool:
        return self.draw(st.booleans())

    def both(self, call: str, *arguments: Any, **named: Any) -> Any:
        answers = [getattr(tree, call)(*arguments, **named) for tree in (self.tree, self.single)]
        assert answers[0] == answers[1]
        return answers[0]

    def add_leaf(self) -> None:
        under = self.draw(st.sampled_from([0, *self.model.values["full"]]))
        stop, flags = self.model.stop[under] + self.number(1, 5), [self.flag(), self.flag()]
        if len(self.model.parent) < CAPACITY:
            node = self.both("add_leaf", under, stop, swa=flags[0], mamba=flags[1])
            self.model.leaf(node, under, stop, *flags)

    def split(self) -> None:
        nodes = [n for n in self.model.parent if self.model.span(n) > 1]
        if nodes and len(self.model.parent) < CAPACITY:
            child = self.draw(st.sampled_from(nodes))
            at = self.number(self.model.stop[child] - self.model.span(child) + 1, self.model.stop[child] - 1)
            self.model.cut(child, self.both("split", child, at), at)

    def acquire(self) -> None:
        batch = self.draw(st.lists(st.integers(0, CAPACITY), max_size=4))
        fine = [self.model.lockable(n) for n in batch]
        assert self.tree.lockable(batch).tolist() == fine
        if not all(fine):
            self.refused("acquire", batch)
            batch = [n for n, ok in zip(batch, fine, strict=True) if ok]
        for node, handle in zip(batch, self.tree.acquire(batch), strict=True):
            self.model.lock(handle, node)
            (self.twin[handle],) = self.single.acquire([node])

    def acquire_over_tombstones(self) -> None:
        batch = self.draw(st.lists(st.sampled_from([*self.model.values["full"], 0]), max_size=4))
        if 0 in batch:
            return
        for node, handle in zip(batch, self.tree.acquire(batch, over_tombstones=True), strict=True):
            self.model.lock(handle, node)
            (self.twin[handle],) = self.single.acquire([node], over_tombstones=True)

    def merge(self) -> None:
        node = self.number(0, CAPACITY)
        if not self.model.mergeable(node):
            return self.refused("merge", node)
        assert self.both("merge", node) == self.model.parent[node]
        self.model.merge(node)
        return None

    def release(self) -> None:
        handles = self.some(self.model.handles)
        self.tree.release([h for h, _ in handles])
        for entry in handles:
            self.single.release([self.twin[entry[0]]])
            self.model.handles.remove(entry)

    def release_swa(self) -> None:
        handles = self.some([entry for entry in self.model.handles if entry[1]["window"]])
        with_state = self.flag()
        self.tree.release_swa([h for h, _ in handles], with_state=with_state)
        for handle, parts in handles:
            self.single.release_swa([self.twin[handle]], with_state=with_state)
            parts["swa"], parts["window"] = set(), set()
            parts["mamba"] = set() if with_state else parts["mamba"]

    def change(self) -> None:
        """Evicts or restores something, or is refused."""
        calls = ["evict_leaf", "evict_swa", "evict_mamba", "restore", "restore_swa", "set_mamba"]
        call = self.draw(st.sampled_from(calls))
        node, m = self.number(0, CAPACITY), self.model
        part = {"evict_leaf": "full", "evict_swa": "swa", "restore": "swa", "restore_swa": "swa"}.get(call, "mamba")
        there = m.values[part]
        if call in ("restore", "restore_swa", "set_mamba"):
            exists = m.stateful if call == "set_mamba" else m.windowed
            fine = exists and node in m.values["full"] - there and not (call == "restore" and m.held("full", node))
        else:
            fine = node in there and not m.held(part, node)
            fine = fine and not (call == "evict_leaf" and node in m.parent.values())
        if not fine:
            return self.refused(call, node)
        self.both(call, node)
        there ^= {node}
        if call == "evict_leaf":
            del m.parent[node], m.stop[node]
            for values in m.values.values():
                values.discard(node)
        return None

    def some(self, handles: list[Any]) -> list[Any]:
        return [h for h in self.draw(st.permutations(handles)) if self.flag()]

    def refused(self, call: str, argument: Any) -> None:
        before = seen(self.tree)
        with pytest.raises(ValueError, match="node"):
            getattr(self.tree, call)(argument)
        assert seen(self.tree) == before

    def compare(self) -> None:
        m = self.model
        self.tree.check()
        assert set((self.tree.alive).nonzero()[:, 0].tolist()) == m.values["full"]
        for part, there in m.values.items():
            assert nodes(self.tree, f"{part}_ref") == {n: m.held(part, n) for n in m.parent if m.held(part, n)}
            if part != "full":
                assert set(getattr(self.tree, part).nonzero()[:, 0].tolist()) == there
        assert sizes(self.tree) == m.sizes()
        for handle, parts in m.handles:
            assert handle.top == min(parts["window"], key=m.stop.__getitem__, default=0)
        one, two = seen(self.tree), seen(self.single)
        assert one | {"handles": {}} == two | {"handles": {}}


STEPS = (
    *("add_leaf", "split", "merge", "acquire", "acquire_over_tombstones"),
    *("release", "release_swa", "change"),
)


@given(st.data())
def test_any_run_is_as_the_model_says_and_a_batch_is_as_one_after_the_other(data: st.DataObject) -> None:
    run = Both(data)
    for step in data.draw(st.lists(st.sampled_from(STEPS), min_size=5, max_size=30)):
        getattr(run, step)()
        run.compare()
    run.tree.release([h for h, _ in run.model.handles])
    assert not any(nodes(run.tree, f"{part}_ref") for part in run.model.values)
    assert sizes(run.tree)[1::2] == [0, 0, 0]


def test_the_benchmark_leaves_nothing_held() -> None:
    shape = locks.Shape.drawn(50)
    tree = locks.own_tree(shape, torch.device("cpu"))
    assert tree.parent[1:].tolist() == list(shape.parents)
    tree.release(tree.acquire(shape.requests(64)))
    assert sizes(tree) == [50 * locks.SPAN, 0, 50 * locks.SPAN, 0, 0, 0]
    tree.check()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_locks_do_not_wait_for_the_device() -> None:
    tree = LockTree(8, window=4, stateful=True, device="cuda")
    two = tree.add_leaf(tree.add_leaf(0, 4), 10, mamba=True)
    wanted = torch.tensor([two, 1, two], device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        handles = tree.acquire(wanted)
        tree.release_swa(handles[:1])
        tree.release(handles[:2])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    tree.check()
    assert sizes(tree) == [0, 10, 4, 6, 0, 1]


@pytest.mark.parametrize("kind", [{}, {"counting": True}, {"windowed": False}, {"stateful": True, "counting": True}])
def test_one_lock_at_a_time_counts_what_a_batch_counts(kind: dict[str, Any]) -> None:
    """On a CPU a single lock takes a way of its own."""
    trees = [LockTree(12, window=3, debug=True, **kind) for _ in range(2)]
    for tree in trees:
        for under, stop in ((0, 4), (1, 6), (2, 9), (2, 8), (4, 20)):
            tree.add_leaf(under, stop, swa=stop != 6, mamba=stop in (6, 20))
    wanted = [3, 4, 5, 3, 1]
    handles = trees[0].acquire(wanted, over_tombstones=True)
    alone = [trees[1].acquire([node], over_tombstones=True)[0] for node in wanted]
    for count in (0, 2, 5):
        trees[0].release(handles[:count])
        for handle in alone[:count]:
            trees[1].release([handle])
        del handles[:count], alone[:count]
        assert torch.equal(trees[0].counts.ref, trees[1].counts.ref)
        assert torch.equal(trees[0].counts.protected, trees[1].counts.protected)
        assert [(h.node, h.top, h.state) for h in handles] == [(h.node, h.top, h.state) for h in alone]
