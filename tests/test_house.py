"""The shape of the house: a feature is one stem in four folders, there is one text of every law, and an engine's name
stands in its own folder alone.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from driven import RIGHT

from conformance.driver.lockstep import Law
from conformance.engines import registry
from conformance.planted.faults.known_bugs import ALL
from conformance.stems import stem_registry
from conformance.stems.found import driven, law_of, rooms, servers
from proofs.registry import STEMS, hints_of
from spec import pair, pool
from spec.logic import Stem

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("spec", "proofs", "impl", "conformance", "slotproof", "benchmarks")
SMALL = {
    **{"page_size": 2, "size": 3, "size_swa": 2, "size_mamba": 2, "rows": 2, "need_sort": False},
    **{"window": 2, "kind": "unified", "components": ["full", "swa"], "sessions": 1, "requests": 2},
    **{"buffered": True, "doubled": True, "lazy": False},
    **{"blocks": 3, "indices": 3, "groups": 1, "caching": True},
    **{"slots": 3, "keys": 4, "parts": 2},
    **{"block_size": 2, "layers": [{"kind": "full"}], "batch": 8, "drafts": 0, "eagle": False, "steps_in_flight": 1},
    **{"threshold": 0, "policy": "fcfs", "max_length": 8, "events": False},
}


def module_of(folder: str, stem: str) -> ModuleType:
    return import_module(f"{folder}.{stem}")


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders or (*FOLDERS, "tests"):
        yield from sorted((ROOT / folder).rglob("*.py"))


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def tree_of(path: Path) -> ast.Module:
    return parsed(path.read_text(encoding="utf-8"))


def where(path: Path, node: Any, root: Path = ROOT) -> str:
    """A place as an editor opens it."""
    return f"{path.relative_to(root)}:{node.lineno}"


def functions_of(stem: str) -> list[tuple[str, Any]]:
    law = hints_of(stem).stem
    own = ((name, i.at or i.holds) for name, i in law.invariants.items() if not i.inherited)
    return [*law.transitions.items(), *own]


# Where a stem is.


@pytest.mark.parametrize("stem", driven())
def test_a_stem_is_in_all_folders(stem: str) -> None:
    ours = ("impl",) if stem in registry.load("ours").makers else ()
    files = [f"{folder}/{stem}.py" for folder in ("spec", "proofs", *ours)]
    files += [f"conformance/stems/{stem}/{name}.py" for name in ("__init__", *OF_A_ROOM)]
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_conformance_has_few_rooms_and_a_room_for_each_stem() -> None:
    def folders(place: str) -> set[str]:
        """The folders with code: what a change of branches leaves behind has none."""
        return {path.name for path in (ROOT / place).iterdir() if path.is_dir() and any(path.rglob("*.py"))}

    assert folders("conformance") == {*ROOMS, "story"}, "story: the old place of what pasted tests import"
    assert folders("conformance/stems") == {*STEMS, *servers(), "pools", "requests"}
    assert {path.name for path in (ROOT / "conformance").glob("*.py")} == {"__init__.py"}


def test_every_stem_is_driven_or_judges_what_an_engine_says() -> None:
    assert list(stem_registry.STEMS) == driven()
    assert list(stem_registry.ROOMS) == rooms() == [*driven(), *servers()]
    assert {law_of(room).name for room in servers()} <= {*driven()}, "a server is held against the law of a stem"
    assert {*STEMS} - {*driven()} == {"kv_events"}, "what an engine says, in a run of any stem, is judged by this one"


def test_the_faults_of_a_stem_are_one_file() -> None:
    found = {path.parent.name for path in (ROOT / "conformance" / "stems").glob("*/faults.py")}
    assert found == {fault.stem for fault in ALL}
    for stem in found:
        assert {fault.stem for fault in import_module(f"conformance.stems.{stem}.faults").FAULTS} == {stem}


# One text.


@pytest.mark.parametrize("stem", driven())
def test_the_run_and_the_proofs_use_the_same_law(stem: str) -> None:
    run = stem_registry.start(stem, RIGHT[stem], SMALL)
    assert run.law.stem is hints_of(stem).stem is module_of("spec", stem).stem


@pytest.mark.parametrize("stem", STEMS)
def test_every_law_is_a_function_of_the_spec(stem: str) -> None:
    for name, function in functions_of(stem):
        home = inspect.getmodule(function)
        assert home is not None
        assert home.__name__.startswith("spec.")
        assert getattr(home, name) is function


def test_both_stems_of_pools_share_the_laws_of_a_pool() -> None:
    one, other = (hints_of(stem).stem.invariants for stem in ("allocator", "swa_mapping"))
    for law in pool.LAWS:
        assert one[law.__name__].holds is other[law.__name__].holds is law
    for pair_law in pair.LAWS:
        assert other[pair_law.__name__].holds is pair_law


# What can be asked first.
FIRST_CALLS: dict[str, tuple[Any, ...]] = {
    "allocator": ("clear",),
    "swa_mapping": ("clear",),
    "lock_ref": ("add_leaf", 0, 1, 2, 1, True, False),
    "session_trim": ("free_group_begin", True),
    "mamba_slots": ("clear",),
    "cache": ("free_group_begin", True),
    "block_pool": ("reset", True),
    "block_cache": ("reset", True),
    "host_tier": ("reset",),
}


@pytest.mark.parametrize("stem", driven())
def test_a_run_asks_the_proved_function(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proved = hints_of(stem).stem
    name, *arguments = FIRST_CALLS[stem]
    asked: list[Any] = []
    real = proved.transitions[name]

    def spied(state: Any, *given: Any) -> Any:
        asked.append(state)
        return real(state, *given)

    monkeypatch.setitem(proved.transitions, name, spied)
    law: Law = stem_registry.start(stem, RIGHT[stem], SMALL).law
    if stem == "lock_ref":  # the run makes room for a node when it sees one
        law.state = first_state(proved)
    first = law.state
    assert law.caller_step(name, *arguments).granted
    assert asked == [first]


def first_state(stem: Stem) -> Any:
    """A small lawful state of the stem."""
    return next(iter(hints_of(stem.name).small()))


@pytest.mark.parametrize("stem", STEMS)
def test_a_state_has_the_name_of_its_stem(stem: str) -> None:
    """Its file, too, where it is not that of the stem."""
    state = hints_of(stem).stem.state
    assert state.__name__ == "".join(word.title() for word in stem.split("_")) + "State"
    assert state.__module__.rpartition(".")[2] in (stem, f"{stem}_state")


@pytest.mark.parametrize("stem", STEMS)
def test_a_part_is_the_stem_itself_and_its_laws_are_inherited(stem: str) -> None:
    law = hints_of(stem).stem
    for field, part in law.parts.items():
        assert part is hints_of(part.name).stem, "a composition has no law of its own for what it is made of"
        assert [i.holds for i in law.invariants.values() if i.inherited == field] == [
            i.holds for i in part.invariants.values() if not i.theorem
        ]
    assert {i.inherited for i in law.invariants.values()} - {""} == set(law.parts)


def test_only_the_spec_makes_stems() -> None:
    makers = {path for path in sources(*FOLDERS) if re.search(r"\bStem\(", path.read_text(encoding="utf-8"))}
    assert {path.relative_to(ROOT).as_posix() for path in makers} == {f"spec/{stem}.py" for stem in STEMS}


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
    assert [path for path in sources() if not ast.get_docstring(tree_of(path))] == []


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make verify" in text
    assert "make test" in text


# Classes.


class Written(NamedTuple):
    """A class as its source defines it; ``exported``: its module's ``__all__``, or that of a module beside it which
    offers it, names it for users to derive from.
    """

    path: Path
    node: ast.ClassDef
    exported: bool

    @property
    def bases(self) -> list[str]:
        return [name for name in map(last_name, self.node.bases) if name]


def last_name(node: ast.AST) -> str:
    """The last part of a dotted name, without type parameters; empty for anything else."""
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def classes(root: Path = ROOT, folders: Sequence[str] = FOLDERS) -> list[Written]:
    modules = {p: tree_of(p) for folder in folders for p in sorted((root / folder).rglob("*.py"))}
    offered: dict[Path, set[str]] = {}
    for path, module in modules.items():
        for statement in (s for s in module.body if isinstance(s, ast.Assign)):
            if [last_name(target) for target in statement.targets] == ["__all__"]:
                offered.setdefault(path.parent, set()).update(ast.literal_eval(statement.value))
    return [
        Written(path, node, node.name in offered.get(path.parent, ()))
        for path, module in modules.items()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
    ]


def only_children(root: Path = ROOT) -> list[str]:
    """Classes that exist to be inherited from once."""
    known = classes(root)
    children: dict[str, list[str]] = {}
    for written in known:
        for base in written.bases:
            children.setdefault(base, []).append(written.node.name)
    return [
        f"{where(written.path, written.node, root)} {written.node.name} has one child, {children[written.node.name][0]}"
        for written in known
        if len(children.get(written.node.name, ())) == 1 and "Protocol" not in written.bases and not written.exported
    ]


def test_no_class_exists_to_be_inherited_from_once() -> None:
    assert only_children() == []


def test_faults_derive_from_classes_that_users_may_derive_from() -> None:
    exported = {written.node.name for written in classes(folders=["impl"]) if written.exported} | {"HostManager"}
    derived = [w for w in classes(folders=["conformance/stems"]) if w.bases and w.path.stem == "faults"]
    assert len(derived) > 10
    assert [w.node.name for w in derived if not set(w.bases) <= exported] == []


# Classes that may have one name, by the folders that they are in, each with the reason.
SAME_NAME = {
    ("Step", ("impl", "spec")): "a step of a scheduler, as engines call it, and a step of the law",
    ("Connector", ("conformance/engines/vllm/scripts",)): "a script stands alone, to be filed upstream",
    ("Values", ("conformance/engines/vllm/scripts",)): "a script stands alone, to be filed upstream",
    ("HostMemory", ("conformance/engines/vllm/scripts",)): "a script stands alone, to be filed upstream",
    ("Reach", ("conformance/traces", "slotproof/proving")): "how far a finding reaches, and how far a law is proved",
}


def shared_names(root: Path = ROOT) -> dict[tuple[str, tuple[str, ...]], list[str]]:
    """The classes at the top of modules that have one name, by the name and the folders, with their places."""
    found: dict[str, list[Path]] = {}
    for folder in ("spec", "proofs", "impl", "conformance", "slotproof"):
        for path in sorted((root / folder).rglob("*.py")):
            for node in tree_of(path).body:
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append(path.relative_to(root))
    return {
        (name, tuple(sorted({path.parent.as_posix() for path in paths}))): [path.as_posix() for path in paths]
        for name, paths in found.items()
        if len(paths) > 1
    }


def test_no_class_name_stands_for_two_things() -> None:
    assert shared_names().keys() == SAME_NAME.keys(), shared_names()


def test_a_name_of_two_classes_is_seen(tmp_path: Path) -> None:
    for name in ("spec/one.py", "impl/two.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("class Rows:\n    class Inner: ...\n")
    assert shared_names(tmp_path) == {("Rows", ("impl", "spec")): ["spec/one.py", "impl/two.py"]}


def odd_calls(path: Path, root: Path = ROOT) -> list[str]:
    """An assigned class, a call past the parent, and a method of an instance that is replaced. (What an engine's
    plug-in stands in for in a release is no method of ours.)
    """
    module = tree_of(path)
    found: list[tuple[int, str]] = []
    plugged = path.is_relative_to(root / "conformance" / "engines")
    methods = {f.name for n in ast.walk(module) if isinstance(n, ast.ClassDef) for f in functions_in(n)}
    for node in ast.walk(module):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.Call) and last_name(node.func) == "setattr" and "__class__" in constants(node):
            found.append((node.lineno, "assigns __class__"))
        for target in (t for t in targets if isinstance(t, ast.Attribute)):
            of_self = last_name(target.value) == "self"
            replaced = isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda) and (of_self or not plugged)
            if target.attr == "__class__":
                found.append((target.lineno, "assigns __class__"))
            elif replaced or target.attr in methods:
                found.append((target.lineno, f"replaces the method {target.attr}"))
    for written in (n for n in ast.walk(module) if isinstance(n, ast.ClassDef)):
        bases = {last_name(base) for base in written.bases}
        for node in ast.walk(written):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                parent = last_name(node.func.value)
                if parent in bases and last_name(node.args[0]) == "self":
                    found.append((node.lineno, f"calls {parent}.{node.func.attr} past super()"))
    return [f"{path.relative_to(root)}:{line} {what}" for line, what in sorted(found)]


def constants(node: ast.AST) -> list[Any]:
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]


def functions_in(node: ast.ClassDef) -> list[ast.FunctionDef]:
    """The methods that are no properties."""
    return [f for f in node.body if isinstance(f, ast.FunctionDef) and not f.decorator_list]


def test_no_class_is_assigned_no_parent_passed_over_and_no_method_replaced() -> None:
    assert [line for path in sources(*FOLDERS) for line in odd_calls(path)] == []


ODD = """
class Base:
    def go(self): ...

