"""Finds Python in the spec that could read differently on plain values and on symbols: ``python -m slotproof.spec_lint
spec/`` exits with 1 where there is any.

The functions of the spec are evaluated on plain values and on symbols of the provers, and must be one text for both. So
what they may use is a short list (``ALLOWED``): calls of the spec's own functions, operators, attributes, lambdas, and
names that are assigned once. Everything else is a complaint: control flow, since a symbol has no truth value in Python;
``try``, ``getattr`` and look-ups by a value, which can tell a symbol from a number; and a name that is assigned twice,
since a symbolic map evaluates a lambda later than a plain one.

Code outside of functions defines names and registers laws, and does nothing else; what it defines cannot change. A
class has fields alone. An attribute must be one that some file of the spec defines: what only a symbol or only a plain
value has would tell the two apart.

Only the evaluation on plain values calls functions whose docstring says "(finite reading)", the plain integers of
``lengths.py``, and ``among`` listings: the last argument of ``.where(cond, value, among)`` and of
``.such(law, among)``. These may branch, and must change nothing (``slotproof.spec_lint.plain_code``). Not checked: the
files ``EXCLUDED``.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cache
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES
from pathlib import Path

import spec
from slotproof.spec_lint import plain_code
from slotproof.spec_lint.plain_code import nodes, parsed
from spec import logic

HERE = Path(spec.__file__).parent
INSTALLED_IN = __name__.rpartition(".")[0]  # the package below which a wheel has the spec
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
    *(ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.keyword, ast.Starred, ast.Tuple, ast.Subscript),
    *(ast.BinOp, ast.UnaryOp, ast.Compare, ast.JoinedStr),
    *(ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
    *(
        ast.comprehension,
        ast.match_case,
        ast.pattern,
        ast.withitem,
        ast.ExceptHandler,
    ),  # parts of statements that are complaints
)
# What a module may import beside names of the spec. ``collections.abc`` has classes alone, for annotations.
IMPORTS: dict[str, frozenset[str] | None] = {
    "__future__": frozenset({"annotations"}),
    "collections.abc": None,
    "dataclasses": frozenset({"dataclass"}),
    "typing": frozenset({"Any", "NamedTuple", "TypeVar", "TYPE_CHECKING"}),
}

OPERATORS = ast.Add | ast.Sub | ast.Mult | ast.BitAnd | ast.BitOr  # what a symbol knows
REGISTERS = frozenset({"part", "transition", "invariant", "change", "theorem", "each", "drains"})
SETS = frozenset({"state", "start"})  # the attributes of a stem that a module sets
BUILTINS = frozenset({"tuple", "frozenset", "range"})  # called outside of functions
MUTABLE = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp | ast.GeneratorExp
FINITE_MODULE, CLASSES_OF_FINITE = "finite", frozenset({"Map", "Domain", "Set", "Seq"})
STEM = "stem"  # what a module calls its stem
WORDS_OF_ALL = frozenset({"logic", "finite"})  # they import much: names are imported from them, never the module
# Methods of maps, sets, sequences and domains: they are called or given to a call, and never compared or kept.
METHODS = frozenset({"put", "where", "all_to", "has", "all", "any", "items", "such", "greatest", "distinct"})
# What a field may not be called: it would open an attribute that only a symbol or only a plain value has.
CLOSED = (frozenset(dir(str)) | frozenset(dir(int)) | frozenset(dir(dict))) - {"count", "index"}
CLOSED |= {"high", "low", "arity", "default", "world", "formula", "domain", "given", "negated", "is_truth", "z"}
CLOSED |= METHODS | {"at", "total"}
OF_STEPS = frozenset({"promises", "choice", "step", "otherwise"})
REGISTERED = frozenset({"Invariant", "Change", "Drain", "Descent", "Measure", "Call"})  # no function makes one
ANNOTATION = (
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.List, ast.BinOp, ast.BitOr, ast.Load),
)
AT_THE_TOP = (ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.Expr, ast.For)
COOKIE = re.compile(r"^[ \t\f]*#.*?coding[:=]", re.ASCII)
CAN_CHANGE = "a list, a dictionary or an iterator can change: write a tuple"

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_BUILTIN = frozenset(dir(builtins))


@dataclass(frozen=True)
class Complaint:
    """Something that the spec must not use, and where it stands. ``changes``: it is no more than a list or a
    dictionary, which a spec that is proved must not have since it can change; to execute it does no harm.
    """

    file: str
    line: int
    message: str
    changes: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


def lint(source: str, file: str = "spec.py", folder: Path = HERE) -> list[Complaint]:
    """What ``source`` must not use, in order of lines. ``folder``: the other files of the spec that it belongs to."""
    try:
        tree = parsed(source)
    except SyntaxError as error:
        error.filename = file
        raise
    border = _border(source, file)
    words = _words_of_spec(folder).and_those_of(tree, border, folder)
    found = {c for function in _functions(tree, border) for c in _complaints(function, words, file)}
    found |= {c for function in _plain_code(tree, border) for c in _of_plain_code(function, words, set(), file)}
    found |= {*_imports(tree, file, folder), *_outside_functions(tree, words, file), *_definitions(tree, file)}
    found |= {*_modules(tree, folder, file), *_top(tree, file), *_types(tree, file), *_cookie(source, file)}
    return sorted(found, key=lambda c: (c.line, c.message))


@dataclass(frozen=True)
class Words:
    """The names of a module: ``known``: what its functions may name; ``attributes``: those that files of the spec
    define; ``plain``: what only plain values may be given to, as the module names it; ``stems``: its stems.
    """

    known: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()
    stems: frozenset[str] = frozenset()

    def and_those_of(self, tree: ast.Module, border: int | None, folder: Path) -> Words:
        """These words, and those of one more module of a folder; only its own names may be called."""
        return Words(
            _names_of_module(tree),
            self.attributes | _attributes_of(tree),
            _plain_functions(tree, border) | _imported_plain(tree, folder),
            _stems_of(tree),
        )


@cache
def _words_of_spec(folder: Path) -> Words:
    """The words of the files of a folder, and those in which every spec is written."""
    words = Words()
    for path in sorted({*folder.rglob("*.py"), *(HERE / name for name in EXCLUDED)}):
        source = path.read_text(encoding="utf-8")
        words = words.and_those_of(parsed(source), _border(source, str(path)), folder)
    return words


def _attributes_of(tree: ast.Module) -> frozenset[str]:
    """What the module and its classes define."""
    found = {n.name for n in nodes(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    fields = (s for c in nodes(tree) if isinstance(c, ast.ClassDef) for s in c.body)
    for statement in (*tree.body, *fields):
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        found |= {n.id for target in targets if target for n in nodes(target) if isinstance(n, ast.Name)}
    return frozenset(found)


def _plain_functions(tree: ast.Module, border: int | None) -> frozenset[str]:
    functions = [n for n in nodes(tree) if isinstance(n, ast.FunctionDef)]
    found = {f.name for f in functions if _finite(f) or (border is not None and f.lineno >= border)}
    for node in tree.body:  # a lambda below the border has no docstring, and a name all the same
        if border is not None and node.lineno >= border and isinstance(node, ast.Assign):
            found |= {name for target in node.targets for n in nodes(target) if (name := _stored(n))}
    return frozenset(found)


def _imported_plain(tree: ast.Module, folder: Path) -> frozenset[str]:
    """The functions for plain values that a module imports from others, by name or as ``module.name``."""
    found, known = set(), _plain_in(folder)
    for node in (n for n in nodes(tree) if isinstance(n, ast.ImportFrom) and _of_spec(n)):
        module = _module_of(node)
        for alias in node.names:
            name = alias.asname or alias.name
            inside = frozenset() if module else known.get(alias.name, frozenset())
            of_module = alias.name in known.get(module, ()) or module == FINITE_MODULE
            found |= {name} if of_module else {f"{name}.{f}" for f in inside}
    return frozenset(found)


@cache
def _plain_in(folder: Path) -> dict[str, frozenset[str]]:
    """For each module the functions for plain values, its own and those that it imports by name."""
    sources = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    trees = {name: parsed(source) for name, source in sources.items()}
    known = {name: _plain_functions(tree, _border(sources[name], f"{name}.py")) for name, tree in trees.items()}
    while True:
        before = dict(known)
        for name, tree in trees.items():
            for node in (n for n in tree.body if isinstance(n, ast.ImportFrom) and _of_spec(n)):
                plain = known.get(_module_of(node), frozenset())
                known[name] |= {alias.asname or alias.name for alias in node.names if alias.name in plain}
        if known == before:
            return known


def _stems_of(tree: ast.Module) -> frozenset[str]:
    """The names of the stems of a module, its own and imported ones."""
    own = set()
    for node in (n for n in tree.body if isinstance(n, ast.Assign)):
        if isinstance(node.value, ast.Call) and _is_name(node.value.func, {"Stem"}):
            own |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    imports = (alias for n in tree.body if isinstance(n, ast.ImportFrom) for alias in n.names)
    return frozenset(own | {alias.asname or alias.name for alias in imports if alias.name == STEM})


def _is_name(node: ast.AST, names: Set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _names_a_stem(node: ast.AST, stems: Set[str]) -> bool:
    return _is_name(node, stems) or (isinstance(node, ast.Attribute) and node.attr == STEM)


def _class(node: ast.ClassDef, file: str) -> Iterator[Complaint]:
    """What makes a class more than a row of fields. A method or a base could give an operation another meaning, and
    could tell a symbol from a plain value.
    """
    for base in node.bases:
        if not _is_name(base, {"NamedTuple"}):
            yield Complaint(
                file, base.lineno, f"a class of the spec has no base but NamedTuple, not {ast.unparse(base)}"
            )
    for decorator in node.decorator_list:
        if ast.unparse(decorator) not in ("dataclass", "dataclass(frozen=True)"):
            yield Complaint(file, decorator.lineno, "a class of the spec is a frozen dataclass or a NamedTuple")
    for statement in node.body:
        name = ast.unparse(statement.target) if isinstance(statement, ast.AnnAssign) else ""
        if name in CLOSED or name.startswith("_"):
            yield Complaint(file, statement.lineno, f"a field is not called `{name}`: it would open this attribute")
        text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not text and not isinstance(statement, ast.AnnAssign):
            yield Complaint(file, statement.lineno, "a class of the spec has fields alone: write it as a function")


def _definitions(tree: ast.Module, file: str) -> Iterator[Complaint]:
    """Definitions that would change what the words of the spec mean."""
    words = {n.name for n in parsed(Path(logic.__file__).read_text("utf-8")).body if isinstance(n, ast.FunctionDef)}
    fields = {s.target for c in nodes(tree) if isinstance(c, ast.ClassDef) for s in c.body if hasattr(s, "target")}
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if node.name.startswith("__"):
                yield Complaint(file, node.lineno, f"`{node.name}` would change what an operation means")
            if isinstance(node, ast.FunctionDef) and node.decorator_list and _finite(node):
                yield Complaint(file, node.lineno, f"`{node.name}` is for plain values alone, and is registered")
        if isinstance(node, ast.ClassDef):
            yield from _class(node, file)
            if node.keywords:
                yield Complaint(file, node.lineno, "a class with a metaclass")
        if node in fields:
            continue
        hidden = {node.name} if isinstance(node, ast.FunctionDef | ast.ClassDef) else {_stored(node), _argument(node)}
        for name in AMONG_AT.keys() & hidden:
            yield Complaint(file, _line(node), f"`{name}` would change what an operation means")
        for name in words & {name for name in hidden if name}:
            yield Complaint(file, _line(node), f"`{name}` is a word of spec.logic, and would mean something else here")
        for name in _BUILTIN & {name for name in hidden if name}:
            yield Complaint(file, _line(node), f"`{name}` is a builtin of Python, and would mean something else here")


def _argument(node: ast.AST) -> str | None:
    return node.arg if isinstance(node, ast.arg) else None


def _outside_functions(tree: ast.Module, words: Words, file: str) -> Iterator[Complaint]:
    """Statements of a module that do more than to define names and to register laws, or define what can change."""
    todo: list[ast.AST] = [*tree.body]
    known, used_up = words.known | _given_outside(tree), _used_up(tree)
    called = {node.func for node in nodes(tree) if isinstance(node, ast.Call)}
    while todo:
        node = todo.pop()
        if isinstance(node, Function):
            todo.extend(node.decorator_list if not isinstance(node, ast.Lambda) else [])
            continue
        if isinstance(node, ast.Attribute) and node.attr in REGISTERS and not _is_name(node.value, {STEM}):
            yield Complaint(file, node.lineno, "a module registers laws of its own stem alone")
        elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant) and not _registers(node.value):
            yield Complaint(file, node.lineno, "a module defines names and registers laws, and does nothing else")
        elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load) and not _sets(node):
            yield Complaint(file, node.lineno, "a module changes nothing but the state and the start of its stem")
        elif isinstance(node, ast.Assign) and any(_names_a_stem(n, words.stems) for n in nodes(node.value)):
            yield Complaint(file, node.lineno, "a second name of a stem")
        elif isinstance(node, MUTABLE) and node not in used_up:
            yield Complaint(file, node.lineno, CAN_CHANGE, changes=True)
        elif message := (
            _attribute(node, words)
            or _plain(node, words.plain)
            or _call(node, known | BUILTINS, outside=True)
            or _name(node, known | BUILTINS if node in called else known)
        ):
            yield Complaint(file, _line(node), message)
        todo.extend(child for child in ast.iter_child_nodes(node) if not _is_type(node, child))


def _top(tree: ast.Module, file: str) -> Iterator[Complaint]:
    """Statements that a module may not have, and names that it gives twice."""
    given: set[str] = set()
    for node in tree.body:
        if not isinstance(node, AT_THE_TOP):
            yield Complaint(file, node.lineno, "a module imports, defines and registers, and does nothing else")
            continue
        inside = [n for n in nodes(node) if n is not node] if isinstance(node, ast.For) else []
        for n in inside:
            if isinstance(n, ast.stmt) and not isinstance(n, ast.Expr | ast.For):
                yield Complaint(file, n.lineno, "a loop of a module registers laws, and does nothing else")
        names = {node.name} if isinstance(node, ast.FunctionDef | ast.ClassDef) else set()
        if isinstance(node, ast.ImportFrom):
            names = {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names = {name for n in nodes(node) if (name := _stored(n))}
        for name in names & given:
            yield Complaint(file, node.lineno, f"`{name}` is given twice: it would mean one thing or the other")
        given |= names
        own = isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [STEM]
        for n in nodes(node):
            if (
                isinstance(n, ast.Call)
                and _is_name(n.func, {"Stem"})
                and not (own and n is getattr(node, "value", None))
            ):
                yield Complaint(file, n.lineno, "a module has one stem, and calls it `stem`")


def _types(tree: ast.Module, file: str) -> Iterator[Complaint]:
    """Types that do more than to name: Python and the provers may evaluate them."""
    for node in nodes(tree):
        for said in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            for part in nodes(said) if isinstance(said, ast.AST) else ():
                text = isinstance(part, ast.Constant) and isinstance(part.value, str) and not part.value.isidentifier()
                if text or not isinstance(part, ANNOTATION):
                    yield Complaint(file, _line(part), "a type names classes, and does nothing else")


def _cookie(source: str, file: str) -> Iterator[Complaint]:
    """A line by which Python reads the file otherwise than the lint does."""
    for number, line in enumerate(source.splitlines()[:2], start=1):
        if COOKIE.match(line):
            yield Complaint(file, number, "a file of the spec is UTF-8 and does not say so")


def _modules(tree: ast.Module, folder: Path, file: str) -> Iterator[Complaint]:
    """Modules of the spec that are more than the place of a name."""
    imports = (n for n in tree.body if isinstance(n, ast.ImportFrom) and _of_spec(n) and not _module_of(n))
    modules = {alias.asname or alias.name: alias.name for n in imports for alias in n.names}
    places = {n.value: n for n in nodes(tree) if isinstance(n, ast.Attribute)}
    for node in nodes(tree):
        if _is_name(node, modules.keys()) and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            place = places.get(node)
            if place is None or place.attr not in _names_in(modules[node.id], folder):
                yield Complaint(file, node.lineno, f"`{node.id}` is a module: only what it defines is named")


def _given_outside(tree: ast.Module) -> set[str]:
    """What a module imports from outside of the spec, and the names of its loops and comprehensions."""
    found = {alias.asname or alias.name for n in tree.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    todo: list[ast.AST] = [*tree.body]
    while todo:
        node = todo.pop()
        found |= {name} if (name := _stored(node)) else set()
        todo.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, Function))
    return found


def _used_up(tree: ast.Module) -> set[ast.AST]:
    """The lists and iterators of which nothing is left after the statement: those that are made a tuple there, and
    ``__all__``.
    """
    found: set[ast.AST] = set()
    for node in nodes(tree):
        if isinstance(node, ast.Starred):
            found.add(node.value)
        elif isinstance(node, ast.Call) and _is_name(node.func, {"tuple", "frozenset"}):
            found |= set(node.args)
        elif isinstance(node, ast.Assign) and _is_name(node.targets[0], {"__all__"}):
            found.add(node.value)
    return found


def _name(node: ast.AST, known: Set[str]) -> str | None:
    """A name that neither the module nor the function gives: a builtin of Python could look at a value."""
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load) or node.id in known:
        return None
    return f"`{node.id}` is not of the spec: it may look at a value"


def _is_type(node: ast.AST, child: ast.AST) -> bool:
    return child in (getattr(node, "annotation", None), getattr(node, "returns", None))


def _registers(value: ast.expr) -> bool:
    """A call of a method of the module's own stem that registers something, or a call of what such a call answers."""
    called = value.func if isinstance(value, ast.Call) else None
    if isinstance(called, ast.Call):
        return _registers(called)
    return isinstance(called, ast.Attribute) and _is_name(called.value, {STEM}) and called.attr in REGISTERS


