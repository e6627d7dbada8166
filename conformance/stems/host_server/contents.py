"""What the slots of a server hold, on the device and on the host, and the texts of its requests.

The law says what each slot holds by its own account. This is the account of the forward passes and of the copies
themselves, token by token, also after a law was broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conformance.driver.forward import Pools, reads, write
from conformance.driver.shadow import EMPTY, FULL, NOBODY, SWA, Shadow
from conformance.stems.host_server.protocol import HostStep
from conformance.stems.requests.request import RunRequest, token
from conformance.stems.server.protocol import NOT_SAMPLED, ServedRequest, ServerEvent, ServerPass


def on_host(pool: str) -> str:
    """The name of the pool of host memory for a pool of the device, in shadow memory."""
    return f"{pool} host"


class ServedMemory:
    """The memory of one server. ``page``: the tokens of a slot of the host and of a block of the device.

    ``requests``: those that the server has. ``said``: the text of each session. ``copies``: those in flight.
    """

    def __init__(self, page: int, fork_of: Callable[[int], int]) -> None:
        self.page, self._fork_of = page, fork_of
        self.shadow = Shadow()
        self.requests: dict[int, RunRequest] = {}
        self.said: dict[int, list[int]] = {}
        self.copies: dict[int, HostStep] = {}

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

    def passes(self, batch: Sequence[tuple[ServerPass, Sequence[int]]], pools: Pools) -> list[tuple[str, int, int]]:
        """A forward pass was launched: each request writes the slots of its tokens, then it reads what it needs.

        ``batch``: of each request also the full slots before its tokens. Returns each block that the pass writes to,
        with its pool, and with the prefix that ends with the block where the block holds a page of this text now,
        ``EMPTY`` where it does not.
        """
        done = []
        for one, before in batch:
            known = self.requests[one.request]
            if (at := one.sampled.start - len(known.tokens)) >= 0:
                known.sampled[at:] = [token(n, known.fork) if one.samples else NOT_SAMPLED for n in one.sampled]
            prefixes = self.shadow.texts.prefixes(known.text[: one.end])
            slots = [*before, *one.slots]
            write(self.shadow, f"request {one.request}", prefixes, slots, one.start, one.end, pools)
            done.append((one, prefixes, slots))
        written = []
        for one, prefixes, slots in done:
            self.shadow.note(reads(self.shadow, f"request {one.request}", prefixes, slots, one.start, pools, one.end))
            written += self._written(FULL, prefixes, slots, one.start)
            if pools.mapping is not None:
                written += self._written(SWA, prefixes, pools.swa(slots), one.start)
        return written

    def _written(
        self, pool: str, prefixes: Sequence[int], slots: Sequence[int], start: int
    ) -> list[tuple[str, int, int]]:
        size = self.page
        starts = range(start // size * size, len(slots), size)
        blocks = [(at, max(slots[at : at + size]) // size) for at in starts]
        return [(pool, block, self._page(pool, prefixes[at : at + size], block)) for at, block in blocks if block]

    def _page(self, pool: str, prefixes: Sequence[int], block: int) -> int:
        """The last of the prefixes where the block holds them, a whole page; else ``EMPTY``."""
        holds = self.shadow.read(pool, self._places(block)[: len(prefixes)], prefixes, NOBODY) is None
        return prefixes[-1] if holds and len(prefixes) == self.page else EMPTY

    def _places(self, number: int) -> range:
        """The slots of tokens in a block or in a slot of the host."""
        return range(number * self.page, (number + 1) * self.page)

    def begun(self, step: HostStep) -> None:
        """A copy is in flight."""
        self.copies[step.copy] = step

    def ended(self, number: int) -> HostStep:
        """A copy is done: each of its targets holds what its source held. Returns the copy."""
        copy = self.copies.pop(number)
        for slot, block in copy.pairs:
            host, device = (on_host(copy.pool), self._places(slot)), (copy.pool, self._places(block))
            source, target = (device, host) if copy.kind == "stores" else (host, device)
            for read, written in zip(source[1], target[1], strict=True):
                found = self.shadow.holds(source[0], read)
                prefix, writer = (EMPTY, NOBODY) if found is None else (found.prefix, found.writer)
                self.shadow.write(target[0], (written,), (prefix,), writer)
        return copy
