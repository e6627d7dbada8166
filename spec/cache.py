"""The whole cache: requests, streaming sessions and the radix tree over one ownership of pages.

Every transition is made of transitions of the parts, ``session_trim`` (which is made of ``swa_mapping``) and
``lock_ref``; the provers show that it keeps the promises of each. What a matching or an evicting implementation is free
to choose, the node and where its lock ends, is its choice and judged as one.
"""

from __future__ import annotations

from spec import carried, lock_ref, mamba_slots, session_trim, whole
from spec.carried import (
    carries_nothing,
    evict_leaf_and_state,
    slot_carries_nothing,
    state_admit,
    state_close,
    state_copy,
    state_donate,
    state_evict,
    state_give_second,
    state_group_begin,
    state_group_end,
    state_match,
    state_release,
    state_renew,
    state_restore,
    state_save,
    state_second,
    state_swap,
    state_track,
)
from spec.lengths import Length, touched
from spec.logic import Call, Number, Requirement, Seq, Stem, Step, Truth, but, call, ite, requires
from spec.rows import LEAVING, allocated, full_pool
from spec.tree import ROOT, begin, end, lives
from spec.whole import Whole, born, held_by, home, initial, is_path, living, read_own, read_path, start

stem = Stem("cache", state=Whole, start=start)
stem.part("life", session_trim.stem)
stem.part("tree", lock_ref.stem)
stem.part("states", mamba_slots.stem)


# A request that comes, and what it finds.


@stem.transition
def admit(
    st: Whole, row: Number, session: Number, handle: Number, node: Number, top: Number, pages: Seq
) -> Step[Whole]:
    """A request gets a row that begins with the pages of the node that was matched, and holds that node."""
    locked = call("tree", lock_ref.acquire, st.tree, handle, node, top)
    begun = call("life", session_trim.admit, st.life, row, session, st.tree.stop(node))
    return Step(
        calls=(locked, begun),
        promises=(*begun.step.promises, is_new(st, handle), windowed(st)),
        choice=matched(st, locked, node, pages),
        then=but(held_by(read_path(st, row, pages), row, handle), tree=locked.then, life=begun.then),
    )


@stem.transition
def admit_cold(st: Whole, row: Number, session: Number) -> Step[Whole]:
    """A request for which the tree has nothing gets a row, and holds nothing."""
    begun = call("life", session_trim.admit, st.life, row, session, 0)
    return Step(calls=(begun,), promises=begun.step.promises, then=but(st, life=begun.then))


def is_new(st: Whole, handle: Number) -> Requirement:
    """Handles are used once."""
    return requires(st.tree.handles.has(handle) & (st.tree.active(handle) != 1), "the handle is new")


def matched(st: Whole, locked: Call, node: Number, pages: Seq) -> tuple[Requirement, ...]:
    """What the tree answers to a match: a node that can be locked, and the pages on its path."""
    return (
        *locked.step.promises,
        requires(is_path(st, node, pages), "the pages are those of the node's path, place by place"),
    )


# A request that runs.


@stem.transition
def extend(st: Whole, row: Number, to: Length, full_pages: Seq, swa_pages: Seq) -> Step[Whole]:
    """A prefill, or a chunk of one."""
    grown = call("life", session_trim.extend, st.life, row, to, full_pages, swa_pages)
    return growing(st, row, grown, full_pages, swa_pages)


@stem.transition
def decode(st: Whole, row: Number, full_pages: Seq, swa_pages: Seq) -> Step[Whole]:
    """A request decodes one token more."""
    grown = call("life", session_trim.decode, st.life, row, full_pages, swa_pages)
    return growing(st, row, grown, full_pages, swa_pages)


@stem.transition
def reserve(st: Whole, row: Number, to: Length, full_pages: Seq, swa_pages: Seq) -> Step[Whole]:
    """Slots ahead of what is computed."""
    grown = call("life", session_trim.reserve, st.life, row, to, full_pages, swa_pages)
    return growing(st, row, grown, full_pages, swa_pages)


