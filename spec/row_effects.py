"""What calls do to rows: laws of two states of ``spec.session_trim``, which ``spec.cache`` says again of its own calls.

``was`` is the state before a granted call, ``now`` the state after it.
"""

from __future__ import annotations

from spec import pool_effects
from spec.lengths import NOTHING, Length, at_most, pick, same, shorter, shortest
from spec.logic import Number, Seq, Set, Truth, implies, ite, no
from spec.pool import PADDING
from spec.session_trim_state import (
    IDLE,
    LEAVING,
    RUNNING,
    SAVED,
    SessionTrimState,
    allocated,
    committed,
    cursor,
    each_request,
    full_pool,
    protected,
    swa_pool,
    text,
)


def life_of_a_row(was: SessionTrimState, now: SessionTrimState) -> Truth:
    """An idle row can start to run, and a running row can be saved or leave.

    A saved row and a leaving row can run again, or become idle.
    """

    def goes(r: Number, one: Number, other: Number) -> Truth:
        return (was.phase(r) == one) & (now.phase(r) == other)

    def lawful(r: Number) -> Truth:
        begins = goes(r, IDLE, RUNNING) | goes(r, SAVED, RUNNING) | goes(r, LEAVING, RUNNING)
        stops = goes(r, RUNNING, SAVED) | goes(r, RUNNING, LEAVING)
        ends = goes(r, SAVED, IDLE) | goes(r, LEAVING, IDLE)
        return (was.phase(r) == now.phase(r)) | begins | stops | ends

    return each_request(was, lawful)


def commits_what_it_gets(was: SessionTrimState, now: SessionTrimState, row: Number) -> Truth:
    """Each token that a prefill or a decode commits got its slot in this call: no slot of a draft is overwritten."""
    return same(committed(was, row), allocated(was, row)) & same(committed(now, row), allocated(now, row))


def no_draft_in_the_next_turn(was: SessionTrimState, now: SessionTrimState) -> Truth:
    """A saved row that runs again has slots for exactly the tokens that are committed."""

    def exact(r: Number) -> Truth:
        again = (was.phase(r) == SAVED) & (now.phase(r) == RUNNING)
        return implies(again, same(committed(now, r), allocated(now, r)))

    return each_request(was, exact)


def row_gets_the_chosen_pages(
    was: SessionTrimState, now: SessionTrimState, row: Number, full_pages: Seq, swa_pages: Seq
) -> Truth:
    """A row that grows gets exactly the full pages and the SWA pages that the implementation hands out."""
    full = pool_effects.takes_chosen(full_pool(was), full_pool(now), row, full_pages)
    return full & pool_effects.takes_chosen(swa_pool(was), swa_pool(now), row, swa_pages)


def slides_behind_the_prefix(was: SessionTrimState, now: SessionTrimState, row: Number, to: Number) -> Truth:
    """The cursor of a row whose window moves on stands at the page index ``to``, behind the cached prefix."""
    return (
        same(cursor(now, row), Length(to, 0)) & (was.protected(row) <= to) & at_most(cursor(was, row), cursor(now, row))
    )


def leaves_the_window_behind(
    was: SessionTrimState, now: SessionTrimState, row: Number, first: Number, to: Number
) -> Truth:
    """Where every layer has a sliding window, a row gives back its pages up to the new cursor ``to``, and no more.

    Pages below ``first`` stay, but for those that left the window before: a tree may take them when the request ends.
    """
    moved = same(cursor(now, row), Length(to, 0)) & at_most(cursor(was, row), cursor(now, row))
    full, still = full_pool(was), full_pool(now)

    def kept(i: Number) -> Truth:
        there = (first <= i) & (i < to)
        return still.table(row, i) == ite(there, PADDING, full.table(row, i))

    return (was.protected(row) <= first) & moved & full.indices.all(kept)


def keeps_what_is_committed(was: SessionTrimState, now: SessionTrimState, row: Number, to: Length) -> Truth:
    """A row that is rolled back has slots for ``to`` tokens, and what was committed below them stays committed."""
    return same(allocated(now, row), to) & same(committed(now, row), shortest(to, committed(was, row)))


# What each call must achieve. A law names the function of SGLang, or the pull request, that asks for it.


def keeps_its_tokens(was: SessionTrimState, now: SessionTrimState, row: Number) -> Truth:
    """The row has its computed tokens, its slots and its cached prefix; no more tokens have left its window."""
    lengths = same(committed(was, row), committed(now, row)) & same(allocated(was, row), allocated(now, row))
    return lengths & same(protected(was, row), protected(now, row)) & same(cursor(was, row), cursor(now, row))


