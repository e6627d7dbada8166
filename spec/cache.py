"""The whole cache: requests, streaming sessions and the radix tree share one ownership of pages and state slots.

Every transition is made of transitions of the parts: ``session_trim`` (rows over two pools, itself made of
``swa_mapping``), ``lock_ref`` (the tree) and ``mamba_slots``. The provers show that it keeps the promises of each. An
implementation of matching and eviction is free to choose the node and where the window of its lock ends; the law judges
this choice. An insert is a sequence of these transitions: ``drop_duplicates``, ``revive_tombstone``,
``revive_in_place`` and ``insert_leaf`` on a leaving row, and then ``free_rest`` (the request ends) or
``continue_prefill`` (it runs again). Where a transition takes a lock handle, the number 0 stands for no handle.
"""

from __future__ import annotations

from spec import (
    cache_effects,
    cache_flight,
    cache_state,
    cache_theorems,
    cache_transfers,
    content_effects,
    isolation,
    lock_ref,
    mamba_in_cache,
    mamba_slots,
    row_effects,
    session_trim,
    state_effects,
    state_isolation,
)
from spec.cache_state import (
    FILLED,
    UNFILLED,
    CacheState,
    begins_path,
    cover_leaf,
    cover_merge,
    cover_split,
    held_by,
    holds_window,
    home,
    initial,
    is_filled,
    is_path,
    read_own,
    read_path,
    start,
    window_in,
)
from spec.lengths import Length, at_most, same, shortest, touched
from spec.lock_ref_state import ROOT, begin, between, end, lives
from spec.logic import Call, Number, Requirement, Seq, Set, Stem, Step, Truth, but, call, implies, ite, no, requires
from spec.mamba_in_cache import row_has_no_states, slot_has_no_states, still_has_states
from spec.session_trim_state import LEAVING, allocated, back_to, committed, full_pool, is_whole, protected

stem = Stem("cache", state=CacheState, start=start, sizes=cache_state.tables_have_room)
stem.part("rows", session_trim.stem)
stem.part("tree", lock_ref.stem)
stem.part("states", mamba_slots.stem)


# A request that comes, and the cached prefix that it finds.


