"""What the caller of an allocator does: it keeps a table of slots for each row, and grows, cuts and frees rows.

The operations serve ``allocator`` (one pool) and ``swa_mapping`` (a full and an SWA pool); the run that uses them says
which pools there are (``PoolRun``). The engine chooses the pages, and the law judges this choice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal, Protocol

from conformance.driver.lockstep import CHOICE, REFUSAL, Calls, EngineCall, Finding, Law, refusing
from conformance.driver.operations import operation, operations_of
from conformance.driver.protocol import Json, Misuse
from conformance.driver.shadow import Shadow
from conformance.stems.pools.contents import HOLE, Growth, RowPasses
from spec.finite import Seq, Set
from spec.lengths import Length, ceil_align, in_pages, in_tokens, pages_needed, touched
from spec.pool import Pool, length

BadCall = Literal["free_again", "free_padding", "alloc_negative", "free_outside", "end_group"]
FILLED = "slots_fill_pages"
FILLED_SENTENCE = "A row's slots fill its pages in order."


class PoolRun(Protocol):
    """A run whose rows have their length in a pool."""

    law: Law
    shadow: Shadow
    engine: Any
    lacks: Collection[str]

    def pool_of(self, state: Any) -> Pool:
        """The pool of a state in which the rows have their length."""

    def some_pages(self, state: Any, need: int) -> tuple[Seq, ...]:
        """Any ``need`` free pages of each pool in which a row grows."""

    def freeing(self, *parts: list[int]) -> Callable[[], None]:
        """Sends the engine the calls that free these slots, one part after the other. Asked for before the law's step,
        since the calls may depend on what has its SWA page before it.
        """

    def swa_slot(self, slot: int) -> int:
        """The SWA slot that the engine shows for a full slot, 0 for none."""

    def has_swa_slot(self, slot: int) -> bool:
        """A slot that a row owns has its SWA slot, as the law has it."""

    def is_whole(self, page: int) -> bool:
        """A held page has all that a segment free expects of it."""

    def chosen_pages(self, chosen: list[int]) -> tuple[Seq, ...]:
        """The pages that the engine chose in each pool. ``chosen``: those of the pool in which the rows have their
        length.
        """

    def sorted_as_now(self, before: Any) -> Any:
        """The state ``before``, with the release lists sorted that the engine has sorted since."""


def send_each(send: Callable[[list[int]], None], parts: Sequence[list[int]]) -> Callable[[], None]:
    """Sends a call for each part that has a slot."""

    def sent() -> None:
        for slots in parts:
            if slots:
                send(slots)

    return sent


def row_pages(pool: Pool, row: int, before: int, answer: Sequence[int]) -> list[int]:
    """The pages that new slots add to a row of ``before`` tokens.

    ``answer``: the new slots. Raises ``Finding`` if they do not fill the row's pages in order.
    """
    size = pool.page_size
    needed = pages_needed(before, before + len(answer), size)
    start = ceil_align(before, size) - before
    chosen = [slot // size for slot in answer[start::size]][:needed]
    table = [pool.table(row, i) for i in range((before + start) // size)] + chosen
    for offset, slot in enumerate(answer):
        index, within = divmod(before + offset, size)
        if slot != table[index] * size + within:
            what = f"token {before + offset} of row {row} got slot {slot}, not slot {within} of page {table[index]}"
            raise Finding(FILLED, FILLED_SENTENCE, what)
    return chosen


def whole_pages(slots: Sequence[int], size: int, what: str) -> list[int]:
    """The page of each group of ``size`` slots, 0 where the slots of a page are 0.

    Raises ``Finding`` unless the slots fill their pages in order, each page from its first slot on. The last page may
    be filled in part. ``what`` says in the finding whose slots they are.
    """
    pages = [slot // size for slot in slots[::size]]
    for i, slot in enumerate(slots):
        page = pages[i // size]
        lawful = page * size + i % size if page else 0
        if slot != lawful:
            raise Finding(FILLED, FILLED_SENTENCE, f"{what} has slot {slot} for token {i}, not slot {lawful}")
    return pages


class PoolCalls:
    """The caller's side. ``slots[row]``: the slot of each token, ``HOLE`` where the row does not own the slot.
    ``passes``: what the rows compute and read.
    """

    def __init__(self, run: PoolRun, config: Json) -> None:
        self.run, self.law, self.engine = run, run.law, run.engine
        self.page_size: int = config["page_size"]
        self.slots: dict[int, list[int]] = {row: [] for row in range(config["rows"])}
        self.passes = RowPasses(run.shadow, run.swa_slot, run.has_swa_slot)
        self._saved: tuple[dict[int, list[int]], dict[int, list[int]]] | None = None
        self.operations = operations_of(self)

    # The caller's table.

    @property
    def pool(self) -> Pool:
        """The pool in which the rows have their length, as the law has it now."""
        return self.run.pool_of(self.law.state)

    def tokens(self, row: int) -> int:
        """The length of the row, in tokens."""
        return in_tokens(length(self.pool, row), self.page_size)

    def must_have(self, *rows: int) -> None:
        """Raises ``Misuse`` for a row that the caller does not have, and for one that is named twice."""
        for row in rows:
            if row not in self.slots:
                raise Misuse(f"there is no row {row}: the caller has {len(self.slots)}, numbered from 0")
        if len(set(rows)) < len(rows):
            raise Misuse("a row stands in a batch once")

    def must_have_pages(self, row: int, first: int, last: int) -> None:
        """Raises ``Misuse`` unless the row has a page at an index in ``[first, last)``."""
        self.must_have(row)
        if not first < last or first >= touched(length(self.pool, row)):
            raise Misuse(f"row {row} has no pages [{first}, {last})")

    def owned(self, row: int, first: int, last: int) -> list[int]:
        """The slots that the row owns among its tokens ``[first, last)``."""
        return [s for s in self.slots[row][first:last] if s != HOLE]

    def page_slots(self, row: int, first: int, last: int) -> list[int]:
        """The slots that the row owns in its pages ``[first, last)``."""
        return self.owned(row, first * self.page_size, last * self.page_size)

    def named(self, slots: Sequence[int]) -> tuple[Set, Set]:
        """The pages of the slots, and the slots as pairs (page, offset)."""
        pairs = [divmod(s, self.page_size) for s in slots]
        return Set(p for p, _ in pairs), Set(pairs)

    def last_slot(self, row: int) -> int:
        """The slot of the row's last token; -1 if the row is empty or does not own this slot."""
        return self.slots[row][-1] if self.slots[row] else -1

    def forget(self, slots: Sequence[int]) -> None:
        """Writes ``HOLE`` for every slot in the pages of these slots, which were freed."""
        gone = {s // self.page_size for s in slots}
        for row, table in self.slots.items():
            self.slots[row] = [HOLE if s != HOLE and s // self.page_size in gone else s for s in table]

    # Growing.

    @operation
    def alloc(self, row: int, pages: int) -> Calls:
        """A row whose last page is full gets ``pages`` whole pages."""
        self.must_have(row)
        if pages < 1:
            raise Misuse("a row gets one page at least")
        tokens = pages * self.page_size
        return self._grow("alloc", [row], [tokens], lambda: self.engine.alloc(tokens))

    @operation
    def extend(self, rows: list[int], more: list[int]) -> Calls:
        """A batch of rows grows, each by its number of tokens, as in a prefill."""
        self.must_have(*rows)
        if not rows or len(rows) != len(more) or min(more) < 1:
            raise Misuse("each row of a batch grows by a number of tokens, at least one")
        before, last = [self.tokens(r) for r in rows], [self.last_slot(r) for r in rows]
        after = [b + m for b, m in zip(before, more, strict=True)]
        return self._grow("alloc_extend", rows, more, lambda: self.engine.extend(before, after, last))

    @operation
    def decode(self, rows: list[int]) -> Calls:
        """A batch of rows grows by one token each."""
        self.must_have(*rows)
        if not rows:
            raise Misuse("a batch has a row")
        after, last = [self.tokens(r) + 1 for r in rows], [self.last_slot(r) for r in rows]
        return self._grow("alloc_decode", rows, [1] * len(rows), lambda: self.engine.decode(after, last))

    def _grow(self, name: str, rows: list[int], more: list[int], send: Callable[[], Any]) -> Calls:
        fits = self.fits(name, self.grown(rows, more))
        answer = yield EngineCall(name, send, risky=self.engine.fragile and not fits)
        if answer is None:
            self.law.refused(name, fits)
            return
        parts = self.split(answer, more, name)
        self.passes.grow([Growth(r, self.slots[r], part) for r, part in zip(rows, parts, strict=True)])
        self.law.must_fit(name, fits)
        for row, part in zip(rows, parts, strict=True):
            chosen = row_pages(self.pool, row, self.tokens(row), part)
            self._take(name, row, in_pages(self.tokens(row) + len(part), self.page_size), chosen)
            self.slots[row] = self.slots[row] + part

    def grown(self, rows: Sequence[int], more: Sequence[int]) -> list[tuple[int, Length]]:
        """The rows with their lengths after growing by ``more`` tokens each."""
        return [(r, in_pages(self.tokens(r) + m, self.page_size)) for r, m in zip(rows, more, strict=True)]

    def fits(self, name: str, targets: list[tuple[int, Length]]) -> bool:
        """Whether the law grants a batch: the rows grow one after the other, each with any free pages."""
        state, extend = self.law.state, self.law.stem.transitions["alloc_extend"]
        for row, to in targets:
            need = touched(to) - touched(length(self.run.pool_of(state), row))
            step = extend(state, row, to, *self.run.some_pages(state, need))
            self.law.must_keep(name, step)
            if not step.fits:
                return False
            state = step.then
        return True

    def split(self, answer: Sequence[int], more: Sequence[int], name: str) -> list[list[int]]:
        """The answer cut into the slots of each row. Raises ``Finding`` if the number of slots is wrong."""
        if len(answer) != sum(more):
            what = f"{len(answer)} slots for {sum(more)} tokens"
            raise Finding(name, self.law.sentence(name), what, kind=CHOICE)
        cuts = [sum(more[:k]) for k in range(len(more) + 1)]
        return [list(answer[a:b]) for a, b in pairwise(cuts)]

    def _take(self, name: str, row: int, to: Length, chosen: list[int]) -> None:
        """The law's step: the row takes the pages that the engine chose."""
        pages = self.run.chosen_pages(chosen)
        arguments = {"alloc": (row, len(chosen), *pages), "alloc_decode": (row, *pages)}
        self.law.caller_step(name, *arguments.get(name, (row, to, *pages)))

    # Freeing.

    @operation
    def free(self, row: int, first: int, last: int) -> Calls:
        """The pages ``[first, last)`` of a row are freed."""
        self.must_have_pages(row, first, last)
        slots = self.page_slots(row, first, last)
        send = self.run.freeing(slots)
        self.law.caller_step("free", *self.named(slots))
        yield EngineCall("free", send)
        self.forget(slots)

    @operation
    def free_segment(self, row: int, first: int, last: int) -> Calls:
        """The pages ``[first, last)`` of a row are freed as one segment of the row: the row owns each of its tokens."""
        slots = self.segment(row, first, last)
        self.law.caller_step("free", *self.named(slots))
        yield EngineCall("free_segment", lambda: self.engine.free_segment(slots, first * self.page_size))
        self.forget(slots)

    def segment(self, row: int, first: int, last: int) -> list[int]:
        """The slots of the row's pages ``[first, last)``. Raises ``Misuse`` unless the row owns all of them, and each
        page is whole (``PoolRun.is_whole``).
        """
        self.must_have_pages(row, first, last)
        slots = self.slots[row][first * self.page_size : last * self.page_size]
        if HOLE in slots or not all(self.run.is_whole(page) for page in {s // self.page_size for s in slots}):
            raise Misuse(f"the pages [{first}, {last}) of row {row} are no segment: not each token has its slots")
        return slots

    @operation
    def roll_back(self, row: int, more: int) -> Calls:
        """A row is granted ``more`` tokens; its caller fails before it uses the new slots, and frees the new pages.

        The row is as it was, and so is the caller's table. Engines without ``extend`` are asked for whole pages.
        """
        self.must_have(row)
        if more < 1:
            raise Misuse("a row grows by one token at least")
        before, last, state = self.tokens(row), self.last_slot(row), self.law.state
        if "extend" in self.run.lacks:
            if more % self.page_size or before % self.page_size:
                raise Misuse("an engine without extend hands out whole pages to rows whose last page is full")
            send = partial(self.engine.alloc, more)
        else:
            send = partial(self.engine.extend, [before], [before + more], [last])
        fits = self.fits("roll_back", self.grown([row], [more]))
        answer = yield EngineCall("alloc_extend", send, risky=self.engine.fragile and not fits)
        if answer is None:
            self.law.refused("roll_back", fits)
            return
        self.law.must_fit("roll_back", fits)
        (slots,) = self.split(answer, [more], "roll_back")
        pages = self.run.chosen_pages(row_pages(self.pool, row, before, slots))
        to = in_pages(before + more, self.page_size)
        self.law.caller_step("alloc_extend", row, to, *pages)
        fresh = slots[ceil_align(before, self.page_size) - before :]
        yield EngineCall("free", send_each(self.engine.free, [fresh]))
        self.law.state = self.run.sorted_as_now(state)  # the step speaks of both calls, and starts before the first
        self.law.caller_step("roll_back", row, to, *pages)

    @operation
    def trim(self, row: int, tokens: int) -> Calls:
        """A row is cut to ``tokens`` tokens. The caller frees the pages that keep no token."""
        self._must_reach(row, tokens)
        yield from self._cut(row, tokens, self._tail(row, tokens))

    @operation
    def finish(self, row: int, committed: int) -> Calls:
        """A row ends. Its committed tokens are freed, then the pages after them, into which decoding had run ahead."""
        self._must_reach(row, committed)
        yield from self._cut(row, 0, self.owned(row, 0, committed), self._tail(row, committed))

    def _must_reach(self, row: int, tokens: int) -> None:
        """Raises ``Misuse`` unless the row has so many tokens."""
        self.must_have(row)
        if not 0 <= tokens <= self.tokens(row):
            raise Misuse(f"row {row} has {self.tokens(row)} tokens, and so cannot be cut to {tokens}")

    def _cut(self, row: int, tokens: int, *parts: list[int]) -> Calls:
        """The pages beyond ``tokens`` tokens are freed, whose slots are in these parts, and the row is shorter."""
        if any(parts):
            send = self.run.freeing(*parts)
            self.law.caller_step("free", *self.named(self._tail(row, tokens)))
            yield EngineCall("free", send)
        self.law.caller_step("shorten", row, in_pages(tokens, self.page_size))
        if any(parts):
            self.law.last = "free"  # the call that the engine got: what differs now differs since this call
        self.slots[row] = self.slots[row][:tokens]
        self.passes.cut(row, tokens)

    def _tail(self, row: int, tokens: int) -> list[int]:
        return self.owned(row, ceil_align(tokens, self.page_size), self.tokens(row))

    @operation
    def overwrite(self) -> Calls:
        """The caller writes slots that its rows hold, or padding, into the table rows whose slots it has freed."""
        held = [s for table in self.slots.values() for s in table if s != HOLE] or [0]
        yield EngineCall("overwrite", lambda: self.engine.overwrite(held))
        self.law.counts["overwrite", "done"] += 1

    # Free groups, backups, and bad input.

    @operation
    def begin_group(self) -> Calls:
        """A free group opens. Where one is open, the engine may decline."""
        answer = yield EngineCall("free_group_begin", self.engine.begin_group, declinable=self.law.state.group > 0)
        self.law.caller_step("free_group_begin", answer is not REFUSAL)

    @operation
    def end_group(self) -> Calls:
        """A free group ends. Where none is open, the engine does nothing, or declines."""
        yield EngineCall("free_group_end", self.engine.end_group, declinable=self.law.state.group == 0)
        self.law.caller_step("free_group_end")

    @operation
    def backup(self) -> Calls:
        """The engine takes a backup, and the caller saves its tables."""
        self.law.caller_step("backup_state")
        yield EngineCall("backup_state", self.engine.backup)
        self._saved = {row: list(table) for row, table in self.slots.items()}, self.passes.saved()

    @operation
    def restore(self) -> Calls:
        """The last backup is restored, with the caller's tables."""
        self.law.caller_step("restore_state")
        yield EngineCall("restore_state", self.engine.restore)
        assert self._saved is not None, "the law allows a restore only after a backup"
        slots, texts = self._saved
        self.slots = {row: list(table) for row, table in slots.items()}
        self.passes.texts = {row: list(known) for row, known in texts.items()}

    @operation
    def clear(self) -> Calls:
        """Every page becomes free."""
        self.law.caller_step("clear")
        yield EngineCall("clear", self.engine.clear)
        self.slots = {row: [] for row in self.slots}
        self.passes.texts.clear()

    @operation
    def bad(self, kind: BadCall, row: int) -> Calls:
        """Bad input: the engine must answer with a clear error, and nothing may change.

        The end of a group is bad input only where none is open; else ``free_padding`` is sent in its place.
        """
        sent = "free_padding" if kind == "end_group" and self.law.state.group else kind
        yield refusing(lambda: self.engine.bad(sent, row), self.law, kind)
