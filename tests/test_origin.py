"""An exception of Slotproof's own code is never a verdict on an engine, and an exception of the engine always is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.driver import exception_origin
from conformance.driver.lockstep import ANSWERED, REFUSAL, VIOLATION, EngineCall, Finding, _sent_to_engine, refusing
from conformance.driver.protocol import EngineError, Json, OutOfMemory, TurnedAway, Unsupported
from conformance.engines import registry, sglang, side_by_side, toy
from conformance.engines.adapters import PoolAdapter
from conformance.engines.array_tl import memory
from conformance.search.check import Search, check
from conformance.stems.pools import calls
from conformance.stems.swa_mapping import faults as a_fault
from conformance.stems.vetting import told_where_it_fails

ROOT = Path(__file__).parents[1]
Does = Callable[..., Any]


def engine_fails(*_: Any) -> None:
    raise AssertionError("out of luck")


def engine_misuses_torch(*_: Any) -> None:
    torch.cat([torch.zeros(1), "a"])  # type: ignore[list-item]


def engine_misuses_the_standard_library(*_: Any) -> None:
    SimpleNamespace(*range(9))


def engine_misuses_itself(*_: Any) -> None:
    engine_fails(nothing=1)  # type: ignore[call-arg]


def engine_lacks_an_attribute(*_: Any) -> None:
    OfTheEngine("one", None).nothing  # type: ignore[attr-defined]  # noqa: B018


class OfTheEngine(side_by_side.EngineSide):
    """A class of the engine, though it derives from one of ours."""


def engine_sends_a_wrong_place(*_: Any) -> None:
    memory.Argument("kernel", "pages", torch.zeros(0).numpy(), 0, 0).read(torch.tensor(0).numpy())


def differences(one: int) -> int:
    """A function of the engine that has the name of one of ours."""
    return one


def engine_misuses_what_has_our_name(*_: Any) -> None:
    differences()  # type: ignore[call-arg]


def engine_without_a_module(*_: Any) -> None:
    exec("raise KeyError('no module')", {})


def engine_answers_an_error_of_its_own(*_: Any) -> None:
    try:
        engine_fails()
    except AssertionError as error:
        raise ValueError("in other words") from error


def adapter_says_out_of_memory(*_: Any) -> None:
    raise OutOfMemory("tokens")


def adapter_says_turned_away(*_: Any) -> None:
    raise TurnedAway("the session is busy")


THE_ENGINES = [
    *(engine_fails, engine_misuses_torch, engine_misuses_the_standard_library, engine_misuses_itself),
    *(engine_lacks_an_attribute, engine_sends_a_wrong_place, engine_misuses_what_has_our_name),
    *(engine_without_a_module, engine_answers_an_error_of_its_own),
    *(adapter_says_out_of_memory, adapter_says_turned_away),
]


def adapter_passes_a_wrong_argument() -> None:
    PoolAdapter(SimpleNamespace(clear=lambda pages: pages), 1).clear()


def adapter_misuses_torch() -> None:
    PoolAdapter(SimpleNamespace(alloc=engine_fails), 1).free(["a"])  # type: ignore[list-item]


def stand_in_lacks_an_attribute() -> None:
    side_by_side.EngineSide("one", None).nothing  # type: ignore[attr-defined]  # noqa: B018


def fields_of_a_stand_in_do_not_suffice() -> None:
    exception_origin.StandIn(page_size=1).size_of_a_page  # noqa: B018


def stand_in_takes_other_arguments() -> None:
    exception_origin.drives()  # type: ignore[call-arg]


def method_of_a_stand_in_takes_other_arguments() -> None:
    PoolAdapter(SimpleNamespace(), 1).begin_group(1)  # type: ignore[call-arg]


def kernels_cannot_be_run() -> None:
    memory.argument("kernel", "pages", object())


def engine_turns_it_into_its_own() -> None:
    try:
        adapter_passes_a_wrong_argument()
    except TypeError as error:
        raise RuntimeError("out of luck") from error


def engine_fails_because_of_it() -> None:
    try:
        adapter_passes_a_wrong_argument()
    except TypeError:
        engine_fails()


SLOTPROOFS: dict[Does, str] = {
    adapter_passes_a_wrong_argument: "conformance/engines/adapters.py:",
    adapter_misuses_torch: "conformance/engines/adapters.py:",
    stand_in_lacks_an_attribute: "which uses Slotproof's EngineSide",
    fields_of_a_stand_in_do_not_suffice: "which uses Slotproof's StandIn",
    stand_in_takes_other_arguments: "which uses Slotproof's drives",
    method_of_a_stand_in_takes_other_arguments: "which uses Slotproof's _Calls.begin_group",
    kernels_cannot_be_run: "conformance/engines/array_tl/memory.py:",
    engine_turns_it_into_its_own: "conformance/engines/adapters.py:",
    engine_fails_because_of_it: "conformance/engines/adapters.py:",
}


@pytest.mark.parametrize("does", THE_ENGINES)
def test_an_exception_of_the_engine_is_a_finding(does: Does) -> None:
    with pytest.raises(Finding) as caught:
        _sent_to_engine(EngineCall("alloc", does))
    assert caught.value.law == ANSWERED
    assert "alloc raised" in caught.value.detail


@pytest.mark.parametrize("does", SLOTPROOFS)
@pytest.mark.parametrize("allowed", [{}, {"declinable": True}, {"refusable": True}])
def test_an_exception_of_ours_is_no_verdict(does: Does, allowed: dict[str, Any]) -> None:
    with pytest.raises(EngineError) as caught:
        _sent_to_engine(EngineCall("alloc", does, **allowed))
    said = str(caught.value)
    assert said.startswith("no verdict: alloc failed in Slotproof's own code, at ")
    assert said.endswith("please report this line")
    assert SLOTPROOFS[does] in said
    assert "\n" not in said


@pytest.mark.parametrize("does", SLOTPROOFS)
def test_an_exception_of_ours_is_no_clear_error_for_bad_input(does: Does) -> None:
    law: Any = SimpleNamespace(counts=Counter())
    with pytest.raises(EngineError, match="free_again failed in Slotproof's own code"):
        _sent_to_engine(refusing(does, law, "free_again"))


def test_an_engine_may_decline_and_refuse() -> None:
    law: Any = SimpleNamespace(counts=Counter())
    assert _sent_to_engine(EngineCall("begin", engine_fails, declinable=True)) is REFUSAL
    assert _sent_to_engine(EngineCall("alloc", adapter_says_out_of_memory, refusable=True)) is REFUSAL
    assert _sent_to_engine(refusing(engine_misuses_itself, law, "free_again")) is None


@pytest.mark.parametrize("does", SLOTPROOFS)
def test_two_engines_do_not_disagree_because_an_adapter_failed(does: Does) -> None:
    law = side_by_side.Agreement("both_agree", "Both agree.", ("clear",))
    good, bad = (SimpleNamespace(lacks=(), fragile=False, clear=clear) for clear in (list, does))
    for one, other in ((good, bad), (bad, good)):
        pair = side_by_side.SideBySide(
            side_by_side.EngineSide("one", one), side_by_side.EngineSide("other", other), law
        )
        with pytest.raises(EngineError, match="clear failed in Slotproof's own code"):
            pair.clear()


# Whole engines.


def test_an_exception_in_our_implementation_is_a_finding() -> None:
    def make(config: Json) -> Any:
        adapter: Any = registry.load("ours").makers["allocator"](config)
        adapter.engine.held = None
        return adapter

    found = check("allocator", make, Search(20))
    assert (found.verdict, found.law) == (VIOLATION, ANSWERED)


def test_an_exception_in_an_engine_of_this_package_is_a_finding() -> None:
    engine = toy.ToyAllocator(4, 0)
    with pytest.raises(Finding, match="extend raised ZeroDivisionError"):
        _sent_to_engine(EngineCall("extend", lambda: engine.extend([0], [1], [0])))


def test_who_is_an_engine() -> None:
    for module in (calls, side_by_side, memory, sglang):
        assert exception_origin.drives(module.__name__)
    for module in (toy, a_fault):
        assert not exception_origin.drives(module.__name__)
    assert not exception_origin.drives("conformance_of_a_user")
    assert not exception_origin.drives("impl.allocator")


ENGINE = """
from conformance.engines.adapters import PoolAdapter

