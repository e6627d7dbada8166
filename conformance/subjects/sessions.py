"""The session caches of an SGLang release as a subject: requests and sessions by number, rows as they stand."""

from __future__ import annotations

from typing import Any, NamedTuple

from conformance.machine import Json, Misuse
from conformance.subjects.adapter import Traits
from conformance.subjects.rowview import Admission, Lengths, RowSeen, Seen, TreePage
from conformance.subjects.session_engine import Rooms, Scheduler, TurnedAway
from conformance.subjects.sglang import SGLang

TREES = ("unified", "swa_radix")


class Second(NamedTuple):
    """A second request: a ``turn`` that waits with this text, or a ``stub``: one token that runs and is aborted."""

    kind: str
    text: list[int]


class EngineRows:
    """Requests and sessions of a release, over the tree that the configuration names (the newest, if it names none)."""

    def __init__(self, engine: SGLang, config: Json) -> None:
        self.traits = Traits("sglang", engine.label, fragile=True)
        self.rooms = Rooms(engine, **self.room_options(engine, config))
        self.engine = Scheduler(self.rooms)
        self.requests: dict[int, Any] = {}
        self.turns: dict[int, str] = {}  # request -> its session
        self.running: set[int] = set()
        self.prefilling: set[int] = set()
        self.resumed: dict[int, int] = {}  # request -> how much of its answer became its input when it was retracted

    def room_options(self, engine: SGLang, config: Json) -> dict[str, Any]:
        """The tree and the pools; sizes count pages, the window counts tokens."""
        page = config["page_size"]
        return {
            "kind": tree(engine, config.get("tree")),
            "page_size": page,
            "size": config["size"] * page,
            "size_swa": config["size_swa"] * page,
            "window": config["window"],
            "limit": config["rows"],
            "need_sort": config["need_sort"],
        }

    def offers(self, name: str) -> bool:
        """Everything, but for an abort between two chunks."""
        return name != "abort_chunked" or self.engine.aborts_chunked

    # Requests arrive.

    def look(self, request: int, session: int, tokens: list[int]) -> int:
        """A request that waits matches its input."""
        return self.engine.match(self._known(request, session, tokens))

    def admit(self, request: int, session: int, tokens: list[int], most: int) -> Admission:
        """A request that waits matches its input, and is admitted if there is room."""
        known = self._known(request, session, tokens)
        prefix = self.engine.match(known)
        held = self.engine.lock(known)
        upto = min(prefix + most, len(known.origin_input_ids) + len(known.output_ids))
        if not self.admissible(known, upto):
            self.engine.unlock(known, held)
            return Admission(prefix, False)
        self.engine.extend(known, upto)
        self.running.add(request)
        self.prefilling.add(request)
        return Admission(prefix, True)

    def admissible(self, known: Any, upto: int) -> bool:
        """There is room for a request's tokens up to ``upto``."""
        return self.engine.admissible(known, upto)

    def second(self, request: int, session: int, new: list[int], wrong: bool) -> Second:
        """Another request of a session that has one, or (``wrong``) one of a kind that streaming sessions do not serve.

        The engine takes it, or turns it away and runs a stub instead.
        """
        known = self.engine.turn(slot_name(session), new, wrong)
        self.requests[request], self.turns[request] = known, slot_name(session)
        return Second("turn" if known.to_finish is None else "stub", [int(token) for token in known.origin_input_ids])

    def _known(self, request: int, session: int, tokens: list[int]) -> Any:
        """The request that waits; a new one is created: a client of a session sends what follows the session's text."""
        if request in self.requests:
            return self.requests[request]
        if not session:
            self.requests[request] = self.engine.plain(tokens)
            return self.requests[request]
        name = slot_name(session)
        known = self.engine.turn(name, tokens[self.engine.text(name) :])
        if known.to_finish is not None:
            raise TurnedAway(known.to_finish.message)
        if list(known.origin_input_ids) != list(tokens):
            raise TurnedAway(f"the engine reads {list(known.origin_input_ids)} for {list(tokens)}")
        self.requests[request], self.turns[request] = known, name
        return known

    # They grow.

    def chunk(self, request: int, most: int) -> bool:
        """The next chunk of a prefill."""
        known = self._runs(request)
        known.init_next_round_input()
        start, last = len(known.prefix_indices), len(known.origin_input_ids) + len(known.output_ids)
        upto = min(start + most, last)
        if not self.engine.room([(start, upto)]):
            return False
        self.engine.extend(known, upto)
        return True

    def cache(self, request: int, sampled: int | None) -> None:
        """After a prefill."""
        self.engine.computed(self._runs(request), sampled)
        self.prefilling -= set() if sampled is None else {request}

    def decode(self, requests: list[int], sampled: list[int]) -> bool:
        """One step of a batch."""
        batch = [self._runs(request) for request in requests]
        if not self.engine.room([(r.kv_allocated_len, r.kv_allocated_len + 1) for r in batch], decodes=True):
            return False
        self.engine.decode(batch)
        for known, token in zip(batch, sampled, strict=True):
            known.output_ids.append(token)
        return True

    def reserve(self, request: int, more: int) -> bool:
        """Draft slots."""
        known = self._runs(request)
        if not self.engine.room([(known.kv_allocated_len, known.kv_allocated_len + more)]):
            return False
        self.engine.reserve(known, more)
        return True

    def commit(self, request: int, accepted: list[int]) -> None:
        """A verified draft."""
        known = self._runs(request)
        known.kv_committed_len += len(accepted)
        known.output_ids.extend(accepted)

    def slide(self, request: int) -> None:
        """The window moves."""
        self.engine.slide(self._runs(request))

    # They leave.

    def finish(self, request: int, sent: int) -> None:
        """The answer is as long as was asked for; decoding may have run past that."""
        known = self._leaves(request)
        known.sampling_params.max_new_tokens = self.resumed.get(request, 0) + sent
        self.engine.finish(known)
        self._forget(request)

    def abort(self, request: int) -> None:
        """The request is aborted while it runs."""
        known = self._leaves(request)
        self.engine.abort(known, prefilling=request in self.prefilling)
        self._forget(request)

    def retract(self, request: int, sent: int) -> None:
        """The request waits again."""
        known = self._leaves(request)
        self.resumed[request] = self.resumed.get(request, 0) + sent
        del known.output_ids[self.resumed[request] :]
        self.engine.retract(known)

    def cancel(self, request: int) -> None:
        """A scheduler takes it off its queue, and tells nobody."""
        if request in self.running:
            raise Misuse(f"request {request} runs")
        self._forget(request)

    def _runs(self, request: int) -> Any:
        if request not in self.running:
            raise Misuse(f"request {request} does not run")
        return self.requests[request]

    def _forget(self, request: int) -> None:
        del self.requests[request]
        self.turns.pop(request, None)
        self.resumed.pop(request, None)
        self.prefilling.discard(request)

    def _leaves(self, request: int) -> Any:
        known = self._runs(request)
        self.running.remove(request)
        return known

    # Sessions, groups, and the tree.

    def close(self, session: int) -> bool:
        """The session ends; a close that the engine puts off is forgotten."""
        closed = self.engine.close(slot_name(session))
        if not closed:
            self.engine.reopen(slot_name(session))
        return closed

    def begin(self) -> None:
        """A free group opens."""
        self.rooms.pool.engine.free_group_begin()

    def end(self) -> None:
        """The free group ends."""
        self.rooms.pool.engine.free_group_end()

    def evict(self, full: int, swa: int) -> None:
        """The tree gives back what nobody reads."""
        self.engine.cache.evict(self.rooms.base.EvictParams(num_tokens=full, swa_num_tokens=swa))

    # What can be seen.

    def observe(self) -> Seen:
        """Everything."""
        requests = {n: self._seen(r, r.cache_protected_len) for n, r in self.requests.items() if n in self.running}
        turns = {n: self.turns.get(n) for n in requests if self.requests[n].to_finish is None}
        rows = {(name, requests[n].row) for n, name in turns.items()}
        sessions = {
            int(name): self._seen(slot, slot.cache_protected_len)
            for name, slot in self.engine.slots.items()
            if slot.is_holding_kv and (name, slot.req_pool_idx) not in rows
        }
        pool: Any = self.rooms.pool
        free_rows = [int(row) for row in self.rooms.rows.free_slots]
        return Seen(requests, sessions, free_rows, pool.lists(), pool.swa_lists(), pool.mapping(), self._tree())

    def _seen(self, holder: Any, protected: int) -> RowSeen:
        """A request's row or a slot's: both name it by the same fields."""
        row, allocated = int(holder.req_pool_idx), int(holder.kv_allocated_len)
        lengths = Lengths(int(protected), int(holder.swa_evicted_seqlen), int(holder.kv_committed_len), allocated)
        return RowSeen(row, lengths, [int(slot) for slot in self.rooms.rows.req_to_token[row, :allocated].tolist()])

    def _tree(self) -> dict[int, TreePage]:
        page, nodes, found = self.rooms.page_size, self.rooms.observe().nodes, {}
        ends = {0: 0}
        for node in nodes[1:]:
            start = ends[int(node.parent or 0)]
            ends[node.id] = start + len(node.key)
            slots = node.parts["full"].slots or []
            for at, slot in enumerate(slots[::page]):
                found[slot // page] = TreePage(start // page + at, node.parts["swa"].slots is not None)
        return found

    def bad(self, kind: str) -> None:
        """Releases answer bad input in many ways."""
        raise Misuse(f"a release is not asked for bad input ({kind})")


def slot_name(session: int) -> str:
    """The engine's name for a session."""
    return str(session)


def tree(engine: SGLang, asked: str | None) -> str:
    """The tree that is asked for; without a word, or where the release has no such tree, the newest it has."""
    unified = engine.root.joinpath("sglang", "srt", "mem_cache", "unified_radix_cache.py").is_file()
    return asked if asked and unified else TREES[not unified]
