"""Requests and sessions of one SGLang server, by number: the ``SessionTrimEngine`` and the ``CacheEngine`` of a
release.

One class serves both stems. ``session_trim`` runs it on a cache of full parts, with or without SWA parts, ``cache``
with mamba states too; with all three the tree is the unified one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from conformance.driver.protocol import Json, Misuse, PublishedEvents, TurnedAway, Unsupported
from conformance.engines.sglang.driving.memory import SGLangMemory
from conformance.engines.sglang.driving.reading import slot_names, slots_in_row, text, tree_pages, tree_states
from conformance.engines.sglang.driving.scheduler import StandInScheduler, after_boundary, before_boundary, track
from conformance.engines.sglang.driving.undoing import Undoing
from conformance.engines.sglang.driving.windows import Windows
from conformance.engines.sglang.kinds import KINDS
from conformance.engines.sglang.releases import cores, marks, records
from conformance.engines.sglang.releases.release import Release, TrackBuffers
from conformance.stems.cache.protocol import CacheSnapshot, LockHold
from conformance.stems.configs import is_all_sliding, swa_size
from conformance.stems.lock_ref.protocol import LockRefSnapshot
from conformance.stems.mamba_slots.protocol import MambaSlotsSnapshot
from conformance.stems.session_trim.protocol import (
    Admission,
    Arrival,
    Lengths,
    RowSnapshot,
    SessionTrimSnapshot,
    TreePage,
)
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot

STATES_A_ROW = 3  # the states that SGLang has for each row, beside its track buffer (_calculate_mamba_ratio)


def row_memory(release: Release, config: Json, core: str = cores.DEFAULT) -> SGLangMemory:
    """The memory of a server without states. Its tree is the one that the configuration names, or else the newest.
    ``core``: the core of a unified tree.
    """
    if is_all_sliding(config):
        if config["sessions"]:
            raise Unsupported("a server whose model has only sliding-window layers refuses streaming sessions")
        return _memory(release, config, "pure_swa", ("full",), {"core": core})
    components = tuple(config.get("components", ("full", "swa")))
    return _memory(release, config, _kind(release, config, components), components, {"core": core})


def _kind(release: Release, config: Json, components: tuple[str, ...]) -> str:
    """The kind of tree that the configuration names; in a release without the unified tree the older one."""
    if not release.has_unified_tree:
        return KINDS.serving(components, older=True) or "unified"
    return str(config.get("tree", "unified"))


def cache_memory(release: Release, config: Json, core: str = cores.DEFAULT) -> SGLangMemory:
    """The memory of a server with the components of the configuration; Unsupported if the release has none like it."""
    if "mamba" not in config["components"]:
        return row_memory(release, config, core)
    buffers = TrackBuffers(*(bool(config[name]) for name in TrackBuffers._fields))
    if not buffers.buffered and config["page_size"] > 1:
        raise Unsupported("without a track buffer a page has one token")
    if config["rows"] * (STATES_A_ROW + buffers.slots) > config["size_mamba"]:
        raise Unsupported("an engine has no more rows than it has states for")
    more = {"states": config["size_mamba"], "buffers": buffers, "core": core}
    components = tuple(config["components"])
    kind = "unified" if "swa" in components else _kind(release, config, components)
    return _memory(release, config, kind, components, more)


def _memory(
    release: Release, config: Json, kind: str, components: tuple[str, ...], more: dict[str, Any]
) -> SGLangMemory:
    """The sizes of a configuration count pages, its window counts tokens."""
    page_size = config["page_size"]
    return SGLangMemory(
        release,
        kind,
        components,
        page_size,
        size=config["size"] * page_size,
        size_swa=swa_size(config) * page_size,
        window=config["window"],
        row_count=config["rows"],
        need_sort=config["need_sort"],
        **more,
    )


class DrivenCache:
    """Requests and sessions over one memory. ``checks_rows``, ``prefill_aware``: see ``StandInScheduler``."""

    def __init__(self, memory: SGLangMemory, checks_rows: bool, prefill_aware: bool = False) -> None:
        self.fragile, self.ran = memory.release.fragile, memory.ran
        self.memory, self.stateful = memory, "mamba" in memory.components
        self.scheduler = StandInScheduler(memory, checks_rows, prefill_aware)
        locks = memory.release.locks(memory.tree)
        self.state_goes_early, self.counts_missing = locks.state_goes_early, locks.counts_missing
        self.undoing, self.windows = Undoing(self.scheduler), Windows(memory.window)
        self.lacks = self._lacks()
        self.requests: dict[int, Any] = {}
        self.turns: dict[int, str] = {}  # the session of a request, as the engine names it
        self.running: set[int] = set()
        self.prefilling: set[int] = set()
        self.prebuilt: set[int] = set()  # those whose prompt a prefill server has computed, and that no batch has yet
        self.resumed: dict[int, int] = {}  # how many tokens of a request's answer are in its input since a retract

    def _lacks(self) -> Collection[str]:
        buffers = self.memory.buffers
        has = {
            "abort_chunked": self.memory.release.serving.aborts_between_chunks,
            "track": self.stateful and buffers.buffered,
            "boundary": self.stateful and buffers.lazy,
            "settle": self.stateful and buffers.lazy,
            "counts_missing": self.counts_missing,
            "bad": False,
            "compact": False,
            "long_cut": False,  # no scheduler cuts off more of an answer than its last step
            "admit_tail": self.memory.release.supports_tails(self.memory.components),
            "checkpoint": self.memory.release.serving.checkpoints_answers,
            **self.undoing.offers,
        }
        return frozenset(name for name, offered in has.items() if not offered)

    # Requests arrive.

    def look(self, request: int, session: int, tokens: list[int]) -> int:
        """A request that waits is matched, and not admitted."""
        known = self._known(request, session, tokens)
        return self.scheduler.look(known, self._has_slot(request))

    def admit(self, request: int, session: int, tokens: list[int], most: int) -> Admission:
        """A request that waits is matched and, if there is room, admitted."""
        known = self._known(request, session, tokens)
        answer = self.scheduler.admit(known, self._has_slot(request), most)
        if answer.granted:
            self.running.add(request)
            self.prefilling.add(request)
        return answer

    def admit_tail(self, request: int, session: int, tokens: list[int]) -> Admission:
        """A request whose prompt a prefill server has computed is matched and, if there is room, admitted."""
        known = self._known(request, session, tokens)
        if not self.scheduler.decode_server.admit(known):
            return Admission(0, False)
        self.running.add(request)
        self.prefilling.add(request)
        self.prebuilt.add(request)
        return Admission(records.lengths(known).protected, True)

    def overlapping_turn(self, request: int, session: int, new: list[int], unsupported: bool) -> Arrival:
        """``Session.create_req`` while the session has a request, or for one that replaces the session's text: the
        engine takes the request, or marks it to be aborted and gives it an input of one token.
        """
        name = _name(session)
        known = self.scheduler.turn(name, new, replaces=unsupported)
        self.requests[request], self.turns[request] = known, name
        return Arrival("turn" if known.to_finish is None else "stub", [int(token) for token in known.origin_input_ids])

    def _has_slot(self, request: int) -> bool:
        return self.turns.get(request, "") in self.scheduler.slots

    def _known(self, request: int, session: int, tokens: list[int]) -> Any:
        """The request that waits, or a new one. A client of a session sends what follows the session's text."""
        if request in self.requests:
            return self.requests[request]
        if not session:
            self.requests[request] = self.scheduler.without_session(tokens)
            return self.requests[request]
        name = _name(session)
        known = self.scheduler.turn(name, tokens[self.scheduler.length_of_session(name) :])
        if known.to_finish is not None:
            raise TurnedAway(known.to_finish.message)
        if list(known.origin_input_ids) != list(tokens):
            raise TurnedAway(f"the engine reads {list(known.origin_input_ids)} for {list(tokens)}")
        self.requests[request], self.turns[request] = known, name
        return known

    # They grow.

    def chunk(self, request: int, most: int) -> bool:
        """The next chunk of a prefill."""
        return self.scheduler.chunk(self._running(request), most)

    def cache(self, request: int, sampled: int | None) -> None:
        """After a prefill the prompt goes to the cache."""
        known = self._running(request)
        if request in self.prebuilt:
            assert sampled is not None, "the prompt is computed to its end"
            self.scheduler.decode_server.start(known, *marks.unmarked([sampled]))
            self.prebuilt.remove(request)
        else:
            self.scheduler.computed(known, sampled)
        self.prefilling -= set() if sampled is None else {request}

    def decode(self, requests: list[int], sampled: list[int]) -> bool:
        """One step of a batch."""
        batch = [self._running(request) for request in requests]
        if not self.scheduler.decode(batch):
            return False
        for known, token in zip(batch, marks.unmarked(sampled), strict=True):
            known.output_ids.append(token)
        return True

    def reserve(self, request: int, more: int) -> bool:
        """Slots for draft tokens."""
        return self.scheduler.reserve(self._running(request), more)

    def checkpoint(self, request: int, upto: int) -> None:
        """A request that runs puts its first ``upto`` tokens into the tree."""
        self.scheduler.checkpoint(self._running(request), upto)

    def commit(self, request: int, accepted: list[int]) -> None:
        """A draft is verified."""
        known = self._running(request)
        records.write(known, kv_committed_len=records.committed(known) + len(accepted))
        known.output_ids.extend(marks.unmarked(accepted))

    def slide(self, request: int) -> None:
        """The window of a request moves."""
        self.scheduler.slide(self._running(request))

    # They give something back before they leave.

    def release_swa(self, request: int) -> None:
        """The SWA part of a lock, once the request has decoded a window."""
        self.undoing.release_swa(self._running(request))

    def interrupted_chunk(self, request: int, most: int) -> None:
        """The slots of a chunk, after an exception."""
        self.undoing.interrupted_chunk(self._running(request), most)

    def interrupted_decode(self, requests: list[int]) -> None:
        """The slots of a decode step, after an exception."""
        self.undoing.interrupted_decode([self._running(request) for request in requests])

    def roll_back(self, request: int, count: int) -> None:
        """The slots of drafts that were not accepted."""
        self.undoing.roll_back(self._running(request), count)

    # They leave.

    def finish(self, request: int, sent: int) -> None:
        """The answer is as long as was asked for; decoding may have run past that."""
        known = self._leaves(request)
        if request in self.prefilling:  # no answer is wanted: the result of the prefill ends it, and has a token
            known.output_ids.append(0)
        known.sampling_params.max_new_tokens = self.resumed.get(request, 0) + sent
        self.scheduler.finish(known)
        self._forget(request)

    def abort(self, request: int) -> None:
        """The request is aborted while it runs."""
        known = self._leaves(request)
        self.scheduler.abort(known, prefilling=request in self.prefilling)
        self._forget(request)

    def retract(self, request: int, sent: int) -> None:
        """The request gives its row up and waits; an overlapping scheduler does not know its last token yet."""
        known = self._leaves(request)
        self.resumed[request] = self.resumed.get(request, 0) + sent
        del known.output_ids[self.resumed[request] :]
        self.scheduler.retract(known)

    def cancel(self, request: int) -> None:
        """A request that waits is taken off the queue; the session is not told."""
        if request in self.running:
            raise Misuse(f"request {request} runs")
        known = self.requests[request]
        self._forget(request)
        self.scheduler.cancel(known)

    def _running(self, request: int) -> Any:
        if request not in self.running:
            raise Misuse(f"request {request} does not run")
        return self.requests[request]

    def _leaves(self, request: int) -> Any:
        known = self._running(request)
        self.running.remove(request)
        return known

    def _forget(self, request: int) -> None:
        del self.requests[request]
        self.turns.pop(request, None)
        self.resumed.pop(request, None)
        self.prefilling.discard(request)

    # Sessions, groups, and the tree.

    def close(self, session: int) -> bool:
        """The session ends; a close that the engine puts off is taken back."""
        return self.scheduler.close(_name(session))

    def begin_group(self) -> None:
        """A free group opens."""
        self.memory.pools.begin_group()
        self.scheduler.in_group = True

    def end_group(self) -> None:
        """The free group ends."""
        self.memory.pools.end_group()
        self.scheduler.in_group = False

    def evict(self, full: int, swa: int, states: int = 0) -> None:
        """The tree gives back what nobody reads."""
        self.scheduler.evict(full, swa, states)

    def bad(self, kind: str) -> None:
        """Lacking: releases answer bad input in many ways."""
        raise Unsupported(f"no release is sent bad input ({kind})")

    # Mamba states.

    def track(self, request: int) -> None:
        """A boundary: the state was written to the next track slot."""
        track(self.memory, self._running(request))

    def boundary(self, request: int) -> None:
        """Before a boundary a lazy buffer gets its second slot, if there is room."""
        before_boundary(self.memory, self.scheduler.cache, self._running(request))

    def settle(self, request: int) -> None:
        """After a boundary a lazy buffer gives one slot back."""
        after_boundary(self.memory, self._running(request))

    # Snapshots.

    def published(self) -> PublishedEvents | None:
        """What the tree has said in KV events, and what it has cached; ``None`` where it publishes none."""
        return self.memory.published()

    def snapshot(self) -> SessionTrimSnapshot:
        """Rows, session slots, pools, and the pages of the tree."""
        pools = self._pools()
        return self._rows(pools, tree_pages(self.memory.reader.read(pools), self.memory.page_size))

    def cache_snapshot(self) -> CacheSnapshot:
        """Rows, session slots and pools, the tree, who holds what of it, and the states."""
        pools = self._pools()
        tree = self.memory.reader.read(pools)
        return CacheSnapshot(self._rows(pools, {}), tree, self._holds(), self._states(tree) if self.stateful else None)

    def _pools(self) -> SwaMappingSnapshot:
        pools = self.memory.pools.snapshot()
        return pools if isinstance(pools, SwaMappingSnapshot) else SwaMappingSnapshot.without_swa(pools)

    def _rows(self, pools: SwaMappingSnapshot, pages: dict[int, TreePage]) -> SessionTrimSnapshot:
        running = {n: known for n, known in self.requests.items() if n in self.running}
        requests = {n: self._row(known) for n, known in running.items() if records.row(known) is not None}
        # A session's slot names the row of the turn that runs on it; that row is the request's.
        lent = {(self.turns.get(n), row.row) for n, row in requests.items() if self._borrows(self.requests[n])}
        sessions = {
            int(name): self._row(slot)
            for name, slot in self.scheduler.slots.items()
            if records.row(slot) is not None and (name, records.row(slot)) not in lent
        }
        free_rows = [int(row) for row in self.memory.rows.free_slots]
        return SessionTrimSnapshot(requests, sessions, free_rows, pools, pages)

    def _borrows(self, known: Any) -> bool:
        """Whether a request may run on its session's row. A request that was turned away may not; but some releases
        give its own row to a session that has none, until it ends.
        """
        return known.to_finish is None or any(records.shared(known, slot) for slot in self.scheduler.slots.values())

    def _row(self, holder: Any) -> RowSnapshot:
        """The row of a request, or of a session's slot: both name it by fields of the same names."""
        row, lengths = records.row(holder), records.lengths(holder)
        assert row is not None, "who is shown has a row"
        slots = self.memory.rows.req_to_token[row, : lengths.allocated].tolist()
        return RowSnapshot(row, Lengths(*lengths), slots, records.gap(holder) if self.scheduler.all_sliding else 0)

    def _holds(self) -> dict[tuple[str, int], LockHold]:
        """What each session slot with a row and each request that runs holds; who holds nothing is left out."""
        known = self.scheduler.slots.items()
        slots = {("session", int(name)): slot for name, slot in known if records.row(slot) is not None}
        requests = {("request", request): self._holder(request) for request in self.running}
        self.windows.forget([records.receipt(holder) for holder in (slots | requests).values()])
        held = {who: self._hold(holder) for who, holder in (slots | requests).items()}
        return {who: hold for who, hold in held.items() if hold is not None}

    def _holder(self, request: int) -> Any:
        """The record that has the request's lock. The lock of a turn that runs on its session's record is in the
        session's slot: the turn itself has no lock, or names an object that is no node of the tree.
        """
        known = self.requests[request]
        slot = self.scheduler.slots.get(self.turns.get(request, ""))
        borrows = slot is not None and known.to_finish is None and records.row(slot) == records.row(known)
        return slot if borrows and not self.memory.reader.path(records.locked_node(known)) else known

    def _hold(self, holder: Any) -> LockHold | None:
        """The lock that a record names: from its node up to the node of its window token, or else up to the root.

        No record says whether the lock holds the node's state: a node that is matched has one, if the tree has states.
        """
        node, reader = records.locked_node(holder), self.memory.reader
        if node is None or not reader.number(node):
            return None
        nodes = reader.path(node)
        state = self.stateful and bool(nodes) and nodes[0].parts["mamba"].slots is not None
        if not self.scheduler.windowed:
            return LockHold(reader.number(node), None, text(nodes), state)
        if records.window_released(holder):
            return LockHold(reader.number(node), None, text(nodes), state and not self.state_goes_early)
        token = records.window_token(holder)
        tops = nodes[-1:] if token is None else [n for n in nodes if n.mark == token]
        if token is not None and self.memory.ran.get("core") == cores.RUST:
            tops = self.windows.tops(records.receipt(holder), nodes)
        return LockHold(reader.number(node), reader.number(tops[0].handle) if tops else -1, text(nodes), state)

    def _states(self, tree: LockRefSnapshot) -> MambaSlotsSnapshot:
        """The state slots. A turn that waits names what its session's slot has, and the slot of a session names what
        its running turn has; each is shown with one of the two. A request that was turned away runs on a row of its
        own, and so has nothing of its session's.
        """
        slots, rows = self.memory.state_slots, self.memory.rows
        shown = {n: r for n, r in self.requests.items() if n in self.running or records.row(r) is None}
        runs_on = {(self.turns.get(request), records.row(self.requests[request])) for request in self.running}
        busy = {name for name, slot in self.scheduler.slots.items() if (name, records.row(slot)) in runs_on}
        buffered = self.memory.buffers.buffered
        return MambaSlotsSnapshot(
            free=slots.free_slots.tolist(),
            available=int(slots.available_size()),
            waiting=self.memory.release.grouped_states(slots),
            requests={number: slot_names(request) for number, request in shown.items()},
            rows={
                n: slots_in_row(rows, row, buffered)
                for n in self.running
                if (row := records.row(self.requests[n])) is not None
            },
            sessions={int(name): slot_names(slot) for name, slot in self.scheduler.slots.items() if name not in busy},
            nodes=tree_states(tree),
            **self.memory.copies()._asdict(),
        )


def _name(session: int) -> str:
    """The engine's name of a session."""
    return str(session)