class Allocator:
    def __init__(self, size): self.size = size
    free_pages = release_pages = __import__("torch").arange(1, 9)
    def available_size(self): return 8
    def alloc_extend(self, before, after): pass
    alloc_decode = alloc = free = free_group_begin = free_group_end = clear = alloc_extend

def make(config) -> "AllocatorEngine":
    return PoolAdapter(Allocator(config["size"]), config["page_size"], lacks=("backup", "restore", "bad"))
"""


@pytest.mark.soak
def test_the_command_ends_with_3_and_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "driven_badly.py").write_text(ENGINE)
    command = ["check", "driven_badly:make", "allocator", "--source", ".", "--examples", "5"]
    done = subprocess.run(
        [sys.executable, "-m", "slotproof", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done
    assert "failed in Slotproof's own code, at conformance/engines/adapters.py:" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_engine_that_cannot_be_built_says_where() -> None:
    def make(_: Json) -> Any:
        engine_fails()

    said = (
        rf"toy, allocator: the engine cannot be built: AssertionError: out of luck \({__file__}:\d+\), for .*'size': 4"
    )
    with pytest.raises(EngineError, match=said):
        told_where_it_fails(make, "toy, allocator")({"size": 4})


def test_a_maker_of_slotproof_that_fails_is_no_fault_of_the_engine() -> None:
    def make(config: Json) -> Any:
        return PoolAdapter(config, 1, 2, 3, 4, 5)  # type: ignore[arg-type]

    def refuse(_: Json) -> Any:
        raise Unsupported("no such pool")

    with pytest.raises(TypeError):
        told_where_it_fails(make, "toy, allocator")({"size": 4})
    with pytest.raises(Unsupported):
        told_where_it_fails(refuse, "toy, allocator")({"size": 4})


def test_the_engines_of_this_repository_are_built_so(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"allocator": lambda _: engine_fails()}
    found = registry.load("toy")
    monkeypatch.setattr(type(registry.plugin("toy")), "load", lambda *_, **__: replace(found, makers=broken))
    with pytest.raises(EngineError, match="toy, allocator: the engine cannot be built: AssertionError: out of luck"):
        registry.load("toy").makers["allocator"]({"size": 4})
