"""The operators that make a wrong transition of a right one: each edit changes one place of the spec's text.

Edited are the functions that a transition is made of, see ``reach``. Laws are never edited: they judge the edits. Left
alone are annotations, sentences, functions that only the finite reading calls, and ``among`` listings, which the proofs
do not read.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from proofs.mutation import effects
from proofs.mutation.choices import Choice, built, without_keyword

CONJUNCT, FIELD, REQUIREMENT, CALL = "drop conjunct", "drop field", "drop requirement", "drop call"
OFF_BY_ONE, BRANCH, MAP = "off by one", "one branch", "drop update"
POOL, COMPONENT, TIME = "other pool", "other component", "now and then"
STATE, ARGUMENT = "other constant", "other argument"

OPERATORS = {
    CONJUNCT: "one side of `&` or `|`, or the premise of `implies`, is left out",
    FIELD: "a field of `but` or of `Step` is left out, so that it stays what it was",
    REQUIREMENT: "a promise of the caller, or a condition on the implementation's choice, is left out",
    CALL: "a call of a transition of a part is never made",
    OFF_BY_ONE: "`<` is `<=`, `>` is `>=` or the other way round; a number is one less, 0 is 1; what is added is not",
    BRANCH: "`ite` always takes one branch; `no` does not negate",
    MAP: "an update of a map by `put` or `where` is left out",
    POOL: "the full pool stands for the SWA pool, or the other way round",
    COMPONENT: "one component of a node, or one measure of a row, stands for another one",
    TIME: "the part before a call stands for the part after it; the backup stands for the present state",
    STATE: "a place, a phase, a role or a truth stands for another one",
    ARGUMENT: "one argument stands for another one",
    **effects.SENTENCES,
}

ORDER: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
AMONG_AT = {"where": 2, "such": 1}  # the place of the listing of keys among the arguments


def _both(*pairs: tuple[str, str]) -> dict[str, str]:
    return {**dict(pairs), **{other: one for one, other in pairs}}


# For a name, the name that stands for it by mistake. Attributes are fields; other names are arguments and constants.
POOLS = _both(("full", "swa"), ("full_pages", "swa_pages"), ("full_gone", "swa_gone"), ("full_pool", "swa_pool"))
COMPONENTS = {
    **_both(("full_ref", "swa_ref"), ("full_evictable", "swa_evictable"), ("full_protected", "swa_protected")),
    **{"mamba_ref": "swa_ref", "mamba_evictable": "swa_evictable", "mamba_protected": "swa_protected"},
    **_both(("committed", "allocated"), ("mamba", "alive")),
    **{"protected": "cursor", "cursor": "protected", "in_window": "on_path", "of_state": "in_window"},
}
TIMES = {"then": "before", "now": "saved", "saved": "now"}
STATES = {
    **{"FREE": "RELEASED", "RELEASED": "FREE", "HELD": "FREE", "PENDING": "FREE", "PADDING": "HELD"},
    **{"RUNNING": "LEAVING", "LEAVING": "RUNNING", "SAVED": "RUNNING", "IDLE": "RUNNING", "WAITING": "RUNNING"},
    **{"COUNTED": "SKIPPED", "SKIPPED": "COUNTED", "GROUPED": "FREE", "ABSENT": "FIRST"},
    **{"OWN": "FIRST", "FIRST": "SECOND", "SECOND": "FIRST"},
    **{"PASS": "READS", "READS": "WRITES", "WRITES": "READS"},
}
ARGUMENTS = {
    **_both(
        ("row", "to"), ("first", "last"), ("under", "leaf"), ("child", "new"), ("old", "handle"), ("node", "above")
    ),
    **_both(("request", "session"), ("own", "second"), ("old", "new")),
    **{"top": "node", "at": "child", "pages": "first", "given": "taken"},
}


@dataclass(frozen=True)
class Edit:
    """One edit of one place of a function. ``place``, ``choice``: the number of the place in the function, and of the
    edit among the edits of the place. ``was``, ``now``: the text of the place before and after.
    """

    file: str
    function: str
    operator: str
    place: int
    choice: int
    line: int
    was: str
    now: str

    @property
    def module(self) -> str:
        """The module of the spec that the edit is in."""
        return self.file.removesuffix(".py")

    @property
    def key(self) -> str:
        """What the edit is, also after lines above it have moved."""
        return f"{self.file} {self.function} {self.place}.{self.choice} {self.operator}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}, {self.operator}: {self.was} → {self.now}"


def edits(file: str, text: str, functions: Collection[str], callee: effects.Callee) -> Iterator[Edit]:
    """Every edit of these functions of a file. ``callee``: finds the function that an expression stands for."""
    tree = ast.parse(text)
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and function.name in functions:
            twice = _updates_of_fields(function)
            for place, (node, choices) in enumerate(_places(function, callee)):
                for number, choice in enumerate(choices):
                    if choice.operator == MAP and node in twice:
                        continue
                    was, now = choice.texts(node)
                    line = getattr(choice.part, "lineno", node.lineno)
                    yield Edit(file, function.name, choice.operator, place, number, line, was, now)


def _updates_of_fields(function: ast.FunctionDef) -> set[ast.AST]:
    """The updates of a map that are all that a field of ``but`` gets: to leave out the field is to leave out these."""
    keys = [key for node in ast.walk(function) if isinstance(node, ast.Call) for key in node.keywords]
    return {key.value for key in keys if isinstance(key.value, ast.Call) and _updated(key.value) == key.arg}


def _updated(node: ast.Call) -> str | None:
    """The name of the field whose map is updated."""
    of = node.func.value if isinstance(node.func, ast.Attribute) else None
    return of.attr if isinstance(of, ast.Attribute) else None


def edited(text: str, edit: Edit, callee: effects.Callee) -> ast.Module:
    """The file with the edit; the other arguments are those with which ``edits`` made it."""
    tree = ast.parse(text)
    function = next(f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name == edit.function)
    node, choices = _places(function, callee)[edit.place]
    _Replace(node, choices[edit.choice].make()).visit(tree)
    return ast.fix_missing_locations(tree)


class _Replace(ast.NodeTransformer):
    """Puts a node in the place of another one."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        """The node, or what takes its place."""
        found: ast.AST = self.new if node is self.old else self.generic_visit(node)
        return found


Place = tuple[ast.expr | ast.FunctionDef, list[Choice]]


def _places(function: ast.FunctionDef, callee: effects.Callee) -> list[Place]:
    """The expressions of a function that can be edited, with their edits, in a fixed order; then for each argument the
    function, with the edits that ignore the argument.
    """
    known, of = _names(function), effects.types(function)
    listings = _listings(function)
    found: list[Place] = []
    todo: list[ast.AST] = [*function.body]
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.FunctionDef):
            todo += [] if node.name in listings else node.body
        elif not isinstance(node, ast.AnnAssign | ast.arguments):
            if isinstance(node, ast.expr) and (choices := [*_choices(node, known), *_effects(node, callee, of)]):
                found.append((node, choices))
            todo += _children(node)
    return [*found, *((function, choices) for choices in effects.of_arguments(function))]


def _effects(node: ast.expr, callee: effects.Callee, of: dict[str, str]) -> Iterator[Choice]:
    if isinstance(node, ast.Call):
        yield from effects.of_call(node, callee, of)
    elif isinstance(node, ast.Compare):
        yield from effects.of_comparison(node)


def _names(function: ast.FunctionDef) -> set[str]:
    """The arguments and the names in a function, and the constants."""
    nodes = [*ast.walk(function)]
    return {
        *(node.arg for node in nodes if isinstance(node, ast.arg)),
        *(node.id for node in nodes if isinstance(node, ast.Name)),
    }


def _listings(function: ast.FunctionDef) -> set[str]:
    """The nested functions that only list keys."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    return {arg.id for node in calls for arg in _among(node) if isinstance(arg, ast.Name)}


