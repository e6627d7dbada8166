"""What each slot of each block holds, as workers have written it.

All groups of layers share the blocks: a block that one group writes holds nothing of another group any more. A slot is
a block and an offset; it holds the prefix, in a group, that it was last computed for. A mamba state fills its block.
Where groups have blocks of different sizes, all blocks have the same bytes, and a slot of a group with fewer tokens in
a block has more of them: the bytes of a block are kept in so many equal parts that each slot of any group has some.

Several workers divide each block among them, by attention heads or by layers, and each has a memory of its own. What a
pass computes, all of them write; what is copied, each copies by itself. The parts of a block are numbered through all
workers: first those of worker 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import lcm
from typing import NamedTuple

from conformance.driver.shadow import EMPTY, PrefixNumbers
from conformance.stems.block_pool.protocol import NULL

FORGOTTEN = -(2**62)  # what a part of a block holds that is of before a reset of host memory


class Misread(NamedTuple):
    """A slot that a request reads and that does not hold the request's own prefix.

    ``token``: the position of the token, or the number of tokens after which the state is, where ``is_state``.
    ``block``: ``NULL`` where the request has no block there. ``holds``: what the slot holds, in words. ``writer``: the
    request whose tokens these are, ``None`` where nobody has written the slot. ``worker``: on which of several workers;
    ``None`` where there is one.
    """

    request: int
    token: int
    group: int
    block: int
    offset: int
    is_state: bool
    holds: str
    writer: int | None
    step: int
    worker: int | None = None

    @property
    def where(self) -> str:
        """Which token should be in which slot, in words."""
        what = f"the state after {self.token} tokens" if self.is_state else f"token {self.token}"
        if not self.block:
            return f"{what} of its text has no block in group {self.group}"
        on = "" if self.worker is None else f" of worker {self.worker}"
        return f"{what} of its text should be in group {self.group} in block {self.block}{on}, offset {self.offset}"

    def __str__(self) -> str:
        return f"request {self.request} reads {self.holds} in step {self.step}: {self.where}"


class WrongToken(NamedTuple):
    """A token whose slot does not hold its prefix. ``at``: its position. ``block``: ``NULL`` where there is none.
    ``part``: the first of the equal parts of the block that is wrong, of those of all workers.
    """

    at: int
    block: int
    part: int


class BlockMemory:
    """The contents of all blocks. ``sizes``: by group of layers, the slots of a block. ``workers``: how many divide
    each block among them.
    """

    def __init__(self, sizes: Sequence[int], workers: int = 1) -> None:
        self._sizes, self._groups = sizes, len(sizes)
        self._parts = lcm(*sizes)  # of a block, on one worker
        self._texts = PrefixNumbers()
        self._names: dict[int, tuple[int, int]] = {}  # the request that had a prefix first, and its last token
        self._drafts: list[int] = []  # the requests whose drafts were refused
        self._of: list[dict[int, list[int]]] = [{} for _ in range(workers)]  # by worker, its blocks

    # Numbers of contents.

    def root(self, mark: int) -> int:
        """The number of the prefix without a token, of a text with a mark."""
        return self._texts.longer(EMPTY, -mark) if mark else EMPTY

    def prefixes(self, tokens: Iterable[int], before: int) -> list[int]:
        """The number of each prefix that goes on after the prefix ``before``."""
        return self._texts.prefixes(tokens, before)

    def refused(self, count: int, request: int) -> list[int]:
        """Numbers of prefixes that no text has: those of drafts of a request that were refused."""
        first = len(self._drafts)
        self._drafts += [request] * count
        return [-2 - number for number in range(first, first + count)]

    def named(self, prefix: int, request: int, token: int) -> None:
        """Says that a prefix ends with this token of a request. Of several requests the first one stays."""
        self._names.setdefault(prefix, (request, token))

    # Writes. ``worker``: the only one that writes; without it all of them do.

    def _whose(self, worker: int | None) -> list[dict[int, list[int]]]:
        return self._of if worker is None else [self._of[worker]]

    def write(
        self, group: int, table: Sequence[int], first: int, prefixes: Sequence[int], worker: int | None = None
    ) -> None:
        """The slots of the tokens from ``first`` on get their prefixes. Without a block a write is lost."""
        size, groups = self._sizes[group], self._groups
        each = self._parts // size
        for blocks in self._whose(worker):
            for at, prefix in enumerate(prefixes, start=first):
                place = at // size
                block = table[place] if place < len(table) else NULL
                if block:
                    held = blocks.get(block)
                    if held is None:
                        held = blocks[block] = [-1] * self._parts
                    begin = at % size * each
                    held[begin : begin + each] = [2 * (prefix * groups + group)] * each

    def write_state(self, group: int, block: int, prefix: int, worker: int | None = None) -> None:
        """A block gets a state."""
        for blocks in self._whose(worker) if block else ():
            blocks[block] = [self._state(group, prefix)] * self._parts

    def clear(self, blocks: Iterable[int]) -> None:
        """Blocks hold nothing of anybody any more."""
        for block in blocks:
            for held in self._of:
                held.pop(block, None)

    def forget(self, blocks: Iterable[int], worker: int | None = None) -> None:
        """What these blocks hold is of before a reset: nobody may read it."""
        for block in blocks:
            for held in self._whose(worker):
                held[block] = [FORGOTTEN] * self._parts

    def below(self, number: int) -> list[int]:
        """The blocks with numbers below this one that hold something."""
        return [*dict.fromkeys(block for blocks in self._of for block in blocks if block < number)]

    def copy(self, source: int, target: int, worker: int | None = None) -> None:
        """What one block holds is copied to another."""
        if target:
            self.copy_all([(source, target)], worker)

    def copy_all(self, copies: Iterable[tuple[int, int]], worker: int | None = None) -> None:
        """Each source is copied to its target. All sources are read before a target is written, as by one kernel."""
        pairs = [*copies]
        for blocks in self._whose(worker):
            blocks.update([(target, [*blocks.get(source, [-1] * self._parts)]) for source, target in pairs])

    # Reads. ``worker``: the only one that reads; without it all of them do.

    def wrong(
        self, group: int, table: Sequence[int], prefixes: Sequence[int], first: int, worker: int | None = None
    ) -> WrongToken | None:
        """The first token from ``first`` on up to the last of ``prefixes`` whose slot does not hold its prefix, on the
        first worker where one does not.

        ``prefixes``: of the whole text. ``None`` if all are right.
        """
        for of in range(len(self._of)) if worker is None else (worker,):
            if (found := self._wrong(of, group, table, prefixes, first)) is not None:
                return found
        return None

    def _wrong(
        self, worker: int, group: int, table: Sequence[int], prefixes: Sequence[int], first: int
    ) -> WrongToken | None:
        size, groups, last = self._sizes[group], self._groups, len(prefixes)
        each, blocks = self._parts // size, self._of[worker]
        for place in range(first // size, -(-last // size)):
            block = table[place] if place < len(table) else NULL
            held = blocks.get(block) if block else None
            for at in range(max(first, place * size), min(last, (place + 1) * size)):
                number, begin = 2 * (prefixes[at] * groups + group), at % size * each
                if held is None or held[begin : begin + each] != [number] * each:
                    there = held or [-1] * self._parts
                    part = next(part for part in range(begin, begin + each) if there[part] != number)
                    return WrongToken(at, block, worker * self._parts + part)
        return None

    def wrong_state(self, group: int, block: int, prefix: int, worker: int | None = None) -> int | None:
        """The first part of a block that does not hold the state after a prefix; ``None`` where the block holds it."""
        number = self._state(group, prefix)
        for of in range(len(self._of)) if worker is None else (worker,):
            held = self._of[of].get(block) if block else None
            if held is None or any(each != number for each in held):
                return of * self._parts
        return None

    def worker(self, part: int) -> int | None:
        """On which of several workers a part is; ``None`` where there is one."""
        return part // self._parts if len(self._of) > 1 else None

    def _number(self, block: int, part: int) -> int:
        worker, part = divmod(part, self._parts)
        return self._of[worker].get(block, [-1] * self._parts)[part]

    def holds(self, block: int, part: int) -> str:
        """What a part of a block holds, in words."""
        if not block:
            return "nothing"
        number = self._number(block, part)
        if number == -1:
            return "a slot that nobody has written"
        if number == FORGOTTEN:
            return "what host memory had before it was reset"
        prefix, group = divmod(number // 2, self._groups)
        what = "the state after " if number % 2 else ""
        if prefix < 0:
            return f"{what}a refused draft of request {self._drafts[-2 - prefix]} in group {group}"
        request, token = self._names[prefix]
        return f"{what}token {token} of request {request} in group {group}"

    def writer(self, block: int, part: int) -> int | None:
        """The request whose tokens a part of a block holds, ``None`` where nobody has written it."""
        number = self._number(block, part) if block else -1
        if number in (-1, FORGOTTEN):
            return None
        prefix = number // 2 // self._groups
        return self._drafts[-2 - prefix] if prefix < 0 else self._names[prefix][0]

    def _state(self, group: int, prefix: int) -> int:
        return 2 * (prefix * self._groups + group) + 1
