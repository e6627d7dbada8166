"""Wrong transitions beside the holes that a review has found in the laws: siblings of known holes.

A *hole* is a wrong transition that every proof accepted. A law that is added for one hole can be so narrow that it
refutes this one wrong transition and nothing else. So for each hole there are three siblings: wrong in the way of the
hole, or in a neighbouring way (another field, another transition of the family, another corner). They were written down
before the laws that are to close the holes. ``SIBLINGS`` lists them.

Each sibling has the arguments of its transition, keeps to the rules of a spec, so that it can be read on symbols, and
changes the parts of a composed state by calls of the parts' transitions alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from proofs.hints import Transition, altered, unasked
from spec import (
    allocator,
    block_cache,
    cache,
    isolation,
    lock_ref,
    mamba_in_cache,
    mamba_slots,
    session_trim,
    state_isolation,
    swa_mapping,
)
from spec.allocator import AllocatorState
from spec.block_cache import IDLE, KEPT, LOADS, RUNS, BlockCacheState
from spec.cache_state import CacheState, read_own
from spec.contents import EMPTY
from spec.lengths import NOTHING, Length, at_most, next_token, pick, same, shorter, shortest, touched
from spec.lock_ref_state import ROOT, LockRefState, begin, between, covers_window, lives, over, path, span, window_top
from spec.logic import Number, Seq, Set, Step, Truth, but, call, either, implies, ite, requires
from spec.mamba_slots_state import ABSENT, FIRST, HELD, OWN, SECOND, MambaSlotsState, drop, move, only
from spec.pool import length
from spec.session_trim_state import SessionTrimState, allocated, back_to, committed, full_pool, protected, resumable
from spec.swa_mapping import SwaMappingState

S = TypeVar("S")


@dataclass(frozen=True)
class Sibling:
    """A wrong version of a transition of a stem, of the kind of ``hole``: a wrong transition that was accepted once."""

    name: str
    stem: str
    transition: str
    hole: str
    wrong: Transition


def as_asked(right: Step[S], wrong: Step[S]) -> Step[S]:
    """What the wrong step does, where the right step is asked for: what is asked is what the right step asks."""
    return but(wrong, promises=right.promises, choice=right.choice, fits=right.fits)


def before(to: Length, page_size: Number) -> Length:
    """The length with one token fewer."""
    return Length(to.pages - ite(to.rest == 0, 1, 0), ite(to.rest == 0, page_size, to.rest) - 1)


def size_of(st: SessionTrimState) -> Number:
    """The page size."""
    return full_pool(st).page_size


def down(to: Length) -> Length:
    """The whole pages of the length."""
    return Length(to.pages, 0)


def up(to: Length) -> Length:
    """The length rounded up to whole pages."""
    return Length(touched(to), 0)


# Hole: ``commit`` ignores a partial acceptance.


def ignores_a_partial_acceptance(st: CacheState, row: Number, to: Length) -> Step[CacheState]:
    """A draft of which a part is accepted counts as refused: no accepted token is committed."""
    rows = st.rows
    taken = pick(same(to, allocated(rows, row)), to, committed(rows, row))
    return as_asked(cache.commit(st, row, to), cache.commit(st, row, taken))


def loses_the_last_accepted_token(st: CacheState, row: Number, to: Length) -> Step[CacheState]:
    """The last token that was accepted is not committed, so that it is missing in the answer's KV cache."""
    rows = st.rows
    taken = pick(shorter(committed(rows, row), to), before(to, size_of(rows)), to)
    return as_asked(cache.commit(st, row, to), cache.commit(st, row, taken))


def accepts_one_token_at_most(st: SessionTrimState, row: Number, to: Length) -> Step[SessionTrimState]:
    """Of the tokens of a draft that are accepted only the first one is committed."""
    now = committed(st, row)
    taken = pick(shorter(now, to), next_token(now, size_of(st)), to)
    return as_asked(session_trim.commit(st, row, to), session_trim.commit(st, row, taken))


# Hole: ``resume`` runs with the text of the turn before.


def resumes_with_the_text_before(st: CacheState, session: Number, story: Number, given: Length) -> Step[CacheState]:
    """The next turn of a session runs, and its row still has the text of the turn before: its new input is not read."""
    return altered(cache.resume(st, session, story, given), contents=st.contents)


