"""Functions of the loaded release of an engine are replaced by their text in another release.

The text is compiled among the names of the module that the function is in. Names that only the other release has can be
added to this module before: a function that calls a new helper finds it then. Nothing is written to a file, and what is
loaded stays changed until the process ends: ``conformance.search.mends`` does this in forked processes.
"""

from __future__ import annotations
import __future__

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

FUTURE = __future__.annotations.compiler_flag
Function = ast.FunctionDef | ast.AsyncFunctionDef
Defined = Function | ast.ClassDef
_DEF = re.compile(r"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)", re.MULTILINE)


@dataclass(frozen=True, order=True)
class FunctionPlace:
    """A function of an engine. ``file``: below the folder of the engine's package, with ``/``. ``name``: the function's
    name, after that of its class and a dot where it is a method.
    """

    file: str
    name: str

    @property
    def owner(self) -> str:
        """The name of the class of a method; empty for a function of the module."""
        return self.name.rpartition(".")[0]


@cache
def definitions(path: Path) -> dict[str, Defined]:
    """The functions, classes and methods that a file defines, by their names after those of their classes. Functions
    within functions are left out, and so is a file that is no Python.
    """
    found: dict[str, Defined] = {}
    try:
        tree = ast.parse(_text(path))
    except (SyntaxError, ValueError):
        return found
    waiting: list[tuple[str, ast.AST]] = [("", tree)]
    while waiting:
        above, node = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Defined):
                found[f"{above}{child.name}"] = child
            if isinstance(child, ast.ClassDef):
                waiting.append((f"{above}{child.name}.", child))
            elif isinstance(child, ast.If | ast.Try):
                waiting.append((above, child))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig", "replace")
    except OSError:
        return ""


@dataclass
class OtherRelease:
    """The source of a release that is not loaded. ``root``: the folder of the engine's package."""

    root: Path
    _defining: dict[str, list[Path]] = field(default_factory=dict)

    def text(self, place: FunctionPlace) -> Function | None:
        """The function of this name in the file of this name. Where that has none, the function was moved: then the one
        in the only other file that defines this name, or else the one that the class inherits there from a class of
        that file. ``None`` where there is none of these.
        """
        here = definitions(self.root / place.file).get(place.name)
        if here is None:
            others = [path for path in self._files(place) if place.name in definitions(path)]
            here = definitions(others[0])[place.name] if len(others) == 1 else self._inherited(place)
        return here if isinstance(here, Function) else None

    def _inherited(self, place: FunctionPlace) -> Defined | None:
        known = definitions(self.root / place.file)
        classes = [place.owner]
        for name in classes:
            node = known.get(name)
            bases = node.bases if isinstance(node, ast.ClassDef) else []
            classes += [base.id for base in bases if isinstance(base, ast.Name) and base.id not in classes]
        names = (f"{name}.{place.name.rpartition('.')[2]}" for name in classes if name)
        return next((known[name] for name in names if name in known), None)

    def _files(self, place: FunctionPlace) -> list[Path]:
        if not self._defining:
            for path in sorted(self.root.rglob("*.py")):
                for name in {*_DEF.findall(_text(path))}:
                    self._defining.setdefault(name, []).append(path)
        return self._defining.get(place.name.rpartition(".")[2], [])


def differs(one: ast.AST, other: ast.AST) -> bool:
    """The texts of two functions are not one text: comments, docstrings and line breaks do not count."""
    return _plain(one) != _plain(other)


def _plain(node: ast.AST) -> str:
    copy = ast.parse(ast.unparse(node))
    for inner in ast.walk(copy):
        if isinstance(inner, Defined) and ast.get_docstring(inner, clean=False) is not None:
            inner.body = inner.body[1:]
    return ast.dump(copy)


def module_of(path: Path) -> ModuleType | None:
    """The loaded module of a file; ``None`` where it is not loaded."""
    wanted = path.resolve()
    for module in [*sys.modules.values()]:
        if (where := _file_of(module)) and Path(where).name == wanted.name and Path(where).resolve() == wanted:
            return module
    return None


def _file_of(module: Any) -> str:
    where = vars(module).get("__file__") if type(module) is ModuleType else None
    return where if isinstance(where, str) else ""


def replace(place: FunctionPlace, root: Path, node: Function) -> None:
    """Replaces a function of the release that is loaded from the folder ``root`` by the function of this text, in its
    class, or in each module that has it by a name. Raises ``LookupError`` where the release has not loaded it, and what
    Python raises where the text asks for a name that this release lacks.
    """
    module = module_of(root / place.file)
    if module is None:
        raise LookupError(f"{place.file} is not loaded")
    *above, name = place.name.split(".")
    owner: Any = module
    for one in above:
        owner = getattr(owner, one)
    if above:
        setattr(owner, name, made(node, module, owner))
        return
    old, new = getattr(module, name), made(node, module, None)
    for other in [other for other in [*sys.modules.values()] if type(other) is ModuleType]:
        for known in [known for known, value in [*vars(other).items()] if value is old]:
            setattr(other, known, new)


