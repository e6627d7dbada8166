"""Calls to try, routes and mutants for transfers into rows of the whole cache; ``proofs.cache`` uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from proofs.cache_effects import two_requests
from proofs.cache_flight import new_job
from proofs.hints import Mutant, altered, idlers, unasked
from proofs.session_trim import requests
from spec import cache
from spec import cache_transfers as law
from spec.cache_flight import begun, over, used_by
from spec.cache_state import FILLED, UNFILLED, CacheState
from spec.contents import UNWRITTEN
from spec.in_flight import WRITES
from spec.lengths import Length, touched
from spec.logic import Number, Seq, Step, Truth, but, no
from spec.mamba_slots_state import FIRST, OWN
from spec.pool import held
from spec.session_trim_state import RUNNING, allocated, full_pool

AWAITS = "the row awaits no transfer of what was computed elsewhere"
AWAITED = "the row awaits a transfer, and none is under way"
UNDER_WAY = "no transfer into the row is under way"


def _receive(st: CacheState) -> Iterator[tuple[int, int, int]]:
    """Each running row with a new job, and each page index from which its SWA pages may be sent."""
    for row in requests(st.rows, RUNNING):
        places = range(st.rows.protected(row), touched(allocated(st.rows, row)) + 1)
        yield from ((row, job, first) for job in new_job(st) for first in places)


def _ends(st: CacheState) -> Iterator[tuple[int, int]]:
    """Each running row with each number of a job."""
    yield from ((row, job) for row in requests(st.rows, RUNNING) for job in st.flight.jobs.items())


MOVES: dict[str, Any] = {"receive": _receive, "arrive": _ends, "fall_short": _ends}
ROUTES = {"receive": "admit_tail", **dict.fromkeys(("arrive", "fall_short"), "admit_tail receive")}


def receives_under_a_pass(st: CacheState, row: Number, job: Number, first: Number) -> Step[CacheState]:
    """A transfer begins into pages that a pass in flight, of a request that has ended, still writes."""
    return unasked(law.receive(st, row, job, first), "no job in flight uses a page or a state that the transfer writes")


def receives_over_computed(st: CacheState, row: Number, job: Number, first: Number) -> Step[CacheState]:
    """A transfer begins into a row whose tokens were computed here."""
    return unasked(law.receive(st, row, job, first), AWAITED)


def receives_twice(st: CacheState, row: Number, job: Number, first: Number) -> Step[CacheState]:
    """A second transfer begins into a row while the first is under way."""
    alone = "no job in flight uses a page or a state that the transfer writes"
    return unasked(unasked(law.receive(st, row, job, first), AWAITED), alone)


def _receives(
    st: CacheState, row: Number, job: Number, first: Number, track: Number, full_first: Number
) -> Step[CacheState]:
    """A transfer begins that counts as one that writes the state slot of this track, too, and of the full pool the
    row's own pages from the page index ``full_first`` on.
    """
    step = law.receive(st, row, job, first)
    wrong = begun(st, job, WRITES, row, used_by(st, row, track), full_first, first)
    return altered(step, flight=wrong.flight, full_used=wrong.full_used, swa_used=wrong.swa_used)


def receives_into_a_track(st: CacheState, row: Number, job: Number, first: Number) -> Step[CacheState]:
    """A transfer writes a slot of the track buffer of the row's request, too."""
    return _receives(st, row, job, first, FIRST, st.rows.protected(row))


def receives_into_fewer_pages(st: CacheState, row: Number, job: Number, first: Number) -> Step[CacheState]:
    """A transfer begins, and the first page behind the cached prefix counts as one that it does not write."""
    return _receives(st, row, job, first, OWN, st.rows.protected(row) + 1)


def slides_under_a_transfer(st: CacheState, row: Number, to: Number) -> Step[CacheState]:
    """The window of a row moves on, and its SWA pages are free, while another server still writes them."""
    return unasked(cache.slide(st, row, to), UNDER_WAY)


def extends_as_computed(st: CacheState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq) -> Step[CacheState]:
    """A request that gets slots for what another server computes counts as one that has computed it."""
    return altered(cache.extend_elsewhere(st, row, to, full_pages, swa_pages), awaits=st.awaits)


def extends_over_computed(st: CacheState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq) -> Step[CacheState]:
    """A request that has computed tokens awaits a transfer that would write them again."""
    return unasked(cache.extend_elsewhere(st, row, to, full_pages, swa_pages), "the row has its cached prefix alone")


def ends_under_a_transfer(st: CacheState, row: Number) -> Step[CacheState]:
    """A request is aborted and gives its row up while another server still writes it."""
    return unasked(cache.finish(st, row), UNDER_WAY)


