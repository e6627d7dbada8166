"""The machine that draws runs of ``block_cache``: few blocks, a few requests at a time, and prompts that begin alike.

A rule sends what a server can do in the present state: requests come and are aborted, steps are made and completed, and
the prefix cache is reset. The scheduler decides the rest. Each run ends with ``drain``: every request is aborted, every
step is completed, and then every block must be free.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product
from math import gcd, lcm
from random import Random
from zlib import crc32

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from conformance.driver.protocol import Json
from conformance.stems.block_cache.exclusions import BlockCacheExclusion as Exclusion
from conformance.stems.block_cache.protocol import FULL, MAMBA, WINDOW, exchanges, has_own_connector, sizes_of
from conformance.stems.block_cache.run import MOST_WITH_TRANSFERS, BlockCacheRun
from conformance.stems.machine import StemMachine, started
from conformance.stems.requests.request import token

MOST_LENGTH, MOST_HERE = 40, 4
ADAPTER = 1  # the mark of a text that is computed with a LoRA adapter; a text with a cache salt has the mark 2
MOST_STEPS = 60  # that compute what is left at the end of a run
ATTENTION, WINDOWED, STATES = {"kind": FULL}, {"kind": WINDOW, "window": 6}, {"kind": MAMBA}
CHECKPOINTS, RARE_CHECKPOINTS = {"kind": MAMBA, "checkpoint": 1}, {"kind": MAMBA, "checkpoint": 4}
LAYERS = (
    *([ATTENTION], [ATTENTION, WINDOWED], [WINDOWED], [ATTENTION, STATES], [ATTENTION, WINDOWED]),
    *([ATTENTION, CHECKPOINTS], [ATTENTION, RARE_CHECKPOINTS]),
    [ATTENTION, {**WINDOWED, "block_size": 8}],
    [{**ATTENTION, "block_size": 8}, WINDOWED, {**WINDOWED, "window": 10, "block_size": 2}],
    [{**ATTENTION, "block_size": 8}, STATES],
    [{**ATTENTION, "block_size": 8}, {**STATES, "block_size": 8}, ATTENTION],
    [ATTENTION, {**STATES, "block_size": 8}],
)
PARTS = LAYERS.index([ATTENTION, CHECKPOINTS])
OTHER_LAYERS = LAYERS[:4]  # of the configurations that are tried where an engine does not support the drawn one
DRAFTS = (
    (0, False),
    (0, False),
    (2, False),
    (2, True),
    (1, True),
)  # each: drafts of a step, and whether of an EAGLE head
KINDS_OF_DRAFTS = tuple(dict.fromkeys(DRAFTS))
HOSTS = tuple(
    {"slots": slots, "blocks_per_slot": blocks, "policy": policy, "threshold": threshold, "prompt_only": prompt_only}
    for slots, blocks, policy, threshold, prompt_only in (
        (24, 1, "lru", 0, False),
        (6, 1, "arc", 0, False),
        (12, 1, "lru", 2, True),
        (12, 2, "arc", 0, False),
        (4, 2, "lru", 0, False),
    )
)
DESCRIBED = tuple({**host, "describes": True} for host in (HOSTS[0], HOSTS[4]))  # with KV events that describe slots
# With loads that end before their step computes: of so many tokens in a step, which not every load fits into.
WITHIN_STEPS = tuple({**host, "within_step": tokens} for host, tokens in ((HOSTS[0], 64), (HOSTS[3], 16)))
LIMITS, LIMITED = {0: "most_loaded", 1: "most_copied"}, 6  # by the remainder of a division by six
MOST_SLOTS = 64  # which runs do not fill
HOST_POOLS = tuple(  # host memory as a pool of blocks
    {**HOSTS[0], "slots": slots, "pool": pool}
    for slots, pool in ((24, "eager"), (6, "eager"), (24, "lazy"), (9, "lazy"))
)
TUNINGS: tuple[Json | None, ...] = (
    *(None, {"retention": 0}, {"retention": 8}, {"retention": 0}),
    *({"retention": 0, "whole_prompts": False}, {"watermark": 2, "draft_model": True}, {"retention": 0, "interval": 2}),
    *({"match": 1}, {"retention": 0, "match": 2}, {"retention": 0, "match": 1}),
    {"retention": 0, "match": 2, "junctions": True},
    {"retention": 0, "match": 1, "whole_hits": True},
    {"retention": 0, "match": 2, "short_hashes": True},
    {"retention": 4, "match": 2},
    {"retention": 0, "adaptive": True},
)
# What is configured of transfers alone.
OF_TRANSFERS = ("reoffers", "failure", "both_ways", "host", "servers", "workers")
CONFIG = {
    "layers": st.integers(0, len(LAYERS) - 1),
    "drafts": st.integers(0, len(DRAFTS) - 1),
    "blocks": st.sampled_from((14, 10, 12, 20, 16)),
    "batch": st.sampled_from((16, 8)),
    "steps_in_flight": st.sampled_from((1, 2, 3)),
    "threshold": st.sampled_from((0, 0, 5, 0, 0, 3)),
    "policy": st.sampled_from(("fcfs", "priority")),
    "caching": st.sampled_from((True, True, True, False)),
    "transfers": st.booleans(),
    "reoffers": st.booleans(),
    "failure": st.sampled_from(("recompute", "recompute", "fail")),
    "host": st.sampled_from((*[None] * 9, *HOSTS, *DESCRIBED, *HOST_POOLS, *WITHIN_STEPS)),  # with ``transfers`` alone
    "tuning": st.sampled_from(TUNINGS),
    "servers": st.booleans(),  # beside host memory
    "workers": st.sampled_from((1, 2)),  # with ``transfers`` alone
    "events": st.booleans(),  # with host memory alone; else always, where there is a prefix cache
}
LOST = (0, 1, 2, 0, MOST_LENGTH)  # of a transfer: so many of its last blocks do not come
lengths, picks, forks = st.integers(1, 24), st.integers(0, 11), st.sampled_from((0, 4, 9, 40))
moves = st.lists(st.tuples(picks, lengths, forks, st.integers(0, 2)), min_size=4, max_size=8)


def _as_tuned(config: Json) -> Json:
    """What was drawn, with several groups of layers where the prefix cache is to find parts of blocks, since a server
    with one group finds whole blocks alone; and with drafts where these come from a draft model.
    """
    tuning = config["tuning"] or {}
    if "match" in tuning and len(LAYERS[config["layers"]]) == 1:
        return {**config, "layers": PARTS}
    return {**config, "drafts": DRAFTS.index((2, False))} if tuning.get("draft_model") else config


def _others(config: Json, known: Json) -> list[Json]:
    """Configurations of every other kind, for an engine that does not support the drawn one. Their order depends on the
    drawn one alone.
    """
    fixed = _without(known, *OF_TRANSFERS, "tuning")
    found: list[Json] = [
        {**fixed, **{"layers": layers, "drafts": drafts, "eagle": eagle, "steps_in_flight": steps}, "caching": caching}
        for layers, (drafts, eagle), steps, caching in product(OTHER_LAYERS, KINDS_OF_DRAFTS, (1, 2, 3), (True, False))
    ]
    of_transfers = {name: config[name] for name in ("reoffers", "failure")}
    found = [
        {**one, "events": one["caching"], **more}
        for one in found
        for more in ({"transfers": False}, {"transfers": True, **of_transfers})
        if not more["transfers"] or one["layers"] == [ATTENTION]
    ]
    Random(crc32(json.dumps(config, sort_keys=True).encode())).shuffle(found)
    return found


def _plainer(kinds: list[Json]) -> Iterator[Json]:
    """These configurations, and after each with checkpoints or with blocks of several sizes one without, and with more
    than two steps in flight one with two; and after each of all these with KV events of several groups one without
    events.
    """
    for kind in kinds:
        for plainer in _with_less(kind):
            yield plainer
            if plainer["events"] and len(plainer["layers"]) > 1:
                yield {**plainer, "events": False}


def _with_less(kind: Json) -> Iterator[Json]:
    yield kind
    plain = {**kind, "layers": _of_one_size(_without_checkpoints(kind["layers"]))}
    if plain != kind:
        yield plain
    if kind["steps_in_flight"] > 2:
        yield {**plain, "steps_in_flight": 2}
    if kind.get("workers", 1) > 1:
        yield _without(plain, "workers")
    if kind.get("host", {}).get("within_step"):
        yield {**kind, "host": _without(kind["host"], "within_step")}


def _without_checkpoints(layers: list[Json]) -> list[Json]:
    return [_without(group, "checkpoint") for group in layers]


def _of_one_size(layers: list[Json]) -> list[Json]:
    return [_without(group, "block_size") for group in layers]


def _sizes_of_kind(config: Json, kind: str) -> list[int]:
    """The block sizes of the groups of this kind, in tokens."""
    groups = zip(config["layers"], sizes_of(config), strict=True)
    return [size for group, size in groups if group["kind"] == kind]


def _without_servers(config: Json) -> Json:
    """The configuration with host memory alone."""
    alone = {"reoffers": False, "failure": "recompute"}
    return {**_without(config, "servers", "both_ways"), **alone}


def _has_large_states(config: Json) -> bool:
    """A block of states has more tokens than the smallest blocks."""
    smallest = min(sizes_of(config))
    return any(size > smallest for size in _sizes_of_kind(config, MAMBA))


def _has_small_windows(config: Json) -> bool:
    """A hit is a multiple of more tokens than a block of a group with a window has."""
    whole = lcm(*sizes_of(config))
    return any(size < whole for size in _sizes_of_kind(config, WINDOW))


def _may_leave_early(config: Json) -> bool:
    """A block may leave a window before the prefix cache gets it: by drafts, or since the window is shorter."""
    groups = zip(sizes_of(config), config["layers"], strict=True)
    windows = [(size, group["window"]) for size, group in groups if group["kind"] == WINDOW]
    return any(config["drafts"] or window <= size for size, window in windows)


def _has_pooled_windows(config: Json) -> bool:
    """Host memory is a pool of blocks that gets those of windows as soon as they are computed."""
    windows = any(group["kind"] == WINDOW for group in config["layers"])
    return windows and config.get("host", {}).get("pool") == "eager"


def _hashed(config: Json) -> int:
    """The tokens of a hash: of whose multiples the prefix cache finds prefixes."""
    return int(config.get("tuning", {}).get("match") or gcd(*sizes_of(config)))


def has_parts(config: Json) -> bool:
    """A hash covers less than the largest blocks, so that the prefix cache may find parts of them."""
    return _hashed(config) < max(sizes_of(config))


def _without(config: Json, *names: str) -> Json:
    return {name: value for name, value in config.items() if name not in names}


class BlockCacheMachine(StemMachine):
    """Requests that come and leave, and a scheduler."""

    run: BlockCacheRun | None

    @initialize(config=st.fixed_dictionaries(CONFIG).map(_as_tuned))
    def start(self, config: Json) -> None:
        """Makes a scheduler of a drawn size and kind, and the law. What the engine does not support is left out, one
        thing after the other.
        """
        drafts, eagle = DRAFTS[config["drafts"]]
        known = {
            **config,
            **{"layers": LAYERS[config["layers"]], "drafts": drafts, "eagle": eagle, "block_size": 4, "requests": 3},
            **{"max_length": MOST_LENGTH, "events": config["caching"]},
        }
        plain, attention = {"drafts": 0, "eagle": False}, {"layers": [ATTENTION]}
        if known["transfers"]:
            known["layers"] = _of_one_size(known["layers"])
        else:
            known = _without(known, *OF_TRANSFERS)
        if known["tuning"] is None:
            known.pop("tuning")
        if known.get("host") is None:
            known = _without(known, "host", "servers")
        else:
            known["events"] = config["caching"] and config["events"]
            if not known["servers"]:
                known = _without_servers(known)
        if has_own_connector(known):
            known |= {"both_ways": known["reoffers"], "reoffers": False}
        less: list[Json] = [
            {},
            {"eagle": False},
            {"eagle": False, **attention},
            plain,
            {**plain, "steps_in_flight": 1},
            {**plain, **attention, "steps_in_flight": 1},
        ]
        alone = _without(known, *OF_TRANSFERS)
        kinds = [{**alone, **one, "transfers": False} for one in less]
        how = {"reoffers": False, "failure": "recompute"}
        if "host" not in known:
            how = {name: config[name] for name in how}
        if "workers" in known:
            how |= {"workers": known["workers"]}
        others = "host" in known or known["layers"] != [ATTENTION]
        exchanging = [{**alone, **attention, **how}] if others else []
        if "servers" in known:
            exchanging = [_without_servers(known), *exchanging]
        wanted = [*([known, *exchanging] if known["transfers"] else []), *kinds]
        untuned = [_without(kind, "tuning") for kind in wanted] if "tuning" in known else []
        for kind in [*_plainer([*wanted, *untuned]), *_others(config, known)]:
            if self.begin(self.avoiding(kind)):
                return

    def has_begun(self) -> None:
        self.number = max((step.get("request", 0) for step in self.lock.trace.steps), default=0)  # the last request

    def avoiding(self, config: Json) -> Json:
        """The configuration without what known differences need."""
        config = dict(config)
        pool = "pool" in config.get("host", {})
        if self.excludes(Exclusion.HOST_BESIDE_SERVERS) and config.get("servers") and not pool:
            config = _without_servers(config)
        if self.excludes(Exclusion.PRIORITY) and config["caching"]:
            config["policy"] = "fcfs"
        if self.excludes(Exclusion.TWO_STEPS):
            config["steps_in_flight"] = 1
        in_flight = self.excludes(Exclusion.DRAFTS_IN_FLIGHT) and config["steps_in_flight"] > 1
        states = any(group["kind"] == MAMBA for group in config["layers"])
        inside = has_parts(config) or exchanges(config)  # a hit or a load ends in a block
        padded = states and inside and self.excludes(Exclusion.PADDED_DRAFTS)
        if in_flight or padded or (states and self.excludes(Exclusion.STATES_WITH_DRAFTS)):
            config |= {"drafts": 0, "eagle": False}
        if self.excludes(Exclusion.LARGE_STATES) and config["caching"] and _has_large_states(config):
            config["layers"] = _of_one_size(config["layers"])
        if self.excludes(Exclusion.EAGLE_OF_SIZES) and config["caching"] and _has_small_windows(config):
            config["eagle"] = False
        if self.excludes(Exclusion.STATES_WITH_TRANSFERS) and states and config["transfers"]:
            config["layers"] = [ATTENTION]
        if self.excludes(Exclusion.STATES_IN_ONE_STEP) and states and config["caching"]:
            config["requests"] = 1
        if self.excludes(Exclusion.TRANSFERS_IN_FLIGHT) and config["steps_in_flight"] > 1:
            config["transfers"] = False
        if self.excludes(Exclusion.STALLED_LOADS) and config.get("reoffers") and config.get("failure") != "fail":
            config["reoffers"] = False
        if self.excludes(Exclusion.BOTH_WAYS) and config.get("both_ways"):
            config["both_ways"] = False
        if self.excludes(Exclusion.TABLES_AHEAD) and config.get("both_ways") and states and config["drafts"]:
            config["steps_in_flight"] = 1
        if self.excludes(Exclusion.LISTS_WITH_LOOKAHEAD) and has_own_connector(config):
            config["eagle"] = False
            if config.get("tuning", {}).get("draft_model"):
                config["tuning"] = _without(config["tuning"], "draft_model")
        of_windows = self.excludes(Exclusion.EVENTS_OF_WINDOWS) and _may_leave_early(config)
        pooled = self.excludes(Exclusion.EVENTS_OF_POOLED_WINDOWS) and _has_pooled_windows(config)
        if of_windows or pooled or (pool and self.excludes(Exclusion.EVENTS_OF_HOST_POOLS)):
            config["events"] = False
        if has_parts(config):
            config = self._avoiding_parts(config, states)
        if self.excludes(Exclusion.STATES_WITHIN_STEP) and states and "host" in config:
            config["host"] = _without(config["host"], "within_step")
        if self.excludes(Exclusion.HOST_ANSWERS) and "host" in config:
            config["host"] = {**config["host"], "prompt_only": True}
        if self.excludes(Exclusion.EVENTS_OF_FULL_HOSTS) and config.get("host", {}).get("describes"):
            config["host"] = {**config["host"], "slots": MOST_SLOTS}
        if self.excludes(Exclusion.CROWDED_LOADS) and config["transfers"]:
            config["blocks"] = MOST_WITH_TRANSFERS * -(-MOST_LENGTH // config["block_size"])
        return config

    def _avoiding_parts(self, config: Json, states: bool) -> Json:
        """The configuration without what known differences need, where the prefix cache finds parts of blocks."""
        if self.excludes(Exclusion.EVENTS_OF_PARTS):
            config = {**config, "events": False}
        retention = config.get("tuning", {}).get("retention")  # without one a request waits for a state of its step
        if self.excludes(Exclusion.PARTS_IN_ONE_STEP) and states and (retention is not None or config["eagle"]):
            config = {**config, "requests": 1}
        if self.excludes(Exclusion.MOVED_HASHES) and states:
            config = {**config, "steps_in_flight": 1}
        if self.excludes(Exclusion.LOADED_PARTS) and exchanges(config) and states:
            config = {**config, "tuning": _without(config["tuning"], "match")}
        if self.excludes(Exclusion.CHECKPOINTS_AFTER_PARTS):
            config = {**config, "layers": _without_checkpoints(config["layers"])}
        return config

    @property
    def begun(self) -> BlockCacheRun:
        """The run, after the start."""
        assert self.run is not None
        return self.run

    def teardown(self) -> None:
        """Ends everything, unless the run has failed before."""
        try:
            if self.run is not None and not self.failed:
                self.drain()
        finally:
            super().teardown()

    def drain(self) -> None:
        """Every request ends, every step in flight is done, and every transfer. Then every block is free, and a reset
        must be done. In half of the runs the scheduler first gets the time to compute every request to its end.
        """
        if self.number % 2:
            self.finish()
        for request in self._abortable():
            self.do("abort", request=request)
        for _ in range(2):  # the second time for those that may be aborted only after the first
            self._complete_all()
            self._end_transfers()
            self._step()
            for request in self.begun.waiting():
                self.do("abort", request=request)
        self._copy_all()
        asleep = self.begun.seen.sleeps and self._is_small_and_lazy()  # it copies on when it is woken
        if self.begun.exchange.is_quiet() or not (asleep or self._copies_without_end()):
            self.do("audit")
        self.do("reset", preempt=False)

    def _step(self) -> None:
        """A step is made and done, unless the server sleeps."""
        if not self._sleeps():
            self.do("schedule")
        self._complete_all()

    def _sleeps(self) -> bool:
        """The server makes no step until a request comes. One that sleeps while something is under way makes a step all
        the same: it stands for the step that comes with the next request.
        """
        asleep = self.begun.seen.sleeps and self.begun.exchange.is_quiet() and not self.begun.seen.lent
        return asleep or self._copies_without_end()

    def _copies_without_end(self) -> bool:
        """A known engine may go on for ever here: no request comes."""
        return self._is_small_and_lazy() and self.begun.idle.share >= 1 and self.excludes(Exclusion.IDLE_COPIES)

    def _is_small_and_lazy(self) -> bool:
        """Host memory is a lazy pool that is smaller than the device: copies may go round."""
        host, blocks = self.begun.config.get("host", {}), self.begun.config["blocks"]
        return host.get("pool") == "lazy" and bool(host["slots"] < blocks)

    def _copy_all(self) -> None:
        """A scheduler whose host memory is a pool of blocks may have blocks left to copy when nobody is there."""
        for _ in range(MOST_STEPS if "pool" in self.begun.config.get("host", {}) else 0):
            if self._sleeps():
                return
            self.do("copied")
            self._step()

    def finish(self) -> None:
        """The scheduler goes on, without new requests, until it has computed all or stands still."""
        self._complete_all()
        for _ in range(MOST_STEPS):
            if not self.begun.waiting():
                return
            self._end_transfers()
            self.do("schedule")
            self._complete_all()

    def _end_transfers(self) -> None:
        """Every transfer and every copy to host memory that is under way is done."""
        for request in self.begun.exchange.incoming():
            self.do("arrive", request=request)
        for request in self.begun.exchange.outgoing():
            self.do("sent", request=request)
        for job in self.begun.exchange.storing():
            self.do("stored", job=job)

    def _complete_all(self) -> None:
        for _ in range(len(self.begun.flying)):
            self.do("complete")

    @rule(moves=moves)
    def go(self, moves: list[tuple[int, int, int, int]]) -> None:
        """Requests come and leave, and steps are made and done."""
        if self.run is None:  # Hypothesis needs one rule that is always possible
            return
        for how, length, fork, more in moves:
            if how < 3 and self._has_room():
                self._come(length, fork, more)
            elif how == 3 and (waiting := self._abortable()):
                self.do("abort", request=waiting[length % len(waiting)])
            elif how in (4, 5) and self._transfers(length, LOST[(fork + more) % len(LOST)]):
                continue
            elif self._may_complete(how):
                self.do("complete", accept=self._accepted(more))
            elif self._may_schedule():
                self.do("schedule")

    def _abortable(self) -> list[int]:
        """The requests that may be aborted now."""
        loading = self.begun.exchange.loading() if self.excludes(Exclusion.ABORTED_LOADS) else ()
        return [request for request in self.begun.waiting() if request not in loading]

    def _has_room(self) -> bool:
        """One request more may come."""
        here = self.begun.waiting()
        return len(here) < MOST_HERE and len({*here, *self.begun.exchange.known()}) <= MOST_HERE

    def _transfers(self, pick: int, lost: int) -> bool:
        """A transfer is done, on one worker or on all, if one is under way. Now and then blocks do not come."""
        exchange = self.begun.exchange
        incoming, outgoing, stores = exchange.incoming(), exchange.outgoing(), exchange.storing()
        if incoming and (pick % 2 or not outgoing):
            request = incoming[pick % len(incoming)]
            complete = exchange.is_from_host(request) or (  # a copy from host memory does not fail
                self.excludes(Exclusion.FAILED_LOADS) and has_own_connector(self.begun.config)
            )
            where = self._where(pick, request, exchange.incoming)
            self.do("arrive", request=request, lost=0 if complete else lost, **where)
        elif outgoing:
            request = outgoing[pick % len(outgoing)]
            self.do("sent", request=request, **self._where(pick, request, exchange.outgoing))
        elif stores:
            job = stores[pick % len(stores)]
            self.do("stored", job=job, **self._where(pick, job, exchange.storing))
        return bool(incoming or outgoing or stores)

    def _where(self, pick: int, one: int, under_way: Callable[[int], list[int]]) -> dict[str, int]:
        """On which of several workers a transfer is done: mostly on one of those where it is under way, else on all."""
        workers = [worker for worker in self.begun.exchange.workers if one in under_way(worker)]
        if len(self.begun.exchange.workers) == 1 or pick % 4 == 0:
            return {}
        return {"worker": workers[pick // 4 % len(workers)]}

    def _has_place(self) -> bool:
        """One step more may be in flight."""
        most: int = self.begun.config["steps_in_flight"]
        return len(self.begun.flying) < most

    def _may_schedule(self) -> bool:
        return self._has_place() and not self._sleeps()

    def _may_complete(self, how: int) -> bool:
        return bool(self.begun.flying) and (how % 2 == 0 or not self._may_schedule())

    def _accepted(self, more: int) -> int:
        """So many tokens of each draft are accepted; fewer where an answer that another server reads ends with them,
        and a known engine gives it away wrongly.
        """
        read = self._read_answers() if self.begun.config.get("both_ways") else {}
        if self.excludes(Exclusion.ANSWERS_CUT_OFF):
            more = min([more, *(lacks for _, lacks in read.values())])
        ending = [request for request, (drafts, lacks) in read.items() if more and lacks <= 1 + min(more, drafts)]
        states = any(group["kind"] == MAMBA for group in self.begun.config["layers"])
        flying = {request for step in [*self.begun.flying][1:] for request in step.passes}
        of_states = bool(ending) and states and self.excludes(Exclusion.STATES_AFTER_DRAFTS)
        in_flight = not flying.isdisjoint(ending) and self.excludes(Exclusion.ANSWERS_IN_FLIGHT)
        return 0 if of_states or in_flight else more

    def _read_answers(self) -> dict[int, tuple[int, int]]:
        """Of the oldest step in flight the requests with drafts that another server reads when they have ended: how
        many drafts each has, and how many tokens it lacks.
        """
        adds = [step for step in self.lock.trace.steps if step["op"] == "add"]
        answers = {step["request"] for step in adds if step.get("elsewhere") == len(step["tokens"])}
        here, passes = self.begun.follower.here, self.begun.flying[0].passes
        drafts = {request: one.drafts for request, one in passes.items() if one.drafts and not one.placeholders}
        lacks = {request: self.begun.ends[request] - len(here[request].tokens) for request in here}
        return {request: (drafts[request], lacks[request]) for request in drafts if request in answers & here.keys()}

    def _come(self, length: int, fork: int, more: int) -> None:
        self.number += 1
        elsewhere, sends, outputs = (0, length, length // 2)[more], length % 2 == 0, 1 + (length * 5 + more) % 12
        if self.excludes(Exclusion.WINDOW_BEFORE_LOADS) and elsewhere == length and self._begins_at_a_block(length):
            elsewhere = 0
        if self.excludes(Exclusion.CUT_PROMPTS) and self._may_be_cut(length, elsewhere, sends):
            elsewhere, sends = 0, False
        exchanged = exchanges(self.begun.config)
        if exchanged and self.begun.hands_on(length, elsewhere, sends):
            outputs = 1
        self.do(
            "add",
            request=self.number,
            tokens=[token(n, fork) for n in range(length)],
            outputs=outputs,  # so that a text may end with a whole block
            fork=fork,
            mark=self._mark(fork, more),
            priority=self._priority(more),
            **({"elsewhere": elsewhere, "sends": sends} if exchanged else {}),
            **self._limits(length, fork, more),
        )

    def _limits(self, length: int, fork: int, more: int) -> dict[str, int]:
        """Some requests limit what is loaded from host memory, or copied there."""
        host = self.begun.config.get("host")
        name = LIMITS.get((length + fork + more) % LIMITED)
        if not host or host.get("pool") or name is None or (name == "most_copied" and self._avoids_limits(host)):
            return {}
        return {name: length * more // 2}

    def _avoids_limits(self, host: Json) -> bool:
        """A known engine stops at a limit on what is copied, where states inside blocks are copied to host memory."""
        config = self.begun.config
        kept = has_parts(config) and host["blocks_per_slot"] == 1 and _sizes_of_kind(config, MAMBA)
        return bool(kept and self.excludes(Exclusion.LIMITS_OF_TAILS))

    def _may_be_cut(self, length: int, elsewhere: int, sends: bool) -> bool:
        """A prompt of this length, which another server goes on from, may be cached to its end, in a model with states:
        who computes it has one token more, and takes it away.
        """
        config = self.begun.config
        cached = config["caching"] and length % _hashed(config) == 0
        return bool(cached and _sizes_of_kind(config, MAMBA) and self.begun.hands_on(length, elsewhere, sends))

    def _begins_at_a_block(self, length: int) -> bool:
        """The window of the token behind a text of this length begins with a block, in a group of layers."""
        config = self.begun.config
        groups = [one for one in zip(sizes_of(config), config["layers"], strict=True) if one[1]["kind"] == WINDOW]
        firsts = ((size, length + 1 - group["window"]) for size, group in groups)
        return any(first > 0 and first % size == 0 for size, first in firsts)

    def _mark(self, fork: int, more: int) -> int:
        """Of the texts with one fork, which are equal, some have no mark, some an adapter, and some a cache salt."""
        if fork != 4:
            return 0
        return min(more, ADAPTER) if self.excludes(Exclusion.SALTS) else more

    def _priority(self, more: int) -> int:
        """Mostly a request goes before those that came earlier, so that they are preempted for it."""
        here = len(self.begun.waiting())
        return more if more == 1 else MOST_HERE - min(here, MOST_HERE)

    @rule(sure=st.integers(0, 3), preempt=st.booleans())
    @precondition(started)
    def reset(self, sure: int, preempt: bool) -> None:
        """The prefix cache is reset now and then; host memory mostly while something is copied."""
        with_host = "host" in self.begun.config
        copies = with_host and not self.begun.exchange.is_quiet()
        in_flight = bool(self.begun.flying) and self.begun.config.get("transfers", False)
        if in_flight and self.excludes(Exclusion.RESET_IN_FLIGHT):
            if exchanges(self.begun.config):
                return
            preempt = False
        if (sure == 0 or (sure == 1 and copies)) and self._has_place():
            if with_host and self.excludes(Exclusion.HOST_RELOAD):
                preempt = False
            stores = self.begun.stores_hold_blocks() and self.excludes(Exclusion.RESET_OF_STORES)
            preempts = preempt and not self.begun.waits_with_blocks() and not stores
            again = self.begun.host_is_reset and self.excludes(Exclusion.HOST_RESET_AGAIN)
            loads = bool(self.begun.exchange.loading()) and self.excludes(Exclusion.HOST_RESET_UNDER_LOAD)
            windows = self.begun.has_given_up_window_blocks() and self.excludes(Exclusion.HOST_RESET_OF_WINDOWS)
            host = (sure == 1 or preempt) and not again and not loads and not windows
            if not (with_host and self.begun.config["events"] and self._is_misheard(host, preempts)):
                self.do("reset", preempt=preempts, **({"host": host} if with_host else {}))

    def _is_misheard(self, host: bool, preempt: bool) -> bool:
        """Readers of KV events are known to believe something else than what host memory has after such a reset."""
        if host and "pool" in self.begun.config["host"]:
            return self.excludes(Exclusion.EVENTS_OF_POOL_RESETS)
        is_done = preempt or self.begun.holds_nothing()
        known = Exclusion.EVENTS_OF_REFUSED_RESETS if host else Exclusion.EVENTS_OF_DEVICE_RESETS
        return is_done is not host and self.excludes(known)