def _sets(node: ast.Attribute | ast.Subscript) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in SETS


def _attribute(node: ast.AST, words: Words) -> str | None:
    """An attribute that no file of the spec defines: it could tell a symbol from a plain value."""
    if not isinstance(node, ast.Attribute):
        return None
    if node.attr == "Call":
        return "`Call()`: only `call` makes a call of a part"
    if node.attr == "ite":
        return "`.ite` is of symbols alone: say ite(…)"
    return None if node.attr in words.attributes else f"`.{node.attr}` is defined by no file of the spec"


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


def _plain_code(tree: ast.Module, border: int | None) -> Iterator[Function]:
    """The functions of the module that only the evaluation on plain values calls."""
    for node in tree.body:
        if isinstance(node, Function) and (_finite(node) or (border is not None and node.lineno >= border)):
            yield node


def _of_plain_code(function: Function, words: Words, around: set[str], file: str) -> Iterator[Complaint]:
    """``around``: the names of the functions around it."""
    own = _own_names(function) | around
    for line, message in plain_code.complaints(function, words.known, own, words.attributes):
        yield Complaint(file, line, message)
    for node in nodes(function):
        if _names_a_stem(node, words.stems):
            yield Complaint(file, _line(node), "a function does not look at a stem")


def _finite(function: Function) -> bool:
    if isinstance(function, ast.Lambda):
        return False
    return FINITE in " ".join((ast.get_docstring(function) or "").split())


