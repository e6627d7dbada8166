"""What the provers need for rows and session slots: a small world, calls to try, mutants and proof hints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

from proofs import answers
from proofs.allocator import begins, nothing
from proofs.hints import COMMON, Hints, Mutant, altered, idlers, unasked, unchosen
from proofs.swa_mapping import settled
from spec import session_trim as law
from spec import session_trim_state, swa_mapping
from spec.finite import Seq
from spec.lengths import NOTHING, Length, at_most, in_pages, in_tokens, next_token, same, shortest, touched
from spec.logic import Call, Number, Requirement, Step, Truth, but, call, no, requires
from spec.pair import give
from spec.pool import cut, in_range, some_open, used_slots
from spec.session_trim_state import RUNNING, SAVED, SessionTrimState, allocated, committed, cursor, full_pool, swa_pool

SIZES = {
    **{"page_size": 2, "rows": 3, "indices": 3, "pools.full.pages": 3, "pools.swa.pages": 2},
    **{"limit": 1, "sessions": 1, "window_pages": 0, "window_rest": 1},
}


def small() -> tuple[SessionTrimState, ...]:
    """Three full and two SWA pages of two slots, one request row, two node rows, one session, one token of window.

    The second is a model without sliding-window layers, the third one that has no other layers: they use no SWA page.
    """
    pools = [swa_mapping.initial(2, size=3, size_swa=2, rows=3, need_sort=False, windowed=w) for w in (True, False)]
    kinds = ((pools[0], False), (pools[1], False), (pools[1], True))
    return tuple(law.initial(one, limit=1, sessions=1, window=Length(0, 1), all_sliding=every) for one, every in kinds)


def requests(st: SessionTrimState, *phases: int) -> list[int]:
    """The rows of requests in one of these phases."""
    return [r for r in full_pool(st).rows.items() if r < st.limit and st.phase(r) in phases]


def others(st: SessionTrimState) -> list[int]:
    """The rows of tree nodes."""
    return [r for r in full_pool(st).rows.items() if r >= st.limit]


def growth(st: SessionTrimState, row: int, to: Length) -> tuple[Seq, Seq]:
    """Pages that a row which grows to ``to`` may get."""
    need = touched(to) - touched(allocated(st, row))
    return some_open(full_pool(st), need), some_open(swa_pool(st), need if st.pools.windowed else 0)


def _grow(st: SessionTrimState) -> Iterator[tuple[Any, ...]]:
    size = full_pool(st).page_size
    for row in requests(st, RUNNING):
        for tokens in (1, 2, 3):
            to = in_pages(in_tokens(allocated(st, row), size) + tokens, size)
            yield row, to, *growth(st, row, to)


def _decode(st: SessionTrimState) -> Iterator[tuple[Any, ...]]:
    for row in requests(st, RUNNING):
        yield row, *growth(st, row, next_token(allocated(st, row), full_pool(st).page_size))


def _lengths(st: SessionTrimState, row: int, to: Length) -> Iterator[Length]:
    """Every length from the cached prefix to ``to``."""
    size = full_pool(st).page_size
    yield from (in_pages(n, size) for n in range(st.protected(row) * size, in_tokens(to, size) + 1))


def _whole(st: SessionTrimState) -> Iterator[tuple[int, int]]:
    for row in requests(st, RUNNING, session_trim_state.LEAVING):
        yield from ((row, pages) for pages in range(st.protected(row), st.committed(row) + 1))


def tails(st: SessionTrimState, prefixes: Iterable[int] = (0, 1)) -> Iterator[tuple[Any, ...]]:
    """A cached prefix of as many pages as ``prefixes`` says, a row of one page behind it or a token more, and each page
    where its tail may start. Few, since each row that comes makes the search longer.
    """
    size = full_pool(st).page_size
    for row, prefix in product(requests(st, session_trim_state.IDLE), prefixes):
        for to in (in_pages((prefix + 1) * size + more, size) for more in (0, 1)):
            full_pages = some_open(full_pool(st), touched(to) - prefix)
            for start in range(prefix, to.pages + 1):
                need = touched(to) - start if not same(Length(start, 0), to) else 0
                yield row, 0, prefix, start, to, full_pages, some_open(swa_pool(st), need)


def _roll_backs(st: SessionTrimState) -> Iterator[tuple[int, Length]]:
    for row in requests(st, RUNNING):
        yield from ((row, to) for to in list(_lengths(st, row, allocated(st, row)))[-3:-1])


def _slots(st: SessionTrimState) -> list[tuple[int, int]]:
    return [(s, st.slot(s) - 1) for s in st.sessions.items() if st.slot(s)]


MOVES: dict[str, Callable[[Any], Iterable[tuple[Any, ...]]]] = {
    "admit": lambda st: ((r, s, n) for r in requests(st, session_trim_state.IDLE) for s in (1, 0) for n in (0, 1)),
    "admit_tail": tails,
    "reserve": _grow,
    "extend": _grow,
    "decode": _decode,
    "commit": lambda st: ((r, to) for r in requests(st, RUNNING) for to in (allocated(st, r), NOTHING)),
    "roll_back": _roll_backs,
    "slide": lambda st: ((r, n) for r in requests(st, RUNNING) for n in range(st.committed(r) + 1)),
    "leave_window": lambda st: (
        (r, first, to, False) for r in requests(st, RUNNING) for to in range(st.committed(r) + 1) for first in range(to)
    ),
    "finish": lambda st: ((r,) for r in requests(st, RUNNING)),
    "come_back": lambda st: ((r,) for r in requests(st, session_trim_state.LEAVING)),
    "donate": lambda st: ((r, to, n) for r, n in _whole(st) for to in others(st)),
    "donate_swa": lambda st: ((r, to, n, False) for r, n in _whole(st) for to in others(st)),
    "dedupe": _whole,
    "release": lambda st: ((r,) for r in requests(st, session_trim_state.LEAVING)),
    "save": lambda st: ((r, to) for r in requests(st, RUNNING) for to in _lengths(st, r, allocated(st, r))),
    "restore": lambda st: ((s, to) for s, r in _slots(st) for to in _lengths(st, r, committed(st, r))),
    "resume": lambda st: (
        (s, next_token(session_trim_state.text(st, r), full_pool(st).page_size)) for s, r in _slots(st)
    ),
    "close": lambda st: ((s,) for s, _ in _slots(st)),
    "pass_on": lambda st: ((a, b, 0, full_pool(st).whole(a)) for a in others(st) for b in others(st)),
    "drop": lambda st: ((r,) for r in others(st)),
    "settle_swa": lambda st: settled(st.pools.now),
    "free_group_begin": begins,
    "free_group_end": nothing,
    "drop_swa": lambda st: ((r,) for r in others(st)),
}


# Mutants: what each transition would do without one line of the law.


def promised(calls: tuple[Call, ...]) -> tuple[Requirement, ...]:
    """The promises of all these calls."""
    return tuple(promise for called in calls for promise in called.step.promises)


def forgets_protected(st: SessionTrimState, row: Number) -> Step[SessionTrimState]:
    """A released row keeps the length of its cached prefix."""
    return altered(law.release(st, row), protected=st.protected)


def keeps_a_token(st: SessionTrimState, row: Number) -> Step[SessionTrimState]:
    """A node is evicted, and its row keeps the first token."""
    step = law.drop(st, row)
    calls = law.cut(st.pools, row, Length(0, 1))
    return but(step, calls=calls, promises=(*step.promises, *promised(calls)), then=but(st, pools=calls[-1].then))


def leaves_cursor(st: SessionTrimState, row: Number, agreed: Length) -> Step[SessionTrimState]:
    """A cut below the cursor leaves the cursor where it was (SGLang PR 22900)."""
    return altered(law.save(st, row, agreed), cursor=st.cursor, cursor_rest=st.cursor_rest)


def cursor_in_page(st: SessionTrimState, session: Number, prefix: Length) -> Step[SessionTrimState]:
    """A cut below the cursor puts the cursor at the cut, inside a page (as the fix of SGLang PR 22900 does)."""
    row = law.slot_row(st, session)
    calls = law.cut(st.pools, row, prefix)
    at = shortest(cursor(st, row), prefix)
    return but(
        law.restore(st, session, prefix),
        calls=calls,
        then=but(
            session_trim_state.commit_to(st, row, prefix),
            pools=calls[-1].then,
            cursor=st.cursor.put(row, at.pages),
            cursor_rest=st.cursor_rest.put(row, at.rest),
        ),
    )


def keeps_copies(st: SessionTrimState, row: Number, pages: Number) -> Step[SessionTrimState]:
    """A row reads the tree's pages from now on, and does not give its own duplicates back."""
    return but(law.dedupe(st, row, pages), calls=(), then=but(st, protected=st.protected.put(row, pages)))


