"""What the provers need for the whole cache: a small world, calls to try, mutants, and hints for each proof."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs import answers, cache_effects, cache_flight, cache_transfers, isolation, mamba_in_cache
from proofs import lock_ref as locks
from proofs import session_trim as sessions
from proofs.allocator import begins, nothing
from proofs.hints import COMMON, Hints, Mutant, altered, idlers, unasked, unchosen
from proofs.lock_ref import active, alive, unused
from proofs.session_trim import freed_again, requests
from proofs.swa_mapping import settled
from spec import cache as law
from spec import cache_drain, lock_ref, mamba_slots, session_trim, session_trim_state, swa_mapping
from spec.cache_state import CacheState, home
from spec.finite import Seq
from spec.lengths import Length
from spec.lock_ref_state import ROOT, begin, end, path, window_top
from spec.logic import Number, Step, Truth, but, call
from spec.pool import PADDING
from spec.session_trim_state import IDLE, LEAVING, RUNNING, full_pool, swa_pool

SIZES = {
    **{
        "page_size": 1,
        "rows": 4,
        "indices": 3,
        "rows.pools.full.pages": 3,
        "rows.pools.swa.pages": 2,
        "limit": 1,
        "sessions": 1,
    },
    **{"nodes": 2, "handles": 2, "window": 1, "window_pages": 1, "window_rest": 0},
    **{"states": 3, "requests": 1, "first_node": 2, "owners": 5, "stories": 3},
    **{"jobs": 2, "blocks": 3},
}


def small(states: int = 3) -> tuple[CacheState, ...]:
    """Three full and two SWA pages of one slot, one request row, two nodes, one session, a window of one token.

    ``states`` state slots; track buffers of two slots, once with both slots from the start and once lazy. The third
    world has no states. The last world has one pool and no states: every layer has a sliding window.
    """
    pools = swa_mapping.initial(page_size=1, size=3, size_swa=2, rows=4, need_sort=False)
    empty = session_trim_state.initial(pools, limit=1, sessions=1, window=Length(1, 0))
    tree = lock_ref.initial(nodes=2, handles=2, window=1, windowed=True, stateful=True)
    slots = [mamba_slots.initial(states, 1, 1, nodes=3, kind=(True, True, lazy)) for lazy in (False, True)]
    without = law.initial(empty, but(tree, stateful=False), slots[0], isolation.stories())
    return *(law.initial(empty, tree, one, isolation.stories()) for one in slots), without, all_sliding()


def all_sliding() -> CacheState:
    """A window of one token in every layer. SWA pages and states, as many as in the other worlds, are not used."""
    pools = swa_mapping.initial(page_size=1, size=3, size_swa=2, rows=4, need_sort=False, windowed=False)
    empty = session_trim_state.initial(pools, limit=1, sessions=1, window=Length(1, 0), all_sliding=True)
    tree = lock_ref.initial(nodes=2, handles=2, window=1, windowed=False, stateful=False)
    slots = mamba_slots.initial(3, 1, 1, nodes=3, kind=(False, False, False))
    return law.initial(empty, tree, slots, isolation.stories())


def _path_pages(st: CacheState, node: int) -> Seq:
    """The pages on the path to a node, in order of their index."""
    found = {
        i: full_pool(st.rows).table(home(st, n), i)
        for n in path(st.tree, node)
        for i in range(begin(st.tree, n), st.tree.stop(n))
    }
    return Seq(found[i] for i in sorted(found))


def _locks(st: CacheState) -> Iterator[tuple[int, int, int, bool, Seq]]:
    """A new lock handle, a node, the top node of its window, and the pages of its path."""
    fresh = [h for h in st.tree.handles.items() if h not in active(st.tree)][:1]
    for handle in fresh:
        for node in alive(st.tree):
            tops = [t for t in path(st.tree, node) if window_top(st.tree, t, node)]
            yield from ((handle, node, top, False, _path_pages(st, node)) for top in tops)


NO_MATCH = (0, ROOT, ROOT, False, Seq())


def _admit(st: CacheState) -> Iterator[tuple[Any, ...]]:
    """Every match, and no match, for each story."""
    for row in requests(st.rows, IDLE):
        asked = ((session, story) for session in (0, 1) for story in _stories(st))
        yield from ((row, *one, *match) for one in asked for match in (*_locks(st), NO_MATCH))


def _stories(st: CacheState) -> range:
    """Each story, and a number that no story has."""
    return range(st.contents.stories.size + 1)


def _resume(st: CacheState) -> Iterator[tuple[Any, ...]]:
    """The next turn of each session, with each story."""
    turns: Any = sessions.MOVES["resume"]
    yield from ((session, story, given) for session, given in turns(st.rows) for story in _stories(st))


def _admit_tail(st: CacheState, session: int = 0) -> Iterator[tuple[Any, ...]]:
    """Every match, and no match, with tails of each length, for a turn of this session."""
    for row in requests(st.rows, IDLE):
        for match in (*_locks(st), NO_MATCH):
            prefixes = {0, min(1, match[-1].length), match[-1].length}
            tails = (tail for tail in sessions.tails(st.rows, sorted(prefixes)) if tail[:2] == (row, 0))
            begins = ((*match[:-1], Seq(match[-1].items()[: tail[2]]), *tail[3:]) for tail in tails)
            yield from ((row, session, story, *begun) for begun in begins for story in _stories(st))


def _of_rows(name: str) -> Any:
    """The calls of ``proofs.session_trim``."""
    asked: Any = sessions.MOVES[name]
    return lambda st: asked(st.rows)


def _insert_leaf(st: CacheState) -> Iterator[tuple[Any, ...]]:
    held, tree = st.rows, st.tree
    for row in requests(held, LEAVING):
        unders = [n for n in (ROOT, *alive(tree)) if end(tree, n) == held.protected(row)]
        for pages in range(held.protected(row) + 1, held.committed(row) + 1):
            yield from ((row, n, leaf, pages, live) for n in unders for leaf in unused(tree) for live in (True, False))


def _leaving(st: CacheState) -> list[int]:
    return requests(st.rows, LEAVING)


def _slots(st: CacheState) -> list[tuple[int, int]]:
    """Each session with a slot, and the lock handle of its row."""
    return [(s, st.handle(st.rows.slot(s) - 1)) for s in st.rows.sessions.items() if st.rows.slot(s)]


MOVES = {
    "admit": _admit,
    "admit_tail": _admit_tail,
    "extend": _of_rows("extend"),
    "extend_elsewhere": _of_rows("extend"),
    "decode": _of_rows("decode"),
    "reserve": _of_rows("reserve"),
    "commit": _of_rows("commit"),
    "slide": _of_rows("slide"),
    "leave_window": _of_rows("leave_window"),
    "roll_back": _of_rows("roll_back"),
    "release_swa": lambda st: ((r, st.handle(r)) for r in requests(st.rows, RUNNING)),
    "release_state": lambda st: ((r, st.handle(r)) for r in requests(st.rows, RUNNING)),
    "finish": _of_rows("finish"),
    "continue_prefill": lambda st: ((r, st.handle(r), *lock) for r in _leaving(st) for lock in _locks(st)),
    "insert_leaf": _insert_leaf,
    "drop_duplicates": _of_rows("dedupe"),
    "revive_tombstone": lambda st: ((r, n) for r in _leaving(st) for n in alive(st.tree)),
    "revive_in_place": lambda st: ((r, n, False) for r in _leaving(st) for n in alive(st.tree)),
    "free_rest": lambda st: ((r, st.handle(r)) for r in _leaving(st)),
    "save": _of_rows("save"),
    "restore": _of_rows("restore"),
    "resume": _resume,
    "close": _slots,
    "split": lambda st: locks.splits(st.tree),
    "merge": lambda st: ((n, st.tree.parent(n)) for n in alive(st.tree)),
    "evict_leaf": lambda st: ((n,) for n in alive(st.tree)),
    "evict_swa": lambda st: ((n,) for n in alive(st.tree)),
    "settle_swa": lambda st: settled(st.rows.pools.now),
    "free_group_begin": begins,
    "free_group_end": nothing,
    **mamba_in_cache.MOVES,
    **cache_flight.MOVES,
    **cache_transfers.MOVES,
}

CACHED = "admit extend finish insert_leaf free_rest"  # after these calls the tree has a leaf
ROUTES = {
    "release_swa": f"{CACHED} admit extend",
    # of a row that began with its tail
    "release_swa granted": "admit_tail receive arrive finish insert_leaf continue_prefill",
    "restore": f"{CACHED} admit extend release_swa save",
    "restore granted": "admit extend save",
    "leave_window": "admit extend",
    "release_state": f"{mamba_in_cache.ENDED} admit",
    "admit": CACHED,
    "continue_prefill": f"{CACHED} admit finish",
    "revive_tombstone": f"{CACHED} evict_swa admit extend finish",
    **dict.fromkeys(("revive_in_place", "revive_in_place granted"), f"{CACHED} evict_swa admit extend finish"),
    "free_rest": f"{CACHED} admit finish",
    "close": f"{CACHED} admit save",
    "close granted": f"{mamba_in_cache.EQUIPPED} save state_save",  # of a session that has a state
    "split": CACHED,
    "merge": f"{CACHED} split",
    "evict_leaf": CACHED,
    "evict_swa": CACHED,
    "settle_swa": f"{CACHED} free_group_begin evict_swa",
    **mamba_in_cache.ROUTES,
    **cache_flight.ROUTES,
    **cache_transfers.ROUTES,
    **{f"{name} granted": f"{CACHED} {way}" for name, way in isolation.WAYS.items()},
}

# Mutants: what each transition would do without one line of the law.


def forgets_pages(st: CacheState, node: Number) -> Step[CacheState]:
    """A leaf is evicted, and its pages are not given back."""
    step = law.evict_leaf(st, node)
    return but(step, calls=step.calls[:1], then=but(st, tree=step.then.tree))


def splits_short(st: CacheState, child: Number, new: Number, at: Number) -> Step[CacheState]:
    """A split leaves the first page of the upper part with the lower node."""
    step, first = law.split(st, child, new, at), begin(st.tree, child) + 1
    passed = call("rows", session_trim.pass_on, st.rows, home(st, child), home(st, new), first, at)
    kept = (*step.promises, *passed.step.promises)
    return but(step, calls=(step.calls[0], passed), promises=kept, then=but(step.then, rows=passed.then))


def forgets_swa_pages(st: CacheState, node: Number) -> Step[CacheState]:
    """A node becomes a tombstone, and its SWA pages are not given back."""
    step = law.evict_swa(st, node)
    return but(step, calls=step.calls[:1], then=but(st, tree=step.then.tree))


def keeps_lock(st: CacheState, row: Number, old: Number) -> Step[CacheState]:
    """A request ends, and its lock handle is not released."""
    step = law.free_rest(st, row, old)
    return but(step, calls=step.calls[:1], then=but(step.then, tree=st.tree))


def releases_window(st: CacheState, row: Number, old: Number) -> Step[CacheState]:
    """A request gives back the SWA part of its lock, though the next token reads SWA pages of the tree."""
    return unasked(
        law.release_swa(st, row, old),
        "every node of the row's cached prefix is behind the window before the next token",
    )


def cuts_into_window(st: CacheState, session: Number, prefix: Length) -> Step[CacheState]:
    """A row that gave back the SWA part of its lock is cut, so that its window reaches into the tree again."""
    return unasked(
        law.restore(st, session, prefix),
        "the row's lock holds the SWA part of each node in the window before the next token",
    )


def reads_padding(
    st: CacheState,
    row: Number,
    session: Number,
    story: Number,
    handle: Number,
    node: Number,
    top: Number,
    counting: Truth,
    pages: Seq,
) -> Step[CacheState]:
    """A request is admitted with a cached prefix, and its row does not show the pages of the prefix."""
    shown = st.reads.where(
        lambda r, _: r == row, PADDING, lambda: [(row, i) for i in full_pool(st.rows).indices.items()]
    )
    return altered(law.admit(st, row, session, story, handle, node, top, counting, pages), reads=shown)


def admits_over_tombstone(
    st: CacheState,
    row: Number,
    session: Number,
    story: Number,
    handle: Number,
    node: Number,
    top: Number,
    counting: Truth,
    pages: Seq,
) -> Step[CacheState]:
    """A request is admitted on a node of whose window an SWA part is gone."""
    step = law.admit(st, row, session, story, handle, node, top, counting, pages)
    return unchosen(step, "the new lock finds the SWA part of each node in the window before the next token")


def revives_without_pages(st: CacheState, row: Number, node: Number, later: Truth) -> Step[CacheState]:
    """A tombstone counts as alive again, and the row frees its SWA pages instead of passing them on."""
    step = law.revive_in_place(st, row, node, later)
    freed = call("rows", session_trim.dedupe, st.rows, row, st.tree.stop(node))
    then = but(st, rows=freed.then, tree=step.then.tree)
    return but(step, calls=(step.calls[0], freed), then=then)


def frees_duplicates_twice(st: CacheState, row: Number, pages: Number) -> Step[CacheState]:
    """A leaving row frees its duplicates of the tree's pages, and names them again among the pages that it frees last:
    a double free, as where an engine frees one range of its row twice.
    """
    step = law.drop_duplicates(st, row, pages)
    again = freed_again(st.rows.pools, step.then.rows.pools, row, pages)
    return but(step, calls=(), then=but(step.then, rows=but(step.then.rows, pools=again)))


def merges_without_pages(st: CacheState, node: Number, above: Number) -> Step[CacheState]:
    """A node takes in its parent, and the parent's pages stay in the row of the parent."""
    step = law.merge(st, node, above)
    return but(step, calls=step.calls[:1], then=but(st, tree=step.then.tree))


