"""Request rows that copy what is cached of their prompt, and share nothing.

A hit copies the KV of the cached pages into pages of the request's own, as engines do that keep one cache for each
request. So nobody reads a page of the cache while a request runs: there are no locks and no reference counts, and the
cache may give up any page at any time. A request that ends leaves its whole pages to the cache, as far as the cache
does not have their tokens. An engine of the stem ``session_trim``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from slotproof.plugin import (
    Admission,
    AllocatorSnapshot,
    Json,
    Lengths,
    RowSnapshot,
    SessionTrimSnapshot,
    SwaMappingSnapshot,
    TreePage,
    Unsupported,
)

LACKS = (
    *("admit_tail", "reserve", "roll_back", "commit", "checkpoint", "release_swa", "overlapping_turn", "bad"),
    *("interrupted_admit", "interrupted_chunk", "interrupted_decode", "begin_group", "end_group"),
    *("close_running", "share_prefix"),
)


@dataclass
class Running:
    """A request that runs: its row, its text so far, the length of its prompt, its pages, and its computed length."""

    row: int
    text: list[int]
    prompt: int
    pages: list[int] = field(default_factory=list)
    length: int = 0


class CopyingRows:
    """``rows`` rows and a cache over a pool of ``size`` pages.

    ``cached``: the page of each text that ends with a whole page, the least recently used first. ``copies``: the slots
    that were read and written by the copies of the last call.
    """

    fragile = False
    lacks = LACKS

    def __init__(self, rows: int, size: int, page_size: int) -> None:
        self.page_size = page_size
        self.free_rows, self.free_pages = list(range(rows)), list(range(1, size + 1))
        self.running: dict[int, Running] = {}
        self.cached: dict[tuple[int, ...], int] = {}
        self.copies: list[tuple[int, int]] = []

    def look(self, request: int, session: int, tokens: list[int]) -> int:
        """How many tokens would be copied. The last token is always computed."""
        del request, session
        return len(self._hits(tokens)) * self.page_size

    def admit(self, request: int, session: int, tokens: list[int], most: int) -> Admission:
        """A row, copies of what is cached, and pages for the next ``most`` tokens."""
        del session
        hits = self._hits(tokens)
        prefix = len(hits) * self.page_size
        new = Running(self.free_rows[0] if self.free_rows else -1, list(tokens), len(tokens))
        if new.row < 0 or not self._grow([new], min(prefix + most, len(tokens)), hits):
            return Admission(prefix, False)
        self.copies = list(zip(self._slots(hits), self._slots(new.pages), strict=False))
        self.running[request] = new
        self.free_rows.remove(new.row)
        return Admission(prefix, True)

    def chunk(self, request: int, most: int) -> bool:
        """Pages for the next ``most`` tokens of the prompt."""
        one = self.running[request]
        return self._grow([one], min(most, one.prompt - one.length))

    def cache(self, request: int, sampled: int | None) -> None:
        """The prompt goes to the cache when the request ends."""
        self.running[request].text += [] if sampled is None else [sampled]

    def decode(self, requests: list[int], sampled: list[int]) -> bool:
        """Room for one token of each request, or for none of them."""
        granted = self._grow([self.running[request] for request in requests], 1)
        for request, token in zip(requests, sampled, strict=True):
            self.running[request].text += [token] if granted else []
        return granted

    def slide(self, request: int) -> None:
        """No layer has a window."""

    def finish(self, request: int, sent: int) -> None:
        """The request leaves its pages to the cache."""
        del sent
        self._leave(request)

    def abort(self, request: int) -> None:
        """What is computed can be copied by others."""
        self._leave(request)

    def retract(self, request: int, sent: int) -> None:
        """The request copies its own pages when it comes again, if they are still there."""
        del sent
        self._leave(request)

    def cancel(self, request: int) -> None:
        """A request that waits has nothing."""

    def close(self, session: int) -> bool:
        """A session keeps nothing between its turns."""
        del session
        return True

    def evict(self, full: int, swa: int) -> None:
        """The cache gives up pages for so many tokens."""
        del swa
        self._make_room(len(self.free_pages) + -(-full // self.page_size))

    def snapshot(self) -> SessionTrimSnapshot:
        """The rows of the requests that run, the pool, the pages of the cache, and the copies of the last call."""
        pool = AllocatorSnapshot(list(self.free_pages), [], len(self.free_pages) * self.page_size)
        shown = {
            request: RowSnapshot(one.row, Lengths(0, 0, one.length, one.length), self._slots(one.pages)[: one.length])
            for request, one in self.running.items()
        }
        tree = {page: TreePage(len(text) // self.page_size - 1, False) for text, page in self.cached.items()}
        copies, self.copies = self.copies, []
        return SessionTrimSnapshot(shown, {}, list(self.free_rows), SwaMappingSnapshot.without_swa(pool), tree, copies)

    def _hits(self, tokens: list[int]) -> list[int]:
        """The cached pages of a prompt, which are used now."""
        found = []
        for end in range(self.page_size, len(tokens), self.page_size):
            if (page := self.cached.pop(text := tuple(tokens[:end]), None)) is None:
                break
            self.cached[text] = page
            found.append(page)
        return found

    def _make_room(self, wanted: int, kept: Collection[int] = ()) -> None:
        """The cache gives up pages, the least recently used first and none that is ``kept``."""
        for text in [text for text, page in self.cached.items() if page not in kept]:
            if len(self.free_pages) < wanted:
                self.free_pages.append(self.cached.pop(text))

    def _grow(self, batch: Sequence[Running], by: int, kept: Collection[int] = ()) -> bool:
        """Each of the requests gets pages for ``by`` tokens more, if there are enough for all."""
        needs = [-(-(one.length + by) // self.page_size) - len(one.pages) for one in batch]
        self._make_room(sum(needs), kept)
        if sum(needs) > len(self.free_pages):
            return False
        for one, need in zip(batch, needs, strict=True):
            one.pages += [self.free_pages.pop() for _ in range(need)]
            one.length += by
        return True

    def _leave(self, request: int) -> None:
        """The pages go to the cache, or are free: those that it has already, and the last one, which is not whole."""
        one = self.running.pop(request)
        self.free_rows.append(one.row)
        for n, page in enumerate(one.pages, start=1):
            text = tuple(one.text[: n * self.page_size])
            if n * self.page_size > one.length or text in self.cached:
                self.free_pages.append(page)
            else:
                self.cached[text] = page

    def _slots(self, pages: Sequence[int]) -> list[int]:
        """The slots of whole pages."""
        return [page * self.page_size + offset for page in pages for offset in range(self.page_size)]


def make(config: Json) -> CopyingRows:
    """Rows over one pool."""
    if config.get("components") != ["full"]:
        raise Unsupported("rows of a model with full attention alone")
    return CopyingRows(config["rows"], config["size"], config["page_size"])
