"""What a decode server gets from a prefill server is judged when it hears that all is there, and not before."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from conformance.driver.lockstep import Finding
from conformance.driver.shadow import FULL, Shadow
from conformance.stems.server.protocol import SendStep, Sent, ServerPass
from conformance.stems.server.sendings import GIVES_BACK, SENDS_OWN, Sendings

TEXT = [5, 6, 7]
FIRST = 42  # the first token of the answer
SLOTS = ((0, 11), (1, 12), (2, 13))


@dataclass
class Served:
    """A run of a server with one request of three tokens, which are in the slots from 11 on."""

    kept: int = 0
    shadow: Shadow = field(default_factory=Shadow)
    sent: dict[int, list[int]] = field(default_factory=lambda: {0: TEXT, 1: [8, 9]})
    forks: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    batches: int = 0
    lacks: Collection[str] = ()
    here: set[int] = field(default_factory=lambda: {0})
    coming: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.engine: Any = self
        self.shadow.write(FULL, (11, 12, 13), self.shadow.texts.prefixes(TEXT), "request 0")
        self.shadow.write(FULL, (14,), self.shadow.texts.prefixes([8]), "request 1")

    def kept_buffers(self) -> int:
        return self.kept

    def send_steps(self, _: int) -> list[SendStep]:
        return ["asks"]


def judged(*sent: Sent, step: SendStep = "reads", launched: Sequence[ServerPass] = ()) -> str:
    """What is wrong with what a decode server has got; empty if nothing is."""
    run = Served(batches=1)
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
    step = [ServerPass(0, 1, 2, 3, (7,), (13,))]
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