def _imports(tree: ast.Module, file: str, folder: Path) -> Iterator[Complaint]:
    """Imports of what is not the spec's own."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield Complaint(file, node.lineno, "`import`: the spec imports names from modules of the spec")
        elif isinstance(node, ast.ImportFrom):
            defined = _defined_in(node, folder)
            for alias in node.names:
                if alias.name.startswith("_") or alias.name == "*" or (alias.name == "Call" and alias.asname):
                    yield Complaint(file, node.lineno, f"`{alias.name}` is not imported like this")
                elif defined is not None and alias.name not in defined:
                    yield Complaint(file, node.lineno, f"`{alias.name}` is not of the spec: `{node.module}` has it")


def _defined_in(node: ast.ImportFrom, folder: Path) -> frozenset[str] | None:
    """What may be imported from a module; ``None``: whatever it has."""
    if not _of_spec(node):
        return IMPORTS.get(node.module or "", frozenset())
    module = _module_of(node)
    if module == FINITE_MODULE:
        return CLASSES_OF_FINITE
    if not module:  # a module of the package
        return frozenset(p.stem for place in (folder, HERE) for p in place.glob("*.py")) - WORDS_OF_ALL
    return _names_in(module, folder)


def _module_of(node: ast.ImportFrom) -> str:
    """The module of the spec that is imported from, empty for the package itself."""
    return (node.module or "").removeprefix(f"{INSTALLED_IN}.").removeprefix("spec").removeprefix(".")


@cache
def _names_in(module: str, folder: Path) -> frozenset[str]:
    """What a module of the spec defines, and what it says it hands on."""
    path = next((p for p in (folder / f"{module}.py", HERE / f"{module}.py") if p.is_file()), None)
    return _names_of_module(parsed(path.read_text("utf-8")), imported=False) if path else frozenset()


def _of_spec(node: ast.ImportFrom) -> bool:
    """The spec is the package ``spec`` of the repository; in an installed wheel it lies below this package."""
    module = (node.module or "").removeprefix(f"{INSTALLED_IN}.").split(".")
    return not node.level and module[0] == "spec" and len(module) <= 2


def _names_of_module(tree: ast.Module, imported: bool = True) -> frozenset[str]:
    """The functions, classes and values that the module defines, what it says it hands on (``__all__``), and, if
    ``imported``, what it imports from the spec.
    """
    found = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            found |= {name for target in targets for n in nodes(target) if (name := _stored(n))}
    imports = (n for n in tree.body if isinstance(n, ast.ImportFrom) and _of_spec(n))
    brought = {alias.asname or alias.name for n in imports for alias in n.names}
    return frozenset(found | (brought if imported else brought & _handed_on(tree)))


def _handed_on(tree: ast.Module) -> set[str]:
    """The names in ``__all__``."""
    said = (n.value for n in tree.body if isinstance(n, ast.Assign) and _is_name(n.targets[0], {"__all__"}))
    return {str(n.value) for value in said for n in nodes(value) if isinstance(n, ast.Constant)}


def _complaints(function: Function, words: Words, file: str) -> Iterator[Complaint]:
    listings: dict[ast.AST, Function] = {listing: listing for listing in _listings(function)}
    own = _own_names(function)
    local, plain = words.known | own, words.plain - own
    apart = plain_code.types_in(function) | set(getattr(function, "decorator_list", [])) | _empty_listings(function)
    used = _used_in_calls(function)
    todo: list[ast.AST] = [function]
    while todo:
        node = todo.pop()
        if node in apart:
            continue
        if node in listings:
            yield from _of_plain_code(listings[node], words, own, file)
            continue
        looks = _attribute(node, words) or _call(node, local) or _plain(node, plain) or _name(node, local)
        if isinstance(node, ast.List):
            yield Complaint(file, node.lineno, CAN_CHANGE, changes=True)
        elif message := _message(node) or looks:
            yield Complaint(file, _line(node) or function.lineno, message)
        if _names_a_stem(node, words.stems):
            yield Complaint(file, _line(node), "a function does not look at a stem")
        if isinstance(node, ast.Attribute) and node.attr in METHODS and node not in used:
            yield Complaint(file, node.lineno, f"`.{node.attr}` is called or given to a call, and not kept or compared")
        if isinstance(node, Function):
            yield from _assigned_twice(node, file)
        todo.extend(ast.iter_child_nodes(node))


def _used_in_calls(function: Function) -> set[ast.AST]:
    """What is called, and what is given to a call."""
    calls = [n for n in nodes(function) if isinstance(n, ast.Call)]
    return {n for call in calls for n in (call.func, *call.args, *(k.value for k in call.keywords))}


def _plain(node: ast.AST, plain: Set[str]) -> str | None:
    name = node.id if isinstance(node, ast.Name) else ast.unparse(node) if isinstance(node, ast.Attribute) else None
    return f"`{name}` is for plain values alone" if name in plain else None


def _own_names(function: Function) -> set[str]:
    """The names that a function and the functions in it give to something."""
    found = set()
    for node in nodes(function):
        if isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


def _assigned_twice(function: Function, file: str) -> Iterator[Complaint]:
    """A lambda sees a name's last value when a symbolic map evaluates it, and the present one on plain values."""
    given = {arg.arg for arg in nodes(function.args) if isinstance(arg, ast.arg)}
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
    """The line at which a node begins; arguments begin at the first of them."""
    begins = nodes(node) if isinstance(node, ast.arguments) else (node,)
    return min((int(n.lineno) for n in begins if hasattr(n, "lineno")), default=0)


