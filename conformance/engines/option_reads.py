"""Which launch options and environment variables the modules of an engine read. Only source text is looked at: nothing
is imported, and an option counts as read where its name stands, whatever object it is read of.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")
GETS = ("get", "pop")  # methods of a dict that look up a key
Reads = Mapping[str, Sequence[str]]  # of each name the files that read it, relative to the engine's folder


def declared(files: Iterable[Path]) -> frozenset[str]:
    """The names that classes in these files declare with a type: of classes of settings, the options."""
    classes = (node for file in files for node in ast.walk(_tree(file)) if isinstance(node, ast.ClassDef))
    lines = (line for one in classes for line in one.body if isinstance(line, ast.AnnAssign))
    return frozenset(line.target.id for line in lines if isinstance(line.target, ast.Name))


def defaults(file: Path, class_name: str) -> dict[str, object]:
    """The defaults that a class in this file declares, as far as they are literals: of a field the value, or the
    ``default`` of the call that makes the field.
    """
    classes = (node for node in ast.walk(_tree(file)) if isinstance(node, ast.ClassDef) and node.name == class_name)
    found = {}
    for line in (line for one in classes for line in one.body if isinstance(line, ast.AnnAssign)):
        value = _default(line.value)
        if isinstance(line.target, ast.Name) and value is not None:
            with suppress(ValueError):  # no literal
                found[line.target.id] = ast.literal_eval(value)
    return found


def _default(value: ast.expr | None) -> ast.expr | None:
    if isinstance(value, ast.Call):
        return next((word.value for word in value.keywords if word.arg == "default"), None)
    return value


def files_of(root: Path, patterns: Iterable[str], elsewhere: re.Pattern[str] | None = None) -> list[Path]:
    """The files below ``root`` that some pattern names, without those whose path there has ``elsewhere`` in it."""
    files = sorted(set(chain.from_iterable(root.glob(pattern) for pattern in patterns)))
    return [file for file in files if elsewhere is None or not elsewhere.search(file.relative_to(root).as_posix())]


def read_by(root: Path, files: Sequence[Path], settings: Iterable[str], prefix: str, holders: re.Pattern[str]) -> Reads:
    """The options and variables that these files read, each with the files that read it. ``settings``: patterns of the
    files that declare the options. ``prefix``: see ``variables_read``. ``holders``: see ``keys_read``.
    """
    names = declared(files_of(root, settings))
    return {
        **options_read(root, files, names),
        **variables_read(root, files, prefix),
        **keys_read(root, files, holders),
    }


def options_read(root: Path, files: Iterable[Path], names: frozenset[str]) -> Reads:
    """Those of these names that are read as an attribute, with a dot or by ``getattr``."""
    return _reads(root, files, lambda node: [name for name in _attributes(node) if name in names])


def keys_read(root: Path, files: Iterable[Path], holders: re.Pattern[str]) -> Reads:
    """The texts by which something is looked up in a dict, by ``get``, ``pop`` or in brackets, whose own last name is
    one of the ``holders``: options that no class declares.
    """
    return _reads(root, files, lambda node: [*_keys(node, holders)])


def variables_read(root: Path, files: Iterable[Path], prefix: str, imported: bool = False) -> Reads:
    """The environment variables that are named: with this prefix as an attribute or as a text, and with any name as the
    first argument of a call whose own name has ``env`` in it. ``imported``: only those that are named outside of every
    function, so that they are read once, when the module is imported.
    """
    variable = re.compile(rf"{re.escape(prefix)}[A-Z0-9_]+")

    def named(node: ast.AST) -> list[str]:
        return [*(name for name in _names(node) if variable.fullmatch(name)), *_asked_of_environment(node)]

    return _reads(root, files, named, _on_import if imported else ast.walk)


def _reads(
    root: Path,
    files: Iterable[Path],
    named: Callable[[ast.AST], list[str]],
    nodes: Callable[[ast.AST], Iterable[ast.AST]] = ast.walk,
) -> Reads:
    found: dict[str, set[str]] = {}
    for file in files:
        for name in (name for node in nodes(_tree(file)) for name in named(node)):
            found.setdefault(name, set()).add(file.relative_to(root).as_posix())
    return {name: sorted(found[name]) for name in sorted(found)}


def _on_import(node: ast.AST) -> Iterator[ast.AST]:
    """The node and those below it, without what is inside of functions."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _on_import(child)


def _asked_of_environment(node: ast.AST) -> list[str]:
    if not (isinstance(node, ast.Call) and node.args and "env" in ast.unparse(node.func)):
        return []
    text = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
    return [text] if isinstance(text, str) and VARIABLE.fullmatch(text) else []


def _names(node: ast.AST) -> Iterator[str]:
    yield from _attributes(node)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _keys(node: ast.AST, holders: re.Pattern[str]) -> Iterator[str]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in GETS and node.args:
        held, key = node.func.value, node.args[0]
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        held, key = node.value, node.slice
    else:
        return
    name = held.attr if isinstance(held, ast.Attribute) else held.id if isinstance(held, ast.Name) else ""
    if holders.fullmatch(name) and isinstance(key, ast.Constant) and isinstance(key.value, str):
        yield key.value


def _attributes(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield node.attr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        yield from (one.value for one in node.args[1:2] if isinstance(one, ast.Constant) and isinstance(one.value, str))


def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))
