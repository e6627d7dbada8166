"""The driver: one snapshot after each call, a judgement after each snapshot, laws before refusals, promises in words;
and nothing is let through because laws are evaluated where something has changed.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
from driven import RIGHT, SOAK, driven, sampled

from conformance.driver import lockstep
from conformance.driver.lockstep import (
    ANSWERED,
    ENOUGH,
    INVARIANT,
    PROMISE,
    QUIESCENT,
    REFUSAL,
    EngineCall,
    Finding,
    LockStep,
)
from conformance.driver.protocol import Json, Misuse, OutOfMemory
from conformance.driver.shadow import READS_OWN
from conformance.driver.trace import Trace
from conformance.engines import registry, toy
from conformance.planted.faults.kept import kept_run
from conformance.planted.faults.known_bugs import FAULTS
from conformance.search.check import Search, check
from conformance.stems.stem_registry import STEMS, start
from conformance.traces import trace_files

OURS = registry.load("ours").makers
SMALL: Json = {"page_size": 1, "size": 3, "rows": 2, "need_sort": False}
# For each fault a short run that shows it, as conformance.search.check has found and shrunk it.


class Logged:
    """An engine that writes down what is asked of it: ``e`` for a call, ``R`` for a snapshot. Each judgement
    asks for its KV events, which is not written down.
    """

    def __init__(self, engine: Any) -> None:
        self.engine, self.log = engine, ""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.engine, name)
        if not callable(found):
            return found

        def call(*arguments: Any) -> Any:
            self.log += {"snapshot": "R", "cache_snapshot": "R", "published": ""}.get(name, "e")
            return found(*arguments)

        return call


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Callable[[Json], Logged]]:
    """Makes engines that write down, beside what is asked of them, ``C`` for each call that the driver sends and ``J``
    for each judgement.
    """
    answer, judge = LockStep._answer, LockStep.judge

    def answering(self: Any, call: EngineCall) -> Any:
        self.run.engine.log += "C"
        return answer(self, call)

    def judging(self: Any, op: str) -> None:
        self.run.engine.log += "J"
        judge(self, op)

    monkeypatch.setattr(LockStep, "_answer", answering)
    monkeypatch.setattr(LockStep, "judge", judging)
    return lambda stem: lambda config: Logged(RIGHT[stem](config))


@pytest.mark.parametrize("stem", STEMS)
def test_each_call_is_followed_by_one_snapshot_and_a_judgement(
    stem: str, logged: Callable[[str], Callable[[Json], Logged]]
) -> None:
    """One read before the first call, one after each, and all is judged before the next one is sent. (A trim that gives
    nothing back is a call of the caller that asks nothing of the engine.)
    """
    made: list[Logged] = []

    def make(config: Json) -> Logged:
        made.append(logged(stem)(config))
        return made[-1]

    assert check(stem, make, Search(examples=12)).steps > 50
    assert sum(engine.log.count("C") for engine in made) > 50
    for engine in made:
        assert re.fullmatch("R(Ce*RJ|J)*", engine.log), engine.log
        assert engine.log.count("R") == engine.log.count("C") + 1


def test_an_operation_of_several_calls_is_judged_between_them(
    logged: Callable[[str], Callable[[Json], Logged]],
) -> None:
    config = {**SMALL, "size": 6, "size_swa": 6, "window": 2, "sessions": 1, "components": ["full", "swa"]}
    lock = start("cache", logged("cache"), config)
    engine: Any = lock.run
    lock.do("admit", request=0, more=3)
    assert engine.engine.log == "R" + "CeRJ" * 2, "the admission, and the prompt that goes to the tree"
    lock.do("decode", requests=[0], slide=True)
    assert engine.engine.log == "R" + "CeRJ" * 4, "the window moves, then a token"


def test_what_is_wrong_after_the_first_of_several_calls_is_found_there() -> None:
    def make(config: Json) -> Any:
        engine = OURS["cache"](config)
        slide = engine.slide

        def slides_and_leaks(request: int) -> None:
            slide(request)
            engine.pools.alloc(1)

        engine.slide = slides_and_leaks
        engine.decode = lambda *_: pytest.fail("the driver went on")
        return engine

    config = {**SMALL, "size": 6, "size_swa": 6, "window": 2, "sessions": 1, "components": ["full", "swa"]}
    lock = start("cache", make, config)
    lock.do("admit", request=0, more=3)
    with pytest.raises(Finding, match="no_leak"):
        lock.do("decode", requests=[0], slide=True)


def test_a_misuse_leaves_the_engine_unread(logged: Callable[[str], Callable[[Json], Logged]]) -> None:
    lock = start("allocator", logged("allocator"), SMALL)
    run: Any = lock.run
    for op in ("nosuch", "restore"):
        with pytest.raises(Misuse):
            lock.do(op)
    assert run.engine.log == "R"


class Refuses(toy.ToyAllocator):
    """Grants nothing. ``loses``: and loses a page each time."""

    loses = False

    def extend(self, *_: Any) -> None:
        """Out of memory."""
        if self.loses:
            self.free_pages.pop()


def refusing(loses: bool) -> LockStep:
    """A run on a toy that refuses."""

    def make(config: Json) -> Refuses:
        made = Refuses(config["size"], config["page_size"])
        made.loses = loses
        return made

    return start("allocator", make, SMALL)


def test_a_call_that_fits_and_is_refused_is_found_last_since_a_leak_may_be_the_reason() -> None:
    with pytest.raises(Finding, match="alloc_extend said out of memory") as caught:
        refusing(loses=False).do("extend", rows=[0], more=[1])
    assert (caught.value.law, caught.value.latent) == (ENOUGH, True)
    with pytest.raises(Finding) as caught:
        refusing(loses=True).do("extend", rows=[0], more=[1])
    assert (caught.value.law, caught.value.kind, caught.value.latent) == ("no_leak", INVARIANT, False)


def test_a_run_that_is_not_strict_goes_on_after_a_latent_finding() -> None:
    lock = refusing(loses=False)
    lock.law.strict = False
    lock.do("extend", rows=[0], more=[1])
    assert [latent.law for latent in lock.law.latents] == [ENOUGH]
    lock.do("clear")


def test_out_of_memory_is_an_answer_and_any_other_error_a_finding() -> None:
    def out_of_memory() -> None:
        raise OutOfMemory

    def crash() -> None:
        raise IndexError("list index\nout of range")

    lock = refusing(loses=False)
    assert lock._answer(EngineCall("alloc", out_of_memory, refusable=True)) is REFUSAL
    with pytest.raises(Finding, match="free raised OutOfMemory"):
        lock._answer(EngineCall("free", out_of_memory))
    with pytest.raises(Finding, match="alloc raised IndexError: list index") as caught:
        lock._answer(EngineCall("alloc", crash))
    assert caught.value.law == ANSWERED


def test_a_snapshot_that_raises_is_a_finding() -> None:
    lock = refusing(loses=False)
    engine: Any = lock.run
    engine = engine.engine
    engine.snapshot = lambda: dict[str, int]()["pages"]
    with pytest.raises(Finding, match="snapshot raised KeyError") as caught:
        lock.do("clear")
    assert caught.value.law == ANSWERED


def test_arguments_that_no_operation_has_are_a_misuse() -> None:
    with pytest.raises(Misuse, match="unexpected keyword argument 'same'"):
        refusing(loses=False).do("clear", same=True)


def test_a_call_that_kills_the_process_is_a_finding_and_the_process_lives() -> None:
    lock = refusing(loses=False)
    with pytest.raises(Finding, match="alloc killed the process: SIGKILL"):
        lock._answer(EngineCall("alloc", lambda: os.kill(os.getpid(), signal.SIGKILL), risky=True))
    assert lock._answer(EngineCall("alloc", lambda: 7, risky=True)) == 7


def test_a_broken_promise_says_which_sentence_is_false_and_for_what() -> None:
    kept = trace_files.load("insert_under_reader").trace
    finding = replayed(kept, FAULTS["insert_under_reader"].make)
    assert isinstance(finding, Finding)
    assert (finding.law, finding.kind) == ("revive_tombstone", PROMISE)
    assert finding.detail == UNDER_READER
    for name in FAULTS:
        finding = replayed(trace_of(name), FAULTS[name].make)
        assert isinstance(finding, Finding)
        if finding.kind == PROMISE:
            form = r'\w+ broke a promise of (\w+): "[^"]+"( and "[^"]+")* (is|are) false: .+'
            said = re.fullmatch(form, finding.detail)
            assert said is not None, finding.detail
            assert said[1] == finding.law


UNDER_READER = (
    'admit broke a promise of revive_tombstone: "nobody holds the node" is false: '
    "row 1 (request 1), node [1000] (held by row 0 (request 0))"
)


# Laws where something has changed, against all laws at every judgement.


def trace_of(name: str) -> Trace:
    """The run that shows a fault."""
    return kept_run(FAULTS[name]).trace


def replayed(trace: Trace, make: Callable[[Json], Any]) -> Finding | None:
    """What a strict replay finds; its trace is as long as it came."""
    lock = start(trace.stem, make, trace.config)
    for step in trace.steps:
        try:
            lock.do(**step)
        except Finding as finding:
            return finding
    return None


def told(finding: Finding | None) -> tuple[Any, ...]:
    """All that a finding says."""
    assert finding is not None
    return finding.law, finding.kind, finding.sentence, finding.detail, finding.latent


@pytest.mark.soak(but=2)
@pytest.mark.parametrize("stem", sampled(STEMS, 2))
def test_our_engines_conform_with_every_law_at_every_judgement(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    default = check(stem, RIGHT[stem], Search(examples=12))
    monkeypatch.setattr(lockstep, "OFTEN", 1)
    assert check(stem, RIGHT[stem], Search(examples=12)) == default


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_at_the_same_step_with_every_law_at_every_judgement(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for often in (lockstep.OFTEN, 1):
        monkeypatch.setattr(lockstep, "OFTEN", often)
        trace = trace_of(name)
        lock = start(trace.stem, FAULTS[name].make, trace.config)
        for step in trace.steps[:-1]:
            lock.do(**step)
        with pytest.raises(Finding) as caught:
            lock.do(**trace.steps[-1])
        found.append(told(caught.value))
    assert found[0] == found[1]
    stem = lock.law.stem
    assert found[0][0] in {*stem.invariants, *stem.transitions, *lock.run.operations, READS_OWN, QUIESCENT}


REPLAY = """
    import json, sys
    from conformance.driver import lockstep
    from conformance.search import replay
    from conformance.traces import trace_files as traces
    from conformance.engines.registry import load

    loaded = load("sglang", release=sys.argv[1])
    said = []
    for often in (lockstep.OFTEN, 1):
        lockstep.OFTEN = often
        said.append([replay.row(traces.load(name), loaded) for name in traces.names()[:: int(sys.argv[2])]])
    print(json.dumps(said))
"""


@pytest.mark.soak
@pytest.mark.engine
def test_kept_traces_show_the_same_with_every_law_at_every_judgement() -> None:
    """All traces in ``make soak``, and every sixth here."""
    stride = "1" if SOAK else "6"
    answer: Any = driven("0.5.12", REPLAY, stride)
    default, every = answer
    for row in (*default, *every):
        row["detail"] = re.sub(r"node\.id=\d+", "node.id", row["detail"])  # the release counts its nodes on
    assert default == every
    assert len({row["law"] for row in default}) > 6
