"""Isolation: what a request reads was computed for its own text. The law of contents over the whole cache.

Only a forward pass of a request and a transfer into its row write, and they write where the row shows pages
(``writes``). The laws say what the pages that a request owns and reads hold. They follow from the laws of ownership,
and from what is asked of an engine's comparison of texts: a match answers with pages that hold the request's own text
(``holds_text``), and an insert finds what it has in the tree (``holds_alike``).
"""

from __future__ import annotations

from collections.abc import Callable

from spec import contents
from spec.cache_state import FILLED, CacheState, home
from spec.cache_theorems import each_token, in_window, reader
from spec.contents import UNWRITTEN
from spec.lengths import Length, covers, positions
from spec.lock_ref_state import end
from spec.logic import Map, Number, Requirement, Truth, but, implies, no, requires
from spec.pool import PADDING, Pool, held
from spec.session_trim_state import allocated, committed, each_row, full_pool, is_owned, may_be_read, swa_pool, text


def prefix_at(st: CacheState, row: Number, i: Number, o: Number) -> Number:
    """The prefix of the text of the row's request that ends with the token at this page index and offset."""
    return st.contents.tells(st.contents.story(row), i, o)


# What forward passes write.


def writes(
    st: CacheState, row: Number, first: Length, to: Length, what: Callable[[Number, Number], Number]
) -> CacheState:
    """The state after a forward pass wrote the row's tokens from ``first`` up to ``to``, ``to`` excluded.

    It writes where the row shows pages, and where the mapping leads from there, whoever holds the page. A write to a
    page that nobody holds is lost, since the page is written again before anybody may read it.
    ``what``: the prefix at a page index and an offset.
    """
    full, swa, pair, old = full_pool(st.rows), swa_pool(st.rows), st.rows.pools.now, st.contents

    def new(i: Number, o: Number) -> Truth:
        return full.offsets.has(o) & no(covers(first, i, o)) & covers(to, i, o)

    def in_full(p: Number, o: Number) -> Truth:
        i = full.index(p)
        return held(full, p) & (st.reads(row, i) == p) & new(i, o)

    def in_swa(s: Number, o: Number) -> Truth:
        i = swa.index(s)
        page = st.reads(row, i)
        return held(swa, s) & (pair.to_page(page, o) == s) & (pair.to_offset(page, o) == o) & new(i, o)

    return but(
        st,
        contents=but(
            old,
            full=old.full.where(in_full, lambda p, o: what(full.index(p), o), lambda: shown(st, row, first, to)),
            swa=old.swa.where(in_swa, lambda s, o: what(swa.index(s), o), lambda: mapped(st, row, first, to)),
        ),
    )


def shown(st: CacheState, row: int, first: Length, to: Length) -> list[tuple[int, int]]:
    """The full slots that the row shows for these tokens, each a page and an offset (finite reading)."""
    return [(st.reads(row, i), o) for i, o in positions(first, to, full_pool(st.rows).page_size)]


def mapped(st: CacheState, row: int, first: Length, to: Length) -> list[tuple[int, int]]:
    """The SWA slots into which these full slots map (finite reading)."""
    return [(st.rows.pools.now.to_page(p, o), o) for p, o in shown(st, row, first, to)]


def computed(st: CacheState, row: Number, first: Length) -> CacheState:
    """The state after the row's tokens from ``first`` up to its committed length were computed."""
    return writes(st, row, first, committed(st.rows, row), lambda i, o: prefix_at(st, row, i, o))


