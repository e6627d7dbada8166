"""An engine that a user names by its place, ``package.module:attribute``: how it is found, and what is said where its
class is not what the Protocol asks for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from driven import RIGHT

from conformance.driver.lockstep import CONFORMS, VIOLATION
from conformance.driver.protocol import EngineError, Json
from conformance.engines import registry, toy
from conformance.engines.named import SAMPLE
from conformance.engines.ours import MAKERS
from conformance.search.check import Search, check
from conformance.stems.allocator.protocol import AllocatorSnapshot
from conformance.stems.stem_registry import STEMS
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot
from conformance.stems.vetting import ROWS, vetted

ROOT = Path(__file__).resolve().parents[1]
TOY = (ROOT / "conformance" / "engines" / "toy.py").read_text(encoding="utf-8")
LEAKING = TOY.replace("leaks: bool = False", "leaks: bool = True")
POOL: Json = {"page_size": 2, "size": 4, "rows": 2, "need_sort": False}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, empty. What is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def written(path: Path, text: str = TOY) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def slotproof(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command, with this checkout's code."""
    command, env = [sys.executable, "-m", "slotproof", *words], {**ENV, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=env)


ENV = {"PATH": "/usr/bin:/bin", "CI": "1", "NO_COLOR": "1"}


# How it is found.


@pytest.mark.parametrize("attribute", ["allocator", "PLUGIN", "PLUGIN.makers", "BY_STEM", "Small"])
def test_a_maker_a_plugin_a_dict_and_a_class_are_engines(attribute: str, folder: Path) -> None:
    more = (
        'BY_STEM = {"allocator": allocator}\n'
        "class Small(ToyAllocator):\n"
        "    def __init__(self, config: Json) -> None:\n"
        '        super().__init__(config["size"], config["page_size"])\n'
    )
    written(folder / "mine" / "cache_a.py", TOY + more)
    loaded = registry.load(f"mine.cache_a:{attribute}")
    assert list(loaded.makers) == ["allocator"]
    assert not loaded.own
    assert check("allocator", loaded.makers["allocator"], Search(examples=5)).verdict == CONFORMS


def test_a_leak_is_found_in_an_engine_that_is_named_by_its_place(folder: Path) -> None:
    written(folder / "leaking.py", LEAKING)
    loaded = registry.load("leaking:allocator")
    assert check("allocator", loaded.makers["allocator"], Search(examples=50)).verdict == VIOLATION


def test_a_stem_that_is_not_clear_is_asked_for(folder: Path) -> None:
    written(folder / "unclear.py", TOY + "\ndef picky(config):\n    return ToyAllocator(config['pages'], 1)\n")
    with pytest.raises(
        EngineError, match=r"which stem is it for\? Name it, for example .* stems: allocator, swa_"
    ) as e:
        registry.load("unclear:picky")
    assert "KeyError: 'pages' (" in str(e.value)
    assert list(registry.load("unclear:picky", stems=("allocator",)).makers) == ["allocator"]
    written(folder / "annotated.py", TOY + "\ndef picky(config) -> ToyAllocator:\n    raise KeyError\n")
    assert list(registry.load("annotated:picky").makers) == ["allocator"]


