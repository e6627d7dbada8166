"""A release's real scheduler under random load: clients that send prompts with common beginnings, abort and flush.

The load decides which requests come, and what is sampled. The scheduler decides everything else.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import greenlet
import torch

from conformance.driver.protocol import EngineError
from conformance.engines.sglang.releases.release import Release
from conformance.engines.sglang.server.engine import INPUT, PREFIX, servers
from conformance.engines.sglang.server.event_socket import Frames
from conformance.stems.server.protocol import ServerPass

# What ``RandomClients`` is for each kind of server. Where memory is short, requests are retracted while they decode.
SERVERS: dict[str, Mapping[str, Any]] = {
    "plain": {},
    "tokens": {"pages": 240, "page_size": 1},
    "window": {"pages": 80, "model": "windowed", "environment": {"SWA_EVICTION_INTERVAL": "1"}},
    "short": {"pages": 40, "prompt": 16, "outputs": 60, "estimate": 2},
    "chunks": {"pages": 80, "flags": ("--chunked-prefill-size", "16", "--enable-mixed-chunk")},
}
PYTHON_CORE = {"UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}


@dataclass(frozen=True)
class RandomClients:
    """How much a server has to do, and with what.

    ``model``, ``flags``, ``environment``: as of ``ServerConfig``. ``requests``: so many run at a time, and a quarter
    more are there. ``pages``, ``page_size``: the pool. ``prompt``, ``outputs``: the most tokens of a prompt and of an
    answer. ``stems``: so many beginnings of prompts are in common use. ``overlap``: a step begins before the result of
    the last one is known. ``aborts``: how often in a hundred turns a request is aborted. ``flushes``: how often in a
    thousand turns clients wait until the server is idle, and flush its cache. ``estimate``: the scheduler sets memory
    aside for at most so many tokens of an answer, so that memory gets short while requests decode
    (``SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION`` of a server).
    """

    model: str = "full"
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    requests: int = 8
    pages: int = 256
    page_size: int = 4
    prompt: int = 60
    outputs: int = 24
    stems: int = 6
    overlap: bool = True
    aborts: int = 3
    flushes: int = 5
    estimate: int = 4096

    def launch(self) -> list[str]:
        """The launch flags of the server."""
        tokens, longest = self.pages * self.page_size, self.prompt + self.outputs + self.page_size
        words = ("--page-size", self.page_size, "--max-total-tokens", tokens, "--context-length", longest)
        found = [*map(str, words), "--max-running-requests", str(self.requests), *self.flags]
        return found if self.overlap else [*found, "--disable-overlap-schedule"]


class LoadedServer:
    """A scheduler with its clients. ``scheduler``: the release's own. ``step`` makes a turn of its loop. ``timed``: an
    object, and its calls that are the engine's own work, for who measures it.
    """

    def __init__(self, release: Release, load: RandomClients, seed: int) -> None:
        self._servers, self._load, self._random = servers(release), load, random.Random(seed)
        self._messages = release.imported.module("managers.io_struct")
        self._sampling = release.imported.module("sampling.sampling_params").SamplingParams
        # The release reads its variable when it is imported.
        release.imported.module("managers.schedule_policy").CLIP_MAX_NEW_TOKENS = load.estimate
        self.turns = 0
        self._servers.now = self
        try:
            environment = {f"{PREFIX}{name}": value for name, value in {**PYTHON_CORE, **load.environment}.items()}
            self.scheduler, self._context = self._servers.launcher.launch(load.model, load.launch(), environment)
        finally:
            self._servers.now = None
        self.timed = self, ("turn",)
        self._input = self._servers.sockets[INPUT]
        self._run = greenlet.getcurrent()
        self._loop = greenlet.greenlet(self.scheduler.run_event_loop)
        self._stems = [self._tokens(self._random.randrange(1, load.prompt)) for _ in range(load.stems)]
        self._arrived = 0
        self._flushing = False
        self.turn()  # up to its first poll

    # The server.

    def turn(self) -> None:
        """A turn of the loop."""
        self._servers.now, self._run = self, greenlet.getcurrent()
        try:
            with self._servers.launcher.within(self._context):
                self._loop.switch()
        finally:
            self._servers.now = None
        if self._loop.dead:
            raise EngineError("the event loop of the server has ended")

    def polls(self) -> None:
        """The loop reads its messages next: the turn ends."""
        self.turns += 1
        with torch.inference_mode(False), torch.enable_grad():
            self._run.switch()

    def passed(self, passes: list[ServerPass]) -> list[list[int]]:
        """A forward pass was launched: for each request a token that it samples."""
        return [[self._token() for _ in one.sampled] for one in passes]

    def copies_in_order(self) -> AbstractContextManager[None]:
        """No state is copied."""
        return nullcontext()

    def hears(self, frames: Frames) -> None:
        """Nobody listens to its KV events."""

    def accepts(self, request: int, start: int, most: int) -> int:
        """No draft is verified."""
        raise EngineError(f"a draft of request {request} is verified from {start} on, of {most} tokens")

    # Its clients.

    def _token(self) -> int:
        return self._random.randrange(1, 1000)

    def _tokens(self, count: int) -> list[int]:
        return [self._token() for _ in range(count)]

    def step(self) -> None:
        """Requests come and leave, and the server makes a turn of its loop."""
        load, here = self._load, self._here()
        if self._random.randrange(1000) < load.flushes:
            self._flushing = True
        if self._flushing and not here:
            self._input.put(self._messages.FlushCacheReqInput())
            self._flushing = False
        coming = 0 if self._flushing else load.requests + load.requests // 4 - len(here)
        for _ in range(coming):
            self._comes()
        if here and self._random.randrange(100) < load.aborts:
            self._input.put(self._messages.AbortReq(rid=self._random.choice(here)))
        self.turn()

    def flush(self) -> None:
        """Clients wait from now on until the server is idle, and flush its cache then."""
        self._flushing = True

    def _here(self) -> list[str]:
        scheduler = self.scheduler
        batches = [scheduler.running_batch, scheduler.last_batch]
        found = [one.rid for batch in batches if batch is not None for one in batch.reqs if not one.finished()]
        found += [one.rid for one in scheduler.waiting_queue]
        found += [scheduler.chunked_req.rid] if scheduler.chunked_req is not None else []
        return sorted({*found}, key=int)

    def _comes(self) -> None:
        load = self._load
        beginning = self._random.choice(self._stems)
        own = self._tokens(self._random.randrange(1, load.prompt - len(beginning) + 2))
        prompt = [*beginning[: self._random.randrange(len(beginning) + 1)], *own][: load.prompt]
        sampling = self._sampling(max_new_tokens=self._random.randrange(1, load.outputs + 1), ignore_eos=False)
        sampling.normalize(None)
        self._arrived += 1
        message = self._messages.TokenizedGenerateReqInput(
            rid=str(self._arrived),
            input_text="",
            input_ids=array("q", prompt),
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=sampling,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=False,
            session_params=None,
        )
        self._input.put(message)

    def steps(self, count: int) -> Iterator[int]:
        """Makes so many turns, and yields the number of each after it."""
        for number in range(1, count + 1):
            self.step()
            yield number
