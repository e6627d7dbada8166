"""Which expressions of a release are allocators.

The class of an expression is followed through the source, without running it, until nothing new is found:

- A value has a class where an annotation names the class, or where its constructor is called. An annotation with a base
  class stands for every class that inherits from it.
- The class goes with the value: through assignments (``a = b``, ``self.a = b``), ``or``, ``and``, conditional
  expressions, ``getattr(b, "a")``, arguments of calls, results of functions, and properties. A call is followed to
  every function of the called name where the name alone is known, and for ``self.f(...)`` to the method of the class.
- ``self`` in a method of an allocator class is an object of that class, or of a class that inherits from it; and
  ``super()`` one of the classes that it inherits from.
- Where nothing is known of ``x``, ``x.some_allocator`` is what any attribute, parameter or variable of this name holds
  elsewhere in the release, if the name has a word before ``_allocator``. So ``batch.token_to_kv_pool_allocator`` is
  known, and ``x.allocator`` is not, unless the class of ``x`` has an attribute of this name.

The answer may be too large: it does not know the order of statements, and joins the callers of a function. It is too
small where a value goes through a list, a dictionary or ``**kwargs``.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from conformance.engines.sglang.replacing.source.classes import Classes, name_of
from conformance.engines.sglang.replacing.source.facts import Bound, Callee, Facts, Key, Scope

SUFFIX = re.compile(r"\w*[a-z0-9]_allocator")
ROUNDS = 40  # far more than any release needs; the loop ends when nothing new is found
Found = frozenset[str]
NONE: Found = frozenset()


HOLDS = (ast.Name, ast.Attribute, ast.Call, ast.IfExp, ast.BoolOp, ast.NamedExpr, ast.Await)


def _may_hold(node: ast.expr | None) -> bool:
    """An expression of a kind that may be an allocator."""
    return isinstance(node, HOLDS)


class Receivers:
    """``classes``: all of the release. ``roots``: the base classes of what is looked for."""

    def __init__(self, classes: Classes, facts: Facts, roots: frozenset[str]) -> None:
        self.classes, self.facts = classes, facts
        self.kinds: Found = frozenset().union(*(classes.below(root) for root in roots))
        self.held: dict[Key, Found] = defaultdict(frozenset)
        self.named: dict[str, Found] = defaultdict(frozenset)
        self.fields = {
            name.removesuffix(" fields"): made for name, made in facts.callees.items() if name.endswith(" fields")
        }
        self.bound = [bound for bound in facts.bound if bound.annotation is not None or _may_hold(bound.value)]
        self.returns = [one for one in facts.returns if _may_hold(one[1])]
        self.calls = [
            one for one in facts.calls if any(map(_may_hold, (*one[0].args, *(w.value for w in one[0].keywords))))
        ]
        self.annotated: dict[int, Found] = {}
        for _ in range(ROUNDS):
            before = sum(map(len, self.held.values())) + sum(map(len, self.named.values()))
            self._round()
            if sum(map(len, self.held.values())) + sum(map(len, self.named.values())) == before:
                break

    def _round(self) -> None:
        for bound in self.bound:
            self._gives(bound.target, bound.name, self._of_bound(bound))
        for key, value, scope in self.returns:
            self._gives(key, key[-1] if key[0] == "attr" else "", self.of(value, scope))
        for call, scope in self.calls:
            self._passes(call, scope)

    def _gives(self, key: Key, name: str, found: Found) -> None:
        if found:
            self.held[key] |= found
            if SUFFIX.fullmatch(name):
                self.named[name] |= found

    def _of_bound(self, bound: Bound) -> Found:
        found = self.annotated.get(id(bound.annotation))
        if found is None:
            found = self.annotated[id(bound.annotation)] = self._annotated(bound.annotation)
        return found if bound.value is None else found | self.of(bound.value, bound.scope)

    def _annotated(self, node: ast.expr | None) -> Found:
        if node is None:
            return NONE
        found = NONE
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                try:
                    found |= self._annotated(ast.parse(part.value, mode="eval").body)
                except SyntaxError:
                    continue
            elif isinstance(part, (ast.Name, ast.Attribute)) and name_of(part) in self.kinds:
                found |= self.classes.below(name_of(part) or "")
        return found

    # Calls.

    def _passes(self, call: ast.Call, scope: Scope) -> None:
        given = [(place, self.of(value, scope)) for place, value in enumerate(call.args)]
        named = [(word.arg, self.of(word.value, scope)) for word in call.keywords if word.arg]
        if not any(found for _, found in given) and not any(found for _, found in named):
            return
        for callee in self._callees(call.func, scope):
            for place, found in given:
                if found and place < len(callee.names):
                    self._takes(callee, callee.names[place], found)
            for name, found in named:
                if found:
                    self._takes(callee, name, found)

    def _takes(self, callee: Callee, name: str, found: Found) -> None:
        """A parameter gets a value; a class without ``__init__`` keeps it in its attribute."""
        key: Key = ("attr", callee.owner or "", name) if callee.name.endswith("()") else callee.scope.local(name)
        self._gives(key, name, found)

    def _callees(self, func: ast.expr, scope: Scope) -> list[Callee]:
        name = name_of(func) or ""
        if isinstance(func, ast.Name):
            if name in self.classes.known:
                return self._makers(name)
            return [one for one in self.facts.callees.get(name, []) if one.owner is None]
        if not isinstance(func, ast.Attribute):
            return []
        owners = self._owners(func.value, scope)
        methods = [one for one in self.facts.callees.get(name, []) if one.owner is not None or owners is None]
        if owners is None:
            if name in self.classes.known:
                return self._makers(name)
            return methods if len({one.owner for one in methods}) == 1 else []
        line = {one.name for owner in owners for one in self.classes.line(owner)}
        return [one for one in methods if one.owner in line]

    def _makers(self, name: str) -> list[Callee]:
        """The ``__init__`` of a class, or its fields where it has none, as a data class."""
        for one in self.classes.line(name):
            found = [made for made in self.facts.callees.get("__init__", []) if made.owner == one.name]
            if found or one.name in self.fields:
                return found or self.fields[one.name]
        return []

    def _owners(self, value: ast.expr, scope: Scope) -> Found | None:
        """The classes of an object whose method is called; ``None``: not known."""
        if isinstance(value, ast.Name) and value.id == scope.me and scope.owner:
            return self.classes.below(scope.owner)
        if isinstance(value, ast.Call) and name_of(value.func) == "super" and scope.owner:
            return frozenset(one.name for one in self.classes.line(scope.owner))
        return self.of(value, scope) or None

    # Expressions.

    def of(self, node: ast.expr, scope: Scope) -> Found:
        """The classes that an expression may have; empty where it is no allocator, or nobody knows."""
        if isinstance(node, ast.Name):
            return self._of_name(node, scope)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node.value, node.attr, scope)
        if isinstance(node, ast.Call):
            return self._of_call(node, scope)
        if isinstance(node, ast.IfExp):
            return self.of(node.body, scope) | self.of(node.orelse, scope)
        if isinstance(node, ast.BoolOp):
            return frozenset().union(*(self.of(part, scope) for part in node.values))
        return self.of(node.value, scope) if isinstance(node, (ast.NamedExpr, ast.Await)) else NONE

    def _of_name(self, node: ast.Name, scope: Scope) -> Found:
        if node.id == scope.me and scope.owner:
            return self.classes.below(scope.owner) & self.kinds
        for key in scope.chain(node.id):
            if key in self.held:
                return self.held[key]
        if node.id in self.kinds:
            return frozenset({node.id})
        return self.named.get(node.id, NONE) if SUFFIX.fullmatch(node.id) else NONE

    def _of_attribute(self, value: ast.expr, name: str, scope: Scope) -> Found:
        if isinstance(value, ast.Name) and value.id == scope.me and scope.owner:
            owners: Found = frozenset(one.name for one in self.classes.line(scope.owner))
        else:
            owners = frozenset(one.name for kind in self.of(value, scope) for one in self.classes.line(kind))
        found: Found = frozenset().union(*(self.held.get(("attr", owner, name), NONE) for owner in owners))
        return found or (self.named.get(name, NONE) if SUFFIX.fullmatch(name) else NONE)

    def _of_call(self, node: ast.Call, scope: Scope) -> Found:
        name = name_of(node.func)
        if name == "getattr" and len(node.args) >= 2 and isinstance(node.args[1], ast.Constant):
            return self._of_attribute(node.args[0], str(node.args[1].value), scope)
        if name in self.kinds:
            return frozenset({name}) if name else NONE
        return self.held.get(("return", name), NONE) if name and ("return", name) in self.held else NONE