def growing(st: Whole, row: Number, grown: Call, full_pages: Seq, swa_pages: Seq) -> Step[Whole]:
    """A row that grows reads its new pages."""
    taken = but(living(st, grown.then), full=born(st.full, full_pages), swa=born(st.swa, swa_pages))
    return Step(
        calls=(grown,),
        promises=grown.step.promises,
        choice=grown.step.choice,
        fits=grown.step.fits,
        then=read_own(taken, row, touched(allocated(st.life, row))),
    )


def alike(st: Whole, asked: Call) -> Step[Whole]:
    """The call on the rows, and nothing else."""
    return Step(calls=(asked,), promises=asked.step.promises, then=living(st, asked.then))


@stem.transition
def commit(st: Whole, row: Number, to: Length) -> Step[Whole]:
    """A verified draft is committed."""
    return alike(st, call("life", session_trim.commit, st.life, row, to))


@stem.transition
def slide(st: Whole, row: Number, to: Number) -> Step[Whole]:
    """The window moves on."""
    return alike(st, call("life", session_trim.slide, st.life, row, to))


def holds(st: Whole, row: Number, handle: Number) -> Requirement:
    """The row's request holds ``handle``."""
    return requires((handle != 0) & (st.handle(row) == handle), "the request holds the handle")


def has_none(st: Whole, row: Number) -> Requirement:
    """The row's request holds nothing."""
    return requires(st.handle(row) == 0, "the request holds nothing")


def windowed(st: Whole) -> Requirement:
    """The cache is one of a model with a window."""
    return requires(st.tree.windowed, "the tree keeps SWA parts")


def fresh_leaf(st: Whole, row: Number, leaf: Number, pages: Number) -> tuple[Requirement, ...]:
    """What a caller promises of a new leaf."""
    return (
        windowed(st),
        requires(st.tree.nodes.has(leaf) & (st.tree.alive(leaf) != 1), "the leaf is new"),
        requires(full_pool(st.life).rows.has(home(st, leaf)), "the leaf has its place in the pools"),
        requires((st.life.protected(row) < pages) & (pages <= st.life.committed(row)), "the leaf takes whole pages"),
    )


def whole_window(st: Whole, row: Number) -> Requirement:
    """The row owns an SWA page wherever it owns a full one."""
    return requires(st.life.cursor(row) <= st.life.protected(row), "none of its pages has left the window")


# A request that ends.


@stem.transition
def finish(st: Whole, row: Number) -> Step[Whole]:
    """A request that ends, is aborted or retracted reads nothing any more."""
    return alike(st, call("life", session_trim.finish, st.life, row))


@stem.transition
def come_back(
    st: Whole, row: Number, old: Number, handle: Number, node: Number, top: Number, pages: Seq
) -> Step[Whole]:
    """A request between two chunks reads the tree's pages, which are its own no more, and holds where they end."""
    locked = call("tree", lock_ref.acquire, st.tree, handle, node, top)
    let_go = call("tree", lock_ref.release, locked.then, old)
    return coming_back(st, row, handle, node, pages, (locked, let_go), holds(st, row, old))


@stem.transition
def come_back_cold(st: Whole, row: Number, handle: Number, node: Number, top: Number, pages: Seq) -> Step[Whole]:
    """As ``come_back``, for a request that held nothing."""
    locked = call("tree", lock_ref.acquire, st.tree, handle, node, top)
    return coming_back(st, row, handle, node, pages, (locked,), has_none(st, row))


def coming_back(
    st: Whole, row: Number, handle: Number, node: Number, pages: Seq, locks: tuple[Call, ...], had: Requirement
) -> Step[Whole]:
    """The new lock is taken before the old one is given back, so that nothing is evicted between."""
    begun = call("life", session_trim.come_back, st.life, row)
    return Step(
        calls=(*locks, begun),
        promises=(leaving(st, row), had, is_new(st, handle), windowed(st)),
        choice=(
            *matched(st, locks[0], node, pages),
            requires(st.tree.stop(node) == st.life.protected(row), "the node ends where the row's own pages begin"),
        ),
        then=but(held_by(read_path(st, row, pages), row, handle), tree=locks[-1].then, life=begun.then),
    )


