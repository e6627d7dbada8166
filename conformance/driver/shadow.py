"""A shadow of an engine's memory: what each slot was last computed for.

A forward pass computes the KV cache of a token from all tokens before it. So a slot does not hold a token, it holds a
*prefix*: the text up to this token, and whatever else the computation depends on. ``PrefixNumbers`` gives each prefix a
number. What else the computation depends on, such as a LoRA adapter or a salt, is a part of each token id
(``requests.MARK``). ``Shadow`` keeps the number that each slot holds, who wrote it and in which operation, and finds a
slot that does not hold what its reader needs. Nothing here depends on an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

EMPTY = 0  # the prefix without a token
NOBODY = ""
FULL, SWA, STATES = "full", "SWA", "state"  # the pools
BLOCKS = "block"  # a pool of blocks: what holds a prefix is a whole block, and texts count blocks
BLOCK_SLOTS = "block slot"  # a pool of blocks whose slots hold tokens
OTHERS_OF_ITS_OWN = {STATES: "a state of its own after other tokens", BLOCKS: "another block of its own"}
READS_OWN = "reads_own_content"
READS_OWN_SENTENCE = "What a request reads was computed for its own tokens."


class PrefixNumbers:
    """The number of each prefix of a text. Two prefixes have one number if and only if their tokens are equal."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def longer(self, prefix: int, token: int) -> int:
        """The number of ``prefix`` and one more token. Token ids are integers of any sign."""
        return self._numbers.setdefault((prefix, token), len(self._numbers) + 1)

    def prefixes(self, tokens: Iterable[int], before: int = EMPTY) -> list[int]:
        """The number of the prefix that ends at each of ``tokens``, which follow the prefix ``before``."""
        found = []
        for token in tokens:
            before = self.longer(before, token)
            found.append(before)
        return found


class SlotContent(NamedTuple):
    """What a slot holds: the number of a prefix, who wrote it, and in which operation (from 1)."""

    prefix: int
    writer: str
    step: int


class WrongSlot(NamedTuple):
    """A slot that does not hold what its reader needs. In a pool of blocks a slot is a block.

    ``reader``: who reads. ``writer``: who wrote what the slot holds, empty where nobody wrote it. ``pool``: the name of
    the slot's pool. ``slot``: 0 where the reader has no slot. ``token``: the position of the token that the reader
    needs, in a pool of blocks its place in the table. ``step``: the operation in which it reads; ``written``: the
    operation in which the slot was written, 0 where nobody wrote it. ``where``: which token should be in which slot, in
    words, where the numbers do not say it.
    """

    reader: str
    writer: str
    pool: str
    slot: int
    token: int
    step: int
    written: int
    where: str = ""

    @property
    def reads(self) -> str:
        """What the reader reads, in words."""
        if self.slot == 0:
            return "nothing"
        if self.writer == NOBODY:
            return f"a {'block' if self.pool == BLOCKS else 'slot'} that nobody has written"
        if self.writer == self.reader:
            return OTHERS_OF_ITS_OWN.get(self.pool, "another token of its own")
        return f"the tokens of {self.writer}" if self.writer.endswith(")") else f"{self.writer}'s tokens"

    @property
    def of_another(self) -> bool:
        """The slot holds what somebody else wrote."""
        return self.slot != 0 and self.writer not in (NOBODY, self.reader)

    def __str__(self) -> str:
        if self.where:
            return f"{self.reader} reads {self.reads} in step {self.step}: {self.where}"
        if self.pool == BLOCKS:
            wrote = f", which {self.writer} wrote in step {self.written}" if self.writer else ""
            where = f"the block at place {self.token} of its table is block {self.slot}{wrote}"
            return f"{self.reader} reads {self.reads} in step {self.step}: {where}"
        where = f"the state after token {self.token}" if self.pool == STATES else f"token {self.token}"
        if self.slot:
            where += f" of its text should be in slot {self.slot} of the {self.pool} pool"
            where += f", which {self.writer} wrote in step {self.written}" if self.writer else ""
        else:
            where += f" of its text has no slot in the {self.pool} pool"
        return f"{self.reader} reads {self.reads} in step {self.step}: {where}"


class Shadow:
    """What each slot of each pool holds.

    ``step``: the number of the operation that is being done, from 1. ``wrong``: what the operation has read first that
    was not its reader's own, ``None`` if nothing was.
    """

    def __init__(self) -> None:
        self.texts = PrefixNumbers()
        self.step = 0
        self.wrong: WrongSlot | None = None
        self._held: dict[str, dict[int, SlotContent]] = {}

    def begin(self, step: int) -> None:
        """An operation begins."""
        self.step, self.wrong = step, None

    def note(self, wrong: WrongSlot | None) -> None:
        """Keeps what a pass has read that was not its reader's own. The first one of an operation stays."""
        self.wrong = self.wrong or wrong

    def anything(self) -> bool:
        """Somebody has written a slot."""
        return any(self._held.values())

    def holds(self, pool: str, slot: int) -> SlotContent | None:
        """What a slot holds, ``None`` where nobody has written it."""
        return self._held.get(pool, {}).get(slot)

    def write(self, pool: str, slots: Iterable[int], prefixes: Iterable[int], writer: str) -> None:
        """A forward pass of ``writer`` writes one prefix into each slot. A write to slot 0, the padding, is lost."""
        held = self._held.setdefault(pool, {})
        for slot, prefix in zip(slots, prefixes, strict=True):
            if slot:
                held[slot] = SlotContent(prefix, writer, self.step)

    def copy(self, pool: str, source: int, target: int) -> None:
        """What ``source`` holds is copied to ``target``."""
        held = self._held.setdefault(pool, {})
        if source in held:
            held[target] = held[source]
        else:
            held.pop(target, None)

    def read(
        self, pool: str, slots: Sequence[int], prefixes: Sequence[int], reader: str, first: int = 0
    ) -> WrongSlot | None:
        """The first of ``slots`` that does not hold its prefix, ``None`` if each does.

        ``first``: the position of the first token among the reader's tokens.
        """
        held = self._held.get(pool, {})
        for at, (slot, prefix) in enumerate(zip(slots, prefixes, strict=True), start=first):
            found = held.get(slot) if slot else None
            if found is None or found.prefix != prefix:
                writer, written = (found.writer, found.step) if found else (NOBODY, 0)
                return WrongSlot(reader, writer, pool, slot, at, self.step, written)
        return None
