"""Takes one of the fixes in ``fixes.json`` out of a copy of the release that has it.

    python tests/reverts/revert.py                  lists the fixes
    python tests/reverts/revert.py NAME FOLDER      makes FOLDER, with ``sglang/`` below it, without the fix NAME

Nothing of SGLang's source is kept here. An edit names a function of the release and says what of it is deleted or
replaced; the text for a replacement is taken from the same function (or, ``older_function``, from the older release
that lacks the fix). An edit whose place is not there exactly once is an error, and so is one that changes nothing.
"""

from __future__ import annotations

import ast
import difflib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from conformance.driver.protocol import EngineError
from conformance.engines.sglang.releases import download

FIXES = Path(__file__).with_name("fixes.json")
PACKAGE = "sglang"


class NotRevertable(Exception):
    """The fix is not in the release as ``fixes.json`` says. The message names the file, the function and the edit."""


@dataclass(frozen=True)
class Fix:
    """One entry of ``fixes.json``.

    ``pull``: the pull request of SGLang; ``repairs``: what it repaired. ``release``: a release that has it, from which
    ``edits`` take it out (``revert`` says that in words); ``lacking``: an older release without it. ``stems`` and
    ``laws``: where a check should find that it is gone, and which laws fit. ``base_breaks_a_law``: the release itself
    breaks one of these laws in one of these stems, in another way. ``reached_by``: why drawn runs should execute the
    place. ``known_here``: what this repository knew of it before.
    """

    name: str
    pull: int
    repairs: str
    release: str
    lacking: str
    revert: str
    edits: list[dict[str, Any]]
    stems: list[str]
    laws: list[str]
    base_breaks_a_law: bool
    reached_by: str
    known_here: str


def fixes() -> dict[str, Fix]:
    """The fixes by name, in the order of the file."""
    return {entry["name"]: Fix(**entry) for entry in json.loads(FIXES.read_text(encoding="utf-8"))}


class Span(NamedTuple):
    """The bytes from ``start`` to ``stop`` of a file are replaced by ``new``."""

    start: int
    stop: int
    new: bytes = b""


class Place:
    """One function of a file. Positions are bytes, as in ``ast``."""

    def __init__(self, source: bytes, function: str) -> None:
        self.source = source
        self.lines = [0]
        for line in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))
        self.node = _function(ast.parse(source), function)

    def start(self, node: Any) -> int:
        """Where a node begins."""
        return self.lines[int(node.lineno) - 1] + int(node.col_offset)

    def stop(self, node: Any) -> int:
        """Where a node ends."""
        return self.lines[int(node.end_lineno) - 1] + int(node.end_col_offset)

    def text(self, node: Any) -> bytes:
        """The text of a node."""
        return self.source[self.start(node) : self.stop(node)]

    def whole_lines(self, statement: Any) -> Span:
        """The deletion of the lines of a statement. Another statement must be left in its block."""
        blocks = [getattr(n, field, None) for n in ast.walk(self.node) for field in ("body", "orelse", "finalbody")]
        block = next(b for b in blocks if isinstance(b, list) and statement in b)
        if len(block) == 1:
            raise NotRevertable("the statement is the only one of its block")
        return Span(self.lines[statement.lineno - 1], self.lines[statement.end_lineno])

    def find(self, kind: type[Any], wanted: Callable[[Any], bool]) -> Any:
        """The one node of this kind in the function that is wanted."""
        found = [node for node in ast.walk(self.node) if isinstance(node, kind) and wanted(node)]
        if len(found) != 1:
            raise NotRevertable(f"there are {len(found)} such places")
        return found[0]

    def call(self, name: str) -> ast.Call:
        """The one call of a function or method of this name."""
        found: ast.Call = self.find(ast.Call, lambda node: _last_name(node.func) == name)
        return found


def _function(tree: ast.Module, path: str) -> Any:
    """The function or method at a path such as ``Class.method``."""
    node: Any = tree
    for name in path.split("."):
        inner = [child for child in node.body if getattr(child, "name", None) == name]
        if len(inner) != 1:
            raise NotRevertable(f"there are {len(inner)} definitions of {name}")
        node = inner[0]
    return node