@stem.transition
def leave(st: Whole, row: Number, under: Number, leaf: Number, pages: Number, live: Truth) -> Step[Whole]:
    """A leaving row puts whole pages into a new leaf: a live one above the cursor, a tombstone below it."""
    grown = call("tree", lock_ref.add_leaf, st.tree, under, leaf, pages, st.inserts + 1, live, False)
    given = call("life", session_trim.donate, st.life, row, home(st, leaf), pages)
    side = ite(live, st.life.cursor(row) <= st.life.protected(row), pages <= st.life.cursor(row))
    return Step(
        calls=(grown, given),
        promises=(
            leaving(st, row),
            requires((under == ROOT) | lives(st.tree, under), "the parent is in the tree"),
            requires(end(st.tree, under) == st.life.protected(row), "the leaf begins where the tree's part stops"),
            *fresh_leaf(st, row, leaf, pages),
            requires(side, "a leaf lies on one side of the cursor"),
        ),
        then=but(living(st, given.then), tree=grown.then, inserts=st.inserts + 1),
    )


def leaving(st: Whole, row: Number) -> Requirement:
    """The row is leaving."""
    return session_trim.in_phase(st.life, row, LEAVING, "the row is leaving")


@stem.transition
def leave_copies(st: Whole, row: Number, pages: Number) -> Step[Whole]:
    """A leaving row gives back the copies of what the tree has."""
    freed = alike(st, call("life", session_trim.dedupe, st.life, row, pages))
    return but(freed, promises=(leaving(st, row), *freed.promises))


@stem.transition
def leave_window(st: Whole, row: Number, node: Number) -> Step[Whole]:
    """A leaving row revives a tombstone that nobody holds: its pages take the place of the node's, which are freed."""
    revived = call("tree", lock_ref.restore, st.tree, node, st.inserts + 1)
    emptied = call("life", session_trim.drop, st.life, home(st, node))
    given = call("life", session_trim.donate, emptied.then, row, home(st, node), st.tree.stop(node))
    freed = living(st, emptied.then)
    return Step(
        calls=(revived, emptied, given),
        promises=(
            leaving(st, row),
            requires(lives(st.tree, node) & st.tree.windowed & (st.tree.swa(node) == 0), "the node is a tombstone"),
            requires(st.tree.full_ref(node) == 0, "nobody holds the node"),
            requires(begin(st.tree, node) == st.life.protected(row), "the node begins where the tree's part stops"),
            requires(st.tree.stop(node) <= st.life.committed(row), "the node ends within the row's whole pages"),
            whole_window(st, row),
        ),
        then=but(living(freed, given.then), tree=revived.then, inserts=st.inserts + 1),
    )


@stem.transition
def depart(st: Whole, row: Number, old: Number) -> Step[Whole]:
    """A leaving row gives back the rest, and lets go of what it holds."""
    return letting_go(st, row, old, departing(st, row, holds(st, row, old)))


@stem.transition
def depart_cold(st: Whole, row: Number) -> Step[Whole]:
    """As ``depart``, for a row that held nothing."""
    return departing(st, row, has_none(st, row))


def departing(st: Whole, row: Number, had: Requirement) -> Step[Whole]:
    """A leaving row gives back the rest."""
    freed = call("life", session_trim.release, st.life, row)
    return Step(
        calls=(freed,),
        promises=(leaving(st, row), had, carries_nothing(st, row)),
        then=living(st, freed.then),
    )


def letting_go(st: Whole, row: Number, old: Number, left: Step[Whole]) -> Step[Whole]:
    """The step, and the row's lock is given back after it."""
    let_go = call("tree", lock_ref.release, st.tree, old)
    return but(left, calls=(*left.calls, let_go), then=but(held_by(left.then, row, 0), tree=let_go.then))


# A streaming session.


@stem.transition
def save(st: Whole, row: Number, agreed: Length) -> Step[Whole]:
    """A turn ends, and its row goes to the session's slot; what it holds it goes on holding."""
    return alike(st, call("life", session_trim.save, st.life, row, agreed))


@stem.transition
def restore(st: Whole, session: Number, prefix: Length) -> Step[Whole]:
    """A turn is to go on at ``prefix``."""
    return alike(st, call("life", session_trim.restore, st.life, session, prefix))