def made(node: Defined, module: ModuleType, owner: type | None) -> Any:
    """What a text defines among the names of a module. ``owner``: the class of a method, for ``super()``."""
    wrapper = ast.parse("def _make(__class__):\n    return None")
    wrapper.body[0].body = [node, ast.Return(ast.Name(node.name, ast.Load()))]  # type: ignore[attr-defined]
    space: dict[str, Any] = {}
    code = compile(ast.fix_missing_locations(wrapper), _file_of(module), "exec", FUTURE, dont_inherit=True)
    exec(code, vars(module), space)
    return space["_make"](owner)


@dataclass(frozen=True)
class NewName:
    """What a statement of the other release defines, and the loaded release lacks. ``owner``: the class in whose body
    it stands; empty for a statement of the module. ``names``: what it defines; ``words``: what it names itself.
    """

    file: str
    owner: str
    node: ast.stmt
    names: frozenset[str]
    words: frozenset[str]


def new_names(file: str, root: Path, other: OtherRelease) -> list[NewName]:
    """What the other release's file of this name imports and defines, in the module and in its classes, and the loaded
    release's lacks. No class gets what the loaded release keeps in its objects.
    """
    module = module_of(root / file)
    if module is None:
        return []
    found = [_new(file, "", node) for node in _statements(other.root / file) if _lacks(module, node)]
    kept = _kept_in_objects(root / file)
    for name, node in definitions(other.root / file).items():
        owner = _owner(module, name)
        if isinstance(node, ast.ClassDef) and isinstance(owner, type):
            inner = [line for line in node.body if _lacks(owner, line) and not kept & {*_names(line)}]
            found += [_new(file, name, line) for line in inner]
    return found


def _lacks(owner: Any, node: ast.stmt) -> bool:
    names = [*_names(node)]
    return bool(names) and not all(hasattr(owner, name) for name in names)


def _new(file: str, owner: str, node: ast.stmt) -> NewName:
    return NewName(file, owner, node, frozenset(_names(node)), frozenset(words_of(node)))


def words_of(node: ast.AST) -> set[str]:
    """The names that a text has: of variables and attributes, and texts that could be names."""
    inner = [*ast.walk(node)]
    texts = {one.value for one in inner if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    names = {one.id for one in inner if isinstance(one, ast.Name)}
    return (
        names | {one.attr for one in inner if isinstance(one, ast.Attribute)} | {t for t in texts if t.isidentifier()}
    )


def _owner(module: ModuleType, name: str) -> Any:
    found: Any = module
    for one in name.split(".") if name else ():
        found = vars(found).get(one) if isinstance(found, type | ModuleType) else None
    return found


def add_needed(nodes: Iterable[ast.AST], known: Sequence[NewName], root: Path) -> None:
    """Adds the new names that these texts name, and those that the added texts name. What needs more than the loaded
    release has is left out: a function that calls it fails.
    """
    words: set[str] = set().union(*map(words_of, nodes))
    left, found = [*known], list[NewName]()
    while needed := [one for one in left if one.names & words]:
        left = [one for one in left if one not in needed]
        found += needed
        words = words.union(*(one.words for one in needed))
    for one in sorted(found, key=lambda one: bool(one.owner)):  # the modules' first: classes may name them
        if (module := module_of(root / one.file)) is not None:
            with suppress(Exception):
                _add(one.node, module, _owner(module, one.owner))


def _add(node: ast.stmt, module: ModuleType, owner: Any) -> None:
    """Adds what a statement defines to a module or a class."""
    if isinstance(node, Function) and isinstance(owner, type):
        setattr(owner, node.name, made(node, module, owner))
        return
    space = vars(module) if owner is module else {}
    alone = ast.fix_missing_locations(ast.Module([node], []))
    exec(compile(alone, _file_of(module), "exec", FUTURE, dont_inherit=True), vars(module), space)
    if owner is not module:
        for name, value in space.items():
            setattr(owner, name, value)


@cache
def _kept_in_objects(path: Path) -> set[str]:
    """The attributes that a file assigns."""
    nodes = (node for statement in _statements(path) for node in ast.walk(statement))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}


def _statements(path: Path) -> list[ast.stmt]:
    try:
        return ast.parse(_text(path)).body
    except (SyntaxError, ValueError):
        return []


def _names(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module defines, where it is one that can be added alone."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, Defined):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
