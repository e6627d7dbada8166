"""What a decode server gets from a prefill server is judged when it hears that all is there, and not before."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from conformance.driver.lockstep import Finding
from conformance.driver.shadow import FULL, STATES, SWA, Shadow
from conformance.stems.server.protocol import SendStep, Sent
from conformance.stems.server.sendings import GIVES_BACK, SENDS_OWN, Sendings

TEXT = [5, 6, 7]
FIRST = 42  # the first token of the answer
Shape = dict[str, object]
FULL_ALONE: Shape = {"components": ["full"]}
SLOTS = ((0, 11), (1, 12), (2, 13))


@dataclass
class Served:
    """A run of a server with one request of three tokens. Their slots in the full pool begin at 11, in the SWA pool at
    21, and the states after them in the pool of states at 31. ``shape``: of the server's memory.
    """

    kept: int = 0
    shadow: Shadow = field(default_factory=Shadow)
    sent: dict[int, list[int]] = field(default_factory=lambda: {0: TEXT, 1: [8, 9]})
    forks: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    batches: int = 0
    lacks: Collection[str] = ()
    here: set[int] = field(default_factory=lambda: {0})
    coming: set[int] = field(default_factory=set)
    shape: Shape = field(default_factory=lambda: FULL_ALONE)

    def __post_init__(self) -> None:
        self.engine: Any = self
        self.shadow.write(FULL, (11, 12, 13), self.shadow.texts.prefixes(TEXT), "request 0")
        self.shadow.write(FULL, (14,), self.shadow.texts.prefixes([8]), "request 1")
        self.shadow.write(SWA, (21, 22, 23), self.shadow.texts.prefixes(TEXT), "request 0")
        self.shadow.write(STATES, (31, 32, 33), self.shadow.texts.prefixes(TEXT), "request 0")

    def kept_buffers(self) -> int:
        return self.kept

    def send_steps(self, _: int) -> list[SendStep]:
        return ["asks"]


Written = Sequence[tuple[int, Sequence[tuple[str, int]]]]


def judged(*sent: Sent, step: SendStep = "reads", launched: Written = (), shape: Shape | None = None) -> str:
    """What is wrong with what a decode server has got; empty if nothing is. ``shape``: of the server's memory."""
    run = Served(batches=1, shape=shape or FULL_ALONE)
    sendings = Sendings(run, lambda _position, _fork: FIRST)
    sendings.does(0, "asks", Sent(0, ()))
    if launched:
        sendings.launched(launched)
    try:
        for one in sent:
            sendings.does(0, step, one)
    except Finding as finding:
        return finding.detail if finding.law == SENDS_OWN else finding.law
    return ""


ALL = Sent(0, SLOTS)
TOLD = Sent(0, (), buffer=2, first=FIRST, request=0, told=True)


def test_a_prompt_that_is_there_is_right() -> None:
    assert judged(ALL, TOLD) == ""
    assert judged(Sent(0, SLOTS[:1]), Sent(0, SLOTS[1:]), TOLD) == ""
    assert judged(Sent(1, SLOTS[1:]), TOLD._replace(start=1)) == "", "the decode server has the first token"
    assert judged(Sent(0, (*SLOTS, (3, 99))), TOLD) == "", "behind the prompt, the page has nothing"


@pytest.mark.parametrize(
    ("slots", "what"),
    [
        (SLOTS[:2], "token 2 was not sent"),
        (((0, 11), (1, 13), (2, 13)), "token 1 was read from slot 13, which has a token of request 0"),
        (((0, 14), (1, 12), (2, 13)), "token 0 was read from slot 14, which has a token of request 1"),
        (((0, 11), (1, 12), (2, 15)), "token 2 was read from slot 15, which nobody has written"),
    ],
)
def test_a_token_that_is_not_right_is_named_when_the_decode_server_is_told(
    slots: Sequence[tuple[int, int]], what: str
) -> None:
    assert what in judged(Sent(0, slots), TOLD)
    assert judged(Sent(0, slots)) == "", "nobody is told that all is there"
    assert judged(Sent(0, slots), TOLD._replace(told=False)) == "", "the decode server hears of a failure"
    assert judged(Sent(0, slots), Sent(0, ()), TOLD, step="cancels") == "", "the decode server wants it no more"