def admits_with_the_first_text(
    st: CacheState, row: Number, session: Number, story: Number, handle: Number, node: Number, top: Number,
    counting: Truth, pages: Seq,
) -> Step[CacheState]:  # fmt: skip
    """A request for which the tree has nothing runs with the first text of all, and not with its own."""
    step = cache.admit(st, row, session, story, handle, node, top, counting, pages)
    return but(step, then=isolation.with_story(step.then, row, ite(handle == 0, 0, story)))


def admits_a_tail_with_the_first_text(
    st: CacheState, row: Number, session: Number, story: Number, handle: Number, node: Number, top: Number,
    counting: Truth, pages: Seq, start: Number, to: Length, full_pages: Seq, swa_pages: Seq,
) -> Step[CacheState]:  # fmt: skip
    """What was computed elsewhere for a request without a match is the first text of all, and not the request's own."""
    found = handle, node, top, counting, pages
    tail = start, to, full_pages, swa_pages
    other = ite(handle == 0, 0, story)
    right = cache.admit_tail(st, row, session, story, *found, *tail)
    return as_asked(right, cache.admit_tail(st, row, session, other, *found, *tail))


# Hole: ``extend`` computes fewer tokens than asked.


def prefilled(
    st: CacheState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq, counted: Length
) -> Step[CacheState]:
    """The step of a prefill that gets slots for ``to`` tokens, and computes and commits those up to ``counted``."""
    rows = st.rows
    grown = call("rows", session_trim.reserve, rows, row, to, full_pages, swa_pages)
    taken = call("rows", session_trim.commit, grown.then, row, counted)
    shown = read_own(but(st, rows=taken.then), row, touched(allocated(rows, row)))
    return but(
        cache.extend(st, row, to, full_pages, swa_pages),
        calls=(grown, taken),
        then=cache.after_pass(shown, row, committed(rows, row)),
    )


