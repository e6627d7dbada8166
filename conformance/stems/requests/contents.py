"""The forward passes that the operations on requests stand for, in runs of ``session_trim`` and ``cache``.

The run says which tokens a pass computes; the slots are those that the engine shows. Passes act in the order in which
they are launched, as kernels on one stream do. An engine that overlaps two steps launches a pass before it knows the
result of the pass before it. Such a pass may compute a token that nobody needs, after the end of an answer. Its writes
come before those of every later pass, so the order of the operations is the order of the writes.

A step that ends between the allocation of its slots and their use has no pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from conformance.driver.forward import Pools, reads, write
from conformance.driver.shadow import EMPTY, FULL, STATES, SWA, Shadow
from conformance.stems.mamba_slots.protocol import MambaSlotsSnapshot, SlotNames
from conformance.stems.requests.request import RunRequest
from conformance.stems.session_trim.protocol import RowSnapshot, SessionTrimSnapshot

OWN = 0  # the place of the own state among the slots that a request names
NO_SLOTS = (0, 0, 0)


class RequestPasses:
    """What requests compute.

    ``window``: the tokens that the sliding-window layers read before a token; ``None`` in a model without such layers.
    ``alone``: the model has no other layers, so that there is one pool, the full one. ``prompts``: its layers read the
    whole prompt, too.
    ``seen``: asks for the last snapshot of rows and pools. ``computed``: how many tokens of each request that runs are
    computed, as its passes have it.
    """

    def __init__(
        self,
        shadow: Shadow,
        page_size: int,
        window: int | None,
        seen: Callable[[], SessionTrimSnapshot],
        *,
        alone: bool = False,
        prompts: bool = False,
    ) -> None:
        self.shadow, self.page_size, self.window, self._seen = shadow, page_size, window, seen
        self.alone, self.prompts = alone, prompts
        self.computed: dict[int, int] = {}
        self.states: MambaSlotsSnapshot | None = None  # as the engine shows them, in a cache with mamba states
        self._names: dict[int, str] = {}
        self._ended: set[int] = set()

    # Requests.

    def begin(self, request: int, known: RunRequest, prefix: int) -> None:
        """A request goes on after ``prefix`` tokens that are computed already.

        Where the engine does not show which states it copies, the state that the request begins with is taken to be
        right.
        """
        self.computed[request] = prefix
        if request in self._ended:
            self._names[request] = f"request {request} (since step {self.shadow.step})"
            self._ended.remove(request)
        if prefix and self.states is not None and self.states.copies is None:
            self._write_state(request, OWN, self._prefixes(known, prefix)[-1])

    def ended(self, request: int) -> None:
        """A request has ended; its number may be another request's from now on."""
        self._ended.add(request)

    def name(self, request: int) -> str:
        """The request, as reader and writer of slots. A number that another request had before tells since when."""
        return self._names.get(request, f"request {request}")

    # Passes.

    def prefill(self, request: int, known: RunRequest, upto: int) -> None:
        """A pass computes the input of a request up to ``upto`` tokens."""
        self.launch([(request, known, upto)])

    def decode(self, batch: Sequence[tuple[int, RunRequest]]) -> None:
        """One pass computes the last known token of each request."""
        self.launch([(request, known, self.computed.get(request, 0) + 1) for request, known in batch])

    def verified(self, request: int, known: RunRequest, count: int) -> None:
        """A pass over a draft has computed its tokens; ``count`` of them are accepted, and are tokens of the text."""
        self.launch([(request, known, self.computed.get(request, 0) + count)])

    def launch(self, batch: Sequence[tuple[int, RunRequest, int]], written: Mapping[int, int] = {}) -> None:
        """One forward pass: the slots of all new tokens are written, then each request reads what it needs.

        ``written``: up to where the pass writes the slots of a request, where that is further: tokens of a draft that
        are not accepted are no tokens of its text.
        """
        shadow, pools = self.shadow, self._pools()
        done = []
        for request, known, upto in batch:
            prefixes, slots = self._prefixes(known, upto), self._slots(request, upto)
            now, who, ahead = self.computed.get(request, 0), self.name(request), written.get(request, upto)
            if ahead > upto:
                guessed = shadow.texts.prefixes(range(-1, upto - ahead - 1, -1), prefixes[-1])
                write(shadow, who, prefixes + guessed, self._slots(request, ahead), now, ahead, pools)
            else:
                write(shadow, who, prefixes, slots, now, upto, pools)
            prompt = min(len(known.tokens), now) if self.prompts else 0
            done.append((request, who, prefixes, slots, now, upto, prompt))
        for request, who, prefixes, slots, now, upto, prompt in done:
            shadow.note(shadow.read(FULL, slots[:prompt], prefixes[:prompt], who))
            shadow.note(reads(shadow, who, prefixes, slots, now, pools, upto))
            self._advance(request, prefixes, now, upto)
            self.computed[request] = upto

    def writes(self, request: int, slots: Sequence[int]) -> list[tuple[str, int]]:
        """The pools and slots that a pass writes which computes a request's tokens into these full slots."""
        pools, state = self._pools(), self._state(request, OWN)
        swa = pools.swa(slots) if pools.mapping is not None else ()
        return [*((FULL, at) for at in slots), *((SWA, at) for at in swa), *([(STATES, state)] if state else [])]

    def transferred(self, request: int, known: RunRequest, upto: int) -> None:
        """What a request has behind its cached prefix is computed elsewhere and sent here. It has SWA slots only where
        the mapping has a slot.
        """
        prefixes, slots = self._prefixes(known, upto), self._slots(request, upto)
        write(self.shadow, self.name(request), prefixes, slots, self.computed.get(request, 0), upto, self._pools())
        self._write_state(request, OWN, prefixes[upto - 1] if upto else EMPTY)
        self.computed[request] = upto

    def draft(self, request: int, known: RunRequest, upto: int) -> None:
        """A pass computes the tokens of a draft up to ``upto``. Nobody's text has these tokens, until the draft is
        verified.
        """
        now = self.computed.get(request, 0)
        prefixes, slots, pools = self._prefixes(known, now), self._slots(request, upto), self._pools()
        last = prefixes[-1] if prefixes else EMPTY
        prefixes += self.shadow.texts.prefixes(range(-1, now - upto - 1, -1), last)
        write(self.shadow, self.name(request), prefixes, slots, now, upto, pools)
        self.shadow.note(reads(self.shadow, self.name(request), prefixes, slots, now, pools))

    # What a pass needs to know.

    def _pools(self) -> Pools:
        if self.window is None:
            return Pools()
        return Pools(None if self.alone else self._seen().pools.mapping, self.window, self.alone)

    def _prefixes(self, known: RunRequest, upto: int) -> list[int]:
        """The numbers of the prefixes of a request's text. A token that its text does not have is nobody's."""
        text = known.text[:upto]
        found = self.shadow.texts.prefixes(text)
        missing = range(-1, len(text) - upto - 1, -1)
        return found + self.shadow.texts.prefixes(missing, found[-1] if found else EMPTY)

    def _slots(self, request: int, upto: int) -> list[int]:
        """The full slots of the request's tokens, 0 where the engine shows none."""
        view: RowSnapshot | None = self._seen().requests.get(request)
        slots = [] if view is None else view.slots[:upto]
        return slots + [0] * (upto - len(slots))

    def prefix_copied(self, copies: Sequence[tuple[int, int]]) -> None:
        """The KV cache of tokens was copied in this order, each from a full slot to another."""
        for source, target in copies:
            self.shadow.copy(FULL, source, target)

    # Mamba states.

    def copied(self, seen: MambaSlotsSnapshot) -> None:
        """The engine has copied states, and shows its states now."""
        for source, target in seen.copies or ():
            self.shadow.copy(STATES, source, target)
        self.states = seen

    def tracked(self, request: int, known: RunRequest) -> None:
        """The state at the last page boundary is written to the track that is written next."""
        if self.states is None:
            return
        upto = self.computed.get(request, 0) // self.page_size * self.page_size
        following = self.states.requests.get(request, SlotNames()).next
        self._write_state(request, 1 + following, self._prefixes(known, upto)[-1] if upto else EMPTY)

    def tracks(self, request: int, known: RunRequest, slot: int, upto: int) -> None:
        """A pass has written the state after ``upto`` tokens to a slot of the request's track buffer."""
        self.shadow.write(STATES, [slot], [self._prefixes(known, upto)[-1] if upto else EMPTY], self.name(request))

    def _advance(self, request: int, prefixes: Sequence[int], now: int, upto: int) -> None:
        """A pass reads the state that the request has, and leaves in its place the state after the new tokens. A pass
        over the first tokens of a text reads no state.
        """
        if self.states is None:
            return
        slot = self._state(request, OWN)
        if now:
            self.shadow.note(self.shadow.read(STATES, [slot], [prefixes[now - 1]], self.name(request), now - 1))
        self._write_state(request, OWN, prefixes[upto - 1])

    def _state(self, request: int, role: int) -> int:
        """The state slot of a request that the kernels write and read, 0 for an absent one."""
        return 0 if self.states is None else self.states.rows.get(request, NO_SLOTS)[role]

    def _write_state(self, request: int, role: int, prefix: int) -> None:
        if self.states is not None:
            self.shadow.write(STATES, [self._state(request, role)], [prefix], self.name(request))