def test_the_stem_of_our_own_makers_is_told_by_what_they_build() -> None:
    from conformance.engines import named

    expected = {stem: [stem] for stem in MAKERS} | {stem: ["session_trim", "cache"] for stem in ROWS}
    makers = registry.load("ours").makers
    assert {stem: list(named.makers(make, "ours:make", ())) for stem, make in makers.items()} == expected


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_engin:make", r"no module 'my_engin' in /.*, and none is installed: did you mean my_engine\?"),
        ("nothing_like_it:make", r"no module 'nothing_like_it' in .*, and none is installed$"),
        ("my_engine.nosuch:make", r"no module 'my_engine.nosuch'"),
        ("my_engine:alocator", r"my_engine \(/.*\) has no 'alocator': did you mean allocator"),
        ("my_engine:ToyAllocator.frea", "did you mean free"),
        ("my_engine.py:make", r"name the module, not its file: did you mean my_engine:make\?"),
        ("lib/my_engine.py:make", r"did you mean my_engine:make --source lib\?"),
        ("my_engine:", r"expected package.module:attribute"),
        (":make", r"expected package.module:attribute"),
        ("my-engine:make", r"expected package.module:attribute"),
        ("my_engine:NUMBER", r"is of type int: expected a function that takes a configuration"),
        ("my_engine:WRONG", r"has an entry for 'alocator', which is no stem: did you mean allocator\?"),
        ("my_engine:EMPTY", r"is an empty dict"),
        ("my_engine:NO_MAKER", r"\['allocator'\] is of type int: expected a maker"),
        ("my_engine:nothing", r"snapshot|no method `snapshot`"),
        (
            "needs:make",
            r"needs cannot be imported: ModuleNotFoundError: No module named 'nosuch_package' \(.*needs.py:1\)",
        ),
        ("typo:make", r"typo cannot be imported: SyntaxError: .* \(.*typo.py:1\)$"),
        ("leaves:make", r"leaves cannot be imported: SystemExit: 3 \(.*leaves.py:1\)"),
    ],
)
def test_what_cannot_be_imported_is_one_clear_line(name: str, said: str, folder: Path) -> None:
    more = (
        'NUMBER, EMPTY, NO_MAKER = 3, {}, {"allocator": 3}\nWRONG = {"alocator": allocator}\n'
        "def nothing(config):\n    return None\n"
    )
    written(folder / "my_engine.py", TOY + more)
    written(folder / "needs.py", "import nosuch_package\n")
    written(folder / "typo.py", "def make(:\n")
    written(folder / "leaves.py", "raise SystemExit(3)\n")
    with pytest.raises(EngineError, match=said) as error:
        registry.load(name)
    assert "\n" not in str(error.value)


def test_the_command_ends_with_3_and_one_line(folder: Path) -> None:
    written(folder / "my_engine.py")
    done = slotproof("check", "my_engin:allocator", cwd=folder)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1
    assert "did you mean my_engine?" in done.stderr


# From which folder.


def test_a_source_folder_comes_before_the_current_one(folder: Path) -> None:
    written(folder / "pool_a.py")
    written(folder / "new" / "pool_a.py", LEAKING)
    loaded = registry.load("pool_a:allocator", source=folder / "new")
    assert check("allocator", loaded.makers["allocator"], Search(examples=50)).verdict == VIOLATION


def test_a_src_folder_of_the_source_is_looked_into(folder: Path) -> None:
    written(folder / "checkout" / "src" / "pool_b" / "__init__.py")
    assert list(registry.load("pool_b:allocator", source=folder / "checkout").makers) == ["allocator"]


def test_a_source_that_is_not_used_is_no_source(folder: Path) -> None:
    written(folder / "pool_c.py")
    (folder / "empty").mkdir()
    make = registry.load("pool_c:allocator", source=folder / "empty").makers["allocator"]
    with pytest.raises(EngineError, match=r"pool_c:allocator imported nothing from there; its engine is from .*pool_c"):
        make(POOL)


def test_an_adapter_may_stand_outside_the_source(folder: Path) -> None:
    written(
        folder / "adapter_a.py", "def make(config):\n    from inner_a import allocator\n    return allocator(config)\n"
    )
    written(folder / "new" / "inner_a.py")
    registry.load("adapter_a:make", source=folder / "new").makers["allocator"](POOL)


def test_a_registered_engine_is_imported_from_a_source_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("other", "pool_d:PLUGIN", registry.GROUP)]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == registry.GROUP else [])
    written(folder / "new" / "pool_d.py", LEAKING)
    loaded = registry.load("other", source=folder / "new")
    assert check("allocator", loaded.makers["allocator"], Search(examples=50)).verdict == VIOLATION


