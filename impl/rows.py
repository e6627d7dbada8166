"""Request rows as tensors: the slots of a row's tokens, its lengths, its phase, and the session whose slot keeps it.

What the host must know it knows from the lengths that it was given: they are host tensors, only the slots lie on the
device. Everything in a call is checked before anything changes, and a batch is one gather, one free or one scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from impl import checks
from impl.swa_mapping import SWATokenToKVPoolAllocator

IDLE, RUNNING, SAVED, LEAVING = range(4)
PHASES = ("idle", "running", "saved", "leaving")
LENGTHS = ("protected", "cursor", "committed", "allocated", "text")
HOST = torch.device("cpu")

Numbers = Sequence[int] | Tensor  # a host tensor: what is on the device would have to be waited for


class RowTable:
    """Rows ``0..rows - 1`` over both pools. Read the tables; only the calls write.

    ``req_to_token``: ``[rows, max_tokens]`` int32 on the device; what stands beyond the allocated length is stale.
    ``[rows]`` int64 on the host: ``phase``, and in tokens ``protected`` (the tree's part, whole pages), ``cursor``
    (below it the row has no SWA slots of its own, whole pages), ``committed``, ``allocated``, and ``text`` (what a
    session's next input begins with). ``slot``: the row of each session that has one; ``session``: the inverse.
    """

    def __init__(
        self, allocator: SWATokenToKVPoolAllocator, rows: int, max_tokens: int, window: int, device: str | torch.device
    ) -> None:
        self.allocator, self.page_size, self.device = allocator, allocator.page_size, torch.device(device)
        self.rows, self.max_tokens = checks.whole("rows", rows, 1), checks.whole("max_tokens", max_tokens, 1)
        self.window = checks.whole("window", window, 0)
        checks.index("the allocator's mapping", allocator.full_to_swa_index_mapping, self.device)
        self._looks = allocator.debug or self.device.type == "cpu"
        self.req_to_token = torch.zeros((rows, max_tokens), dtype=torch.int32, device=self.device)
        self._flat = self.req_to_token.view(-1)
        self.lengths = torch.zeros((len(LENGTHS), rows), dtype=torch.int64)
        self.protected, self.cursor, self.committed, self.allocated, self.text = self.lengths.unbind(0)
        self.phase = torch.full((rows,), IDLE)
        self.slot: dict[Hashable, int] = {}
        self.session: list[Hashable] = [None] * rows
        self._idle = list(range(rows - 1, -1, -1))

    # What a caller gives.

    def batch(self, rows: Numbers, *phases: int) -> Tensor:
        """``[n]`` int64: different rows, each in one of the phases."""
        batch = numbers("rows", rows)
        require((batch >= 0) & (batch < self.rows), "rows", lambda _: f"expected a row in 0..{self.rows - 1}", batch)
        if len(set(batch.tolist())) < batch.numel():
            raise ValueError(f"rows must be different rows, got {batch.tolist()}")
        phase = self.phase[batch]
        wanted = " or ".join(PHASES[p] for p in phases)
        fine = (phase[:, None] == torch.tensor(phases)).any(1)
        require(fine, "rows", lambda i: f"expected a row that is {wanted}, it is {PHASES[int(phase[i])]}", batch)
        return batch

    def _saved(self, sessions: Sequence[Hashable]) -> Tensor:
        """``[n]`` int64: the rows in the slots of different sessions."""
        named = names("sessions", sessions)
        phases = self.phase.tolist()
        for i, session in enumerate(named):
            if session not in self.slot or phases[self.slot[session]] != SAVED:
                raise ValueError(f"sessions[{i}]: expected a session whose slot holds a row, got {session!r}")
        return self.batch([self.slot[session] for session in named], SAVED)

    def _lengths(self, name: str, lengths: Numbers, least: Tensor, most: Tensor | None, why: str) -> Tensor:
        """``[n]`` int64 lengths, one a row, from ``least`` up to ``most`` (``[n]`` each)."""
        found = numbers(name, lengths, least.numel())
        fine = least <= found if most is None else (least <= found) & (found <= most)

        def bounds(i: int) -> str:
            upper = "on" if most is None else f"to {int(most[i])}"
            return f"expected a length from {int(least[i])} {upper} ({why})"

        require(fine, name, bounds, found)
        return found

    def _one(self, row: int, upto: int) -> tuple[Tensor, Tensor, Tensor]:
        """A row that reads its tokens no more, or still, the end of its tree's part, and a new one."""
        rows = self.batch([row], RUNNING, LEAVING)
        first, whole = self.protected[rows], self._floor(self.committed[rows])
        last = self._lengths("upto", [upto], first, whole, "committed whole pages past the tree's part")
        self._aligned("upto", last)
        return rows, first, last

    def _aligned(self, name: str, lengths: Tensor) -> None:
        require(lengths % self.page_size == 0, name, lambda _: f"expected whole pages of {self.page_size}", lengths)

    def _tree_slots(self, name: str, slots: Tensor, own: Tensor | None = None) -> None:
        """The tree's slots are whole pages, in order and (where looking is cheap) held, none of them among ``own``."""
        checks.index(name, slots, self.device)
        checks.page_multiple(f"{name}: the number of slots", slots.numel(), self.page_size)
        if not self._looks or slots.numel() == 0:
            return
        full, given = self.allocator.full_attn_allocator, slots.to(torch.int64)
        pages = checks.held_pages(name, given, full.held, self.page_size)
        if not torch.equal(full.slots(given[:: self.page_size] // self.page_size), given):
            raise ValueError(f"{name} must hold the slots of each page in order")
        if own is not None and bool(torch.isin(pages, own // self.page_size).any()):
            raise ValueError(f"{name} must be the tree's, not the pages that the row gives back")

    # Where tokens stand.

    def _floor(self, lengths: Tensor) -> Tensor:
        return lengths // self.page_size * self.page_size

    def _ceil(self, lengths: Tensor) -> Tensor:
        return -(-lengths // self.page_size) * self.page_size

    def _upload(self, host: Tensor) -> Tensor:
        return host if self.device.type == "cpu" else host.pin_memory().to(self.device, non_blocking=True)

    def _places(self, rows: Tensor, start: Tensor, stop: Tensor) -> Tensor:
        """``[sum(stop - start)]``: where these tokens stand in the flat table, row after row; no host wait."""
        lens = stop - start
        total = sum(lens.tolist())
        shift, counts = self._upload(torch.stack([rows * self.max_tokens + start - lens.cumsum(0) + lens, lens]))
        return torch.arange(total, device=self.device) + torch.repeat_interleave(shift, counts, output_size=total)

    def _read(self, rows: Tensor, start: Tensor, stop: Tensor) -> Tensor:
        """``[sum(stop - start)]`` int64: a copy of the slots of these tokens."""
        return self._flat[self._places(rows, start, stop)].to(torch.int64)

    def _write(self, places: Tensor, slots: Tensor) -> None:
        self._flat[places] = slots.to(self._flat.dtype)

    def _set(self, rows: Tensor, **tables: Tensor | int) -> None:
        for name, values in tables.items():
            getattr(self, name)[rows] = values

    def _emptied(self, rows: Tensor) -> None:
        """The rows are idle, and their sessions have no slots."""
        self.lengths[:, rows] = 0
        self.phase[rows] = IDLE
        for row in rows.tolist():
            self.slot.pop(self.session[row], None)
            self.session[row] = None
            self._idle.append(row)

    # What an engine adds up.

    def available_size(self) -> int:
        """Rows that are idle."""
        return len(self._idle)

    def session_held_tokens(self) -> int:
        """Full slots, in whole pages, of the rows in session slots that the tree does not have."""
        return self._held(self.protected)

    def session_held_swa_tokens(self) -> int:
        """SWA slots, in whole pages, of the rows in session slots that the tree does not have."""
        return self._held(torch.maximum(self.protected, self.cursor))

    def _held(self, start: Tensor) -> int:
        return sum(((self._ceil(self.allocated) - start) * (self.phase == SAVED)).tolist())

    def session_held_req_count(self) -> int:
        """Rows in session slots."""
        return self.phase.tolist().count(SAVED)

    # Looking.

    def check(self) -> None:
        """Recounts everything from the slots of the rows (the host waits). AssertionError says what differs."""
        owned: list[int] = []
        mapped: list[int] = []
        for row in range(self.rows):
            self._check_lengths(row)
            pages, swa = self._check_slots(row)
            owned += pages
            mapped += swa
        same("pages that two rows own", len(owned), len(set(owned)))
        same("SWA pages that two rows own", len(mapped), len(set(mapped)))
        held = self.allocator.full_attn_allocator.held.tolist()
        same("pages of rows that are free", [p for p in owned if held and not held[p]], [])
        same("idle rows", sorted(self._idle), [r for r, p in enumerate(self.phase.tolist()) if p == IDLE])
        inverse = {s: r for r, s in enumerate(self.session) if s is not None}
        same("rows of sessions", self.slot, inverse)

    def _check_lengths(self, row: int) -> None:
        protected, cursor, committed, allocated, text = self.lengths[:, row].tolist()
        phase = int(self.phase[row])
        idle = phase != IDLE or (not any(self.lengths[:, row].tolist()) and self.session[row] is None)
        same(f"row {row} is idle and has nothing", idle, True)
        order = 0 <= cursor <= committed <= allocated <= self.max_tokens and 0 <= protected <= committed
        same(f"row {row}: cursor <= committed <= allocated", order, True)
        same(f"row {row}: tokens beyond whole pages", (protected % self.page_size, cursor % self.page_size), (0, 0))
        kept = phase == LEAVING or cursor <= protected or cursor + self.window <= committed
        same(f"row {row} keeps its window", kept, True)
        saved = phase != SAVED or (self.session[row] is not None and committed <= text)
        same(f"row {row}: its slot keeps what the session knows", saved, True)

    def _check_slots(self, row: int) -> tuple[list[int], list[int]]:
        """The pages that the row owns, and those of the SWA pool."""
        protected, cursor, _, allocated, _ = self.lengths[:, row].tolist()
        slots = self.req_to_token[row, protected:allocated].to(torch.int64)
        pages = slots[:: self.page_size] // self.page_size
        whole = self.allocator.full_attn_allocator.slots(pages)[: slots.numel()]
        same(f"row {row}: slots in order", slots.tolist(), whole.tolist())
        swa = self.allocator.translate_loc_from_full_to_swa(slots)
        lost = (torch.arange(protected, allocated, device=self.device) < cursor).tolist()
        same(f"row {row}: tokens without SWA slots", [to == 0 for to in swa.tolist()], lost)
        return pages.tolist(), (swa[:: self.page_size][swa[:: self.page_size] > 0] // self.page_size).tolist()

    def _done(self) -> None:
        if self.allocator.debug:
            self.check()


def numbers(name: str, values: Any, count: int | None = None) -> Tensor:
    """``[n]`` int64 on the host, of a host tensor or a sequence of ints (``count`` of them, where given)."""
    if not isinstance(values, Tensor):
        values = torch.tensor(values) if len(values) else torch.zeros(0, dtype=torch.int64)
    checks.index(name, values, HOST, count)
    found: Tensor = values.to(torch.int64)
    return found


def names(name: str, values: Sequence[Hashable]) -> list[Hashable]:
    """Different sessions; ``None``, no session, may stand there several times."""
    if isinstance(values, str):
        raise TypeError(f"{name} must be a sequence of sessions, got one string")
    found = [value for value in values if value is not None]
    if len(set(found)) < len(found):
        raise ValueError(f"{name} must be different sessions, got {found}")
    return list(values)


def require(fine: Tensor, name: str, expected: Callable[[int], str], found: Tensor) -> None:
    """ValueError for the first entry of ``name`` that is not ``fine`` (``[n]`` bool on the host)."""
    flags = fine.tolist()
    if not all(flags):
        at = flags.index(False)
        raise ValueError(f"{name}[{at}]: {expected(at)}, got {int(found[at])}")


def same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"{what}: {found}, but it must be {expected}")
