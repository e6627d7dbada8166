"""A decode server of SGLang under its real scheduler: prompts come from a prefill server, well, late or not at all."""

from __future__ import annotations

import pytest
from driven import NEWEST
from test_sglang_server import NORMAL, asks, config, sent, turn

from conformance.driver.protocol import Json
from conformance.engines.sglang.launches import (
    BY_PREFIX,
    BY_UNCACHED,
    DECODE_SERVER,
    LAUNCHES,
    ONE_MORE,
    ORDERS,
    RECEIVES,
)
from conformance.stems.launches import MODEL

RESERVES, CACHES = ("--num-reserved-decode-tokens", "2"), "--disaggregation-decode-enable-radix-cache"
POOL = ("--max-total-tokens", "32", "--context-length", "24")
DECODE = ("--disaggregation-mode", "decode", *RESERVES, *POOL)
ON_TENSORS = ("--disaggregation-decode-retraction-backup", "cpu_tensor")
AT_ONCE = {"DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE": "0"}


def decodes(*more: str, **environment: str) -> Json:
    return config(*DECODE, *more, model="full") | ({"environment": environment} if environment else {})


def prefill(request: int, step: str) -> Json:
    return {"op": "transfer", "request": request, "step": step}


def comes(request: int, tokens: int, longest: int, fork: int = 9) -> list[Json]:
    """A request whose destination the prefill server knows after a turn."""
    return [asks(request, tokens, longest, fork), prefill(request, "registers"), turn()]


# One prompt comes at once, one after some turns; a third one shares a beginning with them.
USUAL = [
    *(*comes(0, 5, 4), prefill(0, "completes"), turn(2)),
    *(*comes(1, 6, 3, fork=3), turn(4), prefill(1, "completes"), turn(9)),
    *(asks(2, 7, 2), turn(3), prefill(2, "registers"), turn(2), prefill(2, "completes"), turn(9)),
]
# A request is taken back before the prefill server has taken it, while its prompt is on the way, and while it runs.
TAKEN_BACK = [
    *(asks(0, 4, 4), turn(2), {"op": "abort", "request": 0}, turn(3)),
    *(*comes(1, 4, 4), {"op": "abort", "request": 1}, turn(3), prefill(1, "writes"), turn(3)),
    *(*comes(2, 4, 4), prefill(2, "completes"), turn(2), {"op": "abort", "request": 2}, turn(4)),
]
# The prefill server fails, with and without a write that goes on; then a prompt comes in the same place.
FAILS = [
    *(*comes(0, 6, 3), prefill(0, "fails"), turn(3)),
    *(*comes(1, 6, 3, fork=0), prefill(1, "breaks"), turn(3), prefill(1, "writes")),
    *(*comes(2, 6, 3, fork=2), prefill(2, "completes"), turn(300)),
]
# Answers that need more than the pool has: a request gives up its row, and goes on with what was copied.
RETRACTS = [
    *(asks(0, 4, 15, fork=0), asks(1, 4, 15, fork=2), prefill(0, "registers"), prefill(1, "registers"), turn()),
    *(prefill(0, "completes"), prefill(1, "completes"), turn(60)),
]
# A write that goes on after its request was taken back meets the row of another one.
LATE = [
    *(*comes(0, 17, 2, fork=0), {"op": "abort", "request": 0}, turn(3)),
    *(*comes(1, 17, 4, fork=2), prefill(1, "completes"), prefill(0, "writes"), turn(4)),
]
# Where the row is given back when nobody writes into it any more, the other request waits for it.
WAITS = [
    *(*comes(0, 17, 2, fork=0), {"op": "abort", "request": 0}, turn(3)),
    *(*comes(1, 17, 4, fork=2), prefill(0, "writes"), turn(2), prefill(1, "completes"), turn(9)),
]