def _call(node: ast.AST, known: set[str] | frozenset[str], outside: bool = False) -> str | None:
    """A call of what is not the spec's own: it could look at a value. ``outside``: of functions."""
    if not isinstance(node, ast.Call):
        return None
    called = node.func
    if isinstance(called, ast.Attribute):
        return "`.get()` looks a value up: use a map of the state" if called.attr == "get" else None
    if isinstance(called, ast.Name) and called.id == "Call":
        return "`Call()`: only `call` makes a call of a part"
    if isinstance(called, ast.Name) and called.id in REGISTERED and not outside:
        return f"`{called.id}()` is made outside of functions"
    if isinstance(called, ast.Name):
        return None if called.id in known else f"`{called.id}()` is not of the spec: it may look at a value"
    return None if isinstance(called, ast.Lambda | ast.Call) else "a call of something that is no name"


def _message(node: ast.AST) -> str | None:
    if isinstance(node, ast.BinOp) and not isinstance(node.op, OPERATORS):
        return f"the operator `{type(node.op).__name__}` is none that a symbol knows"
    if isinstance(node, ast.FormattedValue):
        named = isinstance(node.value, ast.Name) and node.value.id == "what" and node.conversion == -1
        return None if named else "a text with a value in it would show a symbol: only `{what}` may stand there"
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
    if isinstance(node, ast.Constant) and not isinstance(node.value, int | str):
        return f"`{node.value!r}` is no number and no truth"
    if isinstance(node, ast.arguments):
        left_out = [d for d in (*node.defaults, *node.kw_defaults) if d and not isinstance(d, ast.Constant | ast.Name)]
        return "an argument that has any name, or a default that can change" if node.kwarg or left_out else None
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
    if isinstance(node.ops[0], ast.Is | ast.IsNot):
        return "`is` compares objects, not values: use =="
    for side in (node.left, *node.comparators):
        of_step = isinstance(side, ast.Attribute) and side.attr in OF_STEPS
        made = isinstance(side, ast.Call) and _is_name(side.func, {"Step", "call"})
        if isinstance(side, ast.Tuple | ast.Lambda) or of_step or made:
            return "only numbers and truths are compared"
    return None


