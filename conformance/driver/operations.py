"""Which methods are operations, and what their arguments mean: a number of tokens, token ids, or a name.

The operations say it themselves, by a mark and by the annotations of their parameters. ``conformance.traces.shrink``
and ``conformance.traces.trace_schema`` read it there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from inspect import Signature, signature
from typing import Annotated, Any, TypeVar, get_type_hints

TOKENS, KEY = "a number of tokens", "token ids"
Tokens = Annotated[
    int, TOKENS
]  # shrinks with the page size; two operations that differ only in it can become one with the sum
MAY_BE_EMPTY = "there may be none"
KeyTokens = Annotated[list[int], KEY]  # only gets shorter: its token ids stay, since other keys have the same prefix
AnyTokens = Annotated[list[int], KEY, MAY_BE_EMPTY]  # as ``KeyTokens``, and there may be none

Method = TypeVar("Method", bound=Callable[..., Any])
MARK = "is_an_operation"


def operation(method: Method) -> Method:
    """Marks a method as an operation: a run does it, and a trace can name it by the method's name."""
    setattr(method, MARK, True)
    return method


def declared(*owners: type) -> dict[str, Callable[..., Any]]:
    """The operations of classes, by name, as plain functions whose first parameter is ``self``."""
    return {name: method for owner in owners for name, method in vars(owner).items() if getattr(method, MARK, False)}


def operations_of(*parts: Any) -> dict[str, Callable[..., Any]]:
    """The operations of objects, by name, ready to be called."""
    return {name: getattr(part, name) for part in parts for owner in type(part).__mro__ for name in declared(owner)}


def must_take(operation: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raises ``TypeError`` where an operation has no such parameters, or needs others."""
    method = getattr(operation, "__func__", None)  # of all runs of a stem, so that its signature is read once
    if method is None:
        signature(operation).bind(**arguments)
    else:
        _signature(method).bind(None, **arguments)


@cache
def _signature(method: Callable[..., Any]) -> Signature:
    return signature(method)


def kinds_of(operations: Mapping[str, Callable[..., Any]]) -> dict[str, dict[str, str]]:
    """For each operation, what each of its parameters means: ``TOKENS``, ``KEY``, or empty for a number that is a
    name.
    """
    return {name: _kinds(operation) for name, operation in operations.items()}


def _kinds(operation: Callable[..., Any]) -> dict[str, str]:
    hints = get_type_hints(operation, include_extras=True)
    return {name: _kind(hint) for name, hint in hints.items() if name != "return"}


def _kind(hint: Any) -> str:
    """The kind in an annotation, also in ``Tokens | None``."""
    for part in (hint, *getattr(hint, "__args__", ())):
        for kind in getattr(part, "__metadata__", ()):
            if kind in (TOKENS, KEY):
                return str(kind)
    return ""
