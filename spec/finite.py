"""The finite reading: immutable maps, ranges, sequences and sets of plain integers.

An update costs only as much as it changes: ``among`` lists the keys that the update can change, and no other key is
looked at. Tests switch ``STRICT`` on: then each update is compared with its meaning on every key, so that a key that is
missing in ``among`` is found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import immutables

STRICT: list[Callable[[int], Iterable[Any]]] = []  # tests push "all keys of this arity" here

Keys = Callable[[], Iterable[Any]]


def _call(value: Any, key: Any) -> Any:
    if not callable(value):
        return value
    return value(*key) if isinstance(key, tuple) else value(key)


@functools.lru_cache(maxsize=1)
def _bites(cond: Callable[..., bool], among: Keys, arity: int) -> list[Any]:
    """The keys that an update changes; the last answer is kept, since several maps are often changed at these keys."""
    return [k for k in among() if cond(k)] if arity == 1 else [k for k in among() if cond(*k)]


class Map:
    """A total map from ``arity`` integers to an integer: ``m(k)``, ``m(k, l)`` or ``m(k, l, m)``.

    Absent keys read ``default``.
    """

    __slots__ = ("_items", "arity", "default")

    def __init__(self, arity: int, default: int = 0, items: immutables.Map[Any, int] | None = None) -> None:
        self.arity, self.default = arity, default
        self._items: immutables.Map[Any, int] = immutables.Map() if items is None else items

    def __call__(self, key: int, second: int | None = None, third: int | None = None) -> int:
        if second is None:
            return self._items.get(key, self.default)
        return self._items.get((key, second) if third is None else (key, second, third), self.default)

    def put(self, key: Any, value: int) -> Map:
        """This map with ``value`` at ``key`` (a tuple if the map has several keys)."""
        return Map(self.arity, self.default, self._items.set(key, value))

    def all_to(self, value: int) -> Map:
        """The map that is ``value`` everywhere."""
        return Map(self.arity, value)

    def where(self, cond: Callable[..., bool], value: Any, among: Keys) -> Map:
        """This map with ``value`` (or ``value(*key)``) at each key for which ``cond`` holds."""
        hits = _bites(cond, among, self.arity)
        result = Map(self.arity, self.default, self._written(hits, value)) if hits else self
        for keys in STRICT:
            self._compare(result, cond, value, keys(self.arity))
        return result

    def _written(self, keys: list[Any], value: Any) -> immutables.Map[Any, int]:
        if len(keys) == 1:
            return self._items.set(keys[0], _call(value, keys[0]))
        return self._items.update((key, _call(value, key)) for key in keys)

    def _compare(self, result: Map, cond: Callable[..., bool], value: Any, keys: Iterable[Any]) -> None:
        for key in keys:
            meant = _call(value, key) if _call(cond, key) else _call(self, key)
            if _call(result, key) != meant:
                raise AssertionError(f"among misses the key {key}: {_call(result, key)} instead of {meant}")

    def items(self) -> Iterator[tuple[Any, int]]:
        """The keys that were ever written, with their values."""
        return iter(self._items.items())


class Domain:
    """The integers from ``low`` to ``high``, both included."""

    __slots__ = ("high", "low")

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    @property
    def size(self) -> int:
        """The number of members."""
        return max(0, self.high - self.low + 1)

    def items(self) -> range:
        """The integers in order."""
        return range(self.low, self.high + 1)

    def has(self, item: int) -> bool:
        """``item`` is in the domain."""
        return self.low <= item <= self.high

    def all(self, law: Callable[[int], bool]) -> bool:
        """``law`` holds for each member."""
        return all(map(law, self.items()))

    def any(self, law: Callable[[int], bool]) -> bool:
        """``law`` holds for at least one member."""
        return any(map(law, self.items()))

    def count(self, law: Callable[[int], bool]) -> int:
        """The number of members for which ``law`` holds."""
        return sum(map(law, self.items()))

    def total(self, law: Callable[[int], bool], weight: Callable[[int], int]) -> int:
        """The sum of the weights of the members for which ``law`` holds."""
        return sum(weight(item) for item in self.items() if law(item))

    def greatest(self, law: Callable[[int], bool], value: Callable[[int], int]) -> int:
        """The first member with the greatest value among those for which ``law`` holds; 0 where there is none."""
        return max(filter(law, self.items()), key=value, default=0)

    def such(self, law: Callable[[int], bool], among: Keys) -> Set:
        """The set of the members for which ``law`` holds; ``among`` lists all candidates."""
        found = Set(item for item in among() if self.has(item) and law(item))
        for _ in STRICT:
            missed = [item for item in self.items() if law(item) and not found.has(item)]
            if missed:
                raise AssertionError(f"among misses {missed}")
        return found


class Set:
    """A finite set of integers, or of pairs."""

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self._items = frozenset(items)

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self._items)

    def total(self, weight: Callable[[int], int]) -> int:
        """The sum of the weights of the members."""
        return sum(map(weight, self._items))

    def items(self) -> Iterable[Any]:
        """The members, in no particular order."""
        return self._items

    def has(self, *item: int) -> bool:
        """``item`` (one number, or the two of a pair) is a member."""
        return (item[0] if len(item) == 1 else item) in self._items

    def pairs(self, domain: Domain, law: Callable[[int, int], bool]) -> Set:
        """The pairs of a member and a number of ``domain`` for which ``law`` holds."""
        return Set((item, number) for item in self._items for number in domain.items() if law(item, number))

    def all(self, law: Callable[..., bool]) -> bool:
        """``law`` holds for each member."""
        return all(_call(law, item) for item in self._items)

    def __repr__(self) -> str:
        return f"Set({sorted(self._items)})"


class Seq:
    """A finite sequence of integers, with the position of each."""

    __slots__ = ("_at", "_index")

    def __init__(self, items: Iterable[int] = ()) -> None:
        self._at = tuple(items)
        self._index = {item: position for position, item in enumerate(self._at)}

    @property
    def length(self) -> int:
        """The number of positions."""
        return len(self._at)

    def items(self) -> tuple[int, ...]:
        """The integers in order."""
        return self._at

    def at(self, position: int) -> int:
        """The integer at ``position``, 0 where there is no such position."""
        return self._at[position] if 0 <= position < len(self._at) else 0

    def index(self, item: int) -> int:
        """The position of ``item``, -1 if it is not in the sequence."""
        return self._index.get(item, -1)

    def has(self, item: int) -> bool:
        """``item`` stands in the sequence."""
        return item in self._index

    def all(self, law: Callable[[int], bool]) -> bool:
        """``law`` holds for each item."""
        return all(map(law, self._at))

    def distinct(self) -> bool:
        """No item stands twice."""
        return len(self._index) == len(self._at)

    def __repr__(self) -> str:
        return f"Seq({list(self._at)})"