def arrived(st: CacheState, row: Number) -> CacheState:
    """The state after a transfer wrote the row's committed tokens into the pages that the row owns. Of the SWA pool it
    writes those that were sent.
    """
    to, known, sent = committed(st.rows, row), st.contents, st.sent_from(row)

    def written(pool: Pool, holds: Map, first: Number) -> Map:
        def own(p: Number, o: Number) -> Truth:
            there = pool.offsets.has(o) & covers(to, pool.index(p), o) & (first <= pool.index(p))
            return held(pool, p) & (pool.owner(p) == row) & there

        def keys() -> list[tuple[int, int]]:
            places = ((pool.table(row, i), o) for i, o in positions(Length(first, 0), to, pool.page_size))
            return [place for place in places if place[0] != PADDING]

        return holds.where(own, lambda p, o: prefix_at(st, row, pool.index(p), o), keys)

    full, swa = full_pool(st.rows), swa_pool(st.rows)
    return but(st, contents=but(known, full=written(full, known.full, 0), swa=written(swa, known.swa, sent)))


def drafted(st: CacheState, row: Number, first: Length) -> CacheState:
    """The state after the row's slots from ``first`` on were written with a draft, which is nobody's text."""
    return writes(st, row, first, allocated(st.rows, row), lambda _, __: UNWRITTEN)


def with_story(st: CacheState, row: Number, story: Number) -> CacheState:
    """The state in which the row's request has this story."""
    return but(st, contents=contents.begun(st.contents, row, story))


# What is asked of callers, and of an engine that compares texts.


def is_story(st: CacheState, story: Number) -> Requirement:
    """The number is one of a story."""
    return requires(st.contents.stories.has(story), "the request's text has a number")


def holds_text(st: CacheState, story: Number, node: Number) -> Requirement:
    """The pages of the path to the tree node hold the beginning of the story, each at its index."""
    full, known = full_pool(st.rows), st.contents

    def holds(i: Number, o: Number) -> Truth:
        page = full.table(home(st, st.cover(node, i)), i)
        return implies(i < end(st.tree, node), known.full(page, o) == known.tells(story, i, o))

    return requires(each_token(st, holds), "the matched pages were computed for the request's own text")


def holds_alike(st: CacheState, row: Number, node: Number, first: Number, last: Number) -> Requirement:
    """The row and the tree node own pages with one text at the page indices from ``first`` to ``last`` (excluded)."""
    full, known = full_pool(st.rows), st.contents

    def alike(i: Number, o: Number) -> Truth:
        there = (first <= i) & (i < last)
        return implies(there, known.full(full.table(home(st, node), i), o) == known.full(full.table(row, i), o))

    return requires(each_token(st, alike), "the node's pages hold the text that the row's own pages hold")


def goes_on_with(st: CacheState, row: Number, story: Number) -> Requirement:
    """The story begins with the text so far of the row's session."""
    so_far, known = text(st.rows, row), st.contents

    def goes_on(i: Number, o: Number) -> Truth:
        return implies(covers(so_far, i, o), known.tells(story, i, o) == prefix_at(st, row, i, o))

    return requires(each_token(st, goes_on), "the turn's text begins with the text so far of its session")


# The laws.


def texts_are_known(st: CacheState) -> Truth:
    """The request on a row has a text."""
    return each_row(st.rows, lambda r: st.contents.stories.has(st.contents.story(r)))


def own_pages_hold_own_text(st: CacheState) -> Truth:
    """At each committed token of a page that a row owns, the page was computed for the row's text. This is not said of
    a row that awaits a transfer.
    """
    full = full_pool(st.rows)

    def own(r: Number, i: Number, o: Number) -> Truth:
        there = (st.awaits(r) == FILLED) & is_owned(st.rows, r, i) & covers(committed(st.rows, r), i, o)
        return implies(there, st.contents.full(full.table(r, i), o) == prefix_at(st, r, i, o))

    return each_row(st.rows, lambda r: each_token(st, lambda i, o: own(r, i, o)))


def own_window_holds_own_text(st: CacheState) -> Truth:
    """At each committed token, an SWA page that a row owns was computed for the row's text. This is not said of a row
    that awaits a transfer, nor of SWA pages that were not sent.
    """
    swa = swa_pool(st.rows)

    def own(r: Number, i: Number, o: Number) -> Truth:
        come = (st.awaits(r) == FILLED) & (st.sent_from(r) <= i)
        there = come & (swa.table(r, i) != PADDING) & covers(committed(st.rows, r), i, o)
        return implies(there, st.contents.swa(swa.table(r, i), o) == prefix_at(st, r, i, o))

    return each_row(st.rows, lambda r: each_token(st, lambda i, o: own(r, i, o)))


