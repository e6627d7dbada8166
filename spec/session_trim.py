"""The row of a request and the slot of a streaming session, from admission to release, over the two pools.

A request is admitted with its cached prefix, grows, moves its window, and leaves; when it leaves, it donates whole
pages to the tree, node by node, and gives the rest back. A turn of a streaming session saves its row in the session's
slot instead, and the next turn goes on with this row. ``spec.session_trim_state`` has the state and the laws.
"""

from __future__ import annotations

from spec import row_effects, session_trim_state, swa_mapping
from spec.lengths import NOTHING, Length, at_most, formed, next_token, pick, same, shorter, shortest
from spec.logic import Call, Number, Requirement, Seq, Set, Stem, Step, Truth, but, call, implies, ite, requires
from spec.pool import PADDING, beyond, in_range, used_slots
from spec.session_trim_state import (
    IDLE,
    LEAVING,
    RUNNING,
    SAVED,
    SessionTrimState,
    allocated,
    back_to,
    commit_to,
    committed,
    cut_back,
    emptied,
    full_pool,
    has_gaps,
    initial,
    is_other,
    is_row,
    is_whole,
    protected,
    resumable,
    start,
    swa_pool,
    text,
)

stem = Stem("session_trim", state=SessionTrimState, start=start)
stem.part("pools", swa_mapping.stem)


def in_phase(st: SessionTrimState, row: Number, phase: Number, what: str) -> Requirement:
    """The row belongs to a request and is in this phase."""
    return requires(is_row(st, row) & (st.phase(row) == phase), what)


def at_work(st: SessionTrimState, row: Number) -> Requirement:
    """The row's request is running."""
    return in_phase(st, row, RUNNING, "the row's request is running")


def slot_row(st: SessionTrimState, session: Number) -> Number:
    """The row in the session's slot."""
    return st.slot(session) - 1


def in_slot(st: SessionTrimState, session: Number) -> Requirement:
    """The session's slot has a saved row, so that no turn of the session runs."""
    row = slot_row(st, session)
    return requires(
        st.sessions.has(session) & is_row(st, row) & (st.session(row) == session) & (st.phase(row) == SAVED),
        "the session's slot has a saved row",
    )


# What a row gives back: its caller reads off the row which slots it frees, and names them.


def freed(pools: swa_mapping.SwaMappingState, gone: Set) -> Call:
    """The call that frees these pages of the full pool with their SWA pages."""
    return call("pools", swa_mapping.free, pools, gone, used_slots(pools.now.full, gone))


def freed_swa(pools: swa_mapping.SwaMappingState, row: Number, last: Number) -> Call:
    """The call that frees the SWA pages of a row at the page indices below ``last``."""
    gone = in_range(pools.now.full, row, 0, last)
    return call("pools", swa_mapping.free_swa, pools, gone, used_slots(pools.now.full, gone))


def cut(pools: swa_mapping.SwaMappingState, row: Number, to: Length) -> tuple[Call, Call]:
    """The calls that cut a row to ``to`` tokens: its pages beyond are freed, and it becomes shorter."""
    gone = freed(pools, beyond(pools.now.full, row, to))
    return gone, call("pools", swa_mapping.shorten, gone.then, row, to)


# A request.


@stem.transition
def admit(st: SessionTrimState, row: Number, session: Number, pages: Number) -> Step[SessionTrimState]:
    """A request gets an idle row; its first ``pages`` whole pages are its cached prefix, which the tree owns."""
    begun = call("pools", swa_mapping.adopt, st.pools, row, pages)
    to = Length(pages, 0)
    return Step(
        calls=(begun,),
        promises=(
            in_phase(st, row, IDLE, "the row is idle"),
            requires(full_pool(st).indices.has(pages), "the row has room for the cached prefix"),
            requires(
                (session == 0) | (st.sessions.has(session) & (st.slot(session) == 0)), "the session has no row yet"
            ),
        ),
        then=but(
            commit_to(st, row, to),
            pools=begun.then,
            phase=st.phase.put(row, RUNNING),
            protected=st.protected.put(row, pages),
            cursor=st.cursor.put(row, 0),
            cursor_rest=st.cursor_rest.put(row, 0),
            gap=st.gap.put(row, 0),
            session=st.session.put(row, session),
            slot=st.slot.where(lambda s: (s == session) & (session != 0), row + 1, lambda: [session]),
        ),
    )


