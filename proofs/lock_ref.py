"""What the provers need for the locks of the tree: a small world, calls to try, mutants and proof hints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs.hints import COMMON, Hints, Mutant, altered, idlers, unasked
from spec import lock_ref as law
from spec.holders import shifted
from spec.lock_ref_state import HELD, ROOT, SKIPPED, LockRefState, between, lives, over, path, span
from spec.logic import Number, Step, Truth, but, no, requires

SIZES = {"nodes": 3, "handles": 2, "window": 2}


def small() -> tuple[LockRefState, ...]:
    """Room for three nodes and two handles, a window of two tokens, all three components."""
    return (law.initial(nodes=3, handles=2, window=2, windowed=True, stateful=True),)


def alive(st: LockRefState) -> list[int]:
    """The nodes of the tree."""
    return [n for n in st.nodes.items() if lives(st, n)]


def unused(st: LockRefState) -> list[int]:
    """The next node number that is not in the tree, if there is one."""
    return [n for n in st.nodes.items() if not lives(st, n)][:1]


def active(st: LockRefState) -> list[int]:
    """The handles that are active."""
    return [h for h in st.handles.items() if st.active(h) == 1]


def _acquire(st: LockRefState) -> Iterator[tuple[int, int, int, bool]]:
    """A handle, every node, and every node on its path as the top of the window; the law accepts what is lawful."""
    fresh = [h for h in st.handles.items() if st.active(h) != 1][:1]
    yield from (
        (h, n, top, counting)
        for h in (*fresh, *active(st))
        for n in alive(st)
        for top in path(st, n)
        for counting in (False, True)
    )


def splits(st: LockRefState) -> Iterator[tuple[int, int, int]]:
    """Every node, cut at every place inside its key."""
    for child in alive(st):
        for new in unused(st):
            yield from ((child, new, at) for at in range(st.stop(child) - span(st, child) + 1, st.stop(child)))


def _add_leaf(st: LockRefState) -> Iterator[tuple[Any, ...]]:
    source = _sources(st)[-1]
    for under in (ROOT, *alive(st)):
        first = 0 if under == ROOT else st.stop(under)
        for leaf in unused(st):
            for size in (1, 2, 0):
                yield from ((under, leaf, first + size, source, swa, swa) for swa in (True, False))


def _sources(st: LockRefState) -> list[int]:
    """The numbers of the inserts whose slots are in the tree, and the next number."""
    known = sorted({st.source(n) for n in alive(st)})
    return [*known, 1 + max(known, default=0)]


def _each_node(st: LockRefState) -> Iterator[tuple[int]]:
    yield from ((n,) for n in alive(st))


MOVES = {
    "acquire": _acquire,
    "release": lambda st: ((h,) for h in active(st)),
    "release_swa": lambda st: ((h,) for h in active(st)),
    "release_state": lambda st: ((h,) for h in active(st)),
    "split": splits,
    "add_leaf": _add_leaf,
    "restore": lambda st: ((n, source) for n in alive(st) for source in _sources(st)),
    "restore_swa": _each_node,
    "merge": lambda st: ((n, st.parent(n)) for n in alive(st)),
    "set_mamba": _each_node,
    "evict_leaf": _each_node,
    "evict_swa": _each_node,
    "evict_mamba": _each_node,
}


# Mutants: what each transition would do without one line of the law.


def keeps_dead_paths(st: LockRefState, node: Number) -> Step[LockRefState]:
    """A leaf is evicted, and ``above`` still relates it to itself."""
    return altered(law.evict_leaf(st, node), above=st.above)


def forgets_ancestors(
    st: LockRefState, under: Number, leaf: Number, stop: Number, source: Number, with_swa: Truth, with_mamba: Truth
) -> Step[LockRefState]:
    """Of the ancestors of a new leaf only its parent is recorded."""
    step = law.add_leaf(st, under, leaf, stop, source, with_swa, with_mamba)
    near = step.then.above.where(
        lambda a, n: (n == leaf) & (a != leaf) & (a != under), 0, lambda: [(a, leaf) for a in st.nodes.items()]
    )
    return altered(step, above=near)


def hangs_under_all(
    st: LockRefState, under: Number, leaf: Number, stop: Number, source: Number, with_swa: Truth, with_mamba: Truth
) -> Step[LockRefState]:
    """Every node whose key ends before a new leaf becomes an ancestor of the leaf."""
    step = law.add_leaf(st, under, leaf, stop, source, with_swa, with_mamba)
    every = step.then.above.where(
        lambda a, n: (n == leaf) & lives(st, a) & (st.stop(a) <= stop) & (a != leaf),
        1,
        lambda: [(a, leaf) for a in st.nodes.items()],
    )
    return altered(step, above=every)


def keeps_old_parent(st: LockRefState, child: Number, new: Number, at: Number) -> Step[LockRefState]:
    """A split leaves the child under its old parent."""
    step = law.split(st, child, new, at)
    return altered(step, parent=st.parent.put(new, st.parent(child)))


def empty_leaf(
    st: LockRefState, under: Number, leaf: Number, stop: Number, source: Number, with_swa: Truth, with_mamba: Truth
) -> Step[LockRefState]:
    """A leaf is added whose key has no tokens."""
    return unasked(
        law.add_leaf(st, under, leaf, stop, source, with_swa, with_mamba), "the leaf's key has at least one token"
    )


def second_state(st: LockRefState, node: Number) -> Step[LockRefState]:
    """The mamba flag of a node becomes 2, which is neither set nor unset."""
    step = law.set_mamba(st, node)
    return altered(step, mamba=st.mamba.put(node, 2), mamba_evictable=st.mamba_evictable)


def evicts_held_leaf(st: LockRefState, node: Number) -> Step[LockRefState]:
    """A leaf is evicted that a handle holds."""
    return unasked(law.evict_leaf(st, node), "nobody holds the node")


def stops_early(st: LockRefState, handle: Number, node: Number, top: Number, counting: Truth) -> Step[LockRefState]:
    """The SWA part of a lock ends before the window is full."""
    step = law.acquire(st, handle, node, top, counting)
    return unasked(step, "the SWA part ends at the first node where the window is full")


def locks_the_whole_path(
    st: LockRefState, handle: Number, node: Number, top: Number, counting: Truth
) -> Step[LockRefState]:
    """The SWA part of a lock goes on to the root, also where the window is full below it."""
    step = stops_early(st, handle, node, top, counting)
    whole = (top == ROOT) | (lives(st, top) & over(st, top, node) & (st.parent(top) == ROOT))
    return but(step, promises=(*step.promises, requires(whole, "the SWA part ends below the root")))


def evicts_held_swa(st: LockRefState, node: Number) -> Step[LockRefState]:
    """An SWA part is evicted that a handle holds."""
    return unasked(law.evict_swa(st, node), "nobody holds the node's SWA part")


def splits_without_locks(st: LockRefState, child: Number, new: Number, at: Number) -> Step[LockRefState]:
    """The new parent of a split starts without locks, though handles on nodes below it hold it."""
    return altered(law.split(st, child, new, at), full_ref=st.full_ref.put(new, 0), swa_ref=st.swa_ref.put(new, 0))


def walks_to_root(st: LockRefState, handle: Number) -> Step[LockRefState]:
    """A release goes past the top of its window up to the root, and takes SWA locks of others (SGLang PR 27038)."""
    step = law.release(st, handle)
    node, top, then = st.node(handle), st.top(handle), step.then
    beyond = st.nodes.such(
        lambda n: over(st, n, node) & (top != ROOT) & no(between(st, top, n, node)),
        lambda: path(st, node),
    )
    swa_ref, size = shifted(beyond, st.nodes, then.swa_ref, -1, lambda n: st.swa(n) == 1, lambda n: span(st, n))
    evictable, protected = then.swa_evictable + size, then.swa_protected - size
    return altered(step, swa_ref=swa_ref, swa_evictable=evictable, swa_protected=protected)


def releases_skipped(st: LockRefState, handle: Number) -> Step[LockRefState]:
    """A release forgets which tombstones the handle skipped, and lowers their SWA lock counts too."""
    step = law.release(st, handle)
    node, top, then = st.node(handle), st.top(handle), step.then
    skipped = st.nodes.such(
        lambda n: between(st, top, n, node) & (st.grip(handle, n) == SKIPPED) & (st.swa_ref(n) > 0),
        lambda: path(st, node),
    )
    swa_ref, size = shifted(skipped, st.nodes, then.swa_ref, -1, lambda n: st.swa(n) == 1, lambda n: span(st, n))
    evictable, protected = then.swa_evictable + size, then.swa_protected - size
    return altered(step, swa_ref=swa_ref, swa_evictable=evictable, swa_protected=protected)


def splits_without_skips(st: LockRefState, child: Number, new: Number, at: Number) -> Step[LockRefState]:
    """A skipped tombstone is split, and the handle does not know that it skips the new parent too."""
    step = law.split(st, child, new, at)
    known = step.then.grip.where(
        lambda h, n: st.handles.has(h) & (n == new), HELD, lambda: [(h, new) for h in st.handles.items()]
    )
    return altered(step, grip=known)


def protects_tombstones(
    st: LockRefState, handle: Number, node: Number, top: Number, counting: Truth
) -> Step[LockRefState]:
    """A lock that counts tombstones moves their tokens to the protected SWA size, though they have no SWA slots."""
    step = law.acquire(st, handle, node, top, counting)
    bare = st.nodes.such(
        lambda n: counting & between(st, top, n, node) & (st.swa(n) == 0) & (st.swa_ref(n) == 0),
        lambda: path(st, node),
    )
    return altered(step, swa_protected=step.then.swa_protected + bare.total(lambda n: span(st, n)))


def revives_as_evictable(st: LockRefState, node: Number) -> Step[LockRefState]:
    """A counted tombstone comes to life, and its tokens go to the evictable size, though handles hold them."""
    step, size = law.restore_swa(st, node), span(st, node)
    return altered(step, swa_evictable=st.swa_evictable + size, swa_protected=st.swa_protected)


def revives_unheld(st: LockRefState, node: Number) -> Step[LockRefState]:
    """A counted tombstone comes to life, and the handles that count it do not hold its SWA part."""
    return altered(law.restore_swa(st, node), grip=st.grip)


def merges_unlike(st: LockRefState, node: Number, above: Number) -> Step[LockRefState]:
    """A node takes in its parent, and the lock of a handle ends at the parent."""
    return unasked(law.merge(st, node, above), "every handle holds both nodes alike")


def merges_half_held(st: LockRefState, node: Number, above: Number) -> Step[LockRefState]:
    """A node takes in its parent, of which a handle holds the SWA part and of the node not, or the other way round."""
    step = merges_unlike(st, node, above)
    named = st.handles.all(lambda h: (st.active(h) != 1) | (st.node(h) != above))
    return but(step, promises=(*step.promises, requires(named, "no handle names the parent")))


def loses_window_end(st: LockRefState, node: Number, above: Number) -> Step[LockRefState]:
    """Two nodes become one, and a handle whose window ended at the upper one does not know its end any more."""
    return altered(law.merge(st, node, above), top=st.top)


def keeps_state_lock(st: LockRefState, handle: Number) -> Step[LockRefState]:
    """A release does not give back the lock on the mamba state."""
    return altered(law.release(st, handle), mamba_ref=st.mamba_ref)


def keeps_state_flag(st: LockRefState, handle: Number) -> Step[LockRefState]:
    """A handle gives its mamba state back early, and its release gives the state back again."""
    return altered(law.release_state(st, handle), state=st.state)


def restores_under_reader(st: LockRefState, node: Number, source: Number) -> Step[LockRefState]:
    """A tombstone takes over new slots, and a handle still holds the old ones."""
    return unasked(law.restore(st, node, source), "nobody holds the node whose full slots are replaced")


def reuses_slots(st: LockRefState, node: Number, source: Number) -> Step[LockRefState]:
    """A tombstone takes over slots of an insert that belong to a node on another path."""
    return unasked(law.restore(st, node, source), "all other slots of the insert belong to ancestors")


def evicts_nothing(st: LockRefState, node: Number) -> Step[LockRefState]:
    """An eviction of an SWA part that changes nothing: a caller that needs pages asks for ever."""
    return but(law.evict_swa(st, node), then=st)


def locks_again(st: LockRefState, handle: Number, node: Number, top: Number, counting: Truth) -> Step[LockRefState]:
    """A handle that is active is released, and locks another node under the eyes of its owner."""
    free = law.release(st, handle).only_where(st.active(handle) == 1, st)
    return law.acquire(free.then, handle, node, top, counting)


def _forgets(transition: str, size: str) -> Any:
    """The transition that leaves one of the sizes unchanged."""
    lawful = law.stem.transitions[transition]

    def acquire(st: LockRefState, handle: Number, node: Number, top: Number, counting: Truth) -> Step[LockRefState]:
        """A lock leaves one of the sizes as it was."""
        return altered(lawful(st, handle, node, top, counting), **{size: getattr(st, size)})

    def evict(st: LockRefState, node: Number) -> Step[LockRefState]:
        """An eviction leaves one of the sizes as it was."""
        return altered(lawful(st, node), **{size: getattr(st, size)})

    return acquire if transition == "acquire" else evict


def holds_uncounted(st: LockRefState, handle: Number, node: Number, top: Number, counting: Truth) -> Step[LockRefState]:
    """A handle holds the full parts of its nodes, and no lock count says so."""
    return altered(law.acquire(st, handle, node, top, counting), full_ref=st.full_ref)


def counts_nobody(st: LockRefState, handle: Number) -> Step[LockRefState]:
    """A handle is released, and its node stays counted as locked."""
    return altered(law.release(st, handle), full_ref=st.full_ref)


def releases_again(st: LockRefState, handle: Number) -> Step[LockRefState]:
    """A handle is released that was released before: its nodes are counted down a second time."""
    step = unasked(law.release(st, handle), "the handle is active")
    named = st.handles.has(handle) & lives(st, st.node(handle))
    return but(step, promises=(requires(named, "the handle was taken for a node that is in the tree"),))


def _used(st: LockRefState) -> Iterator[tuple[int]]:
    """The handles that were ever taken."""
    yield from ((h,) for h in st.handles.items() if st.node(h) != ROOT)


AGAIN = {"moves": {**MOVES, "release": _used}}


def counts_down_twice(st: LockRefState, handle: Number) -> Step[LockRefState]:
    """A release counts the full lock of its node down twice."""
    step, node = law.release(st, handle), st.node(handle)
    return altered(step, full_ref=step.then.full_ref.put(node, step.then.full_ref(node) - 1))


MUTANTS = (
    Mutant("counts_nobody", "release", "counted_is_held", counts_nobody),
    Mutant("counts_an_evicted_leaf", "evict_leaf", "a_leaf_can_be_evicted", _forgets("evict_leaf", "full_evictable")),
    Mutant(
        "counts_an_evicted_swa_part",
        "evict_swa",
        "an_swa_part_can_be_evicted",
        _forgets("evict_swa", "swa_evictable"),
    ),
    Mutant(
        "counts_an_evicted_state", "evict_mamba", "a_state_can_be_evicted", _forgets("evict_mamba", "mamba_evictable")
    ),
    *idlers(
        law.stem,
        acquire="locks_as_asked",
        release_swa="gives_its_window_back",
        release_state="gives_its_state_back",
        add_leaf="grows_as_asked",
        restore="takes_the_slots",
    ),
    Mutant("holds_uncounted", "acquire", "held_is_counted", holds_uncounted),
    Mutant("releases_again", "release", "full_pairs", releases_again, AGAIN),
    Mutant("counts_down_twice", "release", "counts_are_counts", counts_down_twice),
    Mutant("keeps_dead_paths", "evict_leaf", "above_is_an_order", keeps_dead_paths),
    Mutant("forgets_ancestors", "add_leaf", "above_goes_on", forgets_ancestors),
    Mutant("hangs_under_all", "add_leaf", "paths_do_not_fork", hangs_under_all),
    Mutant("keeps_old_parent", "split", "parent_is_next", keeps_old_parent),
    Mutant("empty_leaf", "add_leaf", "keys_follow", empty_leaf),
    Mutant("second_state", "set_mamba", "values_are_flags", second_state),
    Mutant("evicts_held_leaf", "evict_leaf", "handles_stand", evicts_held_leaf),
    Mutant("stops_early", "acquire", "window_is_filled", stops_early),
    Mutant("locks_the_whole_path", "acquire", "holds_one_window_alone", locks_the_whole_path),
    Mutant("evicts_held_swa", "evict_swa", "held_is_no_tombstone", evicts_held_swa),
    Mutant("splits_without_locks", "split", "full_pairs", splits_without_locks),
    Mutant("walks_to_root", "release", "swa_pairs", walks_to_root),
    Mutant("releases_skipped", "release", "swa_pairs", releases_skipped),
    Mutant("splits_without_skips", "split", "held_is_no_tombstone", splits_without_skips),
    Mutant("protects_tombstones", "acquire", "swa_protected_is_sum", protects_tombstones),
    Mutant("revives_as_evictable", "restore_swa", "swa_evictable_is_sum", revives_as_evictable),
    Mutant("revives_unheld", "restore_swa", "held_is_no_tombstone", revives_unheld),
    Mutant("merges_unlike", "merge", "handles_stand", merges_unlike),
    Mutant("merges_half_held", "merge", "swa_evictable_is_sum", merges_half_held),
    Mutant("loses_window_end", "merge", "handles_stand", loses_window_end),
    Mutant("keeps_state_lock", "release", "mamba_pairs", keeps_state_lock),
    Mutant("keeps_state_flag", "release_state", "mamba_pairs", keeps_state_flag),
    *(
        Mutant(f"forgets_{size}", name, f"{size}_is_sum", _forgets(name, size))
        for name, size in (
            ("evict_leaf", "full_evictable"),
            ("acquire", "full_protected"),
            ("evict_swa", "swa_evictable"),
            ("acquire", "swa_protected"),
            ("evict_mamba", "mamba_evictable"),
            ("acquire", "mamba_protected"),
        )
    ),
    Mutant("evicts_nothing", "evict_swa", "evictions_end", evicts_nothing),
    Mutant("locks_again", "acquire", "handle_keeps_its_node", locks_again),
    Mutant("restores_under_reader", "restore", "readers_keep_slots", restores_under_reader),
    Mutant("reuses_slots", "restore", "own_slots", reuses_slots),
)


# Wrong transitions of known bugs; the faults of conformance use them.


def keeps_top(st: LockRefState, handle: Number) -> Step[LockRefState]:
    """A handle gives its SWA part back early, and still names it: the final release gives it back again."""
    return altered(law.release_swa(st, handle), top=st.top)


def takes_state_lock(st: LockRefState, handle: Number) -> Step[LockRefState]:
    """The early release of the SWA part also gives back the lock on the mamba state, which the handle still holds."""
    step, node = law.release_swa(st, handle), st.node(handle)
    return altered(step, mamba_ref=st.mamba_ref.put(node, st.mamba_ref(node) - st.state(handle)))


# A handle locks a path over a tombstone, which then comes to life or is split.
SKIPPED_ROUTES = {
    "release": "add_leaf acquire restore_swa acquire",
    "split": "add_leaf acquire",
    "merge": "add_leaf add_leaf acquire restore_swa",
}

HOLDS = "handles_stand above_is_an_order"
SUMS = f"{HOLDS} parent_is_next values_are_flags held_is_counted counts_are_counts"
RELEVANT_LAWS = {
    "above_is_an_order": "above_goes_on paths_do_not_fork keys_follow",
    "above_goes_on": "above_is_an_order",
    "parent_is_next": "above_is_an_order",
    "keys_follow": "above_is_an_order parent_is_next values_are_flags",
    "handles_stand": "above_is_an_order values_are_flags held_is_counted",
    "window_is_filled": "handles_stand parent_is_next",
    "held_is_no_tombstone": "handles_stand paths_do_not_fork held_is_counted",
    "full_pairs": HOLDS,
    "swa_pairs": f"{HOLDS} held_is_counted",
    "mamba_pairs": HOLDS,
    "readers_keep_slots": "handles_stand held_is_counted",
    **dict.fromkeys(("full_evictable_is_sum", "full_protected_is_sum"), f"{SUMS} full_pairs"),
    **dict.fromkeys(
        ("merge full_evictable_is_sum", "merge full_protected_is_sum"), f"{SUMS} full_pairs above_goes_on keys_follow"
    ),
    "merge held_is_no_tombstone": "handles_stand paths_do_not_fork above_is_an_order parent_is_next above_goes_on",
    "merge handles_stand": "above_is_an_order parent_is_next",
    "merge window_is_filled": "handles_stand above_is_an_order parent_is_next above_goes_on keys_follow",
    "merge swa_pairs": f"{HOLDS} above_goes_on parent_is_next paths_do_not_fork",
    "merge parent_is_next": "above_is_an_order above_goes_on paths_do_not_fork keys_follow",
    **dict.fromkeys(("swa_evictable_is_sum", "swa_protected_is_sum"), f"{SUMS} full_pairs swa_pairs"),
    "a_leaf_can_be_evicted": "full_evictable_is_sum counted_is_held held_is_counted counts_are_counts handles_stand "
    "above_is_an_order above_goes_on parent_is_next keys_follow",
    **dict.fromkeys(("mamba_evictable_is_sum", "mamba_protected_is_sum"), f"{SUMS} mamba_pairs"),
}

HINTS = Hints(
    stem=law.stem,
    over={},
    sizes=SIZES,
    small=small,
    moves=MOVES,
    places={"handle": "handles", "node": "nodes", "child": "nodes", "new": "nodes", "leaf": "nodes", "above": "nodes"},
    mutants=MUTANTS,
    routes={
        "acquire": "add_leaf add_leaf acquire",
        "restore_swa": "add_leaf acquire",
        "merge": "add_leaf evict_mamba add_leaf acquire",
    },
    relevant_laws=RELEVANT_LAWS,
    assumptions=COMMON,
)