def prefix_holds_own_text(st: CacheState, r: Number) -> Truth:
    """In its cached prefix, each page that a row reads was computed for the row's text."""

    def shared(i: Number, o: Number) -> Truth:
        there = reader(st, r) & (i < st.rows.protected(r))
        return implies(there, st.contents.full(st.reads(r, i), o) == prefix_at(st, r, i, o))

    return implies(r < st.rows.limit, each_token(st, shared))


def node_window_holds_its_text(st: CacheState) -> Truth:
    """An SWA page of a tree node holds the text that the node's full page holds at this index."""
    full, swa, known = full_pool(st.rows), swa_pool(st.rows), st.contents

    def alike(r: Number, i: Number, o: Number) -> Truth:
        there = swa.table(r, i) != PADDING
        return implies(there, known.swa(swa.table(r, i), o) == known.full(full.table(r, i), o))

    return full.rows.all(lambda r: implies(r >= st.rows.limit, each_token(st, lambda i, o: alike(r, i, o))))


LAWS = (
    texts_are_known,
    own_pages_hold_own_text,
    own_window_holds_own_text,
    node_window_holds_its_text,
)

# The theorem of isolation.


def prefix_is_the_trees(st: CacheState, r: Number) -> Truth:
    """At each index of its cached prefix, a row that is read shows a page that a tree node owns.

    So no request writes a page that another request reads.
    """
    full = full_pool(st.rows)

    def shared(i: Number) -> Truth:
        page = st.reads(r, i)
        there = reader(st, r) & (i < st.rows.protected(r))
        return implies(there, held(full, page) & (full.index(page) == i) & (full.owner(page) > st.rows.limit))

    return implies(r < st.rows.limit, full.indices.all(shared))


def holds_own(st: CacheState, known: Map, page: Number, offset: Number, r: Number, i: Number, o: Number) -> Truth:
    """The slot at ``offset`` of ``page`` holds the text of the row ``r`` up to the token at ``i`` and ``o``."""
    return known(page, offset) == prefix_at(st, r, i, o)


def computes(st: CacheState, r: Number) -> Truth:
    """The row is read, and awaits no transfer."""
    return reader(st, r) & (st.awaits(r) == FILLED)


def reads_own_text(st: CacheState, r: Number) -> Truth:
    """At each committed token, the slot that a row shows was computed for the row's own text up to this token.

    This is said of each row that is read and awaits no transfer, of its cached prefix and of its own pages. So no
    request reads a full page that was computed for another text, or for a draft that was not verified. Where every
    layer has a sliding window, this is said of the pages in the window.
    """

    def own(i: Number, o: Number) -> Truth:
        there = computes(st, r) & covers(committed(st.rows, r), i, o) & may_be_read(st.rows, r, i)
        return implies(there, holds_own(st, st.contents.full, st.reads(r, i), o, r, i, o))

    return implies(r < st.rows.limit, each_token(st, own))


def window_reads_own_text(st: CacheState, r: Number) -> Truth:
    """At each committed token in the window of a row that is read and awaits no transfer, the SWA slot into which the
    token maps was computed for the row's own text up to this token.

    So no request reads an SWA page that was computed for another text, in the tree or in its own pages.
    """
    pair = st.rows.pools.now

    def own(i: Number, o: Number) -> Truth:
        slot = pair.to_page(st.reads(r, i), o), pair.to_offset(st.reads(r, i), o)
        there = in_window(st, r, i, o) & covers(committed(st.rows, r), i, o) & computes(st, r)
        return implies(there, holds_own(st, st.contents.swa, *slot, r, i, o))

    return implies(r < st.rows.limit, each_token(st, own))
