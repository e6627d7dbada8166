"""What calls do to the whole cache: laws of two states of ``spec.cache``.

``was`` is the state before a granted call, ``now`` the state after it. What a call does to the row of a request is said
once, in ``spec.row_effects``, and registered for the part ``rows``.
"""

from __future__ import annotations

from spec import lock_effects, row_effects, state_effects
from spec.cache_state import CacheState
from spec.lengths import Length
from spec.lock_ref_state import begin, lives
from spec.logic import Number, Seq, Truth, implies, ite
from spec.mamba_slots_state import RUNNING as EQUIPPED
from spec.mamba_slots_state import is_request
from spec.pool import PADDING
from spec.session_trim_state import RUNNING, each_request, full_pool, swa_pool


def row_gets_the_chosen_pages(was: CacheState, now: CacheState, row: Number, full_pages: Seq, swa_pages: Seq) -> Truth:
    """A row that grows gets exactly the full pages and the SWA pages that the engine hands out."""
    return row_effects.row_gets_the_chosen_pages(was.rows, now.rows, row, full_pages, swa_pages)


def runs_with_its_lock(was: CacheState, now: CacheState, row: Number, handle: Number) -> Truth:
    """The row, which did not run, runs, and the lock handle that it takes is its one handle; 0: it has none."""
    return (was.rows.phase(row) != RUNNING) & (now.rows.phase(row) == RUNNING) & (now.handle(row) == handle)


def matched_node_is_locked(
    was: CacheState, now: CacheState, handle: Number, node: Number, top: Number, counting: Truth
) -> Truth:
    """The lock handle that a row takes, if it takes one, is on the node that the match has found, and holds the parts
    of its path that are there; what is missing it counts or skips, as the engine chose (SGLang ``inc_lock_ref``).
    """
    return implies(handle != 0, lock_effects.locks_as_asked(was.tree, now.tree, handle, node, top, counting))


def is_equipped_with(
    was: CacheState, now: CacheState, row: Number, request: Number, own: Number, first: Number, second: Number
) -> Truth:
    """The request that runs on the row has the state slots that it is handed, in the roles that it lacked."""
    equipped = state_effects.is_equipped_with(was.states, now.states, request, own, first, second)
    return (was.rows.phase(row) == RUNNING) & (was.mine(row) == 0) & (now.mine(row) == request + 1) & equipped


# What each call must achieve, and what it leaves alone.


def others_keep_their_prefix(was: CacheState, now: CacheState, row: Number) -> Truth:
    """Every other row reads the pages that it read, with its lock and its text: what happens to one request takes no
    prefix from another.
    """

    def keeps(r: Number) -> Truth:
        reads = full_pool(was.rows).indices.all(lambda i: now.reads(r, i) == was.reads(r, i))
        return (r == row) | (
            (now.handle(r) == was.handle(r)) & (now.contents.story(r) == was.contents.story(r)) & reads
        )

    return each_request(was.rows, keeps)


def sessions_keep_their_prefix(was: CacheState, now: CacheState, session: Number) -> Truth:
    """A call for a session takes no prefix from a row of another session or request."""
    return others_keep_their_prefix(was, now, was.rows.slot(session) - 1)


def requests_keep_their_prefix(was: CacheState, now: CacheState) -> Truth:
    """A call that is for no request takes no prefix from any."""
    return others_keep_their_prefix(was, now, was.rows.limit)


def reads_the_matched_pages(was: CacheState, now: CacheState, row: Number, story: Number, pages: Seq) -> Truth:
    """The row has the text of its own request, and shows the matched pages at its first indices."""
    shown = full_pool(was.rows).indices.all(lambda i: implies(i < pages.length, now.reads(row, i) == pages.at(i)))
    return shown & (now.contents.story(row) == story)


def request_begins(was: CacheState, now: CacheState, row: Number, session: Number, story: Number, pages: Seq) -> Truth:
    """A request that is admitted runs on its row, as a turn of its session and with its own text: the matched pages are
    computed, and no token behind them has a slot (SGLang ``ScheduleBatch.prepare_for_extend``).
    """
    begun = row_effects.begins_with_its_prefix(was.rows, now.rows, row, session, pages.length)
    return begun & reads_the_matched_pages(was, now, row, story, pages)


def request_begins_with_its_tail(
    was: CacheState,
    now: CacheState,
    row: Number,
    session: Number,
    story: Number,
    pages: Seq,
    start: Number,
    to: Length,
) -> Truth:
    """A request whose first tokens were computed elsewhere runs on its row, as a turn of its session and with its own
    text; its slots for these tokens stand behind the matched pages (SGLang ``DecodePreallocQueue._pre_alloc``).
    """
    begun = row_effects.begins_with_its_tail(was.rows, now.rows, row, session, pages.length, start, to)
    return begun & reads_the_matched_pages(was, now, row, story, pages)


