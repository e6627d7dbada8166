"""A prefill server of SGLang under its real scheduler: its prompts go to decode servers, soon, late or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefill_server_edits import ALL
from test_sglang_server import NORMAL, asks, config, sent, turn

from conformance.driver.protocol import Json

CHUNKED = ("--chunked-prefill-size", "4")
HOPES = ("--optimistic-prefill-attempts", "2")
ABORT = {"op": "abort", "request": 0}
LAW = "decode_server_gets_own_content"
SENDS = ("--disaggregation-mode", "prefill", "--context-length", "24")


def prefills(*more: str, page: int = 1) -> Json:
    size = ("--page-size", str(page), "--max-total-tokens", str(32 * page), "--context-length", str(24 * page))
    return config(*SENDS, *size, *more, model="full")


def other(request: int, *steps: str) -> list[Json]:
    """What the decode server and the worker do for a request."""
    return [{"op": "send", "request": request, "step": step} for step in steps]


def fresh(request: int) -> Json:
    """A request whose prompt shares nothing with others."""
    return asks(request, 6, 3) | {"tokens": [1000 * (request + 2) + n for n in range(6)]}


GOES = ("takes", "reads", "reads")  # the last part of a prompt, with the first token of its answer
# A prompt that a decode server asks for; then one that shares a beginning, and is asked for late; then one of which the
# decode server has a part.
USUAL = [
    *(asks(0, 6, 3), *other(0, "asks"), turn(3), *other(0, *GOES), turn(2)),
    *(asks(1, 9, 3, fork=5), turn(3), *other(1, "asks"), turn(3), *other(1, "takes", "reads", *GOES), turn(2)),
    *(asks(2, 9, 3, fork=7), turn(), *other(2, "asks_rest"), turn(3), *other(2, "takes", "reads", *GOES), turn(2)),
]
# A prompt in chunks, each of which is read long after it was handed over.
IN_CHUNKS = [asks(0, 10, 3), *other(0, "asks"), turn(6), *other(0, "takes", "reads", "takes", "reads", *GOES), turn(3)]
# A request is taken back before a decode server asks, before its prompt is taken, and while it is read.
TAKEN_BACK = [
    *(fresh(0), turn(2), ABORT, turn(3)),
    *(fresh(1), *other(1, "asks"), turn(3), ABORT | {"request": 1}, turn(3), *other(1, "takes"), turn()),
    *(fresh(2), *other(2, "asks"), turn(3), *other(2, "takes"), ABORT | {"request": 2}, turn(2)),
    *(fresh(3), *other(3, "asks"), turn(3), *other(2, "reads", "reads"), *other(3, *GOES), turn(3)),
]
# A decode server does not want a prompt any more; one is never heard of again; the next one gets its prompt.
FAILS = [
    *(fresh(0), *other(0, "asks"), turn(3), *other(0, "takes", "cancels"), turn(2), *other(0, "reads", "reads")),
    *(fresh(1), *other(1, "asks"), turn(3), *other(1, "takes", "breaks_off"), turn(3)),
    *(fresh(2), *other(2, "asks"), turn(3), *other(2, *GOES), turn(3)),
]

# What is handed over is read at once, also within a turn.
HURRIED = [
    *(asks(0, 10, 3), *other(0, "asks", "hurries"), asks(1, 9, 3, fork=4), *other(1, "asks", "hurries"), turn(9)),
    *(asks(2, 12, 3, fork=8), *other(2, "asks", "hurries"), turn(9)),
]


@pytest.mark.engine
@pytest.mark.parametrize("page", [1, 4])
def test_what_a_prefill_server_does_is_followed_by_the_law(page: int) -> None:
    kinds = [(NORMAL,), (), (NORMAL, *HOPES), HOPES]
    runs = [USUAL, TAKEN_BACK, FAILS] if page == 1 else [TAKEN_BACK, FAILS]
    found = sent(*((prefills(*kind, page=page), steps) for kind in kinds[:2] for steps in runs))
    found += sent(*((prefills(*kind, *CHUNKED, page=page), HURRIED) for kind in kinds))
    found += sent(*((prefills(*kind, *CHUNKED), IN_CHUNKS) for kind in kinds[:2]))
    for said in found:
        assert not {"law", "error", "refused"} & said.keys(), said
        assert said["left"] == 0
    assert {"admit", "extend", "insert_leaf", "finish"} <= found[0]["done"].keys()


@pytest.mark.engine
@pytest.mark.soak
def test_older_releases_send_prompts_too() -> None:
    for release in ("0.5.19", "0.5.22"):
        for said in sent(*((prefills(NORMAL), steps) for steps in (USUAL, TAKEN_BACK, FAILS)), release=release):
            assert not {"law", "error", "refused"} & said.keys(), (release, said)
            assert said["left"] == 0


# Makes an edit for the rest of the process.
PLANT = """
    sys.path.insert(0, {tests!r})
    from host_memory_edits import made
    from prefill_server_edits import ALL
    edit = made(ALL[{name!r}])
    edit.__enter__()
"""
AT_ONCE = [asks(0, 10, 3), *other(0, "asks", "hurries"), turn(9)]
# Taken back while the step that computes it is in flight.
IN_FLIGHT = [asks(0, 6, 3), *other(0, "asks"), turn(), ABORT, turn(3)]
# A decode server that has the first tokens of a prompt, and a sender that waits for more than it was asked for.
REST = [asks(0, 9, 3), *other(0, "asks_rest", "hurries"), turn(70)]
FOUND = {
    "sent_before_its_pass": (prefills(*CHUNKED), AT_ONCE, LAW),
    "taken_back_keeps_its_buffer": (prefills(), IN_FLIGHT, "metadata_buffers_come_back"),
    "rest_is_sent_from_the_beginning": (prefills(NORMAL), REST, "waiting_requests_are_served"),
}


@pytest.mark.engine
@pytest.mark.parametrize("name", FOUND)
def test_what_a_bug_sends_or_keeps_is_found(name: str) -> None:
    setting, steps, law = FOUND[name]
    assert name in ALL
    (said,) = sent((setting, steps), plant=PLANT.format(tests=str(Path(__file__).parent), name=name))
    assert said.get("law") == law, said
    (plain,) = sent((setting, steps))
    assert not {"law", "error", "refused"} & plain.keys(), plain
