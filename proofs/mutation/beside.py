"""The spec with an edit, loaded as modules of its own beside the right ones."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, ModuleType
from typing import Any

import spec
from proofs.mutation import reach
from proofs.mutation.operators import Edit, edited
from proofs.registry import STEMS
from spec.logic import Stem


def stems_with(edit: Edit) -> dict[str, Stem]:
    """The stems of the spec with the edit, by name; a stem that the edited file is no part of is left out.

    Raises whatever the edited text raises when it is loaded.
    """
    module = edit.module
    users = reach.users_of(module)
    changed = edited(reach.text_of(module), edit, reach.callee(module))
    codes = {name: _code(name) for name in users} | {module: _compiled(module, changed)}
    with _set_aside(users):
        loaded = {name: _loaded(name, code) for name, code in codes.items()}
    return {name: vars(loaded[name])["stem"] for name in STEMS if name in loaded}


def _compiled(module: str, tree: ast.Module) -> CodeType:
    return compile(tree, f"<edited {module}>", "exec")


@cache
def _code(module: str) -> CodeType:
    return _compiled(module, ast.parse(reach.text_of(module)))


def _loaded(module: str, code: CodeType) -> ModuleType:
    made = ModuleType(reach.PREFIX + module)
    sys.modules[made.__name__] = made
    setattr(spec, module, made)
    exec(code, vars(made))
    return made


@contextmanager
def _set_aside(modules: tuple[str, ...]) -> Iterator[None]:
    """While this is open, the spec's modules of these names may be others; afterwards they are the right ones again."""
    names = [reach.PREFIX + module for module in modules]
    right = {name: sys.modules[name] for name in names if name in sys.modules}
    attributes: dict[str, Any] = dict(vars(spec))
    try:
        yield
    finally:
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(right)
        vars(spec).clear()
        vars(spec).update(attributes)