def reads_old_page(st: CacheState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq) -> Step[CacheState]:
    """A row grows, and still shows what it showed before."""
    return altered(law.extend(st, row, to, full_pages, swa_pages), reads=st.reads)


def splits_unseen(st: CacheState, child: Number, new: Number, at: Number) -> Step[CacheState]:
    """A node is split, and the upper half of its key is still looked for in the node itself."""
    return altered(law.split(st, child, new, at), cover=st.cover)


def numbers_twice(
    st: CacheState, row: Number, under: Number, leaf: Number, pages: Number, live: Truth
) -> Step[CacheState]:
    """Two inserts get one number."""
    return altered(law.insert_leaf(st, row, under, leaf, pages, live), inserts=st.inserts)


def slides_into_window(st: CacheState, row: Number, to: Number) -> Step[CacheState]:
    """A running request gives back SWA pages that its next token reads."""
    return unasked(law.slide(st, row, to), "the window before the next token keeps its SWA pages")


def leaves_the_window_of_a_reader(
    st: CacheState, row: Number, first: Number, to: Number, later: Truth
) -> Step[CacheState]:
    """Where every layer has a sliding window, a running request gives back pages that its next token reads."""
    return unasked(law.leave_window(st, row, first, to, later), "the window before the next token keeps its pages")


