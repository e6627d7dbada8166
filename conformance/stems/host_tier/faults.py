"""Known bugs of tiers of host memory, each as a wrong transition of the law and as a faulty manager."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from conformance.stems.fault import Fault
from conformance.stems.host_tier.manager import HostManager, host_manager
from conformance.stems.host_tier.protocol import FOUND, PENDING
from proofs import host_tier as wrong
from proofs.hints import Transition, altered, unchosen
from spec import host_tier as law
from spec.host_tier_state import NO_SLOT, HostTierState
from spec.logic import Number, Step, Truth

# Wrong transitions that are no mutants of the law.


def promises_uncounted(st: HostTierState, key: Number) -> Step[HostTierState]:
    """A promise is not counted."""
    return altered(law.promise(st, key), refs=st.refs)


def finds_what_waits(st: HostTierState, key: Number, found: Truth) -> Step[HostTierState]:
    """A key is found before its copy has ended."""
    return unchosen(law.find(st, key, found), "a key is found only after its copy ended well")


def withdraws_twice(st: HostTierState, key: Number) -> Step[HostTierState]:
    """The end of one load takes two promises back."""
    return altered(law.withdraw(st, key), refs=st.refs.put(key, st.refs(key) - 2))


# Faulty managers.


class PromisesNothing(HostManager):
    """A load is told its slots, and nothing keeps its keys on the host."""

    def promise(self, request: int, keys: Sequence[int]) -> list[int]:
        """Names the slots alone."""
        del request
        return [self.slot[key] for key in keys]


class PublishesWhatFailed(HostManager):
    """The end of a copy is not asked how it went."""

    def stored(self, request: int, keys: Sequence[int], well: bool) -> None:
        """Publishes the keys."""
        del well
        super().stored(request, keys, well=True)


class FindsWhatIsWritten(HostManager):
    """A key is found from the moment at which it gets a slot."""

    def look_up(self, request: int, key: int) -> str:
        """Finds each key that has a slot."""
        found = super().look_up(request, key)
        return FOUND if found == PENDING else found


class EvictsUnderLoads(HostManager):
    """Eviction asks whether a key is published, and not whether a load reads it."""

    def unneeded(self, offered: Collection[int]) -> list[int]:
        """The keys that are published."""
        return [key for key in self.slot if self.refs[key] >= 0 and key not in offered]


class FreesTwiceOver(HostManager):
    """The slot of a key that leaves the host is free twice."""

    def forget(self, key: int) -> None:
        """Gives the slot back once more."""
        slot = self.slot[key]
        super().forget(key)
        self.free.append(slot)


class LeaksFailedSlots(HostManager):
    """A store that failed keeps its slot."""

    def stored(self, request: int, keys: Sequence[int], well: bool) -> None:
        """Forgets a key that failed without its slot."""
        slots = len(self.free)
        super().stored(request, keys, well)
        if not well:
            del self.free[slots:]


class WithdrawsTwice(HostManager):
    """The end of a load is counted twice."""

    def loaded(self, request: int, keys: Sequence[int]) -> None:
        """Takes two promises of each key back."""
        super().loaded(request, [*keys, *keys])


class ResetsKeysAlone(HostManager):
    """A reset forgets the keys, and not that their slots are free now."""

    def reset(self) -> None:
        """Leaves the free slots as they are."""
        free = self.free
        super().reset()
        self.free = free


class PublishesAtOnce(HostManager):
    """A key is published as soon as it has a slot."""

    def offer(self, request: int, keys: Sequence[int]) -> Any:
        """Publishes what is stored."""
        answer = super().offer(request, keys)
        if answer is not None:
            self.refs |= dict.fromkeys(answer.stored, 0)
        return answer


class EvictsWhatIsWritten(HostManager):
    """Eviction takes keys whose copies are under way, too."""

    def unneeded(self, offered: Collection[int]) -> list[int]:
        """The keys that nobody was promised."""
        return [key for key in self.slot if self.refs[key] <= 0 and key not in offered]


def any_key(st: HostTierState) -> Iterator[tuple[int, bool]]:
    """Calls to try: each key is found."""
    yield from ((key, True) for key in st.every_key.items())


def any_slot(st: HostTierState) -> Iterator[tuple[int, int]]:
    """Calls to try: each key that has a slot is evicted."""
    yield from ((key, st.slot(key)) for key in st.every_key.items() if st.slot(key) != NO_SLOT)


def bug(
    name: str,
    sentence: str,
    spec: dict[str, Transition],
    kind: Callable[..., HostManager],
    search: dict[str, Any] | None = None,
) -> Fault:
    """A known bug of a tier of host memory."""
    return Fault(name, "host_tier", sentence, spec, {"kind": kind}, search or {}, base=host_manager)


FAULTS = (
    bug(
        "load_is_not_protected",
        "A key is loaded and nothing keeps it on the host until the load has ended.",
        {"promise": promises_uncounted},
        PromisesNothing,
    ),
    bug(
        "failed_store_is_found",
        "A copy to the host that failed is published: another text is found under its key.",
        {"publish": wrong.publishes_what_failed},
        PublishesWhatFailed,
    ),
    bug(
        "found_while_written",
        "A look-up finds a key whose copy to the host has not ended.",
        {"find": finds_what_waits},
        FindsWhatIsWritten,
        {"moves": {**wrong.MOVES, "find": any_key}},
    ),
    bug(
        "evicted_under_a_load",
        "A key is evicted while a load reads its slot.",
        {"evict": wrong.evicts_what_was_promised},
        EvictsUnderLoads,
    ),
    bug(
        "host_slot_freed_twice",
        "The slot of a key that leaves the host is free twice, so that two keys get it.",
        {"reserve": wrong.reserves_a_taken_slot},
        FreesTwiceOver,
    ),
    bug(
        "failed_store_leaks",
        "The slot of a store that failed never becomes free again.",
        {"discard": wrong.discards_uncounted},
        LeaksFailedSlots,
    ),
    bug(
        "load_ends_twice",
        "The end of one load takes two promises back: another load of the key loses its protection.",
        {"withdraw": withdraws_twice},
        WithdrawsTwice,
    ),
    bug(
        "reset_keeps_slots_taken",
        "A reset forgets the keys of the host, and their slots stay taken.",
        {"reset": wrong.resets_uncounted},
        ResetsKeysAlone,
    ),
    bug(
        "found_when_reserved",
        "A key is published when it gets its slot, before its copy to the host has ended.",
        {"reserve": wrong.reserves_as_found},
        PublishesAtOnce,
    ),
    bug(
        "evicted_while_written",
        "A key is evicted while its copy to the host is under way, and its slot is handed out.",
        {"evict": wrong.evicts_what_is_written},
        EvictsWhatIsWritten,
        {"moves": {**wrong.MOVES, "evict": any_slot}},
    ),
)