@stem.transition
def admit_tail(
    st: SessionTrimState,
    row: Number,
    session: Number,
    pages: Number,
    start: Number,
    to: Length,
    full_pages: Seq,
    swa_pages: Seq,
) -> Step[SessionTrimState]:
    """A request whose first ``to`` tokens were computed elsewhere gets an idle row with slots for these tokens.

    Its first ``pages`` whole pages are its cached prefix. Behind this prefix the row owns a full page at each index,
    and an SWA page only from the page index ``start`` on, where the cursor stands. The tail from ``start`` on holds
    the window before the next token.
    """
    begun = admit(st, row, session, pages)
    rows_begun = begun.calls[0]
    first = Length(start, 0)
    grown = call("pools", swa_mapping.alloc_extend_swa_tail, rows_begun.then, row, first, to, full_pages, swa_pages)
    window = (start == pages) | at_most(Length(start + st.window, st.window_rest), to)
    choice, fits = swa_mapping.tail_room(st.pools.now, pages, first, to, full_pages, swa_pages)
    return Step(
        calls=(rows_begun, grown),
        promises=(
            *begun.promises,
            swa_mapping.has_window(st.pools),
            requires(formed(to, full_pool(st).page_size), "the length is well formed"),
            requires(full_pool(st).indices.has(to.pages + ite(to.rest > 0, 1, 0)), "the row has room for the length"),
        ),
        choice=(
            requires(
                (pages <= start) & at_most(first, to), "the tail starts within the part of the row behind the prefix"
            ),
            requires(window, "the tail holds the window before the next token"),
            *choice,
        ),
        fits=fits,
        then=but(commit_to(begun.then, row, to), pools=grown.then, cursor=st.cursor.put(row, start)),
    )


@stem.transition
def reserve(st: SessionTrimState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq) -> Step[SessionTrimState]:
    """The row gets slots up to ``to`` tokens before the tokens are computed, as speculative decoding needs them."""
    grown = call("pools", swa_mapping.alloc_extend, st.pools, row, to, full_pages, swa_pages)
    return Step(
        calls=(grown,),
        promises=(at_work(st, row), *growing(st, row, to)),
        choice=grown.step.choice,
        fits=grown.step.fits,
        then=but(st, pools=grown.then),
    )


def growing(st: SessionTrimState, row: Number, to: Length) -> tuple[Requirement, ...]:
    """What a caller promises that lets a row grow to ``to`` tokens."""
    return (
        requires(formed(to, full_pool(st).page_size), "the new length is well formed"),
        requires(at_most(allocated(st, row), to), "the new length is at least the row's allocated length"),
        requires(full_pool(st).indices.has(to.pages + ite(to.rest > 0, 1, 0)), "the row has room for the new length"),
    )


@stem.transition
def extend(st: SessionTrimState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq) -> Step[SessionTrimState]:
    """A prefill, or one chunk of it: the row grows to ``to`` tokens, and all of them are committed.

    No slot that was allocated before is overwritten.
    """
    grown = reserve(st, row, to, full_pages, swa_pages)
    tail = requires(same(committed(st, row), allocated(st, row)), "the committed length is the allocated length")
    return but(grown, promises=(*grown.promises, tail), then=commit_to(grown.then, row, to))


@stem.transition
def decode(st: SessionTrimState, row: Number, full_pages: Seq, swa_pages: Seq) -> Step[SessionTrimState]:
    """A row grows by one token, which is committed."""
    return extend(st, row, next_token(allocated(st, row), full_pool(st).page_size), full_pages, swa_pages)


@stem.transition
def commit(st: SessionTrimState, row: Number, to: Length) -> Step[SessionTrimState]:
    """A draft is verified: the allocated tokens up to ``to`` are committed."""
    return Step(
        promises=(
            at_work(st, row),
            requires(formed(to, full_pool(st).page_size), "the new length is well formed"),
            requires(at_most(committed(st, row), to), "the new committed length is at least the old one"),
            requires(at_most(to, allocated(st, row)), "the new committed length is at most the allocated length"),
        ),
        then=commit_to(st, row, to),
    )


