"""Stands for the prefill server that computes the prompts of a decode server, and writes them into its memory.

The decode server's manager and receivers of transfers are the release's own, those of ``mooncake``, with their
messages. What the prefill server does, and when, the run says (``PrefillServer.does``). It may go on writing after the
decode server has told it to stop, and after it has said that it failed: where ``mooncake`` runs out of time, its write
goes on, and nobody can say when it ends. Easier: it has one process, and a write is done at one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlparse

from conformance.driver.protocol import EngineError
from conformance.engines.importing import Imported
from conformance.engines.sglang.server.network import HttpAnswer, Inbox
from conformance.stems.server.protocol import Destination, TransferStep

ADDRESS, PORT, BOOTSTRAP_PORT = "127.0.0.2", 7002, 8998
RANK = b"0"  # it has one process
FAILED, SUCCESS = b"0", b"4"  # of the release's ``KVPoll``
REGISTERS, ABORTS, ACKNOWLEDGES = b"None", b"ABORT", b"ABORT_ACK"  # the first part of a message
CONNECTIONS, COMMON = "disaggregation.mooncake.conn", "disaggregation.common.conn"
# Two groups of processes share the requests: a decode server asks which of them has one.
INFO = {
    **{"attn_tp_size": 1, "attn_cp_size": 1, "dp_size": 2, "pp_size": 1, "page_size": None, "kv_cache_dtype": None},
    **{"follow_bootstrap_room": False, "prefill_http_port": 30000},
}
RECURRENT, WINDOW = "mamba", "swa"  # kinds of state, beside the pages of the full pool


@dataclass
class TransferRoom:
    """One transfer. ``registered``: the prefill server has taken the request. ``asked``: the message by which the
    decode server has said where it is to write. ``stops``: the decode server has told it to stop; ``generation``: the
    number by which it wants to hear that it did. ``broken``: it cannot say whether it has stopped. ``done``: for so
    many forward passes the decode server had waited when it sent the message.
    """

    registered: bool = False
    asked: Any = None
    stops: bool = False
    generation: tuple[bytes, ...] = ()
    broken: bool = False
    done: int = 0


class PrefillServer:
    """The prefill server of one decode server. ``inbox``: where the decode server listens. ``passes_done``: for how
    many forward passes it has waited.
    """

    def __init__(self, imported: Imported, passes_done: Callable[[], int], inbox: Inbox) -> None:
        self.inbox, self._passes_done = inbox, passes_done
        self._connections = imported.module(CONNECTIONS)
        known = imported.module(COMMON).PrefillServerInfo.__dataclass_fields__
        self._info = {name: value for name, value in INFO.items() if name in known}
        self._rooms: dict[int, TransferRoom] = {}

    def room(self, number: int) -> TransferRoom:
        """The room of this number."""
        return self._rooms.setdefault(number, TransferRoom())

    def hears(self, frames: list[bytes]) -> None:
        """A message of the decode server."""
        if frames[0] == REGISTERS:
            return
        if frames[0] == ABORTS:
            number = int(frames[1])
            room = self.room(number)
            room.stops, room.generation = True, tuple(frames[4:5])
            if room.asked is None:
                self._acknowledges(number, room)
        else:
            asked = self._connections.TransferInfo.from_zmq(frames)
            room = self.room(asked.room)
            room.asked, room.stops, room.broken, room.done = asked, False, False, self._passes_done()

    def is_asked(self, number: int) -> bool:
        """The decode server has said where a transfer is to be written."""
        return self.room(number).asked is not None

    def steps(self, number: int) -> list[TransferStep]:
        """What the prefill server can do next with a transfer."""
        room = self.room(number)
        if not room.registered:
            return ["registers"]
        if room.asked is None:
            return []
        if room.broken:
            return ["writes", "stops"]
        return ["completes", "writes", "stops"] if room.stops else ["completes", "fails", "breaks"]

    def destination(self, number: int, kinds: list[str], page_size: int, length: int) -> Destination:
        """Where a transfer of a text of so many tokens is written. ``kinds``: of the decode server's states."""
        asked = self.room(number).asked
        states = dict(zip(kinds, asked.dst_state_indices, strict=True))
        window = _slots(states.pop(WINDOW, ()), page_size)
        state = states.pop(RECURRENT, [0])
        if states:
            raise EngineError(f"states of the kinds {sorted(states)} are transferred, which nobody follows")
        pages = -(-length // page_size)
        return Destination(
            start=asked.decode_prefix_len or 0,
            slots=_slots(asked.dst_kv_indices.tolist(), page_size),
            swa_start=pages * page_size - len(window),
            swa_slots=window,
            state=int(state[0]),
        )

    def does(self, number: int, step: TransferStep, write: Callable[[int], None]) -> None:
        """The prefill server goes on with a transfer. ``write`` writes the first token into a buffer of this number."""
        room = self.room(number)
        if step == "registers":
            room.registered = True
            return
        if step == "completes":
            write(int(room.asked.dst_aux_index))
            self._says(number, SUCCESS)
        elif step in ("fails", "breaks"):
            room.broken = step == "breaks"
            self._says(number, FAILED)
        if step != "breaks":
            room.asked = None
            self._acknowledges(number, room)

    def _says(self, number: int, status: bytes) -> None:
        self.inbox.put([str(number).encode(), status, RANK])

    def _acknowledges(self, number: int, room: TransferRoom) -> None:
        if room.stops and not room.broken:
            self.inbox.put([ACKNOWLEDGES, str(number).encode(), RANK, *room.generation])

    def get(self, url: str) -> HttpAnswer:
        """``GET``: what the prefill server is, where a process of it listens, and whether it is there."""
        asked = parse_qs(urlparse(url).query)
        if asked.get("target_tp_rank") == ["-1"]:
            return HttpAnswer(200, self._info)
        return HttpAnswer(200, {"rank_ip": ADDRESS, "rank_port": PORT})

    def put(self, url: str, body: Any) -> HttpAnswer:
        """``PUT``."""
        raise EngineError(f"a decode server calls {url} with {body}, which nobody answers")

    def reads(self, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]) -> None:
        """Nobody reads the memory of a decode server."""
        raise EngineError(f"{len(lengths)} parts of the memory of a decode server are read ({sources} to {targets})")

    def post(self, url: str, body: Any) -> HttpAnswer:
        """``POST``: which of its processes have these rooms; or it computes a text again, for which it has a room."""
        path = urlparse(url).path
        if path == "/generate":
            return HttpAnswer(200, {})
        if path != "/query_dp_ranks":
            raise EngineError(f"a decode server calls {url}, which nobody answers")
        known = [number for number in body["bootstrap_rooms"] if self.room(number).registered]
        return HttpAnswer(200, {str(number): 0 for number in known})


def _slots(pages: Any, page_size: int) -> list[int]:
    return [int(page) * page_size + at for page in pages for at in range(page_size)]
