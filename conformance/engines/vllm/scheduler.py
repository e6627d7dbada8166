"""The scheduler of a release, ``Scheduler`` or ``AsyncScheduler``, as an engine of the stem ``block_cache``."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import lcm
from typing import Any

from conformance.driver.exception_origin import raised_in_engine
from conformance.driver.protocol import Json, PublishedEvents, Unsupported
from conformance.engines.vllm import reading
from conformance.engines.vllm.moves import Moves
from conformance.engines.vllm.names import DigestTexts
from conformance.engines.vllm.recording.block_hooks import numbers
from conformance.engines.vllm.release import VLLMRelease
from conformance.engines.vllm.settings import HostTier, Setup, Tuning
from conformance.engines.vllm.transfers import TransferParams
from conformance.stems.block_cache.copied import StatesOfPasses
from conformance.stems.block_cache.protocol import (
    FULL,
    MAMBA,
    NEW,
    NO_LIMITS,
    NO_TRANSFERS,
    RESUMED,
    RUNNING,
    WINDOW,
    BlockCacheSnapshot,
    Completed,
    HostLimits,
    Known,
    Launched,
    Move,
    RequestPass,
    Tables,
    Transfers,
    sizes_of,
)
from conformance.stems.block_pool.protocol import Name
from conformance.stems.vetting import told


class StandInPublisher:
    """Stands for the publisher of a server: it keeps each batch, beside what is cached when it is published. ``seen``:
    the batch with that.
    """

    def __init__(self, seen: Callable[[Any], PublishedEvents]) -> None:
        self._seen = seen
        self._batches: list[PublishedEvents] = []

    def publish(self, batch: Any) -> None:
        """Keeps one batch."""
        self._batches.append(self._seen(batch))

    def taken(self) -> list[PublishedEvents]:
        """The batches since the last call."""
        batches, self._batches = self._batches, []
        return batches


class VLLMScheduler:
    """One scheduler. See ``BlockCacheEngine`` for what each call does."""

    fragile = False

    def __init__(self, release: VLLMRelease, config: Json) -> None:
        self._release, self._names = release, DigestTexts()
        self._groups, self._sizes, self._setup = config["layers"], sizes_of(config), _setup(config)
        self.lacks = frozenset({"draft"}) if not self._setup.drafts or self._setup.steps_in_flight > 1 else frozenset()
        try:
            self._scheduler = release.scheduler(self._setup, self._specs())
        except (AssertionError, NotImplementedError, ValueError) as error:
            if not raised_in_engine(error):
                raise
            # Beside a base that is built from this configuration, an assertion that fails is a finding.
            failed = told(error) if isinstance(error, AssertionError) else ""
            raise Unsupported(f"no scheduler of the release has this configuration: {error}", failed) from error
        self._manager = self._scheduler.kv_cache_manager
        alignment = next((group["checkpoint"] for group in self._groups if "checkpoint" in group), None)
        self._checkpoint = alignment and release.checkpoints(self._scheduler, self._setup, alignment)
        self._size = self._manager.block_pool.hash_block_size  # tokens
        self._watched = Moves(self._scheduler, release.has_copies)
        self._connectors = release.connectors(self._scheduler, self._setup) if self._setup.transfers else None
        self._host = None if self._connectors is None else self._connectors.host
        ranks = self._setup.ranks if self._setup.transfers else 1
        self._aggregator = release.aggregator(self._scheduler.connector, ranks) if ranks > 1 else None
        self._states = StatesOfPasses(self._sizes)
        self._flying: deque[Any] = deque()
        self._publisher = StandInPublisher(self._batch)
        self._scheduler.kv_event_publisher = self._publisher

    @property
    def moves(self) -> list[Move]:
        """What was done to blocks in the last call."""
        return self._watched.moves

    # The calls.

    def add(
        self,
        request: int,
        tokens: Sequence[int],
        outputs: int,
        mark: int = 0,
        priority: int = 0,
        elsewhere: int = 0,
        sends: bool = False,
        limits: HostLimits = NO_LIMITS,
    ) -> None:
        """``add_request``."""
        self._watched.begin()
        said = None
        if self._connectors is not None:
            tokens, said = self._connectors.comes(request, tokens, TransferParams(elsewhere, sends), limits)
        made = self._release.request(
            request, tokens, outputs, mark, priority, self._size, self._names, self._setup.hash_lookahead, said
        )
        self._scheduler.add_request(made)

    def schedule(self) -> Launched:
        """``schedule``, and what its SchedulerOutput tells the workers."""
        self._watched.begin()
        requests = self._scheduler.requests
        running = {name for name, request in requests.items() if request.status == self._release.status.RUNNING}
        waits = {name: self._release.placeholders(request) for name, request in requests.items()}
        output = self._scheduler.schedule()
        self._watched.follow(self._states)
        if output.num_scheduled_tokens or self._connectors is not None:
            self._flying.append(output)
        preempted = (name for name in running if requests[name].status == self._release.status.PREEMPTED)
        return Launched(
            passes=dict(self._passes(output, waits)),
            preempted=tuple(sorted(map(int, preempted))),
            ended=tuple(sorted(map(int, output.finished_req_ids))),
            copies=tuple(self._release.copies(output)),
            zeroed=tuple(self._release.zeroed(output)),
            **self._transfers_of(output),
        )

    def _transfers_of(self, output: Any) -> dict[str, Any]:
        """What ``Launched`` says of transfers that begin with a step."""
        if self._connectors is None:
            return {}
        loads, twice = self._connectors.begun()
        return {"loads": loads, "twice": twice, **self._connectors.launched(output.kv_connector_metadata)}

    def complete(self, sampled: Mapping[int, Sequence[int]], transfers: Transfers = NO_TRANSFERS) -> Completed:
        """``update_from_output`` of the oldest step in flight."""
        self._watched.begin()
        output = self._flying.popleft()
        names = list(output.num_scheduled_tokens)
        before = {name: request for name, request in self._scheduler.requests.items() if name in names}
        made = self._made(names, [list(sampled.get(int(name), ())) for name in names], transfers)
        answers = self._scheduler.update_from_output(output, made)
        answered = {answer.request_id: answer for each in answers.values() for answer in each.outputs}
        delivered = {int(name): list(answered[name].new_token_ids) for name in names if name in answered}
        gone = tuple(sorted(int(name) for name, request in before.items() if request.is_finished()))
        sends, reads = ({}, {}) if self._connectors is None else self._connectors.ended()
        return Completed(delivered, gone, sends, reads)

    def _made(self, names: Sequence[str], tokens: Sequence[list[int]], transfers: Transfers) -> Any:
        """The ModelRunnerOutput of a step with these requests and tokens. What several ranks say of transfers becomes
        one output by the release's own class, as in its executor.
        """
        if self._connectors is None:
            return self._release.sampled(names, tokens)
        said = self._connectors.done(transfers, self._setup.ranks)
        outputs = [self._release.sampled(names, tokens, self._release.transferred(one)) for one in said]
        return outputs[0] if self._aggregator is None else self._aggregator.aggregate(outputs)

    def draft(self, drafts: Mapping[int, Sequence[int]]) -> None:
        """``update_draft_token_ids``."""
        self._watched.begin()
        made = self._release.drafted([str(request) for request in drafts], [list(each) for each in drafts.values()])
        self._scheduler.update_draft_token_ids(made)

    def abort(self, request: int) -> None:
        """``finish_requests``."""
        self._watched.begin()
        self._scheduler.finish_requests(str(request), self._release.status.FINISHED_ABORTED)

    def reset(self, preempt: bool, host: bool = False) -> bool:
        """``reset_prefix_cache``."""
        self._watched.begin()
        more = {"reset_connector": True} if host else {}
        return bool(self._scheduler.reset_prefix_cache(reset_running_requests=preempt, **more))

    def snapshot(self) -> BlockCacheSnapshot:
        """The fields of the scheduler, its managers, its requests and its pool."""
        shown = reading.pool(self._release, self._manager.block_pool, self._named)
        return BlockCacheSnapshot(
            pool=(free := reading.unheld(shown, self._held())),
            requests={
                int(name): self._known(request)
                for name, request in self._scheduler.requests.items()
                if not request.is_finished()
            },
            deferred=tuple(self._watched.deferred(self._release.deferred(self._scheduler))),
            host=None if self._host is None else self._host.shown(),
            lent=tuple(free.free[len(shown.free) :]),
            sleeps=not self._scheduler.has_requests(),
        )

    def _held(self) -> Mapping[int, int]:
        """How many copies hold each block, from block to block and to or from host memory, with those that a connector
        may ask for.
        """
        asked = numbers(self._release.pinned(self._manager))
        return Counter(self._watched.held()) + Counter({} if self._host is None else self._host.held()) + Counter(asked)

    def published(self) -> list[PublishedEvents] | None:
        """The batches that the scheduler has published."""
        return self._publisher.taken() if self._setup.events else None

    def _batch(self, batch: Any) -> PublishedEvents:
        """A batch, with the hashes that the pool and host memory have when it is published."""
        device = [self._release.event_key(key) for key in self._release.found(self._manager.block_pool)]
        host = [] if self._host is None else self._host.cached(self._release.event_key, self._names)
        return PublishedEvents([self._release.event(event) for event in batch.events], keys=[*device, *host])

    # What the scheduler says.

    def _passes(self, output: Any, waits: Mapping[str, int]) -> Iterator[tuple[int, RequestPass]]:
        """What each request computes in a step. ``waits``: for how many sampled tokens it waited before the step."""
        given = {new.req_id: (NEW, new.num_computed_tokens, new.block_ids) for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        for name, blocks, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            kind = RESUMED if name in cached.resumed_req_ids else RUNNING
            given[name] = (kind, computed, blocks or ((),) * len(self._groups))
        for name, count in output.num_scheduled_tokens.items():
            kind, start, blocks = given[name]
            text = self._scheduler.requests[name].all_token_ids
            last = len(text) + (waits[name] if kind == RUNNING else 0)
            drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
            yield (
                int(name),
                RequestPass(
                    start=start,
                    count=count,
                    drafts=drafts,
                    samples=start + count - drafts >= last,
                    kind=kind,
                    blocks=tuple(map(tuple, blocks)),
                    text=() if kind == RUNNING else tuple(text),
                    checkpoint=self._checkpoint(start, start + count) if self._checkpoint and not drafts else None,
                    placeholders=self._are_placeholders(name, kind, output),
                ),
            )

    def _are_placeholders(self, name: str, kind: str, output: Any) -> bool:
        """Nobody drafted the drafts of a pass: the scheduler fills up the first pass of a request that computes one
        token. V1 workers, which n-grams have, refuse such drafts. V2 workers, which an EAGLE head may have, refuse them
        where they know them; else they may accept the token that they verify in their place.
        """
        drafts = output.scheduled_spec_decode_tokens.get(name, ())
        is_unknown = kind == NEW or self._setup.steps_in_flight == 1  # else workers have drafts for a placeholder
        are_refused = not self._setup.eagle or self._release.knows_placeholders
        return is_unknown and are_refused and any(token < 0 for token in drafts)

    def _known(self, request: Any) -> Known:
        statuses = self._release.status
        names = {statuses.RUNNING: "running", statuses.PREEMPTED: "preempted"}
        return Known(
            status=names.get(request.status, "waiting"),
            computed=request.num_computed_tokens,
            text=tuple(request.all_token_ids),
            tables=self._tables(request.request_id),
        )

    def _tables(self, name: str) -> Tables:
        """The blocks of a request, each at the place of which its contents are."""
        managers = self._manager.coordinator.single_type_managers
        return self._states.shown(int(name), [numbers(manager.req_to_blocks.get(name, ())) for manager in managers])

    def _named(self, key: bytes) -> Name | None:
        group, digest = self._release.split(key)
        known = self._names.text(digest)
        return None if known is None else Name(group, (known[0], *known[1]))

    # Its groups of layers.

    def _specs(self) -> list[Any]:
        setup = self._setup
        return [
            self._release.spec(group, size, setup.drafts, setup.align)
            for group, size in zip(self._groups, self._sizes, strict=True)
        ]


def _setup(config: Json) -> Setup:
    """The configuration of a run. ``Unsupported`` if no server has it."""
    kinds, sizes = {group["kind"] for group in config["layers"]}, sizes_of(config)
    state_sizes = {size for size, group in zip(sizes, config["layers"], strict=True) if group["kind"] == MAMBA}
    align = MAMBA in kinds and bool(config["caching"])
    in_flight, drafts = config.get("steps_in_flight", 1), config.get("drafts", 0)
    if not kinds <= {FULL, WINDOW, MAMBA}:
        raise Unsupported(f"groups of layers are {FULL}, {WINDOW} and {MAMBA}")
    if not 1 <= in_flight <= 4:
        raise Unsupported("one to four steps are in flight")
    if config.get("eagle") and (not drafts or config["layers"][0]["kind"] == MAMBA):
        raise Unsupported("an EAGLE head drafts, and is in the first group, which has attention")
    if config.get("tuning", {}).get("draft_model") and config["layers"][0]["kind"] == MAMBA:
        raise Unsupported("the layers of a draft model are like those of the first group, and have attention")
    if config.get("transfers") and len(set(sizes)) > 1:
        raise Unsupported("transfers are driven where all groups of layers have blocks of one size")
    if len(state_sizes) > 1:
        raise Unsupported("all groups with states have blocks of one size, which a server configures")
    if config.get("host") and not config.get("transfers"):
        raise Unsupported("host memory is behind a connector, which transfers need")
    retention = config.get("tuning", {}).get("retention") or 0
    chunk = lcm(*sizes) * (config.get("host") or {"blocks_per_slot": 1})["blocks_per_slot"]
    if retention % chunk or (retention and kinds == {FULL}):
        raise Unsupported("blocks are retained every so many whole blocks, of layers with a window or with states")
    match = config.get("tuning", {}).get("match")
    is_unit = match is None or not any(size % match for size in sizes)
    if match is not None and (not is_unit or len(config["layers"]) == 1 or not config["caching"]):
        raise Unsupported("a block has a whole number of hashes, of a prefix cache of several groups of layers")
    if MAMBA in kinds and not align:
        raise Unsupported("without a prefix cache a block of states is as large as the longest text")
    if len({group.get("checkpoint") for group in config["layers"] if group["kind"] == MAMBA}) > 1:
        raise Unsupported("all groups with states leave their checkpoints alike")
    return Setup(
        block_size=min(sizes),
        state_size=max(state_sizes, default=0),
        blocks=config["blocks"] + 1,
        caching=config["caching"],
        batch=config["batch"],
        requests=config["requests"],
        max_length=config["max_length"],
        threshold=config.get("threshold", 0),
        policy=config.get("policy", "fcfs"),
        drafts=drafts,
        eagle=config.get("eagle", False),
        steps_in_flight=in_flight,
        align=align,
        events=config.get("events", False),
        transfers=config.get("transfers", False),
        reoffers=config.get("reoffers", False),
        failure=config.get("failure", "recompute"),
        layers=tuple(config["layers"]),
        both_ways=config.get("both_ways", False),
        servers=config.get("servers", False),
        workers=config.get("workers", 1),
        host=_host(config.get("host")),
        tuning=_tuning(config.get("tuning", {})),
    )


def _tuning(config: Json) -> Tuning:
    return Tuning(
        config.get("retention"),
        config.get("watermark", 0),
        config.get("interval", 1),
        config.get("whole_prompts", True),
        config.get("match"),
        config.get("junctions", False),
        config.get("whole_hits", False),
        config.get("adaptive", False),
        config.get("draft_model", False),
        config.get("short_hashes", False),
    )


def _host(config: Json | None) -> HostTier | None:
    if config is None:
        return None
    return HostTier(
        config["slots"],
        config["blocks_per_slot"],
        config["policy"],
        config["threshold"],
        config["prompt_only"],
        config.get("pool", ""),
        config.get("describes", False),
        config.get("within_step", 0),
    )
