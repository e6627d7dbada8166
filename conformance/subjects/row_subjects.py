"""Our request rows as a subject: they, over both pools, and a small prefix store in place of the tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from conformance.subjects.adapter import SwaSubject, Traits
from conformance.subjects.prefixpages import PrefixPages, Text
from conformance.subjects.rowview import Admission, Lengths, RowSeen, Seen, TreePage
from impl.rows import IDLE
from impl.session_trim import RequestRows


@dataclass
class Running:
    """A request that runs: its session, its text, its row, and the pages of the store that it reads."""

    session: int
    tokens: list[int]
    prompt: int
    row: int
    reads: list[Text]
    first: bool


class OurRows:
    """A scheduler's calls on ``RequestRows``."""

    def __init__(self, engine: RequestRows, traits: Traits) -> None:
        self.engine, self.traits, self.page_size = engine, traits, engine.page_size
        self.pools = SwaSubject(engine.allocator, engine.page_size, str(engine.device), traits)
        self.store = PrefixPages(engine.allocator, engine.window)
        self.running: dict[int, Running] = {}
        self.reads: dict[int, list[Text]] = {}  # of the rows in session slots

    def offers(self, name: str) -> bool:
        """Everything."""
        return bool(name)

    # A request arrives.

    def look(self, request: int, session: int, tokens: list[int]) -> int:
        """Matches the session's slot, or the store."""
        del request
        if session not in self.engine.slot:
            return len(self.store.match(tokens[:-1])) * self.page_size
        committed = int(self.engine.committed[self.engine.slot[session]])
        return int(self.engine.restore([session], [min(committed, len(tokens) - 1)])[0])

    def admit(self, request: int, session: int, tokens: list[int], most: int) -> Admission:
        """On the slot's row, or on a new one after what the store has."""
        prefix = self.look(request, session, tokens)
        upto, first = min(prefix + most, len(tokens)), session not in self.engine.slot
        reads = self.store.match(tokens[:-1]) if first else self.reads[session]
        self.store.hold(reads, 1 if first else 0)
        if not self._room([(prefix, upto)]) or (first and not self.engine.available_size()):
            self.store.hold(reads, -1 if first else 0)
            return Admission(prefix, False)
        if first:
            rows = self.engine.admit([self.store.slots(reads)], [session or None])
        else:
            rows = self.engine.resume([session], [len(tokens)])
        assert rows is not None, "there is room"
        self.running[request] = Running(session, list(tokens), len(tokens), rows[0], list(reads), first)
        self.engine.extend(rows, [upto])
        return Admission(prefix, True)

    def _room(self, growth: list[tuple[int, int]]) -> bool:
        """The store makes room for rows that grow."""
        pages = sum(-(-after // self.page_size) + (-before // self.page_size) for before, after in growth)
        return self.store.make_room(pages * self.page_size, pages * self.page_size)

    # It grows.

    def chunk(self, request: int, most: int) -> bool:
        """The next chunk."""
        row, now = self._row(request)
        upto = min(now + most, self.running[request].prompt)
        return self._room([(now, upto)]) and self.engine.extend([row], [upto]) is not None

    def cache(self, request: int, sampled: int | None) -> None:
        """The prompt of a request that has no slot to go on from goes to the store."""
        one = self.running[request]
        if one.first:
            self._insert(one)
        one.tokens += [] if sampled is None else [sampled]

    def decode(self, requests: list[int], sampled: list[int]) -> bool:
        """A step of a batch."""
        rows = [self._row(request) for request in requests]
        if not self._room([(now, now + 1) for _, now in rows]) or self.engine.decode([r for r, _ in rows]) is None:
            return False
        for request, token in zip(requests, sampled, strict=True):
            self.running[request].tokens.append(token)
        return True

    def reserve(self, request: int, more: int) -> bool:
        """Slots ahead."""
        row, now = self._row(request)
        return self._room([(now, now + more)]) and self.engine.reserve([row], [now + more]) is not None

    def commit(self, request: int, accepted: list[int]) -> None:
        """Verified tokens."""
        one = self.running[request]
        self.engine.commit([one.row], [int(self.engine.committed[one.row]) + len(accepted)])
        one.tokens += accepted

    def slide(self, request: int) -> None:
        """By the engine's reckoning, which leaves a page of margin, and then as far as it goes."""
        row, size = self.running[request].row, self.page_size
        self.engine.slide([row])
        reach = (int(self.engine.committed[row]) - self.engine.window) // size * size
        if reach >= max(int(self.engine.cursor[row]), int(self.engine.protected[row])):
            self.engine.slide_to([row], [reach])

    def _row(self, request: int) -> tuple[int, int]:
        row = self.running[request].row
        return row, int(self.engine.allocated[row])

    # It leaves.

    def finish(self, request: int, sent: int) -> None:
        """To the session's slot, or to the store and the pools."""
        one = self.running.pop(request)
        if one.session:
            self._save(one, sent)
            return
        self.engine.finish([one.row])
        self._insert(one)
        self._release(one)

    def abort(self, request: int) -> None:
        """Everything is given back; the session starts anew."""
        one = self.running.pop(request)
        self.engine.finish([one.row])
        self._release(one)

    def retract(self, request: int, sent: int) -> None:
        """To the session's slot, or to the pools."""
        one = self.running.pop(request)
        if one.session:
            self._save(one, sent)
            return
        self.engine.finish([one.row])
        self._release(one)

    def _save(self, one: Running, sent: int) -> None:
        self.engine.save([one.row], [one.prompt + sent])
        self.reads[one.session] = one.reads

    def _release(self, one: Running) -> None:
        self.engine.release([one.row])
        self.store.hold(one.reads, -1)

    def _insert(self, one: Running) -> None:
        """Page by page: a text that the store has is read there, any other becomes the store's."""
        whole = int(self.engine.committed[one.row]) // self.page_size
        for text in self.store.texts(one.tokens, int(self.engine.protected[one.row]) // self.page_size, whole):
            known = text in self.store.pages
            lacks = known and not self.store.mapped(text) and len(text) > int(self.engine.cursor[one.row])
            if lacks and not self.store.spare(text):
                return  # the row would read a page without its SWA side
            if known and not lacks:
                self.engine.dedupe(one.row, self.store.slots([text]), len(text))
            else:
                self.store.put(text, self.engine.donate(one.row, len(text)).tolist())
            self.store.hold([text], 1)
            one.reads.append(text)

    def cancel(self, request: int) -> None:
        """Nothing is kept of a request that waits."""
        del request

    def close(self, session: int) -> bool:
        """What the slot has is given back."""
        if session in self.engine.slot:
            self.engine.close([session])
            self.store.hold(self.reads.pop(session), -1)
        return True

    def begin(self) -> None:
        """Opens a free group."""
        self.engine.allocator.free_group_begin()

    def end(self) -> None:
        """Ends it."""
        self.engine.allocator.free_group_end()

    def evict(self, full: int, swa: int) -> None:
        """The store gives back what nobody reads."""
        allocator = self.engine.allocator
        self.store.make_room(allocator.full_available_size() + full, allocator.swa_available_size() + swa)

    # What can be seen.

    def observe(self) -> Seen:
        """Rows, slots, pools and the store."""
        busy = {one.session: one for one in self.running.values() if one.session}
        saved = {int(s): self._seen(row) for s, row in self.engine.slot.items() if s not in busy}  # type: ignore[call-overload]
        tree = {
            page.slots[0] // self.page_size: TreePage(len(text) // self.page_size - 1, self.store.mapped(text))
            for text, page in self.store.pages.items()
        }
        return Seen(
            requests={request: self._seen(one.row) for request, one in self.running.items()},
            sessions=saved,
            free_rows=[row for row, phase in enumerate(self.engine.phase.tolist()) if phase == IDLE],
            full=self.pools.lists(),
            swa=self.pools.swa_lists(),
            mapping=self.pools.mapping(),
            tree=tree,
        )

    def _seen(self, row: int) -> RowSeen:
        lengths = Lengths(*self.engine.lengths[:4, row].tolist())
        return RowSeen(row, lengths, self.engine.req_to_token[row, : lengths.allocated].tolist())

    def bad(self, kind: str) -> None:
        """Sends bad input."""
        outside, most = self.engine.rows, self.engine.max_tokens
        rows = [one.row for one in self.running.values()]
        calls: dict[str, Callable[[], Any]] = {
            "row_outside": lambda: self.engine.decode([*rows, outside]),
            "row_twice": lambda: self.engine.finish([*rows, *(rows or [0]), *(rows or [0])]),
            "longer_than_a_row": lambda: self.engine.reserve(rows or [0], [most + 1] * max(len(rows), 1)),
            "shrinks": lambda: self.engine.extend(rows or [0], [-1] * max(len(rows), 1)),
            "nobodys_slot": lambda: self.engine.restore(["nobody"], [0]),
            "not_finished": lambda: self.engine.release(rows or [0]),
            "padding_for_prefix": lambda: self.engine.admit([torch.arange(self.page_size)]),
        }
        calls[kind]()
