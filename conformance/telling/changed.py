"""Which functions of an engine have another text than in the base, that is the engine as it was before a change.

Two texts are compared as syntax trees without docstrings, so comments, line breaks and the place in the file do not
count. A function that was moved to another file is found by its name with its class.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

_DEFINED = re.compile(r"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)", re.MULTILINE)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Changed:
    """Compares the functions of the engine with those in ``roots``, the folders and files of the base's own code."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [root.resolve() for root in roots]
        self._defining: dict[str, list[Path]] | None = None

    def has(self, file: str, relative: str, line: int, name: str) -> bool | None:
        """Whether the text of a function differs from the base's; true too where the base has no such function.

        ``file``: the file of the engine, ``relative``: this file relative to the engine's root, as in ``Roots``.
        ``line``: a line of the function. ``name``: the function's name with its class, without ``<locals>``. ``None``
        where the text cannot be read, as of a function that was made from a string.
        """
        mine = [text for first, last, text in _functions(Path(file)).get(name, ()) if first <= line <= last]
        if not mine:
            return None
        here = (root if root.name == relative and root.is_file() else root / relative for root in self._roots)
        before = [text for path in here for _, _, text in _functions(path).get(name, ())]
        if not before:  # it was moved to another file, or it is new
            before = [text for path in self._files(name) for _, _, text in _functions(path).get(name, ())]
        return mine[0] not in before

    def _files(self, name: str) -> list[Path]:
        """The files of the base that define a function of this name, whatever its class is."""
        if self._defining is None:
            self._defining = {}
            for path in (path for root in self._roots for path in _python_files(root)):
                for defined in {*_DEFINED.findall(_text(path))}:
                    self._defining.setdefault(defined, []).append(path)
        return self._defining.get(name.rpartition(".")[2], [])


def _python_files(root: Path) -> Iterator[Path]:
    yield from [root] if root.is_file() else sorted(root.rglob("*.py"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@cache
def _functions(path: Path) -> dict[str, list[tuple[int, int, str]]]:
    """By name the functions of a file: the first line (a decorator's), the last line, and the text without docstrings.

    Functions of one name, such as the getter and the setter of a property, stand side by side. A file that is no Python
    has none.
    """
    found: dict[str, list[tuple[int, int, str]]] = {}
    try:
        tree = ast.parse(_text(path))
    except (SyntaxError, ValueError):
        return found
    _drop_docstrings(tree)
    for name, node in _named(tree, ""):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        found.setdefault(name, []).append((first, node.end_lineno or first, ast.dump(node)))
    return found


def _named(node: ast.AST, above: str) -> Iterator[tuple[str, _Function]]:
    """The functions below a node, each with its name, which begins with the classes and functions around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Function | ast.ClassDef):
            name = f"{above}{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield name, child
            yield from _named(child, f"{name}.")
        else:
            yield from _named(child, above)


def _drop_docstrings(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        if isinstance(node, _Function | ast.ClassDef) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
