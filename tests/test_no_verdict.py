"""Where an engine uses what is stood in for, there is no verdict, whatever the engine makes of the error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from conformance.driver import no_verdict
from conformance.driver.lockstep import VIOLATION, Finding
from conformance.driver.protocol import EngineError, Json
from conformance.engines import registry
from conformance.search.check import Search, check
from conformance.search.hunt import Hunt, HuntLimits
from conformance.traces import trace_files
from conformance.traces.outcome import Outcome, outcome

WHY = "absent.thing was called, but it is a stub: the package absent is not installed here"
ROOT = Path(__file__).parents[1]
Make = Callable[[Json], Any]


def own(stem: str) -> Make:
    return registry.load(registry.own().name).makers[stem]


def uses_a_stub() -> None:
    raise no_verdict.reason(WHY)


def hides_a_stub() -> None:
    try:
        uses_a_stub()
    except Exception:
        return


def turns_it_into_an_error_of_its_own() -> None:
    try:
        uses_a_stub()
    except Exception as error:
        raise RuntimeError("out of luck") from error


def imports_what_is_not_installed() -> None:
    import not_installed_anywhere  # type: ignore[import-not-found]  # noqa: F401


WAYS = {
    uses_a_stub: WHY,
    hides_a_stub: WHY,
    turns_it_into_an_error_of_its_own: WHY,
    imports_what_is_not_installed: "No module named 'not_installed_anywhere': it cannot be imported here",
}


def spoilt(does: Callable[[], None], call: str, after: int = 3) -> Make:
    """Our allocator, which does this in each such call from the fourth on."""

    def make(config: Json) -> Any:
        engine = own("allocator")(config)
        kind, count = type(engine), [0]

        class Spoilt(kind):  # type: ignore[misc, valid-type]
            pass

        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] > after:
                does()
            return getattr(kind, call)(self, *args, **kwargs)

        setattr(Spoilt, call, called)
        engine.__class__ = Spoilt
        return engine

    return make


@pytest.mark.parametrize("does", WAYS)
@pytest.mark.parametrize("call", ["alloc", "snapshot"])
def test_a_search_ends_without_a_verdict(does: Callable[[], None], call: str) -> None:
    with pytest.raises(EngineError) as caught:
        check("allocator", spoilt(does, call), Search(20))
    assert WAYS[does] in str(caught.value)


@pytest.mark.parametrize("does", WAYS)
def test_a_search_beside_a_base_ends_without_a_verdict(does: Callable[[], None]) -> None:
    with pytest.raises(EngineError) as caught:
        Hunt("allocator", spoilt(does, "alloc"), lambda _: Outcome(), HuntLimits(examples=20)).run([], ())
    assert WAYS[does] in str(caught.value)


@pytest.mark.parametrize("does", WAYS)
def test_a_replay_ends_without_a_verdict(does: Callable[[], None]) -> None:
    kept = next(one for one in trace_files.every() if one.trace.stem == "allocator")
    with pytest.raises(EngineError) as caught:
        outcome(kept.trace, spoilt(does, "snapshot", after=0))
    assert WAYS[does] in str(caught.value)


def test_an_engine_that_cannot_be_built_has_no_verdict() -> None:
    def make(config: Json) -> Any:
        hides_a_stub()
        return own("allocator")(config)

    with pytest.raises(EngineError, match="absent is not installed"):
        check("allocator", make, Search(5))


def test_another_exception_is_still_a_finding() -> None:
    def fails() -> None:
        raise RuntimeError("out of luck")

    assert check("allocator", spoilt(fails, "alloc"), Search(20)).verdict == VIOLATION


def test_a_reason_of_an_earlier_call_spoils_no_later_one() -> None:
    hides_a_stub()
    with no_verdict.watched():
        pass
    with pytest.raises(EngineError, match="absent"), no_verdict.watched():
        rests_on_a_stub()


def rests_on_a_stub() -> None:
    with suppress(EngineError), no_verdict.watched():
        hides_a_stub()
    raise Finding("law", "sentence", "rests on a stub")


ENGINE = """
from conformance.driver import no_verdict
from slotproof.plugin import AllocatorSnapshot, load

def make(config) -> "Engine":
    engine = load("ours").makers["allocator"](config)
    known = engine.alloc
    def alloc(*args, **kwargs):
        try:
            raise no_verdict.reason("absent.thing is a stub")
        except Exception:
            return known(*args, **kwargs)
    engine.alloc = alloc
    return engine
"""


@pytest.mark.soak
@pytest.mark.parametrize("more", [[], ["--base", "."]])
def test_the_command_ends_with_3_and_names_what_is_missing(tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "spoilt_engine.py").write_text(ENGINE)
    command = ["check", "spoilt_engine:make", "allocator", "--source", ".", "--examples", "5", *more]
    done = subprocess.run(
        [sys.executable, "-m", "slotproof", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("slotproof: waits for ")]  # a busy machine
    assert (done.returncode, said) == (3, ["slotproof: absent.thing is a stub"]), done.stdout
