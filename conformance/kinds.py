"""What an argument of an operation means to ``conformance.shrink``: a number of tokens, token ids, or a name.

The operations say it in the annotations of their parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_type_hints

TOKENS, KEY = "a number of tokens", "token ids"
Tokens = Annotated[
    int, TOKENS
]  # shrinks with the page size; two operations that differ only in it can become one with the sum
KeyTokens = Annotated[list[int], KEY]  # only gets shorter: its token ids stay, since other keys have the same prefix


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
