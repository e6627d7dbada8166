"""The allocator in lock-step: operations on rows, and what can be observed of one pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformance.machine import Json
from conformance.pools import PoolRun, list_differences, lists_released, observed_pool
from conformance.subjects.adapter import PoolSubject
from spec import allocator as law
from spec.finite import Seq
from spec.lengths import NOTHING, Length, ceil_align, in_pages, touched
from spec.logic import but
from spec.pool import Pool, length, some_open


class AllocatorRun(PoolRun):
    """One paged allocator beside the spec."""

    stem = law.stem
    subject: PoolSubject

    def __init__(self, subject: PoolSubject, config: Json, strict: bool = True, avoid: Sequence[str] = ()) -> None:
        super().__init__(subject, config, strict, avoid)
        self.state = law.initial(config["page_size"], config["size"], config["rows"], config["need_sort"])

    def pool_of(self, state: Any) -> Pool:
        """The one pool."""
        pool: Pool = state.now
        return pool

    def offers(self, name: str) -> bool:
        """Some engines grow rows token by token only where pages have more than one."""
        by_tokens = self.page_size > 1 or self.subject.traits.paged_at_one
        return by_tokens or name not in ("alloc_extend", "alloc_decode")

    # Growing.

    def op_alloc(self, row: int, pages: int) -> None:
        """Whole pages for a row whose last page is full."""
        tokens = pages * self.page_size
        self._grow("alloc", [row], [tokens], lambda: self.subject.alloc(tokens))

    def op_extend(self, rows: list[int], more: list[int]) -> None:
        """A batch of rows grows, each by its number of tokens."""
        self.must_offer("alloc_extend")
        before, last = [self.tokens(r) for r in rows], [self.last_slot(r) for r in rows]
        after = [b + m for b, m in zip(before, more, strict=True)]
        self._grow("alloc_extend", rows, more, lambda: self.subject.extend(before, after, last))

    def op_decode(self, rows: list[int]) -> None:
        """A batch of rows grows by one token each."""
        self.must_offer("alloc_decode")
        after, last = [self.tokens(r) + 1 for r in rows], [self.last_slot(r) for r in rows]
        self._grow("alloc_decode", rows, [1] * len(rows), lambda: self.subject.decode(after, last))

    def _grow(self, name: str, rows: list[int], more: list[int], call: Any) -> None:
        fits = self.fits(name, self.grown(rows, more))
        answer = self.ask(name, call, risky=self.subject.traits.fragile and not fits)
        if answer is None:
            self.judge_refusal(name, fits)
            return
        self.judge_grant(name, fits)
        for row, part in zip(rows, self.split(answer, more, name), strict=True):
            chosen = self.new_pages(row, self.tokens(row), part)
            self.take(name, row, in_pages(self.tokens(row) + len(part), self.page_size), chosen)
            self.slots[row] = self.slots[row] + part

    def fits(self, name: str, targets: list[tuple[int, Length]]) -> bool:
        """The spec's word on a batch: one row after the other, each with any lawful pages."""
        state, extend = self.state, self.stem.transitions["alloc_extend"]
        for row, to in targets:
            need = touched(to) - touched(length(self.pool_of(state), row))
            step = extend(state, row, to, *self.some_pages(state, need))
            self.must_keep(name, step)
            if not step.fits:
                return False
            state = step.then
        return True

    def some_pages(self, state: Any, need: int) -> tuple[Seq, ...]:
        """Any lawful pages, for each pool that a row grows in."""
        return (some_open(state.now, need),)

    def chosen_pages(self, chosen: list[int]) -> tuple[Seq, ...]:
        """The pages that the subject chose, for each pool."""
        return (Seq(chosen),)

    def take(self, name: str, row: int, to: Length, chosen: list[int]) -> None:
        """The spec's row takes the pages that the subject chose."""
        pages = self.chosen_pages(chosen)
        last = {"alloc": (row, len(chosen), *pages), "alloc_decode": (row, *pages)}
        self.step(name, *last.get(name, (row, to, *pages)))

    # Giving back.

    def op_free(self, row: int, first: int, last: int) -> None:
        """The pages ``[first, last)`` of a row."""
        slots = self.page_slots(row, first, last)
        self.step("free", *self.named(slots))
        self.ask("free", lambda: self.subject.free(slots))
        self.forget(slots)

    def op_trim(self, row: int, tokens: int) -> None:
        """A row is cut; the caller frees from the first page on that keeps no token."""
        self._give_tail(row, tokens)
        self.step("trim", row, in_pages(tokens, self.page_size))
        self.slots[row] = self.slots[row][:tokens]

    def op_finish(self, row: int, committed: int) -> None:
        """A row ends: its committed tokens are freed, then the pages after them that decoding had run ahead into."""
        head = self.owned(row, 0, committed)
        if head:
            self.ask("free", lambda: self.subject.free(head))
        self._give_tail(row, committed)
        self.step("trim", row, NOTHING)
        self.slots[row] = []

    def _give_tail(self, row: int, tokens: int) -> None:
        tail = self.owned(row, ceil_align(tokens, self.page_size), self.tokens(row))
        if tail:
            self.ask("free", lambda: self.subject.free(tail))

    # The rest.

    def op_begin(self) -> None:
        """A free group opens."""
        self.step("free_group_begin")
        self.ask("free_group_begin", self.subject.begin)

    def op_end(self) -> None:
        """A free group ends."""
        self.step("free_group_end")
        self.ask("free_group_end", self.subject.end)

    def op_backup(self) -> None:
        """A backup is taken."""
        self.step("backup_state")
        self.ask("backup_state", self.subject.backup)
        self.remember()

    def op_restore(self) -> None:
        """The last backup is restored."""
        self.step("restore_state")
        self.ask("restore_state", self.subject.restore)
        self.recall()

    def op_clear(self) -> None:
        """Everything starts anew."""
        self.step("clear")
        self.ask("clear", self.subject.clear)
        self.slots = {row: [] for row in self.slots}

    def op_bad(self, kind: str, row: int) -> None:  # type: ignore[override]  # a row says where the bad slot is
        """Bad input: a clear error, and nothing changed."""
        self.must_refuse(kind, getattr(self, "bad_" + kind)(row))

    def bad_free_again(self, row: int) -> Any:
        """A slot of a page that is already free."""
        free = self.subject.lists().free
        slot = (free[row % len(free)] if free else 0) * self.page_size
        return lambda: self.subject.free([slot])

    def bad_free_padding(self, row: int) -> Any:
        """The padding slot."""
        return lambda: self.subject.free([*self.owned(row, 0, 0), 0])

    def bad_alloc_negative(self, row: int) -> Any:
        """A negative number of tokens."""
        return lambda: self.subject.alloc(-(row + 1) * self.page_size)

    def bad_free_outside(self, row: int) -> Any:
        """A slot that no pool has."""
        return lambda: self.subject.free([(self.pool.pages.high + 2 + row) * self.page_size])

    def bad_end(self, row: int) -> Any:
        """The end of a group that was never opened."""
        if self.state.group:
            return self.bad_free_padding(row)
        return self.subject.end

    # What can be observed.

    def compare(self, op: str) -> None:
        """Merging the release list is the subject's own affair; the spec follows when it sees it."""
        if lists_released(self.pool) and not self.subject.lists().released:
            self.step("merge_and_sort_free")
        super().compare(op)

    def observed(self) -> Any:
        """The pool as its lists show it."""
        lists = self.subject.lists()
        return but(self.state, now=observed_pool(self.pool, lists.free, lists.released))

    def differences(self, seen: Any) -> str:
        """Lists and available size."""
        del seen
        lists = self.subject.lists()
        found = list_differences("", self.pool, lists.free, lists.released)
        if lists.available != self.pool.available * self.page_size:
            found.append(f"available_size is {lists.available}, not {self.pool.available * self.page_size}")
        return "; ".join(f.strip() for f in found)
