"""A session cache: request rows, streaming sessions' slots and a radix tree over one ownership of pages and states.

A request begins with what the tree has of its prompt, and holds it by a lock. What it leaves to the tree it hands over
with the pages themselves; of what the tree has already it gives its own copies back. A turn of a session leaves its row
in the session's slot, with what it holds, and the next turn goes on there. With recurrent states a request begins with
a copy of its node's, and the tree gets of a request what its newest state was tracked for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from torch import Tensor

from impl.prefixes import Match, PrefixCache, Texts
from impl.radix import ROOT
from impl.rows import RUNNING, Numbers, numbers, require

__all__ = ["Match", "SessionCache"]


class SessionCache(PrefixCache):
    """What an engine has in place of its prefix cache, its session slots and its ``req_to_token`` bookkeeping.

    ``rows``: the ``RequestRows``, ``tree``: the ``RadixTree``, ``handles``: what each row holds, ``carried``: its
    states; read them, only the calls here write. Arguments called ``rows``, and lengths, are as for ``RequestRows``;
    texts are token ids on the host. Bad input is a ValueError (TypeError for what is no integer); it leaves everything
    as it was, as a None for want of room does. With the allocator's ``debug`` every call ends with ``check``.
    """

    # A request.

    def admit(self, prompts: Texts, sessions: Sequence[Hashable] | None = None) -> list[int] | None:
        """A row for each request, or None if fewer are idle, or states are lacking. A row begins with what the tree
        has of the prompt (but for its last token, which is to be computed), and holds it; its length is
        ``rows.committed``.

        ``sessions`` as for ``RequestRows.admit``. ValueError for a prompt without tokens.
        """
        for i, prompt in enumerate(prompts):
            if not len(prompt):
                raise ValueError(f"prompts[{i}]: expected a token to compute, got none")
        found = [self.tree.prefix(list(prompt)[:-1]) for prompt in prompts]
        rows = self.rows.admit([self.tree.slots(spans) for spans in found], sessions)
        if rows is None:
            return None
        begun = [(row, self._end(spans)) for row, spans in zip(rows, found, strict=True) if spans]
        handles = self.locks.acquire([node for _, node in begun])
        self.handles.update((row, handle) for (row, _), handle in zip(begun, handles, strict=True))
        if not self.make_room(0, 0, self.carried.need(len(rows))):
            self._leave(rows[::-1])  # the last one is idle first, as before
            return self._checked(None)
        self.carried.begin(rows, dict(begun))
        return self._checked(rows)

    def extend(self, rows: Numbers, to: Numbers) -> Tensor | None:
        """As ``RequestRows.extend``. Where slots are lacking, the tree makes room first; so do the next two."""
        return self._granted(lambda: self.rows.extend(rows, to), rows, to)

    def decode(self, rows: Numbers) -> Tensor | None:
        """As ``RequestRows.decode``."""
        return self._granted(lambda: self.rows.decode(rows), rows, None)

    def reserve(self, rows: Numbers, to: Numbers) -> Tensor | None:
        """As ``RequestRows.reserve``."""
        return self._granted(lambda: self.rows.reserve(rows, to), rows, to)

    def _granted(self, grow: Callable[[], Tensor | None], rows: Numbers, to: Numbers | None) -> Tensor | None:
        slots = grow()
        if slots is None:  # the arguments are fine
            before = self.rows.allocated[numbers("rows", rows)]
            after = before + 1 if to is None else numbers("to", to)
            pages = sum((before // -self.page_size - after // -self.page_size).tolist())
            room = self.make_room(pages * self.page_size, pages * self.page_size)
            slots = grow() if room else None
        return self._checked(slots)

    def commit(self, rows: Numbers, to: Numbers) -> None:
        """As ``RequestRows.commit``."""
        self.rows.commit(rows, to)
        self._checked(None)

    def slide(self, rows: Numbers) -> Tensor:
        """As ``RequestRows.slide``."""
        return self._checked(self.rows.slide(rows))

    def slide_to(self, rows: Numbers, to: Numbers) -> Tensor:
        """As ``RequestRows.slide_to``."""
        return self._checked(self.rows.slide_to(rows, to))

    def cache_unfinished(self, rows: Numbers, texts: Texts) -> None:
        """The tree gets what requests have computed, as after a chunk of a prompt; they go on reading it, and hold it.

        ``texts``: the tokens of each row, at least the committed ones in whole pages. Pages that could not be locked
        the row keeps: those of a short window behind tombstones that somebody reads, or those for whose state there is
        no room.
        """
        given = self._given(rows, texts)
        with self._one_free():
            for row, text in given:
                self._share(row, text)
        self._checked(None)

    def _share(self, row: int, text: list[int]) -> None:
        plan = self._sharable(row, text)
        if not plan:
            return
        node = self.tree.upto(self._insert(row, text, plan), plan[-1].stop)
        self.carried.share(row, node)
        # Locked at once: the next row of the batch might revive a tombstone that this one reads now.
        (handle,) = self.locks.acquire([node])
        self._let_go([row])
        self.handles[row] = handle

    def cache_finished(self, rows: Numbers, texts: Texts) -> None:
        """Requests end. The tree gets what they have computed, in whole pages; the rest is given back, all in one free.

        ``texts`` as for ``cache_unfinished``. A session's request ends its session so; ``save`` keeps it.
        """
        given = self._given(rows, texts)
        self.rows.finish(rows)
        with self._one_free():
            for row, text in given:
                plan = self._plan(row, text)
                self._bequeath(row, self._insert(row, text, plan), plan)
                self.carried.release([row])
                self._let_go([row])
            self.rows.release(rows)
        self._checked(None)

    def abort(self, rows: Numbers) -> None:
        """Requests are aborted, or retracted for want of memory: all that they own is given back, in one free."""
        self._leave(rows)
        self._checked(None)

    def _leave(self, rows: Numbers) -> None:
        self.rows.finish(rows)
        batch = numbers("rows", rows).tolist()
        self.carried.release(batch)
        self.rows.release(rows)
        self._let_go(batch)

    # The states of running requests.

    def track(self, rows: Numbers, at: Numbers) -> None:
        """The states after ``at`` tokens were written to the next tracks: whole pages past the tree's part, committed.

        This is how far the tree gets what the requests have computed.
        """
        batch = self._tracking(rows)
        to = numbers("at", at, batch.numel())
        fine = (self.rows.protected[batch] <= to) & (to <= self.rows.committed[batch]) & (to % self.page_size == 0)
        require(fine, "at", lambda i: f"expected committed whole pages of row {int(batch[i])}, past the tree's", to)
        for row, length in zip(batch.tolist(), to.tolist(), strict=True):
            self.carried.track(row, length)
        self._checked(None)

    def boundary(self, rows: Numbers) -> list[bool]:
        """Before a step that tracks, with lazy buffers: whether each row has its second track, which is next then.

        The others go on with one. What was tracked before is not given to the tree any more.
        """
        batch = self._tracking(rows, lazy=True).tolist()
        for row in batch:
            if not self.carried.has_second(row):
                self.make_room(0, 0, 1)
            self.carried.bound(row)
        return self._checked([self.carried.has_second(row) for row in batch])

    def settle(self, rows: Numbers) -> None:
        """After a step that tracks, with lazy buffers: the older tracks are given back."""
        for row in self._tracking(rows, lazy=True).tolist():
            self.carried.settle(row)
        self._checked(None)

    def _tracking(self, rows: Numbers, *, lazy: bool = False) -> Tensor:
        states = self.carried.states
        if states is None or not states.buffer_size or (lazy and not states.lazy):
            raise ValueError(f"rows: expected a cache whose rows have {'lazy ' * lazy}track buffers")
        return self.rows.batch(rows, RUNNING)

    # A streaming session. A row in a slot goes on holding and carrying what its request did.

    def save(self, rows: Numbers, agreed: Numbers) -> None:
        """As ``RequestRows.save``. A row that is cut goes back to where it has a state, as for ``restore``."""
        batch = self.rows.batch(rows, RUNNING)
        before = self.rows.committed[batch].tolist()
        self.rows.save(rows, agreed)
        self._rewound([self.rows.session[row] for row in batch.tolist()], before, self.rows.committed[batch])
        self._checked(None)

    def restore(self, sessions: Sequence[Hashable], prefix: Numbers) -> Tensor:
        """As ``RequestRows.restore``. A state cannot be cut: with states, rows that are cut go on after what was
        tracked, or after the tree's part.
        """
        slots = self.rows.slot
        before = [int(self.rows.committed[slots[session]]) for session in sessions if session in slots]
        return self._checked(self._rewound(sessions, before, self.rows.restore(sessions, prefix)))

    def _rewound(self, sessions: Sequence[Hashable], before: list[int], now: Tensor) -> Tensor:
        cut = [i for i, length in enumerate(now.tolist()) if self.tree.stateful and length < before[i]]
        for i in cut:
            row = self.rows.slot[sessions[i]]
            now[i] = self.rows.restore([sessions[i]], [self.carried.newest(row, int(now[i]))])[0]
            self.carried.rewind(row, int(now[i]), self.handles[row].node if row in self.handles else ROOT)
        return now

    def resume(self, sessions: Sequence[Hashable], given: Numbers) -> list[int]:
        """As ``RequestRows.resume``."""
        return self._checked(self.rows.resume(sessions, given))

    def close(self, sessions: Sequence[Hashable]) -> None:
        """As ``RequestRows.close``; what the slots hold they let go of."""
        rows = [self.rows.slot[session] for session in sessions if session in self.rows.slot]
        self.rows.close(sessions)
        self.carried.release(rows)
        self._let_go(rows)
        self._checked(None)

    # Free groups.

    def free_group_begin(self) -> None:
        """As the allocator's."""
        self.allocator.free_group_begin()

    def free_group_end(self) -> None:
        """As the allocator's."""
        self.allocator.free_group_end()