def reads_past_its_lock(
    st: CacheState, row: Number, session: Number, story: Number, handle: Number, node: Number, top: Number,
    counting: Truth, pages: Seq, start: Number, to: Length, full_pages: Seq, swa_pages: Seq,
) -> Step[CacheState]:  # fmt: skip
    """A request whose prompt is computed elsewhere reads more pages than its locked node and the nodes above have."""
    step = law.admit_tail(st, row, session, story, handle, node, top, counting, pages, start, to, full_pages, swa_pages)
    return unchosen(step, "the matched pages are the first of the node's path")


def _past_the_lock(st: CacheState) -> Iterator[tuple[Any, ...]]:
    """Every match, with a page more than its path has, for rows that need no page of their own."""
    for row in requests(st.rows, IDLE):
        for match in _locks(st):
            read = Seq((*match[-1].items(), match[-1].items()[-1]))
            end_of_row = (read.length, Length(read.length, 0), Seq(), Seq())
            yield from ((row, 0, story, *match[:-1], read, *end_of_row) for story in _stories(st))


PAST_THE_LOCK = {"routes": {"admit_tail": CACHED}, "moves": {**MOVES, "admit_tail": _past_the_lock}}


OF_A_SESSION = {"moves": {**MOVES, "admit_tail": lambda st: _admit_tail(st, session=1)}, "routes": {"admit_tail": ""}}
FOUR_SLOTS = {  # two for a request's track buffer, its own one, and one for a node
    "small": lambda: small(states=4)[:1],
    "sizes": {**SIZES, "states": 4, "blocks": 4},
    "routes": {"state_copy": mamba_in_cache.INSERTED},
}
MUTANTS = (
    Mutant("slides_into_window", "slide", "reads_own_window", slides_into_window),
    Mutant("leaves_the_window_of_a_reader", "leave_window", "reads_held_pages", leaves_the_window_of_a_reader),
    *idlers(
        law.stem,
        decode="row_gets_the_chosen_pages",
        continue_prefill="runs_with_its_lock",
        state_admit="is_equipped_with",
    ),
    Mutant("forgets_pages", "evict_leaf", "others_are_nodes", forgets_pages),
    Mutant("splits_short", "split", "node_owns_its_key", splits_short),
    Mutant("forgets_swa_pages", "evict_swa", "node_owns_its_window", forgets_swa_pages),
    Mutant("keeps_lock", "free_rest", "request_holds_its_prefix", keeps_lock),
    Mutant("reads_past_its_lock", "admit_tail", "request_holds_its_prefix", reads_past_its_lock, PAST_THE_LOCK),
    Mutant("admits_over_tombstone", "admit", "window_is_locked", admits_over_tombstone),
    Mutant("revives_without_pages", "revive_in_place", "node_owns_its_window", revives_without_pages),
    Mutant("frees_duplicates_twice", "drop_duplicates", "freed_exactly_once", frees_duplicates_twice),
    Mutant("merges_without_pages", "merge", "others_are_nodes", merges_without_pages),
    Mutant("releases_window", "release_swa", "window_is_locked", releases_window),
    Mutant("cuts_into_window", "restore", "window_is_locked", cuts_into_window),
    Mutant("reads_padding", "admit", "reads_what_it_holds", reads_padding),
    Mutant("reads_old_page", "extend", "reads_what_it_owns", reads_old_page),
    Mutant("splits_unseen", "split", "path_has_every_page", splits_unseen),
    Mutant("numbers_twice", "insert_leaf", "inserts_are_numbered", numbers_twice),
    Mutant("keeps_lock_for_ever", "free_rest", "every_count_is_zero", keeps_lock),
    Mutant("loses_pages_of_leaf", "evict_leaf", "quiescent", forgets_pages),
    Mutant("reads_padding_for_prefix", "admit", "reads_held_pages", reads_padding),
    Mutant("reads_behind_tombstone", "admit", "reads_held_window", admits_over_tombstone),
    Mutant("frees_by_old_row", "extend", "frees_what_it_owns", reads_old_page),
    *mamba_in_cache.MUTANTS,
    *cache_flight.MUTANTS,
    *cache_transfers.mutants(SIZES),
    Mutant("shows_padding_for_prefix", "admit", "prefix_is_the_trees", reads_padding),
    *isolation.MUTANTS,
    Mutant(
        "copies_over_the_other_track",
        "state_copy",
        "other_slots_hold_what_they_held",
        isolation.copies_over_the_other_track,
        FOUR_SLOTS,
    ),
    *cache_effects.mutants(SIZES),
    Mutant(
        "tail_outside_the_session",
        "admit_tail",
        "request_begins_with_its_tail",
        cache_effects.tail_outside_the_session,
        OF_A_SESSION,
    ),
)


