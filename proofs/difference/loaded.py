"""A revision of the spec, loaded as modules of its own beside the present one.

The words of the spec (``spec.logic``, ``spec.finite``) are always the present ones, so that both revisions speak of one
kind of step and of law, and only linted text of a revision is executed.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import spec
from spec.logic import Drain, Stem

WORDS = ("logic", "finite")
OUTSIDE_OF_SPEC = frozenset({"__future__", "collections.abc", "dataclasses", "typing"})
HERE, SPEC = __name__.rpartition(".")[0], spec.__name__.rpartition(".")[2]


class Unreadable(ValueError):
    """A revision that cannot be loaded. The message is one line that says why."""


@dataclass(frozen=True, eq=False)
class Revision:
    """A loaded revision: its modules by name, and its stems by name."""

    folder: Path
    modules: dict[str, ModuleType]
    stems: dict[str, Stem]

    @property
    def drains(self) -> dict[str, Drain]:
        """What is said about rest, by the module that says it."""
        return {name: value for name, of in self.modules.items() for value in vars(of).values() if _is_drain(value)}


def _is_drain(value: Any) -> bool:
    return isinstance(value, Drain)


@cache
def load(folder: Path) -> Revision:
    """The spec in this folder. It must have been linted before: its modules are executed.

    Raises ``Unreadable`` where it cannot be loaded with the present words.
    """
    loading = _Loading(folder)
    for name in names(folder):
        loading.module(name)
    found = {name: vars(of).get("stem") for name, of in loading.modules.items()}
    return Revision(folder, loading.modules, {name: of for name, of in found.items() if isinstance(of, Stem)})


def names(folder: Path) -> list[str]:
    """The names of the modules of the spec in this folder, without those of the words."""
    return [path.stem for path in sorted(folder.glob("*.py")) if path.stem not in (*WORDS, "__init__")]


class _Loading:
    """Loads the modules of a folder. An import of the spec in them finds the modules of that folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: dict[str, ModuleType] = {}
        self.prefix = f"{HERE}.of_{sha256(str(folder).encode()).hexdigest()[:12]}"
        self.package = ModuleType(self.prefix)
        sys.modules[self.prefix] = self.package
        for word in WORDS:
            setattr(self.package, word, importlib.import_module(f"{spec.__name__}.{word}"))

    def module(self, name: str) -> ModuleType:
        """The module of this name; it is loaded once."""
        if name in self.modules:
            return self.modules[name]
        made = ModuleType(f"{self.prefix}.{name}")
        made.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._import}
        self.modules[name] = made
        sys.modules[made.__name__] = made
        try:
            exec(self._code(name), vars(made))
        except Unreadable:
            raise
        except Exception as error:  # whatever the text of a revision raises
            raise Unreadable(f"{self.folder / name}.py: {type(error).__name__}: {error}") from error
        setattr(self.package, name, made)
        return made

    def _code(self, name: str) -> CodeType:
        path = self.folder / f"{name}.py"
        return compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True)

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: tuple[str, ...] = (), level: int = 0
    ) -> ModuleType:
        """What an import statement of a module of the spec finds."""
        if name in OUTSIDE_OF_SPEC and not level:
            return __import__(name, globals, locals, fromlist, level)
        _, _, inside = f"{name}.".partition(f"{SPEC}.")
        wanted = [inside.rstrip(".")] if inside else [*fromlist]
        for module in wanted:
            if level or not (self.folder / f"{module}.py").is_file():
                raise Unreadable(f"{self.folder} has no module {module}")
            if module not in WORDS:
                self.module(module)
        return sys.modules[f"{spec.__name__}.{wanted[0]}"] if inside and wanted[0] in WORDS else self._found(inside)

    def _found(self, inside: str) -> ModuleType:
        return self.modules[inside.rstrip(".")] if inside else self.package


# What the words mean.


def changed_words(one: Path, other: Path) -> Iterator[str]:
    """The functions and classes of the words that two revisions define differently, without their docstrings."""
    for word in WORDS:
        was, now = (_definitions(folder / f"{word}.py") for folder in (one, other))
        yield from (f"{word}.{name}" for name in sorted({*was, *now}) if was.get(name) != now.get(name))


def _definitions(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    found: dict[str, str] = {}
    for node in bare(ast.parse(path.read_text(encoding="utf-8"))).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = ast.dump(node)
        elif isinstance(node, ast.Assign):
            found[ast.unparse(node.targets[0])] = ast.dump(node.value)
    return found


def bare(tree: Any) -> Any:
    """The tree without docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree
