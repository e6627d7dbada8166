"""Our session cache as a subject: a scheduler's calls on it, its rows and pools, its tree, and who holds what there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from conformance.machine import Json
from conformance.subjects.adapter import SwaSubject, Traits
from conformance.subjects.cache_view import CacheView, Hold, Running
from conformance.subjects.rowview import Admission
from impl.cache import SessionCache
from impl.mamba_slots import MambaStates
from impl.swa_mapping import SWATokenToKVPoolAllocator

__all__ = ["Hold", "OurCache", "Running", "cache", "faulty_cache"]

TRAITS = Traits("ours", paged_at_one=True, rejects=True)


class OurCache(CacheView):
    """A ``RowSubject`` over ``SessionCache``, whose tree and states can be read too."""

    def __init__(self, engine: SessionCache, traits: Traits = TRAITS) -> None:
        pools = SwaSubject(engine.allocator, engine.page_size, str(engine.rows.device), traits)
        super().__init__(engine, pools)
        self.traits = traits

    def offers(self, name: str) -> bool:
        """Everything but what its states are not for: ``track``, and ``boundary`` and ``settle`` of lazy buffers."""
        states = self.engine.carried.states
        tracks = states is not None and states.buffer_size > 0
        lazy = states is not None and states.lazy
        return {"track": tracks, "boundary": lazy, "settle": lazy}.get(name, True)

    # A request arrives.

    def look(self, request: int, session: int, tokens: list[int]) -> int:
        """Matches the session's slot, or the tree."""
        del request
        if session not in self.rows.slot:
            return self.engine.match_prefix(tokens[:-1]).slots.numel()
        committed = int(self.rows.committed[self.rows.slot[session]])
        return int(self.engine.restore([session], [min(committed, len(tokens) - 1)])[0])

    def admit(self, request: int, session: int, tokens: list[int], most: int) -> Admission:
        """On the slot's row, or on a new one after what the tree has."""
        prefix = self.look(request, session, tokens)
        upto = min(prefix + most, len(tokens))
        row = self._resumed(session, tokens, upto) if session in self.rows.slot else self._begun(session, tokens, upto)
        if row is None:
            return Admission(prefix, False)
        self.running[request] = Running(session, list(tokens), len(tokens), row)
        return Admission(prefix, True)

    def _resumed(self, session: int, tokens: list[int], upto: int) -> int | None:
        """A slot's row goes on once there is room: a turn that runs does not go back to its slot unchanged."""
        before, size = int(self.rows.committed[self.rows.slot[session]]), self.page_size
        room = (-(-upto // size) - -(-before // size)) * size
        if not self.engine.make_room(room, room):
            return None
        (row,) = self.engine.resume([session], [len(tokens)])
        assert self.engine.extend([row], [upto]) is not None, "there is room"
        return row

    def _begun(self, session: int, tokens: list[int], upto: int) -> int | None:
        """A request that gets no slots gives its row and its lock up again."""
        rows = self.engine.admit([tokens], [session or None])
        if rows is None or self.engine.extend(rows, [upto]) is not None:
            return None if rows is None else rows[0]
        self.engine.abort(rows)
        return None

    # It grows.

    def chunk(self, request: int, most: int) -> bool:
        """The next chunk."""
        one = self.running[request]
        upto = min(int(self.rows.allocated[one.row]) + most, one.prompt)
        return self.engine.extend([one.row], [upto]) is not None

    def cache(self, request: int, sampled: int | None) -> None:
        """What of the prompt is computed goes to the tree."""
        one = self.running[request]
        self.engine.cache_unfinished([one.row], [one.tokens])
        one.tokens += [] if sampled is None else [sampled]

    def decode(self, requests: list[int], sampled: list[int]) -> bool:
        """A step of a batch."""
        if self.engine.decode([self.running[request].row for request in requests]) is None:
            return False
        for request, token in zip(requests, sampled, strict=True):
            self.running[request].tokens.append(token)
        return True

    def reserve(self, request: int, more: int) -> bool:
        """Slots ahead."""
        row = self.running[request].row
        return self.engine.reserve([row], [int(self.rows.allocated[row]) + more]) is not None

    def commit(self, request: int, accepted: list[int]) -> None:
        """Verified tokens."""
        one = self.running[request]
        self.engine.commit([one.row], [int(self.rows.committed[one.row]) + len(accepted)])
        one.tokens += accepted

    def slide(self, request: int) -> None:
        """By the engine's reckoning, which leaves a page of margin, and then as far as it goes."""
        row, size = self.running[request].row, self.page_size
        self.engine.slide([row])
        reach = (int(self.rows.committed[row]) - self.rows.window) // size * size
        if reach >= max(int(self.rows.cursor[row]), int(self.rows.protected[row])):
            self.engine.slide_to([row], [reach])

    # Its state, where the cache has states.

    def track(self, request: int) -> None:
        """The state at the last page boundary was written."""
        row = self.running[request].row
        self.engine.track([row], [int(self.rows.committed[row]) // self.page_size * self.page_size])

    def boundary(self, request: int) -> bool:
        """A lazy buffer gets its second slot, if there is room."""
        (there,) = self.engine.boundary([self.running[request].row])
        return there

    def settle(self, request: int) -> None:
        """A lazy buffer gives the older slot back."""
        self.engine.settle([self.running[request].row])

    # It leaves.

    def finish(self, request: int, sent: int) -> None:
        """To the session's slot, or to the tree and the pools."""
        one = self.running.pop(request)
        if one.session:
            self.engine.save([one.row], [one.prompt + sent])
        else:
            self.engine.cache_finished([one.row], [one.tokens])

    def abort(self, request: int) -> None:
        """Everything is given back; the session starts anew."""
        self.engine.abort([self.running.pop(request).row])

    def retract(self, request: int, sent: int) -> None:
        """To the session's slot, or to the pools."""
        one = self.running.pop(request)
        if one.session:
            self.engine.save([one.row], [one.prompt + sent])
        else:
            self.engine.abort([one.row])

    def cancel(self, request: int) -> None:
        """Nothing is kept of a request that waits."""
        del request

    def close(self, session: int) -> bool:
        """What the slot has is given back."""
        if session in self.rows.slot:
            self.engine.close([session])
        return True

    def begin(self) -> None:
        """Opens a free group."""
        self.engine.free_group_begin()

    def end(self) -> None:
        """Ends it."""
        self.engine.free_group_end()

    def evict(self, full: int, swa: int, states: int = 0) -> None:
        """The tree gives back what nobody reads."""
        self.engine.evict(full, swa, states)

    def bad(self, kind: str) -> None:
        """Sends bad input."""
        outside, most = self.rows.rows, self.rows.max_tokens
        rows = [one.row for one in self.running.values()]
        texts = [one.tokens for one in self.running.values()]
        calls: dict[str, Callable[[], Any]] = {
            "row_outside": lambda: self.engine.decode([*rows, outside]),
            "row_twice": lambda: self.engine.cache_finished([*(rows or [0]), *(rows or [0])], [*texts, *texts]),
            "longer_than_a_row": lambda: self.engine.reserve(rows or [0], [most + 1] * max(len(rows), 1)),
            "shrinks": lambda: self.engine.extend(rows or [0], [-1] * max(len(rows), 1)),
            "nobodys_slot": lambda: self.engine.restore(["nobody"], [0]),
            "not_finished": lambda: self.engine.cache_finished(rows or [0], texts[1:]),
            "padding_for_prefix": lambda: self.engine.admit([[]]),
            "tracks_what_is_not_computed": lambda: self.engine.track(rows or [0], [most + 1] * max(len(rows), 1)),
        }
        calls[kind]()


def cache(config: Json, device: str = "cpu", **options: Any) -> OurCache:
    """The session cache; sizes count pages, the window counts tokens.

    With ``mamba`` among the ``components`` it has ``size_mamba`` states, and ``buffered``, ``doubled`` and ``lazy`` say
    what a request's track buffer is.
    """
    return _cache(SessionCache, OurCache, config, TRAITS, device, **options)


def faulty_cache(
    engine: type[SessionCache] = SessionCache, calls: type[OurCache] = OurCache
) -> Callable[[Json], OurCache]:
    """A variant of the cache, or of the scheduler that calls it, with a known bug."""
    return lambda config: _cache(engine, calls, config, replace(TRAITS, label="faulty", rejects=False), "cpu")


def _cache(
    engine: type[SessionCache], calls: type[OurCache], config: Json, traits: Traits, device: str, **options: Any
) -> OurCache:
    size = config["page_size"]
    sizes = (config["size"] * size, config["size_swa"] * size, size)
    pools = SWATokenToKVPoolAllocator(*sizes, torch.float16, device, None, config["need_sort"], **options)
    states = _states(config, device, **options) if "mamba" in config.get("components", ()) else None
    return calls(engine(pools, config["rows"], config["size"] * size, config["window"], states), traits)


def _states(config: Json, device: str, **options: Any) -> MambaStates:
    known = {"buffered": True, "doubled": True, "lazy": False, **config}
    tracks = 0 if not known["buffered"] else 2 if known["doubled"] else 1
    lazy = known["lazy"] and tracks == 2
    return MambaStates(config["rows"], config["size_mamba"], buffer_size=tracks, lazy=lazy, device=device, **options)