@stem.transition
def admit(
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
    """A request gets a row that begins with the pages of its matched node, and a lock handle on that node.

    Where the prompt matches nothing, the row has no cached pages and the request no handle: ``handle``, ``node`` and
    ``top`` are 0, and ``pages`` is empty. ``counting``: see ``lock_ref.acquire``. ``story``: the number of the
    request's text; the matched pages were computed for this text.
    """
    found = handle != 0
    locked = call("tree", lock_ref.acquire, st.tree, handle, node, top, counting, when=found)
    begun = call("rows", session_trim.admit, st.rows, row, session, end(st.tree, node))
    nothing = requires(implies(no(found), (node == ROOT) & (top == ROOT)), "a match without a handle has no node")
    return Step(
        calls=(locked, begun),
        promises=(*begun.step.promises, new_handle(st, handle, found), isolation.is_story(st, story)),
        choice=(
            *matched(st, locked, node, pages),
            nothing,
            window_found(st, node, top, end(st.tree, node), Length(end(st.tree, node), 0)),
            isolation.holds_text(st, story, node),
        ),
        then=but(
            held_by(read_path(isolation.with_story(st, row, story), row, pages), row, handle),
            tree=locked.then,
            rows=begun.then,
        ),
    )


@stem.transition
def admit_tail(
    st: CacheState, row: Number, session: Number, story: Number, handle: Number, node: Number, top: Number,
    counting: Truth, pages: Seq, start: Number, to: Length, full_pages: Seq, swa_pages: Seq,
) -> Step[CacheState]:  # fmt: skip
    """A request whose first ``to`` tokens were computed elsewhere gets a row with slots for them.

    The row begins with pages of its matched node: with all of them, or with fewer, where its tail begins before the
    node's end. Behind them it owns pages of its own, and has SWA pages only in its tail, from the page index ``start``
    on. What was computed elsewhere will be written into these pages by a transfer (``spec.cache_transfers``). Where the
    prompt matches nothing, ``handle``, ``node`` and ``top`` are 0, and ``pages`` is empty. ``story``: see ``admit``.
    """
    found = handle != 0
    locked = call("tree", lock_ref.acquire, st.tree, handle, node, top, counting, when=found)
    first = pages.length
    begun = call("rows", session_trim.admit_tail, st.rows, row, session, first, start, to, full_pages, swa_pages)
    nothing = requires(implies(no(found), (node == ROOT) & (top == ROOT)), "a match without a handle has no node")
    shown = held_by(read_path(but(isolation.with_story(st, row, story), rows=begun.then), row, pages), row, handle)
    return Step(
        calls=(locked, begun),
        promises=(*begun.step.promises, new_handle(st, handle, found), isolation.is_story(st, story)),
        choice=(
            *locked.step.promises,
            requires(begins_path(st, node, pages), "the matched pages are the first of the node's path"),
            nothing,
            *begun.step.choice,
            window_found(st, node, top, first, to),
            isolation.holds_text(st, story, node),
        ),
        fits=begun.step.fits,
        then=but(read_own(shown, row, first), tree=locked.then, awaits=st.awaits.put(row, UNFILLED)),
    )


def window_found(st: CacheState, node: Number, top: Number, first: Number, to: Length) -> Requirement:
    """A lock from ``node`` up to ``top`` finds the SWA part of each node in the window before the token at ``to``.

    Of the path the pages before the index ``first`` are read.
    """
    tree = st.tree
    return requires(
        window_in(st, node, first, to, lambda n: between(tree, top, n, node) & (tree.swa(n) == 1)),
        "the new lock finds the SWA part of each node in the window before the next token",
    )


def window_stays(st: CacheState, row: Number, to: Length) -> Requirement:
    """The row's lock handle, if it has one, holds the SWA part of each node in the window before ``to`` tokens."""
    handle = st.handle(row)
    return requires(
        implies(handle != 0, holds_window(st, handle, st.rows.protected(row), to)),
        "the row's lock holds the SWA part of each node in the window before the next token",
    )


def new_handle(st: CacheState, handle: Number, taken: Truth) -> Requirement:
    """A lock handle that is ``taken`` was never used, or was released."""
    return requires(implies(taken, st.tree.handles.has(handle) & (st.tree.active(handle) != 1)), "the handle is new")


def matched(st: CacheState, locked: Call, node: Number, pages: Seq) -> tuple[Requirement, ...]:
    """What the answer to a prefix match must satisfy: the node can be locked, and the pages are those of its path."""
    return (
        *locked.step.promises,
        requires(is_path(st, node, pages), "the matched pages are those of the node's path, index by index"),
    )


# A request that runs.


@stem.transition
def extend(st: CacheState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq) -> Step[CacheState]:
    """A prefill, or one chunk of it: the row grows to ``to`` tokens, and all of them are computed and committed."""
    return computing(st, row, call("rows", session_trim.extend, st.rows, row, to, full_pages, swa_pages))


@stem.transition
def decode(st: CacheState, row: Number, full_pages: Seq, swa_pages: Seq) -> Step[CacheState]:
    """A request decodes one token: the row grows by this token, which is computed and committed."""
    return computing(st, row, call("rows", session_trim.decode, st.rows, row, full_pages, swa_pages))


@stem.transition
def reserve(st: CacheState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq) -> Step[CacheState]:
    """The row gets slots up to ``to`` tokens before the tokens are computed, as speculative decoding needs them.

    A draft is written into these slots.
    """
    step = growing(st, row, call("rows", session_trim.reserve, st.rows, row, to, full_pages, swa_pages))
    return but(
        step,
        promises=(*step.promises, state_isolation.has_a_state(st, row), is_filled(st, row)),
        then=isolation.drafted(step.then, row, allocated(st.rows, row)),
    )


@stem.transition
def extend_elsewhere(st: CacheState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq) -> Step[CacheState]:
    """A request that has just begun gets slots for all of its first ``to`` tokens, which another server computes.

    They come by a transfer (``spec.cache_transfers``). ``admit_tail`` is for a request that gets SWA pages for its last
    tokens alone.
    """
    step = growing(st, row, call("rows", session_trim.extend, st.rows, row, to, full_pages, swa_pages))
    empty = same(allocated(st.rows, row), protected(st.rows, row))
    return but(
        step,
        promises=(*step.promises, requires(empty, "the row has its cached prefix alone"), is_filled(st, row)),
        then=but(step.then, awaits=st.awaits.put(row, UNFILLED)),
    )


def growing(st: CacheState, row: Number, grown: Call) -> Step[CacheState]:
    """The step of a row that grows: the row shows its new pages."""
    return Step(
        calls=(grown,),
        promises=grown.step.promises,
        choice=grown.step.choice,
        fits=grown.step.fits,
        then=read_own(but(st, rows=grown.then), row, touched(allocated(st.rows, row))),
    )


def computing(st: CacheState, row: Number, grown: Call) -> Step[CacheState]:
    """The step of a row that grows by tokens that a forward pass computes."""
    step = growing(st, row, grown)
    return but(
        step,
        promises=(*step.promises, state_isolation.has_a_state(st, row), is_filled(st, row)),
        then=after_pass(step.then, row, committed(st.rows, row)),
    )


def after_pass(st: CacheState, row: Number, first: Length) -> CacheState:
    """The state after a forward pass computed the row's tokens from ``first`` up to its committed length."""
    return state_isolation.computed(isolation.computed(st, row, first), row)


def rows_only(st: CacheState, asked: Call) -> Step[CacheState]:
    """The step that makes one call on the rows and changes nothing else."""
    return Step(calls=(asked,), promises=asked.step.promises, choice=asked.step.choice, then=but(st, rows=asked.then))


def left_alone(st: CacheState, row: Number, asked: Call) -> Step[CacheState]:
    """As ``rows_only``, for a row into which no transfer is under way."""
    step = rows_only(st, asked)
    return but(step, promises=(*step.promises, cache_transfers.nothing_is_under_way(st, row)))


@stem.transition
def commit(st: CacheState, row: Number, to: Length) -> Step[CacheState]:
    """A draft is verified: the allocated tokens up to ``to`` are committed, and their slots hold what was verified."""
    step = rows_only(st, call("rows", session_trim.commit, st.rows, row, to))
    return but(
        step,
        promises=(*step.promises, state_isolation.has_a_state(st, row), is_filled(st, row)),
        then=after_pass(step.then, row, committed(st.rows, row)),
    )


@stem.transition
def slide(st: CacheState, row: Number, to: Number) -> Step[CacheState]:
    """The window moves on: the row gives back the SWA pages below the page index ``to``, its new cursor."""
    return left_alone(st, row, call("rows", session_trim.slide, st.rows, row, to))


@stem.transition
def leave_window(st: CacheState, row: Number, first: Number, to: Number, later: Truth) -> Step[CacheState]:
    """The window moves on where every layer has one: the row gives back its pages from ``first`` up to ``to``.

    ``later``: see ``swa_mapping.free_full``.
    """
    return left_alone(st, row, call("rows", session_trim.leave_window, st.rows, row, first, to, later))


@stem.transition
def roll_back(st: CacheState, row: Number, to: Length) -> Step[CacheState]:
    """A step ended between the allocation of slots and their use: the row gives the slots beyond ``to`` tokens back."""
    cut = call("rows", session_trim.roll_back, st.rows, row, to)
    step = cutting(st, row, cut, shortest(to, committed(st.rows, row)))
    stays = (st.mine(row) == 0) | at_most(committed(st.rows, row), to)
    keeps = requires(stays, "a request with states keeps its computed tokens")
    return but(step, promises=(*step.promises, keeps, cache_transfers.nothing_is_under_way(st, row)))


def cutting(st: CacheState, row: Number, cut: Call, to: Length) -> Step[CacheState]:
    """The step that cuts a row to ``to`` committed tokens. The row's lock must hold the window before them, and the
    window in the row's own pages must have been computed or sent.
    """
    step = rows_only(st, cut)
    empty = same(to, protected(st.rows, row))
    sent = requires(
        empty | cache_transfers.holds_sent_window(st, row, st.sent_from(row), to),
        "the window before the next token was computed or sent",
    )
    then = but(step.then, sent_from=st.sent_from.put(row, ite(empty, 0, st.sent_from(row))))
    return but(step, promises=(*step.promises, window_stays(st, row, to), sent), then=then)


@stem.transition
def release_swa(st: CacheState, row: Number, old: Number) -> Step[CacheState]:
    """A running request gives back the SWA part of its lock ``old`` early, since its window has left the tree's pages.

    From then on the tree may evict these SWA pages. The full pages stay locked, and so does the mamba state.
    """
    step = giving_back(st, row, old, call("tree", lock_ref.release_swa, st.tree, old))
    left = requires(
        window_in(st, st.tree.node(old), st.rows.protected(row), committed(st.rows, row), lambda _: False),
        "every node of the row's cached prefix is behind the window before the next token",
    )
    return but(step, promises=(*step.promises, left))


@stem.transition
def release_state(st: CacheState, row: Number, old: Number) -> Step[CacheState]:
    """A running request gives back the mamba state of its lock ``old`` early, since it runs on a state of its own."""
    return giving_back(st, row, old, call("tree", lock_ref.release_state, st.tree, old))


def giving_back(st: CacheState, row: Number, old: Number, let_go: Call) -> Step[CacheState]:
    """The step in which a running request gives back a part of its lock."""
    return Step(
        calls=(let_go,),
        promises=(
            session_trim.at_work(st.rows, row),
            requires(old != 0, "the row has a lock handle"),
            has_handle(st, row, old),
            *let_go.step.promises,
        ),
        then=but(st, tree=let_go.then),
    )


def has_handle(st: CacheState, row: Number, handle: Number) -> Requirement:
    """The caller names the handle of the row, 0 where the row has none."""
    return requires(st.handle(row) == handle, "the given handle is the row's lock handle, 0 where it has none")


def fresh_leaf(st: CacheState, row: Number, leaf: Number, pages: Number) -> tuple[Requirement, ...]:
    """What a caller promises about a new leaf for the row's pages up to the page index ``pages``."""
    return (
        requires(st.tree.nodes.has(leaf) & (st.tree.alive(leaf) != 1), "the leaf is a new node"),
        requires(full_pool(st.rows).rows.has(home(st, leaf)), "the leaf has a row in the pools"),
        requires(
            (st.rows.protected(row) < pages) & (pages <= st.rows.committed(row)),
            "the leaf takes at least one page, and only whole committed pages",
        ),
        requires(
            is_whole(st.rows, row) | (pages <= st.rows.gap(row)),
            "no page of the leaf was given back since its tokens left the window",
        ),
    )


def has_whole_window(st: CacheState, row: Number) -> Truth:
    """The row owns an SWA page wherever it owns a full page, and what these hold was computed here, or sent."""
    first = st.rows.protected(row)
    return (st.rows.cursor(row) <= first) & (st.sent_from(row) <= first)


# A request that ends, or passes pages to the tree between two chunks.


@stem.transition
def finish(st: CacheState, row: Number) -> Step[CacheState]:
    """A request that ends, is aborted, is retracted or inserts a chunk stops reading; its row is leaving."""
    return left_alone(st, row, call("rows", session_trim.finish, st.rows, row))


@stem.transition
def continue_prefill(
    st: CacheState, row: Number, old: Number, handle: Number, node: Number, top: Number, counting: Truth, pages: Seq
) -> Step[CacheState]:
    """A request that inserted what it has computed runs again: it reads the tree's pages, and locks their last node.

    So it is between two chunks of a prompt, and at a checkpoint of a request that decodes. The pages of the tree were
    computed for the request's text.

    The new handle is acquired before the old one is released, so that no page can be evicted between the two. ``old``
    is 0 where the row had no lock handle.
    """
    locked = call("tree", lock_ref.acquire, st.tree, handle, node, top, counting)
    let_go = call("tree", lock_ref.release, locked.then, old, when=old != 0)
    begun = call("rows", session_trim.come_back, st.rows, row)
    return Step(
        calls=(locked, let_go, begun),
        promises=(
            leaving(st, row),
            has_handle(st, row, old),
            new_handle(st, handle, True),
            still_has_states(st, row),
        ),
        choice=(
            *matched(st, locked, node, pages),
            requires(st.tree.stop(node) == st.rows.protected(row), "the node ends where the row's own pages begin"),
            window_found(st, node, top, st.tree.stop(node), committed(st.rows, row)),
            isolation.holds_text(st, st.contents.story(row), node),
        ),
        then=but(held_by(read_path(st, row, pages), row, handle), tree=let_go.then, rows=begun.then),
    )


@stem.transition
def insert_leaf(
    st: CacheState, row: Number, under: Number, leaf: Number, pages: Number, live: Truth
) -> Step[CacheState]:
    """A leaving row donates whole pages to a new leaf; pages below the cursor make a leaf that is a tombstone.

    In a model with one pool no leaf has an SWA part, and ``live`` has no meaning.
    """
    grown = call("tree", lock_ref.add_leaf, st.tree, under, leaf, pages, st.inserts + 1, live, False)
    given = call("rows", session_trim.donate, st.rows, row, home(st, leaf), pages)
    side = ite(live, has_whole_window(st, row), pages <= st.rows.cursor(row))
    return Step(
        calls=(grown, given),
        promises=(
            leaving(st, row),
            is_filled(st, row),
            requires((under == ROOT) | lives(st.tree, under), "the leaf's parent is in the tree"),
            requires(end(st.tree, under) == st.rows.protected(row), "the leaf begins where the row's own pages begin"),
            *fresh_leaf(st, row, leaf, pages),
            requires(
                implies(st.tree.windowed, side),
                "all pages of the leaf are on one side of the cursor, and what its SWA pages hold was computed or sent",
            ),
        ),
        then=but(
            st,
            rows=given.then,
            tree=grown.then,
            cover=cover_leaf(st, under, leaf, pages),
            inserts=st.inserts + 1,
        ),
    )


def leaving(st: CacheState, row: Number) -> Requirement:
    """The row's request has stopped reading."""
    return session_trim.in_phase(st.rows, row, LEAVING, "the row is leaving")


@stem.transition
def drop_duplicates(st: CacheState, row: Number, pages: Number) -> Step[CacheState]:
    """A leaving row gives back its own copies of pages that the tree has already, up to the page index ``pages``."""
    freed = rows_only(st, call("rows", session_trim.dedupe, st.rows, row, pages))
    return but(freed, promises=(leaving(st, row), *freed.promises))


def revivable(st: CacheState, row: Number, node: Number) -> tuple[Requirement, ...]:
    """What a caller promises about a tombstone that takes over pages of a leaving row."""
    return (
        leaving(st, row),
        is_filled(st, row),
        requires(lives(st.tree, node) & st.tree.windowed & (st.tree.swa(node) == 0), "the node is a tombstone"),
        requires(begin(st.tree, node) == st.rows.protected(row), "the node begins where the row's own pages begin"),
        requires(st.tree.stop(node) <= st.rows.committed(row), "the node ends within the row's whole committed pages"),
        requires(
            has_whole_window(st, row),
            "every page that the row owns is in the window, and what its SWA page holds was computed or sent",
        ),
    )


@stem.transition
def revive_tombstone(st: CacheState, row: Number, node: Number) -> Step[CacheState]:
    """A leaving row donates its pages to a tombstone that nobody holds; the tombstone's old full pages are freed."""
    revived = call("tree", lock_ref.restore, st.tree, node, st.inserts + 1)
    emptied = call("rows", session_trim.drop, st.rows, home(st, node))
    given = call("rows", session_trim.donate, emptied.then, row, home(st, node), st.tree.stop(node))
    return Step(
        calls=(revived, emptied, given),
        promises=(
            *revivable(st, row, node),
            requires(st.tree.full_ref(node) == 0, "nobody holds the node"),
            isolation.holds_alike(st, row, node, begin(st.tree, node), st.tree.stop(node)),
        ),
        then=but(st, rows=given.then, tree=revived.then, inserts=st.inserts + 1),
    )


@stem.transition
def revive_in_place(st: CacheState, row: Number, node: Number, later: Truth) -> Step[CacheState]:
    """A leaving row donates its SWA pages to a tombstone, which keeps its full pages; the row's full copies are freed.

    So requests that hold the node go on reading its full pages. The pages of both hold one text. ``later``: see
    ``swa_mapping.free_full``.
    """
    revived = call("tree", lock_ref.restore_swa, st.tree, node)
    given = call("rows", session_trim.donate_swa, st.rows, row, home(st, node), st.tree.stop(node), later)
    return Step(
        calls=(revived, given),
        promises=(
            *revivable(st, row, node),
            isolation.holds_alike(st, row, node, begin(st.tree, node), st.tree.stop(node)),
        ),
        choice=given.step.choice,
        then=but(st, rows=given.then, tree=revived.then),
    )


@stem.transition
def free_rest(st: CacheState, row: Number, old: Number) -> Step[CacheState]:
    """A leaving row gives back the pages that it still owns, and releases its lock handle ``old`` (0: it has none)."""
    freed = call("rows", session_trim.release, st.rows, row)
    return letting_go(st, row, old, freed, (leaving(st, row), has_handle(st, row, old), row_has_no_states(st, row)))


def letting_go(
    st: CacheState, row: Number, old: Number, freed: Call, promises: tuple[Requirement, ...]
) -> Step[CacheState]:
    """The step that gives back what a row owns, and then releases its lock handle if it has one."""
    let_go = call("tree", lock_ref.release, st.tree, old, when=old != 0)
    return Step(
        calls=(freed, let_go),
        promises=promises,
        then=but(
            held_by(but(st, rows=freed.then), row, 0),
            tree=let_go.then,
            awaits=st.awaits.put(row, FILLED),
            sent_from=st.sent_from.put(row, 0),
        ),
    )


# A streaming session.


@stem.transition
def save(st: CacheState, row: Number, agreed: Length) -> Step[CacheState]:
    """A turn ends: its row goes to the session's slot, cut to ``agreed`` tokens; its lock handle is kept."""
    saved = call("rows", session_trim.save, st.rows, row, agreed)
    step = cutting(st, row, saved, back_to(st.rows, row, shortest(agreed, committed(st.rows, row))))
    return but(step, promises=(*step.promises, is_filled(st, row)))


@stem.transition
def restore(st: CacheState, session: Number, prefix: Length) -> Step[CacheState]:
    """The next turn will go on at ``prefix`` tokens: what the slot's row owns beyond this prefix is given back."""
    row = session_trim.slot_row(st.rows, session)
    return cutting(st, row, call("rows", session_trim.restore, st.rows, session, prefix), back_to(st.rows, row, prefix))


@stem.transition
def resume(st: CacheState, session: Number, story: Number, given: Length) -> Step[CacheState]:
    """The next turn runs on the row of its session's slot; its input has ``given`` tokens.

    ``story``: the number of the turn's text, which begins with the text so far of the session.
    """
    row = session_trim.slot_row(st.rows, session)
    resumed = rows_only(st, call("rows", session_trim.resume, st.rows, session, given))
    story_goes_on = (
        isolation.is_story(st, story),
        isolation.goes_on_with(st, row, story),
        state_isolation.goes_on_from_its_state(st, row),
    )
    return but(
        resumed,
        promises=(*resumed.promises, slot_has_no_states(st, session), *story_goes_on),
        then=isolation.with_story(resumed.then, row, story),
    )


@stem.transition
def close(st: CacheState, session: Number, old: Number) -> Step[CacheState]:
    """A session ends: its slot's row gives back its pages, and releases its lock handle ``old`` (0: it has none)."""
    row = session_trim.slot_row(st.rows, session)
    freed = call("rows", session_trim.close, st.rows, session)
    states_first = (row_has_no_states(st, row), slot_has_no_states(st, session))
    return letting_go(st, row, old, freed, (*freed.step.promises, has_handle(st, row, old), *states_first))


# The tree, without a request.


@stem.transition
def split(st: CacheState, child: Number, new: Number, at: Number) -> Step[CacheState]:
    """A node is cut at the page index ``at``: its new parent gets the pages of the upper part of its key."""
    cut = call("tree", lock_ref.split, st.tree, child, new, at)
    passed = call("rows", session_trim.pass_on, st.rows, home(st, child), home(st, new), begin(st.tree, child), at)
    place = requires(full_pool(st.rows).rows.has(home(st, new)), "the new node has a row in the pools")
    return Step(
        calls=(cut, passed),
        promises=(*cut.step.promises, place),
        then=but(st, rows=passed.then, tree=cut.then, cover=cover_split(st, child, new, at)),
    )


@stem.transition
def merge(st: CacheState, node: Number, above: Number) -> Step[CacheState]:
    """A node takes in its parent ``above``, of which it is the only child: it gets the parent's pages."""
    joined = call("tree", lock_ref.merge, st.tree, node, above)
    first, last = begin(st.tree, above), st.tree.stop(above)
    passed = call("rows", session_trim.pass_on, st.rows, home(st, above), home(st, node), first, last)
    emptied = call("rows", session_trim.drop, passed.then, home(st, above))
    return Step(
        calls=(joined, passed, emptied),
        promises=joined.step.promises,
        then=but(st, rows=emptied.then, tree=joined.then, cover=cover_merge(st, node, above)),
    )


@stem.transition
def evict_leaf(st: CacheState, node: Number) -> Step[CacheState]:
    """A leaf that nobody holds, and that has no mamba state, is evicted: its pages are given back."""
    gone = call("tree", lock_ref.evict_leaf, st.tree, node)
    freed = call("rows", session_trim.drop, st.rows, home(st, node))
    stateless = requires(st.tree.mamba(node) == 0, "the leaf has no state")
    return Step(
        calls=(gone, freed),
        promises=(*gone.step.promises, stateless),
        then=but(st, rows=freed.then, tree=gone.then),
    )


@stem.transition
def evict_swa(st: CacheState, node: Number) -> Step[CacheState]:
    """A node whose SWA pages nobody holds becomes a tombstone: its SWA pages are given back, its full pages stay."""
    gone = call("tree", lock_ref.evict_swa, st.tree, node)
    freed = call("rows", session_trim.drop_swa, st.rows, home(st, node))
    return Step(calls=(gone, freed), promises=gone.step.promises, then=but(st, rows=freed.then, tree=gone.then))


@stem.transition
def settle_swa(st: CacheState, done: Set, available: Truth) -> Step[CacheState]:
    """An engine need not wait for the end of the free group with SWA pages that rows or nodes gave back alone."""
    return rows_only(st, call("rows", session_trim.settle_swa, st.rows, done, available))


@stem.transition
def free_group_begin(st: CacheState, opens: Truth) -> Step[CacheState]:
    """A free group opens: freed pages wait until the outermost group ends.

    An engine may refuse to open a group within a group; then nothing changes.
    """
    return rows_only(st, call("rows", session_trim.free_group_begin, st.rows, opens))


@stem.transition
def free_group_end(st: CacheState) -> Step[CacheState]:
    """A free group ends: at the end of the outermost group the waiting pages become available.

    An end changes nothing where no group is open.
    """
    return rows_only(st, call("rows", session_trim.free_group_end, st.rows))


# The transitions of mamba states, of passes in flight and of transfers, and the laws.

for _transition in (*mamba_in_cache.TRANSITIONS, *cache_flight.TRANSITIONS, *cache_transfers.TRANSITIONS):
    stem.transition(_transition)

for _law in cache_state.LAWS:
    stem.invariant(about=("rows", "tree"))(_law)
stem.each(cache_state.nodes_of, about=("rows", "tree"))(cache_state.path_has_every_page)
stem.invariant(about=("tree", "states"))(mamba_in_cache.node_has_its_state)
stem.invariant(about=("rows", "states"))(mamba_in_cache.states_are_saved_once)
stem.invariant(about=("rows", "states"))(mamba_in_cache.states_go_with_rows)
stem.invariant(about=("rows", "states"))(mamba_in_cache.running_row_has_running_states)
stem.invariant(about=("rows", "states"))(mamba_in_cache.slot_has_row_and_states)
stem.invariant(about=("rows",))(cache_flight.only_jobs_in_flight_use_pages)
stem.invariant(about=("rows",))(cache_transfers.transfers_fill_rows)
stem.invariant(about=("rows",))(cache_transfers.a_transfer_holds_its_pages)
stem.invariant(about=("rows",))(cache_transfers.a_transfer_holds_its_window)
stem.invariant(about=("rows", "states"))(cache_transfers.a_transfer_holds_its_state)
stem.invariant(about=("rows", "states"))(cache_transfers.what_a_transfer_writes_is_its_own)
stem.invariant(about=("rows",))(cache_transfers.the_window_was_sent)
stem.theorem(about=("rows", "tree"), each=cache_state.nodes_of)(cache_theorems.every_count_is_zero)
stem.theorem(about=("rows", "tree"))(cache_theorems.quiescent)
stem.theorem(about=("rows", "tree", "states"))(cache_theorems.states_are_quiescent)
stem.theorem(about=("rows", "tree"), each=cache_theorems.rows_of)(cache_theorems.reads_held_pages)
stem.theorem(about=("rows", "tree"), each=cache_theorems.rows_of)(cache_theorems.reads_held_window)
stem.theorem(about=("rows", "tree"), each=cache_theorems.rows_of)(cache_theorems.reads_own_window)
stem.theorem(about=("rows", "states"))(cache_theorems.reads_own_states)
stem.theorem(about=("rows", "tree"))(cache_theorems.frees_what_it_owns)
stem.change()(mamba_in_cache.running_keeps_its_states)
stem.change(only=("launch",))(cache_flight.pass_is_launched)
stem.change(only=("launch",))(cache_flight.uses_own_pages)
stem.change(only=("end_pass",))(cache_flight.pass_is_done)
stem.change(besides=("launch", "end_pass", "receive", "arrive", "fall_short"))(cache_flight.work_in_flight_goes_on)
stem.change()(cache_transfers.who_awaits_computes_nothing)
WAITS = ("admit_tail", "extend_elsewhere")  # after these a row awaits a transfer
stem.change(besides=(*WAITS, "receive", "arrive", "fall_short"))(cache_transfers.rows_await_what_they_awaited)
stem.change(besides=("receive", "fall_short"))(cache_transfers.rows_have_what_was_sent)
stem.change(only=WAITS)(cache_transfers.others_await_what_they_awaited)
stem.change(only=("receive",))(cache_transfers.transfer_begins)
stem.change(only=("receive",))(cache_transfers.transfer_uses_own_pages)
stem.change(only=("arrive", "fall_short"))(cache_transfers.transfer_is_over)
stem.change(only=("arrive",))(cache_transfers.row_is_filled)
stem.change(only=("arrive",))(cache_transfers.only_the_row_is_written)
stem.change(only=(*WAITS, "fall_short"))(cache_transfers.row_awaits_a_transfer)
stem.change(only=("extend_elsewhere",))(cache_transfers.nothing_was_computed)
stem.change(only=("insert_leaf", "revive_tombstone", "revive_in_place", "save"))(
    cache_transfers.tree_gets_what_has_come
)

for _law in isolation.LAWS:
    stem.invariant(about=("rows", "tree"), ledger=True)(_law)
stem.each(cache_theorems.rows_of, about=("rows", "tree"), ledger=True)(isolation.prefix_holds_own_text)
stem.invariant(about=("rows", "states"), ledger=True)(state_isolation.own_state_is_of_own_text)
stem.invariant(about=("rows", "tree", "states"), ledger=True)(state_isolation.node_state_is_at_its_end)
stem.theorem(about=("rows", "tree"), each=cache_theorems.rows_of)(isolation.prefix_is_the_trees)
stem.theorem(about=("rows", "tree"), each=cache_theorems.rows_of, ledger=True)(isolation.reads_own_text)
stem.theorem(about=("rows", "tree"), each=cache_theorems.rows_of, ledger=True)(isolation.window_reads_own_text)
stem.theorem(about=("rows", "states"), ledger=True)(state_isolation.reads_state_of_own_text)

# What calls do.

stem.change(only=(*WAITS, "extend", "decode", "reserve"))(cache_effects.row_gets_the_chosen_pages)
stem.change(only=("admit", "admit_tail", "continue_prefill"))(cache_effects.runs_with_its_lock)
stem.change(only=("admit", "admit_tail", "continue_prefill"))(cache_effects.matched_node_is_locked)
stem.change(only=("state_admit",))(cache_effects.is_equipped_with)
stem.change(only=("reserve",))(content_effects.draft_is_nobodys_text)
stem.change(only=("extend", "decode", "commit"))(content_effects.pass_goes_on_from_its_state)
stem.change(only=("state_match", "state_match_again"))(content_effects.request_gets_the_nodes_state)
stem.change(only=("state_copy", "state_match"))(content_effects.other_slots_hold_what_they_held)
stem.change(only=("state_match_again",))(content_effects.slots_of_others_hold_what_they_held)
stem.change(only=("state_take_back",))(content_effects.session_goes_on_from_an_earlier_state)
stem.change(only=("state_write",))(content_effects.track_gets_the_state_at_the_boundary)
stem.change(only=("state_admit",))(content_effects.request_begins_with_its_state)

OF_ONE_ROW = (
    *("admit", "admit_tail", "extend", "extend_elsewhere", "decode", "reserve", "commit"),
    *("slide", "leave_window", "roll_back", "release_swa", "release_state"),
    *("finish", "continue_prefill", "insert_leaf", "drop_duplicates"),
    *("revive_tombstone", "revive_in_place", "free_rest", "save", "state_admit", "receive", "arrive", "fall_short"),
)
OF_A_SESSION = ("restore", "resume", "close")
stem.change(only=OF_ONE_ROW, part="rows")(row_effects.others_go_on)
stem.change(only=OF_A_SESSION, part="rows")(row_effects.other_sessions_go_on)
stem.change(besides=(*OF_ONE_ROW, *OF_A_SESSION), part="rows")(row_effects.requests_go_on)
stem.change(only=OF_ONE_ROW)(cache_effects.others_keep_their_prefix)
stem.change(only=OF_A_SESSION)(cache_effects.sessions_keep_their_prefix)
stem.change(besides=(*OF_ONE_ROW, *OF_A_SESSION))(cache_effects.requests_keep_their_prefix)
stem.change(only=("admit",))(cache_effects.request_begins)
stem.change(only=("admit_tail",))(cache_effects.request_begins_with_its_tail)
stem.change(only=("extend", "extend_elsewhere"), part="rows")(row_effects.computes_what_is_asked)
stem.change(only=("decode",), part="rows")(row_effects.computes_one_token)
stem.change(only=("reserve",), part="rows")(row_effects.gets_slots_for_a_draft)
stem.change(only=("commit",), part="rows")(row_effects.commits_what_was_accepted)
stem.change(only=("roll_back",), part="rows")(row_effects.keeps_what_is_committed)
stem.change(only=("slide",), part="rows")(row_effects.slides_behind_the_prefix)
stem.change(only=("leave_window",), part="rows")(row_effects.leaves_the_window_behind)
stem.change(only=("settle_swa",), part="rows")(row_effects.ends_the_wait)
stem.change(only=("free_group_begin",), part="rows")(row_effects.group_opens_as_asked)
stem.change(only=("release_swa",))(cache_effects.window_is_let_go)
stem.change(only=("release_state",))(cache_effects.state_is_let_go)
stem.change(only=("finish",), part="rows")(row_effects.only_stops)
stem.change(only=("continue_prefill",))(cache_effects.goes_on_from_the_tree)
stem.change(only=("insert_leaf",))(cache_effects.leaf_gets_the_rows_pages)
stem.change(only=("drop_duplicates",), part="rows")(row_effects.passes_its_prefix_on)
stem.change(only=("revive_tombstone",))(cache_effects.tombstone_gets_the_rows_pages)
stem.change(only=("revive_in_place",))(cache_effects.tombstone_gets_the_rows_window)
stem.change(only=("free_rest",))(cache_effects.request_is_gone)
stem.change(only=("save",), part="rows")(row_effects.saves_what_was_sent)
stem.change(only=("restore",), part="rows")(row_effects.next_turn_begins_there)
stem.change(only=("resume",))(cache_effects.next_turn_runs_with_its_text)
stem.change(only=("close",))(cache_effects.session_is_gone)
stem.change(only=("split",))(cache_effects.upper_half_gets_its_pages)
stem.change(only=("merge",))(cache_effects.node_takes_in_its_parent)
stem.change(only=("evict_leaf", "evict_leaf_and_state"))(cache_effects.leaf_is_gone)
stem.change(only=("evict_swa",))(cache_effects.only_the_window_is_gone)
stem.change(only=("state_save",))(cache_effects.session_saves_every_state)
stem.change(only=("state_restore",))(cache_effects.next_turn_gets_every_state)
stem.change(only=("state_close",))(cache_effects.session_gives_every_state)
stem.change(only=("state_release",))(cache_effects.request_gives_every_state)
stem.change(only=("state_copy",))(cache_effects.node_copies_a_state)
stem.change(only=("state_evict", "evict_leaf_and_state"))(cache_effects.node_gives_its_state)
stem.change(only=("state_track", "state_second", "state_turn_lazy"), part="states")(
    state_effects.turns_to_the_other_track
)
stem.change(only=("state_give_second",), part="states")(state_effects.keeps_what_it_writes_next)
stem.change(only=("state_group_begin",), part="states")(state_effects.sets_aside_all_or_none)
stem.change(only=("state_group_end",), part="states")(state_effects.group_is_over)
WRITES_STATES = (
    *("extend", "decode", "commit", "state_admit", "state_write"),
    *("state_match", "state_match_again", "state_copy", "state_take_back", "arrive"),
)
stem.change(besides=WRITES_STATES)(cache_effects.states_hold_what_they_held)

__all__ = ["CacheState", "initial", "stem"]
