"""A decode server of SGLang under its real scheduler: prompts come from a prefill server, well, late or not at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from driven import NEWEST, sampled
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
    RECEIVING,
)
from conformance.stems.launches import MODEL, LaunchChoice
from conformance.stems.server.exclusions import ServerExclusion, may_ask_for

RESERVES, CACHES = ("--num-reserved-decode-tokens", "2"), "--disaggregation-decode-enable-radix-cache"
POOL = ("--max-total-tokens", "32", "--context-length", "24")
DECODE = ("--disaggregation-mode", "decode", *RESERVES, *POOL)
ON_TENSORS = ("--disaggregation-decode-retraction-backup", "cpu_tensor")
UNSENT = ServerExclusion.UNSENT_WINDOW
AT_ONCE = {"DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE": "0"}


def decodes(*more: str, model: str = "full", **environment: str) -> Json:
    return config(*DECODE, *more, model=model) | ({"environment": environment} if environment else {})


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
# A prompt whose first pages the tree has, with a window at their end; its tail begins behind them.
GOES_ON = [
    *(*comes(0, 13, 2, fork=99), prefill(0, "completes"), turn(5)),
    *(*comes(1, 17, 2, fork=13), prefill(1, "completes"), turn(5)),
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
@pytest.mark.parametrize("cached", [True, False])
def test_a_row_with_a_window_begins_from_a_tail(cached: bool) -> None:
    size = ("--page-size", "4", "--max-total-tokens", "64")
    kind = (NORMAL, CACHES) if cached else (NORMAL, *ON_TENSORS)
    steps = (USUAL, TAKEN_BACK, FAILS, RETRACTS, GOES_ON)
    found = sent(*((decodes(*kind, *size, model="windowed"), one) for one in steps))
    for said in found:
        assert not {"law", "error", "refused"} & said.keys(), said
        assert said["left"] == 0
        assert {"admit_tail", "receive"} <= said["done"].keys()
    assert ("release_swa" in found[4]["done"]) is cached, "the lock on a matched prefix leaves its window"


@pytest.mark.engine
def test_runs_avoid_each_prompt_of_which_the_tree_gets_more_than_was_sent() -> None:
    """The law names the insert of such a prompt. A shorter one that begins with all of it but its last two tokens, and
    would read what was not sent, never runs.
    """
    cases = [(page, long) for page in (2, 4) for long in range(5, 14)]
    runs = [
        (
            decodes(NORMAL, CACHES, "--page-size", str(page), "--max-total-tokens", "64", model="windowed"),
            [
                *(*comes(0, long, 1, fork=99), prefill(0, "completes"), turn(3)),
                *(*comes(1, long - 1, 2, fork=long - 2), prefill(1, "completes"), turn(3)),
            ],
        )
        for page, long in cases
    ]
    stopped = {case for case, said in zip(cases, sent(*runs), strict=True) if said.get("law") == "insert_leaf"}
    assert stopped == {case for case in cases if not may_ask_for(_server(case[0]), [UNSENT], case[1])}


def _server(page: int) -> Any:
    """What a client knows of a decode server with a window of four tokens, and a cache."""
    shape = {"page_size": page, "window": 4, "components": ["full", "swa"]}
    return SimpleNamespace(engine=SimpleNamespace(shape=shape), lacks=())


@pytest.mark.engine
def test_a_request_goes_on_with_what_was_copied_when_it_gave_its_row_up() -> None:
    for said in sent(*((decodes(*kind), RETRACTS) for kind in ((NORMAL, CACHES), (NORMAL, *ON_TENSORS), (CACHES,)))):
        assert not {"law", "error", "refused"} & said.keys(), said
        assert said["left"] == 0
        assert said["done"]["admit"] > 2, "one request was admitted twice"


# Of what a request had, the full pool alone gets its part back.
NO_WINDOW = """
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
    SWAKVPool.load_cpu_copy = lambda pool, copy, at, **_: pool.full_kv_pool.load_cpu_copy(copy["full"], at)
"""


@pytest.mark.engine
def test_a_window_comes_back_with_a_retracted_request() -> None:
    runs = [(decodes(NORMAL, *ON_TENSORS, model="windowed"), RETRACTS)]
    (said,) = sent(*runs)
    assert not {"law", "error", "refused"} & said.keys(), said
    assert said["done"]["admit_tail"] > 2, "one request was admitted twice"
    (said,) = sent(*runs, plant=NO_WINDOW)
    assert said["law"] == "receive", said
    assert "the window before the next token is sent" in said["detail"]


@pytest.mark.engine
def test_a_row_that_is_free_too_early_is_written_for_another_request() -> None:
    """By default a row is free when the prefill server has said that it writes no more."""
    plain, at_once = sent((decodes(NORMAL, CACHES), WAITS), (decodes(NORMAL, CACHES, **AT_ONCE), LATE))
    assert not {"law", "error", "refused"} & plain.keys(), plain
    assert plain["left"] == 0
    assert at_once["law"] == "finish"
    assert "no transfer into the row is under way" in at_once["detail"]


@pytest.mark.engine
@pytest.mark.soak
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
@pytest.mark.soak
def test_older_releases_have_no_decode_servers_here() -> None:
    (said,) = sent((decodes(NORMAL), []), release="0.5.18")
    assert "from 0.5.19 on" in said["refused"]
    assert NEWEST != "0.5.18"


# What a release finds where it runs in a process that has no network.
NO_NETWORK = """from sglang.srt.utils import network
    network.get_local_ip_by_nic = network.get_local_ip_by_remote = lambda *_: None"""


@pytest.mark.engine
@pytest.mark.parametrize("release", sampled([NEWEST, "0.5.19"], 2))
def test_a_decode_server_comes_first_in_a_process_without_a_network(release: str) -> None:
    """Where a check drives releases they have no network, and the first server of a process makes the engine of
    transfers.
    """
    (said,) = sent((decodes(NORMAL, CACHES), USUAL), plant=NO_NETWORK, release=release)
    assert not {"law", "error", "refused"} & said.keys(), said


@pytest.mark.engine
def test_a_decode_server_comes_after_another_server_of_its_process() -> None:
    for said in sent((config(NORMAL), [turn()]), (decodes(NORMAL, CACHES), USUAL)):
        assert not {"law", "error", "refused"} & said.keys(), said


@pytest.mark.parametrize("model", RECEIVING, ids=lambda one: one.name)
def test_an_order_that_needs_a_cache_is_drawn_with_one_alone(model: LaunchChoice) -> None:
    """Without a cache a server of SGLang is not built in this order."""
    for kind in range(len(RECEIVES)):
        names = [one.name for one in LAUNCHES.every[ONE_MORE]]
        numbers = {
            **{MODEL: LAUNCHES.models.index(model), DECODE_SERVER: kind},
            ONE_MORE: names.index(f"order {BY_UNCACHED}"),
        }
        chosen = LAUNCHES.chosen(numbers)
        assert chosen[MODEL] is model
        assert chosen[DECODE_SERVER] is RECEIVES[kind]
        assert (BY_UNCACHED in chosen[ONE_MORE].flags) == (CACHES in RECEIVES[kind].flags)
