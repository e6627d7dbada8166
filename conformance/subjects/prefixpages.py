"""A prefix store of whole pages, in place of a radix tree: which texts it has, in which slots, and how many rows read
them. It gives back only what nobody reads, the least recently used first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

Text = tuple[int, ...]


@dataclass
class Page:
    """One page of a text: its slots, its readers, and when it was last used."""

    slots: list[int]
    readers: int = 0
    used: int = 0


class PrefixPages:
    """``pages``: by the whole text up to the page's end."""

    def __init__(self, allocator: Any, window: int) -> None:
        self.allocator, self.window, self.page_size = allocator, window, allocator.page_size
        self.pages: dict[Text, Page] = {}
        self._clock = 0

    def texts(self, tokens: Sequence[int], first: int, last: int) -> list[Text]:
        """The texts up to the end of each of the pages ``[first, last)``."""
        return [tuple(tokens[: (i + 1) * self.page_size]) for i in range(first, last)]

    def match(self, tokens: Sequence[int]) -> list[Text]:
        """The longest prefix that a request can go on from: the window before its end is there."""
        found: list[Text] = []
        for text in self.texts(tokens, 0, len(tokens) // self.page_size):
            if text not in self.pages:
                break
            found.append(text)
        while found and not all(map(self.mapped, found[max(0, len(found[-1]) - self.window) // self.page_size :])):
            found.pop()
        return found

    def mapped(self, text: Text) -> bool:
        """The page has its SWA side."""
        return int(self.allocator.full_to_swa_index_mapping[self.pages[text].slots[0]]) != 0

    def slots(self, texts: Sequence[Text]) -> torch.Tensor:
        """The slots of these pages."""
        return self._tensor([slot for text in texts for slot in self.pages[text].slots])

    def hold(self, texts: Sequence[Text], by: int) -> None:
        """So many rows more read these pages."""
        self._clock += 1
        for text in texts:
            self.pages[text].readers += by
            self.pages[text].used = self._clock

    def put(self, text: Text, slots: list[int]) -> None:
        """The store has a page; one that it had for the text is given back."""
        if text in self.pages:
            self.allocator.free(self._tensor(self.pages.pop(text).slots))
        self.pages[text] = Page(slots)

    def spare(self, text: Text) -> bool:
        """Nobody reads the page."""
        return self.pages[text].readers == 0

    def make_room(self, full: int, swa: int) -> bool:
        """Gives pages back until so many tokens are free on either side; whether they are."""
        while self.allocator.full_available_size() < full and self._drop():
            pass
        while self.allocator.swa_available_size() < swa and self._drop_swa():
            pass
        return bool(self.allocator.full_available_size() >= full and self.allocator.swa_available_size() >= swa)

    def _drop(self) -> bool:
        above = {text[: len(text) - self.page_size] for text in self.pages}
        ready = [text for text in self.pages if text not in above and self.spare(text)]
        if not ready:
            return False
        page = self.pages.pop(min(ready, key=lambda text: self.pages[text].used))
        self.allocator.free(self._tensor(page.slots))
        return True

    def _drop_swa(self) -> bool:
        ready = [text for text in self.pages if self.spare(text) and self.mapped(text)]
        if not ready:
            return False
        oldest = min(ready, key=lambda text: (self.pages[text].used, len(text)))
        self.allocator.free_swa(self._tensor(self.pages[oldest].slots))
        return True

    def _tensor(self, slots: list[int]) -> torch.Tensor:
        return torch.tensor(slots, dtype=torch.int64, device=self.allocator.device)
