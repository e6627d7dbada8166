"""Our scheduler with block tables as an engine of the stem ``block_cache``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

from conformance.driver.protocol import Json, Unsupported
from conformance.engines.ours.block_pool import shown
from conformance.stems.block_cache.protocol import (
    FULL,
    MAMBA,
    NO_LIMITS,
    NO_TRANSFERS,
    WINDOW,
    BlockCacheSnapshot,
    Completed,
    HostLimits,
    Known,
    Launched,
    Move,
    RequestLoad,
    RequestPass,
    Transfers,
    sizes_of,
)
from conformance.stems.block_pool.protocol import Name
from impl.block_cache import RESUMED, BlockTable, Hasher, Request, Scheduler, block_hash
from impl.block_pool import BlockPool

Tables = Callable[[Any, int, int], BlockTable]


class Watched:
    """The pool as one table sees it: writes down what is done to blocks for this table."""

    def __init__(self, pool: BlockPool, request: int, group: int, moves: list[Move]) -> None:
        self._pool, self._request, self._group, self._moves = pool, request, group, moves

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def _note(self, kind: str, blocks: Sequence[int], first: int = 0) -> None:
        if blocks:
            self._moves.append(Move(kind, tuple(blocks), self._request, self._group, first))

    def alloc(self, count: int) -> list[int] | None:
        """``alloc``."""
        taken = self._pool.alloc(count)
        self._note("get", taken or ())
        return taken

    def touch(self, blocks: Sequence[int]) -> None:
        """``touch``."""
        self._pool.touch(blocks)
        self._note("touch", blocks)

    def free(self, blocks: Sequence[int]) -> None:
        """``free``."""
        self._pool.free(blocks)
        self._note("free", blocks)

    def cache(self, blocks: Sequence[int], hashes: Sequence[Hashable]) -> None:
        """``cache``."""
        self._pool.cache(blocks, hashes)
        self._note("cache", blocks)


class HashedTexts:
    """What hashes are the hashes of: each hash that is made is written down with its text, the mark before the tokens.

    ``hasher`` makes the hashes.
    """

    def __init__(self, hasher: Hasher) -> None:
        self._hasher = hasher
        self._texts: dict[bytes, tuple[int, ...]] = {}

    def hash(self, before: bytes, tokens: Sequence[int]) -> bytes:
        """The hash of a block, which is written down. Of two texts with one hash the first one is."""
        made = self._hasher(before, tokens)
        self._texts.setdefault(made, (*self._texts.get(before, ()), *tokens))
        return made

    def name(self, known: Hashable) -> Name:
        """The text of a hash of the pool, which is made of a group and the hash of a text."""
        assert isinstance(known, tuple)
        return Name(known[0], self._texts[known[1]])


class OurScheduler:
    """``Scheduler`` as a ``BlockCacheEngine``. ``kind``, ``table``, ``hasher``: its parts, which may be faulty."""

    fragile = False

    def __init__(
        self,
        config: Json,
        lacks: Collection[str] = (),
        kind: Callable[..., Scheduler] = Scheduler,
        table: Tables = BlockTable,
        hasher: Hasher = block_hash,
    ) -> None:
        drafts, in_flight = config.get("drafts", 0), config.get("steps_in_flight", 1)
        self.lacks = frozenset({*lacks, "draft"} if not drafts or in_flight > 1 else lacks)
        self.moves: list[Move] = []
        self._texts = HashedTexts(hasher)
        self._flying: deque[bool] = deque()  # of each step in flight, whether it has a pass
        self._counts_all = bool(config.get("transfers", False))  # workers answer steps without a pass, too
        self.pool = BlockPool(config["blocks"])
        self.scheduler = kind(
            self.pool,
            sizes_of(config),
            [_window(group) for group in config["layers"]],
            batch=config["batch"],
            requests=config["requests"],
            drafts=drafts,
            steps_in_flight=in_flight,
            threshold=config.get("threshold", 0),
            by_priority=config.get("policy") == "priority",
            caching=config["caching"],
            table=lambda pool, request, group: table(Watched(pool, request, group, self.moves), request, group),
            hasher=self._texts.hash,
        )

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
        """``add``."""
        del limits  # there is no host memory
        self.moves.clear()
        self.scheduler.add(request, tokens, outputs, mark, priority, elsewhere=elsewhere, sends=sends)

    def schedule(self) -> Launched:
        """``schedule``."""
        self.moves.clear()
        step = self.scheduler.schedule()
        known = self.scheduler.known()
        passes = {
            name: RequestPass(
                start=one.start,
                count=one.count,
                drafts=one.drafts,
                samples=one.samples,
                kind=one.kind,
                blocks=one.blocks,
                text=() if one.kind == "running" else tuple(known[name].tokens),
            )
            for name, one in step.passes.items()
        }
        if passes or self._counts_all:
            self._flying.append(bool(passes))
        loads = {name: RequestLoad(one.first, one.end, one.blocks) for name, one in step.loads.items()}
        return Launched(passes, step.preempted, loads=loads)

    def complete(self, sampled: Mapping[int, Sequence[int]], transfers: Transfers = NO_TRANSFERS) -> Completed:
        """``complete``, ``received`` and ``sent``. A step without a pass is none of the scheduler's."""
        self.moves.clear()
        known = self.scheduler.known()
        delivered, ended = self.scheduler.complete(sampled) if self._flying.popleft() else ({}, ())
        sends = {
            name: tuple(tuple(table.blocks) for table in known[name].tables) for name in ended if known[name].transfers
        }
        for request, count in transfers.received.items():
            self.scheduler.received(request, count)
        for request in transfers.sent:
            self.scheduler.sent(request)
        return Completed(delivered, ended, sends)

    def draft(self, drafts: Mapping[int, Sequence[int]]) -> None:
        """``draft``."""
        self.moves.clear()
        self.scheduler.draft(drafts)

    def abort(self, request: int) -> None:
        """``abort``."""
        self.moves.clear()
        self.scheduler.abort(request)

    def reset(self, preempt: bool, host: bool = False) -> bool:
        """``reset``. It has no host memory."""
        assert not host
        self.moves.clear()
        return self.scheduler.reset(preempt)

    def snapshot(self) -> BlockCacheSnapshot:
        """The requests that have not ended, the blocks of those that have, and the pool."""
        scheduler = self.scheduler
        return BlockCacheSnapshot(
            pool=shown(self.pool, self._texts.name),
            requests={name: self._known(request) for name, request in scheduler.known().items()},
            deferred=tuple(b for one in scheduler.leaving for table in one.tables for b in table.blocks if b),
        )

    def _known(self, request: Request) -> Known:
        waits = "preempted" if request.kind == RESUMED else "waiting"
        return Known(
            status="running" if request in self.scheduler.running else waits,
            computed=request.hoped,
            text=tuple(request.tokens),
            tables=tuple(tuple(table.blocks) for table in request.tables),
        )


def _window(group: Json) -> int | None:
    if group["kind"] == MAMBA:
        raise Unsupported("our scheduler has no states")
    assert group["kind"] in (FULL, WINDOW)
    return group["window"] if group["kind"] == WINDOW else None


def block_cache(
    config: Json,
    device: str = "cpu",
    lacks: Collection[str] = (),
    kind: Callable[..., Scheduler] = Scheduler,
    table: Tables = BlockTable,
    hasher: Hasher = block_hash,
) -> OurScheduler:
    """Our scheduler. It is on the host, whatever the ``device``. ``kind``, ``table``, ``hasher``: see ``OurScheduler``.

    It publishes no events. Raises ``Unsupported`` for states, for host memory, for what is tuned, and for an EAGLE
    head, since a block that is found says nothing of the layers of one.
    """
    del device
    if config.get("eagle"):
        raise Unsupported("our scheduler has no blocks of the layers of an EAGLE head")
    if config.get("host"):
        raise Unsupported("our scheduler has no host memory")
    if config.get("tuning"):
        raise Unsupported("our scheduler has nothing to tune")
    return OurScheduler(config, lacks, kind, table, hasher)
