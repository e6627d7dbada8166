"""Damaged trace files, and an opinion about them that is not ``conformance.traces.trace_schema``'s.

``damaged`` makes files from kept traces: keys, types, numbers, operations and their order are changed, and bytes. The
opinion is ``tests/trace_schema.json``, a JSON Schema (draft 4, in which 1.0 is no integer) that was written by hand.
"""

from __future__ import annotations

import copy
import json
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import fastjsonschema

from conformance.planted.faults.kept import kept_run
from conformance.planted.faults.known_bugs import ALL
from conformance.traces import trace_files

Json = dict[str, Any]
HERE = Path(__file__).parent
SCHEMA = json.loads((HERE / "trace_schema.json").read_text(encoding="utf-8"))
MOST_BYTES = 1024 * 1024
NUMBERS = (0, 1, 2, 3, 5, 7, 64, 100, 255, 4096, 4097, -1, -4096, 2**31, 2**63, -(2**64), 10**30, 10**150)
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    1.0,
    0.5,
    -0.0,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "1",
    "x",
    [],
    {},
    [0],
    [[0]],
    {"a": 1},
)
WORDS = ("", " ", "op", "config", "steps", "size", "more", "x" * 5000, "../etc", "[red]")
UNICODE = ("\u0000", "\ud800", "名前", "e\u0301", "\u202e")


# The independent opinion.


def _once(pairs: list[tuple[str, Any]]) -> Json:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


CHECKED = fastjsonschema.compile(SCHEMA)


def well_formed(data: bytes) -> bool:
    """The file is a trace, by the schema that was written by hand."""
    if len(data) > MOST_BYTES:
        return False
    try:
        CHECKED(json.loads(data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_refuse))
    except (ValueError, RecursionError, fastjsonschema.JsonSchemaException):
        return False
    return True


# Damage.


def originals() -> list[Json]:
    """The kept traces, and those of the planted faults, as they stand in files."""
    kept = [trace_files.load(name) for name in trace_files.names()]
    texts = [{**k.trace.as_json(), **k.texts} for k in kept]
    return [*texts, *(kept_run(fault).trace.as_json() for fault in ALL)]


def places(value: Any) -> Iterator[Any]:
    """All objects and lists in a value."""
    if isinstance(value, (dict, list)):
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from places(item)