def frees_copies_twice(st: SessionTrimState, row: Number, pages: Number) -> Step[SessionTrimState]:
    """A row frees its duplicates of the tree's pages, and frees them again when it ends."""
    copies = law.dedupe(st, row, pages)
    return but(copies, calls=(), then=but(copies.then, pools=freed_again(st.pools, copies.then.pools, row, pages)))


def freed_again(was: swa_mapping.SwaMappingState, now: swa_mapping.SwaMappingState, row: Number, pages: Number) -> Any:
    """The pools after the pages that a row had below this index are named to be freed, though nobody holds them."""
    gone = in_range(was.now.full, row, 0, pages)
    return swa_mapping.free(now, gone, used_slots(was.now.full, gone)).then


def keeps_full_copies(
    st: SessionTrimState, row: Number, to: Number, pages: Number, later: Truth
) -> Step[SessionTrimState]:
    """A row donates its SWA pages to a node that keeps its full pages, and does not give its own full copies back."""
    step = law.donate_swa(st, row, to, pages, later)
    return but(step, calls=step.calls[:1], then=but(step.then, pools=step.calls[0].then))


def forgets_window(st: SessionTrimState, row: Number, to: Number) -> Step[SessionTrimState]:
    """The cursor moves on, and the SWA pages below it are not given back."""
    return but(law.slide(st, row, to), calls=(), then=but(st, cursor=st.cursor.put(row, to)))