# Wrong transitions of known bugs; the faults of conformance use them.


def revives_under_reader(st: CacheState, row: Number, node: Number) -> Step[CacheState]:
    """A leaving row donates its pages to a tombstone that another request still holds and reads."""
    return unasked(law.revive_tombstone(st, row, node), "nobody holds the node")


def two_rows() -> tuple[CacheState, ...]:
    """Three pages of one slot, two request rows, two nodes, and a window of one token: room for a second reader."""
    pools = swa_mapping.initial(page_size=1, size=3, size_swa=3, rows=5, need_sort=False)
    empty = session_trim_state.initial(pools, limit=2, sessions=1, window=Length(1, 0))
    tree = lock_ref.initial(nodes=2, handles=2, window=1, windowed=True, stateful=False)
    return (law.initial(empty, tree, mamba_slots.initial(1, 2, 1, nodes=3, kind=(False, False, False))),)


def two_texts() -> tuple[CacheState, ...]:
    """Four pages of one slot, one request row, two nodes, and stories: room for two texts of two tokens."""
    pools = swa_mapping.initial(page_size=1, size=4, size_swa=4, rows=4, need_sort=False)
    empty = session_trim_state.initial(pools, limit=1, sessions=1, window=Length(1, 0))
    tree = lock_ref.initial(nodes=2, handles=2, window=1, windowed=True, stateful=False)
    slots = mamba_slots.initial(3, 1, 1, nodes=3, kind=(False, False, False))
    return (law.initial(empty, tree, slots, isolation.stories()),)