class One(Base):
    def __init__(self):
        self.go = lambda: None
        self.__class__ = Base

    def go(self):
        Base.go(self)

def later(one):
    one.go = print
"""


def test_what_is_odd_is_seen(tmp_path: Path) -> None:
    odd = tmp_path / "impl" / "odd.py"
    odd.parent.mkdir()
    odd.write_text(ODD)
    assert odd_calls(odd, tmp_path) == [
        "impl/odd.py:7 replaces the method go",
        "impl/odd.py:8 assigns __class__",
        "impl/odd.py:11 calls Base.go past super()",
        "impl/odd.py:14 replaces the method go",
    ]
    assert only_children(tmp_path) == ["impl/odd.py:2 Base has one child, One"]
    odd.write_text("__all__ = ['Base']" + ODD)
    assert only_children(tmp_path) == []


# Imports.


def arrows(root: Path = ROOT) -> dict[str, set[str]]:
    """For each module the modules that it imports, in function bodies and for type checkers alone, too."""
    files = {name_of(path, root): path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))}
    return {name: {m for m in imported(path, name, set(files)) if m != name} for name, path in files.items()}


@cache
def own_arrows() -> dict[str, set[str]]:
    """The arrows of this repository."""
    return arrows()


def name_of(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path, name: str, known: set[str]) -> Iterator[str]:
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            members = [f"{base}.{alias.name}" for alias in node.names]
            yield from (member for member in members if member in known)
            if base in known and not known.issuperset(members):
                yield base


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, if there are any."""
    done: set[str] = set()

    def search(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        found = next((c for other in sorted(graph[module]) if (c := search(other, [*path, module]))), [])
        done.add(module)
        return found

    return next((c for module in sorted(graph) if (c := search(module, []))), [])


def test_modules_import_each_other_in_no_circle() -> None:
    assert circle(own_arrows()) == []


def test_a_circle_is_seen(tmp_path: Path) -> None:
    for name, text in {
        "spec/__init__.py": "",
        "spec/one.py": "import typing\nif typing.TYPE_CHECKING:\n    from spec.two import thing\n",
        "spec/two.py": "from spec import three\n",
        "spec/three.py": "from . import one\n",
        "spec/four.py": "def later():\n    from spec import one\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert circle(arrows(tmp_path)) == ["spec.one", "spec.two", "spec.three", "spec.one"]
    (tmp_path / "spec" / "three.py").write_text("def later():\n    from . import one\n")
    assert circle(arrows(tmp_path)) == ["spec.one", "spec.two", "spec.three", "spec.one"], "a function imports, too"
    (tmp_path / "spec" / "three.py").write_text("")
    assert circle(arrows(tmp_path)) == []


# Rooms. A room imports those that stand before it.
ROOMS = ("driver", "recording", "stems", "engines", "traces", "telling", "search", "planted")
RUN_BACK = {
    (
        "conformance.driver.lockstep",
        "conformance.stems.kv_events.published",
    ): "the events that an engine publishes in a run of any stem are judged after each call by the law of events",
    ("conformance.stems.fault", "conformance.engines.registry"): "a known bug is a faulty part of our implementation, "
    "which is an engine",
}
# A stem imports those that stand before it, as `cache` imports its parts.
STEMS_IN_ORDER = ("kv_events", "allocator", "swa_mapping", "session_trim", "lock_ref", "mamba_slots", "cache")
BLOCKS_IN_ORDER = ("block_pool", "block_cache")
OF_A_ROOM = ("room", "run", "rules", "projection", "claims", "config", "protocol", "picture", "exclusions")


def room_of(module: str) -> str:
    """The room of a module of ``conformance``; empty for one that is in none."""
    parts = module.split(".")
    return parts[1] if parts[0] == "conformance" and len(parts) > 2 and parts[1] in ROOMS else ""


def back(graph: dict[str, set[str]], order: Sequence[str], place: Any) -> set[tuple[str, str]]:
    """The arrows that run to a later place of ``order``. ``place``: of a module, where it stands; empty for nowhere."""
    pairs = ((one, other) for one, others in graph.items() for other in others)
    return {
        (one, other)
        for one, other in pairs
        if place(one) in order and place(other) in order and order.index(place(one)) < order.index(place(other))
    }


def test_few_arrows_run_back_up_between_rooms() -> None:
    assert back(own_arrows(), ROOMS, room_of) == {*RUN_BACK}
    assert len(RUN_BACK) <= 5


# The rooms of the command line; its entry points stand above them.
OF_COMMANDS = ("spec_lint", "console", "checks", "review", "proving", "planted", "pages", "commands")
ENTRIES = ("__init__", "__main__", "cli", "plugin", "pytest_plugin", "record")
# The prover's files, and what stands beside them: made from the prover, which knows nothing of it.
OF_PROOFS = ("prover", "mutation", "difference")


def room_of_commands(module: str) -> str:
    """The room of a module of ``slotproof``; ``entries`` for one that stands above the rooms."""
    package, *place = module.split(".")
    if package != "slotproof" or not place:
        return ""
    return place[0] if place[0] in OF_COMMANDS else "entries"


def room_of_proofs(module: str) -> str:
    package, *place = module.split(".")
    if package != "proofs":
        return ""
    return place[0] if len(place) and place[0] in OF_PROOFS[1:] else "prover"


def test_slotproof_is_its_entry_points_and_a_few_rooms() -> None:
    place = ROOT / "slotproof"
    folders = {path.name for path in place.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert folders == {*OF_COMMANDS}
    assert {path.stem for path in place.glob("*.py")} == {*ENTRIES}
    assert not {path.parent.parent.name for path in place.rglob("*/*/*.py")} & folders, "a room has no rooms"


def test_no_arrow_runs_back_up_between_rooms_of_commands() -> None:
    assert back(own_arrows(), (*OF_COMMANDS, "entries"), room_of_commands) == set()


def test_the_prover_knows_nothing_of_what_stands_beside_it() -> None:
    assert back(own_arrows(), OF_PROOFS, room_of_proofs) == set()


def test_the_proofs_import_the_spec_alone() -> None:
    """What they have found is remembered by the files of these two packages."""
    found = {one for name, others in own_arrows().items() if name.split(".")[0] in ("spec", "proofs") for one in others}
    assert {one.split(".")[0] for one in found} == {"spec", "proofs"}


def stem_of(module: str) -> str:
    parts = module.split(".")
    return parts[2] if parts[:2] == ["conformance", "stems"] and len(parts) > 3 else ""


@pytest.mark.parametrize("order", [STEMS_IN_ORDER, BLOCKS_IN_ORDER], ids=["pages", "blocks"])
def test_stems_import_each_other_in_order(order: Sequence[str]) -> None:
    assert back(own_arrows(), order, stem_of) == set()


def test_an_arrow_that_runs_back_is_seen() -> None:
    planted = {"conformance.driver.lockstep": {"conformance.search.check"}, "conformance.search.check": set[str]()}
    assert back(planted, ROOMS, room_of) == {("conformance.driver.lockstep", "conformance.search.check")}
    commands = {"slotproof.console.screen": {"slotproof.pages.terms"}, "slotproof.checks.emit": {"slotproof.cli"}}
    assert len(back(commands, (*OF_COMMANDS, "entries"), room_of_commands)) == 2
    beside = {"proofs.prover": {"proofs.mutation.right"}, "proofs.mutation.right": {"proofs.difference.row"}}
    assert len(back(beside, OF_PROOFS, room_of_proofs)) == 2
    stems = {"conformance.stems.allocator.run": {"conformance.stems.cache.run"}}
    assert back(stems, STEMS_IN_ORDER, stem_of) == {("conformance.stems.allocator.run", "conformance.stems.cache.run")}


# Engines' names.


def named_engines(root: Path = ROOT) -> list[str]:
    """Each place in conformance/, slotproof/ or benchmarks/ at which an engine's name is part of the code, outside the
    folder of that engine. Docstrings and comments may cite an engine as a source.
    """
    found, engines = [], registry.names()
    for folder in ("conformance", "slotproof", "benchmarks"):
        for path in sorted((root / folder).rglob("*")):
            relative = path.relative_to(root).as_posix()
            foreign = [n for n in engines if not relative.startswith(f"conformance/engines/{n}")]
            if path.suffix == ".py":
                lines = [(line, name) for line, text in words(tree_of(path)) for name in foreign if says(name, text)]
            elif path.suffix in (".j2", ".html", ".css", ".js"):
                text_lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
                lines = [(line, name) for line, text in text_lines for name in foreign if says(name, text)]
            else:
                continue
            found += [f"{relative}:{line} {name}" for line, name in lines]
    return found


def says(name: str, text: str) -> bool:
    """The name is a word of the text, also of a name such as ``load_sglang`` or ``SGLangTree``."""
    if name not in text.lower():
        return False
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    return bool(re.search(rf"(?<![a-z0-9]){name}(?![a-z0-9])", text.lower())) or bool(
        re.search(rf"(?<![a-z0-9]){name}(?![a-z0-9])", split.lower())
    )


def words(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Names, attributes, imported modules and strings, with their lines; no docstrings."""
    documents = {id(text) for node in ast.walk(module) for text in document_of(node)}
    for node in ast.walk(module):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield line, node.value
        for name in ("id", "attr", "arg", "name", "module", "asname"):
            if isinstance(said := getattr(node, name, None), str):
                yield line, said


def document_of(node: Any) -> list[ast.expr]:
    """The string that a module, a class or a function begins with."""
    body = node.body if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) else []
    return [first.value for first in body[:1] if isinstance(first, ast.Expr)]


def test_no_engine_is_named_outside_its_folder() -> None:
    assert named_engines() == []


PLANTED = '''"""As in SGLang PR 1."""

from conformance.engines.sglang import PLUGIN


def load_sglang() -> str:
    """Not SGLang itself."""
    kept.ours = 1
    return "the engine sglang"


class SGLangTree:
    """SGLang's."""
'''


def test_a_planted_name_is_seen(tmp_path: Path) -> None:
    for name in ("conformance/core.py", "conformance/engines/sglang/driving/tree.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(PLANTED.replace("kept.ours = 1", "kept.mine = 1"))
    (tmp_path / "slotproof" / "pages" / "templates").mkdir(parents=True)
    (tmp_path / "slotproof" / "pages" / "templates" / "page.html.j2").write_text(
        "<p>{{ hours }}</p>\n<p>SGLang {{ x }}</p>\n"
    )
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "one.py").write_text(PLANTED)
    core = ["3 sglang", "6 sglang", "9 sglang", "12 sglang"]
    assert sorted(named_engines(tmp_path)) == sorted(
        [
            *(f"conformance/core.py:{place}" for place in core),
            *(f"benchmarks/one.py:{place}" for place in [*core, "8 ours"]),
            "slotproof/pages/templates/page.html.j2:2 sglang",
        ]
    )


# Probes of a release: questions whose answer says which release it is, or what a release has. In the folder of an
# engine they stand in one place, or in one for each part of the engine that is driven alone.
KNOWS_RELEASES = {
    "sglang": ("releases", "recording"),
    "vllm": ("release.py", "offloading.py", "host_pool.py", "host_slots.py", "recording"),
}
OF_OURS = "asks our own class what it has; of a release it reads the source"
NO_PROBES = {  # what looks like a probe, by file and function, and is none
    **dict.fromkeys((f"sglang/replacing/compat.py {name}" for name in ("compared", "_short", "_takes")), OF_OURS),
    "sglang/replacing/dropin.py over": "asks our own class which members of the release's class it has",
}
ASKS = ("hasattr", "getattr_static", "signature", "getsource", "getmembers", "fields", "dir", "issubclass", "has")
TABLES = ("__dataclass_fields__", "__abstractmethods__", "__annotations__", "__dict__", "parameters")
LACKS = ("AttributeError", "ImportError", "ModuleNotFoundError")
VERSION = re.compile(r"\d+(\.\d+)+\w*")


def probe(node: ast.AST) -> str:
    """What a piece of code asks an object about what it has; empty if it asks nothing."""
    if isinstance(node, ast.Call):
        asked = last_name(node.func)
        return asked if asked in ASKS or (asked == "getattr" and len(node.args) > 2) else ""
    if isinstance(node, ast.ExceptHandler):
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type] if node.type else []
        return next((f"except {name}" for name in map(last_name, caught) if name in LACKS), "")
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        if any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops):
            tables = (last_name(one.func if isinstance(one, ast.Call) else one) for one in sides[1:])
            return next((f"in {name}" for name in tables if name in (*TABLES, "vars")), "")
        texts = [n.value for side in sides for n in ast.walk(side) if isinstance(n, ast.Constant)]
        names = [name for side in sides for n in ast.walk(side) if (name := last_name(n))]
        if any(isinstance(text, str) and VERSION.fullmatch(text) for text in texts) or any(
            "version" in name.lower() for name in names
        ):
            return "a version"
    return ""


def placed(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Each piece of code, with the innermost function around it."""
    for child in ast.iter_child_nodes(tree):
        yield inside, child
        yield from placed(child, child.name if isinstance(child, ast.FunctionDef) else inside)


def probes(engine: str, root: Path = ROOT) -> dict[str, list[str]]:
    """The probes in an engine's folder outside of the place that knows its releases, by file and function. Scripts
    show one finding with the engine alone, so they have nothing of ours to ask.
    """
    engines = root / "conformance" / "engines"
    apart = [engines / engine / name for name in (*KNOWS_RELEASES[engine], "scripts")]
    found: dict[str, list[str]] = {}
    for path in sorted((engines / engine).rglob("*.py")):
        if any(path.is_relative_to(one) for one in apart):
            continue
        for inside, node in placed(tree_of(path)):
            if what := probe(node):
                place = f"{path.relative_to(engines).as_posix()} {inside}".strip()
                found.setdefault(place, []).append(f"{where(path, node, root)} {what}")
    return found


@pytest.mark.parametrize("engine", KNOWS_RELEASES)
def test_an_engine_probes_its_releases_in_one_place(engine: str) -> None:
    found = probes(engine)
    assert [line for place, lines in found.items() if place not in NO_PROBES for line in lines] == []
    assert {place for place in NO_PROBES if place.startswith(f"{engine}/")} <= {*found}, "an exception for nothing"


PROBES = """
hasattr(x, "y")
getattr(x, "y", None)
try:
    x.y
except AttributeError:
    pass
try:
    import x
except (KeyError, ImportError):
    pass
inspect.signature(x.y)
"y" in x.__dataclass_fields__
"y" not in inspect.signature(x).parameters
"y" in {f.name for f in fields(x)}
"y" in vars(x)
issubclass(x, y)
release.imported.has("y")
x.label >= "0.5.12"
Version(x.label) < y
sglang.__version__ == y
"""
NONE = """
getattr(x, name)
vars(x).update(y=1)
isinstance(x, int)
"swa" in components
release.has_unified_tree
x.size >= 3
try:
    x.y
except KeyError:
    raise AttributeError(name)
"""


def test_a_planted_probe_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "conformance" / "engines" / "sglang"
    for name, text in {"driving/one.py": PROBES, "releases/two.py": PROBES, "driving/none.py": NONE}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (lines,) = probes("sglang", tmp_path).values()
    seen = [line.removeprefix("conformance/engines/sglang/driving/one.py:") for line in lines]
    assert sorted({int(line.split()[0]) for line in seen}) == [2, 3, 6, 10, *range(12, 22)]
    (folder / "driving" / "one.py").write_text("def asks(x):\n    return hasattr(x, 'y')\n")
    assert probes("sglang", tmp_path) == {
        "sglang/driving/one.py asks": ["conformance/engines/sglang/driving/one.py:2 hasattr"]
    }


# The names of our packages: in a wheel they are below ``slotproof`` (docs/adr/0011-names-in-site-packages.md).

MODULE = re.compile(r"(spec|proofs|impl|conformance)\.(?!py$)[\w.]*")
IMPORT = re.compile(r"^\s*(from|import)\s+(spec|proofs|impl|conformance)\b", re.MULTILINE)


def fixed_names(path: Path, root: Path = ROOT) -> list[str]:
    """Strings, other than docstrings, that name a module of ours by the place that it has in the checkout."""
    module = tree_of(path)
    prose = {id(n.value) for n in ast.walk(module) if isinstance(n, ast.Expr)}
    texts = {n: n.value for n in ast.walk(module) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return [
        f"{where(path, node, root)} {text.strip()[:60]!r}"
        for node, text in sorted(texts.items(), key=lambda item: item[0].lineno)
        if id(node) not in prose and (MODULE.fullmatch(text) or IMPORT.search(text))
    ]


def test_no_string_fixes_where_our_packages_are() -> None:
    """Write ``__name__``, ``__package__`` or the ``__name__`` of a module that is imported."""
    assert [
        line for path in sources("spec", "proofs", "impl", "conformance", "slotproof") for line in fixed_names(path)
    ] == []


def test_a_fixed_name_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(
        '"""spec.session_trim_state"""\n'
        'a = f"spec.{1}", "conformance.search.replay", "the spec.logic of", __name__\n'
        'b = """\n    from conformance.stems.stem_registry import start"""\n'
    )
    assert [line.split(" ")[0] for line in fixed_names(path, tmp_path)] == ["x.py:2", "x.py:2", "x.py:3"]