def test_the_first_token_comes_from_the_buffer_of_its_request() -> None:
    assert "was not sent" in judged(ALL, TOLD._replace(buffer=None))
    assert "token 7 in place of 42" in judged(ALL, TOLD._replace(first=7))
    assert "that of request 1" in judged(ALL, TOLD._replace(request=1))


def test_a_step_in_flight_has_not_written() -> None:
    step = [(0, [(FULL, 13)])]
    assert "slot 13, which a step in flight still writes for request 0" in judged(ALL, TOLD, launched=step)
    assert judged(ALL._replace(done=1), TOLD, launched=step) == "", "the server has waited for the step"


def test_a_server_without_requests_has_its_buffers_back() -> None:
    Sendings(Served(), lambda *_: FIRST).idle()
    with pytest.raises(Finding) as found:
        Sendings(Served(kept=1), lambda *_: FIRST).idle()
    assert found.value.law == GIVES_BACK


def test_a_request_for_which_nobody_has_asked_may_wait() -> None:
    run = Served()
    sendings = Sendings(run, lambda *_: FIRST)
    assert sendings.unheard_of() == {0}
    sendings.does(0, "asks", Sent(0, ()))
    assert sendings.unheard_of() == set()


@pytest.mark.parametrize("has_it", [True, False])
def test_a_decode_server_that_took_its_word_back_too_early_counts_as_one_that_did_not_ask(has_it: bool) -> None:
    run = Served()
    run.here = {0} if has_it else set()
    sendings = Sendings(run, lambda *_: FIRST)
    for step in ("asks", "cancels"):
        sendings.does(0, step, Sent(0, ()))
    run.here = {0}
    assert sendings.unheard_of() == (set() if has_it else {0})


WINDOW: Shape = {"components": ["full", "swa"], "window": 2}
IN_WINDOW = ((1, 22), (2, 23))


def test_a_decode_server_needs_the_window_before_the_end_of_a_prompt() -> None:
    there = ALL._replace(swa_slots=IN_WINDOW)
    assert judged(there, TOLD, shape=WINDOW) == ""
    assert judged(ALL, TOLD) == "", "a model without sliding window layers"
    assert "token 1 in the SWA pool was not sent" in judged(ALL, TOLD, shape=WINDOW)
    assert "token 1 in the SWA pool was not sent" in judged(there._replace(swa_slots=((2, 23),)), TOLD, shape=WINDOW)
    moved = there._replace(swa_slots=((1, 21), (2, 23)))
    assert "was read from SWA slot 21, which has a token of request 0" in judged(moved, TOLD, shape=WINDOW)
    step = [(0, [(FULL, 99), (SWA, 23)])]
    assert "SWA slot 23, which a step in flight still writes" in judged(there, TOLD, launched=step, shape=WINDOW)


def test_a_decode_server_that_has_a_part_needs_the_window_behind_it_alone() -> None:
    rest = Sent(2, ((2, 13),), swa_slots=((2, 23),))
    assert judged(rest, TOLD._replace(start=2), shape=WINDOW) == ""


def test_a_decode_server_needs_the_state_after_a_prompt() -> None:
    states: Shape = {"components": ["full", "mamba"], "size_mamba": 3}
    assert judged(ALL._replace(state=33), TOLD, shape=states) == ""
    assert "the state after token 2 was not sent" in judged(ALL, TOLD, shape=states)
    assert "was read from state slot 32, which has a state of" in judged(ALL._replace(state=32), TOLD, shape=states)
    assert "state slot 9, which nobody has written" in judged(ALL._replace(state=9), TOLD, shape=states)