# The tree has the text of one request. The next one has another text, and gives its pages back as duplicates.
OTHER_TEXT_ROUTES = {"continue_prefill": f"{CACHED} admit extend finish drop_duplicates"}
# A waiting request gets a copy of the state of a node, and then a row for another text.
OTHER_STATE_ROUTES = {"state_admit": f"{mamba_in_cache.ENDED} state_match admit"}
# A session's row is cut to nothing but its first token, and its state is still the one after both tokens.
LATER_STATE_ROUTES = {"state_admit": f"{mamba_in_cache.EQUIPPED} extend save state_save restore state_restore resume"}


# One request inserts two nodes. The next one matches both and holds the window of the second; the first node becomes a
# tombstone. A third request then revives it.
READ = "admit extend finish insert_leaf insert_leaf free_rest admit evict_swa"
UNDER_READER_ROUTES = {"revive_tombstone": f"{READ} admit extend finish"}


def keeps_donated(
    st: CacheState, row: Number, under: Number, leaf: Number, pages: Number, live: Truth
) -> Step[CacheState]:
    """A row gives pages to a new leaf, and still counts them as its own."""
    step = law.insert_leaf(st, row, under, leaf, pages, live)
    return altered(step, rows=but(step.then.rows, protected=st.rows.protected))


# A request inserts a node; the next one matches it, and gives back the SWA part of its lock at once.
UNDER_WINDOW_ROUTES = {"release_swa": f"{CACHED} admit"}


