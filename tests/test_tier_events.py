"""KV events by medium: what a reader believes of the device and of the host of a server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from driven import NEWEST, driven, have

from conformance.driver.protocol import Json, Key, PublishedEvents
from conformance.engines.sglang.server.event_socket import PublishedBatches
from conformance.engines.sglang.server.host_pages import HostPages
from conformance.stems.kv_events.published import Listener
from conformance.stems.kv_events.reader import AGREE, AGREE_SENTENCE, EXACT, NUMBERED, REMOVED

GPU, CPU = "GPU", "CPU_PINNED"
ONE, TWO = (1, 2), (1, 2, 3, 4)  # the pages of a text, by their ends


def stored(medium: str, *pages: Key, parent: int | None = None) -> dict[str, Any]:
    """The event of these pages, of two tokens each. The hash of a page is its last token."""
    return {
        "type": "BlockStored",
        "block_hashes": [page[-1] for page in pages],
        "parent_block_hash": parent,
        "token_ids": [token for page in pages for token in page[-2:]],
        "block_size": 2,
        "medium": medium,
    }


def removed(medium: str, *pages: Key) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [page[-1] for page in pages], "medium": medium}


Batch = tuple[Sequence[dict[str, Any]], Mapping[str, Sequence[Key]]]  # its events, and the pages that are cached then


def law_of(*batches: Batch) -> str | None:
    """The law that a server breaks by these batches of events, each beside the pages that it had cached then."""
    said = [PublishedEvents(e, tiers=tiers, number=n, once=True) for n, (e, tiers) in enumerate(batches)]
    wrong = Listener(lambda: said).judge()
    return None if wrong is None else wrong.law


BOTH: Batch = ([stored(GPU, ONE, TWO), stored(CPU, ONE)], {GPU: [ONE, TWO], CPU: [ONE]})


def test_a_server_that_says_what_each_memory_has_is_right() -> None:
    demoted: Batch = [removed(GPU, TWO)], {GPU: [ONE], CPU: [ONE]}
    loaded: Batch = [stored(GPU, TWO, parent=2), removed(CPU, ONE)], {GPU: [ONE, TWO], CPU: []}
    cleared: Batch = [{"type": "AllBlocksCleared"}], {GPU: [], CPU: []}
    assert law_of(BOTH, demoted, loaded, cleared, BOTH) is None


@pytest.mark.parametrize(
    ("events", "tiers", "law"),
    [
        ([removed(GPU, TWO)], {GPU: [ONE, TWO], CPU: []}, EXACT),  # it was the host's page
        ([removed(CPU, TWO)], {GPU: [ONE], CPU: [ONE]}, REMOVED),
        ([stored(GPU, TWO, parent=2)], {GPU: [ONE, TWO], CPU: [ONE, TWO]}, EXACT),  # it is the host's page
        ([], {GPU: [ONE, TWO], CPU: []}, EXACT),
        ([], {GPU: [ONE], CPU: [ONE]}, EXACT),
        ([], {GPU: [ONE, TWO], CPU: [ONE, TWO]}, EXACT),
    ],
)
def test_a_server_that_says_the_wrong_memory_is_found(
    events: list[dict[str, Any]], tiers: dict[str, list[Key]], law: str
) -> None:
    assert law_of(BOTH, (events, tiers)) == law


def test_a_page_that_is_said_twice_is_wrong_for_a_reader_that_counts_alone() -> None:
    again: Batch = [stored(CPU, ONE)], {GPU: [ONE, TWO], CPU: [ONE]}
    gone: Batch = [removed(CPU, ONE)], {GPU: [ONE, TWO], CPU: []}
    assert law_of(BOTH, again) is None
    assert law_of(BOTH, again, gone) == AGREE
    twice: Batch = [removed(CPU, ONE), removed(CPU, ONE)], {GPU: [ONE, TWO], CPU: []}
    assert law_of(BOTH, again, twice) == REMOVED  # for a reader that keeps a set


def test_a_reader_that_keeps_a_set_reads_on_where_the_other_one_is_wrong() -> None:
    again: Batch = [stored(CPU, ONE)], {GPU: [ONE, TWO], CPU: [ONE]}
    gone: Batch = [removed(CPU, ONE)], {GPU: [ONE, TWO], CPU: []}
    said = [PublishedEvents(e, tiers=t, once=True) for e, t in (BOTH, again, gone)]
    asked: list[list[PublishedEvents]] = [said, [], [PublishedEvents([], tiers={GPU: [ONE], CPU: []}, once=True)]]
    listener = Listener(lambda: asked.pop(0))
    first = listener.judge()
    assert first is not None
    assert (first.law, first.sentence) == (AGREE, AGREE_SENTENCE)
    assert listener.judge() is None
    second = listener.judge()
    assert second is not None
    assert second.law == EXACT


def test_a_lost_batch_is_found() -> None:
    first, second = (PublishedEvents([], tiers={}, number=n, once=True) for n in (0, 2))
    wrong = Listener(lambda: [first, second]).judge()
    assert wrong is not None
    assert wrong.law == NUMBERED


def test_at_rest_nothing_may_be_unsaid() -> None:
    batches = PublishedBatches(lambda: {GPU: [ONE]})
    batches.rests()
    wrong = Listener(batches.take).judge()
    assert wrong is not None
    assert wrong.law == EXACT
    assert wrong.detail.startswith("the server is at rest")


def test_what_is_no_batch_is_told_to_who_asks_for_batches() -> None:
    batches = PublishedBatches(lambda: {})
    batches.hears([b"", bytes(8), b"\xc1"])
    with pytest.raises(Exception, match=r"MessagePack|invalid"):
        batches.take()


# Which pages are whole on the host.


def test_a_page_is_on_the_host_when_its_copy_has_ended_and_the_server_has_heard() -> None:
    pages = HostPages()
    pages.asked(7, [1, 2], [ONE, TWO])
    pages.written([1])
    pages.heard(7)
    assert pages.whole([ONE, TWO, (9, 9)]) == [(9, 9)]
    pages.written([2])
    assert pages.whole([ONE, TWO]) == [ONE, TWO]


def test_a_copy_that_is_written_and_not_heard_of_is_not_there() -> None:
    pages = HostPages()
    pages.asked(7, [1], [ONE])
    pages.written([1])
    assert pages.whole([ONE]) == []
    pages.heard(7)
    assert pages.whole([ONE]) == [ONE]


def test_a_slot_that_is_given_back_is_of_no_copy() -> None:
    pages = HostPages()
    pages.asked(7, [1], [ONE])
    pages.freed([1])
    pages.asked(8, [1], [TWO])
    assert pages.whole([ONE, TWO]) == [ONE]
    pages.cleared()
    assert pages.whole([ONE, TWO]) == [ONE, TWO]


# The real scheduler.

SERVED = """
    import json, sys
    from contextlib import nullcontext
    from pathlib import Path
    sys.path.insert(0, sys.argv[4])
    from host_memory_edits import made
    from tier_events_edits import BUGS, HARMLESS
    from conformance.driver.lockstep import Finding
    from conformance.engines.sglang.releases import release
    from conformance.engines.sglang.server.engine import make_host_server
    from conformance.stems.stem_registry import start

    label, root, asked = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    loaded = release.load(Path(root), label)
    found = []
    for config, steps, edit in asked:
        with made({**BUGS, **HARMLESS}[edit]) if edit else nullcontext():
            lock, said = start("host_server", lambda config: make_host_server(loaded, config), config), {}
            real, count = lock.run.engine._batches.hears, {}
            def hears(frames):
                real(frames)
                for event in lock.run.engine._batches._batches[-1].events:
                    name = event["type"] + " " + event.get("medium", "")
                    count[name] = count.get(name, 0) + 1
            lock.run.engine._batches.hears = hears
            try:
                for step in steps:
                    lock.do(**step)
            except Finding as finding:
                said = {"law": finding.law, "detail": finding.detail}
        found.append({**said, "events": count})
    print(json.dumps(found))