def _last_name(node: ast.expr) -> str:
    """``b`` for ``b`` and for ``a.b``; empty for any other expression."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _assigns(node: Any, target: str) -> bool:
    """The node is an assignment to this target alone."""
    return isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [target]


def _clears(target: str, node: ast.Assign) -> bool:
    """The node assigns ``None`` to this target alone."""
    return _assigns(node, target) and ast.unparse(node.value) == "None"


# The kinds of edits, beside ``older_function``. Each yields the spans that are replaced in the file.


def delete_call(place: Place, call: str) -> Iterator[Span]:
    """A statement that only calls ``call`` goes."""
    yield place.whole_lines(
        place.find(ast.Expr, lambda n: isinstance(n.value, ast.Call) and _last_name(n.value.func) == call)
    )


def delete_if(place: Place, names: list[str], comparison: str | None = None) -> Iterator[Span]:
    """An ``if`` without ``else`` goes, with what it guards: the one whose condition has exactly these names, and is a
    comparison of this kind (the name of its class in ``ast``), if one is given.
    """

    def wanted(node: ast.If) -> bool:
        used = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
        compared = [type(op).__name__ for op in node.test.ops] if isinstance(node.test, ast.Compare) else []
        return used == set(names) and not node.orelse and comparison in (None, *compared)

    yield place.whole_lines(place.find(ast.If, wanted))


def delete_assignments(place: Place, targets: list[str]) -> Iterator[Span]:
    """The assignments of ``None`` to these targets go."""
    for target in targets:
        yield place.whole_lines(place.find(ast.Assign, partial(_clears, target)))


def drop_arguments(place: Place, call: str, keep: int) -> Iterator[Span]:
    """A call keeps its first ``keep`` arguments alone."""
    node = place.call(call)
    gone = [*node.args[keep:], *node.keywords]
    if not gone:
        raise NotRevertable("the call has no more arguments")
    yield Span(place.stop(node.args[keep - 1]), max(map(place.stop, gone)))


def drop_keywords(place: Place, call: str, names: list[str]) -> Iterator[Span]:
    """A call loses these keyword arguments, which follow each other and are not its first ones."""
    found = [(node, k) for node in ast.walk(place.node) if isinstance(node, ast.Call) for k in node.keywords]
    mine = [k for node, k in found if _last_name(node.func) == call and k.arg in names]
    if [k.arg for k in mine] != names:
        raise NotRevertable(f"the call {call} has {[k.arg for k in mine]} of {names}")
    before = max(place.stop(k) for _, k in found if place.stop(k) < place.start(mine[0]))
    yield Span(before, place.stop(mine[-1]))


def drop_subtrahend(place: Place, target: str, name: str) -> Iterator[Span]:
    """Of an assignment of a difference to ``target``, the last term is no longer subtracted: ``name``."""

    def wanted(node: ast.Assign) -> bool:
        value = node.value
        last = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub) and _last_name(value.right) == name
        return _assigns(node, target) and last

    value = place.find(ast.Assign, wanted).value
    yield Span(place.stop(value.left), place.stop(value))


def set_to_parameter(place: Place, target: str, parameter: str) -> Iterator[Span]:
    """``target`` gets the value of a parameter of the function."""
    if parameter not in {a.arg for a in place.node.args.args}:
        raise NotRevertable(f"the function has no parameter {parameter}")
    value = place.find(ast.Assign, lambda n: _assigns(n, target)).value
    yield Span(place.start(value), place.stop(value), parameter.encode())


KINDS: dict[str, Callable[..., Iterator[Span]]] = {
    edit.__name__: edit
    for edit in (
        delete_call,
        delete_if,
        delete_assignments,
        drop_arguments,
        drop_keywords,
        drop_subtrahend,
        set_to_parameter,
    )
}


def edited(source: bytes, older: Callable[[], bytes], edit: dict[str, Any]) -> bytes:
    """The text of a file after one edit of ``fixes.json``. ``older``: reads the file in the release without the fix.

    Raises ``NotRevertable`` if the place of the edit is not there, or if the edit changes nothing.
    """
    options = {name: value for name, value in edit.items() if name not in ("file", "function", "kind")}
    try:
        place = Place(source, edit["function"])
        if edit["kind"] == "older_function":
            was = Place(older(), edit["function"])
            spans = [Span(place.start(place.node), place.stop(place.node), was.text(was.node))]
        else:
            spans = list(KINDS[edit["kind"]](place, **options))
    except NotRevertable as error:
        raise NotRevertable(f"{edit['file']}: {edit['function']}: {edit['kind']} {options}: {error}") from None
    text = source
    for span in sorted(spans, reverse=True):
        text = text[: span.start] + span.new + text[span.stop :]
    if ast.dump(ast.parse(text)) == ast.dump(ast.parse(source)):
        raise NotRevertable(f"{edit['file']}: {edit['function']}: {edit['kind']} {options} changes nothing")
    return text


def texts(fix: Fix) -> dict[str, tuple[bytes, bytes]]:
    """The files that the edits change, below the package: each with its text in the release and its new text."""
    release, older = (download.release(version) / PACKAGE for version in (fix.release, fix.lacking))
    found: dict[str, tuple[bytes, bytes]] = {}
    for edit in fix.edits:
        file = edit["file"]
        was, now = found.get(file) or ((release / file).read_bytes(),) * 2
        found[file] = was, edited(now, (older / file).read_bytes, edit)
    return found


def changed_lines(was: bytes, now: bytes) -> tuple[int, int]:
    """How many lines are gone, and how many are new."""
    lines = list(difflib.unified_diff(was.decode().splitlines(), now.decode().splitlines(), lineterm="", n=0))[2:]
    return sum(line.startswith("-") for line in lines), sum(line.startswith("+") for line in lines)


def revert(fix: Fix, target: Path) -> dict[str, tuple[int, int]]:
    """Makes ``target``: a copy of the release that has the fix, without it. Returns the lines gone and new by file.

    Raises ``NotRevertable`` if the fix cannot be taken out, ``FileExistsError`` if ``target`` is there already, and
    ``EngineError`` if a release cannot be had.
    """
    new = texts(fix)
    source = download.release(fix.release) / PACKAGE
    shutil.copytree(source, target / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=False)
    for file, (_, text) in new.items():
        (target / PACKAGE / file).write_bytes(text)
    return {file: changed_lines(*pair) for file, pair in new.items()}


def main(arguments: list[str]) -> int:
    """The command: 0 if the copy is made, 3 if it cannot be made."""
    known = fixes()
    if not arguments:
        for fix in known.values():
            print(f"{fix.name}: PR {fix.pull}, out of {fix.release}. {fix.revert}")
        return 0
    if len(arguments) != 2 or arguments[0] not in known:
        print(f"usage: revert.py NAME FOLDER, where NAME is one of {', '.join(known)}", file=sys.stderr)
        return 3
    fix, target = known[arguments[0]], Path(arguments[1])
    try:
        changed = revert(fix, target)
    except (NotRevertable, EngineError, OSError) as error:
        print(f"{fix.name}: {error}", file=sys.stderr)
        return 3
    print(f"{target} is {PACKAGE} {fix.release} without PR {fix.pull}:")
    for file, (gone, added) in changed.items():
        print(f"  {file}: {gone} lines gone, {added} lines new")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
