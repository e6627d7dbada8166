"""What an engine must implement to be driven as the room ``server``: a whole server, with its own scheduler.

A client sends messages; the server decides everything else. While it runs, it tells what it did to its memory, one
*event* at a time, and waits until the run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from conformance.driver.protocol import Engine, Json
from conformance.stems.cache.protocol import CacheSnapshot

POLL, ADMITTED = "poll", "admitted"
DEAF = "deaf"
FINDS = "hits"  # an ability: requests go on after what the tree has of their texts
TRANSFER = "transfer"  # an ability: prompts come from a prefill server
SENDS = "send"  # an ability: prompts go to a decode server
NOT_SAMPLED = 0  # the token id in an answer that nobody asked for
Pause = Literal["retract", "in_place"]
TransferStep = Literal["registers", "completes", "fails", "breaks", "writes", "stops"]
SendStep = Literal["asks", "asks_rest", "cancels", "takes", "reads", "breaks_off", "hurries"]


class ServerPass(NamedTuple):
    """What a forward pass computes of a request: the tokens from ``start`` up to ``end`` of its text.

    ``row``: the engine's number of its row. ``tokens``: the token ids that are computed. ``slots``: where their KV
    cache is written. ``samples``: a token follows; else the engine puts ``NOT_SAMPLED`` in its place. A pass that
    verifies a draft has its first token alone in ``tokens``, and ``end`` is where the accepted ones end; what it
    computes of the others goes to the rest of ``slots``. ``tracked``: the
    state slot of its track buffer to which a state is written, and the length of the text whose state it is; ``None``
    where the pass writes none. ``drafted``: it verifies a draft. ``uncleared``: the state slot of a pass that begins
    its text, where that slot was not cleared before; else 0.
    """

    request: int
    row: int
    start: int
    end: int
    tokens: tuple[int, ...]
    slots: tuple[int, ...]
    samples: bool = True
    tracked: tuple[int, int] | None = None
    drafted: bool = False
    uncleared: int = 0

    @property
    def sampled(self) -> range:
        """The positions of the tokens that it samples."""
        return range(self.start + 1 if self.drafted else self.end, self.end + 1)


class Destination(NamedTuple):
    """Where the prefill server of a decode server is to write what it computes of a request.

    ``slots``: of the tokens from ``start`` on, up to a whole page. ``swa_slots``: in the pool for layers with sliding
    window attention, of those from ``swa_start`` on. ``state``: the state slot; 0 in a model without states.
    """

    start: int
    slots: Sequence[int]
    swa_start: int
    swa_slots: Sequence[int]
    state: int


class Sent(NamedTuple):
    """What a decode server has got by one step of a prefill server's transfer.

    ``start``: so many tokens of the prompt the decode server has already. ``slots``: pairs of the place of a token in
    the prompt and the slot that was read for it, up to whole pages; ``swa_slots``: likewise of the pool for layers with
    sliding window attention. ``state``: the state slot that was read, 0 where none was. ``buffer``: the buffer that was
    read for the first token of the answer, ``None`` where none was; ``first`` is that token, and ``request`` the one of
    which the buffer says that it is. ``told``: the decode server has heard that all is there, or that the transfer has
    failed; ``None`` where it has heard nothing, or waits no longer. ``done``: for so many of its steps the prefill
    server had waited.
    """

    start: int
    slots: Sequence[tuple[int, int]]
    buffer: int | None = None
    first: int = 0
    request: int = 0
    told: bool | None = None
    done: int = 0
    swa_slots: Sequence[tuple[int, int]] = ()
    state: int = 0


class RowCopy(NamedTuple):
    """The KV cache of a request was copied to memory of its own (``saved``), or back from it. ``copy``: its number.

    ``slots``: of its tokens from the first on. ``swa_slots``: those to which they are mapped, 0 where to none; empty in
    a model without layers with sliding window attention. Of a copy that comes back: the slots into which its parts
    went, in their order, 0 where one went nowhere. ``state``: its state slot; 0 where none is copied. ``behind``: the
    steps before the copy: the first so many of the server have written before it.
    """

    saved: bool
    copy: int
    slots: Sequence[int]
    swa_slots: Sequence[int]
    state: int
    behind: int = 0


class ServedRequest(NamedTuple):
    """A request as the scheduler has it.

    ``tokens``: its input. ``sampled``: its answer so far. ``session``: 0 if it has none, or was taken out of it.
    ``prefix``: as many tokens of its text it has matched. ``sent``: as many tokens of its answer count, where it has
    ended; ``None`` while it has not. ``turned_away``: the engine will abort it, and has replaced its input.
    """

    tokens: list[int]
    sampled: list[int]
    session: int
    prefix: int
    sent: int | None
    turned_away: bool


class ServerEvent(NamedTuple):
    """What a server did.

    ``kind``: ``arrived`` (requests came and wait), ``matched`` (a request that waits was matched), ``admitted`` (a
    request that waits goes into the next batch, and has its lock on the tree; its row comes with ``extended``),
    ``extended`` (the requests of a batch got slots for a prefill, new ones their rows too), ``decoded`` (they got a
    slot for one token each), ``passed`` (a forward pass was launched), ``verified`` (the result of a pass over drafts
    has come), ``resulted`` (the result of the oldest step in flight has come, so that its passes are done; told by
    servers with mamba states or host memory), ``cached`` (a request that goes on put tokens into the tree), ``left`` (a
    request gave its row up: it ended, was aborted or retracted, or its session keeps the row), ``closed`` (a session
    ended), ``flushed``, ``group_begun``, ``group_ended``, ``states_begun`` (state slots were set aside for the requests
    of a batch), ``states_ended``, ``loaded_back`` (a prefix that host memory has got slots on the device; told by
    servers with host memory), ``tracks`` (track buffers got or gave back a slot), ``poll`` (the server reads its
    messages next), or ``deaf`` (its loop goes round and round, and reads no message). A decode server, whose prompts a
    prefill server computes, also tells ``preallocated`` (a request has its row, with slots for its prompt, or for what
    it had computed when it gave its row up), ``transfer_begun`` (the prefill server knows where to write a prompt, and
    may write from now on) and ``transfer_ended`` (the scheduler has heard that a prompt is there, and the first token
    of the answer).
    ``requests``: those it did it to, in order. ``passes``: of ``passed``. ``session``: of ``closed``. ``batch``: for
    ``poll``, how many requests were in the batch of the turn that ends there; its ``requests`` are all that the server
    has, and ``waiting`` are those of them that wait, in the order of the queue. ``wanted``: of ``states_begun``, how
    many slots are asked for. ``destination``: of ``transfer_begun``. ``backups``: the copies that a decode server has
    made and loaded since the last event. ``done``: of a decode server, for how many of its steps, from the first on, it
    had waited, so that their passes write no more; of ``transfer_begun``, when the prefill server was told.
    ``unanswered``: of ``poll``, the requests that are no more on the server, and whose clients have neither taken them
    back nor been told that they have ended.
    """

    kind: str
    requests: Mapping[int, ServedRequest] = {}
    passes: Sequence[ServerPass] = ()
    session: int = 0
    batch: int = 0
    waiting: Sequence[int] = ()
    wanted: int = 0
    destination: Destination | None = None
    backups: Sequence[RowCopy] = ()
    done: int = 0
    unanswered: Sequence[int] = ()


class ServerEngine(Engine, Protocol):
    """A server. Configuration: ``model`` and ``flags``, the launch flags of the server (see ``ServerConfig``).

    ``shape``: a configuration of the stem ``cache`` for the memory that the server has built (see ``CacheEngine``).
    ``overlaps``: it begins a step before it knows the result of the last one. ``lacks`` may name four abilities:
    ``counts_missing`` (see ``LockRefEngine``), ``hits``, of a server that was launched to find nothing in its tree,
    ``transfer``, of one that computes its prompts itself, and ``send``, of one that is no prefill server.
    """

    shape: Json
    overlaps: bool

    def generate(
        self,
        request: int,
        session: int,
        tokens: list[int],
        longest: int,
        fork: int,
        stop: int | None,
        priority: int | None,
    ) -> None:
        """A client sends a request. It is there at the next poll.

        ``tokens``: the input, of a session's turn what follows its text. ``longest``: the most tokens of its answer.
        At the position n of its text ``token(n, fork)`` is sampled. ``stop``: a token id that ends the answer.
        ``priority``: ``None`` where the client says nothing of it.
        """

    def abort(self, request: int) -> None:
        """A client takes a request back."""

    def open(self, session: int, turns: int | None) -> None:
        """A client opens a streaming session. ``turns``: after so many turns in which it is not used it may end."""

    def close(self, session: int) -> None:
        """A client closes a session."""

    def flush(self) -> None:
        """A client asks that the cache be emptied."""

    def pause(self, mode: Pause) -> None:
        """A client pauses the server: ``retract`` takes what runs off the rows, ``in_place`` leaves it there."""

    def resume(self) -> None:
        """A client lets a paused server go on."""

    def update_weights(self) -> None:
        """A client loads new weights; the cache is emptied, since it comes from the old ones."""

    def release_memory(self) -> None:
        """A client has the server give its memory back to the device."""

    def resume_memory(self) -> None:
        """A client has the server take its memory again."""

    def transfer(self, request: int, step: TransferStep) -> None:
        """The prefill server of a decode server does something for a request: ``registers`` (takes it, so that the
        decode server may ask for its prompt), ``completes`` (has written all, and says so), ``fails`` (says that it
        failed, and writes no more), ``breaks`` (says that it failed, and a write goes on); and after that, or after
        the decode server has told it to stop, ``writes`` (writes all, and then says that it has stopped, where it can)
        or ``stops`` (says so, and has written nothing).
        """

    def transfer_steps(self, request: int) -> Sequence[TransferStep]:
        """What the prefill server of a decode server can do next for a request."""

    def send(self, request: int, step: SendStep) -> Sent:
        """A decode server does something for a request of a prefill server: ``asks`` (says where its prompt is to be
        written), ``asks_rest`` (likewise, and has some pages of it already), ``cancels`` (wants it no more). Or the
        worker that sends prompts goes on: ``takes`` (a part of the prompt that was handed to it), ``reads`` (reads the
        memory in which it is, and goes on) or ``breaks_off`` (the transfer fails). The run does not ask for the last
        step, ``hurries``: from then on the worker takes and reads each part of this prompt as soon as it can, also
        within a turn.
        """

    def send_steps(self, request: int) -> Sequence[SendStep]:
        """What a decode server, or the worker that sends prompts, can do next for a request."""

    def kept_buffers(self) -> int:
        """How many of a prefill server's buffers for first tokens are not free, or free twice."""

    def go_on(self) -> ServerEvent:
        """The server runs on until it has done something to its memory, or polls."""

    def grants_alone(self, request: int) -> bool:
        """Whether the server's own admission takes this request, if no other one waits. It is asked on a copy of the
        server; nothing changes.
        """

    def idle_problems(self) -> list[str]:
        """What the server's own check of its memory says when it is idle; empty where all is well, or nothing is
        checked.
        """

    def cache_snapshot(self) -> CacheSnapshot:
        """Reads everything as it is now, and changes nothing."""
