"""The operators that make a wrong transition of a right one: each changes one place of the spec's text.

Changed are the transitions and the functions that make a part of one (a new state, a set, a requirement). Functions
that answer a truth or a number are left alone, since laws say what they mean with them.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# What a function answers whose text is a part of the law's meaning.
MEANINGS = ("Truth", "Number", "Length", "list", "Domain", "Callable")
ORDER: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
# Names that stand for one of two or three parts, and for one of their neighbours.
SWAPS = {
    **{"full": "swa", "swa": "full", "full_ref": "swa_ref", "swa_ref": "full_ref", "mamba_ref": "swa_ref"},
    **{"full_pages": "swa_pages", "swa_pages": "full_pages", "full_gone": "swa_gone", "swa_gone": "full_gone"},
    **{"full_pool": "swa_pool", "swa_pool": "full_pool", "mamba": "swa", "now": "saved", "saved": "now"},
    **{"committed": "allocated", "allocated": "committed", "protected": "committed", "cursor": "protected"},
}


@dataclass(frozen=True)
class Change:
    """One change of one place. ``text``: the file as it is then."""

    file: str
    function: str
    line: int
    what: str
    text: str

    @property
    def name(self) -> str:
        """Where the change is and what it is."""
        return f"{self.file}:{self.line} {self.function}: {self.what}"


Edit = tuple[str, Callable[[ast.AST], ast.AST]]  # what it does, and the node that takes the place of a copy


def changes(file: str, text: str) -> Iterator[Change]:
    """Every change of a file of the spec."""
    tree = ast.parse(text)
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and _makes_a_part(function):
            places = list(_places(function))
            for number, (node, edits) in enumerate(places):
                for what, edit in edits:
                    changed = _edited(tree, function.name, number, edit)
                    yield Change(file, function.name, node.lineno, what, ast.unparse(changed))


def _makes_a_part(function: ast.FunctionDef) -> bool:
    finite = "(finite reading)" in (ast.get_docstring(function) or "")
    answer = ast.unparse(function.returns) if function.returns else ""
    return not finite and function.name != "start" and not answer.startswith(MEANINGS)


def _edited(tree: ast.Module, function: str, number: int, edit: Callable[[ast.AST], ast.AST]) -> ast.Module:
    """A copy of the module in which the place of this number in the function is edited."""
    made = copy.deepcopy(tree)
    found = next(f for f in made.body if isinstance(f, ast.FunctionDef) and f.name == function)
    place = list(_places(found))[number][0]
    new = edit(place)
    if new is not place:
        _Replace(place, new).visit(found)
    return ast.fix_missing_locations(made)


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        """The node, or what takes its place."""
        found: ast.AST = self.new if node is self.old else self.generic_visit(node)
        return found


def _places(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, list[Edit]]]:
    """The expressions of a function that have edits, with their edits, in a fixed order. Annotations and the listings
    of keys, which the proofs do not read, are left out.
    """
    todo: list[ast.AST] = [*function.body]
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.AnnAssign | ast.arguments):
            continue
        if isinstance(node, ast.expr) and (edits := _edits(node)):
            yield node, edits
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            at = {"where": 2, "such": 1}.get(node.func.attr, len(node.args))
            children = [node.func, *node.args[:at]]
        if isinstance(node, ast.FunctionDef):
            children = [*node.body]
        todo += children


def _edits(node: ast.expr) -> list[Edit]:
    if isinstance(node, ast.BinOp):
        return _of_operator(node)
    if isinstance(node, ast.Compare):
        return _of_comparison(node)
    if isinstance(node, ast.Call):
        return [*_of_call(node), *_of_requirements(node)]
    if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
        return _of_name(node)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        other = 1 if node.value == 0 else node.value - 1
        return [(f"{node.value} is {other}", lambda _, other=other: ast.Constant(other))]
    return []


def _of_operator(node: ast.BinOp) -> list[Edit]:
    if isinstance(node.op, ast.BitAnd | ast.BitOr):
        word = "&" if isinstance(node.op, ast.BitAnd) else "|"
        return [
            (f"drops the right side of {word}", lambda n: n.left),
            (f"drops the left side of {word}", lambda n: n.right),
        ]
    if isinstance(node.op, ast.Add | ast.Sub):
        return [("drops what is added or subtracted", lambda n: n.left)]
    return []


def _of_comparison(node: ast.Compare) -> list[Edit]:
    other = ORDER.get(type(node.ops[0]))
    if other is None:
        return []

    def reordered(n: ast.AST) -> ast.AST:
        assert isinstance(n, ast.Compare)
        return ast.Compare(n.left, [other()], n.comparators)

    return [("is off by one", reordered)]


def _of_call(node: ast.Call) -> list[Edit]:
    called = node.func.id if isinstance(node.func, ast.Name) else ""
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if called == "but":
        return [
            (f"does not change {key.arg}", lambda n, at=at: _without_keyword(n, at))
            for at, key in enumerate(node.keywords)
            if key.arg != "then"
        ]
    if called == "Step":
        return [
            (f"has no {key.arg}", lambda n, at=at: _without_keyword(n, at))
            for at, key in enumerate(node.keywords)
            if key.arg in ("fits", "otherwise")
        ]
    if called == "ite":
        return [
            ("takes the first branch always", lambda n: n.args[1]),
            ("takes the second branch always", lambda n: n.args[2]),
        ]
    if called == "no":
        return [("is not negated", lambda n: n.args[0])]
    if called == "implies":
        return [("holds without its premise", lambda n: n.args[1])]
    if called == "call":
        return [(f"does not call {ast.unparse(node.args[1])}", _not_made)]
    if method in ("put", "where", "all_to"):
        return [(f"leaves {ast.unparse(node.func.value)} as it is", lambda n: n.func.value)]
    return []


def _of_requirements(node: ast.Call) -> list[Edit]:
    """Each promise and each choice that is written out may be left out."""
    found: list[Edit] = []
    for at, key in enumerate(node.keywords):
        if key.arg in ("promises", "choice") and isinstance(key.value, ast.Tuple):
            for item, asked in enumerate(key.value.elts):
                what = f"does not ask {ast.unparse(asked)[:60]}"
                found.append((what, lambda n, at=at, item=item: _without_item(n, at, item)))
    return found


def _of_name(node: ast.Attribute | ast.Name) -> list[Edit]:
    name = node.attr if isinstance(node, ast.Attribute) else node.id
    other = SWAPS.get(name)
    if other is None or (isinstance(node, ast.Name) and not name.endswith(("_pages", "_gone", "_pool"))):
        return []

    def swapped(n: ast.AST) -> ast.AST:
        return (
            ast.Attribute(n.value, other, ast.Load()) if isinstance(n, ast.Attribute) else ast.Name(other, ast.Load())
        )

    return [(f"takes {other} for {name}", swapped)]


def _without_keyword(node: ast.AST, at: int) -> ast.AST:
    assert isinstance(node, ast.Call)
    return ast.Call(node.func, node.args, [*node.keywords[:at], *node.keywords[at + 1 :]])


def _without_item(node: ast.AST, at: int, item: int) -> ast.AST:
    assert isinstance(node, ast.Call)
    key = node.keywords[at]
    assert isinstance(key.value, ast.Tuple)
    kept = ast.Tuple([*key.value.elts[:item], *key.value.elts[item + 1 :]], ast.Load())
    keywords = [*node.keywords[:at], ast.keyword(key.arg, kept), *node.keywords[at + 1 :]]
    return ast.Call(node.func, node.args, keywords)


def _not_made(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Call)
    keywords = [key for key in node.keywords if key.arg != "when"]
    return ast.Call(node.func, node.args, [*keywords, ast.keyword("when", ast.Constant(False))])
