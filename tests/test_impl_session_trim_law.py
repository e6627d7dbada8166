"""Request rows beside the law itself: whatever a caller sends, both refuse it, or both come to the same state."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from test_impl_session_trim import PAGES, new, seen
from test_impl_swa_mapping import ints
from torch import Tensor

from conformance.stems.swa_mapping.projection import waiting_alone
from impl.rows import LEAVING, RUNNING, SAVED
from spec import session_trim as law
from spec import swa_mapping
from spec.finite import Seq, Set
from spec.lengths import Length, in_pages, in_tokens, touched
from spec.pool import HELD, PENDING, some_open
from spec.session_trim_state import SessionTrimState, allocated, committed, cursor, full_pool, protected, swa_pool, text

STEPS = int(os.environ.get("SLOTPROOF_STEPS", "500"))


class Both:
    """Rows, the state of the law, and a tree of two nodes, which are rows ``LIMIT`` and ``LIMIT + 1`` of the law."""

    LIMIT = 3

    def __init__(self, page: int, window: int, full: int, swa: int) -> None:
        self.rows, self.page = new(page, window=window, rows=self.LIMIT, full=full, swa=swa), page
        pools = swa_mapping.initial(page, full, swa, self.LIMIT + 2, False)
        self.state = law.initial(pools, self.LIMIT, 2, in_pages(window, page))
        self.nodes: dict[int, Tensor] = {}

    def agree(self, name: str, batch: list[tuple[Any, ...]], call: Callable[[], object]) -> bool:
        """One call, and the law's steps one after the other: refused by both, or the same state in both."""
        before, transition = seen(self.rows), law.stem.transitions[name]
        if not all(transition(self.state, *args).kept for args in batch):
            with pytest.raises(ValueError, match=r"\w"):
                call()
            assert seen(self.rows) == before
            return False
        call()
        for args in batch:
            self.step(transition, args)
        self.same()
        return True

    def step(self, transition: Callable[..., Any], args: tuple[Any, ...]) -> None:
        step = transition(self.state, *args)
        assert step.granted, step.broken()
        self.state = step.then
        if done := waiting_alone(self.state.pools.now):  # our allocator gives these back at once
            self.step(law.settle_swa, (Set(done), True))

    def grow(self, name: str, batch: list[tuple[Any, ...]], to: list[Length], call: Callable[[], object]) -> None:
        """As ``agree``; the law says whether a pool is short, and judges the pages that were chosen."""
        before, transition = seen(self.rows), law.stem.transitions[name]
        if not all(transition(self.state, *args, Seq(), Seq()).kept for args in batch):
            self.agree(name, [(*args, Seq(), Seq()) for args in batch], call)
            return
        old = [touched(allocated(self.state, args[0])) for args in batch]
        short, trial = False, self.state
        for args, first, end in zip(batch, old, to, strict=True):
            pools = (full_pool(trial), swa_pool(trial))
            step = transition(trial, *args, *(some_open(pool, touched(end) - first) for pool in pools))
            short, trial = short or not step.fits, step.then
        assert (call() is None) == short
        if short:
            assert seen(self.rows) == before
            return
        for args, first, end in zip(batch, old, to, strict=True):
            self.step(transition, (*args, *self.chosen(args[0], first, touched(end))))
        self.same()

    def chosen(self, row: int, first: int, last: int) -> tuple[Seq, Seq]:
        heads = self.rows.req_to_token[row, first * self.page : last * self.page : self.page].to(torch.int64)
        swa = self.rows.pools.translate_loc_from_full_to_swa(heads)
        return Seq((heads // self.page).tolist()), Seq((swa // self.page).tolist())

    def same(self) -> None:
        state, r = self.state, self.rows
        pair = state.pools.now
        for row in range(self.LIMIT):
            found = [int(r.phase[row]), *r.lengths[:5, row].tolist()]
            of = [in_tokens(f(state, row), self.page) for f in (protected, cursor, committed, allocated, text)]
            assert found == [state.phase(row), *of]
            assert r.session[row] == ("", "s1", "s2")[state.session(row)] or not state.session(row)
            pages = r.req_to_token[row, :: self.page] // self.page
            for i in range(int(r.protected[row]) // self.page, touched(allocated(state, row))):
                assert int(pages[i]) == pair.full.table(row, i)
        assert r.slot == {f"s{s}": state.slot(s) - 1 for s in (1, 2) if state.slot(s)}
        mapping = r.pools.full_to_swa_index_mapping[:-1].view(-1, self.page).tolist()
        for p in pair.full.pages.items():
            maps = [(pair.to_page(p, o), pair.to_offset(p, o)) for o in range(self.page)]
            assert mapping[p] == [page * self.page + o for page, o in maps]
        full, swa = r.pools.full_attn_allocator.held, r.pools.swa_attn_allocator.held
        assert full.tolist()[1:] == [pair.full.place(p) == HELD for p in pair.full.pages.items()]
        assert swa.tolist()[1:] == [pair.swa.place(p) in (HELD, PENDING) for p in pair.swa.pages.items()]

    # What a caller may send, lawful or not; ``a``, ``b`` and ``c`` are any numbers.

    def pick(self, phase: int, a: int, several: bool) -> list[int]:
        found = [r for r in range(self.LIMIT) if a % 7 == 0 or self.state.phase(r) == phase] or [a % self.LIMIT]
        return found[-2:] if several else [found[a % len(found)]]

    def length(self, f: Callable[[SessionTrimState, int], Length], row: int, by: int) -> int:
        return in_tokens(f(self.state, row), self.page) + by

    def admit(self, a: int, b: int, _: int) -> None:
        session = b % 3
        idle = [r for r in range(self.LIMIT) if self.state.phase(r) == 0]
        prefix = torch.cat([ints(), *self.nodes.values()])[: a % 4 * self.page]
        row = self.rows._idle[-1] if idle else 0
        if idle or (session and self.state.slot(session)):
            args = (row, session, prefix.numel() // self.page)
            self.agree("admit", [args], lambda: self.rows.admit([prefix], [f"s{session}" if session else None]))
        else:
            before = seen(self.rows)
            assert self.rows.admit([prefix]) is None
            assert seen(self.rows) == before

    def admit_tail(self, a: int, b: int, c: int) -> None:
        """A tail that starts anywhere, also where it may not."""
        session, idle = b % 3, [r for r in range(self.LIMIT) if self.state.phase(r) == 0]
        prefix = torch.cat([ints(), *self.nodes.values()])[: a % 3 * self.page]
        pages, to = prefix.numel() // self.page, prefix.numel() + c % (3 * self.page)
        row, start, end = self.rows._idle[-1] if idle else 0, pages + a % 4, in_pages(to, self.page)
        before, name = seen(self.rows), f"s{session}" if session else None
        if idle:
            need = (touched(end) - pages, max(touched(end) - start, 0))
            given = (some_open(pool(self.state), n) for pool, n in zip((full_pool, swa_pool), need, strict=True))
            step = law.admit_tail(self.state, row, session, pages, start, end, *given)
            if not step.kept or not all(choice.holds for choice in step.choice[:2]):
                with pytest.raises(ValueError, match=r"\w"):
                    self.rows.admit_tail(prefix, to, start * self.page, name)
                assert seen(self.rows) == before
                return
        elif (session and self.state.slot(session)) or to < start * self.page + self.rows.window:
            return  # it may be bad input, which is refused before a row is looked for
        found = self.rows.admit_tail(prefix, to, start * self.page, name)
        assert (found is not None) == bool(idle and step.fits)
        if found is None:
            assert seen(self.rows) == before
            return
        full_pages, swa_pages = self.chosen(row, pages, touched(end))
        swa = Seq(swa_pages.items()[start - pages :])
        self.step(law.admit_tail, (row, session, pages, start, end, full_pages, swa))
        assert found[1].tolist() == self.rows.req_to_token[row, pages * self.page : to].tolist()
        self.same()

    def roll_back(self, a: int, b: int, c: int) -> None:
        rows = self.pick(RUNNING, a, b % 2 == 0)
        to = [max(self.length(allocated, r, 1 - c % (2 * self.page + 3)), 0) for r in rows]
        batch = [(r, in_pages(t, self.page)) for r, t in zip(rows, to, strict=True)]
        self.agree("roll_back", batch, lambda: self.rows.roll_back(rows, to))

    def reserve(self, a: int, b: int, c: int, name: str = "reserve") -> None:
        rows = self.pick(RUNNING, a, b % 2 == 0)
        to = [self.length(allocated, r, c % (2 * self.page + 3) - 1) for r in rows]
        ends = [in_pages(t, self.page) for t in to]
        self.grow(name, list(zip(rows, ends, strict=True)), ends, lambda: getattr(self.rows, name)(rows, to))

    def extend(self, a: int, b: int, c: int) -> None:
        self.reserve(a, b, c, "extend")

    def decode(self, a: int, b: int, _: int) -> None:
        rows = self.pick(RUNNING, a, b % 2 == 0)
        ends = [in_pages(self.length(allocated, r, 1), self.page) for r in rows]
        self.grow("decode", [(r,) for r in rows], ends, lambda: self.rows.decode(ints(*rows)))

    def commit(self, a: int, b: int, c: int) -> None:
        rows = self.pick(RUNNING, a, b % 2 == 0)
        to = [self.length(allocated, r, -(c % 3)) for r in rows]
        batch = [(r, in_pages(t, self.page)) for r, t in zip(rows, to, strict=True)]
        self.agree("commit", batch, lambda: self.rows.commit(rows, to))

    def slide_to(self, a: int, b: int, c: int) -> None:
        rows = self.pick(RUNNING, a, b % 2 == 0)
        to = [self.state.cursor(r) + c % 4 for r in rows]
        self.agree(
            "slide", list(zip(rows, to, strict=True)), lambda: self.rows.slide_to(rows, [t * self.page for t in to])
        )

    def slide(self, a: int, b: int, _: int) -> None:
        """The cursor ends where the law still lets it, were the window a page longer."""
        rows = [r for r in self.pick(RUNNING, a, b % 2 == 0) if self.state.phase(r) == RUNNING]
        wider = SessionTrimState(**{**vars(self.state), "window": self.state.window + 1})
        found = self.rows.slide(rows).tolist()
        for row, to in zip(rows, found, strict=True):
            lawful = [i for i in full_pool(wider).indices.items() if law.slide(wider, row, i).kept]
            assert to == max(lawful, default=self.state.cursor(row)) * self.page
            if to != self.length(cursor, row, 0):
                self.step(law.slide, (row, to // self.page))
        self.same()

    def finish(self, a: int, b: int, _: int) -> None:
        rows = self.pick(RUNNING, a, b % 2 == 0)
        self.agree("finish", [(r,) for r in rows], lambda: self.rows.finish(rows))

    def donate(self, a: int, _: int, c: int) -> None:
        to = next((n for n in (self.LIMIT, self.LIMIT + 1) if n not in self.nodes), None)
        if to is None:
            return
        (row,) = self.pick(LEAVING if c % 3 else RUNNING, a, False)
        pages = self.state.protected(row) + c % 3
        given: list[Tensor] = []
        args = (row, to, pages)
        if self.agree("donate", [args], lambda: given.append(self.rows.donate(row, pages * self.page))):
            self.nodes |= {to: given[0]} if given[0].numel() else {}

    def dedupe(self, a: int, _: int, c: int) -> None:
        (row,) = self.pick(LEAVING if c % 3 else RUNNING, a, False)
        pages = self.state.protected(row) + min(c % 3, sum(map(len, self.nodes.values())) // self.page)
        slots = torch.cat([ints(), *self.nodes.values()])[: c % 3 * self.page]
        if self.agree("dedupe", [(row, pages)], lambda: self.rows.dedupe(row, slots, pages * self.page)):
            start = pages * self.page - slots.numel()
            assert self.rows.req_to_token[row, start : pages * self.page].tolist() == slots.tolist()

    def release(self, a: int, b: int, _: int) -> None:
        rows = self.pick(LEAVING, a, b % 2 == 0)
        self.agree("release", [(r,) for r in rows], lambda: self.rows.release(rows))

    def save(self, a: int, b: int, c: int) -> None:
        rows = self.pick(RUNNING, a, b % 2 == 0)
        agreed = [max(self.length(committed, r, c % (2 * self.page + 3) - self.page - 1), 0) for r in rows]
        batch = [(r, in_pages(n, self.page)) for r, n in zip(rows, agreed, strict=True)]
        self.agree("save", batch, lambda: self.rows.save(rows, agreed))

    def sessions(self, a: int, b: int) -> tuple[list[int], list[str], list[int]]:
        found = [s for s in (1, 2) if self.state.phase(self.state.slot(s) - 1) == SAVED or a % 7 == 0] or [1 + a % 2]
        found = found if b % 2 else [found[a % len(found)]]
        return found, [f"s{s}" for s in found], [max(self.state.slot(s) - 1, 0) for s in found]

    def restore(self, a: int, b: int, _: int) -> None:
        """Done again, it changes nothing."""
        sessions, names, rows = self.sessions(a, b)
        prefix = [max(self.length(committed, r, 1 - a % (self.page + 3)), 0) for r in rows]
        batch = [(s, in_pages(n, self.page)) for s, n in zip(sessions, prefix, strict=True)]
        ends: list[Tensor] = []
        if self.agree("restore", batch, lambda: ends.append(self.rows.restore(names, prefix))):
            assert ends[0].tolist() == [self.length(committed, r, 0) for r in rows]
            again = [(s, in_pages(n, self.page)) for s, n in zip(sessions, ends[0].tolist(), strict=True)]
            before = seen(self.rows)
            self.agree("restore", again, lambda: self.rows.restore(names, ends[0]))
            assert seen(self.rows) == before

    def resume(self, a: int, b: int, c: int) -> None:
        sessions, names, rows = self.sessions(a, b)
        to = [max(self.length(text, r, 0), self.length(committed, r, 1)) + c % 5 - 1 for r in rows]
        batch = [(s, in_pages(n, self.page)) for s, n in zip(sessions, to, strict=True)]
        self.agree("resume", batch, lambda: self.rows.resume(names, to))

    def close(self, a: int, b: int, c: int) -> None:
        sessions, names, _rows = self.sessions(a, b)
        if c % 3 == 0:
            self.agree("close", [(s,) for s in sessions], lambda: self.rows.close(names))

    def drop(self, a: int, b: int, _: int) -> None:
        for node in list(self.nodes)[: a % 2]:
            slots = self.nodes[node] if b % 2 else self.nodes.pop(node)
            call = self.rows.pools.free_swa if b % 2 else self.rows.pools.free
            self.agree("drop_swa" if b % 2 else "drop", [(node,)], lambda call=call, s=slots: call(s))  # type: ignore[misc]

    def group(self, a: int, _: int, __: int) -> None:
        opened = self.state.pools.group > 0
        pools = self.rows.allocator
        call = pools.free_group_end if opened else pools.free_group_begin
        if opened or a % 3 == 0:
            self.agree("free_group_end" if opened else "free_group_begin", [() if opened else (True,)], call)


OPS = {"admit": 3, "extend": 4, "decode": 4, "reserve": 1, "commit": 2, "slide": 3, "slide_to": 3, "finish": 1}
OPS |= {"donate": 1, "dedupe": 1, "release": 2, "save": 2, "restore": 2, "resume": 4, "close": 1, "drop": 2, "group": 1}
OPS |= {"admit_tail": 2, "roll_back": 1}


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("windows", [0, 0.5, 1, 2.3])
def test_a_call_does_what_the_law_says_or_nothing(page: int, windows: float) -> None:
    both, random = Both(page, int(windows * page), full=16, swa=11), Random(f"{page} {windows}")
    for op in random.choices(list(OPS), list(OPS.values()), k=STEPS):
        getattr(both, op)(*(random.randrange(60) for _ in "abc"))
    assert law.stem.broken(both.state) == []
