"""The life of a request's row and of a streaming session's slot, over the two pools and beside the tree.

A request is admitted with the prefix that the tree has for it, grows, moves its window, and leaves; what it leaves to
the tree it hands over page by page. A turn of a streaming session leaves its row in the session's slot instead, and the
next turn goes on there.
"""

from __future__ import annotations

from spec import rows, swa_mapping
from spec.lengths import NOTHING, Length, at_most, formed, next_token, pick, same, shorter, shortest
from spec.logic import Number, Requirement, Seq, Stem, Step, but, call, implies, ite, requires
from spec.pool import PADDING
from spec.rows import (
    IDLE,
    LEAVING,
    RUNNING,
    SAVED,
    Rows,
    allocated,
    back_to,
    commit_to,
    committed,
    cut_back,
    emptied,
    full_pool,
    initial,
    is_other,
    is_row,
    protected,
    start,
    swa_pool,
    text,
)

stem = Stem("session_trim", state=Rows, start=start)
stem.part("pools", swa_mapping.stem)


def in_phase(st: Rows, row: Number, phase: Number, what: str) -> Requirement:
    """The row is a request's, and in this phase."""
    return requires(is_row(st, row) & (st.phase(row) == phase), what)


def at_work(st: Rows, row: Number) -> Requirement:
    """The row's request is running."""
    return in_phase(st, row, RUNNING, "the row's request is running")


def slot_row(st: Rows, session: Number) -> Number:
    """The row in the session's slot."""
    return st.slot(session) - 1


def in_slot(st: Rows, session: Number) -> Requirement:
    """The session's slot holds a row, and no request of the session runs."""
    row = slot_row(st, session)
    return requires(
        st.sessions.has(session) & is_row(st, row) & (st.session(row) == session) & (st.phase(row) == SAVED),
        "the session's slot holds a row",
    )


# A request.


@stem.transition
def admit(st: Rows, row: Number, session: Number, pages: Number) -> Step[Rows]:
    """A request gets an idle row; its first ``pages`` whole pages are the tree's, and stay the tree's."""
    begun = call("pools", swa_mapping.adopt, st.pools, row, pages)
    to = Length(pages, 0)
    return Step(
        calls=(begun,),
        promises=(
            in_phase(st, row, IDLE, "the row is idle"),
            requires(full_pool(st).indices.has(pages), "the row has room for the tree's part"),
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
            session=st.session.put(row, session),
            slot=st.slot.where(lambda s: (s == session) & (session != 0), row + 1, lambda: [session]),
        ),
    )


@stem.transition
def reserve(st: Rows, row: Number, to: Length, full_pages: Seq, swa_pages: Seq) -> Step[Rows]:
    """Slots are allocated ahead of what is computed, as speculative decoding needs them."""
    grown = call("pools", swa_mapping.alloc_extend, st.pools, row, to, full_pages, swa_pages)
    return Step(
        calls=(grown,),
        promises=(at_work(st, row), *growing(st, row, to)),
        choice=grown.step.choice,
        fits=grown.step.fits,
        then=but(st, pools=grown.then),
    )


def growing(st: Rows, row: Number, to: Length) -> tuple[Requirement, ...]:
    """What a caller that lets a row grow promises."""
    return (
        requires(formed(to, full_pool(st).page_size), "the new length is a length"),
        requires(at_most(allocated(st, row), to), "the row does not shrink"),
        requires(full_pool(st).indices.has(to.pages + ite(to.rest > 0, 1, 0)), "the row has room for its new length"),
    )


@stem.transition
def extend(st: Rows, row: Number, to: Length, full_pages: Seq, swa_pages: Seq) -> Step[Rows]:
    """A prefill, or a chunk of one: the row grows and is computed up to ``to``; no allocated slot is overwritten."""
    grown = reserve(st, row, to, full_pages, swa_pages)
    tail = requires(same(committed(st, row), allocated(st, row)), "nothing is allocated beyond what is computed")
    return but(grown, promises=(*grown.promises, tail), then=commit_to(grown.then, row, to))


@stem.transition
def decode(st: Rows, row: Number, full_pages: Seq, swa_pages: Seq) -> Step[Rows]:
    """A row grows by one token, which is computed."""
    return extend(st, row, next_token(allocated(st, row), full_pool(st).page_size), full_pages, swa_pages)


