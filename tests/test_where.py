"""Where in the engine: the functions that an operation called, and the frames of an exception or a death."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conformance.driver.lockstep import Finding, killed_by
from conformance.driver.trace import Trace
from conformance.engines import registry, toy
from conformance.engines.toy import ToyAllocator
from conformance.stems.stem_registry import start
from conformance.telling.tell import tell
from conformance.telling.where import CallRecorder, Frame, Roots, raised

ENGINE = """
import os
import signal

from conformance.engines.toy import ToyAllocator

class Pool(ToyAllocator):
    def extend(self, before, after, last):
        for _ in range(3):
            self.step()
        list(self.pages_of())
        [self.step() for _ in range(2)]
        return super().extend(before, after, last)

    def step(self):
        return helper()

    def pages_of(self):
        yield helper()

    def free(self, slots):
        try:
            self.drop(slots)
        except KeyError as error:
            raise ValueError("first line\\n" + "next line\\n" * 9) from error

    def drop(self, slots):
        raise KeyError(
            "no page"
        )

    def snapshot(self):
        helper()
        return super().snapshot()

def helper():
    return max(1, 2)

def die():
    dying()

def dying():
    os.kill(os.getpid(), signal.SIGSEGV)

def make(config):
    return Pool(config["size"], config["page_size"])

def recurse(n):
    return recurse(n - 1) if n else helper()

def wide():
    for n in range(40):
        recurse(n)
"""
CONFIG = {"size": 4, "page_size": 2, "rows": 2, "need_sort": False, "size_swa": 1}
STEPS: list[dict[str, Any]] = [
    {"op": "extend", "rows": [0], "more": [3]},
    {"op": "free", "row": 0, "first": 0, "last": 2},
]
TRACE = Trace("allocator", CONFIG, STEPS)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of a package of its own, with an allocator whose ``free`` raises."""
    folder = tmp_path / "their_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "pools.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("their_package.pools")
    for name in ("their_package", "their_package.pools"):
        sys.modules.pop(name, None)


def line(text: str) -> int:
    """The number of the only line of the engine that has this text."""
    (number,) = (n for n, found in enumerate(ENGINE.splitlines(), start=1) if text in found)
    return number


def names(frames: list[Frame]) -> list[str]:
    return [f"{'-' * (frame.depth - 1)}{frame.function} {frame.times}" for frame in frames]


def test_a_story_names_the_functions_that_each_operation_called(engine: Any) -> None:
    plugin = registry.SimplePlugin("theirs", {"allocator": engine.make})
    loaded = plugin.load(None, None, "cpu")
    assert loaded.roots == (Path(engine.__file__).parent,)
    first, second = tell(TRACE, loaded.makers["allocator"], loaded.roots)
    assert names(first.engine) == [
        "Pool.extend 1",
        *("-Pool.step 3", "--helper 1"),
        *(
            "-Pool.pages_of 1",
            "--helper 1",
            "-Pool.pages_of 1",
        ),  # it runs to its yield, and then to its end
        *("-Pool.step 2", "--helper 1"),
    ]
    assert str(first.engine[0]) == f"pools.py:{line('def extend')} Pool.extend"
    assert str(first.engine[1]) == f"  pools.py:{line('def step')} Pool.step (3 times)"
    assert not any("snapshot" in frame.function for told in (first, second) for frame in told.engine)
    assert names(second.engine) == ["Pool.free 1", "-Pool.drop 1"]


def test_an_exception_is_told_with_its_frames_and_with_what_caused_it(engine: Any) -> None:
    last = tell(TRACE, engine.make, [Path(engine.__file__).parent])[-1]
    assert "free raised ValueError: first line" in last.wrong
    outer, inner = last.raised
    assert outer.what == "ValueError: first line\n" + "next line\n" * 4 + "(5 more lines)"
    assert [str(frame) for frame in outer.frames] == [f"pools.py:{line('raise ValueError')} Pool.free"]
    assert inner.what == "KeyError: 'no page'"
    assert [(f.function, f.line) for f in inner.frames] == [
        ("Pool.free", line("self.drop(slots)")),
        ("Pool.drop", line("raise KeyError(")),
    ]


def test_without_roots_no_function_is_named(engine: Any) -> None:
    told = tell(TRACE, engine.make)
    assert [one.engine for one in told] == [[], []]
    assert [one.frames for one in told[-1].raised] == [[], []]
    assert "(outside the engine's code, at pools.py:" in told[-1].raised[0].what


def test_the_functions_in_which_a_process_died_are_named(engine: Any) -> None:
    death = killed_by(engine.die)
    assert death is not None
    assert death.signal == "SIGSEGV"
    finding = Finding("law", "sentence", "detail")
    finding.stack = death.stack
    (told,) = raised(finding, Roots([Path(engine.__file__)]))
    assert told.frames == [
        Frame("pools.py", line("    dying()"), "die", 1),
        Frame("pools.py", line("os.kill("), "dying", 2),
    ]


