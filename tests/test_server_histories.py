"""What happened to a place of a server's memory, as a script tells it."""

from __future__ import annotations

from conformance.driver.shadow import FULL, STATES
from conformance.engines.sglang.server.histories import LINES, Histories
from conformance.stems.allocator.protocol import AllocatorSnapshot
from conformance.stems.cache.protocol import CacheSnapshot
from conformance.stems.lock_ref.protocol import LockRefSnapshot
from conformance.stems.mamba_slots.protocol import MambaSlotsSnapshot, SlotNames
from conformance.stems.server.protocol import ServedRequest, ServerEvent
from conformance.stems.session_trim.protocol import Lengths, RowSnapshot, SessionTrimSnapshot
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot

PAGE = 2
KNOWN = ServedRequest([1], [], 0, 0, None, False)


def seen(free: list[int], rows: dict[int, RowSnapshot], states: MambaSlotsSnapshot | None = None) -> CacheSnapshot:
    """A server whose pool has these free pages."""
    pools = SwaMappingSnapshot.without_swa(AllocatorSnapshot(free, [], len(free) * PAGE))
    return CacheSnapshot(SessionTrimSnapshot(rows, {}, [], pools), LockRefSnapshot([], {}, {}, {}), {}, states)


def at(histories: Histories, kind: str, *requests: int) -> None:
    """Something happened to requests, in a step of its own."""
    histories.step += 1
    histories.at(ServerEvent(kind, dict.fromkeys(requests, KNOWN)))


def row(slots: list[int], protected: int = 0) -> RowSnapshot:
    """A row whose first tokens are those of the tree."""
    return RowSnapshot(1, Lengths(protected, 0, len(slots), len(slots)), slots)


def test_a_slot_goes_from_the_free_list_to_a_request_and_to_the_cache() -> None:
    histories = Histories()
    at(histories, "poll")
    histories.owned(seen([1, 2], {}), PAGE)
    at(histories, "extended", 7)
    histories.owned(seen([2], {7: row([2, 3])}), PAGE)
    histories.note(FULL, 3, "the pass writes token 1")
    at(histories, "cached", 7)
    histories.owned(seen([2], {7: row([2, 3], protected=2)}), PAGE)
    assert histories.of(FULL, 3).splitlines() == [
        "What happened to KV slot 3:",
        "  step 1: is free",
        "  step 2, slots for a prefill of request 7: is for token 1 of request 7",
        "  step 2, slots for a prefill of request 7: the pass writes token 1",
        "  step 3, cache_unfinished_req of request 7: belongs to the radix cache",
    ]
    assert histories.of(FULL, 5).splitlines() == ["What happened to KV slot 5:", "  step 1: is free"]
    assert histories.did().splitlines()[1:] == [
        "  step 2, slots for a prefill of request 7",
        "  step 3, cache_unfinished_req of request 7",
    ]


def test_what_a_window_has_left_and_was_given_back_is_not_its_requests() -> None:
    histories = Histories()
    at(histories, "decoded", 7)
    left = RowSnapshot(1, Lengths(1, 3, 4, 4), [2, 3, 4, 5], gap=2)
    histories.owned(seen([2], {7: left}), PAGE)
    assert "is for token 1 of request 7" in histories.of(FULL, 3)
    assert histories.of(FULL, 4).endswith(": is free")
    assert "is for token 3 of request 7" in histories.of(FULL, 5)


def test_a_slot_of_two_requests_has_two_owners() -> None:
    histories = Histories()
    at(histories, "decoded", 1, 2)
    histories.owned(seen([], {1: row([2]), 2: row([2])}), PAGE)
    told = (
        "step 1, slots for a decode step of requests 1, 2: is for token 0 of request 1, and is for token 0 of request 2"
    )
    assert told in histories.of(FULL, 2)


def test_a_copied_state_has_the_history_of_its_source() -> None:
    histories = Histories()
    at(histories, "admitted", 1)
    names = {1: SlotNames((4, 0, 0)), 2: SlotNames((5, 0, 0))}
    histories.owned(seen([], {}, MambaSlotsSnapshot([6], 1, requests=names, nodes={(1,): 3})), PAGE)
    histories.copied(3, 4, 8)
    histories.note(STATES, 3, "is written later")
    assert histories.of(STATES, 4).splitlines() == [
        "What happened to mamba state 3:",
        "  step 1, admission of request 1: belongs to the radix cache",
        "What happened to mamba state 4:",
        "  step 1, admission of request 1: belongs to request 1",
        "  step 1, admission of request 1: state 3, after 8 tokens, is copied to it",
    ]


def test_only_the_newest_lines_are_told() -> None:
    histories = Histories()
    for number in range(10):
        histories.note(FULL, 1, str(number))
    assert [line[-1] for line in histories.of(FULL, 1).splitlines()[1:]] == [*"0123456789"][-LINES:]