@stem.transition
def roll_back(st: SessionTrimState, row: Number, to: Length) -> Step[SessionTrimState]:
    """A step ended between the allocation of slots and their use: the row gives the slots beyond ``to`` tokens back.

    A draft that is not accepted goes back in this way, too. No token beyond ``to`` is committed any more. The cursor
    stays, so the window before ``to`` must still have its SWA slots.
    """
    (gone, short), kept = cut(st.pools, row, to), shortest(to, committed(st, row))
    return Step(
        calls=(gone, short),
        promises=(
            at_work(st, row),
            requires(formed(to, full_pool(st).page_size), "the new length is well formed"),
            requires(at_most(protected(st, row), to), "the new length is at least the cached prefix"),
            requires(at_most(to, allocated(st, row)), "the new length is at most the allocated length"),
            requires(
                resumable(st, row, kept),
                "the window before the new length has its SWA slots",
            ),
        ),
        then=but(commit_to(st, row, kept), pools=short.then),
    )


@stem.transition
def slide(st: SessionTrimState, row: Number, to: Number) -> Step[SessionTrimState]:
    """The window moves on: the row gives back its SWA pages below the page index ``to``, the new cursor.

    The window before the next token keeps its SWA pages.
    """
    moved = freed_swa(st.pools, row, to)
    return Step(
        calls=(moved,),
        promises=(
            at_work(st, row),
            swa_mapping.has_window(st.pools),
            requires(
                (st.cursor(row) <= to) & (st.protected(row) <= to),
                "the new cursor is not below the old one or the cached prefix",
            ),
            requires(
                at_most(Length(to + st.window, st.window_rest), committed(st, row)),
                "the window before the next token keeps its SWA pages",
            ),
        ),
        then=but(st, pools=moved.then, cursor=st.cursor.put(row, to)),
    )


@stem.transition
def leave_window(st: SessionTrimState, row: Number, first: Number, to: Number, later: Truth) -> Step[SessionTrimState]:
    """The window moves on where every layer has one: the row gives back its pages from ``first`` up to ``to``.

    ``to`` is the new cursor. A row that gave back pages before goes on where it stopped. The window before the next
    token keeps its pages. ``later``: see ``swa_mapping.free_full``.
    """
    full = full_pool(st)
    gone = in_range(full, row, first, to)
    left = call("pools", swa_mapping.free_full, st.pools, gone, used_slots(full, gone), later)
    return Step(
        calls=(left,),
        promises=(
            at_work(st, row),
            requires(has_gaps(st), "every layer of the model has a sliding window"),
            requires(
                (st.protected(row) <= first) & (first < to), "the pages are behind the cached prefix, at least one"
            ),
            requires(is_whole(st, row) | (first == st.cursor(row)), "the pages begin where those that left before end"),
            requires(
                at_most(Length(to + st.window, st.window_rest), committed(st, row)),
                "the window before the next token keeps its pages",
            ),
        ),
        choice=left.step.choice,
        then=but(
            st,
            pools=left.then,
            cursor=st.cursor.put(row, to),
            gap=st.gap.put(row, ite(is_whole(st, row), first, st.gap(row))),
        ),
    )


@stem.transition
def finish(st: SessionTrimState, row: Number) -> Step[SessionTrimState]:
    """A request that ends, is aborted or is retracted stops reading: its row is leaving.

    Next the row donates its pages to the tree or gives them back.
    """
    return Step(promises=(at_work(st, row),), then=but(st, phase=st.phase.put(row, LEAVING)))


@stem.transition
def come_back(st: SessionTrimState, row: Number) -> Step[SessionTrimState]:
    """A request that only donated pages runs again: between two chunks of its prompt, or while it decodes."""
    return Step(
        promises=(in_phase(st, row, LEAVING, "the row is leaving"),),
        then=but(st, phase=st.phase.put(row, RUNNING)),
    )


