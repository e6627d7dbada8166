"""The house keeps its shape: a feature is one stem in four folders, and there is one text of every law."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conformance import check
from proofs.registry import STEMS, hints_of
from spec import pair, pool

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("spec", "proofs", "impl", "conformance")
# What is no stem: the files that all stems of a folder share.
SHARED = {
    "spec": {
        *("carried", "finite", "holders", "lengths", "logic", "pair", "pool", "rows", "state_laws", "states"),
        *("tree", "whole"),
    },
    "proofs": {
        *("carried", "counterexample", "explore", "hints", "lemmas", "obligations"),
        *("prover", "registry", "second_solver", "symbols"),
    },
    "impl": {"carried", "checks", "kernels", "paths", "prefixes", "radix", "rows", "slots", "states"},
    "conformance": {
        *(
            "asked",
            "busy_rules",
            "cache_known",
            "cache_nodes",
            "cache_rules",
            "cache_seen",
            "cache_states",
            "cache_steps",
        ),
        *("check", "kept"),
        *("mamba_rules", "pair_seen", "picture", "pools", "replaying", "row_picture", "row_run", "row_seen"),
        *("lock_rules", "machine", "session_busy", "session_rules", "shrink"),
        *("state_picture", "stateful", "states", "story", "tree_pages", "tree_picture", "tree_slots"),
    },
}
# A file of more than LINES lines says why it is not two.
LINES = 300
TRANSITIONS = "the transitions of one state, one after the other"
LONG = {
    "spec/swa_mapping.py": TRANSITIONS,
    "spec/session_trim.py": TRANSITIONS,
    "spec/cache.py": TRANSITIONS,
    "proofs/symbols.py": "the symbolic reading, operation by operation beside spec/finite.py",
    "tests/test_impl_lock_ref.py": "one promise of the class after the other",
    "tests/test_impl_allocator.py": "one promise of the class after the other",
    "tests/test_impl_swa_mapping.py": "one promise of the class after the other",
}


def module_of(folder: str, stem: str) -> ModuleType:
    return import_module(f"{folder}.{stem}")


def sources() -> Iterator[Path]:
    for folder in (*FOLDERS, "slotproof", "benchmarks", "tests"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def functions_of(stem: str) -> list[tuple[str, Any]]:
    law = hints_of(stem).stem
    own = ((name, i.at or i.holds) for name, i in law.invariants.items() if not i.inherited)
    return [*law.transitions.items(), *own]


# Stems.


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("stem", STEMS)
def test_a_stem_is_in_every_folder(folder: str, stem: str) -> None:
    assert (ROOT / folder / f"{stem}.py").is_file()


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_folder_has_a_stem_of_its_own(folder: str) -> None:
    found = {p.stem for p in (ROOT / folder).glob("*.py")} - {"__init__", *SHARED[folder]}
    assert found == set(STEMS), "a new stem belongs into all four folders; a shared file is named in SHARED"


def test_shared_files_exist() -> None:
    gone = [f"{folder}/{name}.py" for folder, names in SHARED.items() for name in names]
    assert [path for path in gone if not (ROOT / path).is_file()] == []


def test_every_stem_is_checked() -> None:
    assert set(check.STEMS) == set(STEMS)


# One text.


@pytest.mark.parametrize("stem", STEMS)
def test_the_oracle_and_the_proofs_use_the_same_functions(stem: str) -> None:
    law, (_, run_class) = module_of("spec", stem), check.STEMS[stem]
    oracle, proved = run_class.stem, hints_of(stem).stem
    assert oracle is proved is law.stem
    for name, transition in proved.transitions.items():
        assert oracle.transitions[name] is transition is getattr(law, name)
    for name, invariant in proved.invariants.items():
        assert oracle.invariants[name].holds is invariant.holds


@pytest.mark.parametrize("stem", STEMS)
def test_every_law_is_a_function_of_the_spec(stem: str) -> None:
    for name, function in functions_of(stem):
        home = inspect.getmodule(function)
        assert home is not None
        assert home.__name__.startswith("spec.")
        assert getattr(home, name) is function


def test_both_stems_share_the_laws_of_a_pool() -> None:
    one, other = (hints_of(stem).stem.invariants for stem in ("allocator", "swa_mapping"))
    for law in pool.LAWS:
        assert one[law.__name__].holds is other[law.__name__].holds is law
    for pair_law in pair.LAWS:
        assert other[pair_law.__name__].holds is pair_law


# What a run can do first; where nothing is said, it clears the pools.
FIRST_CALLS: dict[str, tuple[Any, ...]] = {
    "lock_ref": ("add_leaf", 0, 1, 2, 1, True, False),
    "session_trim": ("free_group_begin",),
    "cache": ("free_group_begin",),
}
SMALL = {
    **{"page_size": 2, "size": 3, "size_swa": 2, "rows": 2, "need_sort": False},
    **{"window": 2, "components": ["full", "swa"], "sessions": 1, "requests": 2},
}


@pytest.mark.parametrize("stem", STEMS)
def test_a_run_asks_the_proved_function(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    law, (_, run_class) = hints_of(stem).stem, check.STEMS[stem]
    name, *arguments = FIRST_CALLS.get(stem, ("clear",))
    asked: list[Any] = []
    real = law.transitions[name]

    def spied(state: Any, *given: Any) -> Any:
        asked.append(state)
        return real(state, *given)

    monkeypatch.setitem(law.transitions, name, spied)
    run = run_class(None, SMALL)
    first = run.state
    assert run.step(name, *arguments).granted
    assert asked == [first]


@pytest.mark.parametrize("stem", STEMS)
def test_a_part_is_the_stem_itself_and_its_laws_are_inherited(stem: str) -> None:
    law = hints_of(stem).stem
    for field, part in law.parts.items():
        assert part is hints_of(part.name).stem, "a composition has no law of its own for what it is made of"
        assert [i.holds for i in law.invariants.values() if i.inherited == field] == [
            i.holds for i in part.invariants.values()
        ]
    assert {i.inherited for i in law.invariants.values()} - {""} == set(law.parts)


def test_only_the_spec_makes_stems() -> None:
    makers = [p for p in sources() if p.parent.name != "tests" and "Stem(" in p.read_text(encoding="utf-8")]
    assert {p.relative_to(ROOT).as_posix() for p in makers} == {f"spec/{stem}.py" for stem in STEMS}


# Words.


def sentence_of(function: Any) -> str:
    return " ".join((function.__doc__ or "").split("\n\n")[0].split())


@pytest.mark.parametrize(
    ("name", "function"), [pytest.param(n, f, id=f"{s}-{n}") for s in STEMS for n, f in functions_of(s)]
)
def test_a_law_has_its_sentence(name: str, function: Any) -> None:
    sentence = sentence_of(function)
    assert sentence.endswith("."), name
    assert len(sentence.split()) >= 4, name
    assert sentence[0].isupper() or sentence[0] == "`", name


@pytest.mark.parametrize("stem", STEMS)
def test_a_requirement_has_its_sentence(stem: str) -> None:
    hints = hints_of(stem)
    for name, transition in hints.stem.transitions.items():
        for first in hints.small():
            steps = [transition(first, *arguments) for arguments in hints.moves[name](first)]
            assert all(
                r.sentence.split()[2:] and r.sentence[0].islower()
                for step in steps
                for r in (*step.promises, *step.choice)
            )


def test_every_file_says_what_it_is_for() -> None:
    silent = [p for p in sources() if not ast.get_docstring(ast.parse(p.read_text(encoding="utf-8")))]
    assert silent == []


def test_a_long_file_says_why() -> None:
    long = {p.relative_to(ROOT).as_posix() for p in sources() if len(p.read_text("utf-8").splitlines()) > LINES}
    assert long <= LONG.keys(), "split the file, or say in LONG why it is one"


def test_the_readme_names_the_two_commands() -> None:
    readme = ROOT / "README.md"
    if not readme.is_file():
        pytest.skip("no README yet")
    text = readme.read_text(encoding="utf-8")
    assert "make verify" in text
    assert "make test" in text
