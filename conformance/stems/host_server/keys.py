"""The numbers of keys in runs of ``host_server``: a key is the text up to the end of a page."""

from __future__ import annotations

from conformance.driver.protocol import EngineError
from spec.host_tier_state import ABSENT, NO_KEY, HostTierState, blocks_of, copies, key_of
from spec.in_flight import flies


class KeyNumbers:
    """The number of each key that a slot or a block holds, or that a copy is of. The law has few numbers, and a server
    computes any number of texts: a number is given out again when nothing is of its key any more.

    A prefix is named by its number in shadow memory.
    """

    def __init__(self) -> None:
        self._keys: dict[int, int] = {}  # by prefix
        self._prefixes: dict[int, int] = {}

    def number(self, prefix: int, st: HostTierState) -> int:
        """The number of the key whose text is this prefix. ``st``: the law's state now."""
        if prefix not in self._keys:
            number = self._unused(st)
            self._keys[prefix], self._prefixes[number] = number, prefix
        return self._keys[prefix]

    def _unused(self, st: HostTierState) -> int:
        every = [int(key) for key in st.every_key.items()]
        if len(self._prefixes) == len(every):
            used = _used(st)
            for number in [number for number in every if number not in used]:
                del self._keys[self._prefixes.pop(number)]
        found = next((number for number in every if number not in self._prefixes), None)
        if found is None:
            raise EngineError("the server has more texts in its memory than its pools have room for")
        return found


def _used(st: HostTierState) -> set[int]:
    """The keys of which something is, or is in flight."""
    used = {int(st.block_text(block)) for block in blocks_of(st).items()}
    used |= {int(st.text(slot, part)) for slot in st.slots.items() for part in st.parts.items()}
    used |= {int(key_of(st, job)) for job in copies(st).items() if flies(st.flight, job)}
    return used | {int(key) for key in st.every_key.items() if st.phase(key) != ABSENT} | {NO_KEY}
