"""A release's real scheduler under random load: clients that send prompts with common beginnings, abort and reset.

The load decides which requests come, what is sampled, and when a step is done. The scheduler decides everything else.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from conformance.driver.protocol import Json
from conformance.engines.vllm.names import DigestTexts
from conformance.engines.vllm.release import VLLMRelease
from conformance.engines.vllm.settings import Setup, Tuning
from conformance.stems.block_cache.protocol import FULL, MAMBA, WINDOW, sizes_of

CALLS = ("add_request", "schedule", "update_from_output")


@dataclass(frozen=True)
class ServerLoad:
    """How much a server has to do, and with what.

    ``requests``: so many run at a time, and a quarter more are there. ``blocks``, ``block_size``: the pool. ``prompt``,
    ``outputs``: the most tokens of a prompt and of an answer. ``stems``: so many beginnings of prompts are in common
    use. ``steps_in_flight``: as in ``Setup``. ``drafts``: draft tokens of a request in a step.
    ``window``: tokens of the window of a second group of layers, 0 for no such group. ``aborts``: how often in a
    hundred steps a request is aborted. ``resets``: how often in a thousand steps the prefix cache is reset.
    ``turns``: of a hundred requests so many go on with the whole prompt of an earlier one.
    ``layers``: the groups of layers where they are others, as in the configuration of a run of ``block_cache``.
    ``tuning``: options that most servers do not set.
    """

    requests: int = 16
    blocks: int = 600
    block_size: int = 16
    prompt: int = 400
    outputs: int = 120
    stems: int = 8
    steps_in_flight: int = 2
    drafts: int = 0
    window: int = 0
    aborts: int = 3
    resets: int = 1
    turns: int = 0
    layers: tuple[Json, ...] = ()
    tuning: Tuning = Tuning()

    @property
    def groups(self) -> tuple[Json, ...]:
        """The groups of layers."""
        windows: tuple[Json, ...] = ({"kind": WINDOW, "window": self.window},) if self.window else ()
        return self.layers or ({"kind": FULL}, *windows)


STATES: Json = {"kind": MAMBA, "checkpoint": 8}
RETAINS = Tuning(retention=0)
SERVERS: dict[str, Mapping[str, Any]] = {
    "plain": {},
    "window": {"window": 40},
    "states": {"layers": ({"kind": FULL}, STATES), "tuning": RETAINS, "turns": 40},
    "parts": {"layers": ({"kind": FULL}, {"kind": MAMBA}), "tuning": Tuning(retention=0, match=4), "turns": 40},
    "drafted_states": {
        **{"drafts": 3, "steps_in_flight": 1, "turns": 40},
        **{"layers": ({"kind": FULL}, STATES), "tuning": RETAINS},
    },
    "drafts": {"drafts": 3, "steps_in_flight": 1, "window": 40},
    "sizes": {
        "layers": (
            {"kind": FULL, "block_size": 32},
            {"kind": WINDOW, "window": 24},
            {"kind": WINDOW, "window": 40, "block_size": 8},
        ),
        "tuning": RETAINS,
        "turns": 40,
    },
}  # what ``ServerLoad`` is for each kind of server


class LoadedScheduler:
    """A scheduler with its clients. ``scheduler``: the release's own. ``step`` makes one step and completes another.
    ``timed``: an object, and its calls that are the engine's own work, for who measures it.
    """

    def __init__(self, release: VLLMRelease, load: ServerLoad, seed: int) -> None:
        self._release, self._load, self._random = release, load, random.Random(seed)
        size, longest = load.block_size, load.prompt + load.outputs
        sizes = sizes_of({"block_size": size, "layers": load.groups})
        states = [size for size, group in zip(sizes, load.groups, strict=True) if group["kind"] == MAMBA]
        setup = Setup(
            block_size=min(sizes),
            state_size=max(states, default=0),
            align=bool(states),
            layers=load.groups,
            tuning=load.tuning,
            blocks=load.blocks + 1,
            caching=True,
            batch=max(512, 4 * load.requests),
            requests=load.requests,
            max_length=longest,
            drafts=load.drafts,
            steps_in_flight=load.steps_in_flight,
        )
        groups = [
            release.spec(group, size, load.drafts, align=True) for group, size in zip(load.groups, sizes, strict=True)
        ]
        self.scheduler = release.scheduler(setup, groups)
        self._hashed = self.scheduler.kv_cache_manager.block_pool.hash_block_size  # tokens
        self.timed = self.scheduler, CALLS
        self._names = DigestTexts()
        self._stems = [self._tokens(self._random.randrange(size, load.prompt)) for _ in range(load.stems)]
        self._flying: deque[tuple[Any, list[str]]] = deque()  # of each step in flight, who samples after it
        self._prompts: deque[list[int]] = deque(maxlen=2 * load.requests)
        self._arrived = 0

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(1, 1000) for _ in range(count)]

    def step(self) -> None:
        """Requests come and leave, the scheduler makes a step, and the oldest step in flight is done."""
        load = self._load
        while len(self.scheduler.requests) < load.requests + load.requests // 4:
            self._comes()
        if self._random.randrange(100) < load.aborts:
            name = self._random.choice([*self.scheduler.requests])
            self.scheduler.finish_requests(name, self._release.status.FINISHED_ABORTED)
        if self._random.randrange(1000) < load.resets:
            self.scheduler.reset_prefix_cache(reset_running_requests=self._random.random() < 0.5)
        output = self.scheduler.schedule()
        if output.num_scheduled_tokens:
            samples = [
                name for name in output.num_scheduled_tokens if not self.scheduler.requests[name].is_prefill_chunk
            ]
            self._flying.append((output, samples))
        if len(self._flying) >= load.steps_in_flight or (self._flying and not output.num_scheduled_tokens):
            self._completes(*self._flying.popleft())

    def _comes(self) -> None:
        load = self._load
        prompt = self._prompt()
        outputs = self._random.randrange(1, load.outputs + 1)
        self._arrived += 1
        made = self._release.request(self._arrived, prompt, outputs, 0, 0, self._hashed, self._names)
        self.scheduler.add_request(made)

    def _prompt(self) -> list[int]:
        load = self._load
        if self._prompts and load.turns and self._random.randrange(100) < load.turns:
            prompt = [*self._random.choice(self._prompts), *self._tokens(self._random.randrange(1, 40))]
        else:
            beginning = self._random.choice(self._stems)
            own = self._tokens(self._random.randrange(1, load.prompt - len(beginning) + 2))
            prompt = [*beginning[: self._random.randrange(len(beginning) + 1)], *own]
        self._prompts.append(prompt[: load.prompt])
        return self._prompts[-1]

    def _completes(self, output: Any, samples: list[str]) -> None:
        """The workers have computed a step. Each request that samples keeps some of its drafts."""
        names, load = [*output.num_scheduled_tokens], self._load
        drafts = {name: len(tokens) for name, tokens in output.scheduled_spec_decode_tokens.items()}
        sampled = [
            self._tokens(1 + self._random.randrange(drafts.get(name, 0) + 1)) if name in samples else []
            for name in names
        ]
        self.scheduler.update_from_output(output, self._release.sampled(names, sampled))
        if load.drafts and load.steps_in_flight == 1:
            going = [name for name in samples if name in self.scheduler.requests]
            made = self._release.drafted(going, [self._tokens(load.drafts) for _ in going])
            self.scheduler.update_draft_token_ids(made)

    def steps(self, count: int) -> Iterator[int]:
        """Makes so many steps, and yields the number of each after it."""
        for number in range(1, count + 1):
            self.step()
            yield number