def ends_at(now: SessionTrimState, row: Number, to: Length) -> Truth:
    """``to`` tokens of the row are computed, and it has slots for these and no more."""
    return same(committed(now, row), to) & same(allocated(now, row), to)


def belongs_to(now: SessionTrimState, row: Number, session: Number) -> Truth:
    """A request of this session runs on the row (0: of none), and the session's slot has the row."""
    kept = implies(session != 0, now.slot(session) == row + 1)
    return (now.phase(row) == RUNNING) & (now.session(row) == session) & kept


def others_go_on(was: SessionTrimState, now: SessionTrimState, row: Number) -> Truth:
    """Every other row of a request has its tokens, its pages and its session, and is in its phase: what happens to one
    request changes no other.
    """
    full, swa = full_pool(was), swa_pool(was)

    def goes_on(r: Number) -> Truth:
        pages = full.indices.all(
            lambda i: (full_pool(now).table(r, i) == full.table(r, i)) & (swa_pool(now).table(r, i) == swa.table(r, i))
        )
        text_stays = same(text(was, r), text(now, r)) & (was.gap(r) == now.gap(r))
        stays = (was.phase(r) == now.phase(r)) & (was.session(r) == now.session(r)) & text_stays
        return (r == row) | (stays & keeps_its_tokens(was, now, r) & pages)

    return each_request(was, goes_on)


def other_sessions_go_on(was: SessionTrimState, now: SessionTrimState, session: Number) -> Truth:
    """A call for a session changes no row but that of this session."""
    return others_go_on(was, now, was.slot(session) - 1)


def requests_go_on(was: SessionTrimState, now: SessionTrimState) -> Truth:
    """A call that is for no request changes no row of a request."""
    return others_go_on(was, now, was.limit)


def begins_with_its_prefix(
    was: SessionTrimState, now: SessionTrimState, row: Number, session: Number, pages: Number
) -> Truth:
    """A request that is admitted runs on its row, as a turn of its session: the pages that were matched are computed,
    the tree owns them, and no token behind them has a slot (SGLang ``ScheduleBatch.prepare_for_extend``).
    """
    prefix = same(protected(now, row), Length(pages, 0)) & same(cursor(now, row), NOTHING)
    begins = (was.phase(row) == IDLE) & belongs_to(now, row, session)
    return begins & prefix & ends_at(now, row, Length(pages, 0))


def begins_with_its_tail(
    was: SessionTrimState, now: SessionTrimState, row: Number, session: Number, pages: Number, start: Number, to: Length
) -> Truth:
    """A request whose first tokens were computed elsewhere runs on its row, as a turn of its session, with slots for
    these tokens; its window begins where its tail does (SGLang ``DecodePreallocQueue._pre_alloc``).
    """
    prefix = same(protected(now, row), Length(pages, 0)) & same(cursor(now, row), Length(start, 0))
    begins = (was.phase(row) == IDLE) & belongs_to(now, row, session)
    return begins & prefix & ends_at(now, row, to)


def gets_slots_for_a_draft(was: SessionTrimState, now: SessionTrimState, row: Number, to: Length) -> Truth:
    """A row that reserves has slots up to ``to``, and not one token more is computed (SGLang
    ``eagle_prepare_for_decode``).
    """
    return same(allocated(now, row), to) & same(committed(now, row), committed(was, row))


def computes_what_is_asked(was: SessionTrimState, now: SessionTrimState, row: Number, to: Length) -> Truth:
    """A prefill, or a chunk of it, computes the tokens up to ``to``: not fewer, and not more (SGLang
    ``ScheduleBatch.prepare_for_extend``).
    """
    runs = (was.phase(row) == RUNNING) & (now.phase(row) == RUNNING)
    return runs & ends_at(now, row, to)


def computes_one_token(was: SessionTrimState, now: SessionTrimState, row: Number) -> Truth:
    """A decode computes one token, the one behind the last (SGLang ``ScheduleBatch.prepare_for_decode``)."""
    before, after, size = committed(was, row), committed(now, row), full_pool(was).page_size
    inside = (after.pages == before.pages) & (after.rest == before.rest + 1) & (after.rest < size)
    begins_page = (after.pages == before.pages + 1) & (after.rest == 0) & (before.rest + 1 == size)
    return (inside | begins_page) & same(allocated(now, row), after)


