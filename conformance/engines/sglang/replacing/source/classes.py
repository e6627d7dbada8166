"""The files of a release and the classes that they define, read from the source alone."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from conformance.driver.protocol import EngineError

MARK = "lloc"  # a file without these letters names no allocator, and no `alloc` call


@dataclass(frozen=True)
class File:
    """One parsed file. ``place``: its path below the folder of the package."""

    place: str
    tree: ast.Module


@dataclass(frozen=True)
class Parameters:
    """What a method can be called with: the names of its parameters in order, and of those that can only be named.
    ``more``: any number of further arguments; ``any_name``: any further name.
    """

    listed: tuple[str, ...]
    named: tuple[str, ...]
    more: bool
    any_name: bool

    @classmethod
    def of(cls, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Parameters:
        """The parameters of a method, without its first one, unless it is static."""
        static = any(name_of(word) == "staticmethod" for word in node.decorator_list)
        listed = [word.arg for word in (*node.args.posonlyargs, *node.args.args)][0 if static else 1 :]
        named = tuple(word.arg for word in node.args.kwonlyargs)
        return cls(tuple(listed), named, node.args.vararg is not None, node.args.kwarg is not None)

    def take(self, count: int, names: Iterable[str]) -> bool:
        """A call with so many arguments and these names does not give more than there is."""
        free = {*self.listed[count:], *self.named}
        return (self.more or count <= len(self.listed)) and (self.any_name or free.issuperset(names))


@dataclass(frozen=True)
class Class:
    """One class. ``members``: what its body and its methods define: methods, class attributes, and attributes that a
    method sets on its first argument. ``methods``: the parameters of its methods, without the first one.
    """

    name: str
    file: str
    bases: tuple[str, ...]
    members: frozenset[str]
    methods: Mapping[str, Parameters] = field(default_factory=dict)


def files(package: Path) -> list[File]:
    """The files below ``package`` that can touch an allocator. ``EngineError`` for a file that is no Python."""
    found = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if MARK not in text:
            continue
        place = path.relative_to(package).as_posix()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # strings with a wrong escape are the release's own matter
                found.append(File(place, ast.parse(text)))
        except SyntaxError as error:
            raise EngineError(f"{place} line {error.lineno} cannot be parsed: {error.msg}") from error
    return found


def name_of(node: ast.AST | None) -> str | None:
    """The last name of ``a.b.c`` or ``c``; of ``C[T]`` that of ``C``; ``None`` for any other expression."""
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


@dataclass
class Classes:
    """The classes of a release by name. Of two classes of one name the one in the first file counts."""

    known: dict[str, Class] = field(default_factory=dict)
    _lines: dict[str, tuple[Class, ...]] = field(default_factory=dict)
    _below: dict[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, sources: Iterable[File]) -> Classes:
        """The classes that the files define, nested ones too."""
        found = cls()
        for file in sources:
            for node in ast.walk(file.tree):
                if isinstance(node, ast.ClassDef):
                    bases = tuple(name for base in node.bases if (name := name_of(base)))
                    made = Class(node.name, file.place, bases, frozenset(_members(node)), _methods(node))
                    found.known.setdefault(node.name, made)
        return found

    def line(self, name: str) -> tuple[Class, ...]:
        """The class and the classes that it inherits from, those first that are looked into first."""
        if name not in self._lines:
            self._lines[name] = tuple(self._line(name))
        return self._lines[name]

    def _line(self, name: str) -> Iterator[Class]:
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            one = waiting.pop(0)
            if one in self.known and one not in seen:
                seen.add(one)
                yield self.known[one]
                waiting = [*self.known[one].bases, *waiting]

    def below(self, name: str) -> frozenset[str]:
        """The class and all classes that inherit from it."""
        if not self._below:
            found: dict[str, set[str]] = {one: set() for one in self.known}
            for one in self.known:
                for parent in self.line(one):
                    found[parent.name].add(one)
            self._below = {one: frozenset(names) for one, names in found.items()}
        return self._below.get(name, frozenset())

    def takes(self, name: str, member: str, count: int, names: Iterable[str]) -> bool:
        """A call of the member of an object of the class can have so many arguments and these names. True where the
        source does not show the method.
        """
        found = next((one for one in self.line(name) if member in one.members), None)
        known = None if found is None else found.methods.get(member)
        return known is None or known.take(count, names)

    def members(self, name: str) -> frozenset[str]:
        """All members of a class, with what it inherits."""
        return frozenset().union(*(one.members for one in self.line(name)))


def _methods(node: ast.ClassDef) -> dict[str, Parameters]:
    parts = (part for part in node.body if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return {part.name: Parameters.of(part) for part in parts}


def _members(node: ast.ClassDef) -> Iterator[str]:
    for part in node.body:
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield part.name
            if part.args.args:
                yield from _set_on(part, part.args.args[0].arg)
        elif isinstance(part, ast.Assign):
            yield from (target.id for target in part.targets if isinstance(target, ast.Name))
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id


def _set_on(function: ast.AST, owner: str) -> Iterator[str]:
    """The attributes that a method sets on its first argument."""
    set_ones = (node for node in ast.walk(function) if isinstance(node, ast.Attribute))
    for node in set_ones:
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == owner:
            yield node.attr
