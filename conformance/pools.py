"""What the allocator and the SWA mapping share in a run: rows of slots, reading answers, judging page lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from conformance.machine import ENOUGH, REFUSED, Finding, Json, LockStep
from spec.finite import Map, Set
from spec.lengths import Length, ceil_align, in_pages, in_tokens, pages_needed, touched
from spec.logic import but
from spec.pool import FREE, HELD, RELEASED, Pool, filled, held, length

HOLE = -1  # a token whose slot the row gave back


def place_of(pool: Pool, free: Sequence[int], released: Sequence[int]) -> Map:
    """Where the subject's lists say that each page is. A page on no list is where the spec has it, unless the spec
    has it free: then somebody keeps it, and ``no_leak`` will say so.
    """
    on_free, on_released = set(free), set(released)

    def place(page: int) -> int:
        if page in on_free:
            return FREE
        if page in on_released:
            return RELEASED
        known: int = pool.place(page)
        return HELD if known in (FREE, RELEASED) else known

    return pool.place.where(lambda p: place(p) != pool.place(p), place, pool.pages.items)  # type: ignore[no-any-return]


def observed_pool(pool: Pool, free: Sequence[int], released: Sequence[int]) -> Pool:
    """The pool as its lists show it. A page listed twice is counted twice, so ``available_counts`` sees it."""
    return but(pool, place=place_of(pool, free, released), available=len(free) + len(released))


def list_differences(name: str, pool: Pool, free: Sequence[int], released: Sequence[int]) -> list[str]:
    """How the subject's lists of a pool differ from the spec's."""
    found = []
    for label, place, listed in (("free", FREE, free), ("released", RELEASED, released)):
        expected = {p for p in pool.pages.items() if pool.place(p) == place}
        twice = sorted(p for p, n in Counter(listed).items() if n > 1)
        extra, missing = sorted(set(listed) - expected), sorted(expected - set(listed))
        found += [f"{name} page {p} is listed {label} twice" for p in twice]
        found += [f"{name} page {p} is {label}, the law has it {_state(pool, p)}" for p in extra]
        found += [f"{name} page {p} is missing from the {label} list" for p in missing]
    return found


def _state(pool: Pool, page: int) -> str:
    if not pool.pages.has(page):
        return "outside the pool"
    names = ("free", "released", f"held by row {pool.owner(page)} at index {pool.index(page)}", "pending")
    return names[pool.place(page)]


class PoolRun(LockStep):
    """Operations on rows of slots. ``slots[row]`` is what the caller's table holds, ``HOLE`` where it gave back."""

    def __init__(self, subject: object, config: Json, strict: bool = True, avoid: Sequence[str] = ()) -> None:
        super().__init__(subject, config, strict, avoid)
        self.page_size: int = config["page_size"]
        self.slots: dict[int, list[int]] = {row: [] for row in range(config["rows"])}
        self._saved: dict[int, list[int]] | None = None

    def pool_of(self, state: Any) -> Pool:
        """The pool of a state that rows are measured in."""
        raise NotImplementedError

    @property
    def pool(self) -> Pool:
        """The pool that rows are measured in now."""
        return self.pool_of(self.state)

    # Rows.

    def tokens(self, row: int) -> int:
        """How many tokens the row has."""
        return in_tokens(length(self.pool, row), self.page_size)

    def owned(self, row: int, first: int, last: int) -> list[int]:
        """The slots the row still owns among its tokens ``[first, last)``."""
        return [s for s in self.slots[row][first:last] if s != HOLE]

    def page_slots(self, row: int, first: int, last: int) -> list[int]:
        """The slots the row owns in its pages ``[first, last)``."""
        return self.owned(row, first * self.page_size, last * self.page_size)

    def named(self, slots: Sequence[int]) -> tuple[Set, Set]:
        """The pages of slots, and the slots as (page, offset)."""
        pairs = [divmod(s, self.page_size) for s in slots]
        return Set(p for p, _ in pairs), Set(pairs)

    def last_slot(self, row: int) -> int:
        """The slot of the row's last token, -1 for an empty row."""
        return self.slots[row][-1] if self.slots[row] else -1

    # Judging an allocation.

    def grown(self, rows: Sequence[int], more: Sequence[int]) -> list[tuple[int, Length]]:
        """The rows with their lengths after growing by ``more`` tokens each."""
        return [(r, in_pages(self.tokens(r) + m, self.page_size)) for r, m in zip(rows, more, strict=True)]

    def judge_refusal(self, name: str, fits: bool) -> None:
        """The subject said out of memory."""
        if fits:
            self.report(Finding(ENOUGH, "A call that fits is granted.", f"{name} said out of memory", latent=True))
        self.counts[name, "refused"] += 1

    def judge_grant(self, name: str, fits: bool) -> None:
        """The subject granted the call."""
        if not fits:
            raise Finding(REFUSED, "A call that does not fit is refused.", f"{name} was granted")

    def new_pages(self, row: int, before: int, answer: Sequence[int]) -> list[int]:
        """The pages that an answer adds to the row, after checking that the slots fill pages in order."""
        needed = pages_needed(before, before + len(answer), self.page_size)
        start = ceil_align(before, self.page_size) - before
        chosen = [slot // self.page_size for slot in answer[start :: self.page_size]][:needed]
        table = [self.pool.table(row, i) for i in range(touched(length(self.pool, row)))] + chosen
        for offset, slot in enumerate(answer):
            index, within = divmod(before + offset, self.page_size)
            if slot != table[index] * self.page_size + within:
                what = f"token {before + offset} of row {row} got slot {slot}, not slot {within} of page {table[index]}"
                raise Finding("slots_fill_pages", "A row's slots fill its pages in order.", what)
        return chosen

    def split(self, answer: Sequence[int], more: Sequence[int], name: str) -> list[list[int]]:
        """The answer, row by row."""
        if len(answer) != sum(more):
            raise Finding(name, self.sentence(name), f"{len(answer)} slots for {sum(more)} tokens")
        cuts = [sum(more[:k]) for k in range(len(more) + 1)]
        return [list(answer[a:b]) for a, b in pairwise(cuts)]

    def forget(self, slots: Sequence[int]) -> None:
        """The rows gave these slots back."""
        gone = {s // self.page_size for s in slots}
        for row, table in self.slots.items():
            self.slots[row] = [HOLE if s != HOLE and s // self.page_size in gone else s for s in table]

    def remember(self) -> None:
        """The caller's tables are part of a backup."""
        self._saved = {row: list(table) for row, table in self.slots.items()}

    def recall(self) -> None:
        """The caller's tables go back to the backup."""
        assert self._saved is not None, "the spec allows a restore only after a backup"
        self.slots = {row: list(table) for row, table in self._saved.items()}


def lists_released(pool: Pool) -> bool:
    """The spec has pages on the release list."""
    return bool(pool.pages.any(lambda p: pool.place(p) == RELEASED))


def live_slots(pool: Pool) -> list[tuple[int, int]]:
    """The (page, offset) that rows use."""
    return [(p, o) for p in pool.pages.items() if held(pool, p) for o in range(filled(pool, p))]