@stem.transition
def resume(st: Whole, session: Number, given: Length) -> Step[Whole]:
    """The next turn runs."""
    resumed = alike(st, call("life", session_trim.resume, st.life, session, given))
    return but(resumed, promises=(*resumed.promises, slot_carries_nothing(st, session)))


@stem.transition
def close(st: Whole, session: Number, old: Number) -> Step[Whole]:
    """A session ends: its slot gives back what it owns, and lets go of what it holds."""
    row = session_trim.slot_row(st.life, session)
    return letting_go(st, row, old, closing(st, session, row, holds(st, row, old)))


@stem.transition
def close_cold(st: Whole, session: Number) -> Step[Whole]:
    """As ``close``, for a slot that holds nothing."""
    row = session_trim.slot_row(st.life, session)
    return closing(st, session, row, has_none(st, row))


def closing(st: Whole, session: Number, row: Number, had: Requirement) -> Step[Whole]:
    """A session's slot gives back what it owns."""
    freed = call("life", session_trim.close, st.life, session)
    return Step(
        calls=(freed,),
        promises=(*freed.step.promises, had, carries_nothing(st, row), slot_carries_nothing(st, session)),
        then=living(st, freed.then),
    )


# The tree.


@stem.transition
def split(st: Whole, child: Number, new: Number, at: Number) -> Step[Whole]:
    """A node is cut: the new parent gets the pages of the upper part."""
    cut = call("tree", lock_ref.split, st.tree, child, new, at)
    passed = call("life", session_trim.pass_on, st.life, home(st, child), home(st, new), begin(st.tree, child), at)
    place = requires(full_pool(st.life).rows.has(home(st, new)), "the new node has its place in the pools")
    return Step(
        calls=(cut, passed),
        promises=(*cut.step.promises, place),
        then=but(living(st, passed.then), tree=cut.then),
    )


@stem.transition
def evict_leaf(st: Whole, node: Number) -> Step[Whole]:
    """A leaf that nobody holds, and that has no state, gives its pages back."""
    gone = call("tree", lock_ref.evict_leaf, st.tree, node)
    freed = call("life", session_trim.drop, st.life, home(st, node))
    stateless = requires(st.tree.mamba(node) == 0, "the leaf has no state")
    return Step(
        calls=(gone, freed),
        promises=(*gone.step.promises, stateless),
        then=but(living(st, freed.then), tree=gone.then),
    )


@stem.transition
def evict_swa(st: Whole, node: Number) -> Step[Whole]:
    """A node whose SWA part nobody holds becomes a tombstone, and gives its SWA pages back."""
    gone = call("tree", lock_ref.evict_swa, st.tree, node)
    freed = call("life", session_trim.drop_swa, st.life, home(st, node))
    return Step(calls=(gone, freed), promises=gone.step.promises, then=but(living(st, freed.then), tree=gone.then))


@stem.transition
def free_group_begin(st: Whole) -> Step[Whole]:
    """From here on what is given back waits."""
    return alike(st, call("life", session_trim.free_group_begin, st.life))


@stem.transition
def free_group_end(st: Whole) -> Step[Whole]:
    """What waited is given back."""
    return alike(st, call("life", session_trim.free_group_end, st.life))


# The states, beside all this.

for _transition in carried.TRANSITIONS:
    stem.transition(_transition)

for _law in whole.LAWS:
    stem.invariant(about=("life", "tree"))(_law)
stem.invariant(about=("tree", "states"))(carried.node_has_its_state)
stem.invariant(about=("life", "states"))(carried.states_go_with_rows)
stem.invariant(about=("life", "states"))(carried.slot_has_row_and_states)
stem.theorem(about=("life", "tree"))(whole.quiescent)
stem.theorem(about=("life", "tree", "states"))(carried.states_are_quiescent)

__all__ = [
    "Whole",
    "evict_leaf_and_state",
    "initial",
    "state_admit",
    "state_close",
    "state_copy",
    "state_donate",
    "state_evict",
    "state_give_second",
    "state_group_begin",
    "state_group_end",
    "state_match",
    "state_release",
    "state_renew",
    "state_restore",
    "state_save",
    "state_second",
    "state_swap",
    "state_track",
    "stem",
]