@stem.transition
def donate(st: SessionTrimState, row: Number, to: Number, pages: Number) -> Step[SessionTrimState]:
    """The row donates its whole committed pages up to the index ``pages`` to the row of a tree node.

    The donated pages become part of the cached prefix, so that the request can still read them.
    """
    given = call("pools", swa_mapping.hand_over, st.pools, row, to, st.protected(row), pages)
    empty = full_pool(st).indices.all(
        lambda i: implies(
            (st.protected(row) <= i) & (i < pages),
            (full_pool(st).table(to, i) == PADDING) & (swa_pool(st).table(to, i) == PADDING),
        )
    )
    return Step(
        calls=(given,),
        promises=(
            *passing(st, row, pages),
            requires(is_other(st, to), "the receiver is the row of a tree node"),
            requires(empty, "the receiver owns no page at these indices"),
        ),
        then=but(st, pools=given.then, protected=st.protected.put(row, pages)),
    )


def passing(st: SessionTrimState, row: Number, pages: Number) -> tuple[Requirement, ...]:
    """What a caller promises whose row donates or gives back its pages up to the index ``pages``."""
    busy = (st.phase(row) == RUNNING) | (st.phase(row) == LEAVING)
    whole = (st.protected(row) <= pages) & (pages <= st.committed(row))
    return (
        requires(is_row(st, row) & busy, "the row's request is running or leaving"),
        requires(whole, "the pages are whole, committed, and behind the cached prefix"),
        requires(is_whole(st, row) | (pages <= st.gap(row)), "no page was given back since its tokens left the window"),
    )


@stem.transition
def dedupe(st: SessionTrimState, row: Number, pages: Number) -> Step[SessionTrimState]:
    """The tree has these tokens already: the row gives its own pages up to the index ``pages`` back as duplicates.

    From then on the request reads the pages of the tree.
    """
    copies = freed(st.pools, in_range(full_pool(st), row, st.protected(row), pages))
    return Step(
        calls=(copies,),
        promises=passing(st, row, pages),
        then=but(st, pools=copies.then, protected=st.protected.put(row, pages)),
    )


@stem.transition
def donate_swa(st: SessionTrimState, row: Number, to: Number, pages: Number, later: Truth) -> Step[SessionTrimState]:
    """The tree has these tokens already, but not their SWA pages: the row donates its SWA pages to a tree node's row.

    The node keeps its own full pages, which other requests may read. The row gives its full copies back; from then on
    its request reads the pages of the tree. ``later``: see ``swa_mapping.free_full``.
    """
    first, full, swa = st.protected(row), full_pool(st), swa_pool(st)
    moved = call("pools", swa_mapping.hand_over_swa, st.pools, row, to, first, pages)
    gone = in_range(full, row, first, pages)
    copies = call("pools", swa_mapping.free_full, moved.then, gone, used_slots(full, gone), later)
    fits = full.indices.all(
        lambda i: implies((first <= i) & (i < pages), (full.table(to, i) != PADDING) & (swa.table(to, i) == PADDING))
    )
    return Step(
        calls=(moved, copies),
        promises=(
            *passing(st, row, pages),
            requires(is_other(st, to), "the receiver is the row of a tree node"),
            requires(pages <= full.whole(to), "the receiver has whole pages up to the last"),
            requires(fits, "the receiver owns a full page and no SWA page at each of these indices"),
        ),
        choice=copies.step.choice,
        then=but(st, pools=copies.then, protected=st.protected.put(row, pages)),
    )


@stem.transition
def release(st: SessionTrimState, row: Number) -> Step[SessionTrimState]:
    """A leaving row gives back every page that it still owns, also its partial page, and is idle.

    Its session, if it has one, has no row any more.
    """
    gone, short = cut(st.pools, row, NOTHING)
    return Step(
        calls=(gone, short),
        promises=(in_phase(st, row, LEAVING, "the row is leaving"),),
        then=but(emptied(st, row), pools=short.then),
    )


# A streaming session.


