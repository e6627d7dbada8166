"""What the code of a release says about values: what is assigned, passed and returned, and which members are touched.

One pass over a file collects facts; ``receivers`` follows them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from conformance.engines.sglang.replacing.source.classes import File, name_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
Key = tuple[str, ...]  # what can hold a value: ("local", file, scope, name), ("attr", class, name), ("return", ...)


@dataclass(frozen=True)
class Scope:
    """Where code stands. ``functions``: the functions around it, the outermost first, as names that are unique in the
    file. ``classes``: the classes around it, ``selves``: for each class the name of a method's first argument.
    """

    file: str
    functions: tuple[str, ...] = ()
    owner: str | None = None
    me: str | None = None
    within: tuple[str, ...] = ()  # all classes around it

    def local(self, name: str) -> Key:
        """What holds a local name of this scope."""
        return ("local", self.file, self.functions[-1] if self.functions else "", name)

    def chain(self, name: str) -> Iterator[Key]:
        """What may hold a name that is read here: the innermost scope first, the file last."""
        for function in reversed(self.functions):
            yield ("local", self.file, function, name)
        yield ("local", self.file, "", name)


@dataclass(frozen=True)
class Bound:
    """A name or an attribute gets a value, or an annotation says which class it has."""

    target: Key
    name: str
    value: ast.expr | None
    annotation: ast.expr | None
    scope: Scope


@dataclass(frozen=True)
class Callee:
    """A function that may be called by its name. ``owner``: its class. ``names``: its parameters, without the first of
    a method.
    """

    name: str
    owner: str | None
    file: str
    scope: Scope
    names: tuple[str, ...]


@dataclass
class Facts:
    """All facts of a release. ``touches``: attributes that are read or set. ``returns``: what a function returns."""

    bound: list[Bound] = field(default_factory=list)
    calls: list[tuple[ast.Call, Scope]] = field(default_factory=list)
    touches: list[tuple[ast.Attribute, Scope, ast.Call | None]] = field(default_factory=list)
    returns: list[tuple[Key, ast.expr, Scope]] = field(default_factory=list)
    callees: dict[str, list[Callee]] = field(default_factory=dict)

    @classmethod
    def of(cls, sources: list[File]) -> Facts:
        """The facts of these files."""
        found = cls()
        for file in sources:
            _Pass(found, Scope(file.place)).run(file.tree)
        return found


class _Pass(ast.NodeVisitor):
    """Collects the facts of one file."""

    def __init__(self, facts: Facts, scope: Scope) -> None:
        self.facts, self.scope = facts, scope
        self.called: dict[ast.expr, ast.Call] = {}
        self.result: Key = ("return", "")

    def run(self, tree: ast.Module) -> None:
        """Visits the file."""
        self.visit(tree)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """The body of a class: its annotations are attributes of its objects."""
        outer = self.scope
        self.scope = Scope(outer.file, outer.functions, node.name, None, (*outer.within, node.name))
        fields = [part for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)]
        names = tuple(name_of(part.target) or "" for part in fields)
        if fields:
            maker = Callee(f"{node.name}()", node.name, outer.file, self.scope, names)
            self.facts.callees.setdefault(f"{node.name} fields", []).append(maker)
        for part in fields:
            name = name_of(part.target) or ""
            self.facts.bound.append(Bound(("attr", node.name, name), name, part.value, part.annotation, self.scope))
        self.generic_visit(node)
        self.scope = outer

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """A function."""
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """A coroutine."""
        self._function(node)

    def _function(self, node: Function) -> None:
        outer = self.scope
        method = outer.owner is not None and outer.me is None
        static = any(name_of(word) == "staticmethod" for word in node.decorator_list)
        listed = [*node.args.posonlyargs, *node.args.args]
        first = listed[0].arg if method and listed and not static else None
        inner = (*outer.functions, f"{outer.owner or ''}.{node.name}:{node.lineno}")
        self.scope = Scope(outer.file, inner, outer.owner, first or outer.me, outer.within)
        names = tuple(word.arg for word in listed[1 if first else 0 :])
        known = (*names, *(word.arg for word in node.args.kwonlyargs))
        callee = Callee(node.name, outer.owner if method else None, outer.file, self.scope, names)
        self.facts.callees.setdefault(node.name, []).append(callee)
        for word in (*listed, *node.args.kwonlyargs):
            if word.arg in known:
                bound = Bound(self.scope.local(word.arg), word.arg, None, word.annotation, self.scope)
                self.facts.bound.append(bound)
        around, self.result = self.result, self._result(node, outer)
        for part in node.body:
            self.visit(part)
        self.scope, self.result = outer, around
        for value in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(value)

    def _result(self, node: Function, outer: Scope) -> Key:
        """A property is an attribute; the result of another function is that of its calls."""
        prop = any((name_of(word) or "").endswith("property") for word in node.decorator_list)
        key: Key = ("attr", outer.owner, node.name) if prop and outer.owner else ("return", node.name)
        if node.returns is not None:
            self.facts.bound.append(Bound(key, "", None, node.returns, self.scope))
        return key

    def visit_Return(self, node: ast.Return) -> None:
        """What the function around returns."""
        if node.value is not None:
            self.facts.returns.append((self.result, node.value, self.scope))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """``a = b``, also several at once."""
        for target in node.targets:
            self._bind(target, node.value, None)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """``a: C = b``."""
        if self.scope.functions or self.scope.owner is None:
            self._bind(node.target, node.value, node.annotation)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        """``a := b``."""
        self._bind(node.target, node.value, None)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        """A loop over values that stand in its head: each is bound once."""
        if isinstance(node.iter, (ast.Tuple, ast.List)):
            for value in node.iter.elts:
                self._bind(node.target, value, None)
        self.generic_visit(node)

    def _bind(self, target: ast.expr, value: ast.expr | None, annotation: ast.expr | None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                for one, part in zip(target.elts, value.elts, strict=True):
                    self._bind(one, part, None)
        elif isinstance(target, ast.Name):
            self.facts.bound.append(Bound(self.scope.local(target.id), target.id, value, annotation, self.scope))
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            mine = self.scope.owner is not None and target.value.id == self.scope.me
            key: Key = ("attr", self.scope.owner or "", target.attr) if mine else ("other", target.attr)
            self.facts.bound.append(Bound(key, target.attr, value, annotation, self.scope))

    def visit_Call(self, node: ast.Call) -> None:
        """A call."""
        self.facts.calls.append((node, self.scope))
        self.called[node.func] = node
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """A member that is touched."""
        self.facts.touches.append((node, self.scope, self.called.get(node)))
        self.generic_visit(node)
