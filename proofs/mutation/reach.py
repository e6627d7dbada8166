"""Which functions of the spec each transition is made of, read from the text of the spec's files."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import spec
from proofs.obligations import START
from proofs.registry import STEMS, hints_of

FOLDER = Path(spec.__file__).parent
PREFIX = f"{spec.__name__}."
LANGUAGE = ("logic", "finite")  # the words in which the spec is written: they are no part of a transition
FINITE = "(finite reading)"

Function = tuple[str, str]  # the module, without its package, and the name in it
Transition = tuple[str, str]  # the stem, and the name of the transition


@cache
def text_of(module: str) -> str:
    """The text of a module of the spec."""
    return (FOLDER / f"{module}.py").read_text(encoding="utf-8")


@cache
def modules() -> tuple[str, ...]:
    """The modules of the spec that can be edited, by name."""
    return tuple(path.stem for path in sorted(FOLDER.glob("*.py")) if path.stem not in (*LANGUAGE, "__init__"))


@cache
def made_of(stem: str, transition: str, through_parts: bool = True) -> frozenset[Function]:
    """The functions of the spec that the transition calls, and the transition; for ``START`` the first state.

    ``through_parts``: also those that it reaches only through the transitions of the parts of its stem.
    """
    laws = hints_of(stem).stem
    todo = [_place_of(laws.start if transition == START else laws.transitions[transition])]
    of_parts = {_place_of(f) for part in laws.parts.values() for f in (part.start, *part.transitions.values())}
    found: set[Function] = set()
    while todo:
        one = todo.pop()
        if one not in found and (through_parts or one not in of_parts):
            found.add(one)
            todo += _called(*one)
    return frozenset(found)


def _place_of(function: Any) -> Function:
    return function.__module__.removeprefix(PREFIX), function.__name__


def is_direct(function: Function, stem: str, transition: str) -> bool:
    """The transition calls the function, not only transitions of parts that call it."""
    return function in made_of(stem, transition, through_parts=False)


@cache
def reached() -> MappingProxyType[Function, tuple[Transition, ...]]:
    """For each function the transitions that are made of it, in the order of the stems."""
    found: dict[Function, list[Transition]] = {}
    for stem in STEMS:
        for transition in (START, *hints_of(stem).stem.transitions):
            for function in made_of(stem, transition):
                found.setdefault(function, []).append((stem, transition))
    return MappingProxyType({function: tuple(transitions) for function, transitions in found.items()})


@cache
def users_of(module: str) -> tuple[str, ...]:
    """The module, and the modules that import it, directly or not, in an order in which they can be loaded."""
    found = {module}
    for _ in modules():
        found |= {name for name in modules() if found & _imports(name)}
    return tuple(sorted(found, key=lambda name: len(_all_imports(name))))


@cache
def _all_imports(module: str) -> frozenset[str]:
    return frozenset({module}).union(*(_all_imports(name) for name in _imports(module)))


@cache
def _imports(module: str) -> frozenset[str]:
    """The modules of the spec that a module imports."""
    return frozenset({name for name, _ in _names(module).values()} - {module, *LANGUAGE})


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(text_of(module))


@cache
def _functions(module: str) -> MappingProxyType[str, ast.FunctionDef]:
    """The functions of a module that proofs read."""
    functions = [node for node in _tree(module).body if isinstance(node, ast.FunctionDef)]
    return MappingProxyType({f.name: f for f in functions if FINITE not in (ast.get_docstring(f) or "")})


@cache
def _names(module: str) -> MappingProxyType[str, Function]:
    """What the names that a module imports from the spec stand for; a module itself has no name in it."""
    found: dict[str, Function] = {}
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == spec.__name__:
            source = (node.module or "").removeprefix(spec.__name__).removeprefix(".")
            for alias in node.names:
                found[alias.asname or alias.name] = (source, alias.name) if source else (alias.name, "")
    return MappingProxyType(found)


def _called(module: str, name: str) -> Iterator[Function]:
    """The functions that a function names."""
    function = _functions(module).get(name)
    if function is None:
        if (source := _names(module).get(name)) is not None and source[0] not in LANGUAGE:
            yield source
        return
    own = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    own |= {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(function):
        if not (isinstance(node, ast.Name) and node.id in own) and (found := _meant(module, node)):
            yield found


def _meant(module: str, node: ast.AST) -> Function | None:
    """The function of the spec that a name, or an attribute of a module's name, stands for in a module."""
    if isinstance(node, ast.Name):
        return _resolved(module, node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        of, inside = _names(module).get(node.value.id, ("", "-"))
        return _resolved(of, node.attr) if of and not inside else None
    return None


def callee(module: str) -> Callable[[ast.expr], ast.FunctionDef | None]:
    """Finds the function of the spec that an expression in this module stands for; ``None`` for any other one."""

    def found(node: ast.expr) -> ast.FunctionDef | None:
        place = _meant(module, node)
        return _functions(place[0]).get(place[1]) if place else None

    return found


def _resolved(module: str, name: str) -> Function | None:
    """The function that a name stands for in a module."""
    if name in _functions(module):
        return module, name
    source, own = _names(module).get(name, ("", ""))
    return _resolved(source, own) if source and own and source not in LANGUAGE else None
