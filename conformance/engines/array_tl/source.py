"""A kernel's source as a Python function on values of ``conformance.engines.array_tl``.

As in Triton's interpreter, a Python number that is assigned to a name becomes a scalar with a type; annotated names and
constants stay Python numbers. A kernel that uses anything whose meaning is not certain here is refused as a whole, with
the line and the reason.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from conformance.engines.array_tl.language import BUILTINS, LANGUAGE, TRITON
from conformance.engines.array_tl.values import NotCovered, Value, dtype_of, value

OF_VALUES = frozenset({"to", "dtype", "shape"})  # the attributes that a value has
_TYPED = "__typed__"  # the function that every assigned value goes through
_STATEMENTS = (
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return, ast.Pass),
    *(ast.If, ast.For, ast.While, ast.Break, ast.Continue),
)
_EXPRESSIONS = (
    *(ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.keyword),
    *(ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)


def on_arrays(function: FunctionType, kernel_of: Callable[[Any], Callable[..., Any] | None]) -> Callable[..., Any]:
    """The kernel as a function of values and pointers.

    ``kernel_of`` answers the function of another kernel that this one calls, and ``None`` for what is no kernel. Raises
    ``NotCovered`` with a line and a reason.
    """
    definition = _definition(function)
    found = {
        name: _meaning(name, function, kernel_of, line) for name, line in _globals_of(definition) if name != _TYPED
    }
    for node in _inner(definition):
        _check(node, found, definition)
    wanted = _Assigned().visit(definition)
    module = ast.fix_missing_locations(ast.Module([wanted], []))
    scope: dict[str, Any] = {"__builtins__": {}, "__name__": function.__module__, **found, _TYPED: _typed}
    exec(compile(module, function.__code__.co_filename, "exec"), scope)
    made: FunctionType = scope[function.__name__]
    made.__defaults__ = tuple(_constant("a default", given) for given in function.__defaults__ or ()) or None
    return made


def _definition(function: FunctionType) -> ast.FunctionDef:
    """The function's own syntax tree, with the lines of its file, without decorators, annotations and defaults."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except OSError as error:
        raise NotCovered(f"its source is not there: {error}") from error
    node = ast.parse(text).body[0]
    if not isinstance(node, ast.FunctionDef) or function.__code__.co_freevars:
        raise NotCovered("it is no function at the top of a module")
    ast.increment_lineno(node, function.__code__.co_firstlineno - 1)
    parameters = node.args
    if parameters.vararg or parameters.kwarg or parameters.kwonlyargs or parameters.posonlyargs:
        raise NotCovered("it has parameters that are not plain names")
    node.decorator_list, node.returns, parameters.defaults = [], None, []
    for parameter in parameters.args:
        parameter.annotation = None
    return node


def _inner(definition: ast.FunctionDef) -> Iterator[ast.AST]:
    """Every node of the body. What is annotated keeps its value alone."""
    for statement in definition.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.AnnAssign):
                node.annotation = ast.copy_location(ast.Constant(None), node)
            yield node


def _locals_of(definition: ast.FunctionDef) -> set[str]:
    stored = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {parameter.arg for parameter in definition.args.args}


def _globals_of(definition: ast.FunctionDef) -> Iterator[tuple[str, int]]:
    """Each name that the body reads and never writes, with a line."""
    known = _locals_of(definition)
    for node in _inner(definition):
        if isinstance(node, ast.Name) and node.id not in known:
            yield node.id, node.lineno


def _meaning(
    name: str, function: FunctionType, kernel_of: Callable[[Any], Callable[..., Any] | None], line: int
) -> Any:
    """What a global name is for a kernel on arrays."""
    given = function.__globals__.get(name, BUILTINS.get(name))
    if given is None:
        raise NotCovered(f"line {line}: {name}")
    if isinstance(given, ModuleType):
        module = {"triton": TRITON, "triton.language": LANGUAGE}.get(given.__name__)
        if module is None:
            raise NotCovered(f"line {line}: the module {given.__name__}")
        return module
    if name in BUILTINS and given is BUILTINS[name]:
        return given
    return kernel_of(given) or _constant(f"line {line}: {name}", given)


def _constant(where: str, given: Any) -> Any:
    """A constant of Python or Triton as a kernel on arrays sees it."""
    inner = given.value if type(given).__name__ == "constexpr" else given
    if inner is None or isinstance(inner, (bool, int, str)):
        return inner
    try:
        return dtype_of(inner)
    except NotCovered as error:
        raise NotCovered(f"{where}, a {type(inner).__name__}") from error


def _check(node: ast.AST, found: dict[str, Any], definition: ast.FunctionDef) -> None:
    """``NotCovered`` if the node's meaning is not certain."""
    line = f"line {getattr(node, 'lineno', definition.lineno)}"
    if not isinstance(node, _STATEMENTS + _EXPRESSIONS):
        raise NotCovered(f"{line}: {type(node).__name__}")
    if isinstance(node, ast.Assign) and len(node.targets) > 1:
        raise NotCovered(f"{line}: one value for two names")
    if isinstance(node, ast.Compare) and len(node.ops) > 1:
        raise NotCovered(f"{line}: a chain of comparisons")
    if isinstance(node, (ast.For, ast.While)) and node.orelse:
        raise NotCovered(f"{line}: the else of a loop")
    if isinstance(node, ast.Attribute):
        home = _namespace(node.value, found)
        if home is None and node.attr not in OF_VALUES:
            raise NotCovered(f"{line}: the attribute {node.attr}")
        if home is not None and not hasattr(home, node.attr):
            raise NotCovered(f"{line}: {ast.unparse(node)}")


def _namespace(node: ast.AST, found: dict[str, Any]) -> SimpleNamespace | None:
    """``LANGUAGE`` or ``TRITON`` if the expression names one."""
    if isinstance(node, ast.Name):
        given = found.get(node.id)
    elif isinstance(node, ast.Attribute) and (home := _namespace(node.value, found)) is not None:
        given = getattr(home, node.attr, None)
    else:
        return None
    return given if isinstance(given, SimpleNamespace) else None


class _Assigned(ast.NodeTransformer):
    """``x = 1`` makes a typed scalar of 1."""

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        """Sends what is assigned through ``_typed``."""
        call = ast.Call(ast.Name(_TYPED, ast.Load()), [node.value], [])
        node.value = ast.copy_location(call, node.value)
        return node


def _typed(given: Any) -> Any:
    """A Python number as a scalar with a type; anything else as it is."""
    if isinstance(given, float):
        raise NotCovered("a float")
    return value(given) if isinstance(given, int) and not isinstance(given, Value) else given
