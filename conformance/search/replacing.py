"""Functions of the loaded release of an engine are replaced by their text in another release.

The text is compiled among the names of the module that the function is in. Names that only the other release has can be
added to this module before: a function that calls a new helper finds it then. A file that was moved, and a class that
got another name, are looked for by what they define. Nothing is written to a file, and what is loaded stays changed
until the process ends: ``conformance.search.mends`` does this in forked processes.
"""

from __future__ import annotations
import __future__

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

FUTURE = __future__.annotations.compiler_flag
Function = ast.FunctionDef | ast.AsyncFunctionDef
Defined = Function | ast.ClassDef
_DEF = re.compile(r"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)", re.MULTILINE)
ENOUGH = 1 / 2  # of what a file or a class defines, which one that has taken its place must define, too


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
    """The source of a release that is not loaded. ``root``: the folder of the engine's package; ``loaded``: that of the
    loaded release, without which nothing is known of files and classes that were moved together.
    """

    root: Path
    loaded: Path | None = None
    _defining: dict[str, list[Path]] = field(default_factory=dict)
    _moved: dict[str, str] = field(default_factory=dict)

    def text(self, place: FunctionPlace) -> Function | None:
        """The function of this name in the file of this name. Where that has none, the function was moved: then the one
        in the only other file that defines this name, or else the one that the class inherits there from a class of
        that file, or else the one of the class that has taken the place of its class. ``None`` where there is none of
        these.
        """
        here = definitions(self.root / place.file).get(place.name)
        if here is None:
            others = [path for path in self._files(place.name) if place.name in definitions(path)]
            here = definitions(others[0])[place.name] if len(others) == 1 else self._inherited(place)
        if here is None and (owner := self.class_for(place.file, place.owner)):
            name = f"{owner}.{place.name.rpartition('.')[2]}"
            here = definitions(self.root / self.file_for(place.file)).get(name)
        return here if isinstance(here, Function) else None

    def file_for(self, file: str) -> str:
        """The file of this name; where it is gone, the only other one that defines at least half of what stands at the
        top of the loaded release's file. Empty where there is none.
        """
        if (self.root / file).is_file():
            return file
        if file not in self._moved:
            mine = [] if self.loaded is None else [name for name in definitions(self.loaded / file) if "." not in name]
            having = Counter(path for name in mine for path in self._files(name) if name in definitions(path))
            most = [path for path, times in having.items() if times == max(having.values())]
            enough = len(most) == 1 and having[most[0]] >= ENOUGH * len(mine)
            self._moved[file] = most[0].relative_to(self.root).as_posix() if enough else ""
        return self._moved[file]

    def class_for(self, file: str, name: str) -> str:
        """The class of this name in the file that has taken this file's place; where it is gone, the class that only
        this release has there, if it has at least half of the methods, and more than any other. Empty where there is
        none.
        """
        if self.loaded is None or not name or not (moved := self.file_for(file)):
            return ""
        mine, theirs = definitions(self.loaded / file), definitions(self.root / moved)
        if name in theirs:
            return name
        methods = _methods(mine, name)
        new = [one for one, node in theirs.items() if isinstance(node, ast.ClassDef) and one not in mine]
        alike = Counter({one: len(methods & _methods(theirs, one)) for one in new}).most_common(2)
        best = alike[0][1] if alike else 0
        alone = [one for one, times in alike if times == best and times]
        return alone[0] if len(alone) == 1 and best >= ENOUGH * len(methods) else ""

    def _inherited(self, place: FunctionPlace) -> Defined | None:
        known = definitions(self.root / place.file)
        classes = [place.owner]
        for name in classes:
            node = known.get(name)
            bases = node.bases if isinstance(node, ast.ClassDef) else []
            classes += [base.id for base in bases if isinstance(base, ast.Name) and base.id not in classes]
        names = (f"{name}.{place.name.rpartition('.')[2]}" for name in classes if name)
        return next((known[name] for name in names if name in known), None)

    def _files(self, name: str) -> list[Path]:
        if not self._defining:
            for path in sorted(self.root.rglob("*.py")):
                for one in {*_DEF.findall(_text(path))}:
                    self._defining.setdefault(one, []).append(path)
        return self._defining.get(name.rpartition(".")[2], [])


def _methods(known: dict[str, Defined], owner: str) -> set[str]:
    """The names of the functions that a class of a file defines."""
    found = {name for name, node in known.items() if isinstance(node, Function)}
    return {name.rpartition(".")[2] for name in found if name.rpartition(".")[0] == owner}


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
    """What a statement of the other release defines, and the loaded release lacks. ``file``: of the loaded release.
    ``owner``: the class of the loaded release in whose body it stands; empty for a statement of the module. ``names``:
    what it defines; ``words``: what it names itself; ``imports``: the files of the package, each with a name, from
    which it imports. ``asked``: it is needed only where it is imported from its file, or by what was added to that.
    """

    file: str
    owner: str
    node: ast.stmt
    names: frozenset[str]
    words: frozenset[str]
    imports: frozenset[tuple[str, str]] = frozenset()
    asked: bool = False


def new_names(files: Iterable[str], root: Path, other: OtherRelease) -> list[NewName]:
    """What the other release's files of these names import and define, in the module and in its classes, and the loaded
    release's lack; and what these files import from other files of the package, and the loaded release's lack. No class
    gets what the loaded release keeps in its objects.
    """
    several = [*dict.fromkeys(files)]
    found = [name for file in several for name in (*_of_module(file, root, other), *_of_classes(file, root, other))]
    sources = [*several]
    for name in found:  # grows by what each further file has, which may import again
        for source in sorted({file for file, _ in name.imports} - {*sources}):
            sources.append(source)
            found += _of_module(source, root, other, asked=True)
    return found


