"""Wrong calls of the whole cache: each does not achieve what the call is for, or changes what it must leave alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from proofs import isolation
from proofs.hints import Mutant, altered, idle, idlers
from proofs.session_trim import promised
from spec import cache as law
from spec import lock_ref, mamba_in_cache, mamba_slots, session_trim, session_trim_state, state_isolation, swa_mapping
from spec.cache_state import CacheState
from spec.lengths import Length, next_token, touched
from spec.logic import Number, Seq, Step, Truth, but, call, no
from spec.mamba_slots_state import ABSENT, OWN
from spec.session_trim_state import allocated, full_pool, protected


def stops_another(st: CacheState, row: Number) -> Step[CacheState]:
    """A request stops reading, and the request on the other of two rows stops, too."""
    step = law.finish(st, row)
    other = call("rows", session_trim.finish, step.calls[0].then, 1 - row)
    promises = (*step.promises, session_trim.at_work(st.rows, 1 - row))
    return but(step, calls=(*step.calls, other), promises=promises, then=but(step.then, rows=other.then))


def resumes_and_stops_another(st: CacheState, session: Number, story: Number, given: Length) -> Step[CacheState]:
    """The next turn of a session runs, and the request on the other of two rows stops."""
    step, row = law.resume(st, session, story, given), session_trim.slot_row(st.rows, session)
    other = call("rows", session_trim.finish, step.calls[0].then, 1 - row)
    promises = (*step.promises, session_trim.at_work(st.rows, 1 - row))
    return but(step, calls=(*step.calls, other), promises=promises, then=but(step.then, rows=other.then))


def evicts_and_stops(st: CacheState, node: Number) -> Step[CacheState]:
    """A leaf is evicted, and the request on the first row stops."""
    step = law.evict_leaf(st, node)
    other = call("rows", session_trim.finish, step.then.rows, 0)
    promises = (*step.promises, session_trim.at_work(st.rows, 0))
    return but(step, calls=(*step.calls, other), promises=promises, then=but(step.then, rows=other.then))


def shows_more(st: CacheState, but_not: Number) -> Any:
    """What the rows read, with one more page behind the end of every row but one."""

    def behind(r: Number, i: Number) -> Truth:
        return (r < st.rows.limit) & (r != but_not) & (touched(allocated(st.rows, r)) <= i)

    full = full_pool(st.rows)
    return st.reads.where(behind, 1, lambda: [(r, i) for r in full.rows.items() for i in full.indices.items()])


def shows_others_more(st: CacheState, row: Number) -> Step[CacheState]:
    """A request stops reading, and the other rows show a page behind their ends."""
    return altered(law.finish(st, row), reads=shows_more(st, row))


def closes_and_shows_more(st: CacheState, session: Number, old: Number) -> Step[CacheState]:
    """A session ends, and the rows of others show a page behind their ends."""
    return altered(law.close(st, session, old), reads=shows_more(st, session_trim.slot_row(st.rows, session)))


def evicts_and_shows_more(st: CacheState, node: Number) -> Step[CacheState]:
    """A leaf is evicted, and every row shows a page behind its end."""
    return altered(law.evict_leaf(st, node), reads=shows_more(st, st.rows.limit))


def admits_outside_the_session(
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
    """A turn of a session is admitted as a request of no session."""
    step = law.admit(st, row, session, story, handle, node, top, counting, pages)
    return but(law.admit(st, row, 0, story, handle, node, top, counting, pages), promises=step.promises)


def counts_the_other_way(
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
    """The lock of a request that is admitted skips missing parts where it was to count them, or counts them."""
    step = law.admit(st, row, session, story, handle, node, top, counting, pages)
    return but(law.admit(st, row, session, story, handle, node, top, no(counting), pages), promises=step.promises)


def tail_outside_the_session(
    st: CacheState, row: Number, session: Number, story: Number, handle: Number, node: Number, top: Number,
    counting: Truth, pages: Seq, start: Number, to: Length, full_pages: Seq, swa_pages: Seq,
) -> Step[CacheState]:  # fmt: skip
    """A turn whose first tokens were computed elsewhere is admitted as a request of no session."""
    found, given = (story, handle, node, top, counting, pages), (start, to, full_pages, swa_pages)
    step = law.admit_tail(st, row, session, *found, *given)
    return but(law.admit_tail(st, row, 0, *found, *given), promises=step.promises)


def decodes_two(st: CacheState, row: Number, full_pages: Seq, swa_pages: Seq) -> Step[CacheState]:
    """A decode commits two tokens."""
    size = full_pool(st.rows).page_size
    two = next_token(next_token(allocated(st.rows, row), size), size)
    return law.extend(st, row, two, full_pages, swa_pages)


def commits_what_was_refused(st: CacheState, row: Number, to: Length) -> Step[CacheState]:
    """A draft is verified, and its refused tokens count as computed, too."""
    return but(law.commit(st, row, allocated(st.rows, row)), promises=law.commit(st, row, to).promises)


def goes_on_shorter(
    st: CacheState, row: Number, old: Number, handle: Number, node: Number, top: Number, counting: Truth, pages: Seq
) -> Step[CacheState]:
    """A request that runs again after an insert has lost what it computed behind its cached prefix."""
    step = law.continue_prefill(st, row, old, handle, node, top, counting, pages)
    back = call("rows", session_trim.roll_back, step.then.rows, row, protected(st.rows, row))
    choice = (*step.choice, *promised((back,)))
    return but(step, calls=(*step.calls, back), choice=choice, then=but(step.then, rows=back.then))


def saves_a_longer_text(st: CacheState, row: Number, agreed: Length) -> Step[CacheState]:
    """A turn is saved with a text that is a page longer than the one that was sent."""
    longer = Length(agreed.pages + 1, agreed.rest)
    step, wrong = law.save(st, row, agreed), law.save(st, row, longer)
    return but(wrong, promises=(*step.promises, *wrong.promises))


def saves_whole_pages(st: CacheState, row: Number, agreed: Length) -> Step[CacheState]:
    """A turn is saved without the tokens in its partial page."""
    step, wrong = law.save(st, row, agreed), law.save(st, row, Length(agreed.pages, 0))
    return but(wrong, promises=(*step.promises, *wrong.promises))


def resumes_with_the_old_text(st: CacheState, session: Number, story: Number, given: Length) -> Step[CacheState]:
    """The next turn of a session runs with the text of the turn before."""
    return altered(law.resume(st, session, story, given), contents=st.contents)


def restores_a_blank_state(st: CacheState, session: Number, request: Number) -> Step[CacheState]:
    """The next turn of a session gets the session's state slot, which was wiped before."""
    step = mamba_in_cache.state_restore(st, session, request)
    return but(
        step, then=state_isolation.copied(step.then, ABSENT, st.states.table(st.states.limit + session - 1, OWN), False)
    )


