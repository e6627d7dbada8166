"""What an engine must implement to be driven as the stem ``block_cache``: a scheduler with its cache of blocks.

The scheduler decides which requests compute how many tokens in a step, which request is preempted, and which blocks
they get. The run decides which requests come and leave, what is drafted and sampled, and when a step is done. All
arguments and answers are plain Python numbers and lists, as ``conformance.driver.protocol`` says it; blocks, the null
block and tables are as in ``conformance.stems.block_pool.protocol``. A request is a small number; a number comes only
once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from conformance.driver.protocol import Engine
from conformance.stems.block_pool.protocol import BlockPoolSnapshot
from conformance.stems.host_tier.protocol import HostTierSnapshot

Tables = tuple[tuple[int, ...], ...]  # by group, the blocks of a request
Copies = tuple[tuple[int, int], ...]  # of each block that is copied where it is copied from, and where to
FULL, WINDOW, MAMBA = "full", "window", "mamba"  # the kinds of groups
NEW, RESUMED, RUNNING = "new", "resumed", "running"


def sizes_of(config: Mapping[str, Any]) -> list[int]:
    """By group, the tokens of a block. ``config``: see ``BlockCacheEngine``."""
    return [group.get("block_size", config["block_size"]) for group in config["layers"]]


def exchanges(config: Mapping[str, Any]) -> bool:
    """KV cache comes from other servers and is read by them. ``config``: see ``BlockCacheEngine``."""
    return bool(config.get("transfers")) and ("host" not in config or bool(config.get("servers")))


def has_own_connector(config: Mapping[str, Any]) -> bool:
    """An engine's own connector between servers decides what comes from them: where layers are other than one group
    with full attention, and where there is host memory, too. ``config``: see ``BlockCacheEngine``.
    """
    return exchanges(config) and ("host" in config or [group["kind"] for group in config["layers"]] != [FULL])


class Move(NamedTuple):
    """One thing that was done to blocks.

    ``kind``: ``get`` (taken from the free queue), ``touch`` (one holder more), ``free`` (one holder less, in the order
    of eviction), ``cache`` (the prefix cache finds the blocks, which are those of the request's table from the place
    ``first`` on, 0 where a block is left out), ``cache_partial`` (the same for a block of which only the tokens up to
    ``first`` are computed), ``evict`` (the prefix cache does not find them any more), ``reset`` (it has forgotten every
    block), ``move_hashes`` (the second block has the hashes of the first one), ``unpin`` (one holder less; the blocks
    stay readable). ``request``, ``group``: for whom it was done, ``None`` where that is not known; a move for all
    groups of a request at once has no group.
    """

    kind: str
    blocks: tuple[int, ...]
    request: int | None
    group: int | None
    first: int = 0


@dataclass(frozen=True)
class RequestPass:
    """What a request computes in a step.

    ``start``: how many of its tokens are computed before. A scheduler that has another step in flight counts the drafts
    of that step as accepted. ``count``: tokens that the step computes, the last ``drafts`` of which are drafts.
    ``samples``: the step computes the request's last token, so that a token is sampled after it. ``kind``: ``NEW``,
    ``RESUMED`` (after a preemption) or ``RUNNING``. ``blocks``: what the workers are told of its blocks: the whole
    tables of a new or resumed request, the blocks that are appended to the tables of a running one. ``text``: for a new
    or resumed request its tokens as the scheduler knows them; else empty. ``checkpoint``: layers with states also leave
    the state after so many tokens of the request, at this place of its table; ``None`` where they do not.
    ``placeholders``: nobody has drafted the drafts, and all of them are refused.
    """

    start: int
    count: int
    drafts: int
    samples: bool
    kind: str
    blocks: Tables
    text: tuple[int, ...] = ()
    checkpoint: tuple[int, int] | None = None
    placeholders: bool = False


class HostLimits(NamedTuple):
    """What a client limits of its request, each in tokens, or ``None`` for no limit. ``loaded``: one load from host
    memory brings at most so many tokens. ``copied``: at most so many first tokens of the text are copied there.
    """

    loaded: int | None = None
    copied: int | None = None


NO_LIMITS = HostLimits()


class RequestLoad(NamedTuple):
    """A transfer of KV cache from another server, or from host memory, into blocks of a request.

    It writes the tokens from ``first`` up to ``end`` of the request's text. ``tables``: the request's blocks. Nothing
    orders the transfer behind a step that is in flight when it begins, so no such step may use a block that it writes;
    the blocks are kept until the scheduler is told that the transfer is done, also where the request is aborted.
    ``job``, ``copies``: of a transfer from host memory its number, and what it copies, each as a place in host memory
    and a block. ``has``: where the tables are those of several groups, so many tokens the other server has computed: of
    layers with states it has the state after them. Then a table has only the blocks that the transfer writes, each at
    the place whose contents it gets. ``within_step``: the workers wait for the transfer before they compute the step
    with which it begins, and the request has a pass in this step: the scheduler does not wait for it.
    """

    first: int
    end: int
    tables: Tables
    job: int = 0
    copies: Copies = ()
    has: int = 0
    within_step: bool = False


@dataclass(frozen=True)
class Launched:
    """A step that was sent to the workers.

    ``passes``: by request, in the order of the step; empty where nothing is scheduled, and then there is nothing to
    complete, but where transfers are configured: workers answer such a step, too. ``preempted``: requests that gave up
    their blocks in this call. ``ended``: requests whose end the workers are told. ``copies``: blocks that the workers
    copy before the step, each as source and target. ``loads``: by request, the transfers that the workers begin.
    ``stores``: by number, the copies to host memory that the workers begin after the step, each as a block and a place
    in host memory. ``flushed``: the numbers of copies that the workers end before the step. ``zeroed``: blocks into
    which the workers write zeros before they copy anything. ``twice``: requests into whose blocks another transfer
    begins beside that in ``loads``.
    """

    passes: Mapping[int, RequestPass]
    preempted: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    loads: Mapping[int, RequestLoad] = field(default_factory=dict)
    stores: Mapping[int, Copies] = field(default_factory=dict)
    flushed: tuple[int, ...] = ()
    zeroed: tuple[int, ...] = ()
    twice: tuple[int, ...] = ()


class WorkerEnds(NamedTuple):
    """Transfers that are done on one worker, as it says it with a step. ``received``: by request how many tokens of its
    text are in its blocks on this worker. ``sent``, ``stored``: see ``Transfers``.
    """

    received: Mapping[int, int]
    sent: tuple[int, ...] = ()
    stored: tuple[int, ...] = ()


class Transfers(NamedTuple):
    """Transfers that are done on all workers, the last of which says it with this step.

    ``received``: by request how many tokens of its text are in its blocks, with those that were there before: less than
    was asked for where the transfer of a block has failed. ``sent``: requests whose blocks were read. ``failed``: those
    of which a part did not come, on any worker that has said so by now, also where another has not ended. ``stored``:
    the numbers of copies to host memory that are done. ``workers``: what each of several workers says with this step,
    also of what others have not ended; empty where there is one.
    """

    received: Mapping[int, int]
    sent: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    stored: tuple[int, ...] = ()
    workers: tuple[WorkerEnds, ...] = ()

    def by_worker(self) -> tuple[WorkerEnds, ...]:
        """What each worker says with this step."""
        return self.workers or (WorkerEnds(self.received, self.sent, self.stored),)


NO_TRANSFERS = Transfers({})


@dataclass(frozen=True)
class Completed:
    """What came of a step.

    ``delivered``: the sampled tokens that each request keeps. ``finished``: requests that are done. ``sends``: those of
    them whose blocks another server reads from now on, with these blocks; they are kept until the scheduler is told
    that they were read. ``reads``: of these how many tokens the other server reads, all but the last if left out.
    """

    delivered: Mapping[int, Sequence[int]]
    finished: tuple[int, ...] = ()
    sends: Mapping[int, Tables] = field(default_factory=dict)
    reads: Mapping[int, int] = field(default_factory=dict)


class Known(NamedTuple):
    """What the scheduler knows of a request that has not ended.

    ``status``: ``waiting``, ``running`` or ``preempted``. ``computed``: how many of its tokens are computed, with those
    of steps in flight. ``text``: its tokens. ``tables``: its blocks, by group.
    """

    status: str
    computed: int
    text: tuple[int, ...]
    tables: Tables


@dataclass(frozen=True)
class BlockCacheSnapshot:
    """The scheduler and its pool as they are now.

    ``pool``: its names have the mark of the request before the tokens of the text. ``requests``: those that have not
    ended. ``deferred``: blocks that nobody's table has, and which are given back once a step in flight is done.
    ``host``: host memory, where there is any and the engine shows it; its keys have any numbers from 1 on. ``lent``:
    blocks that nobody holds but copies to and from host memory, in flight or about to begin; ``pool`` shows them free.
    ``sleeps``: the server's loop asks the scheduler for no step until a request comes.
    """

    pool: BlockPoolSnapshot
    requests: Mapping[int, Known]
    deferred: tuple[int, ...] = ()
    host: HostTierSnapshot | None = None
    lent: tuple[int, ...] = ()
    sleeps: bool = False


class BlockCacheEngine(Engine, Protocol):
    """A scheduler over a cache of blocks.

    Configuration: ``block_size`` (tokens), ``blocks`` (usable blocks, without the null block), ``layers`` (a list of
    groups of layers: ``{"kind": "full"}``, ``{"kind": "window", "window": tokens}``, where a token reads that many
    tokens and the last of them is itself, or ``{"kind": "mamba"}``, with ``checkpoint`` where a pass leaves a state
    inside its tokens, see ``LayersConfig``; each with ``block_size`` where its blocks have another size), ``caching``,
    ``batch`` (most tokens of a step), ``requests`` (most requests that run at once), ``drafts`` (draft tokens of a
    request in a step, 0 for none), ``eagle`` (the drafts come from layers with KV cache of their own),
    ``steps_in_flight`` (1, 2 with an asynchronous scheduler, up to 4 where the model is also split into stages that
    compute one after the other), ``threshold`` (most tokens of a chunk of a prompt, 0 for any number), ``policy``
    (``fcfs`` or ``priority``), ``max_length`` (most tokens of a request), ``events`` (an engine that can publishes KV
    events, see ``PublishingEngine``), ``transfers`` (KV cache comes from other servers and is read by them, ``False``
    if left out), ``reoffers`` (a transfer of which nothing came is offered again, ``False`` if left out), ``failure``
    (what an engine that has the choice does with a request of whose transfer a part did not come: ``recompute``, if
    left out, or ``fail``, which ends it with an error), ``both_ways`` (where an engine's own connector decides, see
    ``has_own_connector``: other servers also read the blocks of an answer, not of a prompt alone, and a request may
    come with a prompt of which another server has a part, as the next turn of a chat does; ``False`` if left out),
    ``host`` (host memory to which computed blocks are copied and from which they are loaded, no such memory if left
    out; with ``transfers``, and then KV cache comes from other servers only with ``servers``: ``slots``,
    ``blocks_per_slot``, ``policy``, ``threshold``: how often a block is offered before it is copied, ``prompt_only``,
    ``pool``: host memory is a pool of blocks with a prefix cache of its own, and a copy holds its device blocks
    until it is done, and more, see ``HostConfig``), ``servers`` (KV cache comes from other servers beside ``host``;
    ``False`` if left out), ``workers`` (with ``transfers``: 1 or 2 divide each block among them, by attention heads or
    by layers, and each ends a transfer at its own moment; 1 if left out), ``tuning`` (an engine may have none of these;
    ``retention``: layers with a window or with states keep a prefix in the prefix cache at the end of a prompt and
    where texts part, and every ``retention`` tokens where it is not 0, at each block if left out; ``watermark``: a
    request is admitted beside others only where so many blocks stay free; ``interval``: of so many steps one computes
    prompts; ``whole_prompts``: a request is admitted only where its whole prompt fits, not its first chunk alone;
    ``match``: the prefix cache finds prefixes of any multiple of so many tokens, not of whole blocks alone, and a
    request goes on in a copy of the last block; ``junctions``, ``whole_hits``, ``short_hashes``, ``adaptive``,
    ``draft_model``: see ``TuningConfig``).

    ``moves``: what was done to blocks in the last call, in order.
    """

    moves: list[Move]

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
        """A request comes with a prompt, and ends after ``outputs`` sampled tokens.

        ``mark``: what the hash of its text must distinguish beside the tokens, 0 for nothing. ``priority``: a smaller
        number goes first, with the policy ``priority``. ``elsewhere``: another server has computed that many first
        tokens of the prompt; what this server does not have of them is transferred before the request runs. ``sends``:
        another server reads its blocks when it has ended, unless it is aborted. Both with ``transfers`` alone. Where an
        engine's own connector decides (``has_own_connector``) there are two kinds of requests. One of whose prompt
        another server has all is answered here; its answer is read by another server only with ``both_ways``. One that
        ``sends``, or of whose prompt another server has a part, is computed for another server, and ends with its first
        token; the part is loaded only with ``both_ways``. ``limits``: given where there is host memory.
        """

    def schedule(self) -> Launched:
        """The scheduler makes a step and sends it to the workers. Sent while fewer than ``steps_in_flight`` steps are
        in flight.
        """

    def complete(self, sampled: Mapping[int, Sequence[int]], transfers: Transfers = NO_TRANSFERS) -> Completed:
        """The oldest step in flight is done.

        ``sampled``: for each request of the step for which a token is sampled, what it sampled: the drafts that were
        accepted, and one token. A request that has ended meanwhile may be among them. ``transfers``: those that are
        done since the last call; each began with this step or an earlier one. Where there are several workers, an
        engine that decides itself when a transfer is done reads what each of them says (``Transfers.workers``).
        """

    def draft(self, drafts: Mapping[int, Sequence[int]]) -> None:
        """The drafts of requests for the next step: at most ``drafts`` tokens for each.

        Sent after ``complete``, for requests for which a token was sampled. An engine whose workers keep the drafts to
        themselves, as an asynchronous scheduler's do, lacks it.
        """

    def abort(self, request: int) -> None:
        """A request that has not ended is aborted, also while a step with it is in flight."""

    def reset(self, preempt: bool, host: bool = False) -> bool:
        """The prefix cache is reset. ``preempt``: requests that run are preempted first. ``host``: host memory forgets
        everything, too.

        Sent while fewer than ``steps_in_flight`` steps are in flight; with ``preempt`` only where no transfer is under
        way, but copies to host memory, and no request that does not run has blocks. ``False`` while a block is held,
        also for a step in flight or by a copy; then the prefix cache is as it was. What a step in flight samples for a
        preempted request may be dropped.
        """

    def snapshot(self) -> BlockCacheSnapshot:
        """Reads everything as it is now, and changes nothing. Sent once after each call."""
