"""What an engine must implement to be driven as the stem ``mamba_slots``: mamba states of requests and nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from conformance.driver.protocol import Engine, Key

Three = tuple[int, int, int]  # the state slots of the own state, of the first and of the second track; 0: absent
NO_SLOTS: Three = (0, 0, 0)


class SlotNames(NamedTuple):
    """The state slots that a request's record or a session's slot names.

    ``next``: which track is written next, 0 or 1. The snapshot has 0 for an absent slot, whatever the engine itself
    writes.
    """

    slots: Three = NO_SLOTS
    next: int = 0


@dataclass(frozen=True)
class MambaSlotsSnapshot:
    """The mamba state slots as they are now.

    ``free``: the free list. ``available``: the available size that the engine reports, in state slots. ``waiting``:
    slots that an open group has set aside and nobody has taken yet. ``requests``: what the record of each request
    names, also of requests that are gone if the engine keeps the record. ``rows``: what the kernels read for each
    request's row. ``sessions``: what each session's slot names. ``nodes``: the state slot of each tree node that has
    one, by ``Key``. ``copies``: the states that were copied since the snapshot before, in order, each as the slot that
    was read and the slot that was written; ``None`` in an engine that does not show this. ``at_once``: the slots
    that were written by those of these copies that do not run in the order of the forward passes, but beside the passes
    in flight, as on another stream of the device.
    """

    free: list[int]
    available: int
    waiting: list[int] = field(default_factory=list)
    requests: Mapping[int, SlotNames] = field(default_factory=dict)
    rows: Mapping[int, Three] = field(default_factory=dict)
    sessions: Mapping[int, SlotNames] = field(default_factory=dict)
    nodes: Mapping[Key, int] = field(default_factory=dict)
    copies: Sequence[tuple[int, int]] | None = None
    at_once: frozenset[int] = frozenset()


class MambaSlotsEngine(Engine, Protocol):
    """A pool of mamba state slots, with requests, sessions and a tree that own them.

    Configuration: ``size`` (state slots), ``requests``, ``sessions`` (how many), ``tree`` (for an engine that
    has several: one of those that it declares, ``conformance.stems.kinds``). The track buffer of a request:
    ``buffered`` (it has one), ``doubled`` (of two slots), ``lazy`` (the second slot exists only around a tracking
    boundary).
    """

    def match(self, request: int, tokens: list[int], session: int, again: bool) -> Key | None:
        """A request comes and matches its prefix.

        Returns the tree node of whose state it got a copy, ``None`` if it got none. ``tokens``: its input; for a
        session's later turn the tokens after the session's text. Such a turn takes over the states of the session's
        slot and gets no copy. ``again``: the request object that was here before comes again. Raises ``OutOfMemory``
        if there is no slot for the copy; the request is then gone.
        """

    def admit(self, requests: list[int]) -> None:
        """A batch of requests gets its rows, and the state slots and track buffers that the requests lack.

        The tree may evict states for it. Raises ``OutOfMemory`` if there are too few slots for the whole batch. A
        request that runs already keeps what it has.
        """

    def track(self, request: int) -> None:
        """A tracking boundary: the state is written to the next slot of the track buffer.

        Then the other slot is next, unless the buffer is lazy.
        """

    def boundary(self, request: int) -> None:
        """Before a tracking boundary a lazy track buffer gets its second slot.

        If none is free, it stays without; that is no error.
        """

    def settle(self, request: int) -> None:
        """After a tracking boundary a lazy track buffer gives back the slot that is not written next."""

    def slide(self, request: int) -> None:
        """The request decodes so long that its window moves past the tokens after which its state was tracked."""

    def cache(self, request: int) -> None:
        """A request that runs puts its newest state into the tree (``cache_unfinished_req``).

        Raises ``OutOfMemory`` if there is no slot for a copy.
        """

    def finish(self, request: int) -> None:
        """A request ends.

        A session's turn saves its slots in the session's slot. Any other request may give its newest state to the
        tree, and frees the rest.
        """

    def abort(self, request: int) -> None:
        """A request that runs is aborted."""

    def retract(self, request: int) -> None:
        """A request that runs gives up its row for lack of memory, and may come again."""

    def withdraw(self, request: int) -> None:
        """A request that waits is aborted. It may have a copy of a state, or the states of its session."""

    def close(self, session: int) -> None:
        """A session ends while no request of it is here. Its slot frees its states."""

    def evict(self, states: int) -> None:
        """Asks the tree to free so many states. It frees only states that no request has locked."""

    def begin_group(self, need: int) -> None:
        """Opens a group, which sets ``need`` state slots aside for a batch, or none if fewer are free.

        Groups may nest.
        """

    def end_group(self) -> None:
        """Ends the innermost group. The end of the outermost group frees the slots that nobody took."""

    def clear(self) -> None:
        """Frees every slot, as when the cache is flushed.

        Sent while no request is here. Afterwards tree and sessions are empty, and no group is open.
        """

    def bad(self, kind: str) -> None:
        """Makes one call of its own with bad input.

        It must raise ``ValueError``, ``TypeError`` or ``RuntimeError`` and change nothing. ``kind``: see ``BAD`` in
        conformance/stems/mamba_slots/rules.py.
        """

    def snapshot(self) -> MambaSlotsSnapshot:
        """Reads lists, records, rows, sessions and tree states as they are now, and changes nothing.

        Sent once after each call.
        """
