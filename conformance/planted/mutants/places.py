"""The mutants of a file: cosmic-ray's operators, and one of ours that leaves out a statement.

A mutant changes one place of one file. Annotations are left out: they cannot change what a call does. So are, where
the caller says so, texts that are put together, which in ``impl/`` only messages have.
Of the operators that cosmic-ray has for arithmetic and comparisons, those are kept whose result is near the right one:
``a ** b`` for ``a + b`` would be noticed by any run, and the share of noticed mutants would look better than it is.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.plugins import get_operator

Position = tuple[int, int]  # line, from 1, and column, from 0
Place = tuple[Position, Position]

STATEMENT, NUMBER, ARITHMETIC, COMPARISON = "drop statement", "other number", "other arithmetic", "other comparison"
CONDITION, BOOLEAN, LOOP = "negate condition", "other truth", "skip loop"
SIGN, DECORATOR = "drop sign", "drop decorator"

SENTENCES = {
    STATEMENT: "a call, or what is written to an attribute or an entry, is left out",
    NUMBER: "a number is one more or one less",
    ARITHMETIC: "`+` is `-`, `*` is `//`, `//` is `%`, `&` is `|`, `<<` is `>>`, or the other way round",
    COMPARISON: "`<` is `<=`, `==` is `!=`, and so on; `is` is `is not`",
    CONDITION: "the condition of an `if`, a `while` or a conditional expression is negated",
    BOOLEAN: "`True` is `False`, `and` is `or`, or the other way round",
    LOOP: "a `for` loop is not entered; `break` is `continue`, or the other way round",
    SIGN: "`-`, `~` or `not` is left out",
    DECORATOR: "a decorator is left out",
}
TYPES = ("tuple", "dict", "list")
_PAIRS = {
    "Binary": "Add_Sub Sub_Add Mul_FloorDiv FloorDiv_Mul FloorDiv_Mod Mod_FloorDiv BitAnd_BitOr BitOr_BitAnd "
    "LShift_RShift RShift_LShift",
    "Comparison": "Eq_NotEq NotEq_Eq Lt_LtE LtE_Lt Gt_GtE GtE_Gt Lt_GtE LtE_Gt Gt_LtE GtE_Lt Is_IsNot IsNot_Is",
    "Unary": "Delete_USub Delete_Invert Delete_Not",
}
_NAMED = {
    NUMBER: ["NumberReplacer"],
    ARITHMETIC: [f"ReplaceBinaryOperator_{pair}" for pair in _PAIRS["Binary"].split()],
    COMPARISON: [f"ReplaceComparisonOperator_{pair}" for pair in _PAIRS["Comparison"].split()],
    CONDITION: ["AddNot"],
    BOOLEAN: ["ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"],
    LOOP: ["ZeroIterationForLoop", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak"],
    SIGN: [f"ReplaceUnaryOperator_{pair}" for pair in _PAIRS["Unary"].split()],
    DECORATOR: ["RemoveDecorator"],
}


class DropStatement(Operator):  # type: ignore[misc] # cosmic-ray has no types
    """Leaves out a statement that changes something: a call, ``a += b``, ``a.b = c`` or ``a[b] = c``."""

    def mutation_positions(self, node: Any) -> Iterator[Place]:
        """The place of the statement."""
        if node.type == "simple_stmt" and _writes(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """The statement is ``pass``."""
        assert index == 0
        old = node.children[0]
        node.children[0] = parso.python.tree.Keyword("pass", old.start_pos, old.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        """What a test of cosmic-ray's kind tries."""
        return (Example("f(x)\n", "pass\n"), Example("a.b = c\n", "pass\n"), Example("a[b] += c\n", "pass\n"))


def _writes(node: Any) -> bool:
    """A statement that changes something that outlives it."""
    if node.type in ("atom_expr", "power"):
        return bool(node.children[-1].type == "trailer" and node.children[-1].children[0].value == "(")
    if node.type != "expr_stmt":
        return False
    target, sign = node.children[0], node.children[1]
    if sign.type == "annassign":
        return False
    return bool(sign.type == "operator" and (sign.value != "=" or target.type in ("atom_expr", "power")))


@cache
def _operators() -> list[tuple[str, int, Any]]:
    """The operators: name, number among those with this name, and what makes the mutants."""
    made: dict[str, list[Any]] = {STATEMENT: [DropStatement()]}
    made |= {name: [get_operator(f"core/{one}")() for one in named] for name, named in _NAMED.items()}
    return [(name, which, one) for name, several in made.items() for which, one in enumerate(several)]


@dataclass(frozen=True)
class Spot:
    """A place that an operator can change. ``file``: the file, relative to the folder that is mutated. ``which``: the
    operator's number among those with its name. ``occurrence``: how many places in the file it can change before this
    one. ``key``: what the spot is, also after lines above it have moved.
    """

    file: str
    function: str
    operator: str
    place: Place
    which: int
    occurrence: int
    key: str


@dataclass(frozen=True)
class CodeMutant:
    """One change of one place. ``was``, ``now``: the changed lines before and after, on one line each. ``text``: the
    file with the change.
    """

    spot: Spot
    was: str
    now: str
    text: str

    def __str__(self) -> str:
        return f"{self.spot.file}:{self.spot.place[0][0]} {self.spot.function}: {self.was} → {self.now}"


