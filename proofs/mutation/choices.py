"""What an edit puts in the place of a part of a function."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import NamedTuple


class Choice(NamedTuple):
    """An operator, and what makes the node that takes the place of a node. ``part``: the part of the node that is left
    out, where only a part of it is. ``said``: the text of the place before and after, where it is not the text of the
    two nodes.
    """

    operator: str
    make: Callable[[], ast.AST]
    part: ast.AST | None = None
    said: tuple[str, str] | None = None

    def texts(self, node: ast.AST) -> tuple[str, str]:
        """The text of the place ``node`` before the edit and after it."""
        return self.said or (shown(self.part or node), "nothing" if self.part else shown(self.make()))


def built(make: Callable[..., ast.expr], *of: object) -> Callable[[], ast.expr]:
    """A function that makes a node of these."""
    return lambda: make(*of)


def shown(node: ast.AST) -> str:
    """The text of a node on one line, cut where it is long."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 100 else f"{text[:60]} … {text[-30:]}"


def without_keyword(node: ast.Call, at: int) -> ast.expr:
    """The call without one of the arguments that it names."""
    return ast.Call(node.func, node.args, [*node.keywords[:at], *node.keywords[at + 1 :]])