"""

FLAGS = [
    *("--page-size", "4", "--max-total-tokens", "48", "--context-length", "40", "--max-running-requests", "2"),
    *("--max-mamba-cache-size", "10", "--attention-backend", "triton", "--disable-overlap-schedule"),
    *("--enable-hierarchical-cache", "--hicache-ratio", "2", "--hicache-write-policy", "write_through"),
    *("--decode-log-interval", "1", "--kv-events-config", json.dumps({"publisher": "zmq"})),
]
PYTHON: Json = {"UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}
COPIES_END: list[Json] = [{"op": "copies_end", "stores": stores, "count": 1000} for stores in (True, False)]
ENDS = [
    {"op": "turn", "times": 6},
    COPIES_END[0],
    {"op": "turn", "times": 3},
    COPIES_END[1],
    {"op": "turn", "times": 3},
]


def prompt(request: int, fork: int) -> list[Json]:
    """A client sends a prompt of 20 tokens, and the server makes turns until all is copied."""
    tokens = [fork * 100 + at for at in range(20)]
    return [{"op": "generate", "request": request, "tokens": tokens, "longest": 2, "fork": fork}, *ENDS]


# The fourth prompt is loaded from the host. The host has room for four texts, and is emptied before the last prompt.
TEXTS: list[Json] = [step for request, fork in enumerate((1, 2, 3, 1, 4, 5, 6)) for step in prompt(request, fork)]
STEPS: list[Json] = [*TEXTS, {"op": "flush"}, {"op": "turn", "times": 3}, *prompt(7, 1)]
FOUND = (
    *("host_eviction_is_not_said", "host_copy_is_said_of_the_device", "load_is_not_said", "flush_is_not_said"),
    *("demotion_is_said_of_the_host", "copy_is_said_when_it_begins", "idle_server_says_nothing"),
    "small_batches_are_lost",
)
HARMLESS = ("one_event_a_page", "cleared_twice")


@pytest.mark.engine
def test_a_server_with_host_memory_is_right_and_wrong_events_of_it_are_found() -> None:
    servers = [({}, ""), (PYTHON, ""), *((PYTHON, edit) for edit in (*HARMLESS, *FOUND))]
    asked = [
        ({"model": "full", "flags": FLAGS, "sessions": 0, "environment": core}, STEPS, edit) for core, edit in servers
    ]
    here = str(Path(__file__).parent)
    said = driven(NEWEST, SERVED, str(have(NEWEST)), json.dumps(asked), here)
    right, wrong = said[: -len(FOUND)], said[-len(FOUND) :]
    for one in right:
        assert "law" not in one
        kinds = ("BlockStored GPU", "BlockStored CPU_PINNED", "BlockRemoved GPU", "BlockRemoved CPU_PINNED")
        assert min(one["events"][kind] for kind in (*kinds, "AllBlocksCleared ")) > 0
    assert {name: one.get("law") for name, one in zip(FOUND, wrong, strict=True)} == dict.fromkeys(FOUND, EXACT)