def commits_what_was_accepted(was: SessionTrimState, now: SessionTrimState, row: Number, to: Length) -> Truth:
    """After a draft is verified exactly its accepted tokens count as computed; the slots of the others stay with the
    row (SGLang ``SchedulerBatchResultProcessor._resolve_spec_v2_tokens``).
    """
    return same(committed(now, row), to) & same(allocated(now, row), allocated(was, row))


def only_stops(was: SessionTrimState, now: SessionTrimState, row: Number) -> Truth:
    """A request that stops reading keeps its tokens until they are donated or given back (SGLang
    ``release_kv_cache``).
    """
    return (now.phase(row) == LEAVING) & keeps_its_tokens(was, now, row)


def only_runs_again(was: SessionTrimState, now: SessionTrimState, row: Number) -> Truth:
    """A request that runs again after it donated pages goes on with all its tokens (SGLang ``checkpoint_kv_cache``)."""
    return (now.phase(row) == RUNNING) & keeps_its_tokens(was, now, row)


def passes_its_prefix_on(was: SessionTrimState, now: SessionTrimState, row: Number, pages: Number) -> Truth:
    """Up to the index ``pages`` the row's pages belong to the tree from now on, and the row keeps all its tokens
    (SGLang ``checkpoint_kv_cache``, ``Req.kv.cache_protected_len``).
    """
    lengths = same(committed(was, row), committed(now, row)) & same(allocated(was, row), allocated(now, row))
    return (now.protected(row) == pages) & lengths & same(cursor(was, row), cursor(now, row))


def gives_its_own_pages(was: SessionTrimState, now: SessionTrimState, row: Number, to: Number, pages: Number) -> Truth:
    """The node's row has exactly the pages that the request's row had behind its cached prefix, each at its index."""
    full, swa = full_pool(was), swa_pool(was)

    def given(i: Number) -> Truth:
        moved = (was.protected(row) <= i) & (i < pages)
        here = full_pool(now).table(to, i) == ite(moved, full.table(row, i), full.table(to, i))
        return here & (swa_pool(now).table(to, i) == ite(moved, swa.table(row, i), swa.table(to, i)))

    return full.indices.all(given)


def gives_its_window_pages(
    was: SessionTrimState, now: SessionTrimState, row: Number, to: Number, pages: Number
) -> Truth:
    """The node's row keeps its full pages, and has the SWA pages that the request's row had at these indices."""
    full, swa = full_pool(was), swa_pool(was)

    def given(i: Number) -> Truth:
        moved = (was.protected(row) <= i) & (i < pages)
        kept = full_pool(now).table(to, i) == full.table(to, i)
        return kept & (swa_pool(now).table(to, i) == ite(moved, swa.table(row, i), swa.table(to, i)))

    return full.indices.all(given)


def is_given_back(now: SessionTrimState, row: Number) -> Truth:
    """The row is idle: it has no token, no page and no session."""
    full, swa = full_pool(now), swa_pool(now)
    pages = full.indices.all(lambda i: (full.table(row, i) == PADDING) & (swa.table(row, i) == PADDING))
    free = (now.phase(row) == IDLE) & (now.session(row) == 0) & pages
    return free & ends_at(now, row, NOTHING) & same(protected(now, row), NOTHING)


def row_is_given_back(was: SessionTrimState, now: SessionTrimState, row: Number) -> Truth:
    """A request that ends gives back every page that its row owned; its session, if it has one, has no row any more
    (SGLang ``release_kv_cache``).
    """
    mine = was.session(row)
    return is_given_back(now, row) & implies(mine != 0, now.slot(mine) == 0)


def session_is_given_back(was: SessionTrimState, now: SessionTrimState, session: Number) -> Truth:
    """A session that ends has no row, and its saved row gives back every page that it owned (SGLang
    ``StreamingSession.release_session``).
    """
    return (now.slot(session) == 0) & is_given_back(now, was.slot(session) - 1)


def saves_what_was_sent(was: SessionTrimState, now: SessionTrimState, row: Number, agreed: Length) -> Truth:
    """A turn that ends is saved with the text that was agreed, and with every computed token of this text; slots of a
    draft and of an answer that was not sent are given back (SGLang ``StreamingSession.try_cache_finished_req``, PR
    22862). Where the window before the last of these tokens is gone, the cached prefix is what stays (PR 22900).
    """
    over = shorter(agreed, committed(was, row))
    kept = shortest(agreed, committed(was, row))
    slots = same(allocated(now, row), pick(over, committed(now, row), shortest(agreed, allocated(was, row))))
    saved = (now.phase(row) == SAVED) & same(text(now, row), agreed)
    return saved & goes_back_to(was, now, row, kept) & slots & same(protected(now, row), protected(was, row))


