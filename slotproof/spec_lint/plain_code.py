"""What code of the spec that only the evaluation on plain values runs must not do: ``among`` listings, and functions
whose docstring says "(finite reading)".

The provers do not evaluate such code. So it may only compute: if it changed something that a law reads, the law would
say one thing on plain values and another on symbols. It may use control flow, comprehensions, the functions in
``PURE``, what the files of the spec define, and lists and dictionaries that it makes itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from functools import lru_cache

PURE = frozenset(
    {"dict", "divmod", "enumerate", "filter", "frozenset", "int", "len", "list", "map", "max", "min", "range"}
    | {"reversed", "set", "sorted", "sum", "tuple", "zip"}
)
FORBIDDEN: dict[type[ast.AST], str] = {
    ast.Global: "`global` changes what other functions see",
    ast.Nonlocal: "`nonlocal` changes what other functions see",
    ast.Delete: "`del` changes what other functions see",
    ast.Import: "an import in a function",
    ast.ImportFrom: "an import in a function",
    ast.ClassDef: "a class in a function",
    ast.AugAssign: "`+=` and its like can change what other functions see",
    ast.Yield: "`yield` makes an iterator that is empty the second time",
    ast.YieldFrom: "`yield` makes an iterator that is empty the second time",
    ast.Try: "`try` can tell a symbol from a plain value",
    ast.With: "`with` runs what is no function of the spec",
}
MAKES = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
GROWS = frozenset({"append"})  # methods that change a list that the function made

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@lru_cache(maxsize=256)  # rules ask for a module where it is linted, and where another one names it
def parsed(source: str) -> ast.Module:
    """The tree of a module's text. Nobody changes it."""
    return ast.parse(source)


@lru_cache(maxsize=4096)  # rules ask for the nodes of a module and of its functions many times
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """The node and all nodes below it."""
    return tuple(ast.walk(tree))


def complaints(function: Function, known: Set[str], own: Set[str], attributes: Set[str]) -> Iterator[tuple[int, str]]:
    """The line and the message for each thing that the code does beside computing.

    ``known``: the names of its module. ``own``: the names that it and the functions around it give. ``attributes``: the
    attributes that files of the spec define.
    """
    made = _made(function)
    calls_on = {node.func: node for node in nodes(function) if isinstance(node, ast.Call)}
    apart = types_in(function)
    for node in nodes(function):
        if node in apart:
            continue
        message = FORBIDDEN.get(type(node))
        if isinstance(node, ast.arguments) and any(not isinstance(d, ast.Constant | ast.Tuple) for d in node.defaults):
            message = "a default that can change"
        if isinstance(node, ast.Attribute):
            message = _attribute(node, attributes, made)
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            message = None if _is(node.value, made) else "an assignment to a part of what other functions see"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in known | own:
            pure = node.id in PURE and (node in calls_on or node.id == "dict")
            message = None if pure else f"`{node.id}` is not among what a listing may use"
        elif isinstance(node, ast.Call) and not isinstance(node.func, ast.Name | ast.Attribute):
            message = "a call of something that is no name"
        if message:
            yield getattr(node, "lineno", function.lineno), message


def types_in(function: Function) -> set[ast.AST]:
    """The types of arguments, answers and names, and all their parts: nothing evaluates them."""
    types = (getattr(node, name, None) for node in nodes(function) for name in ("annotation", "returns"))
    return {part for found in types if isinstance(found, ast.AST) for part in nodes(found)}


def _attribute(node: ast.Attribute, attributes: Set[str], made: Set[str]) -> str | None:
    if not isinstance(node.ctx, ast.Load):
        return "an assignment to a part of what other functions see"
    if node.attr.startswith("_"):
        return f"`.{node.attr}` is private"
    if node.attr in GROWS:
        return None if _is(node.value, made) else f"`.{node.attr}` changes what other functions see"
    if node.attr == "fromkeys" and _is(node.value, {"dict"}):
        return None
    return None if node.attr in attributes else f"`.{node.attr}` is defined by no file of the spec"


def _is(node: ast.expr, names: Set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _made(function: Function) -> set[str]:
    """The names to which the function itself assigns a list, dictionary or set that it writes there, and no more."""
    given: dict[str, list[bool]] = {}
    targets = set()
    for node in nodes(function):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, MAKES):
            target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
            target = node.target if isinstance(node, ast.AnnAssign) else target
            if isinstance(target, ast.Name):
                targets.add(target)
    for node in nodes(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            given.setdefault(node.id, []).append(node in targets)
        elif isinstance(node, ast.arg):
            given.setdefault(node.arg, []).append(False)
    return {name for name, fresh in given.items() if all(fresh)}
