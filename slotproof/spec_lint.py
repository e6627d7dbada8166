"""Finds Python in the spec that could read differently on plain values and on symbols: ``python -m slotproof.spec_lint
spec/`` exits with 1 where there is any.

The functions of the spec are evaluated on plain values and on symbols of the provers, and must be one text for both. So
what they may use is a short list (``ALLOWED``): calls of the spec's own functions, operators, attributes, lambdas, and
names that are assigned once. Everything else is a complaint: control flow, since a symbol has no truth value in Python;
``try``, ``getattr`` and look-ups by a value, which can tell a symbol from a number; and a name that is assigned twice,
since a symbolic map evaluates a lambda later than a plain one.

Not checked: code outside functions (it registers laws), the files ``EXCLUDED``, functions whose docstring says "(finite
reading)", the plain integers of ``lengths.py``, and ``among`` listings, which only the evaluation on plain values
calls: the last argument of ``.where(cond, value, among)`` and of ``.such(law, among)``.
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
# What functions of the spec may be made of. Names, arguments and operators are checked one by one.
ALLOWED = (
    *(ast.FunctionDef, ast.Lambda, ast.arguments, ast.arg, ast.Return, ast.Expr, ast.Assign, ast.AnnAssign),
    *(ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.keyword, ast.Starred, ast.Tuple, ast.List, ast.Subscript),
    *(ast.BinOp, ast.UnaryOp, ast.Compare, ast.JoinedStr, ast.FormattedValue),
    *(ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
    *(
        ast.comprehension,
        ast.match_case,
        ast.pattern,
        ast.withitem,
        ast.ExceptHandler,
    ),  # parts of statements that are complaints
)
IMPORTS = frozenset({"__future__", "collections.abc", "dataclasses", "typing"})  # beside modules of the spec

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
    known = _names_of_module(tree)
    found = {c for function in _functions(tree, border) for c in _complaints(function, known, file)}
    return sorted({*found, *_imports(tree, file)}, key=lambda c: (c.line, c.message))


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


def _imports(tree: ast.Module, file: str) -> Iterator[Complaint]:
    """Imports of what is not the spec's own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield Complaint(file, node.lineno, "`import`: the spec imports names from modules of the spec")
        elif isinstance(node, ast.ImportFrom) and node.module not in IMPORTS and not _of_spec(node):
            yield Complaint(file, node.lineno, f"`{node.module}` is no module of the spec")


def _of_spec(node: ast.ImportFrom) -> bool:
    return not node.level and (node.module or "").partition(".")[0] == "spec"


def _names_of_module(tree: ast.Module) -> frozenset[str]:
    """The functions and classes that the module defines, and what it imports from the spec."""
    defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    imports = (n for n in tree.body if isinstance(n, ast.ImportFrom) and _of_spec(n))
    return frozenset(defined | {alias.asname or alias.name for n in imports for alias in n.names})


def _complaints(function: Function, known: frozenset[str], file: str) -> Iterator[Complaint]:
    listings = _listings(function)
    local = known | _own_names(function)
    annotations = _annotations(function)
    todo: list[ast.AST] = [function]
    while todo:
        node = todo.pop()
        if node in listings or node in annotations:
            continue
        if message := _message(node) or _call(node, local):
            yield Complaint(file, _line(node) or function.lineno, message)
        if isinstance(node, Function):
            yield from _assigned_twice(node, file)
        todo.extend(ast.iter_child_nodes(node))


def _annotations(function: Function) -> set[ast.AST]:
    """The types of arguments, answers and names: nothing evaluates them."""
    found = set()
    for node in ast.walk(function):
        found |= {getattr(node, name, None) for name in ("annotation", "returns")}
    return {node for node in found if isinstance(node, ast.AST)}


def _own_names(function: Function) -> set[str]:
    """The names that a function and the functions in it give to something."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


def _assigned_twice(function: Function, file: str) -> Iterator[Complaint]:
    """A lambda sees a name's last value when a symbolic map evaluates it, and the present one on plain values."""
    given = {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}
    todo = [node for node in ast.iter_child_nodes(function) if node is not function.args]
    while todo:
        node = todo.pop(0)
        name = node.name if isinstance(node, ast.FunctionDef) else _stored(node)
        if name in given:
            yield Complaint(file, _line(node), f"`{name}` is assigned twice: a lambda would see one value or the other")
        given.update([name] if name else [])
        if not isinstance(node, Function):
            todo.extend(ast.iter_child_nodes(node))


def _stored(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else None


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _call(node: ast.AST, known: set[str] | frozenset[str]) -> str | None:
    """A call of what is not the spec's own: it could look at a value."""
    if not isinstance(node, ast.Call):
        return None
    called = node.func
    if isinstance(called, ast.Attribute):
        return "`.get()` looks a value up: use a map of the state" if called.attr == "get" else None
    if isinstance(called, ast.Name):
        return None if called.id in known else f"`{called.id}()` is not of the spec: it may look at a value"
    return None if isinstance(called, ast.Lambda | ast.Call) else "a call of something that is no name"


def _message(node: ast.AST) -> str | None:
    if isinstance(node, ast.BoolOp | ast.UnaryOp):
        return STATEMENTS.get(type(node.op))
    if isinstance(node, ast.Compare):
        return _comparison(node)
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return "an assignment to a part of something: it would change what a lambda sees"
    if isinstance(node, ast.Subscript):
        constant = isinstance(node.slice, ast.Constant)
        return None if constant else "`[…]` looks a value up: use a map of the state"
    if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
        return "a value that nobody takes: a call for its effect would change what a lambda sees"
    if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
        return f"`.{node.attr}` is private"
    if isinstance(node, ast.FunctionDef) and node.decorator_list and node.col_offset:
        return "a decorator in a function"
    known = STATEMENTS.get(type(node))
    if known or isinstance(node, ALLOWED):
        return known if not isinstance(node, ast.operator | ast.unaryop | ast.boolop) else None
    return f"`{type(node).__name__}` is not among what the spec may use"


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