def goes_on_from_the_tree(was: CacheState, now: CacheState, row: Number, old: Number, handle: Number) -> Truth:
    """A request that runs again after an insert keeps all its tokens, and its new lock takes the place of the old one
    (SGLang ``checkpoint_kv_cache``).
    """
    again = row_effects.only_runs_again(was.rows, now.rows, row)
    return again & (now.tree.active(handle) == 1) & implies(old != 0, now.tree.active(old) == 0)


def next_turn_runs_with_its_text(was: CacheState, now: CacheState, session: Number, story: Number) -> Truth:
    """The next turn of a session runs on the saved row, with all its tokens and with its own text, not with that of the
    turn before (SGLang ``Session.create_req``, ``StreamingSession.try_match_prefix``).
    """
    runs = row_effects.next_turn_runs(was.rows, now.rows, session)
    return runs & (now.contents.story(was.rows.slot(session) - 1) == story)


def lock_is_let_go(was: CacheState, now: CacheState, row: Number, old: Number) -> Truth:
    """The row has no lock, and the one that it had is released (SGLang ``dec_lock_ref``)."""
    return (was.handle(row) == old) & (now.handle(row) == 0) & implies(old != 0, now.tree.active(old) == 0)


def request_is_gone(was: CacheState, now: CacheState, row: Number, old: Number) -> Truth:
    """A request that ends gives back its lock and every page that its row owned; its session, if it has one, has no row
    any more (SGLang ``release_kv_cache``).
    """
    return row_effects.row_is_given_back(was.rows, now.rows, row) & lock_is_let_go(was, now, row, old)


def session_is_gone(was: CacheState, now: CacheState, session: Number, old: Number) -> Truth:
    """A session that ends has no row; its saved row gives back its lock and every page that it owned (SGLang
    ``StreamingSession.release_session``).
    """
    given = row_effects.session_is_given_back(was.rows, now.rows, session)
    return given & lock_is_let_go(was, now, was.rows.slot(session) - 1, old)


def window_is_let_go(was: CacheState, now: CacheState, old: Number) -> Truth:
    """A lock that gives its SWA part back early holds it no more (SGLang ``dec_swa_lock_only``)."""
    return lock_effects.gives_its_window_back(was.tree, now.tree, old)


def state_is_let_go(was: CacheState, now: CacheState, old: Number) -> Truth:
    """A lock that gives its mamba state back early holds none, and keeps its pages (SGLang ``dec_lock_ref``)."""
    return lock_effects.gives_its_state_back(was.tree, now.tree, old)


def leaf_gets_the_rows_pages(
    was: CacheState, now: CacheState, row: Number, under: Number, leaf: Number, pages: Number, live: Truth
) -> Truth:
    """An insert makes a leaf of exactly the row's own pages up to the index ``pages``, which the row goes on reading
    (SGLang ``UnifiedRadixCache.insert``).
    """
    grown = lock_effects.grows_as_asked(was.tree, now.tree, under, leaf, pages, was.inserts + 1, live, False)
    given = row_effects.gives_its_own_pages(was.rows, now.rows, row, was.rows.limit + leaf, pages)
    return grown & given & row_effects.passes_its_prefix_on(was.rows, now.rows, row, pages)


def tombstone_gets_the_rows_pages(was: CacheState, now: CacheState, row: Number, node: Number) -> Truth:
    """A tombstone that is revived has the row's own full and SWA pages in the place of its old ones, and no others
    (SGLang ``UnifiedRadixCache.insert``).
    """
    full, swa, home = full_pool(was.rows), swa_pool(was.rows), was.rows.limit + node
    first, last = was.rows.protected(row), was.tree.stop(node)

    def given(i: Number) -> Truth:
        moved = (first <= i) & (i < last)
        here = full_pool(now.rows).table(home, i) == ite(moved, full.table(row, i), PADDING)
        return here & (swa_pool(now.rows).table(home, i) == ite(moved, swa.table(row, i), PADDING))

    live = (now.tree.swa(node) == 1) & (now.tree.source(node) == was.inserts + 1)
    return live & full.indices.all(given) & row_effects.passes_its_prefix_on(was.rows, now.rows, row, last)


def tombstone_gets_the_rows_window(was: CacheState, now: CacheState, row: Number, node: Number) -> Truth:
    """A tombstone that others may read keeps its full pages and has the row's own SWA pages (SGLang PR 27038)."""
    last, home = was.tree.stop(node), was.rows.limit + node
    given = row_effects.gives_its_window_pages(was.rows, now.rows, row, home, last)
    return given & row_effects.passes_its_prefix_on(was.rows, now.rows, row, last) & (now.tree.swa(node) == 1)


