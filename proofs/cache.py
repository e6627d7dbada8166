"""The provers' view of the whole cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs import carried
from proofs import lock_ref as locks
from proofs import session_trim as lives
from proofs.allocator import nothing
from proofs.hints import COMMON, Hints, Mutant, altered
from proofs.lock_ref import active, alive, unused
from proofs.session_trim import requests
from spec import cache as law
from spec import lock_ref, mamba_slots, rows, session_trim, swa_mapping
from spec.finite import Seq
from spec.lengths import Length
from spec.logic import Number, Step, Truth, but, call
from spec.pool import PADDING
from spec.rows import IDLE, LEAVING, full_pool, swa_pool
from spec.tree import ROOT, begin, end, path, window_top
from spec.whole import Whole, home

SIZES = {
    **{"page_size": 1, "rows": 4, "indices": 3, "full.pages": 3, "swa.pages": 2, "limit": 1, "sessions": 1},
    **{"nodes": 2, "handles": 2, "window": 1, "window_pages": 1, "window_rest": 0},
    **{"states": 3, "requests": 1, "first_node": 2, "owners": 5},
}


def small() -> tuple[Whole, ...]:
    """Three full and two SWA pages of one slot, one request row, two nodes, one session, a window of one token.

    Three states, track buffers of two slots, with and without the second one lazy.
    """
    pools = swa_mapping.initial(page_size=1, size=3, size_swa=2, rows=4, need_sort=False)
    life = rows.initial(pools, limit=1, sessions=1, window=Length(1, 0))
    tree = lock_ref.initial(nodes=2, handles=2, window=1, windowed=True, stateful=True)
    slots = [mamba_slots.initial(3, 1, 1, nodes=3, kind=(True, True, lazy)) for lazy in (False, True)]
    return tuple(law.initial(life, tree, one) for one in slots)


def _path_pages(st: Whole, node: int) -> Seq:
    """The pages on the path to a node, place by place."""
    found = {
        i: full_pool(st.life).table(home(st, n), i)
        for n in path(st.tree, node)
        for i in range(begin(st.tree, n), st.tree.stop(n))
    }
    return Seq(found[i] for i in sorted(found))


def _locks(st: Whole) -> Iterator[tuple[int, int, int, Seq]]:
    """A new handle, a node, where its window ends, and its pages."""
    fresh = [h for h in st.tree.handles.items() if h not in active(st.tree)][:1]
    for handle in fresh:
        for node in alive(st.tree):
            tops = [t for t in path(st.tree, node) if window_top(st.tree, t, node)]
            yield from ((handle, node, top, _path_pages(st, node)) for top in tops)


def _of_life(name: str) -> Any:
    asked: Any = lives.MOVES[name]
    return lambda st: asked(st.life)


def _leave(st: Whole) -> Iterator[tuple[Any, ...]]:
    life, tree = st.life, st.tree
    for row in requests(life, LEAVING):
        unders = [n for n in (ROOT, *alive(tree)) if end(tree, n) == life.protected(row)]
        for pages in range(life.protected(row) + 1, life.committed(row) + 1):
            yield from ((row, n, leaf, pages, live) for n in unders for leaf in unused(tree) for live in (True, False))


def _leaving(st: Whole) -> list[int]:
    return requests(st.life, LEAVING)


def _slots(st: Whole) -> list[tuple[int, int]]:
    return [(s, st.handle(st.life.slot(s) - 1)) for s in st.life.sessions.items() if st.life.slot(s)]


MOVES = {
    "admit": lambda st: ((r, s, *lock) for r in requests(st.life, IDLE) for s in (0, 1) for lock in _locks(st)),
    "admit_cold": lambda st: ((r, s) for r in requests(st.life, IDLE) for s in (0, 1)),
    "extend": _of_life("extend"),
    "decode": _of_life("decode"),
    "reserve": _of_life("reserve"),
    "commit": _of_life("commit"),
    "slide": _of_life("slide"),
    "finish": _of_life("finish"),
    "come_back": lambda st: ((r, st.handle(r), *lock) for r in _leaving(st) for lock in _locks(st)),
    "come_back_cold": lambda st: ((r, *lock) for r in _leaving(st) for lock in _locks(st)),
    "leave": _leave,
    "leave_copies": _of_life("dedupe"),
    "leave_window": lambda st: ((r, n) for r in _leaving(st) for n in alive(st.tree)),
    "depart": lambda st: ((r, st.handle(r)) for r in _leaving(st)),
    "depart_cold": lambda st: ((r,) for r in _leaving(st)),
    "save": _of_life("save"),
    "restore": _of_life("restore"),
    "resume": _of_life("resume"),
    "close": _slots,
    "close_cold": lambda st: ((s,) for s, _ in _slots(st)),
    "split": lambda st: locks.splits(st.tree),
    "evict_leaf": lambda st: ((n,) for n in alive(st.tree)),
    "evict_swa": lambda st: ((n,) for n in alive(st.tree)),
    "free_group_begin": nothing,
    "free_group_end": nothing,
    **carried.MOVES,
}

CACHED = "admit_cold extend finish leave depart_cold"  # the tree has a leaf
ROUTES = {
    "admit": CACHED,
    "come_back_cold": "admit_cold extend finish leave",
    "come_back": f"{CACHED} admit finish",
    "leave_window": f"{CACHED} evict_swa admit_cold extend finish",
    "depart": f"{CACHED} admit finish",
    "close": f"{CACHED} admit save",
    "split": CACHED,
    "evict_leaf": CACHED,
    "evict_swa": CACHED,
    **carried.ROUTES,
}

# Mutants: what each transition would do without one line of the law.


def forgets_pages(st: Whole, node: Number) -> Step[Whole]:
    """A leaf is evicted, and nobody gives its pages back."""
    step = law.evict_leaf(st, node)
    return but(step, calls=step.calls[:1], then=but(st, tree=step.then.tree))


def splits_short(st: Whole, child: Number, new: Number, at: Number) -> Step[Whole]:
    """A split leaves the first page of the upper part with the lower one."""
    step, first = law.split(st, child, new, at), begin(st.tree, child) + 1
    passed = call("life", session_trim.pass_on, st.life, home(st, child), home(st, new), first, at)
    kept = (*step.promises, *passed.step.promises)
    return but(step, calls=(step.calls[0], passed), promises=kept, then=but(step.then, life=passed.then))


def forgets_swa_pages(st: Whole, node: Number) -> Step[Whole]:
    """A node becomes a tombstone, and nobody gives its SWA pages back."""
    step = law.evict_swa(st, node)
    return but(step, calls=step.calls[:1], then=but(st, tree=step.then.tree))


def keeps_lock(st: Whole, row: Number, old: Number) -> Step[Whole]:
    """A request departs with its lock."""
    step = law.depart(st, row, old)
    return but(step, calls=step.calls[:1], then=but(step.then, tree=st.tree))


def reads_padding(
    st: Whole, row: Number, session: Number, handle: Number, node: Number, top: Number, pages: Seq
) -> Step[Whole]:
    """A request is admitted on a prefix that its row does not show."""
    shown = st.reads.where(
        lambda r, _: r == row, PADDING, lambda: [(row, i) for i in full_pool(st.life).indices.items()]
    )
    return altered(law.admit(st, row, session, handle, node, top, pages), reads=shown)


def reads_old_page(st: Whole, row: Number, to: Length, full_pages: Seq, swa_pages: Seq) -> Step[Whole]:
    """A row grows and goes on showing what it showed before."""
    return altered(law.extend(st, row, to, full_pages, swa_pages), reads=st.reads)


def numbers_twice(st: Whole, row: Number, under: Number, leaf: Number, pages: Number, live: Truth) -> Step[Whole]:
    """Two inserts get one number."""
    return altered(law.leave(st, row, under, leaf, pages, live), inserts=st.inserts)


def books_nothing(st: Whole, row: Number, pages: Number) -> Step[Whole]:
    """Pages are given back and the books do not say so."""
    return altered(law.leave_copies(st, row, pages), full=st.full, swa=st.swa)


MUTANTS = (
    Mutant("forgets_pages", "evict_leaf", "others_are_nodes", forgets_pages),
    Mutant("splits_short", "split", "node_owns_its_key", splits_short),
    Mutant("forgets_swa_pages", "evict_swa", "node_owns_its_window", forgets_swa_pages),
    Mutant("keeps_lock", "depart", "request_holds_its_prefix", keeps_lock),
    Mutant("reads_padding", "admit", "reads_what_it_holds", reads_padding),
    Mutant("reads_old_page", "extend", "reads_what_it_owns", reads_old_page),
    Mutant("numbers_twice", "leave", "inserts_are_numbered", numbers_twice),
    Mutant("books_nothing", "leave_copies", "freed_exactly_once", books_nothing),
    *carried.MUTANTS,
)

# What the ties between rows, tree and states rest on; a call's promises are most often the caller's own.
READS = "one_owner cursor_committed_allocated keys_follow"
NODES = "one_owner row_ends cursor_committed_allocated parent_is_next others_are_nodes"
TOLD = {
    "others_are_nodes": "keys_follow",
    "node_owns_its_key": f"{NODES} full_positions",
    "node_owns_its_window": f"{NODES} same_lengths swa_positions",
    **dict.fromkeys(
        ("split node_owns_its_key", "split node_owns_its_window"),
        "row_ends same_lengths parent_is_next others_are_nodes",
    ),
    "request_holds_its_prefix": "handles_stand",
    "reads_what_it_holds": f"{READS} request_holds_its_prefix handles_stand above_is_an_order parent_is_next "
    "held_is_counted",
    "reads_what_it_owns": READS,
    "node_has_its_state": "states.one_owner buffer_is_whole running_is_equipped",
    "slot_has_row_and_states": "one_row_a_session states_go_with_rows",
    "promises_of_release": "request_holds_its_prefix",
    "promises_of_donate": "row_ends same_lengths others_are_nodes keys_follow node_has_its_state",
    "promises_of_pass_on": "row_ends same_lengths others_are_nodes keys_follow",
    "quiescent": "places no_leak row_ends available_counts same_lengths pending_in_group phases others_are_nodes",
    "states_are_quiescent": "one_row_a_session gone_owns_nothing nodes_have_states_alone states.available_counts "
    "quiet_is_full node_has_its_state slot_has_row_and_states",
    **dict.fromkeys(("promises_of_add_leaf", "promises_of_restore"), "inserts_are_numbered"),
    **dict.fromkeys(("promises_of_alloc_copy", "promises_of_evict"), "node_has_its_state"),
}

HINTS = Hints(
    stem=law.stem,
    over={
        "full_pages": lambda st: full_pool(st.life).pages,
        "swa_pages": lambda st: swa_pool(st.life).pages,
        "pages": lambda st: full_pool(st.life).pages,
        "chosen": lambda st: st.states.slots,
    },
    sizes=SIZES,
    small=small,
    moves=MOVES,
    places={
        **{"handle": "handles", "old": "handles"},
        **{"node": "nodes", "child": "nodes", "new": "nodes", "leaf": "nodes", "under": "nodes", "top": "nodes"},
    },
    refusable=frozenset(
        {"reserve", "extend", "decode", "state_match", "state_admit", "state_second", "state_copy", "state_renew"}
    ),
    routes=ROUTES,
    told=TOLD,
    mutants=MUTANTS,
    assumptions=COMMON,
)