@stem.transition
def commit(st: Rows, row: Number, to: Length) -> Step[Rows]:
    """A verified draft: allocated tokens up to ``to`` are computed."""
    return Step(
        promises=(
            at_work(st, row),
            requires(formed(to, full_pool(st).page_size), "the new length is a length"),
            requires(at_most(committed(st, row), to), "no committed token is lost"),
            requires(at_most(to, allocated(st, row)), "only allocated tokens are committed"),
        ),
        then=commit_to(st, row, to),
    )


@stem.transition
def slide(st: Rows, row: Number, to: Number) -> Step[Rows]:
    """The window moves on: whole pages below ``to`` lose their SWA pages, the window before the next token stays."""
    moved = call("pools", swa_mapping.slide, st.pools, row, to)
    return Step(
        calls=(moved,),
        promises=(
            at_work(st, row),
            requires((st.cursor(row) <= to) & (st.protected(row) <= to), "the cursor moves on, past the tree's part"),
            requires(
                at_most(Length(to + st.window, st.window_rest), committed(st, row)), "the window is not given back"
            ),
        ),
        then=but(st, pools=moved.then, cursor=st.cursor.put(row, to)),
    )


@stem.transition
def finish(st: Rows, row: Number) -> Step[Rows]:
    """A request that ends, is aborted or retracted reads nothing any more; what it owns it gives away or gives back."""
    return Step(promises=(at_work(st, row),), then=but(st, phase=st.phase.put(row, LEAVING)))


@stem.transition
def come_back(st: Rows, row: Number) -> Step[Rows]:
    """A request that only passed pages on, between two chunks of its prompt, runs again."""
    return Step(
        promises=(in_phase(st, row, LEAVING, "the row is leaving"),),
        then=but(st, phase=st.phase.put(row, RUNNING)),
    )


@stem.transition
def donate(st: Rows, row: Number, to: Number, pages: Number) -> Step[Rows]:
    """The row's committed whole pages up to ``pages`` become somebody else's, who had none there; it may read on."""
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
            requires(is_other(st, to), "the receiver is no request's row"),
            requires(empty, "the receiver owns nothing there"),
        ),
        then=but(st, pools=given.then, protected=st.protected.put(row, pages)),
    )


def passing(st: Rows, row: Number, pages: Number) -> tuple[Requirement, ...]:
    """What a caller promises that passes on the pages of a row which the tree has or takes."""
    busy = (st.phase(row) == RUNNING) | (st.phase(row) == LEAVING)
    whole = (st.protected(row) <= pages) & (pages <= st.committed(row))
    return (
        requires(is_row(st, row) & busy, "the row's request is running or leaving"),
        requires(whole, "only committed whole pages change hands, a partial page is nobody's but the row's"),
    )


@stem.transition
def dedupe(st: Rows, row: Number, pages: Number) -> Step[Rows]:
    """The tree has the row's tokens up to ``pages`` already: the row gives its own copies back and reads the tree's."""
    freed = call("pools", swa_mapping.free_pages, st.pools, row, st.protected(row), pages)
    return Step(
        calls=(freed,),
        promises=passing(st, row, pages),
        then=but(st, pools=freed.then, protected=st.protected.put(row, pages)),
    )


@stem.transition
def release(st: Rows, row: Number) -> Step[Rows]:
    """All that a leaving row still owns is given back, its partial page too; its session, if any, starts anew."""
    freed = call("pools", swa_mapping.trim, st.pools, row, NOTHING)
    return Step(
        calls=(freed,),
        promises=(in_phase(st, row, LEAVING, "the row is leaving"),),
        then=but(emptied(st, row), pools=freed.then),
    )


# A streaming session.


@stem.transition
def save(st: Rows, row: Number, agreed: Length) -> Step[Rows]:
    """A turn ends: its row goes to the session's slot, cut to ``agreed``, the input and the answer that was sent.

    What decoding ran past that is given back, and the cursor is never left behind (SGLang PR 22900): where the window
    before the cut is gone, the row is cut back to the tree's part.
    """
    over = shorter(agreed, committed(st, row))
    to = pick(over, back_to(st, row, agreed), shortest(agreed, allocated(st, row)))
    cut = call("pools", swa_mapping.trim, st.pools, row, to)
    kept = cut_back(st, row, shortest(agreed, committed(st, row)))
    return Step(
        calls=(cut,),
        promises=(
            at_work(st, row),
            requires(st.session(row) != 0, "the request is a turn of a session"),
            requires(formed(agreed, full_pool(st).page_size), "the agreed length is a length"),
            requires(at_most(protected(st, row), agreed), "the tree's part is part of the text"),
        ),
        then=but(
            kept,
            pools=cut.then,
            phase=st.phase.put(row, SAVED),
            text=st.text.put(row, agreed.pages),
            text_rest=st.text_rest.put(row, agreed.rest),
        ),
    )


