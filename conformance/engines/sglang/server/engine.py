"""One server of SGLang as an engine of the room ``server``.

The server's event loop runs in a greenlet of its own. It stops where it polls for messages, and after each watched call
(``watching``); ``go_on`` lets it run to the next stop.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial, wraps
from typing import Any, Protocol

import greenlet
import torch

from conformance.driver.forking import asked
from conformance.driver.protocol import EngineError, Json, Key, PublishedEvents, Unsupported
from conformance.engines.importing import line_of
from conformance.engines.sglang.releases import records
from conformance.engines.sglang.releases.release import Release
from conformance.engines.sglang.releases.server_parts import calls as loop_calls
from conformance.engines.sglang.releases.server_parts import copies_by_engine, has_host_memory
from conformance.engines.sglang.server.clock import TURN, ServerClock
from conformance.engines.sglang.server.copying import CopyDevice
from conformance.engines.sglang.server.decoding import DECODES_CACHE, DecodeSide, is_decode_server
from conformance.engines.sglang.server.drafting import Drafts
from conformance.engines.sglang.server.event_socket import Frames, PublishedBatches
from conformance.engines.sglang.server.host_memory import HostWatch
from conformance.engines.sglang.server.launching import Launcher
from conformance.engines.sglang.server.network import Network
from conformance.engines.sglang.server.prefilling import PrefillSide, is_prefill_server
from conformance.engines.sglang.server.reading import ServerReader
from conformance.engines.sglang.server.receiving import ADDRESS, BOOTSTRAP_PORT, PrefillServer
from conformance.engines.sglang.server.runner import runner_class
from conformance.engines.sglang.server.sending import DecodeServers
from conformance.engines.sglang.server.sockets import Socket
from conformance.engines.sglang.server.standing_in import RUNNER, Place, put_in_place
from conformance.engines.sglang.server.storage_memory import StorageWatch
from conformance.engines.sglang.server.storing import THREADS
from conformance.engines.sglang.server.streams import PassDevice, PassesInFlight
from conformance.engines.sglang.server.watching import (
    ASKED,
    DECODES,
    LOADED_BACK,
    RESULTED,
    STATES_BEGUN,
    STATES_ENDED,
    ServerWatch,
    watch_functions,
)
from conformance.stems.cache.protocol import CacheSnapshot
from conformance.stems.host_server.protocol import HostPoolSnapshot, HostStep, StorageOutcome, StorageThread
from conformance.stems.lock_ref.protocol import LockRefSnapshot
from conformance.stems.requests.request import token
from conformance.stems.server.protocol import (
    ADMITTED,
    DEAF,
    FINDS,
    POLL,
    SENDS,
    TRANSFER,
    Pause,
    SendStep,
    Sent,
    ServedRequest,
    ServerEvent,
    ServerPass,
    TransferStep,
)

INPUT = "scheduler_input"  # the socket to which clients' messages come
FLUSHED, OF_NOBODY = "flushed", ("evicted", "group_begun", "group_ended", STATES_ENDED, RESULTED, LOADED_BACK)
BARRIER = "ENABLE_WAR_BARRIER"
FORCE_MISS = "RADIX_FORCE_MISS"
STREAMING = "--enable-streaming-session"
PREFIX = "SGLANG_"  # of the variables of its environment
CAPACITY = 1 << 20  # of a session, in characters of its text
# Calls that the loops of releases make in each turn, and how many of them in a row without a poll are a loop that reads
# no message. With the rarest polls that are drawn a loop polls in each third turn.
OF_LOOP = ("ingest_requests", "recv_requests", "process_input_requests", "get_next_batch_to_run")
GOES_ROUND = 1000
FROM_PREFILL = {"bootstrap_host": ADDRESS, "bootstrap_port": BOOTSTRAP_PORT}


@cache
def servers(release: Release) -> Servers:
    """The servers of a release in this process. ``Unsupported`` where its real scheduler cannot run here, and why."""
    try:
        return Servers(release)
    except EngineError as error:
        raise Unsupported(str(error)) from error


def make_host_server(release: Release, config: Json) -> SGLangServer:
    """As ``make_server``, a server with host memory."""
    if not copies_by_engine(release.imported):
        raise Unsupported("the release has no engine of its own for copies to and from host memory")
    return SGLangServer(servers(release), _with_barrier(config), with_host=True)


def make_server(release: Release, config: Json) -> SGLangServer:
    """A server of a configuration. ``Unsupported`` where the release refuses its flags, or no server runs here."""
    flags = config["flags"]
    shares = is_decode_server(flags) or is_prefill_server(flags)
    return SGLangServer(servers(release), _with_barrier(config) if shares else config)


def _with_barrier(config: Json) -> Json:
    """As on CUDA, the scheduler keeps what it writes behind what passes in flight read."""
    return config | {"environment": {**config.get("environment", {}), BARRIER: "1"}}


class Servers:
    """What the servers of one release in this process share."""

    def __init__(self, release: Release) -> None:
        imported = release.imported
        self.release = release
        runtime = imported.module("layers.logits_processor").LogitsProcessorOutput
        output = imported.module(RUNNER).ModelRunnerOutput
        self.launcher = Launcher(imported)
        self.sockets: dict[str, Socket] = {}
        self.opened: list[Socket] = []  # by the server that is made
        runner = partial(
            runner_class, logits=runtime, output=output, passes=self._passed, in_order=self._copies_in_order
        )
        self.device, self.streams = CopyDevice(), PassDevice()
        self._prefill_server = partial(PrefillServer, imported, lambda: self.streams.now.ended)
        self._decode_servers = partial(DecodeServers, imported)
        self.network = Network(self._prefill_server)
        clock = ServerClock(self._turns)
        devices = self.device, self.streams, self.network
        place = Place(imported, self._socket, runner, clock, self._running, *devices, self._hears)
        put_in_place(place)
        watch_functions(imported)
        self.now: RunningServer | None = None

    def launches(self, flags: Sequence[str]) -> None:
        """A server of these launch flags is made next."""
        self.network.makes = self._decode_servers if is_prefill_server(flags) else self._prefill_server

    def _socket(self, name: str) -> Socket:
        self.sockets[name] = Socket(self._polled if name == INPUT else None)
        self.opened.append(self.sockets[name])
        return self.sockets[name]

    def _polled(self) -> None:
        assert self.now is not None, "a server polls while it runs"
        self.now.polls()

    def _turns(self) -> int:
        return 0 if self.now is None else self.now.turns

    def _running(self) -> RunningServer:
        assert self.now is not None, "a server computes while it runs"
        return self.now

    def _hears(self, frames: Frames) -> None:
        self._running().hears(frames)

    def _passed(self, passes: list[ServerPass]) -> list[list[int]]:
        return self._running().passed(passes)

    def _copies_in_order(self) -> AbstractContextManager[None]:
        return self._running().copies_in_order()


class RunningServer(Drafts, Protocol):
    """What the parts that are stood in for ask of the server that runs. ``turns``: how many its loop has made."""

    turns: int

    def polls(self) -> None:
        """The loop reads its messages next."""

    def copies_in_order(self) -> AbstractContextManager[None]:
        """While this lasts, the server copies states as a part of a forward pass."""

    def hears(self, frames: Frames) -> None:
        """The server has published KV events."""


class SGLangServer:
    """See ``ServerEngine`` for what each call does."""

    fragile = False

    def __init__(self, servers: Servers, config: Json, with_host: bool = False) -> None:
        self._servers, self.release = servers, servers.release
        self._messages = self.release.imported.module("managers.io_struct")
        self._sampling = self.release.imported.module("sampling.sampling_params").SamplingParams
        self.turns = 0
        decodes, prefills = is_decode_server(config["flags"]), is_prefill_server(config["flags"])
        if (decodes or prefills) and not DECODES.include(self.release.imported):
            kind = "decode" if decodes else "prefill"
            raise Unsupported(f"sglang {self.release.label}: {kind} servers are driven from 0.5.19 on")
        servers.launches(config["flags"])
        servers.now, servers.opened, self._passes = self, [], PassesInFlight()
        servers.streams.now = self._passes
        try:
            self.scheduler, self._context = servers.launcher.launch(
                config["model"],
                config["flags"],
                {f"{PREFIX}{name}": value for name, value in config.get("environment", {}).items()},
            )
        finally:
            servers.now = None
        self._input, self._outputs = servers.sockets[INPUT], servers.opened
        self._left: set[int] = set()  # the requests that have left, and whose clients have heard of no end
        self._told: set[int] = set()  # those whose clients have heard of an end
        self._asked_back: set[int] = set()  # those that a client takes back
        self.requests: dict[int, Any] = {}
        self.running: set[int] = set()
        self.admitted: set[int] = set()  # those that have a lock, and no row yet
        self._forks: dict[int, int] = {}
        self._first: dict[int, int] = {}  # the first token of each answer
        self._lengths: dict[int, int] = {}  # of each prompt
        self._watch = ServerWatch(self)
        self._watch.watch(self.scheduler)
        self._unpolled = 0  # calls of the loop since it polled last
        for name, real in loop_calls(self.scheduler, OF_LOOP).items():
            setattr(self.scheduler, name, self._counted(real))
        if with_host != has_host_memory(self.scheduler):
            raise Unsupported(f"a server with{'out' if with_host else ''} host memory is driven in another room")
        self._reader = ServerReader(self.release, self.scheduler, self)
        self.host = HostWatch(self.release, self.scheduler, servers.device, self._reader.marks) if with_host else None
        self.host_slots = {} if self.host is None else self.host.slots
        self.host_pages = {} if self.host is None else self.host.pages
        self.storage_threads = () if self.host is None or self.host.storage is None else tuple(THREADS)
        self.decodes: DecodeSide | None = None
        if decodes:
            assert isinstance(servers.network.now, PrefillServer), "a decode server opens its socket when it is made"
            self.decodes = DecodeSide(self.scheduler, servers.network.now, self._passes)
        self.prefills: PrefillSide | None = None
        if prefills:
            assert isinstance(servers.network.now, DecodeServers), "a prefill server opens its socket when it is made"
            self.prefills = PrefillSide(self.scheduler, servers.network.now)
        if self._reader.stateful or self.host is not None or decodes or prefills:
            self._watch.watch_results(self.scheduler)
        self._batches = self._events_of() if self._reader.publishes else None
        self._rested = False  # when it polled last, and had no turn yet in which it publishes what is left
        self.shape = self._reader.shape(config)
        self.ran = self._reader.ran
        self.overlaps = bool(self.scheduler.enable_overlap)
        # Without the flag, a message that opens a streaming session ends in the tokenizer's process.
        lacks = set() if STREAMING in config["flags"] else {"open"}
        if self.release.locks(self.scheduler.tree_cache).counts_missing is False:
            lacks.add("counts_missing")
        if FORCE_MISS in config.get("environment", {}) or (decodes and DECODES_CACHE not in config["flags"]):
            lacks.add(FINDS)
        if self.decodes is None:
            lacks.add(TRANSFER)
        if self.prefills is None:
            lacks.add(SENDS)
        self.lacks = frozenset(lacks)
        self._run = greenlet.getcurrent()
        self._loop = greenlet.greenlet(self.scheduler.run_event_loop)
        self._batch = 0
        self._stopped: Exception | None = None
        self._must_poll(self.go_on())

    # What a client sends.

    def generate(
        self,
        request: int,
        session: int,
        tokens: list[int],
        longest: int,
        fork: int,
        stop: int | None = None,
        priority: int | None = None,
    ) -> None:
        """``TokenizedGenerateReqInput``, as the tokenizer's process sends it."""
        self._forks[request] = fork
        self._first[request] = token(len(tokens), fork)
        stops = {} if stop is None else {"stop_token_ids": [stop]}
        sampling = self._sampling(max_new_tokens=longest, ignore_eos=False, **stops)
        sampling.normalize(None)
        message = self._messages.TokenizedGenerateReqInput(
            rid=str(request),
            input_text="",
            input_ids=array("q", tokens),
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=sampling,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=False,
            priority=priority,
            session_params=self._messages.SessionParams(id=str(session)) if session else None,
            **({} if self._other is None else {**FROM_PREFILL, "bootstrap_room": _room(request)}),
        )
        self._lengths[request] = len(tokens)
        self._input.put(message)

    def abort(self, request: int) -> None:
        """``AbortReq``."""
        self._asked_back.add(request)
        self._input.put(self._messages.AbortReq(rid=str(request)))

    def open(self, session: int, turns: int | None = None) -> None:
        """``OpenSessionReqInput`` of a streaming session."""
        message, seconds = self._messages.OpenSessionReqInput, None if turns is None else turns * TURN
        known = {"session_id": str(session), "streaming": True, "timeout": seconds}
        self._input.put(message(capacity_of_str_len=CAPACITY, **known))

    def close(self, session: int) -> None:
        """``CloseSessionReqInput``."""
        self._input.put(self._messages.CloseSessionReqInput(session_id=str(session)))

    def flush(self) -> None:
        """``FlushCacheReqInput``."""
        self._input.put(self._messages.FlushCacheReqInput())

    def pause(self, mode: Pause) -> None:
        """``PauseGenerationReqInput``."""
        self._input.put(self._messages.PauseGenerationReqInput(mode=mode))

    def resume(self) -> None:
        """``ContinueGenerationReqInput``."""
        self._input.put(self._messages.ContinueGenerationReqInput(torch_empty_cache=False))

    def update_weights(self) -> None:
        """``UpdateWeightFromDiskReqInput``, with a flush."""
        self._input.put(self._messages.UpdateWeightFromDiskReqInput(model_path="", load_format="auto"))

    def release_memory(self) -> None:
        """``ReleaseMemoryOccupationReqInput`` of all memory."""
        self._input.put(self._messages.ReleaseMemoryOccupationReqInput())

    def resume_memory(self) -> None:
        """``ResumeMemoryOccupationReqInput`` of all memory."""
        self._input.put(self._messages.ResumeMemoryOccupationReqInput())

    # Prompts that a prefill server computes.

    @property
    def _other(self) -> PrefillServer | DecodeServers | None:
        """To whom a decode server, or a prefill server, sends messages."""
        if self.prefills is not None:
            return self.prefills.decode
        return None if self.decodes is None else self.decodes.prefill

    def transfer(self, request: int, step: TransferStep) -> None:
        """The prefill server of the run."""
        with self._within():
            self._decodes.does(_room(request), step, self._first[request])

    def transfer_steps(self, request: int) -> list[TransferStep]:
        """What the prefill server of the run can do."""
        return self._decodes.steps(_room(request))

    # Prompts for decode servers.

    def send(self, request: int, step: SendStep) -> Sent:
        """A decode server of the run, or the release's worker."""
        self._servers.network.now = self._other
        with self._within():
            sent = self._prefills.does(_room(request), step, self._lengths[request])
        return sent._replace(done=self._passes.ended)

    def send_steps(self, request: int) -> list[SendStep]:
        """What a decode server of the run, or the release's worker, can do."""
        return self._prefills.decode.steps(_room(request), self._lengths.get(request))

    def kept_buffers(self) -> int:
        """The metadata buffers of a prefill server."""
        return 0 if self.prefills is None else self.prefills.kept_buffers()

    @property
    def _prefills(self) -> PrefillSide:
        assert self.prefills is not None, "only a prefill server has decode servers"
        return self.prefills

    def _transfer_begins(self, room: int) -> None:
        if not self._decodes.prefill.is_asked(room):
            return  # the prefill server has failed before it was asked
        request = room - 1
        known = self.requests[request]
        destination = self._decodes.destination(room, len(known.origin_input_ids) + len(known.output_ids))
        self._reader.marks.write([destination.state])  # from now on the prefill server may write there
        asked = ServerEvent(ASKED, {request: self._known(request)}, destination=destination)
        self._stop(asked, self._decodes.prefill.room(room).done)

    @property
    def _decodes(self) -> DecodeSide:
        assert self.decodes is not None, "only a decode server has a prefill server"
        return self.decodes

    # The loop.

    @contextmanager
    def _within(self) -> Iterator[None]:
        """While this lasts, the release works for this server."""
        streams = self._servers.streams
        before, streams.now = streams.now, self._passes
        try:
            with self._servers.launcher.within(self._context):
                yield
        finally:
            streams.now = before

    def go_on(self) -> ServerEvent:
        """Lets the loop run to its next stop."""
        servers = self._servers
        if self._stopped is not None:
            raise self._stopped
        servers.now, ServerWatch.now, self._run = self, self._watch, greenlet.getcurrent()
        servers.network.now = self._other
        try:
            with self._within():
                event = self._loop.switch()
        except Exception as error:
            self._stopped = error
            raise
        finally:
            servers.now, ServerWatch.now = None, None
        if not isinstance(event, ServerEvent):
            raise EngineError("the event loop of the server has ended")
        return event

    def _stop(self, event: ServerEvent, done: int | None = None) -> None:
        """Control goes to the run. ``done``: the passes for which the server had waited; ``None``: by now."""
        event = event._replace(done=self._passes.ended if done is None else done)
        if self.decodes is not None:
            event = event._replace(backups=self.decodes.backups())
        # The loop runs in a mode of torch that holds for its thread, and the run has another one.
        with torch.inference_mode(False), torch.enable_grad():
            self._run.switch(event)

    @staticmethod
    def _must_poll(first: ServerEvent) -> None:
        """Raises ``EngineError`` for a new server that does not poll."""
        if first.kind == DEAF:
            never = f"its loop goes on, and reads no message in {GOES_ROUND} calls of {', '.join(OF_LOOP)}"
            raise EngineError(f"the server is never ready: {never}", unbuilt=never)
        assert first.kind == POLL, "a server polls before it does anything else"

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """A call that each turn of the loop makes: it is counted from one poll to the next."""

        @wraps(real)
        def call(*args: Any, **given: Any) -> Any:
            self._unpolled += 1
            if self._unpolled > GOES_ROUND and ServerWatch.now is self._watch:
                self._unpolled = 0
                self._stop(ServerEvent(DEAF))
            return real(*args, **given)

        return call

    def polls(self) -> None:
        """The loop reads its messages next."""
        self._unpolled = 0
        batch, self._batch = self._batch, 0
        self.turns += 1
        if self.host is not None and self.overlaps:
            self.host.watch_barriers(self.scheduler)
        waiting = [int(request.rid) for request in self._waiting()]
        self._left.update(n for n in self.requests if not (n in self.running or n in waiting))
        self.requests = {n: r for n, r in self.requests.items() if n not in self._left}
        self._note_ends()
        self._left -= self._asked_back | self._told
        self.admitted &= self.requests.keys()
        here = {number: self._known(number) for number in self.requests}
        self._note_rest(batch)
        self._stop(ServerEvent(POLL, here, batch=batch, waiting=waiting, unanswered=sorted(self._left)))

    def _note_ends(self) -> None:
        """Keeps of which requests clients have been told that they have ended."""
        for message in [message for socket in self._outputs for message in socket.taken()]:
            if isinstance(message, self._messages.AbortReq):
                self._told.add(int(message.rid))
            elif isinstance(message, self._messages.BatchTokenIDOutput):
                ends = zip(message.rids, message.finished_reasons, strict=True)
                self._told.update(int(name) for name, reason in ends if reason is not None)

    def _waiting(self) -> list[Any]:
        """The requests that wait for a row, in the order in which they are served."""
        if self.prefills is not None:
            return self.prefills.without_row()
        return list(self.scheduler.waiting_queue) if self.decodes is None else self.decodes.without_row()

    def passed(self, passes: list[ServerPass]) -> list[list[int]]:
        """A forward pass was launched: for each request the tokens that it samples, one unless it verifies a draft."""
        self._passes.launch()
        self._batch = len(passes)
        if self.host is not None:
            self.host.read_layers()
        passes = [one._replace(uncleared=self._uncleared(one)) for one in passes]
        tracked = [one.tracked[0] for one in passes if one.tracked is not None]
        self._reader.marks.write([*map(self.state_slot, passes), *tracked])
        self._stop(ServerEvent("passed", {one.request: self._known(one.request) for one in passes}, passes))
        return [[token(at, self._forks[one.request]) for at in one.sampled] for one in passes]

    def _uncleared(self, one: ServerPass) -> int:
        """The state slot of a pass that begins a text, where it was not cleared."""
        slot = 0 if one.start else self.state_slot(one)
        return 0 if not slot or self._reader.marks.cleared(slot) else slot

    def copies_in_order(self) -> AbstractContextManager[None]:
        """While this lasts, the server copies states as a part of a forward pass."""
        return self._reader.copies.in_order()

    def accepts(self, request: int, start: int, most: int) -> int:
        """How much of a draft is accepted: one token at least, and any number up to all of them."""
        return 1 + (start + self._forks[request]) % most

    def tell(self, kind: str, answer: Any, *whom: Any) -> None:
        """The server did something (``ServerWatch``)."""
        if kind == "closed":
            self._stop(ServerEvent(kind, session=int(whom[0])))
        elif kind == FLUSHED:
            if answer:  # it is refused while something runs, and changes nothing
                self._reader.begin()
                self._stop(ServerEvent(kind))
        elif kind == ASKED:
            self._transfer_begins(int(whom[0].bootstrap_room))
        elif kind == STATES_BEGUN:
            self._stop(ServerEvent(kind, wanted=int(whom[0])))
        elif kind in OF_NOBODY:
            if kind == RESULTED and whom[0].copy_done is None:
                self._passes.current.synchronize()  # the tokens are read where they are
            self._stop(ServerEvent(kind))
        elif whom or kind != ADMITTED:  # a request that is not admitted gets no lock
            numbers = [int(one.rid) for one in whom]
            self._note(kind, whom)
            self._stop(ServerEvent(kind, {number: self._known(number) for number in numbers}))
            if kind == "left":
                self._gone(numbers[0])

    def raised(self, kind: str, error: Exception) -> None:
        """The exception comes to ``go_on`` by itself, unless the server catches it."""

    def strays(self, what: str) -> None:
        """A call that changes pools or rows where the law follows no call (``ServerWatch``)."""
        raise EngineError(f"{what} was called where the law follows no call, so there is no verdict")

    def _note(self, kind: str, whom: tuple[Any, ...]) -> None:
        """Keeps who is there, who is admitted, and who has a row."""
        if kind == "arrived":
            here = {request.rid: request for request in self._waiting()}
            self.requests.update({int(one.rid): here[one.rid] for one in whom if one.rid in here})
            return
        for request in whom:
            number = int(request.rid)
            self.requests.setdefault(number, request)
            if kind == ADMITTED:
                self.admitted.add(number)
            elif kind in ("extended", "preallocated"):
                self.admitted.discard(number)
                self.running.add(number)
            elif kind == "left":
                self.running.discard(number)

    def _gone(self, number: int) -> None:
        if self.requests[number].finished():
            del self.requests[number]
            self._left.add(number)

    def _known(self, number: int) -> ServedRequest:
        request = self.requests.get(number)
        if request is None:
            return ServedRequest([], [], 0, 0, 0, True)
        sent = request.finished_len if request.finished() else None
        if request.finished() and sent is None:
            sent = len(request.output_ids)
        return ServedRequest(
            tokens=list(request.origin_input_ids),
            sampled=list(request.output_ids),
            session=0 if request.session is None else int(request.session.session_id),
            prefix=records.prefix(request),
            sent=sent,
            turned_away=request.to_finish is not None,
        )

    # What a server says of itself.

    def grants_alone(self, request: int) -> bool:
        """``get_new_batch_prefill`` with this request alone in the queue, in a forked process."""

        def ask() -> str:
            with self._within(), self._watch.off():
                if self.decodes is not None:
                    return "yes" if self.decodes.grants(self.requests[request]) else ""
                self.scheduler.waiting_queue = [self.requests[request]]
                plan = self.scheduler.get_new_batch_prefill(self.scheduler.running_batch)
                return "yes" if plan.batch_to_run is not None else ""

        return bool(_asked_of_a_copy(ask))

    def idle_problems(self) -> list[str]:
        """``SchedulerInvariantChecker``, as ``on_idle`` asks it."""
        with self._within():
            if not self.scheduler.is_fully_idle() or (self.decodes is not None and self.decodes.puts_off):
                return []
            leaks, words = self.scheduler.invariant_checker._check_all_pools(
                self.scheduler.pool_stats_observer.get_pool_stats()
            )
        return list(words) if leaks else []

    # KV events.

    def _events_of(self) -> PublishedBatches:
        if self.host is not None:
            self.host.follow_pages(self._reader.pages_of)
        return PublishedBatches(self._cached)

    def _cached(self) -> Mapping[str, Sequence[Key]]:
        return self._reader.cached(None if self.host is None else self.host.whole)

    def hears(self, frames: Frames) -> None:
        """The server has published KV events."""
        assert self._batches is not None, "a server whose tree keeps no events publishes none"
        self._batches.hears(frames)

    def _note_rest(self, batch: int) -> None:
        """A server that has nothing to do publishes, in the turn after the one in which it had something to do."""
        rests = not batch and not self.requests and not self.scheduler._engine_paused
        rests = rests and bool(self.scheduler.is_fully_idle())
        if rests and self._rested and self._batches is not None:
            self._batches.rests()
        self._rested = rests

    def published(self) -> list[PublishedEvents] | None:
        """The batches of KV events that the server has published, each with the pages that it had cached then."""
        return None if self._batches is None else self._batches.take()

    # Snapshots.

    def cache_snapshot(self) -> CacheSnapshot:
        """The pools, the rows, the tree, and who holds what."""
        return self._reader.read()

    # Host memory: see ``HostServerEngine``.

    def host_steps(self) -> list[HostStep]:
        """What ``HostWatch`` has noted."""
        return self._host.take()

    def end_copies(self, stores: bool, count: int) -> None:
        """The copies of one stream are done."""
        self._host.end(stores, count)

    def storage_goes_on(self, thread: StorageThread, outcome: StorageOutcome) -> None:
        """A thread of the controller."""
        with self._within():
            self._storage.go_on(thread, outcome)

    def prefix_slots(self, one: ServerPass) -> list[int]:
        """The row of the request."""
        found: list[int] = self.scheduler.req_to_token_pool.req_to_token[one.row, : one.start].tolist()
        return found

    def state_slot(self, one: ServerPass) -> int:
        """The slot of the row in the pool of states."""
        return self._reader.state_slot(one.row)

    def swa_mapping(self) -> list[int] | None:
        """The mapping of the allocator."""
        seen = self._reader.read_pools()
        return list(seen.mapping) if self._reader.windowed else None

    def tree_snapshot(self) -> LockRefSnapshot:
        """The tree of the server."""
        return self._reader.read_tree()

    def kept_on_host(self) -> str:
        """``evict`` and ``evict_host`` of all, in a forked process."""

        def kept() -> str:
            with self._within(), self._watch.off():
                try:
                    slots = self._host.kept()
                except Exception as error:
                    return f"eviction raises {line_of(error)}"
            return f"{slots} slots stay" if slots else ""

        return _asked_of_a_copy(kept)

    def host_snapshot(self) -> dict[str, HostPoolSnapshot]:
        """The host pools."""
        return self._host.read()

    @property
    def _storage(self) -> StorageWatch:
        assert self._host.storage is not None
        return self._host.storage

    @property
    def _host(self) -> HostWatch:
        assert self.host is not None
        return self.host


def _asked_of_a_copy(look: Callable[[], str]) -> str:
    """The answer of a copy of the server, which changes nothing here. ``EngineError`` where it gives none."""
    answer, ended = asked(look)
    if ended:
        raise EngineError(f"a copy of the server did not answer: {ended}")
    return str(answer)


def _room(request: int) -> int:
    """The number by which a decode server and its prefill server name a request; 0 is nobody's."""
    return request + 1
