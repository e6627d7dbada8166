"""The text of a revision: what a law, a transition or a requirement says in the words of the spec."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from proofs.difference.loaded import WORDS, bare, names

Function = tuple[str, str]  # the module, and the name of the function in it


@dataclass(frozen=True)
class RevisionTexts:
    """The files of a revision."""

    folder: Path

    @cached_property
    def _trees(self) -> dict[str, ast.Module]:
        return {
            name: ast.parse((self.folder / f"{name}.py").read_text(encoding="utf-8")) for name in names(self.folder)
        }

    @cached_property
    def functions(self) -> dict[Function, ast.FunctionDef]:
        """The functions of the modules, by module and name."""
        return {
            (module, node.name): node
            for module, tree in self._trees.items()
            for node in tree.body
            if isinstance(node, ast.FunctionDef)
        }

    @cached_property
    def _others(self) -> dict[Function, ast.AST]:
        """What else the modules define: constants and classes."""
        found: dict[Function, ast.AST] = {}
        for module, tree in self._trees.items():
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    found[module, node.name] = node
                for target in node.targets if isinstance(node, ast.Assign) else ():
                    for name in (n.id for n in ast.walk(target) if isinstance(n, ast.Name)):
                        found[module, name] = node
        return found

    @cached_property
    def _imports(self) -> dict[str, dict[str, Function]]:
        """For each module what its imported names stand for; a module itself has no name in it."""
        found: dict[str, dict[str, Function]] = {name: {} for name in self._trees}
        for module, tree in self._trees.items():
            for node in (n for n in tree.body if isinstance(n, ast.ImportFrom)):
                source = (node.module or "").rpartition(".")[2]
                for alias in node.names:
                    inside = source in self._trees or source in WORDS
                    found[module][alias.asname or alias.name] = (source, alias.name) if inside else (alias.name, "")
        return found

    @cached_property
    def _dumps(self) -> dict[str, str]:
        return {name: ast.dump(tree) for name, tree in self._trees.items()}

    def read_by(self, module: str) -> dict[str, str]:
        """What a module and all modules of the spec that it imports say, whatever their layout is."""
        todo, found = [module], dict[str, str]()
        while todo:
            name = todo.pop()
            if name in self._trees and name not in found:
                found[name] = self._dumps[name]
                todo += [part for of in self._imports[name].values() for part in of]
        return found

    def formula(self, function: Callable[..., Any]) -> str:
        """What a function answers, in the words of the spec; its whole text without the docstring where it is more
        than one expression.
        """
        node = self.functions.get(place(function))
        return "" if node is None else _text(node)

    def sentence(self, function: Function) -> str:
        """The docstring of a function on one line."""
        node = self.functions.get(function)
        return " ".join(((node and ast.get_docstring(node)) or "").split())

    def text(self, function: Function) -> str:
        """What something that a module defines is, without its docstring; empty where the module lacks it."""
        if function in self.functions:
            return _text(self.functions[function])
        return ast.unparse(self._others[function]) if function in self._others else ""

    def reached(self, function: Callable[..., Any]) -> set[Function]:
        """What a function is made of: the functions, constants and classes of the spec that it names, and their own."""
        todo, found = [place(function)], set()
        while todo:
            one = todo.pop()
            if one not in found:
                found.add(one)
                todo += self._named.get(one, ())
        return found

    def says(self, function: Callable[..., Any]) -> dict[Function, str] | None:
        """The text of all that a function is made of; ``None`` for a function that no module defines by itself, as one
        that another function has made.
        """
        plain = getattr(function, "__closure__", None) is None and place(function) in self.functions
        return {one: self._every_text[one] for one in self.reached(function)} if plain else None

    @cached_property
    def _every_text(self) -> dict[Function, str]:
        return {one: self.text(one) for one in (*self.functions, *self._others)}

    @cached_property
    def _named(self) -> dict[Function, set[Function]]:
        """What each function, constant and class names of the others."""
        return {one: {*self._names_of(one, node)} for one, node in {**self._others, **self.functions}.items()}

    def _names_of(self, one: Function, node: ast.AST) -> Iterator[Function]:
        known = self._imports[one[0]]
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                of = known.get(part.id, (one[0], part.id))
            elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                of = (known.get(part.value.id, ("", ""))[0], part.attr)
            else:
                continue
            if of in self.functions or of in self._others:
                yield of

    def asked(self, sentence: str, transition: Callable[..., Any]) -> str:
        """The formula of the requirement with this sentence, as the transition or a function that it calls says it."""
        within = self.reached(transition)
        found = [
            (place not in within, text) for pattern, place, text in self._requirements if pattern.fullmatch(sentence)
        ]
        return min(found)[1] if found else ""

    @cached_property
    def _requirements(self) -> list[tuple[re.Pattern[str], Function, str]]:
        found = []
        for where, node in self.functions.items():
            for part in ast.walk(node):
                if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "requires":
                    holds, said = [*part.args, *(key.value for key in part.keywords)][:2]
                    found.append((_pattern(said), where, ast.unparse(holds)))
        return found


def _pattern(said: ast.expr) -> re.Pattern[str]:
    """A sentence as a pattern: what the spec puts into it may be any words."""
    if isinstance(said, ast.JoinedStr):
        parts = [re.escape(str(p.value)) if isinstance(p, ast.Constant) else ".*" for p in said.values]
        return re.compile("".join(parts))
    return re.compile(re.escape(str(said.value)) if isinstance(said, ast.Constant) else "(?!)")


def of_one_text(
    sources: tuple[RevisionTexts, RevisionTexts], one: Callable[..., Any], other: Callable[..., Any]
) -> bool:
    """All that two functions of two revisions are made of is one text: then no formula has to be looked at."""
    was, now = (source.says(function) for source, function in zip(sources, (one, other), strict=True))
    return was is not None and was == now


def place(function: Callable[..., Any]) -> Function:
    """The module and the name of a function of the spec."""
    return function.__module__.rpartition(".")[2], function.__name__


def _text(node: ast.FunctionDef) -> str:
    copy = bare(ast.parse(ast.unparse(node))).body[0]
    copy.decorator_list = []
    if len(copy.body) == 1 and isinstance(copy.body[0], ast.Return) and copy.body[0].value is not None:
        return ast.unparse(copy.body[0].value)
    return ast.unparse(copy)


@cache
def texts(folder: Path) -> RevisionTexts:
    """The text of the revision in this folder, read once."""
    return RevisionTexts(folder)