def maps_tail_alone(
    st: SessionTrimState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[SessionTrimState]:
    """A prefill gives its first token no SWA slot, though the page of this token has an SWA page."""
    step = law.extend(st, row, to, full_pages, swa_pages)
    tail = call("pools", swa_mapping.alloc_extend_swa_tail, st.pools, row, Length(0, 1), to, full_pages, swa_pages)
    return but(
        step,
        calls=(tail,),
        promises=(*step.promises, *tail.step.promises),
        then=but(step.then, pools=tail.then),
    )


def slides_too_far(st: SessionTrimState, row: Number, to: Number) -> Step[SessionTrimState]:
    """SWA pages of the current window are given back."""
    inside = requires(at_most(Length(to, 0), committed(st, row)), "the cursor stays within the row")
    step = unasked(law.slide(st, row, to), "the window before the next token keeps its SWA pages")
    return but(step, promises=(*step.promises, inside))


def slides_without_window(st: SessionTrimState, row: Number, to: Number) -> Step[SessionTrimState]:
    """A row's cursor moves in a model that has no sliding-window layers."""
    return unasked(law.slide(st, row, to), "the model has an SWA pool")


def leaves_too_early(
    st: SessionTrimState, row: Number, first: Number, to: Number, later: Truth
) -> Step[SessionTrimState]:
    """Where every layer has a sliding window, pages of the current window are given back."""
    inside = requires(at_most(Length(to, 0), committed(st, row)), "the cursor stays within the row")
    step = unasked(law.leave_window(st, row, first, to, later), "the window before the next token keeps its pages")
    return but(step, promises=(*step.promises, inside))


def leaves_without_window(
    st: SessionTrimState, row: Number, first: Number, to: Number, later: Truth
) -> Step[SessionTrimState]:
    """A row gives back pages of its text in a model that has layers without a sliding window."""
    step = unasked(law.leave_window(st, row, first, to, later), "every layer of the model has a sliding window")
    return but(step, promises=(*step.promises, requires(no(st.pools.windowed), "the model has one pool")))


def leaves_pages_behind(
    st: SessionTrimState, row: Number, first: Number, to: Number, later: Truth
) -> Step[SessionTrimState]:
    """Where every layer has a sliding window, the cursor moves on, and the pages below it are not given back."""
    step = law.leave_window(st, row, first, to, later)
    return but(step, calls=(), then=but(step.then, pools=st.pools))


def leaves_the_prompt(
    st: SessionTrimState, row: Number, first: Number, to: Number, later: Truth
) -> Step[SessionTrimState]:
    """Pages below the first that was named are given back, too: the tree can never take them."""
    step = law.leave_window(st, row, st.protected(row), to, later)
    return but(step, promises=(*step.promises, requires(first <= to, "the first page is not behind the cursor")))


def gives_the_gap_back(st: SessionTrimState, row: Number, pages: Number) -> Step[SessionTrimState]:
    """The tree has these tokens already: a row gives back pages that left its window before, a second time."""
    return unasked(law.dedupe(st, row, pages), "no page was given back since its tokens left the window")


def donates_the_gap(st: SessionTrimState, row: Number, to: Number, pages: Number) -> Step[SessionTrimState]:
    """A row gives the tree pages that it has not: they left its window, and were given back before."""
    return unasked(law.donate(st, row, to, pages), "no page was given back since its tokens left the window")


def starts_at_prefix(
    st: SessionTrimState,
    row: Number,
    session: Number,
    pages: Number,
    start: Number,
    to: Length,
    full_pages: Seq,
    swa_pages: Seq,
) -> Step[SessionTrimState]:
    """A row that has SWA slots only for its tail begins with the cursor at the cached prefix."""
    step = law.admit_tail(st, row, session, pages, start, to, full_pages, swa_pages)
    return altered(step, cursor=st.cursor.put(row, pages))


def tail_too_short(
    st: SessionTrimState,
    row: Number,
    session: Number,
    pages: Number,
    start: Number,
    to: Length,
    full_pages: Seq,
    swa_pages: Seq,
) -> Step[SessionTrimState]:
    """The tail that gets SWA slots is shorter than the window before the next token."""
    step = law.admit_tail(st, row, session, pages, start, to, full_pages, swa_pages)
    return unchosen(step, "the tail holds the window before the next token")


def takes_back_into_window(st: SessionTrimState, row: Number, to: Length) -> Step[SessionTrimState]:
    """A row is rolled back to a length whose window was given back before."""
    return unasked(law.roll_back(st, row, to), "the window before the new length has its SWA slots")


def keeps_donated(st: SessionTrimState, row: Number, to: Number, pages: Number) -> Step[SessionTrimState]:
    """A row gives pages to the tree, and still counts them as its own."""
    return altered(law.donate(st, row, to, pages), protected=st.protected)


def keeps_overshoot(st: SessionTrimState, row: Number, agreed: Length) -> Step[SessionTrimState]:
    """A saved row keeps the tokens that were decoded beyond the sent answer."""
    step = law.save(st, row, agreed)
    kept = {name: getattr(step.then, name) for name in ("text", "text_rest")}
    return but(step, calls=(), then=but(st, phase=st.phase.put(row, SAVED), **kept))


def keeps_slot(st: SessionTrimState, row: Number) -> Step[SessionTrimState]:
    """A session whose turn was aborted keeps the released row in its slot."""
    return altered(law.release(st, row), slot=st.slot)


def commits_less(st: SessionTrimState, row: Number, to: Length) -> Step[SessionTrimState]:
    """A draft is verified, and tokens that were committed before are not committed any more."""
    return unasked(law.commit(st, row, to), "the new committed length is at least the old one")


def slides_back(st: SessionTrimState, row: Number, to: Number) -> Step[SessionTrimState]:
    """The window moves back, to tokens whose SWA pages are gone."""
    return unasked(law.slide(st, row, to), "the new cursor is not below the old one or the cached prefix")


def commits_a_draft(
    st: SessionTrimState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[SessionTrimState]:
    """A prefill commits draft tokens that nobody has verified."""
    return unasked(law.extend(st, row, to, full_pages, swa_pages), "the committed length is the allocated length")


def detaches(st: SessionTrimState, row: Number, to: Length) -> Step[SessionTrimState]:
    """A running turn loses its session, which then can have another row."""
    mine = st.session(row)
    return altered(
        law.commit(st, row, to),
        session=st.session.put(row, 0),
        slot=st.slot.where(lambda s: (s == mine) & (mine != 0), 0, lambda: [mine]),
    )


def forgets_the_row(st: SessionTrimState, row: Number) -> Step[SessionTrimState]:
    """A request stops reading, and its row is idle at once, before it was given back."""
    return altered(law.finish(st, row), phase=st.phase.put(row, session_trim_state.IDLE))


def forgets_to_commit(
    st: SessionTrimState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[SessionTrimState]:
    """A prefill gets its slots and computes its tokens, and does not commit them."""
    extended = law.extend(st, row, to, full_pages, swa_pages)
    return altered(extended, committed=st.committed, committed_rest=st.committed_rest)


def resumes_with_a_draft(st: SessionTrimState, session: Number, given: Length) -> Step[SessionTrimState]:
    """The next turn of a session runs though its row has slots of a draft."""
    return unasked(law.resume(st, session, given), "the committed length is the allocated length")


def cuts_into_tree(st: SessionTrimState, session: Number, prefix: Length) -> Step[SessionTrimState]:
    """The next turn is to go on inside the part of its row that the tree has: the row is cut there."""
    return unasked(law.restore(st, session, prefix), "the prefix is at least the cached prefix")


def _any_cut(st: SessionTrimState) -> Iterator[tuple[int, Length]]:
    """Every length from no token to all that are committed, for each session's row."""
    size = full_pool(st).page_size
    for session, row in _slots(st):
        yield from ((session, in_pages(n, size)) for n in range(in_tokens(committed(st, row), size) + 1))


# A turn that is all of the tree's is saved, and the next one is to go on before its end.
BEHIND_A_GAP = {"routes": {"donate": "admit extend leave_window"}}
INTO_TREE = {"routes": {"restore": "admit save"}, "moves": {**MOVES, "restore": _any_cut}}


# Mutants of what calls must achieve.


def two_requests() -> tuple[SessionTrimState, ...]:
    """Three full and three SWA pages of one slot, two request rows, one node row, one session, one token of window."""
    pools = swa_mapping.initial(1, size=3, size_swa=3, rows=3, need_sort=False)
    return (law.initial(pools, limit=2, sessions=1, window=Length(0, 1)),)


BESIDE = {"sizes": {**SIZES, "limit": 2}, "small": two_requests}
BESIDE_A_SESSION = {**BESIDE, "routes": {"resume": "admit extend save admit"}}


def stopped(st: SessionTrimState) -> Any:
    """The phases after every running request has stopped."""
    rows = full_pool(st).rows
    return st.phase.where(lambda r: (r < st.limit) & (st.phase(r) == RUNNING), session_trim_state.LEAVING, rows.items)


def stops_all(st: SessionTrimState, row: Number) -> Step[SessionTrimState]:
    """A request stops reading, and so does every other request."""
    return altered(law.finish(st, row), phase=stopped(st))


def stops_others(st: SessionTrimState, session: Number, given: Length) -> Step[SessionTrimState]:
    """The next turn of a session runs, and every other request stops."""
    step = law.resume(st, session, given)
    return altered(step, phase=stopped(st).put(law.slot_row(st, session), RUNNING))


def evicts_and_stops(st: SessionTrimState, row: Number) -> Step[SessionTrimState]:
    """A node is evicted, and every request stops."""
    return altered(law.drop(st, row), phase=stopped(st))


def admits_outside_the_session(
    st: SessionTrimState, row: Number, session: Number, pages: Number
) -> Step[SessionTrimState]:
    """A turn of a session is admitted as a request of no session."""
    return altered(law.admit(st, row, session, pages), session=st.session.put(row, 0), slot=st.slot)


def tail_outside_the_session(
    st: SessionTrimState,
    row: Number,
    session: Number,
    pages: Number,
    start: Number,
    to: Length,
    full_pages: Seq,
    swa_pages: Seq,
) -> Step[SessionTrimState]:
    """A turn whose first tokens were computed elsewhere is admitted as a request of no session."""
    step = law.admit_tail(st, row, session, pages, start, to, full_pages, swa_pages)
    return altered(step, session=st.session.put(row, 0), slot=st.slot)


def decodes_two(st: SessionTrimState, row: Number, full_pages: Seq, swa_pages: Seq) -> Step[SessionTrimState]:
    """A decode commits two tokens."""
    size = full_pool(st).page_size
    return law.extend(st, row, next_token(next_token(allocated(st, row), size), size), full_pages, swa_pages)


def commits_what_was_refused(st: SessionTrimState, row: Number, to: Length) -> Step[SessionTrimState]:
    """A draft is verified, and its refused tokens count as computed, too."""
    return but(law.commit(st, row, to), then=session_trim_state.commit_to(st, row, allocated(st, row)))


def forgets_its_tokens(st: SessionTrimState, row: Number) -> Any:
    """The state in which no token behind the row's cached prefix counts as computed."""
    return session_trim_state.commit_to(st, row, session_trim_state.protected(st, row))


def stops_and_forgets(st: SessionTrimState, row: Number) -> Step[SessionTrimState]:
    """A request stops reading, and what it computed behind its cached prefix is lost."""
    return but(law.finish(st, row), then=forgets_its_tokens(law.finish(st, row).then, row))


def comes_back_without(st: SessionTrimState, row: Number) -> Step[SessionTrimState]:
    """A request runs again after a checkpoint, and what it computed behind its cached prefix is lost."""
    return but(law.come_back(st, row), then=forgets_its_tokens(law.come_back(st, row).then, row))


def drops_a_page_fewer(st: SessionTrimState, row: Number, pages: Number) -> Step[SessionTrimState]:
    """The tree has these tokens already, and the row keeps its copy of the last page."""
    behind = requires(st.protected(row) < pages, "the row has a page to give back")
    fewer = law.dedupe(st, row, pages - 1)
    return but(fewer, promises=(*law.dedupe(st, row, pages).promises, behind))


def donates_nothing(st: SessionTrimState, row: Number, to: Number, pages: Number) -> Step[SessionTrimState]:
    """A row frees the pages that it was to donate, and the node gets none."""
    copies = law.dedupe(st, row, pages)
    return but(law.donate(st, row, to, pages), calls=copies.calls, then=copies.then)


def donates_no_window(
    st: SessionTrimState, row: Number, to: Number, pages: Number, later: Truth
) -> Step[SessionTrimState]:
    """A row frees the SWA pages that it was to donate, and the node gets none."""
    copies = law.dedupe(st, row, pages)
    return but(law.donate_swa(st, row, to, pages, later), calls=copies.calls, then=copies.then)


def release_keeps_session(st: SessionTrimState, row: Number) -> Step[SessionTrimState]:
    """A released row, which is idle, still belongs to the session."""
    return altered(law.release(st, row), session=st.session)


def close_keeps_session(st: SessionTrimState, session: Number) -> Step[SessionTrimState]:
    """The row of a closed session, which is idle, still belongs to the session."""
    return altered(law.close(st, session), session=st.session)


def saves_a_longer_text(st: SessionTrimState, row: Number, agreed: Length) -> Step[SessionTrimState]:
    """A saved turn notes a text that is a page longer than the one that was sent."""
    return altered(law.save(st, row, agreed), text=st.text.put(row, agreed.pages + 1))


def saves_the_draft(st: SessionTrimState, row: Number, agreed: Length) -> Step[SessionTrimState]:
    """A saved row keeps the slots of its draft."""
    step, drafted = law.save(st, row, agreed), allocated(st, row)
    within = requires(at_most(committed(st, row), agreed), "no token beyond the sent answer is computed")
    calls = law.cut(st.pools, row, drafted)
    promises = (*step.promises, within, *promised(calls))
    return but(step, calls=calls, promises=promises, then=but(step.then, pools=calls[-1].then))


def _tails_of_a_session(st: SessionTrimState) -> Iterator[tuple[Any, ...]]:
    """The tails that requests come with, for a session."""
    yield from ((row, 1, *rest) for row, _, *rest in tails(st))


OF_A_SESSION = {"moves": {**MOVES, "admit_tail": _tails_of_a_session}}
DRAFTED = {"routes": {"save": "admit extend reserve", "commit": "admit reserve"}}


MUTANTS = (
    Mutant("stops_all", "finish", "others_go_on", stops_all, BESIDE),
    Mutant("stops_others", "resume", "other_sessions_go_on", stops_others, BESIDE_A_SESSION),
    Mutant("evicts_and_stops", "drop", "requests_go_on", evicts_and_stops),
    Mutant("admits_outside_the_session", "admit", "begins_with_its_prefix", admits_outside_the_session),
    Mutant("tail_outside_the_session", "admit_tail", "begins_with_its_tail", tail_outside_the_session, OF_A_SESSION),
    Mutant("decodes_two", "decode", "computes_one_token", decodes_two),
    Mutant("commits_what_was_refused", "commit", "commits_what_was_accepted", commits_what_was_refused, DRAFTED),
    Mutant("stops_and_forgets", "finish", "only_stops", stops_and_forgets),
    Mutant("comes_back_without", "come_back", "only_runs_again", comes_back_without),
    Mutant("drops_a_page_fewer", "dedupe", "passes_its_prefix_on", drops_a_page_fewer),
    Mutant("donates_nothing", "donate", "gives_its_own_pages", donates_nothing),
    Mutant("donates_no_window", "donate_swa", "gives_its_window_pages", donates_no_window),
    Mutant("release_keeps_session", "release", "row_is_given_back", release_keeps_session),
    Mutant("close_keeps_session", "close", "session_is_given_back", close_keeps_session),
    Mutant("saves_a_longer_text", "save", "saves_what_was_sent", saves_a_longer_text),
    Mutant("saves_the_draft", "save", "saves_what_was_sent", saves_the_draft, DRAFTED),
    *idlers(
        law.stem,
        reserve="gets_slots_for_a_draft",
        extend="computes_what_is_asked",
        restore="next_turn_begins_there",
        resume="next_turn_runs",
        pass_on="node_gets_the_pages",
        drop="node_keeps_no_page",
        drop_swa="node_keeps_its_full_pages",
        settle_swa="ends_the_wait",
        free_group_begin="group_opens_as_asked",
    ),
    *idlers(
        law.stem,
        decode="row_gets_the_chosen_pages",
        slide="slides_behind_the_prefix",
        leave_window="leaves_the_window_behind",
        roll_back="keeps_what_is_committed",
    ),
    Mutant("forgets_the_row", "finish", "life_of_a_row", forgets_the_row),
    Mutant("forgets_to_commit", "extend", "commits_what_it_gets", forgets_to_commit),
    Mutant("resumes_with_a_draft", "resume", "no_draft_in_the_next_turn", resumes_with_a_draft),
    Mutant("commits_less", "commit", "committed_is_kept", commits_less),
    Mutant("slides_back", "slide", "cursor_goes_on", slides_back),
    Mutant("commits_a_draft", "extend", "draft_waits", commits_a_draft),
    Mutant("detaches", "commit", "session_is_kept", detaches),
    Mutant("forgets_protected", "release", "phases", forgets_protected),
    Mutant("keeps_a_token", "drop", "others_are_whole", keeps_a_token),
    Mutant("leaves_cursor", "save", "cursor_committed_allocated", leaves_cursor),
    Mutant("cursor_in_page", "restore", "cursor_is_aligned", cursor_in_page),
    Mutant("cuts_into_tree", "restore", "cursor_committed_allocated", cuts_into_tree, INTO_TREE),
    Mutant("keeps_copies", "dedupe", "full_positions", keeps_copies),
    Mutant("frees_copies_twice", "dedupe", "freed_exactly_once", frees_copies_twice),
    Mutant("keeps_full_copies", "donate_swa", "full_positions", keeps_full_copies),
    Mutant("forgets_window", "slide", "swa_positions", forgets_window),
    Mutant("maps_tail_alone", "extend", "tokens_map", maps_tail_alone),
    Mutant("slides_too_far", "slide", "window_is_kept", slides_too_far),
    Mutant("slides_without_window", "slide", "no_cursor_without_window", slides_without_window),
    Mutant("leaves_too_early", "leave_window", "window_is_kept", leaves_too_early),
    Mutant("leaves_without_window", "leave_window", "no_cursor_without_window", leaves_without_window),
    Mutant("leaves_pages_behind", "leave_window", "full_positions", leaves_pages_behind),
    Mutant("leaves_the_prompt", "leave_window", "leaves_the_window_behind", leaves_the_prompt),
    Mutant("donates_the_gap", "donate", "gap_is_behind_the_prefix", donates_the_gap, BEHIND_A_GAP),
    Mutant("gives_the_gap_back", "dedupe", "gap_is_behind_the_prefix", gives_the_gap_back),
    Mutant("starts_at_prefix", "admit_tail", "swa_positions", starts_at_prefix),
    Mutant("tail_too_short", "admit_tail", "window_is_kept", tail_too_short),
    Mutant("takes_back_into_window", "roll_back", "window_is_kept", takes_back_into_window),
    Mutant("keeps_donated", "donate", "full_positions", keeps_donated),
    Mutant("keeps_overshoot", "save", "no_token_across_turns", keeps_overshoot),
    Mutant("keeps_slot", "release", "one_row_a_session", keeps_slot),
)


# Wrong transitions of known bugs; the faults of conformance use them.


def releases_committed_part(st: SessionTrimState, row: Number) -> Step[SessionTrimState]:
    """A row is released up to its committed length, and the pages allocated beyond it for a draft stay behind."""
    pair, last = st.pools.now, touched(committed(st, row))
    gone = in_range(pair.full, row, 0, last), in_range(pair.swa, row, 0, last)
    kept = give(pair, *gone, st.pools.group > 0)
    empty = but(kept, full=cut(kept.full, row, NOTHING), swa=cut(kept.swa, row, NOTHING))
    return but(
        law.release(st, row), calls=(), then=but(session_trim_state.emptied(st, row), pools=but(st.pools, now=empty))
    )


def overwrites_tail(st: SessionTrimState, session: Number, prefix: Length) -> Step[SessionTrimState]:
    """A turn goes on at its prefix, and the pages of the row beyond it are not given back (SGLang PR 22862)."""
    row = law.slot_row(st, session)
    pair, to = st.pools.now, session_trim_state.back_to(st, row, prefix)
    short = but(pair, full=cut(pair.full, row, to), swa=cut(pair.swa, row, to))
    return but(
        law.restore(st, session, prefix),
        calls=(),
        then=but(session_trim_state.cut_back(st, row, prefix), pools=but(st.pools, now=short)),
    )


def frees_partial_page(st: SessionTrimState, session: Number, prefix: Length) -> Step[SessionTrimState]:
    """A turn goes on inside a page, and this page is given back with the pages after it."""
    row = law.slot_row(st, session)
    calls = law.cut(st.pools, row, Length(session_trim_state.back_to(st, row, prefix).pages, 0))
    return but(
        law.restore(st, session, prefix),
        calls=calls,
        then=but(session_trim_state.cut_back(st, row, prefix), pools=calls[-1].then),
    )


def rolls_back_page(st: SessionTrimState, row: Number, to: Length) -> Step[SessionTrimState]:
    """A row that is rolled back inside a page gives this page back, though it holds tokens before the cut."""
    step = law.roll_back(st, row, to)
    return but(step, calls=(), then=but(step.then, pools=frees_from(st, row, to.pages, to)))


def frees_from(st: SessionTrimState, row: Number, first: Number, to: Length) -> swa_mapping.SwaMappingState:
    """The pools after the row gave back its pages from the index ``first`` on, and has the length ``to``."""
    pair, last = st.pools.now, touched(allocated(st, row))
    kept = give(pair, in_range(pair.full, row, first, last), in_range(pair.swa, row, first, last), st.pools.group > 0)
    return but(st.pools, now=but(kept, full=cut(kept.full, row, to), swa=cut(kept.swa, row, to)))


POSITIONS = (
    "one_owner cursor_committed_allocated phases window_is_kept full_positions row_ends same_lengths "
    "mapping_is_live no_leak swa_is_reached"
)
RELEVANT_LAWS = {
    "cursor_committed_allocated": "cursor_is_aligned",
    "full_positions": "one_owner cursor_committed_allocated phases gap_is_behind_the_prefix",
    "save full_positions": "one_owner cursor_committed_allocated phases gap_is_behind_the_prefix row_ends "
    "window_is_kept",
    "swa_positions": "one_owner cursor_committed_allocated phases window_is_kept",
    **dict.fromkeys(
        (f"{name} swa_positions" for name in ("close", "dedupe", "release", "roll_back", "save", "slide")), POSITIONS
    ),
    "restore swa_positions": f"{POSITIONS} cursor_is_aligned no_swa_without_window one_row_a_session",
    "tokens_map": "one_owner row_ends same_lengths others_are_whole phases cursor_committed_allocated "
    "full_positions swa_positions",
    "promises_of_adopt": "phases",
    "promises_of_alloc_extend_swa_tail": "phases",
    "promises_of_alloc_extend": "cursor_committed_allocated full_positions swa_positions",
    "promises_of_shorten": "cursor_committed_allocated row_ends",
    "promises_of_hand_over": "cursor_committed_allocated",
}

GROWN = answers.pages_of_pair(answers.asked, lambda st: st.pools)
ANSWERS = {
    "admit_tail": lambda pick, st, given: answers.tail(
        pick, st.pools.now, given["pages"], Length(given["start"], 0), given["to"]
    ),
    **dict.fromkeys(("reserve", "extend"), GROWN),
    "decode": answers.pages_of_pair(answers.one_more, lambda st: st.pools),
    "settle_swa": lambda _, st, __: answers.settles_nothing(st.pools),
    **dict.fromkeys(("leave_window", "donate_swa"), lambda *_: {"later": False}),
    "free_group_begin": answers.opens,
}

HINTS = Hints(
    stem=law.stem,
    over={
        "full_pages": lambda st: full_pool(st).pages,
        "swa_pages": lambda st: swa_pool(st).pages,
        "done": lambda st: swa_pool(st).pages,
    },
    sizes=SIZES,
    small=small,
    moves=MOVES,
    refusable=frozenset({"admit_tail", "reserve", "extend", "decode"}),
    routes={
        "slide": "admit extend",
        "leave_window": "admit extend",
        "save": "admit extend slide",
        "restore": "admit extend slide save",
        "donate_swa": "admit extend donate drop_swa finish release admit extend",
    },
    relevant_laws=RELEVANT_LAWS,
    answers=ANSWERS,
    mutants=MUTANTS,
    assumptions=COMMON,
)
