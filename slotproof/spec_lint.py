"""Finds Python control flow in the spec: ``python -m slotproof.spec_lint spec/`` exits with 1 where there is any.

The functions of the spec are evaluated on plain values and on symbols of the provers. A symbol has no truth value in
Python, so these functions must not use ``if``, ``and``, ``for`` and the like. Not checked: code outside functions (it
registers laws), the files ``EXCLUDED``, functions whose docstring says "(finite reading)", the plain integers of
``lengths.py``, and ``among`` listings, which only the evaluation on plain values calls: the last argument of
``.where(cond, value, among)`` and of ``.such(law, among)``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

EXCLUDED = ("logic.py", "finite.py")
FINITE = "(finite reading)"
BORDER_FILE, BORDER = "lengths.py", "# Plain integers at the border."
AMONG_AT = {"where": 2, "such": 1}

STATEMENTS: dict[type[ast.AST], str] = {
    ast.If: "`if` branches on a value: use ite",
    ast.IfExp: "`… if … else …` branches on a value: use ite",
    ast.While: "`while` branches on a value",
    ast.For: "`for` outside an among listing: quantify with .all, .any or .count",
    ast.Assert: "`assert` asks for the truth of a value: use requires",
    ast.Match: "`match` branches on a value: use ite",
    ast.Not: "`not` asks for the truth of a value: use no",
    ast.And: "`and` asks for the truth of a value: use &",
    ast.Or: "`or` asks for the truth of a value: use |",
    ast.ListComp: "a comprehension outside an among listing: quantify with .all, .any or .count",
    ast.SetComp: "a comprehension outside an among listing: use .such",
    ast.DictComp: "a comprehension outside an among listing: use .where",
    ast.GeneratorExp: "a comprehension outside an among listing: quantify with .all, .any or .count",
}
CALLS = frozenset({
    *("bool", "int", "float", "isinstance", "len", "range", "filter", "map", "set", "frozenset"),
    *("min", "max", "abs", "sorted", "any", "all", "sum", "round", "divmod"),
})  # fmt: skip

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Complaint:
    """Something that the spec must not use, and where it stands."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


def lint(source: str, file: str = "spec.py") -> list[Complaint]:
    """What ``source`` must not use, in order of lines."""
    tree = ast.parse(source, file)
    border = _border(source, file)
    found = {c for function in _functions(tree, border) for c in _complaints(function, file)}
    return sorted(found, key=lambda c: (c.line, c.message))


def _border(source: str, file: str) -> int | None:
    """The line from which on ``lengths.py`` computes with plain integers."""
    if Path(file).name != BORDER_FILE:
        return None
    lines = source.splitlines()
    return lines.index(BORDER) + 1 if BORDER in lines else None


def _functions(node: ast.AST, border: int | None) -> Iterator[Function]:
    """The outermost functions that are evaluated on symbols."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function):
            yield from _functions(child, border)
        elif not _finite(child) and (border is None or child.lineno < border):
            yield child


def _finite(function: Function) -> bool:
    if isinstance(function, ast.Lambda):
        return False
    return FINITE in " ".join((ast.get_docstring(function) or "").split())


def _complaints(function: Function, file: str) -> Iterator[Complaint]:
    listings = _listings(function)
    todo: list[ast.AST] = [function]
    while todo:
        node = todo.pop()
        if node in listings:
            continue
        message = _message(node)
        if message:
            yield Complaint(file, getattr(node, "lineno", function.lineno), message)
        todo.extend(ast.iter_child_nodes(node))


def _message(node: ast.AST) -> str | None:
    if isinstance(node, ast.BoolOp | ast.UnaryOp):
        return STATEMENTS.get(type(node.op))
    if isinstance(node, ast.Compare):
        return _comparison(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
        return f"`{node.func.id}()` looks at a value: use what spec.logic and the maps of the state offer"
    return None if isinstance(node, ast.operator | ast.unaryop | ast.boolop) else STATEMENTS.get(type(node))


def _comparison(node: ast.Compare) -> str | None:
    if len(node.ops) > 1:
        return "a chained comparison is an `and`: use (a < b) & (b < c)"
    if isinstance(node.ops[0], ast.In | ast.NotIn):
        return "`in` asks for the truth of a value: use .has"
    if isinstance(node.ops[0], ast.Is | ast.IsNot) and not _is_none(node.comparators[0]):
        return "`is` compares objects, not values: use =="
    return None


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _listings(function: Function) -> set[ast.AST]:
    """The lambdas and nested functions that only list keys, for the evaluation on plain values."""
    among = [a for node in ast.walk(function) if isinstance(node, ast.Call) for a in _among(node)]
    names = [a for a in among if isinstance(a, ast.Name)]
    listed, elsewhere = {n.id for n in names}, _loaded(function, set(names))
    nested = (n for n in ast.walk(function) if isinstance(n, ast.FunctionDef) and n is not function)
    return {
        *(a for a in among if isinstance(a, ast.Lambda)),
        *(n for n in nested if n.name in listed and n.name not in elsewhere),
    }


def _among(call: ast.Call) -> list[ast.expr]:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in AMONG_AT:
        return []
    return [*call.args[AMONG_AT[call.func.attr] :], *(k.value for k in call.keywords if k.arg == "among")]


def _loaded(function: Function, but: set[ast.Name]) -> set[str]:
    """The names that are used, except at the places ``but``."""
    names = (n for n in ast.walk(function) if isinstance(n, ast.Name) and n not in but)
    return {n.id for n in names if isinstance(n.ctx, ast.Load)}


def files(paths: list[str]) -> list[Path]:
    """The spec files among ``paths``, folders searched."""
    found = (p for path in map(Path, paths) for p in ([path] if path.is_file() else sorted(path.rglob("*.py"))))
    return [p for p in found if p.name not in EXCLUDED]


def main(arguments: list[str]) -> int:
    """Prints each complaint; 1 if there are any, 3 where there is nothing to look at."""
    specs = files(arguments)
    if not specs:
        print("usage: python -m slotproof.spec_lint FOLDER_OR_FILE…", file=sys.stderr)
        return 3
    complaints = [c for spec in specs for c in lint(spec.read_text(encoding="utf-8"), str(spec))]
    print("\n".join([*map(str, complaints), f"spec lint: {len(specs)} files, {len(complaints)} complaints"]))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
