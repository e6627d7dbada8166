"""The operators that drop an effect or change what is asked: a step is left out, a bound is moved by one, an argument
is ignored, a promise asks for more or is waived.

An argument has several values that may stand for it, and a promise may speak of several arguments: of these edits, one
is drawn for each argument and for each promise (``proofs.mutation.record.drawn``).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from proofs.mutation.choices import Choice, shown

STEP, BOUND, IGNORED = "drop step", "move bound", "ignore argument"
NARROWER, WIDER = "narrow promise", "waive promise"
DRAWN = (IGNORED, NARROWER, WIDER)  # of the edits of one place, one is drawn

SENTENCES = {
    STEP: "a function that changes a state is never called, and the state is passed on as it was; of a whole step, "
    "what it asks stays",
    BOUND: "a bound is one more or one less; where two lengths are compared, equal ones are judged the other way; an "
    "equality of quantities or of lengths is an upper or a lower bound",
    IGNORED: "an argument is ignored: everywhere in the function 0, no tokens, a truth, or another argument of its "
    "kind stands for it",
    NARROWER: "a promise, or a condition on the implementation's choice, also asks that an argument is not the first "
    "number, or has not one page or one member, or is false",
    WIDER: "a promise, or a condition on the implementation's choice, is asked only where an argument is the first "
    "number, or has one page or one member, or is false",
}

Callee = Callable[[ast.expr], ast.FunctionDef | None]  # the function that an expression stands for, where it is known

PLAIN = ("Number", "Truth")  # what a function returns that changes no state
QUANTITIES = ("length", "size", "rest", "pages", "available", "whole", "need", "count")
# By the type of an argument, the field that is compared with 1; of a number, the number itself. In some stems rows and
# requests are numbered from 0.
FROM_ZERO = ("row", "request", "other", "owner")
ONE = {"Number": "", "Length": "pages", "Seq": "length", "Set": "size"}
MOVED: dict[type[ast.cmpop], int] = {ast.Lt: -1, ast.LtE: 1, ast.Gt: 1, ast.GtE: -1}  # what is added to a bound


def types(function: ast.FunctionDef) -> dict[str, str]:
    """By name the types of the arguments after the first one, which is the state or a part of it."""
    return {arg.arg: _class(arg.annotation) for arg in function.args.args[1:] if arg.annotation is not None}


def _class(annotation: ast.expr) -> str:
    """The name of a class without its module."""
    return ast.unparse(annotation).split(".")[-1]


def of_call(node: ast.Call, callee: Callee, of: dict[str, str]) -> Iterator[Choice]:
    """The edits of a call: it is left out, it is the other comparison of lengths, or a promise asks for more or less.

    ``of``: the types of the arguments of the function in which the call stands.
    """
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in ("at_most", "shorter"):
        other = ast.Call(node.func, node.args[::-1], [])
        yield Choice(BOUND, lambda: ast.Call(ast.Name("no", ast.Load()), [other], []))
    elif name == "same":
        yield Choice(BOUND, lambda: ast.Call(ast.Name("at_most", ast.Load()), node.args, []))
    elif name == "requires":
        yield from _of_promise(node, of)
    elif node.args and (called := callee(node.func)) is not None:
        yield from _of_step(node, called)


def _of_step(node: ast.Call, called: ast.FunctionDef) -> Iterator[Choice]:
    first = called.args.args[0].annotation if called.args.args else None
    if first is None or called.returns is None:
        return
    state, made = _class(first), ast.unparse(called.returns)
    if made.split(".")[-1] == state and state not in PLAIN:
        yield Choice(STEP, lambda: node.args[0])
    elif made.startswith("Step[") and made[:-1].split("[")[-1].split(".")[-1] == state:
        stays = ast.keyword("then", node.args[0])
        yield Choice(STEP, lambda: ast.Call(ast.Name("but", ast.Load()), [node], [stays]))


def _of_promise(node: ast.Call, of: dict[str, str]) -> Iterator[Choice]:
    holds = node.args[0]
    used = {n.id for n in ast.walk(holds) if isinstance(n, ast.Name)}
    for name, kind in of.items():
        if name in used and kind in (*ONE, "Truth"):
            for operator, condition, joined in _asked(name, kind):
                other = ast.BinOp(holds, joined, condition)
                sign = "&" if operator == NARROWER else "|"
                said = shown(holds), f"({shown(holds)}) {sign} ({shown(condition)})"
                made = ast.Call(node.func, [other, *node.args[1:]], node.keywords)
                yield Choice(operator, lambda made=made: made, said=said)  # type: ignore[misc]


def _asked(name: str, kind: str) -> Iterator[tuple[str, ast.expr, ast.operator]]:
    """The operators, each with a condition on an argument of this type, and how the promise and it are joined."""
    if kind == "Truth":
        yield NARROWER, _expression(f"no({name})"), ast.BitAnd()
        yield WIDER, _expression(name), ast.BitOr()
        return
    compared = ".".join(filter(None, (name, ONE[kind])))
    for first in (0, 1) if kind == "Number" and name in FROM_ZERO else (1,):
        other = _expression(f"{compared} != {first}")
        yield NARROWER, other, ast.BitAnd()
        yield WIDER, other, ast.BitOr()


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def of_comparison(node: ast.Compare) -> Iterator[Choice]:
    """The edits of a comparison: its bound is one more or one less than by the other operators."""
    kind, right = type(node.ops[0]), node.comparators[0]
    if kind in MOVED:
        yield Choice(BOUND, lambda: ast.Compare(node.left, node.ops, [_moved(right, MOVED[kind])]))
    elif kind is ast.Eq and (_is_quantity(node.left) or _is_quantity(right)):
        natural = isinstance(right, ast.Constant) and right.value == 0  # no quantity is below 0
        for other in (ast.GtE(),) if natural else (ast.LtE(), ast.GtE()):
            yield Choice(BOUND, lambda other=other: ast.Compare(node.left, [other], [right]))  # type: ignore[misc]


def _moved(bound: ast.expr, by: int) -> ast.expr:
    """The bound plus 1 or minus 1."""
    if isinstance(bound, ast.Constant) and isinstance(bound.value, int):
        return ast.Constant(bound.value + by)
    return ast.BinOp(bound, ast.Add() if by > 0 else ast.Sub(), ast.Constant(1))


def _is_quantity(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in QUANTITIES


def of_arguments(function: ast.FunctionDef) -> Iterator[list[Choice]]:
    """For each argument that the function uses, after the first one, the edits by which the function ignores it."""
    used = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    of = types(function)
    for name, kind in of.items():
        instead = [*_nothing(name, kind), *(other for other in of if other != name and of[other] == kind)]
        if name in used and kind in (*ONE, "Truth"):
            yield [Choice(IGNORED, _ignoring(function, name, other), said=(name, other)) for other in instead]


def _nothing(name: str, kind: str) -> tuple[str, ...]:
    """What stands for an argument of this type that is ignored."""
    lengths = (f"{name}._replace(pages=0, rest=0)",)
    return {"Number": ("0",), "Length": lengths, "Truth": ("True", "False")}.get(kind, ())


def _ignoring(function: ast.FunctionDef, name: str, other: str) -> Callable[[], ast.AST]:
    """What makes the function that begins by setting its argument ``name`` to ``other``."""

    def made() -> ast.AST:
        setting = ast.Assign([ast.Name(name, ast.Store())], _expression(other))
        at = 0 if ast.get_docstring(function) is None else 1
        changed = {field: getattr(function, field) for field in function._fields}
        changed["body"] = [*function.body[:at], setting, *function.body[at:]]
        return ast.copy_location(ast.FunctionDef(**changed), function)

    return made
