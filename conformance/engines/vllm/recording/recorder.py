"""Records a scheduler of vLLM while it serves: every call that can change blocks, and what it did to them.

A ``Recorder`` sets hooks on the scheduler's own methods, and on those of its pool (``block_hooks``). No line of the
engine changes, and what the methods do and return is what they did before. A hook reads Python numbers of the scheduler
alone. No tensor is touched, so that nobody waits for a device. Where a hook fails, the recording ends, the log says so,
and the server goes on.

A recording says nothing about texts. The engine's hash of a block is put through BLAKE2b under a key, so that equal
texts have equal names in one recording, and nobody who has the file can try out texts. Processes of one server that
should name texts alike (ranks) are given one key.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from hashlib import blake2b
from operator import add
from typing import Any

from conformance.engines.vllm.recording import layout
from conformance.engines.vllm.recording.block_hooks import BlockHooks, Noted, numbers
from conformance.recording.block_records import (
    ABORT,
    ADD,
    DONE,
    KINDS,
    LAUNCH,
    NOBODY,
    OUTSIDE,
    RESET,
    START,
    packed,
)
from conformance.recording.segments import SegmentWriter

DIGEST_BYTES = 8
MOST_DIGESTS = 1 << 16  # that are kept, so that a hash is put through BLAKE2b once
NUMBER_OF = {kind: number for number, kind in enumerate(KINDS)}
# Kinds of moves that change reference counts.
COUNTS = frozenset({"get", "touch", "free", "unpin", "copy", "move_hashes", "free_copies"})
UNNAMED = frozenset({"get", "evict"})  # kinds of moves after which a block has no hash
NAMING = UNNAMED | {"cache", "cache_partial", "move_hashes"}  # kinds of moves that change what a block is found for


class Recorder:
    """The recorder of one scheduler. ``calls``: how many were written. ``failure``: the exception of a hook that has
    ended the recording, else ``None``.

    ``writer``: where records go. ``key``: 16 to 64 bytes. Raises ``NotRecordable`` if ``scheduler`` is none that can be
    recorded; then it has no hook.
    """

    def __init__(self, scheduler: Any, writer: SegmentWriter, key: bytes) -> None:
        layout.must_be_known(scheduler)
        self._scheduler, self._writer, self._key = scheduler, writer, key
        self._manager = scheduler.kv_cache_manager
        self._pool = self._manager.block_pool
        self._singles = self._manager.coordinator.single_type_managers
        self._text = layout.text_of(self._pool)
        self._group_of, self._hashes = layout.group_of(self._pool), layout.Hashes(scheduler)
        self.calls = 0
        self.failure: Exception | None = None
        self._digests: dict[bytes, bytes] = {}
        self._numbers: dict[str, int] = {}
        self._next = 1
        self._computed: dict[int, int] = {}  # by request, as it was recorded last
        self._tables: dict[tuple[int, int], list[Any]] = {}  # by request and group, likewise, with the engine's objects
        self._steps: dict[int, tuple[Any, list[Any]]] = {}  # by the id of its output, a step in flight and its record
        self._step = 0
        self._has_begun = self._inside = self._is_stopped = False
        self._clear()
        BlockHooks(self._manager, self._noted)
        self._watch("add_request", ADD, self._added)
        self._watch("schedule", LAUNCH, self._launched)
        self._watch("update_from_output", DONE, self._done)
        self._watch("finish_requests", ABORT, self._aborted)
        self._watch("reset_prefix_cache", RESET, _answer)
        self._see("_preempt_request", self._is_preempted)
        self._see("_free_request", self._is_over)
        self._see_copies()
        for request in scheduler.requests.values():
            self._knows(request)
        self._begin(not scheduler.running)

    def stop(self) -> None:
        """The recording ends, and the file is closed. The hooks stay, and do nothing."""
        if not self._is_stopped:
            self._is_stopped = True
            self._writer.close()

    def _safely(self, hook: Callable[..., None], *args: Any) -> None:
        """Runs a hook, unless the recording has ended. A server never fails for its recording."""
        if self._is_stopped:
            return
        try:
            hook(*args)
        except Exception as error:
            self.failure = error
            self.stop()
            logging.getLogger("slotproof").exception("the recording has ended, since a hook failed; the server goes on")

    # Hooks on the scheduler.

    def _watch(self, name: str, code: int, says: Callable[..., list[Any]]) -> None:
        """Records each call of a method from outside. ``says``: what only a call of this code says, from its answer and
        its arguments.
        """
        function = getattr(self._scheduler, name)

        def record(answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._write(code, name, says(answer, *args, **kwargs))

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._inside or self._is_stopped:
                return function(*args, **kwargs)
            if self._moves:
                self._safely(self._write, OUTSIDE, "", [])
            self._inside = True
            try:
                answer = function(*args, **kwargs)
            except Exception as error:
                self._safely(self._write, code, name, [], type(error).__name__)
                raise
            finally:
                self._inside = False
            self._safely(record, answer, args, kwargs)
            return answer

        setattr(self._scheduler, name, watched)

    def _see(self, name: str, sees: Callable[[Any], None]) -> None:
        """Sees for which request a method of the scheduler is called."""
        function = getattr(self._scheduler, name)

        def seen(request: Any, *args: Any, **kwargs: Any) -> Any:
            self._safely(sees, request)
            return function(request, *args, **kwargs)

        setattr(self._scheduler, name, seen)

    def _see_copies(self) -> None:
        """Sees which blocks copies give back, where the release makes copies."""
        self._is_of_copies = False
        function = layout.gives_back_copies(self._scheduler)
        if function is None:
            return

        def seen(*args: Any, **kwargs: Any) -> Any:
            self._is_of_copies = True
            try:
                return function(*args, **kwargs)
            finally:
                self._is_of_copies = False

        self._scheduler._free_cow_retained_blocks = seen

    def _is_preempted(self, request: Any) -> None:
        number = self._numbers[request.request_id]
        self._preempted.append(number)
        self._computed[number] = 0

    def _is_over(self, request: Any) -> None:
        self._ended[self._numbers[request.request_id]] = request.request_id

    # What calls say.

    def _knows(self, request: Any) -> int:
        number = self._numbers[request.request_id] = self._next
        self._next += 1
        self._computed[number] = request.num_computed_tokens
        return number

    def _added(self, _: Any, request: Any) -> list[Any]:
        known = self._numbers.get(request.request_id)
        number = known if known is not None else self._knows(request)
        return [number, request.num_prompt_tokens, request.request_id]

    def _launched(self, output: Any, *_: Any, **__: Any) -> list[Any]:
        of, computed = self._numbers.__getitem__, self._computed
        counts, cached = output.num_scheduled_tokens, output.scheduled_cached_reqs
        running = [*map(of, cached.req_ids)]
        new = [of(one.req_id) for one in output.scheduled_new_reqs]
        starts = [*zip(new, (one.num_computed_tokens for one in output.scheduled_new_reqs), strict=True)]
        if [*map(computed.__getitem__, running)] != cached.num_computed_tokens:
            pairs = zip(running, cached.num_computed_tokens, strict=True)
            starts += [(number, start) for number, start in pairs if computed[number] != start]
        computed.update(starts)
        requests = [*map(of, counts)]
        computed.update(zip(requests, map(add, map(computed.__getitem__, requests), counts.values()), strict=True))
        self._step += 1
        drafts = output.scheduled_spec_decode_tokens
        said = [
            *(self._step, requests, [*counts.values()], starts, new),
            [*map(of, cached.resumed_req_ids)],
            [(of(name), len(tokens)) for name, tokens in drafts.items()] if drafts else [],
            self._hashes.copies(output),
            [(of(name), *where) for name, where in self._hashes.states_inside() if name in counts],
        ]
        if counts:
            self._steps[id(output)] = output, said
        return said

    def _done(self, _: Any, output: Any, answer: Any, *__: Any) -> list[Any]:
        _, said = self._steps.pop(id(output), (None, None))
        if said is None:
            return [0, b"", []]
        self._has_known = True
        tokens, names = answer.sampled_token_ids, output.num_scheduled_tokens
        places = map(answer.req_id_to_index.__getitem__, names)
        sampled = bytes(map(len, map(tokens.__getitem__, places))) if len(tokens) else bytes(len(names))
        return [said[0], sampled, self._rolled_back(output.scheduled_spec_decode_tokens)]

    def _aborted(self, _: Any, request_ids: Any, *__: Any, **___: Any) -> list[Any]:
        asked = (request_ids,) if isinstance(request_ids, str) else request_ids
        known = self._numbers
        return [*known.values()] if asked is None else [known[name] for name in asked if name in known]

    def _rolled_back(self, drafts: Iterable[str]) -> list[tuple[int, int]]:
        """Of the requests whose drafts a step has verified, the number of computed tokens, where it has changed.

        That of other requests is seen when their next step is launched.
        """
        changed = []
        for name in drafts:
            request, number = self._scheduler.requests.get(name), self._numbers.get(name, NOBODY)
            if request is not None and self._computed.get(number) != request.num_computed_tokens:
                self._computed[number] = request.num_computed_tokens
                changed.append((number, request.num_computed_tokens))
        return changed

    # What is done to blocks.

    def _noted(self, noted: Noted) -> None:
        if not self._is_stopped:
            of_copies = self._is_of_copies and noted.kind == "free"
            self._moves.append(noted._replace(kind="free_copies") if of_copies else noted)

    def _said(self) -> list[Any]:
        """The moves of the call that is over, with the counts and the names that their blocks have now."""
        said = []
        for noted in self._moves:
            kind, blocks, request, group, first, _ = noted
            name: str | None = request if request is None or type(request) is str else request.request_id
            number = NOBODY if name is None else self._numbers.get(name, NOBODY)
            refs, names = [], []
            if kind in COUNTS:
                refs = [block.ref_cnt for block in blocks]
                if name is not None and number != NOBODY:
                    self._touched[number] = name
                    if kind == "touch":
                        self._got[number] = name
            if kind == "cache":
                names = self._compared(number, request.block_hashes, blocks, first, self._hashes.each(group))
            elif kind == "cache_partial":
                names = [self._named_part(number, noted), *self._compared(number, [], blocks, 0)]
            elif kind == "copy":
                self._says_of_block(number, name, first, self._hashes.each(group))
            elif kind in UNNAMED and [block for block in blocks if block.block_hash is not None]:
                names = self._compared(number, [], blocks, 0)
            at = NOBODY if group is None else group
            said.append((NUMBER_OF[kind], number, at, first, numbers(blocks), refs, names))
        return said

    def _compared(
        self, number: int, hashes: list[bytes], blocks: Iterable[Any], first: int, each: int = 1
    ) -> list[bytes]:
        """The digests of the hashes of whole blocks, which a request has at the places from ``first`` on; empty for a
        block that has none or is left out. Notes where the hash of the request's own text is another. ``each``: hashes
        of a block.
        """
        names, of_parts = [], self._hashes.are_of_parts
        for last, block in enumerate(blocks, start=first):
            if (
                block is None
                or block.is_null
                or block.block_hash is None
                or (of_parts and self._hashes.is_of_part(block))
            ):
                names.append(b"")
                continue
            text, place = self._text(block.block_hash), (last + 1) * each - 1
            names.append(self._digest(text))
            if place < len(hashes) and text != hashes[place]:
                self._own.append((number, place, self._digest(hashes[place])))
        return names

    def _named_part(self, number: int, noted: Noted) -> bytes:
        """The digest of the hash that a block got for the first tokens of a request. Notes where the hash of these is
        another.
        """
        text, own = self._text(noted.key), noted.request.block_hashes[self._hashes.count(noted.first) - 1]
        if text != own:
            self._own.append((number, self._hashes.count(noted.first) - 1, self._digest(own)))
        return self._digest(text)

    def _says_of_block(self, number: int, name: str | None, place: int, each: int) -> None:
        """Says the digests of a request's own text in a block of its table."""
        request = self._scheduler.requests.get(name)
        if request is not None:
            hashes = enumerate(request.block_hashes[place * each : (place + 1) * each], start=place * each)
            self._own += [(number, at, self._digest(own)) for at, own in hashes]

    def _parts(self) -> list[tuple[int, list[bytes]]]:
        """The blocks of this call that are found for parts, with the digests of these."""
        if not self._hashes.are_of_parts:
            return []
        changed = {id(block): block for noted in self._moves if noted.kind in NAMING for block in noted.blocks
                   if block is not None and not block.is_null}  # fmt: skip
        return self._parts_of(changed.values())

    def _parts_of(self, blocks: Iterable[Any]) -> list[tuple[int, list[bytes]]]:
        found = ((block.block_id, self._hashes.of_parts(block)) for block in blocks)
        return [(block, [self._digest(self._text(key)) for key in keys]) for block, keys in found if keys]

    def _digest(self, hashed: bytes) -> bytes:
        known = self._digests.get(hashed)
        if known is None:
            if len(self._digests) >= MOST_DIGESTS:
                self._digests.clear()
            known = self._digests[hashed] = blake2b(hashed, key=self._key, digest_size=DIGEST_BYTES).digest()
        return known

    def _changes(self) -> list[Any]:
        """How the tables have changed of the requests for which something was done."""
        changes = []
        for number, name in self._touched.items():
            for group, single in enumerate(self._singles):
                now = single.req_to_blocks.get(name, ())
                before = self._tables.get((number, group), [])
                keep = min(len(before), len(now))
                kept = now[:keep]
                changed = [] if kept == before[:keep] else _differences(before, kept)
                if changed or keep != len(before) or keep != len(now):
                    changes.append((number, group, keep, changed, numbers(now[keep:])))
                    self._tables[number, group] = list(now)
        return changes

    def _compare_found(self) -> None:
        """Compares what requests got from the prefix cache with their own texts."""
        for number, name in self._got.items():
            request = self._scheduler.requests.get(name)
            for group in range(len(self._singles) if request is not None else 0):
                table, each = self._tables.get((number, group), ()), self._hashes.each(group)
                self._compared(number, request.block_hashes, table, 0, each)

    # Records.

    def _clear(self) -> None:
        self._moves: list[Noted] = []
        self._touched: dict[int, str] = {}
        self._got: dict[int, str] = {}
        self._own: list[tuple[int, int, bytes]] = []
        self._ended: dict[int, str] = {}
        self._preempted: list[int] = []
        self._has_known = False

    def _write(self, code: int, function: str, rest: list[Any], raised: str = "") -> None:
        """A call is over."""
        if not self._has_begun:
            can_begin = self._has_known or not self._scheduler.running
            self._clear()
            self._begin(can_begin)
            return
        moves, changes = self._said(), self._changes()
        self._compare_found()
        record = [
            *(code, time.time_ns() // 1000, function, moves, changes, self._pool.get_num_free_blocks()),
            *(self._own, [*self._ended], self._preempted, raised, rest, self._parts()),
        ]
        self._writer.write(packed(record))
        self.calls += 1
        self._forget()
        self._clear()
        if self._writer.wants_start:
            self._begin(True)

    def _forget(self) -> None:
        """Requests that have left are not known any more."""
        for number, name in self._ended.items():
            self._computed.pop(number, None)
            self._numbers.pop(name, None)
            for group in range(len(self._singles)):
                self._tables.pop((number, group), None)

    def _begin(self, can_begin: bool) -> None:
        """Writes the whole state. A recording that begins while steps are in flight waits for the first step that it
        has seen launched: of earlier ones it does not know what they compute. While blocks wait to be given back, which
        no table has any more, no state is written, either: nobody could say who holds them.
        """
        if not can_begin or layout.gives_back_later(self._scheduler):
            return
        self._has_begun = True
        layout_of = layout.Layout(self._scheduler)
        named = [block for block in self._pool.blocks if block.block_hash is not None]
        requests = [self._request(request) for request in self._scheduler.requests.values()
                    if not request.is_finished()]  # fmt: skip
        places = [(self._numbers[name], *where) for name, where in self._hashes.states_apart() if name in self._numbers]
        record = [
            *(START, time.time_ns() // 1000, layout.ENGINE, layout.version(), layout_of.config, layout_of.unknown),
            *(self._pool.get_num_free_blocks(), [b.ref_cnt for b in self._pool.blocks[1:]]),
            [(b.block_id, *self._named(b)) for b in named if not b.is_null and not self._hashes.is_of_part(b)],
            *(requests, [said for _, said in self._steps.values()], self._parts_of(self._hashes.with_parts()), places),
        ]
        self._writer.write(packed(record), start=True)

    def _named(self, block: Any) -> tuple[int, bytes]:
        return self._group_of(block.block_hash), self._digest(self._text(block.block_hash))

    def _request(self, request: Any) -> list[Any]:
        number = self._numbers[request.request_id]
        for group, single in enumerate(self._singles):
            self._tables[number, group] = list(single.req_to_blocks.get(request.request_id, ()))
        self._computed[number] = request.num_computed_tokens
        drafts = [dict(said[6]).get(number, 0) for _, said in self._steps.values() if number in said[1]]
        tables = [numbers(self._tables[number, group]) for group in range(len(self._singles))]
        return [number, request.request_id, layout.status(request), request.num_computed_tokens, tables, drafts]


def _differences(before: list[Any], now: list[Any]) -> list[int]:
    """Place and block, wherever a place has another block than before."""
    found: list[int] = []
    for place, (old, new) in enumerate(zip(before, now, strict=False)):
        if old is not new:
            found += (place, *numbers([new]))
    return found


def _answer(answer: Any, *_: Any, **__: Any) -> list[Any]:
    return [bool(answer)]