# On which laws the proofs rest. Most promises of calls follow from the caller's own promises.
READS = "one_owner cursor_committed_allocated keys_follow"
NODES = "one_owner row_ends cursor_committed_allocated parent_is_next others_are_nodes"
OWN_PAGES = "one_owner cursor_committed_allocated full_positions phases gap_is_behind_the_prefix window_is_kept"
TREE_PAGES = "request_holds_its_prefix handles_stand path_has_every_page node_owns_its_key others_are_nodes"
WINDOWS = "swa_positions tokens_map window_is_kept window_is_locked held_is_no_tombstone node_owns_its_window row_ends"
WRITES = "one_owner row_ends cursor_committed_allocated full_positions phases reads_what_it_owns"
MAPS = "tokens_map mapping_keeps_offset mapping_is_live free_maps_to_nothing"
REACHED = "one_owner no_leak swa_is_reached"
STATES_OF_ROWS = (
    "states.one_owner states_go_with_rows row_says_what_is_owned running_row_has_running_states "
    "one_row_a_session buffer_is_whole running_is_equipped names_what_it_owns cursor_committed_allocated"
)
SAVED_STATES = "states_go_with_rows one_row_a_session states_are_saved_once running_row_has_running_states"
RELEVANT_LAWS = {
    "others_are_nodes": "keys_follow",
    "node_owns_its_key": f"{NODES} full_positions",
    "node_owns_its_window": f"{NODES} same_lengths swa_positions",
    **dict.fromkeys(
        ("split node_owns_its_key", "split node_owns_its_window"),
        "row_ends same_lengths parent_is_next others_are_nodes",
    ),
    "request_holds_its_prefix": "handles_stand",
    "merge reads_what_it_holds": "one_owner row_ends parent_is_next keys_follow others_are_nodes node_owns_its_key "
    "request_holds_its_prefix handles_stand above_is_an_order above_goes_on cursor_committed_allocated",
    **dict.fromkeys(
        ("merge node_owns_its_key", "merge node_owns_its_window"),
        "one_owner row_ends same_lengths parent_is_next keys_follow others_are_nodes node_owns_its_key "
        "node_owns_its_window above_is_an_order path_has_every_page no_leak swa_is_reached values_are_flags",
    ),
    "evict_swa node_owns_its_window": f"{NODES} same_lengths swa_positions node_owns_its_key no_leak swa_is_reached",
    "merge promises_of_pass_on": "row_ends same_lengths parent_is_next keys_follow others_are_nodes node_owns_its_key "
    "node_owns_its_window",
    "window_is_locked": "request_holds_its_prefix handles_stand above_is_an_order parent_is_next keys_follow",
    "merge window_is_locked": "request_holds_its_prefix handles_stand above_is_an_order above_goes_on parent_is_next "
    "keys_follow held_is_no_tombstone node_owns_its_key path_has_every_page",
    **dict.fromkeys(
        ("evict_leaf window_is_locked", "evict_leaf_and_state window_is_locked"),
        "request_holds_its_prefix handles_stand above_is_an_order parent_is_next held_is_counted",
    ),
    "reads_what_it_holds": f"{READS} request_holds_its_prefix handles_stand above_is_an_order parent_is_next "
    "held_is_counted",
    "reads_what_it_owns": READS,
    "leave_window reads_what_it_owns": f"{READS} full_positions gap_is_behind_the_prefix",
    "save reads_what_it_owns": f"{READS} one_row_a_session row_ends window_is_kept",
    **dict.fromkeys(
        (
            *("leaf_is_gone", "request_is_gone", "session_is_gone"),
            *("requests_go_on", "others_go_on", "other_sessions_go_on"),
        ),
        REACHED,
    ),
    "merge requests_go_on": f"{REACHED} node_owns_its_key parent_is_next path_has_every_page",
    "merge node_takes_in_its_parent": f"{REACHED} above_is_an_order keys_follow parent_is_next node_owns_its_key "
    "node_owns_its_window",
    "only_the_window_is_gone": f"{REACHED} others_are_whole row_ends same_lengths",
    "tombstone_gets_the_rows_pages": f"{REACHED} full_positions swa_positions row_ends node_owns_its_key "
    "node_owns_its_window",
    "tombstone_gets_the_rows_window": "one_owner",
    "path_has_every_page": "above_is_an_order parent_is_next keys_follow paths_do_not_fork above_goes_on "
    "node_owns_its_key row_ends",
    "drain_goes_on": "phases states_go_with_rows pending_in_group group_is_open request_phases values_are_flags "
    "transfers_fill_rows",
    "drain_free_rest_lowers": "phases",
    "return_admit_is_granted": "phases one_row_a_session above_is_an_order",
    "return_extend_is_granted": "quiescent phases one_row_a_session transfers_fill_rows",
    "drain_close_is_granted": "phases one_row_a_session request_holds_its_prefix",
    "drain_close_lowers": "one_row_a_session phases",
    "drain_close_states_is_granted": "one_row_a_session",
    "drain_close_states_lowers": "one_row_a_session states.one_owner",
    "drain_save_states_is_granted": SAVED_STATES,
    "drain_save_states_lowers": f"{SAVED_STATES} states.one_owner",
    **dict.fromkeys(("drain_free_states_is_granted", "drain_free_waiting_is_granted"), "states_go_with_rows"),
    "drain_free_states_lowers": "states_go_with_rows states.one_owner one_row_a_session",
    **dict.fromkeys(
        ("drain_evict_leaf_is_granted", "drain_evict_leaf_and_state_is_granted"),
        "request_holds_its_prefix counted_is_held keys_follow counts_are_counts parent_is_next",
    ),
    "admit_tail running_row_has_running_states": "states_go_with_rows phases",
    **dict.fromkeys(
        ("state_donate running_row_has_running_states", "state_release running_row_has_running_states"),
        "states_go_with_rows",
    ),
    "merge others_are_nodes": "keys_follow parent_is_next above_is_an_order same_lengths row_ends",
    "revive_in_place promises_of_donate_swa": "row_ends same_lengths others_are_nodes keys_follow node_owns_its_key "
    "node_owns_its_window",
    "states_are_saved_once": "states_go_with_rows one_row_a_session slot_has_row_and_states states.one_owner",
    "every_count_is_zero": "request_holds_its_prefix full_pairs swa_pairs mamba_pairs",
    "reads_held_pages": f"{OWN_PAGES} {TREE_PAGES} reads_what_it_holds reads_what_it_owns",
    "reads_own_states": "states_go_with_rows running_row_has_running_states row_says_what_is_owned states.one_owner",
    "frees_what_it_owns": "one_owner full_positions reads_what_it_owns mapping_is_live no_leak",
    "reads_held_window": f"{OWN_PAGES} {TREE_PAGES} {WINDOWS} reads_what_it_holds",
    "reads_own_window": f"{OWN_PAGES} {WINDOWS} reads_what_it_owns",
    "texts_are_known": "one_row_a_session phases",
    "own_pages_hold_own_text": f"{WRITES} one_row_a_session no_token_across_turns",
    "leave_window own_pages_hold_own_text": f"{WRITES} gap_is_behind_the_prefix",
    **dict.fromkeys(
        ("revive_tombstone own_pages_hold_own_text", "revive_in_place own_pages_hold_own_text"),
        "one_owner cursor_committed_allocated keys_follow",
    ),
    "own_window_holds_own_text": f"{WRITES} swa_positions tokens_map same_lengths mapping_keeps_offset "
    "one_row_a_session no_token_across_turns",
    "prefix_is_the_trees": f"{TREE_PAGES} reads_held_pages one_owner cursor_committed_allocated phases",
    "prefix_holds_own_text": f"{WRITES} prefix_is_the_trees one_row_a_session no_token_across_turns",
    **dict.fromkeys(
        ("admit prefix_holds_own_text", "continue_prefill prefix_holds_own_text"),
        "path_has_every_page phases parent_is_next keys_follow reads_what_it_owns",
    ),
    "admit_tail prefix_holds_own_text": f"{WRITES} prefix_is_the_trees path_has_every_page node_owns_its_key "
    "keys_follow parent_is_next",
    "node_window_holds_its_text": f"{WRITES} {MAPS} swa_positions same_lengths others_are_nodes "
    "own_pages_hold_own_text own_window_holds_own_text",
    "admit_tail own_window_holds_own_text": f"{WRITES} {MAPS} swa_positions same_lengths",
    "reads_own_text": f"{OWN_PAGES} reads_what_it_owns own_pages_hold_own_text prefix_holds_own_text",
    "window_reads_own_text": "reads_held_pages reads_held_window reads_own_window mapping_keeps_offset "
    "path_has_every_page request_holds_its_prefix handles_stand cursor_committed_allocated "
    "own_window_holds_own_text prefix_holds_own_text node_window_holds_its_text the_window_was_sent",
    "node_state_is_at_its_end": f"{WRITES} states.one_owner node_has_its_state others_are_nodes node_owns_its_key "
    "keys_follow parent_is_next states_go_with_rows row_says_what_is_owned running_row_has_running_states "
    "buffer_is_whole running_is_equipped absent_is_no_slot",
    "own_state_is_of_own_text": STATES_OF_ROWS,
    "resume own_state_is_of_own_text": f"{STATES_OF_ROWS} no_token_across_turns row_ends",
    "state_admit own_state_is_of_own_text": f"{STATES_OF_ROWS} gone_names_nothing gone_owns_nothing states.no_leak",
    "draft_is_nobodys_text": f"{WRITES}",
    "pass_goes_on_from_its_state": "states_go_with_rows running_row_has_running_states own_state_is_of_own_text "
    "row_says_what_is_owned running_is_equipped states.one_owner states.no_leak row_ends same_lengths",
    "request_gets_the_nodes_state": "states.one_owner",
    "session_goes_on_from_an_earlier_state": "states.one_owner",
    "track_gets_the_state_at_the_boundary": "running_is_equipped row_says_what_is_owned",
    "reads_state_of_own_text": "own_state_is_of_own_text states_go_with_rows row_says_what_is_owned "
    "running_row_has_running_states",
    "node_has_its_state": "states.one_owner buffer_is_whole running_is_equipped",
    "slot_has_row_and_states": "one_row_a_session states_go_with_rows",
    **cache_transfers.RELEVANT_LAWS,
    "promises_of_release": "request_holds_its_prefix",
    "promises_of_donate": "row_ends same_lengths others_are_nodes keys_follow node_has_its_state",
    "promises_of_pass_on": "row_ends same_lengths others_are_nodes keys_follow",
    "quiescent": "places no_leak row_ends available_counts same_lengths pending_in_group phases others_are_nodes",
    "states_are_quiescent": "one_row_a_session gone_owns_nothing nodes_have_states_alone states.available_counts "
    "quiet_is_full node_has_its_state slot_has_row_and_states",
    **dict.fromkeys(("promises_of_add_leaf", "promises_of_restore"), "inserts_are_numbered"),
    **dict.fromkeys(("promises_of_alloc_copy", "promises_of_evict"), "node_has_its_state"),
}

