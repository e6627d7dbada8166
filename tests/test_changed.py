"""Which functions of an engine have another text than in its base, and how a story shows them first."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from conformance.driver.trace import Trace
from conformance.telling.changed import Changed
from conformance.telling.tell import ToldOperation
from conformance.telling.where import SHOWN, CallRecorder, Frame, Roots
from slotproof.checks import github, junit
from slotproof.console import screen

BEFORE = '''
def limit(n):
    """How many."""
    return n + 1  # one more

class Pool:
    size = 4

    @property
    def free(self):
        return self.size

    @free.setter
    def free(self, value):
        self.size = value

    def take(self, n):
        def least():
            return min(n, 3)
        return least()

    def drop(self):
        pass
'''


def spoken(text: str, *edits: tuple[str, str]) -> str:
    """The text with each edit done; each must change it."""
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


class Pair:
    """An engine in ``now`` beside its base in ``base``."""

    def __init__(self, folder: Path) -> None:
        self.now, self.base = folder / "now", folder / "base"
        self.write("base", "pools.py", BEFORE)

    def write(self, side: str, file: str, text: str) -> None:
        path = getattr(self, side) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def changed(self, file: str = "pools.py") -> dict[str, bool | None]:
        """For each function of a file whether it has changed, by its name and, where two have it, its line."""
        compiled = [compile((self.now / file).read_text(), str(self.now / file), "exec")]
        found: dict[str, bool | None] = {}
        compare = Changed([self.base])
        while compiled:
            code = compiled.pop(0)
            compiled += [const for const in code.co_consts if hasattr(const, "co_code")]
            name = code.co_qualname.replace(".<locals>", "")
            if name in ("<module>", "Pool"):
                continue
            key = name if name not in found else f"{name} again"
            found[key] = compare.has(code.co_filename, file, code.co_firstlineno, name)
        return found


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_only_what_a_function_does_counts(pair: Pair) -> None:
    moved = spoken(BEFORE, ("# one more", "# as the caller asks"), ('"""How many."""', '"""The number."""'))
    pair.write("now", "pools.py", "import os\n\n\n" + moved)
    names = {"limit", "Pool.free", "Pool.free again", "Pool.take", "Pool.take.least", "Pool.drop"}
    assert pair.changed() == dict.fromkeys(names, False)


@pytest.mark.parametrize(
    ("edit", "names"),
    [
        (("n + 1", "n + 2"), {"limit"}),
        (("return self.size", "return self.size - 1"), {"Pool.free"}),
        (("self.size = value", "self.size = value - 1"), {"Pool.free again"}),
        (("min(n, 3)", "min(n, 2)"), {"Pool.take", "Pool.take.least"}),
        (("def drop(self)", "def drop(self, n=0)"), {"Pool.drop"}),
        (("    def drop", "    @staticmethod\n    def drop"), {"Pool.drop"}),
        (("size = 4", "size = 5"), set()),
    ],
)
def test_a_changed_function_is_named(pair: Pair, edit: tuple[str, str], names: set[str]) -> None:
    pair.write("now", "pools.py", spoken(BEFORE, edit))
    assert {name for name, changed in pair.changed().items() if changed} == names


def test_a_function_in_another_file_is_found_by_its_name(pair: Pair) -> None:
    pair.write("now", "deep/other.py", spoken(BEFORE, ("n + 1", "n + 2")))
    assert {name for name, changed in pair.changed("deep/other.py").items() if changed} == {"limit"}


def test_a_function_that_the_base_has_not_is_changed(pair: Pair) -> None:
    pair.write("now", "pools.py", spoken(BEFORE, ("def limit", "def bound")))
    assert {name for name, changed in pair.changed().items() if changed} == {"bound"}


def test_what_cannot_be_read_is_not_known(pair: Pair) -> None:
    pair.write("now", "pools.py", "def broken(:")
    compare = Changed([pair.base])
    assert compare.has(str(pair.now / "pools.py"), "pools.py", 1, "broken") is None
    assert compare.has(str(pair.now / "none.py"), "none.py", 1, "limit") is None


def test_a_base_of_one_file_is_compared(pair: Pair) -> None:
    pair.write("now", "pools.py", spoken(BEFORE, ("n + 1", "n + 2")))
    compare = Changed([pair.base / "pools.py"])
    assert compare.has(str(pair.now / "pools.py"), "pools.py", 2, "limit") is True
    assert compare.has(str(pair.now / "pools.py"), "pools.py", 22, "Pool.drop") is False


# In a story.

DEEP = (
    "def top():\n    for n in range(30):\n        [f0, f1][n % 2](n)\n    down(9)\n"
    "def f0(n):\n    pass\ndef f1(n):\n    pass\n"
    "def down(n):\n    return down(n - 1) if n else culprit()\n"
    "def culprit():\n    return {}\n"
)


@pytest.fixture
def deep(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[CallRecorder]:
    """The calls of an engine whose changed function is called far below what is shown."""
    pair.write("base", "engine_of_depths.py", DEEP.format(1))
    pair.write("now", "engine_of_depths.py", DEEP.format(2))
    monkeypatch.syspath_prepend(pair.now)
    import engine_of_depths  # type: ignore[import-not-found]

    calls = CallRecorder(Roots([pair.now], Changed([pair.base])))
    with calls.watched():
        engine_of_depths.top()
    yield calls
    sys.modules.pop("engine_of_depths")


def told_of(calls: CallRecorder) -> ToldOperation:
    engine, deeper, below = calls.frames()
    return ToldOperation("top()", "nothing", "law x. It broke.", {}, engine, deeper, below)


def test_a_changed_function_far_below_is_found_and_shown_first(
    deep: CallRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, deeper, below = deep.frames()
    assert ([frame.function for frame in engine], deeper) == (["top"], True), "30 calls are more than are shown"
    assert len(engine) < SHOWN
    assert [(frame.function, frame.changed) for frame in below] == [
        *(("f0", False), ("f1", False), ("down", False)),
        ("culprit", True),
    ]
    assert (below[-1].depth, below[0].depth) == (12, 2)
    assert [frame.function for frame in told_of(deep).functions] == ["culprit", "top", "f0", "f1", "down"]
    page = Console(width=120, record=True, file=io.StringIO())
    monkeypatch.setattr(screen, "console", page)
    screen.story(Trace("allocator", {}, [{"op": "top"}]), [told_of(deep)], "test")
    said = page.export_text()
    assert "changed: engine_of_depths.py:11 culprit" in said
    assert "… and 4 functions that did not change (--json lists them)" in said
    assert "f1" not in said
    assert screen.UNCHANGED[:30] not in said


def test_where_no_called_function_changed_all_are_shown_and_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    same = [Frame("pools.py", 3, "take", changed=False)]
    screen.story(Trace("allocator", {}, [{"op": "top"}]), [ToldOperation("top()", "nothing", "", {}, same)], "test")
    said = " ".join(capsys.readouterr().out.split())
    assert "pools.py:3 take" in said
    assert screen.UNCHANGED in said
    alone = [Frame("pools.py", 3, "take")]
    screen.story(Trace("allocator", {}, [{"op": "top"}]), [ToldOperation("top()", "nothing", "", {}, alone)], "test")
    assert screen.UNCHANGED not in " ".join(capsys.readouterr().out.split()), "there is no base"


def frame(function: str, line: int, changed: bool, depth: int = 1) -> dict[str, object]:
    return {"file": "pools.py", "line": line, "function": function, "depth": depth, "times": 1, "changed": changed}


def test_an_annotation_stands_at_the_changed_function(tmp_path: Path) -> None:
    (tmp_path / "pools.py").touch()
    first = {"engine": [frame("take", 3, False)], "below": [frame("grow", 9, True, 3)], "raised": []}
    last = {"engine": [frame("free", 5, False, 2)], "below": [], "raised": []}
    report = {"subject": {"source": str(tmp_path), "own": False, "roots": [str(tmp_path)]}}
    row = {"story": [first, last]}
    assert [found["function"] for found in junit.changed(row)] == ["grow"]
    assert github.place(row, report) == ("pools.py", 9)
    raised = {"what": "KeyError", "frames": [frame("free", 6, False)]}
    assert github.place({"story": [first, {**last, "raised": [raised]}]}, report) == ("pools.py", 6)
    first["below"] = []
    assert github.place(row, report) == ("pools.py", 5)