def two_requests(page_size: int = 1) -> tuple[CacheState, ...]:
    """Three pages of each pool, two request rows, two nodes, one session, and a window of one token."""
    pools = swa_mapping.initial(page_size, size=3, size_swa=3, rows=5, need_sort=False)
    empty = session_trim_state.initial(pools, limit=2, sessions=1, window=Length(0, 1))
    tree = lock_ref.initial(nodes=2, handles=2, window=1, windowed=True, stateful=False)
    slots = mamba_slots.initial(1, 2, 1, nodes=3, kind=(False, False, False))
    return (law.initial(empty, tree, slots, isolation.stories()),)


def mutants(sizes: Mapping[str, int]) -> tuple[Mutant, ...]:
    """Wrong calls, each with the law that refutes it. ``sizes``: the constants of the small world."""
    saved = "admit extend save admit"
    routes = {"routes": {"finish": "admit admit", "resume": saved, "close": saved}}
    beside = {"sizes": {**sizes, "limit": 2, "rows": 5}, "small": two_requests, **routes}
    # the tree has a node without a state
    stateless = {"routes": {"admit": "admit state_admit extend finish insert_leaf state_release free_rest"}}
    cached = {"routes": {"evict_leaf": "admit extend finish insert_leaf free_rest admit"}}
    pages_of_two = {
        "sizes": {**sizes, "page_size": 2},
        "small": partial(two_requests, 2),
        "routes": {"save": "admit extend", "decode": "admit"},
    }
    return (
        Mutant("stops_another", "finish", "others_go_on", stops_another, beside),
        Mutant("resumes_and_stops_another", "resume", "other_sessions_go_on", resumes_and_stops_another, beside),
        Mutant("evicts_and_stops", "evict_leaf", "requests_go_on", evicts_and_stops, cached),
        Mutant("shows_others_more", "finish", "others_keep_their_prefix", shows_others_more, beside),
        Mutant("closes_and_shows_more", "close", "sessions_keep_their_prefix", closes_and_shows_more, beside),
        Mutant("evicts_and_shows_more", "evict_leaf", "requests_keep_their_prefix", evicts_and_shows_more),
        Mutant("admits_outside_the_session", "admit", "request_begins", admits_outside_the_session),
        Mutant("counts_the_other_way", "admit", "matched_node_is_locked", counts_the_other_way, stateless),
        Mutant("decodes_two", "decode", "computes_one_token", decodes_two, pages_of_two),
        Mutant("commits_what_was_refused", "commit", "commits_what_was_accepted", commits_what_was_refused),
        Mutant("goes_on_shorter", "continue_prefill", "goes_on_from_the_tree", goes_on_shorter),
        Mutant("saves_a_longer_text", "save", "saves_what_was_sent", saves_a_longer_text),
        Mutant("saves_whole_pages", "save", "saves_what_was_sent", saves_whole_pages, pages_of_two),
        Mutant("resumes_with_the_old_text", "resume", "next_turn_runs_with_its_text", resumes_with_the_old_text),
        Mutant("extend_does_nothing", "extend", "computes_what_is_asked", idle(law.extend), pages_of_two),
        Mutant("reserve_does_nothing", "reserve", "gets_slots_for_a_draft", idle(law.reserve), pages_of_two),
        Mutant("restores_a_blank_state", "state_restore", "states_hold_what_they_held", restores_a_blank_state),
        *idlers(
            law.stem,
            roll_back="keeps_what_is_committed",
            slide="slides_behind_the_prefix",
            leave_window="leaves_the_window_behind",
            settle_swa="ends_the_wait",
            free_group_begin="group_opens_as_asked",
            release_swa="window_is_let_go",
            release_state="state_is_let_go",
            finish="only_stops",
            insert_leaf="leaf_gets_the_rows_pages",
            drop_duplicates="passes_its_prefix_on",
            revive_tombstone="tombstone_gets_the_rows_pages",
            revive_in_place="tombstone_gets_the_rows_window",
            free_rest="request_is_gone",
            restore="next_turn_begins_there",
            close="session_is_gone",
            split="upper_half_gets_its_pages",
            merge="node_takes_in_its_parent",
            evict_leaf="leaf_is_gone",
            evict_swa="only_the_window_is_gone",
            state_save="session_saves_every_state",
            state_restore="next_turn_gets_every_state",
            state_close="session_gives_every_state",
            state_release="request_gives_every_state",
            state_copy="node_copies_a_state",
            state_evict="node_gives_its_state",
            state_track="turns_to_the_other_track",
            state_give_second="keeps_what_it_writes_next",
            state_group_begin="sets_aside_all_or_none",
            state_group_end="group_is_over",
        ),
    )