def _any(_: int) -> bool:
    return True


def spots(
    path: Path,
    operators: Collection[str] = tuple(SENTENCES),
    *,
    name: str = "",
    line: Callable[[int], bool] = _any,
    messages: bool = False,
) -> list[Spot]:
    """Every spot of a file. ``name``: what ``Spot.file`` is, by default the file's own name. ``line``: says of the
    number of a line whether its spots are wanted. ``messages``: texts that are put together are changed too.
    """
    text, name = path.read_text(encoding="utf-8"), name or path.name
    tree, lines = ast.parse(text), text.splitlines()
    ignored, functions = _ignored(tree, text, messages), _functions(tree)
    occurrences: Counter[tuple[str, int]] = Counter()
    alike: Counter[tuple[str, ...]] = Counter()
    found = []
    for node in ast_nodes(get_ast(text)):
        for kind, which, operator in _operators():
            for place in operator.mutation_positions(node):
                occurrence = occurrences[kind, which]
                occurrences[kind, which] += 1
                if kind not in operators or _inside(place, ignored):
                    continue
                function = _function_at(place[0][0], functions)
                what = (function, kind, str(which), " ".join(lines[place[0][0] - 1].split()))
                key = " | ".join([name, *what, str(alike[what])])
                alike[what] += 1
                if line(place[0][0]):
                    found.append(Spot(name, function, kind, place, which, occurrence, key))
    return found


def mutant(folder: Path, spot: Spot) -> CodeMutant | None:
    """The mutant of a spot of a file in ``folder``; ``None`` where Python could not read it."""
    text = (folder / spot.file).read_text(encoding="utf-8")
    (operator,) = (made for name, which, made in _operators() if (name, which) == (spot.operator, spot.which))
    changed = mutate_code(text, operator, spot.occurrence)
    if changed is None or not _reads(changed):
        return None
    return CodeMutant(spot, *_lines(text, changed), changed)


def sample(folder: Path, found: Iterable[Spot], number: int, seed: int) -> list[CodeMutant]:
    """So many mutants, in the order in which they are drawn, each at another place.

    Which are drawn depends on the seed and on the keys of the spots, so that an edit of one file hardly changes the
    sample of the others.
    """

    def drawn(spot: Spot) -> str:
        return hashlib.sha256(f"{seed} {spot.key}".encode()).hexdigest()

    taken: dict[tuple[str, Place], CodeMutant] = {}
    for spot in sorted(found, key=drawn):
        if len(taken) == number:
            break
        if (spot.file, spot.place) not in taken and (made := mutant(folder, spot)):
            taken[spot.file, spot.place] = made
    return list(taken.values())


def _reads(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _ignored(tree: ast.Module, text: str, messages: bool) -> list[Place]:
    """Annotations, names for types, and unless ``messages`` texts that are put together."""
    nodes: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            nodes.append(node.returns)
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            nodes.append(node.annotation)
        elif (isinstance(node, ast.JoinedStr) and not messages) or _is_alias(node):
            nodes.append(node)
    lines = text.splitlines()
    return [_place(node, lines) for node in nodes]


def _is_alias(node: ast.AST) -> bool:
    """``Span = tuple[int, int]``: a name for a type."""
    value = node.value if isinstance(node, ast.Assign) else None
    return isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name) and value.value.id in TYPES


def _place(node: Any, lines: Sequence[str]) -> Place:
    def column(line: int, offset: int) -> int:  # ast counts bytes, parso counts characters
        return len(lines[line - 1].encode()[:offset].decode())

    first = (node.lineno, column(node.lineno, node.col_offset))
    return first, (node.end_lineno, column(node.end_lineno, node.end_col_offset))


def _inside(place: Place, others: Iterable[Place]) -> bool:
    return any(first <= place[0] and place[1] <= last for first, last in others)


def _functions(tree: ast.Module) -> list[tuple[int, int, str]]:
    """Each function and class: its first line (that of a decorator, if it has one), its last line, its name."""
    found: list[tuple[int, int, str]] = []

    def look(node: ast.AST, above: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = above
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{above}.{child.name}" if above else child.name
                first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
                found.append((first, child.end_lineno or first, name))
            look(child, name)

    look(tree, "")
    return found


def _function_at(line: int, functions: Iterable[tuple[int, int, str]]) -> str:
    """The innermost function or class at a line."""
    around = [(last - first, name) for first, last, name in functions if first <= line <= last]
    return min(around)[1] if around else "(module)"


def _lines(before: str, after: str) -> tuple[str, str]:
    """The lines that differ, before and after, without their indentation."""
    old, new = before.splitlines(), after.splitlines()
    same = next((n for n, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), 0)
    rest = zip(reversed(old[same:]), reversed(new[same:]), strict=False)
    alike = next((n for n, pair in enumerate(rest) if pair[0] != pair[1]), 0)
    return _on_one_line(old[same : len(old) - alike]), _on_one_line(new[same : len(new) - alike])


def _on_one_line(lines: Iterable[str]) -> str:
    return " ".join(" ".join(lines).split())
