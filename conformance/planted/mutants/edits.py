"""Edits of an engine's own bookkeeping: which there are, how each is named, and a copy of the engine's source with one.

An edit is a mutant (``places``) of a line that is executed while the engine is driven (``driven``), in a file that the
engine's plug-in counts as bookkeeping. Nothing else is left out but annotations: an edit of a message or of a log is
drawn as any other, and whoever reads the misses says why nobody can tell.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from conformance.planted.mutants import places
from conformance.planted.mutants.places import LOOP, STATEMENT, CodeMutant, Spot

LONGEST = 6  # words of an edit that are told; a longer one is told by its operator
_WORD = re.compile(r"\w+|[^\w\s]+")
_PATH = re.compile(r"[A-Za-z_][\w.]*")


def spots(root: Path, bookkeeping: Sequence[str], lines: Mapping[str, Collection[int]]) -> list[Spot]:
    """Each edit of the bookkeeping. ``bookkeeping``: files and folders below ``root``. ``lines``: by file the lines
    that are executed while the engine is driven.
    """
    found: list[Spot] = []
    for file, executed in sorted(lines.items()):
        if any(file == place or file.startswith(f"{place}/") for place in bookkeeping):
            driven = driven_lines((root / file).read_text(encoding="utf-8"), executed)
            if driven:
                found += places.spots(root / file, name=file, line=driven.__contains__, messages=True)
    return found


def driven_lines(text: str, executed: Collection[int]) -> frozenset[int]:
    """The lines of a file's statements that are executed: each line of a plain statement, and of a statement with a
    block the lines before the block. Only statements in bodies of functions count: the others run at the import.
    """
    statement: dict[int, int] = {}  # by line the first line of the innermost statement
    for node in _in_functions(ast.parse(text)):
        block = getattr(node, "body", None)
        last = max(node.lineno, block[0].lineno - 1) if block else node.end_lineno
        statement.update(dict.fromkeys(range(node.lineno, last + 1), node.lineno))
    reached = {statement[line] for line in executed if line in statement}
    return frozenset(line for line, first in statement.items() if first in reached)


def _in_functions(tree: ast.Module) -> Iterator[Any]:
    """Each statement in the body of a function, those of an outer block before those within it."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, inside = waiting.pop()
        if inside and isinstance(node, ast.stmt | ast.ExceptHandler):
            yield node
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        waiting += [(child, inside) for child in ast.iter_child_nodes(node)]


def identity(spot: Spot) -> str:
    """The edit in twelve hexadecimal digits, which stay as long as its line and its function do. It names the edit
    where no text of the engine may stand.
    """
    return hashlib.sha256(spot.key.encode()).hexdigest()[:12]


def in_words(mutant: CodeMutant) -> str:
    """The edit with at most ``LONGEST`` words of the engine's text: what is kept in this repository."""
    if mutant.spot.operator == STATEMENT:
        named = _PATH.match(mutant.was)
        return f"the statement on `{named[0]}` is left out" if named else "a statement is left out"
    was, now = _WORD.findall(mutant.was), _WORD.findall(mutant.now)
    changed = [op for op in SequenceMatcher(None, was, now, autojunk=False).get_opcodes() if op[0] != "equal"]
    gone = [word for _, first, last, *_ in changed for word in was[first:last]]
    new = [word for *_, first, last in changed for word in now[first:last]]
    if mutant.spot.operator == LOOP and gone not in (["break"], ["continue"]):
        return "the loop is not entered"
    if len(gone) + len(new) > LONGEST:
        return mutant.spot.operator
    told = [f"`{' '.join(words)}`" if words else "" for words in (gone, new)]
    return f"{told[0]} is {told[1]}" if all(told) else f"{told[0]} is left out" if told[0] else f"{told[1]} is added"


def copy(root: Path, folder: Path, changed: Mapping[str, bytes]) -> Path:
    """Makes a copy of the package ``root`` below ``folder``, in which these files, by their place below ``root``, have
    these texts. Returns ``folder``.

    Unchanged files are hard links where the file system allows, so that a copy costs little; a changed file is a new
    one, so ``root`` stays as it is.
    """
    shutil.copytree(root, folder / root.name, copy_function=_link, symlinks=True)
    for file, text in changed.items():
        place = folder / root.name / file
        place.unlink()
        place.write_bytes(text)
        for compiled in (place.parent / "__pycache__").glob(f"{place.stem}.*"):
            compiled.unlink()
    return folder


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