def _among(node: ast.Call) -> list[ast.expr]:
    at = AMONG_AT.get(node.func.attr) if isinstance(node.func, ast.Attribute) else None
    return [] if at is None else node.args[at:]


def _children(node: ast.AST) -> list[ast.AST]:
    left_out = _among(node) if isinstance(node, ast.Call) else []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "requires":
        left_out = node.args[1:]
    return [child for child in ast.iter_child_nodes(node) if child not in left_out]


def _choices(node: ast.expr, known: set[str]) -> list[Choice]:
    if isinstance(node, ast.BinOp):
        return _of_operator(node)
    if isinstance(node, ast.Compare):
        return _of_comparison(node)
    if isinstance(node, ast.Call):
        return [*_of_call(node), *_of_keywords(node)]
    if isinstance(node, ast.Tuple) and any(map(_asks, node.elts)):
        return [Choice(REQUIREMENT, built(_without_item, node, at), asked) for at, asked in enumerate(node.elts)]
    if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
        return _of_name(node, known)
    return _of_constant(node) if isinstance(node, ast.Constant) else []


def _asks(node: ast.expr) -> bool:
    """The node is a requirement, or the requirements of another step or function."""
    if isinstance(node, ast.Starred):
        of = node.value
        return isinstance(of, ast.Call) or (isinstance(of, ast.Attribute) and of.attr in ("promises", "choice"))
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "requires"


