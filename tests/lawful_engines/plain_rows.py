"""Request rows without any prefix cache, as in an engine that computes each prompt from its first token.

A request gets a row and pages as it grows, and gives all of them back when it ends, is aborted or is preempted. There
is no tree, no lock and no sharing, and a session is only a name: each of its turns is a request like any other. An
engine of the stem ``session_trim``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slotproof.plugin import (
    Admission,
    AllocatorSnapshot,
    Json,
    Lengths,
    RowSnapshot,
    SessionTrimSnapshot,
    SwaMappingSnapshot,
    Unsupported,
)

LACKS = (
    *("admit_tail", "reserve", "roll_back", "commit", "checkpoint", "release_swa", "overlapping_turn", "bad"),
    *("interrupted_admit", "interrupted_chunk", "interrupted_decode", "begin_group", "end_group", "close_running"),
)


@dataclass
class Running:
    """A request that runs: its row, the length of its prompt, its pages, and how many of its tokens are computed."""

    row: int
    prompt: int
    pages: list[int] = field(default_factory=list)
    length: int = 0


class PlainRows:
    """``rows`` rows over a pool of ``size`` pages."""

    fragile = False
    lacks = LACKS

    def __init__(self, rows: int, size: int, page_size: int) -> None:
        self.page_size = page_size
        self.free_rows, self.free_pages = list(range(rows)), list(range(1, size + 1))
        self.running: dict[int, Running] = {}

    def look(self, request: int, session: int, tokens: list[int]) -> int:
        """Nothing is cached."""
        del request, session, tokens
        return 0

    def admit(self, request: int, session: int, tokens: list[int], most: int) -> Admission:
        """A row, and pages for the first ``most`` tokens."""
        del session
        if not self.free_rows:
            return Admission(0, False)
        new = Running(self.free_rows[0], len(tokens))
        if not self._grow([new], min(most, len(tokens))):
            return Admission(0, False)
        self.running[request] = new
        self.free_rows.remove(new.row)
        return Admission(0, True)

    def chunk(self, request: int, most: int) -> bool:
        """Pages for the next ``most`` tokens of the prompt."""
        one = self.running[request]
        return self._grow([one], min(most, one.prompt - one.length))

    def cache(self, request: int, sampled: int | None) -> None:
        """There is no cache to put the prompt into."""

    def decode(self, requests: list[int], sampled: list[int]) -> bool:
        """Room for one token of each request, or for none of them."""
        del sampled
        return self._grow([self.running[request] for request in requests], 1)

    def slide(self, request: int) -> None:
        """No layer has a window."""

    def finish(self, request: int, sent: int) -> None:
        """The row and its pages are free."""
        del sent
        self._leave(request)

    def abort(self, request: int) -> None:
        """The row and its pages are free."""
        self._leave(request)

    def retract(self, request: int, sent: int) -> None:
        """The row and its pages are free; the request is computed again later."""
        del sent
        self._leave(request)

    def cancel(self, request: int) -> None:
        """A request that waits has nothing."""

    def close(self, session: int) -> bool:
        """A session keeps nothing between its turns."""
        del session
        return True

    def evict(self, full: int, swa: int) -> None:
        """There is nothing to evict."""

    def snapshot(self) -> SessionTrimSnapshot:
        """The rows of the requests that run, and the pool."""
        pool = AllocatorSnapshot(list(self.free_pages), [], len(self.free_pages) * self.page_size)
        shown = {
            request: RowSnapshot(one.row, Lengths(0, 0, one.length, one.length), self._slots(one)[: one.length])
            for request, one in self.running.items()
        }
        return SessionTrimSnapshot(shown, {}, list(self.free_rows), SwaMappingSnapshot.without_swa(pool))

    def _grow(self, batch: Sequence[Running], by: int) -> bool:
        """Each of the requests gets pages for ``by`` tokens more, if there are enough for all."""
        needs = [-(-(one.length + by) // self.page_size) - len(one.pages) for one in batch]
        if sum(needs) > len(self.free_pages):
            return False
        for one, need in zip(batch, needs, strict=True):
            one.pages += [self.free_pages.pop(0) for _ in range(need)]
            one.length += by
        return True

    def _leave(self, request: int) -> None:
        """The request has no row and no page any more."""
        one = self.running.pop(request)
        self.free_rows.append(one.row)
        self.free_pages += one.pages

    def _slots(self, one: Running) -> list[int]:
        """The slots of the request's pages."""
        return [page * self.page_size + offset for page in one.pages for offset in range(self.page_size)]


def make(config: Json) -> PlainRows:
    """Rows over one pool."""
    if config.get("components") != ["full"]:
        raise Unsupported("rows of a model with full attention alone")
    return PlainRows(config["rows"], config["size"], config["page_size"])