def test_releases_and_devices_that_it_does_not_have_are_refused(folder: Path) -> None:
    written(folder / "pool_e.py")
    with pytest.raises(EngineError, match=r"--release 1.0: pool_e:allocator has no releases; --source names"):
        registry.load("pool_e:allocator", release="1.0")
    with pytest.raises(EngineError, match=r"no device 'tpu'"):
        registry.load("pool_e:allocator", device="tpu")


@pytest.mark.soak
def test_two_folders_are_compared(folder: Path) -> None:
    written(folder / "old" / "pool_f.py")
    written(folder / "new" / "pool_f.py", LEAKING)
    words = ("check", "pool_f:allocator", "--examples", "20", "--json", "out.json")
    done = slotproof(*words, "--source", "new", "--base", "old", cwd=folder)
    report = json.loads((folder / "out.json").read_text())
    assert (done.returncode, {row["stem"] for row in report["new"]}) == (1, {"allocator"}), done.stderr
    done = slotproof(*words, "--source", "old", "--base", "old", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "empty").mkdir()
    written(folder / "pool_f.py")
    done = slotproof(*words, "--source", "new", "--base", "empty", cwd=folder)
    assert done.returncode == 3
    assert "imported nothing from there" in done.stderr


@pytest.mark.soak
def test_our_own_implementation_is_imported_from_a_folder(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from conformance.engines import registry; "
        "loaded = registry.load('ours', source=Path(sys.argv[1])); import impl.allocator; "
        "print(impl.allocator.__file__); loaded.makers['allocator'](dict(page_size=2, size=4, rows=2, need_sort=False))"
    )

    def run(source: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, str(source)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    for path in sorted((ROOT / "impl").glob("*.py")):
        written(folder / "new" / "impl" / path.name, path.read_text(encoding="utf-8"))
    done = run(folder / "new")
    assert done.stdout.strip() == str(folder / "new" / "impl" / "allocator.py"), done.stderr
    (folder / "new" / "impl" / "allocator.py").write_text("")
    assert "impl cannot be driven from here: ImportError" in run(folder / "new").stderr
    assert "expected our implementation in a package impl/" in run(folder).stderr
    with pytest.raises(EngineError, match="this process has impl from"):
        registry.load("ours", source=folder / "new")


# What its class gets wrong.


class Whole(toy.ToyAllocator):
    """The toy allocator with its maker's arguments."""

    def __init__(self, config: Json) -> None:
        super().__init__(config["size"], config["page_size"])


class NoLacks(Whole):
    lacks = None  # type: ignore[assignment]


class LacksAWord(Whole):
    lacks = "bad"  # type: ignore[assignment]


class LacksATypo(Whole):
    lacks = ("aloc", "begin_group", "end_group", "backup", "restore", "bad")


class LacksSnapshot(Whole):
    lacks = (*toy.ToyAllocator.lacks, "snapshot")  # type: ignore[assignment]


class NoFragile(Whole):
    fragile = None  # type: ignore[assignment]


class NoFree(Whole):
    free = None  # type: ignore[assignment]


class FewArguments(Whole):
    def decode(self, after: Any) -> Any:  # type: ignore[override]
        return super().decode(after, [])


class NoneSnapshot(Whole):
    def snapshot(self) -> Any:
        return None


class TupleSnapshot(Whole):
    def snapshot(self) -> Any:
        return list(self.free_pages), [], 0


class FloatInSnapshot(Whole):
    def snapshot(self) -> Any:
        return AllocatorSnapshot([*self.free_pages[:-1], 4.0], [], 8)  # type: ignore[list-item]


class OtherSnapshot(Whole):
    def snapshot(self) -> Any:
        pool = super().snapshot()
        return SwaMappingSnapshot(pool, pool, [])


class RaisingSnapshot(Whole):
    def snapshot(self) -> Any:
        return self.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (NoLacks, r"NoLacks has no attribute `lacks`: expected a tuple of the calls"),
        (LacksAWord, r"LacksAWord has `lacks` = 'bad': expected a tuple"),
        (LacksATypo, r"LacksATypo.lacks names 'aloc', which is no call of the stem allocator: did you mean alloc\?"),
        (LacksSnapshot, r"LacksSnapshot.lacks names 'snapshot', which no engine of the stem allocator can lack"),
        (NoFragile, r"NoFragile has no attribute `fragile`: expected True"),
        (NoFree, r"NoFree is no AllocatorEngine \(stem allocator\): it has no free, and `lacks` does not name them"),
        (FewArguments, r"FewArguments.decode\(after: 'Any'\) -> 'Any' does not take \(after, last\): too many"),
        (NoneSnapshot, r"NoneSnapshot.snapshot answered None, expected AllocatorSnapshot"),
        (TupleSnapshot, r"TupleSnapshot.snapshot answered \(\[1, 2, 3, 4\], \[\], 0\), expected AllocatorSnapshot"),
        (
            FloatInSnapshot,
            r"FloatInSnapshot.snapshot answered .*, expected AllocatorSnapshot: free\[3\] is of type fl",
        ),
        (
            OtherSnapshot,
            r"OtherSnapshot.snapshot .*, expected AllocatorSnapshot: free is of type SwaMappingSnapshot",
        ),
        (
            RaisingSnapshot,
            r"RaisingSnapshot.snapshot raised AttributeError: .*nothing.* \(.*\.py:\d+\) on a new engine",
        ),
        (lambda _: None, r"the maker returned None, expected an object like AllocatorEngine \(stem allocator\)"),
        (lambda _: Whole, r"the maker returned <class .*>, expected an object like AllocatorEngine"),
        (lambda config: config["nothing"], r"the maker raised KeyError: 'nothing' \(.*\) for the configuration"),
    ],
)
def test_what_a_class_gets_wrong_is_told_when_it_is_built(make: Callable[[Json], Any], said: str) -> None:
    with pytest.raises(EngineError, match=said) as error:
        vetted("allocator", make, "mine:make")(POOL)
    assert "\n" not in str(error.value)