def _of_operator(node: ast.BinOp) -> list[Choice]:
    if isinstance(node.op, ast.BitAnd | ast.BitOr):
        return [Choice(CONJUNCT, lambda: node.left), Choice(CONJUNCT, lambda: node.right)]
    return [Choice(OFF_BY_ONE, lambda: node.left)] if isinstance(node.op, ast.Add | ast.Sub) else []


def _of_comparison(node: ast.Compare) -> list[Choice]:
    other = ORDER.get(type(node.ops[0]))
    return [] if other is None else [Choice(OFF_BY_ONE, lambda: ast.Compare(node.left, [other()], node.comparators))]


def _of_constant(node: ast.Constant) -> list[Choice]:
    value = node.value
    if isinstance(value, bool):
        return [Choice(STATE, lambda: ast.Constant(not value))]
    if isinstance(value, int):
        return [Choice(OFF_BY_ONE, lambda: ast.Constant(1 if value == 0 else value - 1))]
    return []


def _of_call(node: ast.Call) -> list[Choice]:
    called = node.func.id if isinstance(node.func, ast.Name) else ""
    if called in ("ite", "pick"):
        return [Choice(BRANCH, lambda: node.args[1]), Choice(BRANCH, lambda: node.args[2])]
    if called == "no":
        return [Choice(BRANCH, lambda: node.args[0])]
    if called == "implies":
        return [Choice(CONJUNCT, lambda: node.args[1])]
    if called == "call":
        return [Choice(CALL, lambda: _not_made(node), node)]
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("put", "where", "all_to"):
        left = node.func.value
        return [Choice(MAP, lambda: left)]
    return []


def _of_keywords(node: ast.Call) -> list[Choice]:
    """Each field that ``but`` and ``Step`` name may be left out. Each promise and each choice may be left out."""
    called = node.func.id if isinstance(node.func, ast.Name) else ""
    found: list[Choice] = []
    for at, key in enumerate(node.keywords):
        asked = key.arg in ("promises", "choice")
        if asked and isinstance(key.value, ast.Tuple):
            if not any(map(_asks, key.value.elts)):  # else the tuple is a place of its own
                items = enumerate(key.value.elts)
                found += [Choice(REQUIREMENT, built(_without_item_of, node, at, item), one) for item, one in items]
        elif asked:
            found.append(Choice(REQUIREMENT, built(without_keyword, node, at), key))
        elif called == "but" or (called == "Step" and key.arg in ("fits", "otherwise")):
            found.append(Choice(FIELD, built(without_keyword, node, at), key))
    return found


def _of_name(node: ast.Attribute | ast.Name, known: set[str]) -> list[Choice]:
    name = node.attr if isinstance(node, ast.Attribute) else node.id
    found: list[Choice] = []
    for operator, others in (
        *((POOL, POOLS), (COMPONENT, COMPONENTS)),
        *(((TIME, TIMES),) if isinstance(node, ast.Attribute) else ((STATE, STATES), (ARGUMENT, ARGUMENTS))),
    ):
        other = others.get(name)
        fits = other is not None and (isinstance(node, ast.Attribute) or operator is STATE or other in known)
        if fits:
            found.append(Choice(operator, built(_renamed, node, other)))
    return found


def _renamed(node: ast.Attribute | ast.Name, other: str) -> ast.expr:
    if isinstance(node, ast.Attribute):
        return ast.Attribute(node.value, other, ast.Load())
    return ast.Name(other, ast.Load())


def _without_item(node: ast.Tuple, item: int) -> ast.expr:
    return ast.Tuple([*node.elts[:item], *node.elts[item + 1 :]], ast.Load())


def _without_item_of(node: ast.Call, at: int, item: int) -> ast.expr:
    key = node.keywords[at]
    assert isinstance(key.value, ast.Tuple)
    kept = ast.keyword(key.arg, _without_item(key.value, item))
    return ast.Call(node.func, node.args, [*node.keywords[:at], kept, *node.keywords[at + 1 :]])


def _not_made(node: ast.Call) -> ast.expr:
    keywords = [key for key in node.keywords if key.arg != "when"]
    return ast.Call(node.func, node.args, [*keywords, ast.keyword("when", ast.Constant(False))])