def goes_back_to(was: SessionTrimState, now: SessionTrimState, row: Number, to: Length) -> Truth:
    """``to`` tokens of the row count as computed, or those of its cached prefix where the window before ``to`` is
    gone.
    """
    gone = (was.protected(row) < was.cursor(row)) & shorter(to, Length(was.cursor(row) + was.window, was.window_rest))
    back = same(committed(now, row), protected(was, row)) & same(cursor(now, row), protected(was, row))
    stays = same(committed(now, row), to) & same(cursor(now, row), cursor(was, row))
    return ite(gone, back, stays)


def next_turn_begins_there(was: SessionTrimState, now: SessionTrimState, session: Number, prefix: Length) -> Truth:
    """The saved row has exactly the tokens of the prefix on which the next turn goes on, and no slot behind them
    (SGLang ``StreamingSession.try_match_prefix``, PR 22862). Where the window before the prefix is gone, the cached
    prefix is what stays (PR 22900).
    """
    row = was.slot(session) - 1
    stays = (now.phase(row) == SAVED) & (now.slot(session) == was.slot(session))
    return stays & goes_back_to(was, now, row, prefix) & same(allocated(now, row), committed(now, row))


def next_turn_runs(was: SessionTrimState, now: SessionTrimState, session: Number) -> Truth:
    """The next turn runs on the saved row with all its tokens; the session keeps this row (SGLang
    ``StreamingSession.try_match_prefix``).
    """
    row = was.slot(session) - 1
    return belongs_to(now, row, session) & keeps_its_tokens(was, now, row)


def node_gets_the_pages(
    was: SessionTrimState, now: SessionTrimState, row: Number, to: Number, first: Number, last: Number
) -> Truth:
    """A tree node's row gets exactly these pages of another node's row, each at its index, and they leave that row
    (SGLang ``RadixCache._split_node``).
    """
    full, swa = full_pool(was), swa_pool(was)

    def passed(i: Number) -> Truth:
        moved = (first <= i) & (i < last)
        here = full_pool(now).table(to, i) == ite(moved, full.table(row, i), full.table(to, i))
        here_swa = swa_pool(now).table(to, i) == ite(moved, swa.table(row, i), swa.table(to, i))
        left = implies(moved, (full_pool(now).table(row, i) == PADDING) & (swa_pool(now).table(row, i) == PADDING))
        return here & here_swa & left

    return full.indices.all(passed)


def node_keeps_no_page(was: SessionTrimState, now: SessionTrimState, row: Number) -> Truth:
    """The row of a tree node that is evicted has no page and no token (SGLang ``UnifiedRadixCache.evict``)."""
    full, swa = full_pool(now), swa_pool(now)
    pages = full.indices.all(lambda i: (full.table(row, i) == PADDING) & (swa.table(row, i) == PADDING))
    return (was.limit <= row) & pages & same(allocated(now, row), NOTHING)


def node_keeps_its_full_pages(was: SessionTrimState, now: SessionTrimState, row: Number) -> Truth:
    """The row of a node that becomes a tombstone has no SWA page, and all its full pages (SGLang
    ``UnifiedRadixCache.evict``).
    """
    full, still = full_pool(was), full_pool(now)

    def kept(i: Number) -> Truth:
        return (still.table(row, i) == full.table(row, i)) & (swa_pool(now).table(row, i) == PADDING)

    return full.indices.all(kept) & same(allocated(was, row), allocated(now, row))


def ends_the_wait(was: SessionTrimState, now: SessionTrimState, done: Set, available: Truth) -> Truth:
    """SWA pages whose wait an engine ends inside a free group can be handed out where the engine says so, and wait on
    where it does not; every other SWA page is where it was (SGLang ``SWATokenToKVPoolAllocator.free_swa``).
    """
    return pool_effects.wait_or_rest(swa_pool(was), swa_pool(now), done, no(available))


def group_opens_as_asked(was: SessionTrimState, now: SessionTrimState, opens: Truth) -> Truth:
    """A free group is open after it began, one more than before where the engine nests it (SGLang
    ``SWATokenToKVPoolAllocator.free_group_begin``).
    """
    return pool_effects.opens(was.pools.group, now.pools.group, opens)
