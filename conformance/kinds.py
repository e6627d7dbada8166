"""What an argument of an operation counts, so that a run can be made smaller: annotations of the operations' parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_type_hints

TOKENS, KEY = "a number of tokens", "token ids"
Tokens = Annotated[int, TOKENS]  # scales with the page size; two of them can be added up
KeyTokens = Annotated[list[int], KEY]  # gets shorter, and its tokens stay, since other keys share them


def kinds_of(operations: Mapping[str, Callable[..., Any]]) -> dict[str, dict[str, str]]:
    """For each operation its parameters, each with what it counts (empty: it names something)."""
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
