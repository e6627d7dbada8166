"""Two engines of one protocol as one engine: each call goes to both, and both must give one answer.

The answers of the first engine are the answers of the pair, so the law judges the first. The second must agree with
it: after each call the answers are compared, and at each snapshot the two snapshots. A disagreement is a ``Finding`` of
a law of its own, which shows both sides.

Node numbers must agree: engines that number nodes in the order of their first sight do so, as long as their trees
agree. The order of nodes in a snapshot may differ.

What else may differ: an engine that does not show a lock count (``NodePart.lock`` is ``None``) agrees with any count of
the other, as long as both agree whether the part is held. Two errors agree, whatever their kinds and their words: both
engines have refused the call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

from conformance.driver import exception_origin
from conformance.driver.lockstep import Finding
from conformance.driver.printable import first_line, message_of
from conformance.driver.protocol import EngineError
from conformance.stems.lock_ref.protocol import LockRefSnapshot, NodePart

MOST_TOLD = 4  # so many places where two answers differ are told


@dataclass(frozen=True)
class EngineSide:
    """One of the two engines, and its name in messages. ``shown``: what of an answer is compared, by default all."""

    name: str
    engine: Any
    shown: Callable[[Any], Any] = lambda answer: answer


@dataclass(frozen=True)
class Agreement:
    """The law that both engines keep: its name and its sentence. ``calls``: the calls of the protocol by name."""

    law: str
    sentence: str
    calls: Collection[str]


class SideBySide:
    """The pair. Attributes that are no calls are those of the first engine; ``lacks`` names what either lacks."""

    def __init__(self, first: EngineSide, second: EngineSide, agreement: Agreement) -> None:
        self._sides, self._agreement = (first, second), agreement
        engines = [side.engine for side in self._sides]
        self.lacks = frozenset().union(*(engine.lacks for engine in engines))
        self.fragile = any(engine.fragile for engine in engines)
        self.ran = _both([getattr(engine, "ran", {}) for engine in engines])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._agreement.calls:
            return getattr(self._sides[0].engine, name)
        return lambda *args, **kwargs: self._call(name, lambda engine: getattr(engine, name)(*args, **kwargs))

    def _call(self, name: str, call: Callable[[Any], Any]) -> Any:
        """The first engine's answer to a call that both have answered alike."""
        first, second = (_Outcome.of(name, call, side.engine) for side in self._sides)
        if (first.error is None) != (second.error is None):
            raise self._disagree(name, [(first.in_words(), second.in_words())])
        if first.error is not None:
            raise first.error
        one, other = (side.shown(found.answer) for side, found in zip(self._sides, (first, second), strict=True))
        if told := [(f"{where}{mine}", f"{where}{others}") for where, mine, others in differences(one, other)]:
            raise self._disagree(name, told)
        return first.answer

    def _disagree(self, name: str, told: Sequence[tuple[str, str]]) -> Finding:
        """The finding that both sides differ after this call."""
        (one, other), shown = self._sides, told[:MOST_TOLD]
        words = "; ".join(f"{one.name} has {mine}, {other.name} has {others}" for mine, others in shown)
        more = f"; and {len(told) - len(shown)} differences more" if len(told) > len(shown) else ""
        return Finding(self._agreement.law, self._agreement.sentence, f"{name}: {words}{more}")


class _Outcome(NamedTuple):
    """What an engine did with a call: its answer, or the error that it raised."""

    answer: Any
    error: Exception | None

    @staticmethod
    def of(name: str, call: Callable[[Any], Any], engine: Any) -> _Outcome:
        """The outcome of a call to an engine. ``EngineError`` is no answer: there is no verdict then, nor where the
        code of an adapter failed.
        """
        try:
            return _Outcome(call(engine), None)
        except EngineError:
            raise
        except Exception as error:
            exception_origin.must_be_the_engines(error, name)
            return _Outcome(None, error)

    def in_words(self) -> str:
        """The outcome in words."""
        if self.error is None:
            return f"the answer {self.answer!r}"
        return f"the error {type(self.error).__name__}: {first_line(message_of(self.error))}"


def differences(one: Any, other: Any, where: str = "") -> Iterator[tuple[str, str, str]]:
    """Where two answers differ: the place, and what either has there."""
    if isinstance(one, NodePart) and isinstance(other, NodePart):
        yield from differences(one.slots, other.slots, f"{where}slots ")
        yield from _of_locks(one, other, where)
    elif isinstance(one, LockRefSnapshot) and isinstance(other, LockRefSnapshot):
        yield from differences(_by_key(one), _by_key(other), where)
    elif is_dataclass(one) and type(one) is type(other):
        for field in fields(one):
            yield from differences(getattr(one, field.name), getattr(other, field.name), f"{where}{field.name} ")
    elif isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in [*one, *(key for key in other if key not in one)]:
            yield from differences(one.get(key, "nothing"), other.get(key, "nothing"), f"{where}{key} ")
    elif isinstance(one, list | tuple) and type(one) is type(other) and len(one) == len(other) and _deep(one):
        for at, (mine, others) in enumerate(zip(one, other, strict=True)):
            yield from differences(mine, others, f"{where}{at} ")
    elif one != other:
        yield where, repr(one), repr(other)


def _by_key(tree: LockRefSnapshot) -> dict[str, Any]:
    """A tree, with its nodes by their tokens from the root."""
    texts: dict[int | None, tuple[int, ...]] = {None: ()}
    nodes: dict[str, Any] = {}
    for node in tree.nodes:
        texts[node.id] = (*texts.get(node.parent, ()), *node.key)
        nodes[f"node {list(texts[node.id])}"] = (node.id, node.parent, node.parts)
    free = {f"free {name}": pages for name, pages in tree.free.items()}
    return {**nodes, "evictable": tree.evictable, "protected": tree.protected, **free}


def _of_locks(one: NodePart, other: NodePart, where: str) -> Iterator[tuple[str, str, str]]:
    if one.lock is not None and other.lock is not None:
        yield from differences(one.lock, other.lock, f"{where}lock count ")
        return
    mine, others = (part.held if part.lock is None else part.lock > 0 for part in (one, other))
    if mine is not None and others is not None:
        yield from differences(mine, others, f"{where}is locked: ")


def _deep(items: Sequence[Any]) -> bool:
    """The items have parts, so that the place of a difference is worth telling."""
    return any(is_dataclass(item) or isinstance(item, Mapping | list | tuple) for item in items)


def _both(ran: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What ran in both engines, by option."""
    names = dict.fromkeys(name for each in ran for name in each)
    return {name: " and ".join(dict.fromkeys(each[name] for each in ran if name in each)) for name in names}