@stem.transition
def restore(st: Rows, session: Number, prefix: Length) -> Step[Rows]:
    """A turn is to go on at ``prefix``: what the slot has beyond it is given back (SGLang PR 22862).

    Doing it again changes nothing, so that a turn that was not admitted tries again.
    """
    row = slot_row(st, session)
    cut = call("pools", swa_mapping.trim, st.pools, row, back_to(st, row, prefix))
    return Step(
        calls=(cut,),
        promises=(
            in_slot(st, session),
            requires(formed(prefix, full_pool(st).page_size), "the prefix is a length"),
            requires(at_most(protected(st, row), prefix), "the prefix is no shorter than the tree's part"),
            requires(at_most(prefix, committed(st, row)), "the prefix is computed"),
        ),
        then=but(cut_back(st, row, prefix), pools=cut.then),
    )


@stem.transition
def resume(st: Rows, session: Number, given: Length) -> Step[Rows]:
    """The next turn runs on the slot's row: its input begins with the text so far, and has a token to compute."""
    row = slot_row(st, session)
    return Step(
        promises=(
            in_slot(st, session),
            requires(same(committed(st, row), allocated(st, row)), "the tail was given back"),
            requires(at_most(text(st, row), given), "a session only appends"),
            requires(shorter(committed(st, row), given), "there is a token to compute"),
        ),
        then=but(st, phase=st.phase.put(row, RUNNING)),
    )


@stem.transition
def close(st: Rows, session: Number) -> Step[Rows]:
    """A session ends between turns: all that its slot owns is given back."""
    row = slot_row(st, session)
    freed = call("pools", swa_mapping.trim, st.pools, row, NOTHING)
    return Step(calls=(freed,), promises=(in_slot(st, session),), then=but(emptied(st, row), pools=freed.then))


# Somebody else's rows: the tree's.


@stem.transition
def pass_on(st: Rows, row: Number, to: Number, first: Number, last: Number) -> Step[Rows]:
    """Somebody else's pages go to another of them, as when a node is split."""
    given = call("pools", swa_mapping.hand_over, st.pools, row, to, first, last)
    others = requires(is_other(st, row) & is_other(st, to), "no request's row gives or takes")
    return Step(calls=(given,), promises=(others, *given.step.promises), then=but(st, pools=given.then))


@stem.transition
def drop(st: Rows, row: Number) -> Step[Rows]:
    """Somebody else gives back all its pages, as when a node is evicted."""
    freed = call("pools", swa_mapping.trim, st.pools, row, NOTHING)
    return Step(calls=(freed,), promises=(other(st, row),), then=but(st, pools=freed.then))


@stem.transition
def drop_swa(st: Rows, row: Number) -> Step[Rows]:
    """Somebody else gives back its SWA pages alone, as when a node becomes a tombstone."""
    freed = call("pools", swa_mapping.slide, st.pools, row, full_pool(st).whole(row))
    return Step(calls=(freed,), promises=(other(st, row),), then=but(st, pools=freed.then))


@stem.transition
def free_group_begin(st: Rows) -> Step[Rows]:
    """From here on what is given back waits, as while an engine goes through the results of a batch."""
    begun = call("pools", swa_mapping.free_group_begin, st.pools)
    return Step(calls=(begun,), then=but(st, pools=begun.then))


@stem.transition
def free_group_end(st: Rows) -> Step[Rows]:
    """What waited is given back."""
    ended = call("pools", swa_mapping.free_group_end, st.pools)
    return Step(calls=(ended,), promises=ended.step.promises, then=but(st, pools=ended.then))


def other(st: Rows, row: Number) -> Requirement:
    """The row is somebody else's."""
    return requires(is_other(st, row), "the row is no request's")


for _law in rows.LAWS:
    stem.invariant()(_law)

__all__ = ["Rows", "initial", "stem"]