class Damager:
    """Damages traces. ``trace``: the one that is being damaged, which always is an object."""

    def __init__(self, random: Random, known: list[Json]) -> None:
        self.random, self.known = random, known
        self.trace: Json = {}

    def damage(self) -> bytes:
        """The bytes of a damaged trace."""
        self.trace = copy.deepcopy(self.random.choice(self.known))
        harmless = (self.shuffle, self.drop, self.repeat, self.borrow, self.resize, self.count)
        harmful = (self.forget, self.rename, self.add, self.retype, self.overdo, self.misspell, self.bury, self.swap)
        for _ in range(self.random.choice((1, 1, 2, 3, 6))):
            self.random.choice(harmless if self.random.random() < 0.6 else harmful)()
        text = json.dumps(self.trace, ensure_ascii=self.random.random() < 0.5)
        if self.random.random() < 0.1:
            text = self.twice(text)
        data = text.encode("utf-8", "surrogatepass")
        return self.random.choice(self.in_bytes())(data) if self.random.random() < 0.15 else data

    @property
    def steps(self) -> list[Any]:
        """The steps, if they are still a list with something in it."""
        found = self.trace.get("steps")
        return found if isinstance(found, list) and found else [{}]

    @property
    def config(self) -> Json:
        """The configuration, if it is still an object."""
        found = self.trace.get("config")
        return found if isinstance(found, dict) else {}

    def place(self) -> Any:
        """An object or a list of the trace, steps and configuration more often than others."""
        near = self.random.choice([self.config, self.random.choice(self.steps)])
        if self.random.random() < 0.5 and isinstance(near, (dict, list)):
            return near
        return self.random.choice(list(places(self.trace)))

    # What may leave the trace well formed.

    def shuffle(self) -> None:
        """The steps in another order."""
        self.random.shuffle(self.steps)

    def drop(self) -> None:
        """One step is left out."""
        self.steps.pop(self.random.randrange(len(self.steps)))

    def repeat(self) -> None:
        """Some steps again, sometimes many."""
        times = self.random.choice((1, 1, 2, 10, 100))
        self.steps.extend(copy.deepcopy(self.steps[: max(1, 150 // times)]) * times if times < 100 else [])
        if times == 100:
            self.steps.extend(copy.deepcopy([self.random.choice(self.steps)]) * self.random.choice((100, 190)))

    def borrow(self) -> None:
        """A step of another trace, mostly of this stem."""
        other = self.random.choice(self.known)
        same = [k for k in self.known if k["stem"] == self.trace.get("stem")]
        if same and self.random.random() < 0.9:
            other = self.random.choice(same)
        step = copy.deepcopy(self.random.choice(other["steps"]))
        self.steps.insert(self.random.randrange(len(self.steps) + 1), step)

    def resize(self) -> None:
        """A number or a flag of the configuration, within what may be."""
        for key, value in self.config.items():
            if self.random.random() < 0.4:
                if isinstance(value, bool):
                    self.config[key] = self.random.random() < 0.5
                elif isinstance(value, int):
                    self.config[key] = self.random.choice((1, 2, 3, 4, 5, 8, 16, 32))

    def count(self) -> None:
        """A number of a step, within what may be."""
        step = self.random.choice(self.steps)
        if isinstance(step, dict):
            for key, value in step.items():
                if type(value) is int and self.random.random() < 0.6:
                    step[key] = self.random.choice((0, 1, 2, 3, 4, 7, 8, 31, 64, 4096))
                elif isinstance(value, list) and self.random.random() < 0.6:
                    step[key] = value * self.random.choice((0, 1, 2, 8)) + [self.random.randrange(9)]

    # What hardly leaves it well formed.

    def forget(self) -> None:
        """A key or an entry of a list is removed."""
        where = self.place()
        if isinstance(where, dict) and where:
            del where[self.random.choice(list(where))]
        elif where:
            del where[self.random.randrange(len(where))]

    def rename(self) -> None:
        """A key is spelled in another way."""
        where = self.place()
        if isinstance(where, dict) and where:
            key = self.random.choice(list(where))
            where[self.spelled(key)] = where.pop(key)

    def add(self) -> None:
        """A key or an entry of a list is added."""
        where = self.place()
        if isinstance(where, dict):
            where[self.random.choice([*WORDS, *UNICODE])] = self.random.choice([*ODD, *NUMBERS])
        else:
            where.append(self.random.choice([*ODD, *NUMBERS, copy.deepcopy(where)]))

    def put(self, value: Any) -> None:
        """One value anywhere in the trace is replaced."""
        where = self.place()
        if where:
            key = self.random.choice(list(where)) if isinstance(where, dict) else self.random.randrange(len(where))
            where[key] = value

    def retype(self) -> None:
        """A value is replaced by one of another type."""
        self.put(self.random.choice([*ODD, *WORDS, *UNICODE]))

    def overdo(self) -> None:
        """A number is replaced: by one that is too large, negative, or within its bounds."""
        self.put(self.random.choice(NUMBERS))

    def misspell(self) -> None:
        """An operation, a stem or a kind is spelled in another way."""
        where = self.random.choice([self.trace, self.random.choice(self.steps), self.config])
        words = [key for key, value in where.items() if isinstance(value, str)] if isinstance(where, dict) else []
        if words:
            key = self.random.choice(words)
            where[key] = self.spelled(where[key])

    def swap(self) -> None:
        """The operation of another step, or another stem."""
        if self.random.random() < 0.3:
            self.trace["stem"] = self.random.choice(self.known)["stem"]
            return
        step = self.random.choice(self.steps)
        if isinstance(step, dict):
            step["op"] = self.random.choice(self.random.choice(self.known)["steps"])["op"]

    def bury(self) -> None:
        """A value deep inside lists or objects."""
        value: Any = 0
        for _ in range(self.random.choice((3, 30, 300))):
            value = [value] if self.random.random() < 0.5 else {"a": value}
        self.put(value)

    def spelled(self, word: str) -> str:
        """A word with a letter less, more or changed, or in capitals."""
        at, letter = self.random.randrange(len(word) + 1), self.random.choice(string.printable + "é\u202e")
        return self.random.choice(
            (word[:at] + word[at + 1 :], word[:at] + letter + word[at:], word.upper(), word + " ", word[::-1])
        )

    # Bytes.

    def twice(self, text: str) -> str:
        """A key stands twice, with one value or with two."""
        place = self.random.choice([at for at, letter in enumerate(text) if letter == "{"])
        end = text.find(",", place)
        first = text[place + 1 : end] if end > 0 else '"op": "x"'
        return f"{text[: place + 1]}{first}, {text[place + 1 :]}"

    def in_bytes(self) -> tuple[Callable[[bytes], bytes], ...]:
        """Ways to damage bytes."""
        random = self.random

        def cut(data: bytes) -> bytes:
            return data[: random.randrange(len(data))]

        def flip(data: bytes) -> bytes:
            at = random.randrange(len(data))
            return data[:at] + random.randbytes(random.choice((1, 1, 4))) + data[at + 1 :]

        def deep(data: bytes) -> bytes:
            many = random.choice((10, 1000, 100_000))
            return random.choice((b"[", b'{"a":')) * many + data

        return (
            *(cut, flip, flip, deep),
            lambda data: data.decode("utf-8", "replace").encode(random.choice(("utf-16", "utf-32", "utf-8-sig"))),
            lambda data: data.decode("utf-8", "replace").encode("latin-1", "replace").replace(b" ", b"\xa0"),
            lambda _: random.choice((b"", b" ", b"null", b"[]", b"{}", b"0", b'"trace"', b"NaN", b"\x00" * 100)),
            lambda data: data + random.choice((b"x", b"{}", b"\x00", b" " * 2_000_000)),
            lambda _: random.randbytes(random.randrange(300)),
            lambda data: data.replace(b": 0", b": " + b"1" * 5000, 1),
        )


def damaged(seed: int, count: int) -> Iterator[bytes]:
    """``count`` damaged files; a seed always gives equal files."""
    damager = Damager(Random(seed), originals())
    for _ in range(count):
        yield damager.damage()
