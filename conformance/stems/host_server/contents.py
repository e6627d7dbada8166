"""What the slots of a server hold, on the device and on the host, and the texts of its requests.

The law says what each slot holds by its own account. This is the account of the forward passes and of the copies
themselves, token by token, also after a law was broken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from conformance.driver.forward import Pools, reads, write
from conformance.driver.shadow import EMPTY, FULL, NOBODY, STATES, SWA, Shadow, SlotContent, WrongSlot
from conformance.stems.host_server.protocol import HostServerEngine, HostStep
from conformance.stems.requests.request import RunRequest, token
from conformance.stems.server.protocol import NOT_SAMPLED, ServedRequest, ServerEvent, ServerPass


class LaunchedPass(NamedTuple):
    """What a forward pass computes of a request, the full slots before its tokens, and its state slot (0: none)."""

    one: ServerPass
    before: Sequence[int]
    state: int = 0


def launched(engine: HostServerEngine, passes: Sequence[ServerPass]) -> tuple[list[LaunchedPass], Pools]:
    """The requests of a forward pass that was just launched, and the pools of the device."""
    batch = [LaunchedPass(one, engine.prefix_slots(one), engine.state_slot(one)) for one in passes]
    return batch, Pools(engine.swa_mapping(), engine.shape["window"])


def on_host(pool: str) -> str:
    """The name of the pool of host memory for a pool of the device, in shadow memory."""
    return f"{pool} host"


class ServedMemory:
    """The memory of one server. ``pages``: the tokens of a slot of the host and of a block of the device, by pool.

    ``requests``: those that the server has. ``said``: the text of each session. ``copies``: those in flight.
    """

    def __init__(self, pages: Mapping[str, int], fork_of: Callable[[int], int]) -> None:
        self.pages, self._fork_of = pages, fork_of
        self.shadow = Shadow()
        self.requests: dict[int, RunRequest] = {}
        self.said: dict[int, list[int]] = {}
        self.copies: dict[int, HostStep] = {}
        self.stored: dict[int, list[SlotContent | None]] = {}

    def follow(self, event: ServerEvent) -> None:
        """Requests come and leave, and sessions end."""
        for request, known in event.requests.items():
            if event.kind == "arrived":
                self._comes(request, known.session, list(known.tokens))
            elif event.kind == "left":
                self._leaves(request, known)
        if event.kind == "closed":
            self.said.pop(event.session, None)

    def _comes(self, request: int, session: int, tokens: list[int]) -> None:
        self.requests[request] = RunRequest(session, tokens, self._fork_of(request))

    def _leaves(self, request: int, known: ServedRequest) -> None:
        if known.sent is None:  # it was retracted, and goes on later
            self._comes(request, known.session, [*known.tokens, *known.sampled])
        elif known.session:
            self.said[known.session] = [*known.tokens, *known.sampled[: known.sent]]

    def passes(self, batch: Sequence[LaunchedPass], pools: Pools) -> list[tuple[str, int, int]]:
        """A forward pass was launched: each request writes the slots of its tokens, then it reads what it needs.

        Returns each block that the pass writes to, with its pool, and with the prefix that ends with the block where
        the block holds a page of this text now, ``EMPTY`` where it does not. A block of states holds the prefix after
        which the state is.
        """
        done = []
        for one, before, state in batch:
            known = self.requests[one.request]
            if (at := one.sampled.start - len(known.tokens)) >= 0:
                known.sampled[at:] = [token(n, known.fork) if one.samples else NOT_SAMPLED for n in one.sampled]
            prefixes = self.shadow.texts.prefixes(known.text[: one.end])
            slots = [*before, *one.slots]
            write(self.shadow, f"request {one.request}", prefixes, slots, one.start, one.end, pools)
            done.append((one, prefixes, slots, state))
        written = []
        for one, prefixes, slots, state in done:
            self.shadow.note(reads(self.shadow, f"request {one.request}", prefixes, slots, one.start, pools, one.end))
            written += self._written(FULL, prefixes, slots, one.start)
            if pools.mapping is not None:
                written += self._written(SWA, prefixes, pools.swa(slots), one.start)
            if state:
                written += self._advances(one, prefixes, state)
        return written

    def _written(
        self, pool: str, prefixes: Sequence[int], slots: Sequence[int], start: int
    ) -> list[tuple[str, int, int]]:
        size = self.pages.get(pool, 1)
        starts = range(start // size * size, len(slots), size)
        blocks = [(at, max(slots[at : at + size]) // size) for at in starts]
        return [(pool, block, self._page(pool, prefixes[at : at + size], block)) for at, block in blocks if block]

    def _advances(self, one: ServerPass, prefixes: Sequence[int], state: int) -> list[tuple[str, int, int]]:
        """A pass reads the state that the request has, and leaves in its place the state after the new tokens. It may
        write another one to a track. A pass over the first tokens of a text needs a state that was cleared.
        """
        reader = f"request {one.request}"
        if one.uncleared:
            self._begins_on_left(reader, one.uncleared)
        elif one.start:
            self.shadow.note(self.shadow.read(STATES, [state], [prefixes[one.start - 1]], reader, one.start - 1))
        written = [(state, prefixes[one.end - 1])]
        if one.tracked is not None:
            slot, upto = one.tracked
            written.append((slot, prefixes[upto - 1] if upto else EMPTY))
        self.shadow.write(STATES, [slot for slot, _ in written], [prefix for _, prefix in written], reader)
        return [(STATES, slot, prefix) for slot, prefix in written if slot]

    def _begins_on_left(self, reader: str, state: int) -> None:
        """A request begins its text on a state that was not cleared."""
        left = self.shadow.holds(STATES, state) or SlotContent(EMPTY, NOBODY, 0)
        where = f"it begins its text on state slot {state}, which was not cleared"
        self.shadow.note(WrongSlot(reader, left.writer, STATES, state, 0, self.shadow.step, left.step, where))

    def copied(self, step: HostStep) -> list[tuple[str, int, int]]:
        """States were copied on the device. Returns what the targets hold, as ``passes`` does."""
        for source, target in step.pairs:
            self.shadow.copy(STATES, source, target)
        held = [(target, self.shadow.holds(STATES, target)) for _, target in step.pairs]
        return [(STATES, target, EMPTY if found is None else found.prefix) for target, found in held if target]

    def _page(self, pool: str, prefixes: Sequence[int], block: int) -> int:
        """The last of the prefixes where the block holds them, a whole page; else ``EMPTY``."""
        holds = self.shadow.read(pool, self._places(pool, block)[: len(prefixes)], prefixes, NOBODY) is None
        return prefixes[-1] if holds and len(prefixes) == self.pages.get(pool, 1) else EMPTY

    def _places(self, pool: str, number: int) -> range:
        """The slots of tokens in a block or in a slot of the host."""
        size = self.pages.get(pool, 1)
        return range(number * size, (number + 1) * size)

    def begun(self, step: HostStep) -> None:
        """A copy is in flight."""
        self.copies[step.copy] = step

    def saved(self, step: HostStep) -> None:
        """What slots of the host hold is kept in the storage. ``pairs``: slots, and entries of the storage."""
        for slot, entry in step.pairs:
            self.stored[entry] = [self.shadow.holds(on_host(step.pool), at) for at in self._places(step.pool, slot)]

    def fetched(self, step: HostStep) -> None:
        """Slots of the host hold what the storage kept."""
        for slot, entry in step.pairs:
            for place, found in zip(self._places(step.pool, slot), self.stored[entry], strict=True):
                self._holds_now(on_host(step.pool), place, found)

    def ended(self, number: int) -> HostStep:
        """A copy is done: each of its targets holds what its source held. Returns the copy."""
        copy = self.copies.pop(number)
        for slot, block in copy.pairs:
            host, device = (
                (on_host(copy.pool), self._places(copy.pool, slot)),
                (copy.pool, self._places(copy.pool, block)),
            )
            source, target = (device, host) if copy.kind == "stores" else (host, device)
            for read, written in zip(source[1], target[1], strict=True):
                self._holds_now(target[0], written, self.shadow.holds(source[0], read))
        return copy

    def _holds_now(self, pool: str, place: int, found: SlotContent | None) -> None:
        """A place holds what was found elsewhere."""
        prefix, writer = (EMPTY, NOBODY) if found is None else (found.prefix, found.writer)
        self.shadow.write(pool, (place,), (prefix,), writer)
