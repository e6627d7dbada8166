"""Engines whose own code fails while they are built, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from driven import NEWEST, driven
from test_sglang_server import config
from test_vllm_runs import answer

from conformance.driver.exception_origin import raised_in_engine
from conformance.driver.protocol import EngineError, Unsupported
from conformance.driver.trace import Trace
from conformance.engines.adapters import PoolAdapter
from conformance.engines.vllm import RELEASES
from conformance.telling.pasted import play
from conformance.traces.outcome import outcome


def asserts() -> None:
    assert not __name__, "one group of layers"


def refuses() -> None:
    raise ValueError("too few blocks")


def looks_up() -> None:
    list[int]().index(1)


def parses() -> None:
    json.loads("{")


def of_slotproof() -> None:
    PoolAdapter({}, 1, 2, 3, 4, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fails", "expected"),
    [(asserts, True), (refuses, True), (looks_up, False), (parses, False), (of_slotproof, False)],
)
def test_an_engine_refuses_in_words_where_its_own_code_raises(fails: Callable[[], None], expected: bool) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011
        fails()
    assert raised_in_engine(raised.value) is expected


@pytest.mark.parametrize("kind", [EngineError, Unsupported])
def test_a_trace_without_operations_says_whether_the_engine_is_built(kind: Callable[..., Exception]) -> None:
    def make(_: Any) -> Any:
        raise kind("it cannot be built", unbuilt="AssertionError: one group (scheduler.py:7)")

    played = play(Trace("allocator", {}, []), make, [])
    (found,) = played.outcome.breaks
    assert (found.step, found.severity, found.law) == (0, "violation", "lawful_call_is_answered")
    assert found.detail == "the engine cannot be built: AssertionError: one group (scheduler.py:7)"
    assert len(played.where) == 1
    one_step = Trace("allocator", {}, [{"op": "extend"}])
    if kind is Unsupported:
        assert outcome(one_step, make).stopped == "it cannot be built"
    else:
        with pytest.raises(EngineError):
            outcome(one_step, make)


# Exceptions of a scheduler's constructor: which exception the adapter raises for each, and what it says of the engine.
FAILS = """
    from unittest.mock import patch

    def asserts(*_, **__):
        assert not 1, "one group of layers"

    def refuses(*_, **__):
        raise ValueError("too few blocks")

    def has_not(*_, **__):
        raise NotImplementedError("no such layers")

    def looks_up(*_, **__):
        [].index(1)

    def misspells(*_, **__):
        return unknown

    told = {}
    for fails in (asserts, refuses, has_not, looks_up, misspells):
        with patch.object(Scheduler, METHOD, fails):
            try:
                make(asked)
            except Exception as error:
                told[fails.__name__] = [type(error).__name__, error.unbuilt.partition(" (")[0]]
    print(json.dumps(told))
"""
BROKEN = {
    "looks_up": ["EngineError", "ValueError: 1 is not in list"],
    "misspells": ["EngineError", "NameError: name 'unknown' is not defined"],
}


@pytest.mark.soak
@pytest.mark.engine
def test_what_a_scheduler_of_vllm_asserts_is_told_beside_a_base() -> None:
    before = """
    from vllm.v1.core.sched.scheduler import Scheduler
    METHOD, make, asked = "__init__", makers["block_cache"], {**runs.config("full"), "steps_in_flight": 1}
    """
    assert answer(RELEASES[-1], before + FAILS) == {
        **BROKEN,
        "asserts": ["Unsupported", "AssertionError: one group of layers"],
        "refuses": ["Unsupported", ""],
        "has_not": ["Unsupported", ""],
    }


@pytest.mark.engine
def test_what_stops_a_scheduler_of_sglang_is_told_beside_a_base() -> None:
    before = """
    import json, sys
    from conformance.engines.registry import load

    makers, asked = load("sglang", release=sys.argv[1]).makers, json.loads(sys.argv[2])
    from sglang.srt.managers.scheduler import Scheduler
    METHOD, make = "__init__", makers["server"]
    """
    told: Any = driven(NEWEST, before + FAILS, json.dumps(config()))
    assert told == {
        **BROKEN,
        "asserts": ["EngineError", "AssertionError: one group of layers"],
        "refuses": ["EngineError", "ValueError: too few blocks"],
        "has_not": ["EngineError", "NotImplementedError: no such layers"],
    }