def upper_half_gets_its_pages(was: CacheState, now: CacheState, child: Number, new: Number, at: Number) -> Truth:
    """A node that is split keeps the pages of the lower part of its key; its new parent gets the others (SGLang
    ``RadixCache._split_node``).
    """
    homes = was.rows.limit + child, was.rows.limit + new
    passed = row_effects.node_gets_the_pages(was.rows, now.rows, *homes, begin(was.tree, child), at)
    return passed & lives(now.tree, new) & (now.tree.stop(new) == at) & (now.tree.parent(child) == new)


def node_takes_in_its_parent(was: CacheState, now: CacheState, node: Number, above: Number) -> Truth:
    """Of two nodes that become one, the lower has the pages of both; the upper is gone (SGLang
    ``UnifiedRadixCache``, where a node with one child is joined to it).
    """
    homes = was.rows.limit + above, was.rows.limit + node
    first, last = begin(was.tree, above), was.tree.stop(above)
    passed = row_effects.node_gets_the_pages(was.rows, now.rows, *homes, first, last)
    return passed & (now.tree.alive(above) != 1) & (now.tree.parent(node) == was.tree.parent(above))


def leaf_is_gone(was: CacheState, now: CacheState, node: Number) -> Truth:
    """A leaf that is evicted is not in the tree, and has no page (SGLang ``UnifiedRadixCache.evict``)."""
    gone = row_effects.node_keeps_no_page(was.rows, now.rows, was.rows.limit + node)
    return lives(was.tree, node) & (now.tree.alive(node) != 1) & gone


def only_the_window_is_gone(was: CacheState, now: CacheState, node: Number) -> Truth:
    """A node whose SWA pages are evicted is a tombstone: it is in the tree, with all its full pages (SGLang
    ``UnifiedRadixCache.evict``).
    """
    kept = row_effects.node_keeps_its_full_pages(was.rows, now.rows, was.rows.limit + node)
    return lives(now.tree, node) & (now.tree.swa(node) == 0) & kept


# The mamba states of requests, sessions and tree nodes.


def session_saves_every_state(was: CacheState, now: CacheState, request: Number, session: Number) -> Truth:
    """A turn that is saved leaves all its state slots to its session (SGLang
    ``StreamingSession.try_cache_finished_req``).
    """
    owner = was.states.limit + session - 1
    return state_effects.session_gets_every_slot(was.states, now.states, request, owner) & (now.carrier(request) == 0)


def next_turn_gets_every_state(was: CacheState, now: CacheState, session: Number, request: Number) -> Truth:
    """The next turn of a session waits with all state slots of its session's slot (SGLang
    ``StreamingSession.try_match_prefix``).
    """
    return state_effects.comes_from_the_session(was.states, now.states, was.states.limit + session - 1, request)


def session_gives_every_state(was: CacheState, now: CacheState, session: Number) -> Truth:
    """A session that ends gives back each of its state slots (SGLang ``StreamingSession._free_slot_mamba``)."""
    return state_effects.session_has_no_slot(was.states, now.states, was.states.limit + session - 1)


def request_gives_every_state(was: CacheState, now: CacheState, request: Number) -> Truth:
    """A request that ends has no state slot, and its row names no request any more (SGLang
    ``HybridReqToTokenPool.free_mamba_cache``).
    """
    row = was.carrier(request) - 1
    off = implies(was.carrier(request) != 0, now.mine(row) == 0)
    return state_effects.goes_for_good(was.states, now.states, request) & off


def node_copies_a_state(was: CacheState, now: CacheState, request: Number, node: Number, slot: Number) -> Truth:
    """The tree node, which had no state, has one, in the slot that is handed out for the copy of the state of a request
    that runs.
    """
    runs = is_request(was.states, request) & (was.states.phase(request) == EQUIPPED)
    got = state_effects.node_gets_the_slot(was.states, now.states, was.states.first_node + node, slot)
    return runs & got & (was.tree.mamba(node) != 1) & (now.tree.mamba(node) == 1)


def node_gives_its_state(was: CacheState, now: CacheState, node: Number) -> Truth:
    """The tree node, which had a state, has none, and its slot can be handed out again (SGLang
    ``UnifiedRadixCache.evict``).
    """
    gone = state_effects.node_gives_its_slot(was.states, now.states, was.states.first_node + node)
    return gone & (was.tree.mamba(node) == 1) & (now.tree.mamba(node) != 1)


def states_hold_what_they_held(was: CacheState, now: CacheState) -> Truth:
    """A state slot holds the state that it held until a forward pass, a copy or an admission with a new slot writes
    it: a request that goes on, and the next turn of a session, compute on the state that was left to them.
    """
    before, after = was.contents, now.contents

    def stays(s: Number) -> Truth:
        place = (after.state_page(s) == before.state_page(s)) & (after.state_offset(s) == before.state_offset(s))
        return (after.state(s) == before.state(s)) & place

    return was.states.slots.all(stays)