def test_a_call_that_survives_is_no_death() -> None:
    assert killed_by(lambda: None) is None
    assert killed_by(lambda: 1 // 0) is None


class Fragile(ToyAllocator):
    """It dies where there is no page left."""

    fragile = True

    def extend(self, before: Any, after: Any, last: Any) -> list[int] | None:
        found = super().extend(before, after, last)
        if found is None:
            raise_signal()
        return found


def raise_signal() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGABRT)


def test_a_story_tells_in_which_functions_a_risky_call_died() -> None:
    steps = [{"op": "extend", "rows": [0], "more": [8]}, {"op": "extend", "rows": [1], "more": [1]}]
    make: Callable[[Any], Any] = lambda config: Fragile(config["size"], config["page_size"])  # noqa: E731
    told = tell(Trace("allocator", CONFIG, steps), make, [Path(__file__)])[-1]
    assert "killed the process: SIGABRT" in told.wrong
    assert [frame.function for frame in told.raised[0].frames][-2:] == ["extend", "raise_signal"]


def test_only_a_story_listens_to_calls() -> None:
    seen = []

    class Looking(ToyAllocator):
        def extend(self, before: Any, after: Any, last: Any) -> list[int] | None:
            seen.append(sys.getprofile())
            return super().extend(before, after, last)

    def make(config: Any) -> Looking:
        return Looking(config["size"], config["page_size"])

    before = sys.getprofile()
    start("allocator", make, CONFIG).do(**STEPS[0])
    assert seen == [before]
    tell(TRACE, make, [Path(__file__)])
    assert seen[1] is not before
    assert sys.getprofile() is before


def test_the_listener_goes_where_an_exception_ends_the_block(engine: Any) -> None:
    before, calls = sys.getprofile(), CallRecorder(Roots([Path(engine.__file__)]))
    with pytest.raises(KeyError), calls.watched():
        engine.make(CONFIG).drop([])
    assert sys.getprofile() is before
    assert names(calls.frames()[0]) == ["make 1", "Pool.drop 1"]


def test_a_generator_that_is_thrown_away_leaves_the_depth_as_it_was(engine: Any) -> None:
    calls, pool = CallRecorder(Roots([Path(engine.__file__)])), engine.make(CONFIG)
    waiting = pool.pages_of()
    next(waiting)
    with calls.watched():
        waiting.close()
        pool.step()
    assert names(calls.frames()[0])[-2:] == ["Pool.step 1", "-helper 1"]


def test_deep_calls_are_left_out_and_it_is_said(engine: Any) -> None:
    calls = CallRecorder(Roots([Path(engine.__file__)]))
    with calls.watched():
        engine.recurse(100)
    frames, deeper, _ = calls.frames(shown=5)
    assert names(frames) == [f"{'-' * depth}recurse 1" for depth in range(5)]
    assert deeper
    wide = CallRecorder(Roots([Path(engine.__file__)]))
    with wide.watched():
        engine.wide()
    frames, deeper, _ = wide.frames(shown=5)
    assert (names(frames), deeper) == (["wide 1"], True)
    frames, deeper, _ = wide.frames(shown=41)
    assert (len(frames), deeper) == (41, True)


def test_what_the_driver_calls_is_always_shown(engine: Any) -> None:
    calls = CallRecorder(Roots([Path(engine.__file__)]))
    with calls.watched():
        for n in range(40):
            engine.recurse(n)
    frames, deeper, _ = calls.frames(shown=5)
    assert len(frames) == 40
    assert deeper


# Where an engine's code is.


def test_the_roots_of_makers(engine: Any, tmp_path: Path) -> None:
    assert registry.roots_of([engine.make]) == (tmp_path / "their_package",)
    assert registry.roots_of([partial(partial(engine.make), size=1)]) == (tmp_path / "their_package",)
    assert registry.roots_of([engine.Pool]) == (tmp_path / "their_package",)
    assert registry.roots_of([toy.allocator]) == (Path(toy.__file__),), "not the package of the driver"


def test_engines_say_where_their_code_is() -> None:
    ours = registry.load("ours")
    assert [root.name for root in ours.roots] == ["impl"]
    trace = Trace("allocator", CONFIG, STEPS)
    told = tell(trace, ours.makers["allocator"], ours.roots)
    assert told[0].engine[0].file == "allocator.py"
    assert all(one.engine for one in told)
    named = registry.SimplePlugin("named", {"allocator": toy.allocator}, roots=(Path("/nowhere"),))
    assert named.load(None, None, "cpu").roots == (Path("/nowhere"),)


def test_a_file_is_named_from_its_root(tmp_path: Path) -> None:
    roots = Roots([tmp_path / "a", tmp_path / "one.py"])
    assert roots.relative(str(tmp_path / "a" / "b" / "c.py")) == "b/c.py"
    assert roots.relative(str(tmp_path / "one.py")) == "one.py"
    assert roots.relative(str(tmp_path / "ab" / "c.py")) is None
    assert roots.relative("<string>") is None