def prefills_all_but_the_last_token(
    st: CacheState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[CacheState]:
    """A prefill gets slots for all tokens that are asked for, and does not compute the last one."""
    old, page_size = committed(st.rows, row), size_of(st.rows)
    return prefilled(st, row, to, full_pages, swa_pages, pick(shorter(old, to), before(to, page_size), to))


def decodes_without_counting(st: CacheState, row: Number, full_pages: Seq, swa_pages: Seq) -> Step[CacheState]:
    """A decode gets a slot for its token, and the token is neither computed nor committed."""
    to = next_token(allocated(st.rows, row), size_of(st.rows))
    grown = call("rows", session_trim.reserve, st.rows, row, to, full_pages, swa_pages)
    return as_asked(cache.decode(st, row, full_pages, swa_pages), cache.computing(st, row, grown))


def grows_one_token_short(
    st: SessionTrimState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[SessionTrimState]:
    """A prefill grows by one token fewer than asked, where the pages that it gets are as many for both lengths."""
    short = before(to, size_of(st))
    alike = shorter(allocated(st, row), to) & (touched(short) == touched(to))
    right = session_trim.extend(st, row, to, full_pages, swa_pages)
    return as_asked(right, session_trim.extend(st, row, pick(alike, short, to), full_pages, swa_pages))


# Hole: ``save`` notes the text a page too long.


def notes_the_text_a_page_too_long(st: SessionTrimState, row: Number, agreed: Length) -> Step[SessionTrimState]:
    """The text so far of a saved turn is noted a page too long: the input of the next turn is refused as too short."""
    return altered(session_trim.save(st, row, agreed), text=st.text.put(row, agreed.pages + 1))


def saves_a_page_too_much(st: CacheState, row: Number, agreed: Length) -> Step[CacheState]:
    """A turn is saved as if a page more had been sent: up to a page of tokens that were never sent stays committed."""
    more = Length(agreed.pages + 1, agreed.rest)
    return as_asked(cache.save(st, row, agreed), cache.save(st, row, more))


def notes_the_computed_text_alone(st: SessionTrimState, row: Number, agreed: Length) -> Step[SessionTrimState]:
    """The sent tokens that are not computed yet are missing in the noted text, so that the next input may lack them."""
    noted = shortest(agreed, committed(st, row))
    text, text_rest = st.text.put(row, noted.pages), st.text_rest.put(row, noted.rest)
    return altered(session_trim.save(st, row, agreed), text=text, text_rest=text_rest)


# Hole: ``save`` keeps the draft slots.


def saves_with_its_draft(st: SessionTrimState, row: Number, agreed: Length) -> Step[SessionTrimState]:
    """A saved row keeps the slots of a draft beyond the agreed length: nobody can use their pages between two turns."""
    over_it = shorter(agreed, committed(st, row))
    calls = session_trim.cut(st.pools, row, pick(over_it, back_to(st, row, agreed), allocated(st, row)))
    step = session_trim.save(st, row, agreed)
    return but(step, calls=calls, then=but(step.then, pools=calls[-1].then))


def restores_beyond_the_prefix(st: CacheState, session: Number, prefix: Length) -> Step[CacheState]:
    """What a saved row owns beyond the prefix of the next turn is not given back, and stays committed."""
    row = session_trim.slot_row(st.rows, session)
    return as_asked(cache.restore(st, session, prefix), cache.restore(st, session, committed(st.rows, row)))


def rolls_back_whole_pages_alone(st: CacheState, row: Number, to: Length) -> Step[CacheState]:
    """A row that is rolled back into a page keeps the slots, and the committed tokens, up to the end of this page."""
    kept = shortest(up(to), allocated(st.rows, row))
    return as_asked(cache.roll_back(st, row, to), cache.roll_back(st, row, kept))


# Hole: ``mamba_slots.save`` frees the states.


def saves_by_freeing(st: MambaSlotsState, request: Number, session: Number) -> Step[MambaSlotsState]:
    """A turn ends, and its states are given back: the session's slot gets none, and the next turn has no state."""
    return but(mamba_slots.save(st, request, session), then=mamba_slots.release(st, request).then)


def buffer_of(st: MambaSlotsState, owner: Number) -> Set:
    """The slots of the owner's track buffer."""
    return st.slots.such(
        lambda s: (st.place(s) == HELD) & (st.owner(s) == owner) & (st.role(s) != OWN),
        lambda: [st.table(owner, role) for role in (FIRST, SECOND)],
    )


def saves_without_the_buffer(st: MambaSlotsState, request: Number, session: Number) -> Step[MambaSlotsState]:
    """A turn ends, and the states of its track buffer are given back: the session gets the own state alone."""
    bare = drop(st, buffer_of(st, request))
    step = mamba_slots.save(st, request, session)
    return but(step, then=mamba_slots.gone(move(bare, request, session), request))


def saves_the_row_and_frees_the_states(st: CacheState, request: Number, session: Number) -> Step[CacheState]:
    """The row of a turn is saved in its session's slot, and its states are given back: KV cache and state part."""
    freed = call("states", mamba_slots.release, st.states, request)
    return but(
        mamba_in_cache.state_save(st, request, session),
        calls=(freed,),
        then=but(mamba_in_cache.off_its_row(st, request), states=freed.then),
    )


# Hole: ``commit`` takes refused drafts.


def commits_the_whole_draft(st: CacheState, row: Number, to: Length) -> Step[CacheState]:
    """All tokens of a draft are committed, those that were refused among them."""
    return as_asked(cache.commit(st, row, to), cache.commit(st, row, allocated(st.rows, row)))


def commits_to_the_end_of_the_page(st: SessionTrimState, row: Number, to: Length) -> Step[SessionTrimState]:
    """Refused tokens of a draft are committed up to the end of the page in which the accepted ones end."""
    taken = shortest(up(to), allocated(st, row))
    return as_asked(session_trim.commit(st, row, to), session_trim.commit(st, row, taken))


def saves_the_draft_as_text(st: CacheState, row: Number, agreed: Length) -> Step[CacheState]:
    """A turn ends in the middle of a draft, and the draft counts as computed, though nobody has verified it."""
    old, most = committed(st.rows, row), shortest(agreed, allocated(st.rows, row))
    taken = cache.commit(st, row, pick(at_most(old, most), most, old))
    saved = cache.save(taken.then, row, agreed)
    return but(as_asked(cache.save(st, row, agreed), saved), calls=(*taken.calls, *saved.calls))


# Hole: ``commit`` drops the partial page.


def commits_whole_pages_alone(st: SessionTrimState, row: Number, to: Length) -> Step[SessionTrimState]:
    """Accepted tokens in the last page, which is not full, are not committed."""
    old = committed(st, row)
    taken = pick(at_most(old, down(to)), down(to), old)
    return as_asked(session_trim.commit(st, row, to), session_trim.commit(st, row, taken))


def prefills_whole_pages_alone(
    st: CacheState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[CacheState]:
    """A prefill gets slots for all tokens that are asked for, and computes none in a page that it does not fill."""
    old = committed(st.rows, row)
    return prefilled(st, row, to, full_pages, swa_pages, pick(at_most(old, down(to)), down(to), old))


def rolls_back_the_partial_page(st: CacheState, row: Number, to: Length) -> Step[CacheState]:
    """A request without a cached prefix that is rolled back into a page loses the tokens of this page, too."""
    rows = st.rows
    fine = resumable(rows, row, shortest(down(to), committed(rows, row))) & (st.handle(row) == 0)
    kept = pick(fine & at_most(protected(rows, row), down(to)), down(to), to)
    return as_asked(cache.roll_back(st, row, to), cache.roll_back(st, row, kept))


# Hole: ``admit`` drops the session.


def admits_without_its_session(
    st: CacheState, row: Number, session: Number, story: Number, handle: Number, node: Number, top: Number,
    counting: Truth, pages: Seq,
) -> Step[CacheState]:  # fmt: skip
    """A turn of a session is admitted as a request without a session: its row can never be saved for the next turn."""
    found = handle, node, top, counting, pages
    return as_asked(cache.admit(st, row, session, story, *found), cache.admit(st, row, 0, story, *found))


def admits_a_tail_without_its_session(
    st: CacheState, row: Number, session: Number, story: Number, handle: Number, node: Number, top: Number,
    counting: Truth, pages: Seq, start: Number, to: Length, full_pages: Seq, swa_pages: Seq,
) -> Step[CacheState]:  # fmt: skip
    """A turn that was computed elsewhere loses its session: its row can never be saved for the next turn."""
    found = handle, node, top, counting, pages
    tail = start, to, full_pages, swa_pages
    right = cache.admit_tail(st, row, session, story, *found, *tail)
    return as_asked(right, cache.admit_tail(st, row, 0, story, *found, *tail))


def admits_for_the_first_session(
    st: SessionTrimState, row: Number, session: Number, pages: Number
) -> Step[SessionTrimState]:
    """A turn is admitted for the first session of all, where this one has no row: another user's session."""
    other = ite((session != 0) & (st.slot(1) == 0), 1, session)
    return as_asked(session_trim.admit(st, row, session, pages), session_trim.admit(st, row, other, pages))


# Hole: ``dedupe`` frees one page fewer than told.


def dedupes_one_page_fewer(st: SessionTrimState, row: Number, pages: Number) -> Step[SessionTrimState]:
    """A row keeps its own copy of the last page that the tree has already: one page is in the cache twice."""
    fewer = ite(st.protected(row) < pages, pages - 1, pages)
    return as_asked(session_trim.dedupe(st, row, pages), session_trim.dedupe(st, row, fewer))


def donates_one_page_fewer(st: SessionTrimState, row: Number, to: Number, pages: Number) -> Step[SessionTrimState]:
    """A row gives the tree one page fewer than told: the last page of the node's key has no slots."""
    fewer = ite(st.protected(row) < pages, pages - 1, pages)
    return as_asked(session_trim.donate(st, row, to, pages), session_trim.donate(st, row, to, fewer))


def slides_one_page_short(st: CacheState, row: Number, to: Number) -> Step[CacheState]:
    """A row whose window moves on keeps the last SWA page that has left the window, and its cursor stays before it."""
    rows = st.rows
    fewer = ite((rows.cursor(row) < to) & (rows.protected(row) < to), to - 1, to)
    return as_asked(cache.slide(st, row, to), cache.slide(st, row, fewer))


# Hole: ``drop_duplicates`` frees one page fewer than told.


def drops_one_duplicate_fewer(st: CacheState, row: Number, pages: Number) -> Step[CacheState]:
    """A leaving row keeps its own copy of the last page that the tree has, and goes on inserting a page too early."""
    fewer = ite(st.rows.protected(row) < pages, pages - 1, pages)
    return as_asked(cache.drop_duplicates(st, row, pages), cache.drop_duplicates(st, row, fewer))


def inserts_one_page_fewer(
    st: CacheState, row: Number, under: Number, leaf: Number, pages: Number, live: Truth
) -> Step[CacheState]:
    """A new leaf gets one page fewer than the row donates: computed tokens are lost to the prefix cache."""
    fewer = ite(st.rows.protected(row) < pages - 1, pages - 1, pages)
    right = cache.insert_leaf(st, row, under, leaf, pages, live)
    return as_asked(right, cache.insert_leaf(st, row, under, leaf, fewer, live))


def splits_one_page_too_low(st: CacheState, child: Number, new: Number, at: Number) -> Step[CacheState]:
    """A node is cut a page below the index that was asked for: the upper node has a page that does not match."""
    lower = ite(at + 1 < st.tree.stop(child), at + 1, at)
    return as_asked(cache.split(st, child, new, at), cache.split(st, child, new, lower))


# Hole: ``cache.save`` rounds down to pages.


def saves_whole_pages_alone(st: CacheState, row: Number, agreed: Length) -> Step[CacheState]:
    """A turn is saved without the tokens of its last page where this page is not full, and its text is noted so."""
    right, short = cache.save(st, row, agreed), cache.save(st, row, down(agreed))
    return but(short, promises=(*right.promises, *short.promises))


def restores_whole_pages_alone(st: CacheState, session: Number, prefix: Length) -> Step[CacheState]:
    """A turn that is to go on inside a page loses the tokens of this page, and goes on before it."""
    right, short = cache.restore(st, session, prefix), cache.restore(st, session, down(prefix))
    return but(short, promises=(*right.promises, *short.promises))


def saves_to_the_end_of_the_page(st: SessionTrimState, row: Number, agreed: Length) -> Step[SessionTrimState]:
    """A turn is saved up to the end of the page of its last agreed token: tokens that were never sent are reused."""
    return as_asked(session_trim.save(st, row, agreed), session_trim.save(st, row, up(agreed)))


# Hole: ``release_state`` does nothing for a row without states.


def keeps_the_state_lock_without_states(st: CacheState, row: Number, old: Number) -> Step[CacheState]:
    """A request without states of its own keeps the lock on the node's state: nobody can evict this state meanwhile."""
    let_go = call("tree", lock_ref.release_state, st.tree, old, when=st.mine(row) != 0)
    return but(cache.release_state(st, row, old), calls=(let_go,), then=but(st, tree=let_go.then))


def keeps_the_window_lock_of_a_session(st: CacheState, row: Number, old: Number) -> Step[CacheState]:
    """A turn of a session keeps the SWA part of its lock: SWA pages behind the window cannot be evicted."""
    let_go = call("tree", lock_ref.release_swa, st.tree, old, when=st.rows.session(row) == 0)
    return but(cache.release_swa(st, row, old), calls=(let_go,), then=but(st, tree=let_go.then))


def copies_nothing_in_a_group(st: MambaSlotsState, node: Number, slot: Number) -> Step[MambaSlotsState]:
    """While a group is open a node gets no slot for its state, though a slot was handed out for it."""
    step = mamba_slots.alloc_copy(st, node, slot)
    return but(step, then=either(st.group == 0, step.then, st))


# Hole: a lock window one token too far.


def ending(
    st: LockRefState, handle: Number, node: Number, top: Number, counting: Truth, where: Truth
) -> Step[LockRefState]:
    """The step of a lock whose window ends where this truth holds, and not where the window is full first."""
    asked = "the SWA part ends at the first node where the window is full"
    step = unasked(lock_ref.acquire(st, handle, node, top, counting), asked)
    return but(step, promises=(*step.promises, requires(implies(st.windowed, where), "the window ends there")))


def locks_one_token_too_far(
    st: LockRefState, handle: Number, node: Number, top: Number, counting: Truth
) -> Step[LockRefState]:
    """A window that is filled to the last token counts as not full: the lock holds the next node's SWA part, too."""
    fills = (st.stop(node) - begin(st, top) > st.window) | (st.parent(top) == ROOT)
    lowest = st.stop(node) - st.stop(top) <= st.window
    return ending(st, handle, node, top, counting, lives(st, top) & over(st, top, node) & fills & lowest)


def locks_the_window_to_the_root(
    st: LockRefState, handle: Number, node: Number, top: Number, counting: Truth
) -> Step[LockRefState]:
    """A lock holds the SWA parts of its whole path: none of these can be evicted, however far behind the window."""
    return ending(st, handle, node, top, counting, lives(st, top) & over(st, top, node) & (st.parent(top) == ROOT))


def locks_one_live_token_too_far(
    st: LockRefState, handle: Number, node: Number, top: Number, counting: Truth
) -> Step[LockRefState]:
    """Where the tokens of tombstones do not count, a window that is filled to the last token counts as not full."""

    def live(n: Number) -> Truth:
        return between(st, top, n, node) & (st.swa(n) == 1)

    def tokens(n: Number) -> Number:
        return span(st, n)

    held = st.nodes.such(live, lambda: path(st, node)).total(tokens)
    below = st.nodes.such(lambda n: live(n) & (n != top), lambda: path(st, node)).total(tokens)
    fills = (held > st.window) | (st.parent(top) == ROOT)
    return ending(st, handle, node, top, counting, covers_window(st, top, node) & fills & (below <= st.window))


# Hole: a lock window one node too far.


def locks_one_node_too_far(
    st: LockRefState, handle: Number, node: Number, top: Number, counting: Truth
) -> Step[LockRefState]:
    """A lock holds the SWA part of the node above the one at which its window is full, which nobody reads."""
    below = st.nodes.any(lambda n: (st.parent(n) == top) & over(st, n, node) & window_top(st, n, node))
    first = window_top(st, top, node) & (st.parent(top) == ROOT)
    return ending(st, handle, node, top, counting, lives(st, top) & (below | first))


def locks_the_parent_always(
    st: LockRefState, handle: Number, node: Number, top: Number, counting: Truth
) -> Step[LockRefState]:
    """Whether the window is full is looked at after the first step up: the parent's SWA part is held in any case."""
    full_at_once = window_top(st, node, node)
    parent = lives(st, top) & (st.parent(node) == top) & full_at_once
    alone = (top == node) & (st.parent(node) == ROOT) & full_at_once
    return ending(st, handle, node, top, counting, parent | alone | ((top != node) & window_top(st, top, node)))


def locks_from_the_nodes_begin(
    st: LockRefState, handle: Number, node: Number, top: Number, counting: Truth
) -> Step[LockRefState]:
    """The window is measured from the begin of the locked node's key, so that the lock reaches too far up."""
    first = begin(st, node)
    fills = (first - begin(st, top) >= st.window) | (st.parent(top) == ROOT)
    lowest = first - st.stop(top) < st.window
    return ending(st, handle, node, top, counting, lives(st, top) & over(st, top, node) & fills & lowest)


# Hole: ``mamba_slots.close`` frees one role only.


def closes_the_own_state_alone(st: MambaSlotsState, session: Number) -> Step[MambaSlotsState]:
    """A session ends, and its track buffer is not given back: these slots are lost until the pool is cleared."""
    return but(mamba_slots.close(st, session), then=drop(st, only(st, session, OWN)))


def closes_the_buffer_alone(st: MambaSlotsState, session: Number) -> Step[MambaSlotsState]:
    """A session ends, and the slot of its own state is not given back: the next session in this place would get it."""
    return but(mamba_slots.close(st, session), then=drop(st, buffer_of(st, session)))


def gives_the_second_slot_back_alone(st: MambaSlotsState, request: Number) -> Step[MambaSlotsState]:
    """A lazy buffer gives its second slot back, and never its first: after an odd boundary it keeps both slots."""
    step = mamba_slots.give_second(st, request)
    return but(step, then=either(st.next(request) == 0, step.then, st))


# Hole: a backup can be restored once only.


def restores_once(st: AllocatorState) -> Step[AllocatorState]:
    """A backup is gone after its first restore: a second attempt that fails cannot go back."""
    return altered(allocator.restore_state(st), backed_up=False)


def forgets_the_backup_when_it_grows(st: AllocatorState, row: Number, to: Length, chosen: Seq) -> Step[AllocatorState]:
    """A backup is gone as soon as a page is handed out, so that it can never take back a page."""
    step = allocator.alloc_extend(st, row, to, chosen)
    return altered(step, backed_up=st.backed_up & (chosen.length == 0))


def forgets_the_backup_when_it_sorts(st: SwaMappingState, of_swa: Truth) -> Step[SwaMappingState]:
    """A backup is gone after a release list was sorted in, as an allocation between backup and restore does."""
    return altered(swa_mapping.merge_and_sort_free(st, of_swa), backed_up=False)


# Hole: ``alloc_decode`` can never cross a page (a promise narrowed).


def decodes_within_a_page_alone(st: AllocatorState, row: Number, chosen: Seq) -> Step[AllocatorState]:
    """A row whose last page is full can never decode: the call counts as bad input where it needs a new page."""
    step = allocator.alloc_decode(st, row, chosen)
    inside = requires(length(st.now, row).rest > 0, "the row's last page has room")
    return but(step, promises=(*step.promises, inside))


def hands_over_from_the_first_page_alone(
    st: SwaMappingState, row: Number, to: Number, first: Number, last: Number
) -> Step[SwaMappingState]:
    """A row that begins behind a cached prefix can never donate, and a node below another one can never be split."""
    step = swa_mapping.hand_over(st, row, to, first, last)
    return but(step, promises=(*step.promises, requires(first == 0, "the pages begin at the first index")))


def allocates_one_block_at_a_time(
    st: BlockCacheState, row: Number, to: Length, skipped: Number, chosen: Seq
) -> Step[BlockCacheState]:
    """A row can never get more than one new block in a call: a prompt of several blocks cannot be computed at once."""
    step = block_cache.allocate(st, row, to, skipped, chosen)
    one = requires(touched(to) <= st.pool.length(row) + 1, "the row needs at most one new block")
    return but(step, promises=(*step.promises, one))


# Hole: the state of a request is not the one at the end of its row.


def blank(st: CacheState, slot: Number) -> CacheState:
    """The state in which the slot holds the state before the first token."""
    return state_isolation.put_state(st, slot, EMPTY, state_isolation.last(st, NOTHING))


def restores_a_blank_state(st: CacheState, session: Number, request: Number) -> Step[CacheState]:
    """The next turn gets its session's slot, which was wiped: it goes on from the state before the first token."""
    step = mamba_in_cache.state_restore(st, session, request)
    slot = st.states.table(mamba_in_cache.session_owner(st, session), OWN)
    return but(step, then=blank(step.then, slot))


def renews_the_own_state(st: CacheState, request: Number, spare: Number, slot: Number) -> Step[CacheState]:
    """A request that gets a new track slot has its own state wiped with it, and goes on from a blank state."""
    step = mamba_in_cache.state_renew(st, request, spare, slot)
    return but(step, then=blank(step.then, st.states.table(request, OWN)))


def goes_on_from_a_blank_state(
    st: CacheState, row: Number, old: Number, handle: Number, node: Number, top: Number, counting: Truth, pages: Seq
) -> Step[CacheState]:
    """A request that inserted a chunk and runs again goes on from the state before the first token."""
    step = cache.continue_prefill(st, row, old, handle, node, top, counting, pages)
    slot = ite(st.mine(row) != 0, st.states.row(st.mine(row) - 1, OWN), ABSENT)
    return but(step, then=blank(step.then, slot))


# Hole: a transfer in flight is not protected.


def asked_of(step: Step[BlockCacheState], sentence: str, phase: Truth) -> Step[BlockCacheState]:
    """The step that asks for this truth about the row's phase, and not for the promise with the sentence."""
    return but(
        unasked(step, sentence), promises=(*unasked(step, sentence).promises, requires(phase, "the row's phase"))
    )


def finishes_while_loading(st: BlockCacheState, row: Number) -> Step[BlockCacheState]:
    """A request ends while a transfer writes into its row: its blocks are handed out again, and are overwritten."""
    phase = st.pool.rows.has(row) & (st.phase(row) != IDLE)
    asked = "the row is running or kept; no transfer into it is under way"
    step = unasked(block_cache.finish(st, row), "each transfer into or out of the row has ended")
    return asked_of(step, asked, phase)


def slides_while_kept(st: BlockCacheState, row: Number, to: Number, gone: Set) -> Step[BlockCacheState]:
    """A row that is kept for a transfer gives up blocks that the transfer still reads."""
    phase = st.pool.rows.has(row) & ((st.phase(row) == RUNS) | (st.phase(row) == KEPT))
    return asked_of(block_cache.slide(st, row, to, gone), "the row is running", phase)


def computes_while_loading(st: BlockCacheState, row: Number, to: Length, named: Set) -> Step[BlockCacheState]:
    """A forward pass computes a row into which a transfer still writes, and the row counts as running from then on."""
    phase = st.pool.rows.has(row) & ((st.phase(row) == RUNS) | (st.phase(row) == LOADS))
    return asked_of(block_cache.compute(st, row, to, named), "the row is running", phase)


# The holes, and their siblings.

OF_HOLES: dict[str, tuple[tuple[str, str, Transition], ...]] = {
    "commit ignores a partial acceptance": (
        ("cache", "commit", ignores_a_partial_acceptance),
        ("cache", "commit", loses_the_last_accepted_token),
        ("session_trim", "commit", accepts_one_token_at_most),
    ),
    "resume runs with the text of the turn before": (
        ("cache", "resume", resumes_with_the_text_before),
        ("cache", "admit", admits_with_the_first_text),
        ("cache", "admit_tail", admits_a_tail_with_the_first_text),
    ),
    "extend computes fewer tokens than asked": (
        ("cache", "extend", prefills_all_but_the_last_token),
        ("cache", "decode", decodes_without_counting),
        ("session_trim", "extend", grows_one_token_short),
    ),
    "save notes the text a page too long": (
        ("session_trim", "save", notes_the_text_a_page_too_long),
        ("cache", "save", saves_a_page_too_much),
        ("session_trim", "save", notes_the_computed_text_alone),
    ),
    "save keeps the draft slots": (
        ("session_trim", "save", saves_with_its_draft),
        ("cache", "restore", restores_beyond_the_prefix),
        ("cache", "roll_back", rolls_back_whole_pages_alone),
    ),
    "mamba_slots.save frees the states": (
        ("mamba_slots", "save", saves_by_freeing),
        ("mamba_slots", "save", saves_without_the_buffer),
        ("cache", "state_save", saves_the_row_and_frees_the_states),
    ),
    "commit takes refused drafts": (
        ("cache", "commit", commits_the_whole_draft),
        ("session_trim", "commit", commits_to_the_end_of_the_page),
        ("cache", "save", saves_the_draft_as_text),
    ),
    "commit drops the partial page": (
        ("session_trim", "commit", commits_whole_pages_alone),
        ("cache", "extend", prefills_whole_pages_alone),
        ("cache", "roll_back", rolls_back_the_partial_page),
    ),
    "admit drops the session": (
        ("cache", "admit", admits_without_its_session),
        ("cache", "admit_tail", admits_a_tail_without_its_session),
        ("session_trim", "admit", admits_for_the_first_session),
    ),
    "dedupe frees one page fewer than told": (
        ("session_trim", "dedupe", dedupes_one_page_fewer),
        ("session_trim", "donate", donates_one_page_fewer),
        ("cache", "slide", slides_one_page_short),
    ),
    "drop_duplicates frees one page fewer than told": (
        ("cache", "drop_duplicates", drops_one_duplicate_fewer),
        ("cache", "insert_leaf", inserts_one_page_fewer),
        ("cache", "split", splits_one_page_too_low),
    ),
    "cache.save rounds down to pages": (
        ("cache", "save", saves_whole_pages_alone),
        ("cache", "restore", restores_whole_pages_alone),
        ("session_trim", "save", saves_to_the_end_of_the_page),
    ),
    "release_state does nothing for a row without states": (
        ("cache", "release_state", keeps_the_state_lock_without_states),
        ("cache", "release_swa", keeps_the_window_lock_of_a_session),
        ("mamba_slots", "alloc_copy", copies_nothing_in_a_group),
    ),
    "a lock window one token too far": (
        ("lock_ref", "acquire", locks_one_token_too_far),
        ("lock_ref", "acquire", locks_the_window_to_the_root),
        ("lock_ref", "acquire", locks_one_live_token_too_far),
    ),
    "a lock window one node too far": (
        ("lock_ref", "acquire", locks_one_node_too_far),
        ("lock_ref", "acquire", locks_the_parent_always),
        ("lock_ref", "acquire", locks_from_the_nodes_begin),
    ),
    "mamba_slots.close frees one role only": (
        ("mamba_slots", "close", closes_the_own_state_alone),
        ("mamba_slots", "close", closes_the_buffer_alone),
        ("mamba_slots", "give_second", gives_the_second_slot_back_alone),
    ),
    "a backup can be restored once only": (
        ("allocator", "restore_state", restores_once),
        ("allocator", "alloc_extend", forgets_the_backup_when_it_grows),
        ("swa_mapping", "merge_and_sort_free", forgets_the_backup_when_it_sorts),
    ),
    "alloc_decode can never cross a page": (
        ("allocator", "alloc_decode", decodes_within_a_page_alone),
        ("swa_mapping", "hand_over", hands_over_from_the_first_page_alone),
        ("block_cache", "allocate", allocates_one_block_at_a_time),
    ),
    "the state of a request is not the one at the end of its row": (
        ("cache", "state_restore", restores_a_blank_state),
        ("cache", "state_renew", renews_the_own_state),
        ("cache", "continue_prefill", goes_on_from_a_blank_state),
    ),
    "a transfer in flight is not protected": (
        ("block_cache", "finish", finishes_while_loading),
        ("block_cache", "slide", slides_while_kept),
        ("block_cache", "compute", computes_while_loading),
    ),
}

SIBLINGS: tuple[Sibling, ...] = tuple(
    Sibling(wrong.__name__, stem, transition, hole, wrong)
    for hole, siblings in OF_HOLES.items()
    for stem, transition, wrong in siblings
)