def _of_module(file: str, root: Path, other: OtherRelease, asked: bool = False) -> list[NewName]:
    module, there = module_of(root / file), other.file_for(file)
    if module is None or not there:
        return []
    lines = [line for statement in _statements(other.root / there) for line in _one_by_one(statement)]
    return [_new(file, "", line, other.root, there, asked) for line in lines if _lacks(module, line)]


def _of_classes(file: str, root: Path, other: OtherRelease) -> list[NewName]:
    module, there = module_of(root / file), other.file_for(file)
    found: list[NewName] = []
    if module is None or not there:
        return found
    kept, theirs = kept_in_objects(root / file), definitions(other.root / there)
    for name, mine in definitions(root / file).items():
        owner, node = _owner(module, name), theirs.get(other.class_for(file, name) or name)
        if isinstance(mine, ast.ClassDef) and isinstance(node, ast.ClassDef) and isinstance(owner, type):
            inner = [line for line in node.body if _lacks(owner, line) and not kept & {*_names(line)}]
            found += [_new(file, name, line, other.root, there) for line in inner]
    return found


def _one_by_one(node: ast.stmt) -> list[ast.stmt]:
    """An import of several names as imports of one name each: the loaded release may lack one of them."""
    if isinstance(node, ast.ImportFrom):
        return [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]
    return [ast.Import([alias]) for alias in node.names] if isinstance(node, ast.Import) else [node]


def imports_of(node: ast.AST, root: Path, file: str) -> set[tuple[str, str]]:
    """The files of the package in the folder ``root`` from which a text of this file imports, each with a name."""
    found = set()
    for one in ast.walk(node):
        if isinstance(one, ast.ImportFrom):
            words = one.module.split(".") if one.module else []
            if one.level:
                words = [*Path(file).parts[: -one.level], *words]
            elif not words or words.pop(0) != root.name:
                continue
            path = "/".join(words)
            source = next((p for p in (f"{path}.py", f"{path}/__init__.py") if path and (root / p).is_file()), "")
            found |= {(source, alias.name) for alias in one.names if source}
    return found


def _lacks(owner: Any, node: ast.stmt) -> bool:
    names = [*_names(node)]
    return bool(names) and not all(_has(owner, name) for name in names)


def _has(owner: Any, name: str) -> bool:
    """A class is not asked: one that derives from what stands in for another package refuses to answer."""
    return any(name in vars(one) for one in owner.__mro__) if isinstance(owner, type) else hasattr(owner, name)


def _new(file: str, owner: str, node: ast.stmt, root: Path, there: str, asked: bool = False) -> NewName:
    words, imports = frozenset(words_of(node)), frozenset(imports_of(node, root, there))
    return NewName(file, owner, node, frozenset(_names(node)), words, imports, asked)


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


def needed(texts: Iterable[tuple[str, ast.AST]], known: Sequence[NewName], other: Path) -> list[NewName]:
    """The new names that these texts name, and those that the texts of these name; each text with its file in the other
    release, whose package is in the folder ``other``.
    """
    words, imports = set[str](), set[tuple[str, str]]()
    for file, text in texts:
        words |= words_of(text)
        imports |= imports_of(text, other, file)
    left, found = [*known], list[NewName]()
    while more := [one for one in left if _is_needed(one, words, imports)]:
        left = [one for one in left if one not in more]
        found += more
        for one in more:
            words |= one.words
            imports |= {*one.imports, *((one.file, word) for word in one.words)}
    return found


def add_needed(texts: Iterable[tuple[str, ast.AST]], known: Sequence[NewName], root: Path, other: Path) -> None:
    """Adds the new names that are ``needed``. What needs more than the loaded release has is left out: a function that
    calls it fails.
    """
    left = sorted(needed(texts, known, other), key=lambda one: bool(one.owner))  # classes may name what modules have
    while waiting := [one for one in left if not _added(one, root)]:  # what it names may have been added by now
        if len(waiting) == len(left):
            return
        left = waiting


def _is_needed(name: NewName, words: set[str], imports: set[tuple[str, str]]) -> bool:
    imported = any((name.file, one) in imports for one in name.names)
    return imported or (not name.asked and bool(name.names & words))


def _added(name: NewName, root: Path) -> bool:
    """Adds a new name, if that can be done by now."""
    module = module_of(root / name.file)
    if module is None:
        return False
    try:
        _add(name, module, _owner(module, name.owner))
    except Exception:
        return False
    return True


def _add(name: NewName, module: ModuleType, owner: Any) -> None:
    """Adds what a statement defines to a module or a class."""
    node = name.node
    if isinstance(node, Function) and isinstance(owner, type):
        setattr(owner, node.name, made(node, module, owner))
        return
    space: dict[str, Any] = {}
    alone = ast.fix_missing_locations(ast.Module([node], []))
    code = compile(alone, _file_of(module), "exec", FUTURE, dont_inherit=True)
    exec(code, vars(module), vars(module) if owner is module else space)
    for one in name.names & {*space}:
        setattr(owner, one, space[one])


@cache
def kept_in_objects(path: Path) -> set[str]:
    """The attributes that a file assigns."""
    return {name for statement in _statements(path) for name in stored_in(statement)}


def stored_in(node: ast.AST) -> set[str]:
    """The attributes that a text assigns."""
    inner = ast.walk(node)
    return {one.attr for one in inner if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)}


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
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_plain(node.value):
        yield node.target.id


def _is_plain(value: ast.expr | None) -> bool:
    """An annotated name gets a value, which is not the description of a field of a dataclass."""
    called = value.func if isinstance(value, ast.Call) else None
    return value is not None and getattr(called, "id", getattr(called, "attr", "")) != "field"