@stem.transition
def save(st: SessionTrimState, row: Number, agreed: Length) -> Step[SessionTrimState]:
    """A turn ends: its row is saved in the session's slot, cut to ``agreed`` tokens, the input and the sent answer.

    Pages beyond ``agreed`` are given back. The cursor is never left beyond the cut (SGLang PR 22900): where the window
    before the cut is gone, the row is cut back to its cached prefix.
    """
    over = shorter(agreed, committed(st, row))
    to = pick(over, back_to(st, row, agreed), shortest(agreed, allocated(st, row)))
    gone, short = cut(st.pools, row, to)
    kept = cut_back(st, row, shortest(agreed, committed(st, row)))
    return Step(
        calls=(gone, short),
        promises=(
            at_work(st, row),
            requires(st.session(row) != 0, "the request is a turn of a session"),
            requires(formed(agreed, full_pool(st).page_size), "the agreed length is well formed"),
            requires(at_most(protected(st, row), agreed), "the agreed length is at least the cached prefix"),
        ),
        then=but(
            kept,
            pools=short.then,
            phase=st.phase.put(row, SAVED),
            text=st.text.put(row, agreed.pages),
            text_rest=st.text_rest.put(row, agreed.rest),
        ),
    )


@stem.transition
def restore(st: SessionTrimState, session: Number, prefix: Length) -> Step[SessionTrimState]:
    """The next turn will go on at ``prefix`` tokens: what the saved row owns beyond it is given back (SGLang PR 22862).

    A second call with the same prefix changes nothing, so that a turn that was not admitted can try again.
    """
    row = slot_row(st, session)
    gone, short = cut(st.pools, row, back_to(st, row, prefix))
    return Step(
        calls=(gone, short),
        promises=(
            in_slot(st, session),
            requires(formed(prefix, full_pool(st).page_size), "the prefix is well formed"),
            requires(at_most(protected(st, row), prefix), "the prefix is at least the cached prefix"),
            requires(at_most(prefix, committed(st, row)), "the prefix is at most the committed length"),
        ),
        then=but(cut_back(st, row, prefix), pools=short.then),
    )


@stem.transition
def resume(st: SessionTrimState, session: Number, given: Length) -> Step[SessionTrimState]:
    """The next turn runs on the saved row: its input of ``given`` tokens begins with the text so far.

    At least one token of the input is not computed yet.
    """
    row = slot_row(st, session)
    return Step(
        promises=(
            in_slot(st, session),
            requires(same(committed(st, row), allocated(st, row)), "the committed length is the allocated length"),
            requires(at_most(text(st, row), given), "the input is at least as long as the text so far"),
            requires(shorter(committed(st, row), given), "the input has a token that is not computed yet"),
        ),
        then=but(st, phase=st.phase.put(row, RUNNING)),
    )


@stem.transition
def close(st: SessionTrimState, session: Number) -> Step[SessionTrimState]:
    """A session ends between two turns: its saved row gives back every page that it owns."""
    row = slot_row(st, session)
    gone, short = cut(st.pools, row, NOTHING)
    return Step(calls=(gone, short), promises=(in_slot(st, session),), then=but(emptied(st, row), pools=short.then))


# Rows that belong to no request: the pages of tree nodes.


@stem.transition
def pass_on(st: SessionTrimState, row: Number, to: Number, first: Number, last: Number) -> Step[SessionTrimState]:
    """The row of a tree node gives pages to the row of another node, as when a node is split."""
    given = call("pools", swa_mapping.hand_over, st.pools, row, to, first, last)
    others = requires(is_other(st, row) & is_other(st, to), "both rows are rows of tree nodes")
    return Step(calls=(given,), promises=(others, *given.step.promises), then=but(st, pools=given.then))


@stem.transition
def drop(st: SessionTrimState, row: Number) -> Step[SessionTrimState]:
    """The row of a tree node gives back all its pages, as when the node is evicted."""
    gone, short = cut(st.pools, row, NOTHING)
    return Step(calls=(gone, short), promises=(other(st, row),), then=but(st, pools=short.then))


@stem.transition
def drop_swa(st: SessionTrimState, row: Number) -> Step[SessionTrimState]:
    """The row of a tree node gives back its SWA pages alone, as when the node becomes a tombstone."""
    lost = freed_swa(st.pools, row, full_pool(st).whole(row))
    return Step(calls=(lost,), promises=(other(st, row),), then=but(st, pools=lost.then))


@stem.transition
def settle_swa(st: SessionTrimState, done: Set, available: Truth) -> Step[SessionTrimState]:
    """An engine need not wait for the end of the free group with the SWA pages of rows whose window moved on."""
    settled = call("pools", swa_mapping.settle_swa, st.pools, done, available)
    return Step(calls=(settled,), choice=settled.step.choice, then=but(st, pools=settled.then))