def decodes_before_it_arrives(st: CacheState, row: Number, full_pages: Seq, swa_pages: Seq) -> Step[CacheState]:
    """A request decodes while its prompt is still under way."""
    return unasked(cache.decode(st, row, full_pages, swa_pages), AWAITS)


def inserts_before_it_arrives(
    st: CacheState, row: Number, under: Number, leaf: Number, pages: Number, live: Truth
) -> Step[CacheState]:
    """A request whose transfer has failed gives its pages to the tree."""
    return unasked(cache.insert_leaf(st, row, under, leaf, pages, live), AWAITS)


def saves_before_it_arrives(st: CacheState, row: Number, agreed: Length) -> Step[CacheState]:
    """A turn whose transfer has failed is saved for the next turn of its session."""
    return unasked(cache.save(st, row, agreed), AWAITS)


def rolls_back_under_a_transfer(st: CacheState, row: Number, to: Length) -> Step[CacheState]:
    """A row gives slots back into which a transfer is under way."""
    return unasked(cache.roll_back(st, row, to), UNDER_WAY)


def receives_too_little(st: CacheState, row: Number, job: Number, first: Number) -> Step[CacheState]:
    """The other server is told of fewer SWA pages than the window before the next token has."""
    return unasked(law.receive(st, row, job, first), "the window before the next token is sent")


def receives_less_than_it_says(st: CacheState, row: Number, job: Number, first: Number) -> Step[CacheState]:
    """A transfer counts as one of all SWA pages, and the other server was told of those from a later one on."""
    return altered(law.receive(st, row, job, first), sent_from=st.sent_from)


def _as_if_sent(st: CacheState, row: Number, call: Callable[[CacheState], Step[CacheState]]) -> Step[CacheState]:
    """The step of a call that takes all SWA pages of the row as sent."""
    return altered(call(but(st, sent_from=st.sent_from.put(row, 0))), sent_from=st.sent_from)


def inserts_what_was_not_sent(
    st: CacheState, row: Number, under: Number, leaf: Number, pages: Number, live: Truth
) -> Step[CacheState]:
    """The tree gets SWA pages that no prefill server sent, as SGLang 0.5.21 to 0.5.23 do (``unsent_window``)."""
    return _as_if_sent(st, row, lambda st: cache.insert_leaf(st, row, under, leaf, pages, live))


def revives_with_what_was_not_sent(st: CacheState, row: Number, node: Number, later: Truth) -> Step[CacheState]:
    """A tombstone gets SWA pages that no prefill server sent."""
    return _as_if_sent(st, row, lambda st: cache.revive_in_place(st, row, node, later))


def rolls_back_before_what_was_sent(st: CacheState, row: Number, to: Length) -> Step[CacheState]:
    """A row is cut so that its next token reads SWA pages that no prefill server sent."""
    return unasked(cache.roll_back(st, row, to), "the window before the next token was computed or sent")


def fails_after_a_part(st: CacheState, row: Number, job: Number) -> Step[CacheState]:
    """A transfer has failed, and what it had begun to send counts as sent."""
    return altered(law.fall_short(st, row, job), sent_from=st.sent_from)


def leaves_what_was_sent(st: CacheState, row: Number, old: Number) -> Step[CacheState]:
    """A request ends, and what was sent to it is said of the next one on its row."""
    return altered(cache.free_rest(st, row, old), sent_from=st.sent_from)


def counts_as_sent(st: CacheState, row: Number) -> Step[CacheState]:
    """A request ends, and SWA pages that were not sent count as sent."""
    return altered(cache.finish(st, row), sent_from=st.sent_from.put(row, 0))


def forgets_what_was_sent(st: CacheState, row: Number) -> Step[CacheState]:
    """A request ends, and a page that was sent does not count as sent."""
    return altered(cache.finish(st, row), sent_from=st.sent_from.put(row, st.sent_from(row) + 1))


def counts_as_done(st: CacheState, row: Number, job: Number) -> Step[CacheState]:
    """A transfer has failed, and its row goes on as if all had come."""
    return altered(law.fall_short(st, row, job), awaits=st.awaits.put(row, FILLED))


def arrives_without_contents(st: CacheState, row: Number, job: Number) -> Step[CacheState]:
    """A transfer counts as done, and has written nothing."""
    return altered(law.arrive(st, row, job), contents=st.contents)


def arrives_and_clears(st: CacheState, row: Number, job: Number) -> Step[CacheState]:
    """A transfer is done, and wrote over what stood in free pages."""
    step, full = law.arrive(st, row, job), full_pool(st.rows)
    places = [(p, o) for p in full.pages.items() for o in full.offsets.items()]
    cleared = step.then.contents.full.where(lambda p, _: no(held(full, p)), UNWRITTEN, lambda: places)
    return altered(step, contents=but(step.then.contents, full=cleared))


