"""A random scheduler of a session cache: what it sends is lawful, and ``Both`` holds each call against the law."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from spec.lengths import in_pages

if TYPE_CHECKING:
    from test_impl_cache_law import Both

SESSIONS = 2


class Scheduler:
    """Requests that share prefixes come, grow and leave; what it sends is lawful."""

    def __init__(self, both: Both, random: Random) -> None:
        self.both, self.random, self.page = both, random, both.page
        self.texts: dict[int, list[int]] = {}  # of running rows
        self.turns: dict[int, list[int]] = {}  # of saved sessions

    def of(self, row: int) -> tuple[int, ...]:
        """Protected, cursor, committed, allocated."""
        return tuple(self.both.cache.rows.lengths[:4, row].tolist())

    def call(self, name: str, *args: Any) -> None:
        getattr(self.both.cache, name)(*args)
        self.both.follow()

    def some(self, fine: Callable[[int], bool]) -> list[int]:
        """One or two running rows."""
        found = [row for row in self.texts if fine(row)]
        return self.random.sample(found, min(len(found), self.random.randint(1, 2)))

    def admit(self) -> None:
        fork, session = self.random.choice((99, 99, 2 * self.page, 3)), self.random.randint(0, SESSIONS)
        n = self.random.randint(1, 6 * self.page)
        if not session or session not in self.both.cache.rows.slot:
            prompt = [i if i < fork else 1000 + fork + i for i in range(n)]
            if (row := self.both.admit(prompt, session)) is not None:
                self.texts[row] = prompt
                self.chunk()

    def tail(self) -> None:
        """A prompt that is computed elsewhere."""
        session, n = self.random.randint(0, SESSIONS), self.random.randint(1, 6 * self.page)
        if session not in self.both.cache.rows.slot:
            row = self.both.admit_tail(list(range(n)), session)
            if row is not None:
                self.texts[row] = list(range(n))
                self.came(row)

    def came(self, row: int) -> None:
        """What is computed elsewhere has come."""

    def release(self) -> None:
        if batch := self.some(lambda _: True):
            self.call("release_swa", batch)

    def roll_back(self) -> None:
        """Of what is allocated a part is not used. Recurrent states are not cut."""
        for row in self.some(lambda _: True):
            least = self.of(row)[2] if self.both.cache.tree.stateful else self.of(row)[0]
            self.both.roll_back(row, self.random.randint(least, self.of(row)[3]))

    def chunk(self) -> None:
        """Rows are prefilled, a part at a time, and the tree gets it."""
        short = self.some(lambda row: self.of(row)[2] == self.of(row)[3] < len(self.texts[row]))
        to = [min(len(self.texts[row]), self.of(row)[3] + self.random.randint(1, 4 * self.page)) for row in short]
        if short and self.both.grow("extend", short, to) and self.random.random() < 0.6:
            upto = None if self.random.random() < 0.7 else [self.random.randint(0, n) for n in to]
            self.call("cache_unfinished", short, [self.texts[row] for row in short], upto)

    def grow(self, name: str, most: int) -> list[int]:
        room = self.both.cache.rows.max_tokens - most
        ready = self.some(lambda row: self.of(row)[2] == self.of(row)[3] == len(self.texts[row]) <= room)
        to = [self.of(row)[3] + (1 if name == "decode" else self.random.randint(1, most)) for row in ready]
        return ready if ready and self.both.grow(name, ready, to) else []

    def decode(self) -> None:
        for row in self.grow("decode", 1):
            self.texts[row].append(self.random.choice((len(self.texts[row]), 7)))

    def draft(self) -> None:
        for row in self.grow("reserve", 3):
            to = self.random.randint(self.of(row)[2], self.of(row)[3])
            self.both.cache.commit([row], [to])
            self.both.step("commit", row, in_pages(to, self.page))
            self.texts[row] += range(len(self.texts[row]), to)

    def slide(self) -> None:
        window, cache = self.both.cache.rows.window, self.both.cache
        for row in self.some(lambda _: True):
            to = (self.of(row)[2] - window) // self.page * self.page
            if to >= max(self.of(row)[:2]):
                cache.slide_to([row], [to])
                self.both.step("slide", row, to // self.page)
                self.both.same()

    def finish(self) -> None:
        batch = self.some(lambda row: self.of(row)[2] <= len(self.texts[row]))
        if batch:
            self.call("cache_finished", batch, [self.texts.pop(row) for row in batch])

    def abort(self) -> None:
        if batch := self.some(lambda _: self.random.random() < 0.3):
            self.texts = {row: known for row, known in self.texts.items() if row not in batch}
            self.call("abort", batch)

    def save(self) -> None:
        for row in self.some(lambda row: self.both.cache.rows.session[row] is not None):
            known, session = self.texts.pop(row), self.both.state.rows.session(row)
            agreed = self.random.randint(min(self.of(row)[0], len(known)), len(known))
            self.turns[session] = known[:agreed]
            self.both.save(row, agreed)

    def resume(self) -> None:
        for session, known in list(self.turns.items())[:1]:
            row = self.both.cache.rows.slot[session]
            least, _, most, _ = self.of(row)
            longer = [*known, *range(len(known), len(known) + self.random.randint(1, self.page))]
            prefix = self.random.choice((most, most, self.random.randint(least, most)))
            if len(longer) <= self.both.cache.rows.max_tokens:
                self.call("restore", [session], [prefix])
                self.both.resume(session, len(longer))
                self.texts[row] = longer
                del self.turns[session]

    def close(self) -> None:
        for session in [s for s in self.turns if self.random.random() < 0.5]:
            self.both.close(session)
            del self.turns[session]

    def evict(self) -> None:
        if self.random.random() < 0.3:
            self.call("evict", self.random.randint(0, 2) * self.page, self.random.randint(0, 3) * self.page)

    def compact(self) -> None:
        if self.random.random() < 0.5:
            self.call("compact")

    def group(self) -> None:
        opened = self.both.state.rows.pools.group > 0
        if opened or self.random.random() < 0.3:
            name = "free_group_end" if opened else "free_group_begin"
            getattr(self.both.cache, name)()
            self.both.step(name, *(() if opened else (True,)))

    def end(self) -> None:
        while self.both.state.rows.pools.group:
            self.group()
        self.call("abort", list(self.texts))
        for session in self.turns:
            self.both.close(session)
        self.call("evict", 1 << 20, 1 << 20)


OPS = {"admit": 4, "chunk": 4, "decode": 5, "draft": 1, "slide": 3, "finish": 2, "abort": 1, "save": 2, "resume": 3}
OPS |= {"close": 2, "evict": 1, "group": 1, "compact": 1, "tail": 1, "release": 2, "roll_back": 1}
