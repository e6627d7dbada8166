"""Which members of its allocator classes a release's own code touches, and which of them ours lack.

The source is read, not run. ``source.receivers`` says how an allocator is recognised. A member counts where code
outside the replaced classes reads, sets, deletes or calls it on an object that may be of a replaced class, where the
release's own class has it, and where its method can take the arguments. So does code of the hooks, methods of the
release's class that stay its own (``dropin``). ``getattr``, ``hasattr`` and ``setattr`` with a name count too: where
the release's class has the member, its code takes the way with the member. A subclass of a replaced class counts with
what it inherits.

Ours lack a member where an object of our class has no such attribute, cannot have it set where code sets it, or where
our method cannot take the arguments of a call.
"""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.driver.protocol import Json
from conformance.engines.sglang.replacing.hooks import HOOKS
from conformance.engines.sglang.replacing.refused import REFUSED, SUBCLASSES
from conformance.engines.sglang.replacing.source.classes import Classes, files, name_of
from conformance.engines.sglang.replacing.source.facts import Facts, Scope
from conformance.engines.sglang.replacing.source.receivers import Receivers

ROOTS = frozenset({"BaseTokenToKVPoolAllocator", "MambaSlotAllocator"})  # of all allocators of slots on the device
BASE = "BaseTokenToKVPoolAllocator"  # its code is replaced with the classes that inherit from it
BY_NAME = ("getattr", "hasattr", "setattr", "delattr")


@dataclass(frozen=True)
class Touch:
    """One place that touches a member. ``owner``: the class around it. ``how``: ``read``, ``set`` or ``call``.
    ``given``: for a call the number of positional arguments and the names of the others, if the source shows them.
    """

    name: str
    member: str
    place: str
    owner: str | None
    how: str
    given: tuple[int, tuple[str, ...]] | None = None


@dataclass(frozen=True)
class Touched:
    """A member of a replaced class, with all places that touch it."""

    name: str
    member: str
    touches: tuple[Touch, ...]

    @property
    def used_in(self) -> list[str]:
        """``FILE:LINE`` of each place."""
        return _places(self.touches)


def _places(touches: Iterable[Touch]) -> list[str]:
    return [*dict.fromkeys(touch.place for touch in touches)]


class Walk:
    """The source of a release, and the classes in it that are replaced. ``hooks``: the methods that stay the release's
    own, also in a class that is replaced: what they touch counts.
    """

    def __init__(self, package: Path, replaced: Iterable[str], hooks: Collection[str]) -> None:
        sources = files(package)
        self.replaced, self.hooks = frozenset(replaced), hooks
        self.classes, self.facts = Classes.of(sources), Facts.of(sources)
        self.receivers = Receivers(self.classes, self.facts, ROOTS)
        self.members = {name: self.classes.members(name) for name in self.replaced if name in self.classes.known}

    def touched(self) -> list[Touched]:
        """What code touches of the replaced classes, by class and member."""
        grouped: dict[tuple[str, str], list[Touch]] = defaultdict(list)
        for touch in (*self._attributes(), *self._by_name()):
            grouped[touch.name, touch.member].append(touch)
        return [Touched(name, member, tuple(found)) for (name, member), found in sorted(grouped.items())]

    def _attributes(self) -> Iterator[Touch]:
        for node, scope, call in self.facts.touches:
            if self._goes(scope):
                continue
            how = "call" if call is not None else "read" if isinstance(node.ctx, ast.Load) else "set"
            given = _given(call)
            if isinstance(node.value, ast.Name) and node.value.id in self.receivers.kinds:
                given = None  # a method of a class, called with the object as its first argument
            for name in self._classes_with(self._kinds(node.value, scope), node.attr, given):
                yield Touch(name, node.attr, f"{scope.file}:{node.lineno}", scope.owner, how, given)

    def _by_name(self) -> Iterator[Touch]:
        """``getattr`` and its like."""
        for call, scope in self.facts.calls:
            if self._goes(scope) or name_of(call.func) not in BY_NAME or len(call.args) < 2:
                continue
            word = call.args[1]
            if isinstance(word, ast.Constant) and isinstance(word.value, str):
                how = "set" if name_of(call.func) == "setattr" else "read"
                for name in self._classes_with(self._kinds(call.args[0], scope), word.value, None):
                    yield Touch(name, word.value, f"{scope.file}:{call.lineno}", scope.owner, how)

    def _goes(self, scope: Scope) -> bool:
        """The code goes with a class that is replaced."""
        if not (self.replaced | {BASE}).isdisjoint(scope.within):
            method = scope.functions[0].split(".")[-1].split(":")[0] if scope.functions else ""
            return method not in self.hooks
        return False

    def _kinds(self, value: ast.expr, scope: Scope) -> Iterable[str]:
        """The classes of an object; for ``super()`` those that the class inherits from."""
        if isinstance(value, ast.Call) and name_of(value.func) == "super":
            return self.classes.known[scope.owner].bases if scope.owner in self.classes.known else ()
        return self.receivers.of(value, scope)

    def _classes_with(
        self, kinds: Iterable[str], member: str, given: tuple[int, tuple[str, ...]] | None
    ) -> Iterator[str]:
        """The replaced classes whose member it is, and can be called so, for objects of these classes."""
        found = set()
        for kind in kinds:
            for one in self.classes.line(kind):
                if one.name in self.replaced and member in self.members[one.name]:
                    found.add(one.name)
                if one.name in self.replaced or member in one.members:
                    break  # a class that is not replaced has its own
        return (name for name in sorted(found) if given is None or self.classes.takes(name, member, *given))


