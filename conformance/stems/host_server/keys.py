"""The numbers of keys and of copies in runs of ``host_server``: a key is the text up to a page's end, in one pool.

A server computes any number of texts, and the law is evaluated over all numbers of keys and of copies. So a run begins
with few, and a number is given out again when nothing is of its key any more; where all are in use, there come to be
more.
"""

from __future__ import annotations

from conformance.driver.lockstep import Law
from spec.finite import Domain
from spec.host_tier_state import ABSENT, HostTierState, blocks_of, copies, key_of
from spec.in_flight import NO_JOB, flies
from spec.logic import but

MORE_KEYS, MORE_COPIES = 16, 4  # so many come at a time


def with_more_keys(st: HostTierState) -> HostTierState:
    """The state with more numbers of keys, of which nothing is. Each key has a text of its own, of its number."""
    first = st.every_key.size + 1
    last = first + MORE_KEYS - 1
    tells = st.tells
    for key in range(first, last + 1):
        tells = tells.put((key, 0), key)
    return but(st, every_key=Domain(1, last), tells=tells)


def with_room_for_copy(st: HostTierState) -> tuple[HostTierState, int]:
    """The state, where it must be with more numbers of copies, and a number that no copy in flight has."""
    free = next((int(number) for number in copies(st).items() if st.flight.kind(number) == NO_JOB), None)
    if free is not None:
        return st, free
    known = copies(st).size
    return but(st, flight=but(st.flight, jobs=Domain(1, known + MORE_COPIES))), known + 1


def with_room_for_entry(st: HostTierState, blocks: int) -> tuple[HostTierState, int]:
    """The state, where it must be with more blocks, and a block beyond the first ``blocks`` that no copy in flight
    uses: an entry of a storage behind the host.
    """
    busy = {int(block) for (_, block), used in st.flight.uses.items() if used}
    known = blocks_of(st).size
    free = next((block for block in range(blocks + 1, known + 1) if block not in busy), None)
    if free is not None:
        return st, free
    return but(st, flight=but(st.flight, blocks=Domain(1, known + MORE_COPIES))), known + 1


class KeyNumbers:
    """The number of each key that a slot or a block holds, or that a copy is of.

    A key is named by its pool and by the number that its prefix has in shadow memory. A fetch from a storage has keys
    of its own beside these, which tell what the key of the text tells.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str | int, ...], int] = {}
        self._keys: dict[int, tuple[str | int, ...]] = {}  # by number

    def number(self, key: tuple[str | int, ...], law: Law, told: int | None = None) -> int:
        """The number of the key. ``told``: the key whose text it tells, itself by default. The law's state gets more
        numbers where all are in use.
        """
        if key not in self._numbers:
            number = self._unused(law.state, told)
            if number is None:
                law.state = with_more_keys(law.state)
                number = self._unused(law.state, told)
                assert number is not None, "there are more numbers now"
            law.state = but(law.state, tells=law.state.tells.put((number, 0), number if told is None else told))
            self._numbers[key], self._keys[number] = number, key
        return self._numbers[key]

    def _unused(self, st: HostTierState, told: int | None) -> int | None:
        """A number that no key has, or ``None`` where all are in use. ``told``: a number that stays in use, since the
        key that is about to get a number tells its text.
        """
        every = [int(key) for key in st.every_key.items()]
        if len(self._keys) == len(every):
            used = _used(st) | ({told} if told is not None else set())
            for number in [number for number in every if number not in used]:
                del self._numbers[self._keys.pop(number)]
        return next((number for number in every if number not in self._keys), None)


def _used(st: HostTierState) -> set[int]:
    """The keys of which something is, or is in flight, and those whose text they tell."""
    used = {int(st.block_text(block)) for block in blocks_of(st).items()}
    used |= {int(st.text(slot, part)) for slot in st.slots.items() for part in st.parts.items()}
    there = {int(key_of(st, job)) for job in copies(st).items() if flies(st.flight, job)}
    there |= {int(key) for key in st.every_key.items() if st.phase(key) != ABSENT}
    return used | there | {int(st.tells(key, 0)) for key in there}