GROWN = answers.pages_of_pair(answers.asked, lambda st: st.rows.pools)
ANSWERS = {
    "admit": lambda _, st, __: {
        **{"handle": 0, "node": ROOT, "top": ROOT, "counting": False},
        "pages": answers.no_pages(full_pool(st.rows).pages),
    },
    "admit_tail": lambda pick, st, given: answers.tail(
        pick, st.rows.pools.now, given["pages"].length, Length(given["start"], 0), given["to"]
    ),
    **dict.fromkeys(("reserve", "extend", "extend_elsewhere"), GROWN),
    "decode": answers.pages_of_pair(answers.one_more, lambda st: st.rows.pools),
    "settle_swa": lambda _, st, __: answers.settles_nothing(st.rows.pools),
    **dict.fromkeys(("leave_window", "revive_in_place"), lambda *_: {"later": False}),
    "free_group_begin": answers.opens,
    "state_group_begin": lambda pick, st, given: answers.set_aside(pick, st.states, given["need"]),
    "state_admit": lambda pick, st, given: answers.equipment(pick, st.states, given["request"]),
    **dict.fromkeys(
        ("state_second", "state_swap", "state_renew"), lambda pick, st, _: answers.open_slot(pick, st.states)
    ),
    **dict.fromkeys(
        ("state_match", "state_copy"), lambda pick, st, _: {**answers.open_slot(pick, st.states), "at_once": False}
    ),
    **dict.fromkeys(("state_match_again", "state_take_back"), lambda *_: {"at_once": False}),
}
UNANSWERED = {
    "continue_prefill": "The laws do not say that the tree still has a node where the cached prefix of a leaving row "
    "ends, with the row's text and an SWA part: it may have been evicted, merged, or never inserted.",
}
TAKES = {"state_admit": lambda st, given: answers.handed_out(st.states, given)}

