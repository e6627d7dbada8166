"""What the slots of a server hold, on the device and on the host, and the texts of its requests.

The law says what each slot holds by its own account. This is the account of the forward passes and of the copies
themselves, token by token, also after a law was broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conformance.driver.shadow import EMPTY, FULL, NOBODY, Shadow
from conformance.stems.host_server.protocol import HostStep
from conformance.stems.host_tier.contents import HOST
from conformance.stems.requests.request import RunRequest, token
from conformance.stems.server.protocol import NOT_SAMPLED, ServedRequest, ServerEvent, ServerPass


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

    def passes(self, one: ServerPass, before: Sequence[int]) -> list[tuple[int, int]]:
        """A forward pass was launched: it reads the slots ``before`` its tokens, and writes those of its tokens.

        Returns each block that it writes to, with the prefix that ends with the block where the block holds a page of
        this text now, ``EMPTY`` where it does not.
        """
        known = self.requests[one.request]
        if (at := one.sampled.start - len(known.tokens)) >= 0:
            known.sampled[at:] = [token(n, known.fork) if one.samples else NOT_SAMPLED for n in one.sampled]
        prefixes = self.shadow.texts.prefixes(known.text[: one.end])
        reader = f"request {one.request}"
        self.shadow.note(self.shadow.read(FULL, before, prefixes[: one.start], reader))
        self.shadow.write(FULL, one.slots, prefixes[one.start :], reader)
        row, size = [*before, *one.slots], self.page
        starts = range(one.start // size * size, one.end, size)
        blocks = {at: row[at] // size for at in starts}
        return [(block, self._page(prefixes[at : at + size], block)) for at, block in blocks.items() if block]

    def _page(self, prefixes: Sequence[int], block: int) -> int:
        """The last of the prefixes where the block holds them, a whole page; else ``EMPTY``."""
        holds = self.shadow.read(FULL, self._places(block)[: len(prefixes)], prefixes, NOBODY) is None
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
            host, device = (HOST, self._places(slot)), (FULL, self._places(block))
            source, target = (device, host) if copy.kind == "stores" else (host, device)
            for read, written in zip(source[1], target[1], strict=True):
                found = self.shadow.holds(source[0], read)
                prefix, writer = (EMPTY, NOBODY) if found is None else (found.prefix, found.writer)
                self.shadow.write(target[0], (written,), (prefix,), writer)
        return copy