def arrives_and_is_awaited(st: CacheState, row: Number, job: Number) -> Step[CacheState]:
    """A transfer is done, and its row computes nothing until it ends."""
    return altered(law.arrive(st, row, job), awaits=st.awaits.put(row, UNFILLED))


def fails_as_if_done(st: CacheState, row: Number, job: Number) -> Step[CacheState]:
    """A transfer has failed after all was written, and its row goes on."""
    return law.arrive(st, row, job)


def forgets_that_nothing_came(st: CacheState, row: Number) -> Step[CacheState]:
    """A request ends whose transfer has failed, and its pages may go to the tree."""
    return altered(cache.finish(st, row), awaits=st.awaits.put(row, FILLED))


def forgets_who_waits(st: CacheState, row: Number, job: Number) -> Step[CacheState]:
    """A transfer is over, and its row goes on waiting for it."""
    return but(law.fall_short(st, row, job), then=over(st, job))


def admits_as_computed(
    st: CacheState, row: Number, session: Number, story: Number, handle: Number, node: Number, top: Number,
    counting: Truth, pages: Seq, start: Number, to: Length, full_pages: Seq, swa_pages: Seq,
) -> Step[CacheState]:  # fmt: skip
    """A request that gets slots for what is computed elsewhere counts as one that has it."""
    found, given = (story, handle, node, top, counting, pages), (start, to, full_pages, swa_pages)
    return altered(cache.admit_tail(st, row, session, *found, *given), awaits=st.awaits)


def admits_and_all_wait(
    st: CacheState, row: Number, session: Number, story: Number, handle: Number, node: Number, top: Number,
    counting: Truth, pages: Seq, start: Number, to: Length, full_pages: Seq, swa_pages: Seq,
) -> Step[CacheState]:  # fmt: skip
    """A request gets slots for what is computed elsewhere, and from then on each other request awaits a transfer."""
    found, given = (story, handle, node, top, counting, pages), (start, to, full_pages, swa_pages)
    waiting = st.awaits.where(lambda r: r < st.rows.limit, UNFILLED, lambda: [*range(st.rows.limit)])
    return altered(cache.admit_tail(st, row, session, *found, *given), awaits=waiting)


def _by(transition: str, calls: str) -> dict[str, dict[str, str]]:
    """The calls after which this transition goes wrong."""
    return {"routes": {transition: calls}}


RELEVANT_LAWS = {
    **dict.fromkeys(("pass_is_launched", "uses_own_pages"), "only_jobs_in_flight_use_pages"),
    **dict.fromkeys(("transfer_begins", "transfer_uses_own_pages"), "only_jobs_in_flight_use_pages"),
    "arrive prefix_holds_own_text": "prefix_is_the_trees transfers_fill_rows",
    "a_transfer_holds_its_pages": "transfers_fill_rows only_jobs_in_flight_use_pages",
    "a_transfer_holds_its_window": "transfers_fill_rows only_jobs_in_flight_use_pages one_owner no_leak swa_is_reached",
    "a_transfer_holds_its_state": "transfers_fill_rows only_jobs_in_flight_use_pages states_go_with_rows "
    "running_row_has_running_states row_says_what_is_owned states.one_owner running_is_equipped buffer_is_whole "
    "names_what_it_owns",
}
UNDER_A_PASS = "admit extend launch finish free_rest admit_tail"
RECEIVING, FAILED = "admit_tail receive", "admit extend_elsewhere receive fall_short"
SENT = f"{RECEIVING} arrive finish"
FILLS = "transfers_fill_rows"
ALONE, IDLE, COME = "what_a_transfer_writes_is_its_own", "who_awaits_computes_nothing", "tree_gets_what_has_come"