HINTS = Hints(
    stem=law.stem,
    over={
        "full_pages": lambda st: full_pool(st.rows).pages,
        "swa_pages": lambda st: swa_pool(st.rows).pages,
        "done": lambda st: swa_pool(st.rows).pages,
        "pages": lambda st: full_pool(st.rows).pages,
        "chosen": lambda st: st.states.slots,
    },
    sizes=SIZES,
    small=small,
    moves=MOVES,
    places={
        **{"handle": "handles", "old": "handles"},
        **{"node": "nodes", "child": "nodes", "new": "nodes", "leaf": "nodes", "under": "nodes", "top": "nodes"},
        **{"job": "jobs"},
    },
    refusable=frozenset(
        {
            *("admit_tail", "reserve", "extend", "extend_elsewhere", "decode"),
            *("state_match", "state_admit", "state_second", "state_copy", "state_swap", "state_renew"),
        }
    ),
    routes=ROUTES,
    relevant_laws=RELEVANT_LAWS,
    answers=ANSWERS,
    takes=TAKES,
    unanswered=UNANSWERED,
    drain=cache_drain.DRAIN,
    named=dict.fromkeys(
        ("reads_held_pages", "reads_held_window", "window_reads_own_text", "prefix_is_the_trees"),
        lambda st, row: st.tree.node(st.handle(row)),
    ),
    mutants=MUTANTS,
    assumptions=COMMON,
)