def _listings(function: Function) -> set[Function]:
    """The lambdas and nested functions that only list keys, for the evaluation on plain values."""
    among = [a for node in nodes(function) if isinstance(node, ast.Call) for a in _among(node)]
    names = [a for a in among if isinstance(a, ast.Name)]
    listed, elsewhere = {n.id for n in names}, _loaded(function, set(names))
    nested = (n for n in nodes(function) if isinstance(n, ast.FunctionDef) and n is not function)
    return {
        *(a for a in among if isinstance(a, ast.Lambda)),
        *(n for n in nested if n.name in listed and n.name not in elsewhere),
    }


def _empty_listings(function: Function) -> set[ast.AST]:
    """The listings ``list`` and ``tuple``: they list no key."""
    among = (a for node in nodes(function) if isinstance(node, ast.Call) for a in _among(node))
    return {a for a in among if _is_name(a, {"list", "tuple"})}


def _among(call: ast.Call) -> list[ast.expr]:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in AMONG_AT:
        return []
    return [*call.args[AMONG_AT[call.func.attr] :], *(k.value for k in call.keywords if k.arg == "among")]


def _loaded(function: Function, but: set[ast.Name]) -> set[str]:
    """The names that are used, except at the places ``but``."""
    names = (n for n in nodes(function) if isinstance(n, ast.Name) and n not in but)
    return {n.id for n in names if isinstance(n.ctx, ast.Load)}