@pytest.mark.engine
@pytest.mark.parametrize("page", ["1", "4"])
def test_what_a_prefill_server_does_is_followed_by_the_law(page: str) -> None:
    size = ("--page-size", page, "--max-total-tokens", str(32 * int(page)))
    kinds = [(NORMAL, CACHES), (CACHES,), (NORMAL, *ON_TENSORS)]
    found = sent(*((decodes(*size, *kind), steps) for kind in kinds for steps in (USUAL, TAKEN_BACK, FAILS)))
    for said in found:
        assert not {"law", "error", "refused"} & said.keys(), said
        assert said["left"] == 0
    assert all(
        {"admit", "extend_elsewhere", "receive", "decode", "finish"} <= said["done"].keys() for said in found[::3]
    )
    assert "insert_leaf" in found[0]["done"]
    assert "insert_leaf" not in found[6]["done"], "without a cache nothing goes to a tree"


@pytest.mark.engine
def test_a_request_goes_on_with_what_was_copied_when_it_gave_its_row_up() -> None:
    for said in sent(*((decodes(*kind), RETRACTS) for kind in ((NORMAL, CACHES), (NORMAL, *ON_TENSORS), (CACHES,)))):
        assert not {"law", "error", "refused"} & said.keys(), said
        assert said["left"] == 0
        assert said["done"]["admit"] > 2, "one request was admitted twice"


@pytest.mark.engine
def test_a_row_that_is_free_too_early_is_written_for_another_request() -> None:
    """By default a row is free when the prefill server has said that it writes no more."""
    plain, at_once = sent((decodes(NORMAL, CACHES), WAITS), (decodes(NORMAL, CACHES, **AT_ONCE), LATE))
    assert not {"law", "error", "refused"} & plain.keys(), plain
    assert plain["left"] == 0
    assert at_once["law"] == "finish"
    assert "no transfer into the row is under way" in at_once["detail"]


@pytest.mark.engine
def test_up_to_0_5_20_a_row_is_free_at_once() -> None:
    for release in ("0.5.19", "0.5.20"):
        (said,) = sent((decodes(NORMAL, CACHES), LATE), release=release)
        assert said["law"] == "finish", (release, said)


# A prompt that is sent twice, where the whole of it and the first token of its answer are in the tree.
TWICE = [
    *(*comes(0, 2, 2), prefill(0, "completes"), turn(3)),
    *(*comes(1, 2, 2), prefill(1, "completes"), turn(2)),
]


@pytest.mark.engine
def test_runs_avoid_each_order_in_which_prompts_that_have_come_are_matched_again() -> None:
    orders, ranked = ("lpm", "fcfs", *ORDERS), "--enable-priority-scheduling"
    stopped = {
        order
        for order, said in zip(
            orders, sent(*((decodes(CACHES, ranked, "--schedule-policy", one), TWICE) for one in orders)), strict=True
        )
        if said.get("law")
    }
    assert stopped == {name.removeprefix("order ") for _, name in BY_PREFIX}
    for kind in ((CACHES, "--schedule-policy", "lpm"), (*ON_TENSORS, ranked, "--schedule-policy", "lpm")):
        (said,) = sent((decodes(*kind), TWICE))
        assert not {"law", "error", "refused"} & said.keys(), said


@pytest.mark.engine
def test_older_releases_have_no_decode_servers_here() -> None:
    (said,) = sent((decodes(NORMAL), []), release="0.5.18")
    assert "from 0.5.19 on" in said["refused"]
    assert NEWEST != "0.5.18"


@pytest.mark.engine
def test_a_decode_server_comes_after_another_server_of_its_process() -> None:
    for said in sent((config(NORMAL), [turn()]), (decodes(NORMAL, CACHES), USUAL)):
        assert not {"law", "error", "refused"} & said.keys(), said


def test_an_order_that_needs_a_cache_is_drawn_with_one_alone() -> None:
    """Without a cache a server of SGLang is not built in this order."""
    models = [one.name for one in LAUNCHES.models]
    for kind in range(len(RECEIVES)):
        names = [one.name for one in LAUNCHES.every[ONE_MORE]]
        numbers = {MODEL: models.index("decode"), DECODE_SERVER: kind, ONE_MORE: names.index(f"order {BY_UNCACHED}")}
        chosen = LAUNCHES.chosen(numbers)
        assert chosen[MODEL].name == "decode"
        assert chosen[DECODE_SERVER] is RECEIVES[kind]
        assert (BY_UNCACHED in chosen[ONE_MORE].flags) == (CACHES in RECEIVES[kind].flags)