def _given(call: ast.Call | None) -> tuple[int, tuple[str, ...]] | None:
    """The arguments of a call; ``None`` where the source does not show them all."""
    if call is None or any(isinstance(word, ast.Starred) for word in call.args):
        return None
    names = [word.arg for word in call.keywords]
    return None if None in names else (len(call.args), tuple(name for name in names if name))


# Ours.


def compared(package: Path, stand_ins: Mapping[str, Any], hooks: Collection[str] = HOOKS) -> Json:
    """What the code below ``package`` touches of the classes in ``stand_ins``, which has an object of our class for
    each name: ``used`` in all, ``inherited`` from the release's class as hooks, and ``missing``.
    """
    found = Walk(package, stand_ins, hooks).touched()
    inherited = [one for one in found if one.member in hooks and not hasattr(stand_ins[one.name], one.member)]
    rest = [one for one in found if one not in inherited]
    return {
        "used": [_row(one) for one in found],
        "inherited": [_row(one) for one in inherited],
        "missing": [row for one in rest for row in _missing(one, stand_ins[one.name])],
    }


def _row(member: Touched) -> Json:
    return {"class": member.name, "member": member.member, "used_in": member.used_in}


def _missing(member: Touched, stand_in: Any) -> Iterator[Json]:
    """A row for each way in which our object falls short of the member."""
    for what, touches in _short(member, stand_in).items():
        reason = REFUSED.get((member.name, member.member)) or _of_owners(touches)
        yield {
            "class": member.name,
            "member": member.member,
            "what": what,
            "used_in": _places(touches),
            "reason": reason,
        }


def _short(member: Touched, stand_in: Any) -> dict[str, list[Touch]]:
    if not hasattr(stand_in, member.member):
        return {"absent": [*member.touches]}
    short: dict[str, list[Touch]] = defaultdict(list)
    known = inspect.getattr_static(type(stand_in), member.member, None)
    for touch in member.touches:
        if touch.how == "set" and isinstance(known, property) and known.fset is None:
            short["cannot be set"].append(touch)
        if touch.given is not None and not _takes(getattr(stand_in, member.member), *touch.given):
            short["does not take the arguments"].append(touch)
    return short


def _takes(function: Any, count: int, names: tuple[str, ...]) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count, **dict.fromkeys(names))
    except TypeError:
        return False
    return True


def _of_owners(touches: Iterable[Touch]) -> str:
    """The reason of the classes whose code touches the member, if all of them have one."""
    reasons = [SUBCLASSES.get(touch.owner or "", "") for touch in touches]
    return "; ".join(dict.fromkeys(reasons)) if all(reasons) else ""
