"""Stands for the decode servers to which a prefill server sends the prompts that it has computed.

The prefill server's manager, senders and transfer worker are the release's own, those of ``mooncake``, with their
messages. What a decode server does, and how far the worker goes, the run says (``DecodeServers.does``). The worker
stops before it takes a chunk, and before each call that reads memory, so anything may come between a chunk that was
handed over, the look at its status, and the read. With the last chunk the window before the end of the prompt is sent
in models with sliding window layers, and the recurrent state in models that have one. Easier: a read of one chunk is
done at one moment, and each transfer has one decode process.

A transfer that fails ends the decode server: the next room is asked for by another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy

from conformance.driver.protocol import EngineError
from conformance.engines.importing import Imported
from conformance.engines.sglang.server.network import HttpAnswer, Inbox
from conformance.engines.sglang.server.receiving import (
    ABORTS,
    ACKNOWLEDGES,
    CONNECTIONS,
    FAILED,
    RECURRENT,
    SUCCESS,
    WINDOW,
)
from conformance.engines.sglang.server.storing import StoppingThread, this_worker
from conformance.stems.server.protocol import SendStep, Sent

ADDRESS, FIRST_PORT = "127.0.0.3", 7100
SHIFT = 40  # each buffer of a decode server begins at a multiple of 2 to this power
# The first of the buffers for first tokens, and of those for the states of each kind; those of the full pool come from
# 1 on.
AUXILIARY, STATES, MOST = 1_000_000, 2_000_000, 1_000
PAGES_OF_TOKENS = ""  # the kind of what is in the full pool
PAGES = 1 << 10  # so many pages of the decode server are for one room
ASKS: tuple[SendStep, ...] = ("asks", "asks_rest")


@dataclass
class SendRoom:
    """One transfer. ``length``: of the prompt. ``start``: so many tokens of it the decode server has. ``asked``: it has
    said where the others are to be written. ``over``: it does not ask, or waits no longer.
    """

    length: int
    start: int = 0
    asked: bool = False
    over: bool = False


@dataclass
class Arrived:
    """What a decode server has got since the last look. ``pages``: by kind and buffer, pairs of the decode server's
    page, or state slot, and the one that was read. ``told``: what it was told at last.
    """

    room: int = 0
    pages: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)
    buffer: int | None = None
    told: bool | None = None


class ChunkQueue:
    """The queue of a transfer worker, which stops before it takes a chunk."""

    def __init__(self) -> None:
        self.chunks: list[Any] = []

    def put(self, chunk: Any) -> None:
        """A chunk is handed over."""
        self.chunks.append(chunk)

    def get(self) -> Any:
        """The next chunk."""
        now = this_worker("chunks of a prefill server are taken outside of its worker")
        now.stops()
        while not self.chunks:
            now.stops()
        return self.chunks.pop(0)


class DecodeServers:
    """The decode servers of one prefill server. ``inbox``: where the prefill server listens. ``kv``: its manager;
    ``window``: how many tokens its sliding window layers read before a token, 0 where it has none.
    """

    def __init__(self, imported: Imported, inbox: Inbox) -> None:
        self.inbox = inbox
        self.window = 0
        self._connections = imported.module(CONNECTIONS)
        self._rooms: dict[int, SendRoom] = {}
        self._registered = False
        self._port = FIRST_PORT
        self._stands: StoppingThread | None = None  # the worker that stands before a read
        self._reads_for = 0  # the room of that read
        self._arrived = Arrived()
        self.kv: Any = None  # the prefill server's manager

    # What the run says.

    def steps(self, number: int, length: int | None) -> list[SendStep]:
        """What can happen next for a room. ``length``: of its prompt, where the client has sent it."""
        room = self._rooms.get(number)
        if room is None:
            return [] if length is None else [*ASKS, "cancels"]
        gives_up: list[SendStep] = [] if room.over else ["cancels"]
        if self._stands is not None:
            return ["reads", "breaks_off", *gives_up] if self._reads_for == number else gives_up
        if self._next() == number:
            return ["takes", *gives_up]
        return gives_up

    def does(self, number: int, step: SendStep, length: int) -> None:
        """A decode server, or the transfer worker, does this for a room."""
        self._arrived = Arrived(number)
        room = self._rooms.setdefault(number, SendRoom(length))
        if step in ASKS:
            self._asks(number, room, step == "asks_rest")
        elif step == "cancels":
            room.over = True
            self._cancels(number)
        elif step == "takes":
            self._goes_on(self._worker(), number)
        else:
            assert self._stands is not None
            worker, self._stands = self._stands, None
            if step == "breaks_off":
                self._registered = False
                self._port += 1
            self._goes_on(worker, number, "well" if step == "reads" else "fails")

    def _goes_on(self, worker: StoppingThread, number: int, outcome: Any = "well") -> None:
        worker.go_on(outcome)
        if worker.calls:
            self._stands, self._reads_for = worker, number

    def _queues(self) -> list[tuple[ChunkQueue, StoppingThread]]:
        return list(zip(self.kv.transfer_queues, self.inbox.workers, strict=True))

    def _next(self) -> int | None:
        """The room of the chunk that a worker takes next."""
        return next((queue.chunks[0].room for queue, _ in self._queues() if queue.chunks), None)

    def _worker(self) -> StoppingThread:
        return next(worker for queue, worker in self._queues() if queue.chunks)

    # Messages of a decode server.

    def _asks(self, number: int, room: SendRoom, rest: bool) -> None:
        """It says where the prompt is to be written; with ``rest``, what comes behind pages that it has. The release's
        own receiver writes its messages.
        """
        page = int(self.kv.kv_args.page_size)
        room.asked = True
        room.start = (room.length - 1) // page // 2 * page if rest else 0
        receiver = self._receiver(number)
        if not self._registered:
            self._registered = True
            receiver._register_kv_args()
        places = {
            PAGES_OF_TOKENS: self._places(number, room, room.start),
            WINDOW: self._places(number, room, max(room.start, room.length - self.window)),
            RECURRENT: numpy.array([number], dtype=numpy.int32),
        }
        states = [places[kind] for kind in self._kinds()]
        receiver.send_metadata(
            places[PAGES_OF_TOKENS], aux_index=number, state_indices=states, decode_prefix_len=room.start
        )

    def _places(self, number: int, room: SendRoom, start: int) -> Any:
        """The pages of the decode server for what a prompt has from the page of the token ``start`` on."""
        page = int(self.kv.kv_args.page_size)
        return numpy.arange(number * PAGES + start // page, number * PAGES + -(-room.length // page), dtype=numpy.int32)

    def _kinds(self) -> list[str]:
        """The kinds of the states that are sent."""
        kinds = [str(kind.value) for kind in self.kv.kv_args.state_types]
        if strange := {*kinds} - {WINDOW, RECURRENT}:
            raise EngineError(f"states of the kinds {sorted(strange)} are sent, which nobody follows")
        return kinds

    def _receiver(self, number: int) -> Any:
        """A receiver of the release, of a decode server that is like the prefill server."""
        inbox, base = self.inbox, self._connections.MooncakeKVReceiver

        class Receiver(base):  # type: ignore[misc, valid-type]
            """Its messages go to the prefill server."""

            def _connect_to_bootstrap_server(self, *_: Any) -> tuple[Any, Any]:
                return SimpleNamespace(send_multipart=inbox.put), nullcontext()

        found = Receiver.__new__(Receiver)
        found.kv_mgr, found.bootstrap_room, found.required_dst_info_num = self._manager(), number, 1
        found.session_id = found.kv_mgr.get_session_id()
        found.bootstrap_infos = [{"rank_ip": ADDRESS, "rank_port": self._port, "is_dummy": False}]
        return found

    def _manager(self) -> Any:
        """The manager of this decode server."""
        args, base = self.kv.kv_args, self._connections.MooncakeKVManager
        like = SimpleNamespace(**vars(args))
        like.kv_data_ptrs = [(1 + at) << SHIFT for at in range(len(args.kv_data_ptrs))]
        like.aux_data_ptrs = [(AUXILIARY + at) << SHIFT for at in range(len(args.aux_data_ptrs))]
        like.state_data_ptrs = [
            [(STATES + MOST * kind + at) << SHIFT for at in range(len(buffers))]
            for kind, buffers in enumerate(args.state_data_ptrs)
        ]
        found = base.__new__(base)
        found.kv_args, found.local_ip, found.rank_port = like, ADDRESS, self._port
        session = f"{ADDRESS}:{self._port}"
        found.engine = SimpleNamespace(get_session_id=lambda: session)
        for name in ("attn_tp_size", "dcp_size", "dcp_rank", "enable_staging"):
            setattr(found, name, getattr(self.kv, name))
        return found

    def _cancels(self, number: int) -> None:
        at = (ADDRESS.encode(), str(self._port).encode(), b"1")
        self.inbox.put([ABORTS, str(number).encode(), *at])

    # What the prefill server does.

    def reads(self, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]) -> None:
        """Memory of the prefill server is read, and written to a decode server."""
        args = self.kv.kv_args
        for source, target, length in zip(sources, targets, lengths, strict=True):
            buffer, offset = target >> SHIFT, target & ((1 << SHIFT) - 1)
            if AUXILIARY <= buffer < STATES:
                if buffer == AUXILIARY:
                    self._arrived.buffer = (source - args.aux_data_ptrs[0]) // args.aux_item_lens[0]
                continue
            if buffer >= STATES:
                kind, at = divmod(buffer - STATES, MOST)
                base, size, name = args.state_data_ptrs[kind][at], args.state_item_lens[kind][at], self._kinds()[kind]
            else:
                base, size, name = args.kv_data_ptrs[buffer - 1], args.kv_item_lens[buffer - 1], PAGES_OF_TOKENS
            pairs = self._arrived.pages.setdefault((name, buffer), [])
            pairs += [((offset + at) // size, (source - base + at) // size) for at in range(0, length, size)]

    def hears(self, frames: list[bytes]) -> None:
        """A message of the prefill server."""
        if frames[0] == ACKNOWLEDGES:
            return
        number, status = int(frames[0]), frames[1]
        if status not in (FAILED, SUCCESS):
            raise EngineError(f"a prefill server says {status!r} of a room, which nobody follows")
        if number == self._arrived.room:
            self._arrived.told = status == SUCCESS
        if number in self._rooms:
            self._rooms[number].over = True

    def got(self, number: int) -> Sent:
        """What a decode server has got of a room by the last step."""
        found, states = self._arrived, self._layers(RECURRENT)
        return Sent(
            start=self._rooms[number].start,
            slots=self._slots(number, PAGES_OF_TOKENS),
            swa_slots=self._slots(number, WINDOW),
            state=states[0][1] if states else 0,
            buffer=found.buffer,
            told=found.told,
        )

    def _slots(self, number: int, kind: str) -> list[tuple[int, int]]:
        """Pairs of the place of a token in the prompt and the slot that was read for it."""
        page = int(self.kv.kv_args.page_size)
        return [
            ((to - number * PAGES) * page + at, source * page + at)
            for to, source in self._layers(kind)
            for at in range(page)
        ]

    def _layers(self, kind: str) -> list[tuple[int, int]]:
        """What has arrived of this kind, in each of its layers."""
        layers = [pages for (name, _), pages in self._arrived.pages.items() if name == kind]
        if any(pages != layers[0] for pages in layers):
            raise EngineError("the layers of a chunk are sent to different places, which nobody follows")
        return layers[0] if layers else []

    def put(self, url: str, body: Any) -> HttpAnswer:
        """``PUT``: the prefill server says where it listens."""
        del url, body
        return HttpAnswer(200, {})

    def get(self, url: str) -> HttpAnswer:
        """``GET``."""
        raise EngineError(f"a prefill server calls {url}, which nobody answers")

    def post(self, url: str, body: Any) -> HttpAnswer:
        """``POST``."""
        raise EngineError(f"a prefill server calls {url} with {body}, which nobody answers")