class Tensors(Whole):
    def extend(self, *arguments: Any) -> Any:
        import torch

        return torch.tensor(super().extend(*arguments) or [])


class NumpyNumbers(Whole):
    def extend(self, *arguments: Any) -> Any:
        import numpy

        return [numpy.int64(slot) for slot in super().extend(*arguments) or []]


class NoAnswer(Whole):
    def extend(self, *arguments: Any) -> Any:
        super().extend(*arguments)
        return 7


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Tensors, r"Tensors.extend answered tensor\(\[.*\]\), expected list\[int\] \| None"),
        (NumpyNumbers, r"NumpyNumbers.extend answered \[.*, expected list\[int\] \| None: \[0\] is of type int64"),
        (NoAnswer, r"NoAnswer.extend answered 7, expected list\[int\] \| None"),
    ],
)
def test_a_wrong_answer_ends_the_check_and_is_no_finding(make: Callable[[Json], Any], said: str) -> None:
    with pytest.raises(EngineError, match=said):
        check("allocator", vetted("allocator", make, "mine:make"), Search(examples=20))


def test_a_mapping_of_a_wrong_length_is_told() -> None:
    def make(config: Json) -> Any:
        made = registry.load("ours").makers["swa_mapping"](config)
        whole = made.snapshot
        made.snapshot = lambda: SwaMappingSnapshot(whole().full, whole().swa, whole().mapping[1:])
        return made

    with pytest.raises(
        EngineError, match=r"snapshot has a mapping with 9 entries, expected 10, one for each full slot"
    ):
        vetted("swa_mapping", make, "mine:make")({**POOL, "size_swa": 3})


@pytest.mark.parametrize("stem", STEMS)
def test_our_own_engines_are_what_the_protocols_ask_for(stem: str) -> None:
    make = vetted(stem, RIGHT[stem], "ours")
    assert make(SAMPLE).lacks is not None
    assert check(stem, make, Search(examples=3)).verdict == CONFORMS