@stem.transition
def free_group_begin(st: SessionTrimState, opens: Truth) -> Step[SessionTrimState]:
    """A free group begins: freed pages wait, as while an engine processes the results of a batch.

    An engine may refuse to open a group within a group; then nothing changes.
    """
    begun = call("pools", swa_mapping.free_group_begin, st.pools, opens)
    return Step(calls=(begun,), choice=begun.step.choice, then=but(st, pools=begun.then))


@stem.transition
def free_group_end(st: SessionTrimState) -> Step[SessionTrimState]:
    """A free group ends: at the end of the outermost group the waiting pages become available.

    An end changes nothing where no group is open.
    """
    ended = call("pools", swa_mapping.free_group_end, st.pools)
    return Step(calls=(ended,), then=but(st, pools=ended.then))


def other(st: SessionTrimState, row: Number) -> Requirement:
    """The row belongs to no request."""
    return requires(is_other(st, row), "the row is the row of a tree node")


for _law in session_trim_state.LAWS:
    stem.invariant()(_law)
stem.change(besides=("roll_back",))(session_trim_state.committed_is_kept)
stem.change()(session_trim_state.cursor_goes_on)
stem.change()(session_trim_state.session_is_kept)
stem.change(besides=("commit",))(session_trim_state.draft_waits)

# What calls do.

stem.change()(row_effects.life_of_a_row)
stem.change(only=("extend", "decode"))(row_effects.commits_what_it_gets)
stem.change()(row_effects.no_draft_in_the_next_turn)
stem.change(only=("roll_back",))(row_effects.keeps_what_is_committed)
stem.change(only=("slide",))(row_effects.slides_behind_the_prefix)
stem.change(only=("leave_window",))(row_effects.leaves_the_window_behind)
stem.change(only=("admit_tail", "reserve", "extend", "decode"))(row_effects.row_gets_the_chosen_pages)

OF_ONE_ROW = (
    *("admit", "admit_tail", "reserve", "extend", "decode", "commit", "roll_back", "slide", "leave_window"),
    *("finish", "come_back", "donate", "dedupe", "donate_swa", "release", "save"),
)
OF_A_SESSION = ("restore", "resume", "close")
stem.change(only=OF_ONE_ROW)(row_effects.others_go_on)
stem.change(only=OF_A_SESSION)(row_effects.other_sessions_go_on)
stem.change(besides=(*OF_ONE_ROW, *OF_A_SESSION))(row_effects.requests_go_on)
stem.change(only=("admit",))(row_effects.begins_with_its_prefix)
stem.change(only=("admit_tail",))(row_effects.begins_with_its_tail)
stem.change(only=("reserve",))(row_effects.gets_slots_for_a_draft)
stem.change(only=("extend",))(row_effects.computes_what_is_asked)
stem.change(only=("decode",))(row_effects.computes_one_token)
stem.change(only=("commit",))(row_effects.commits_what_was_accepted)
stem.change(only=("finish",))(row_effects.only_stops)
stem.change(only=("come_back",))(row_effects.only_runs_again)
stem.change(only=("donate", "dedupe", "donate_swa"))(row_effects.passes_its_prefix_on)
stem.change(only=("donate",))(row_effects.gives_its_own_pages)
stem.change(only=("donate_swa",))(row_effects.gives_its_window_pages)
stem.change(only=("release",))(row_effects.row_is_given_back)
stem.change(only=("close",))(row_effects.session_is_given_back)
stem.change(only=("save",))(row_effects.saves_what_was_sent)
stem.change(only=("restore",))(row_effects.next_turn_begins_there)
stem.change(only=("resume",))(row_effects.next_turn_runs)
stem.change(only=("pass_on",))(row_effects.node_gets_the_pages)
stem.change(only=("drop",))(row_effects.node_keeps_no_page)
stem.change(only=("drop_swa",))(row_effects.node_keeps_its_full_pages)
stem.change(only=("settle_swa",))(row_effects.ends_the_wait)
stem.change(only=("free_group_begin",))(row_effects.group_opens_as_asked)

__all__ = ["SessionTrimState", "initial", "stem"]