def files(paths: list[str]) -> list[Path]:
    """The spec files among ``paths``, folders searched."""
    found = (p for path in map(Path, paths) for p in ([path] if path.is_file() else sorted(path.rglob("*.py"))))
    roots = {
        file
        for path in map(Path, paths)
        for file in (path.parent / n if path.is_file() else path / n for n in EXCLUDED)
    }
    return [p for p in found if p not in roots]


def complaints(paths: list[str], folder: Path = HERE) -> list[Complaint]:
    """The complaints about the spec files among ``paths``, folders searched. ``folder``: see ``lint``."""
    others = [c for path in map(Path, paths) if path.is_dir() for c in _not_read(path)]
    return others + [c for spec in files(paths) for c in lint(spec.read_text(encoding="utf-8"), str(spec), folder)]


def _not_read(folder: Path) -> Iterator[Complaint]:
    """What Python could import in place of a file that the lint reads: a folder, or a compiled module."""
    for path in sorted(folder.iterdir()):
        imported = path.is_dir() or path.name.endswith((*EXTENSION_SUFFIXES, *BYTECODE_SUFFIXES))
        if imported and path.name != "__pycache__" and not path.name.startswith("."):
            yield Complaint(str(path), 1, "Python could import this in place of a file of its name, and it is not read")


def main(arguments: list[str]) -> int:
    """Prints each complaint; 1 if there are any, 3 where there is nothing to look at."""
    specs = files(arguments)
    if not specs:
        print("usage: python -m slotproof.spec_lint FOLDER_OR_FILE…", file=sys.stderr)
        return 3
    found = complaints(arguments)
    print("\n".join([*map(str, found), f"spec lint: {len(specs)} files, {len(found)} complaints"]))
    return 1 if found else 0