def mutants(sizes: Mapping[str, int]) -> tuple[Mutant, ...]:
    """Wrong calls, each with the law that refutes it. ``sizes``: the constants of the small world."""
    return (
        *idlers(cache.stem, receive="transfer_begins", arrive="transfer_is_over", fall_short="transfer_is_over"),
        Mutant("receives_under_a_pass", "receive", ALONE, receives_under_a_pass, _by("receive", UNDER_A_PASS)),
        Mutant(
            "receives_over_computed",
            "receive",
            "transfer_begins",
            receives_over_computed,
            _by("receive", "admit extend"),
        ),
        Mutant(
            "extends_as_computed",
            "extend_elsewhere",
            "own_pages_hold_own_text",
            extends_as_computed,
            _by("extend_elsewhere", "admit"),
        ),
        Mutant(
            "extends_over_computed",
            "extend_elsewhere",
            "nothing_was_computed",
            extends_over_computed,
            _by("extend_elsewhere", "admit extend"),
        ),
        Mutant("receives_twice", "receive", FILLS, receives_twice, _by("receive", RECEIVING)),
        Mutant("ends_under_a_transfer", "finish", FILLS, ends_under_a_transfer, _by("finish", RECEIVING)),
        Mutant("decodes_before_it_arrives", "decode", IDLE, decodes_before_it_arrives, _by("decode", RECEIVING)),
        Mutant(
            "inserts_before_it_arrives",
            "insert_leaf",
            COME,
            inserts_before_it_arrives,
            _by("insert_leaf", f"{RECEIVING} fall_short finish"),
        ),
        Mutant(
            "saves_before_it_arrives",
            "save",
            FILLS,
            saves_before_it_arrives,
            _by("save", FAILED),
        ),
        Mutant(
            "rolls_back_under_a_transfer",
            "roll_back",
            "a_transfer_holds_its_pages",
            rolls_back_under_a_transfer,
            _by("roll_back", RECEIVING),
        ),
        Mutant(
            "slides_under_a_transfer",
            "slide",
            "a_transfer_holds_its_window",
            slides_under_a_transfer,
            _by("slide", "admit extend_elsewhere receive"),
        ),
        Mutant(
            "receives_into_a_track",
            "receive",
            "a_transfer_holds_its_state",
            receives_into_a_track,
            _by("receive", "admit extend_elsewhere state_admit"),
        ),
        Mutant("receives_into_fewer_pages", "receive", "transfer_uses_own_pages", receives_into_fewer_pages),
        Mutant("receives_too_little", "receive", "the_window_was_sent", receives_too_little),
        Mutant("receives_less_than_it_says", "receive", "transfer_uses_own_pages", receives_less_than_it_says),
        Mutant(
            "inserts_what_was_not_sent",
            "insert_leaf",
            "node_window_holds_its_text",
            inserts_what_was_not_sent,
            _by("insert_leaf", SENT),
        ),
        Mutant(
            "revives_with_what_was_not_sent",
            "revive_in_place",
            "node_window_holds_its_text",
            revives_with_what_was_not_sent,
            _by("revive_in_place", f"admit extend finish insert_leaf free_rest evict_swa {SENT}"),
        ),
        Mutant(
            "rolls_back_before_what_was_sent",
            "roll_back",
            "the_window_was_sent",
            rolls_back_before_what_was_sent,
            _by("roll_back", f"{RECEIVING} arrive"),
        ),
        Mutant("fails_after_a_part", "fall_short", "row_awaits_a_transfer", fails_after_a_part),
        Mutant(
            "leaves_what_was_sent", "free_rest", "the_window_was_sent", leaves_what_was_sent, _by("free_rest", SENT)
        ),
        Mutant(
            "counts_as_sent",
            "finish",
            "own_window_holds_own_text",
            counts_as_sent,
            _by("finish", f"{RECEIVING} arrive"),
        ),
        Mutant(
            "forgets_what_was_sent",
            "finish",
            "rows_have_what_was_sent",
            forgets_what_was_sent,
            _by("finish", f"{RECEIVING} arrive"),
        ),
        Mutant("counts_as_done", "fall_short", "own_pages_hold_own_text", counts_as_done),
        Mutant("arrives_without_contents", "arrive", "own_pages_hold_own_text", arrives_without_contents),
        Mutant("arrives_and_is_awaited", "arrive", "row_is_filled", arrives_and_is_awaited),
        Mutant(
            "arrives_and_clears",
            "arrive",
            "only_the_row_is_written",
            arrives_and_clears,
            _by("arrive", f"admit extend finish free_rest {RECEIVING}"),
        ),
        Mutant("fails_as_if_done", "fall_short", "row_awaits_a_transfer", fails_as_if_done),
        Mutant(
            "forgets_that_nothing_came",
            "finish",
            "rows_await_what_they_awaited",
            forgets_that_nothing_came,
            _by("finish", FAILED),
        ),
        Mutant(
            "admits_and_all_wait",
            "admit_tail",
            "others_await_what_they_awaited",
            admits_and_all_wait,
            {"sizes": {**sizes, "limit": 2, "rows": 5}, "small": two_requests, **_by("admit_tail", "admit")},
        ),
        Mutant("forgets_who_waits", "fall_short", FILLS, forgets_who_waits),
        Mutant("admits_as_computed", "admit_tail", "own_pages_hold_own_text", admits_as_computed),
    )
