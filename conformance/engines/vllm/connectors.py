"""The connectors of a scheduler as a run sees them: from where KV cache comes, and who reads it.

A scheduler has one connector. It is a stand-in, the release's own connector between servers, that to host memory, or
the release's ``MultiConnector`` over both, in the order in which servers are configured with them: KV cache comes from
another server if that has some, else from host memory, and both are told of everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from conformance.driver.protocol import EngineError, Json
from conformance.engines.vllm.host_connector import HostCopies
from conformance.engines.vllm.server_connector import ServerConnector
from conformance.engines.vllm.transfers import AllGroups, StandInConnector, TransferParams
from conformance.stems.block_cache.protocol import HostLimits, RequestLoad, Tables, Transfers, WorkerEnds

MULTI = "distributed.kv_transfer.kv_connector.v1.multi_connector"
OF_SERVERS, OF_HOST = "NixlConnector", "OffloadingConnector"  # names by which the maker of a connector is found
# How a client says ``HostLimits``. vLLM reads the second from 0.24.0 on, and the first from 0.31.0 on.
LIMITS = ("max_load_tokens", "max_offload_tokens")
Maker = Callable[[Any, Any], Any]  # from the configuration and the groups of layers to a connector


def both(imported: Any, config: Any, groups: Any, servers: Maker, host: Maker, asked: Json) -> Any:
    """The release's ``MultiConnector`` over a connector between servers and one to host memory. ``asked``: what is
    configured of each of the two.
    """
    vars(config)["makers"] = {OF_SERVERS: servers, OF_HOST: host}
    named = [{"kv_connector": name, "kv_role": "kv_both", **asked} for name in (OF_SERVERS, OF_HOST)]
    vars(config.kv_transfer_config).update(engine_id="engine", kv_connector_extra_config={"connectors": named})
    kind = imported.module(MULTI).MultiConnector

    class Both(kind, AllGroups):  # type: ignore[misc,valid-type]
        """The release's connector, of which a scheduler also sees that it takes the blocks of all groups."""

    return Both(config, "scheduler", groups)


class WorkerAnswer(NamedTuple):
    """Transfers that are done on one worker, as it tells. ``received``, ``sent``: requests. ``failed``: requests of
    those received; ``lost``: blocks that did not come. ``told``: what its half of a connector says beside.
    """

    received: Sequence[str]
    sent: Sequence[str]
    failed: Sequence[str]
    lost: Sequence[int]
    told: Any


@dataclass
class Connectors:
    """Those of one scheduler; ``None`` where it has no such connector. ``size``: tokens of a block of all groups.
    ``told``: the class of what the workers' halves of several connectors say together.
    """

    size: int
    stand_in: StandInConnector | None = None
    servers: ServerConnector | None = None
    host: HostCopies | None = None
    told: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        self._loading: dict[int, RequestLoad] = {}

    def comes(
        self, request: int, tokens: Sequence[int], asked: TransferParams, limits: HostLimits
    ) -> tuple[Sequence[int], Json | None]:
        """A request comes with a prompt. Returns what a client sends: the prompt, and what it says of transfers."""
        said: Json | None = None
        if self.servers is not None:
            tokens, said = self.servers.comes(request, tokens, asked)
        elif self.stand_in is not None:
            self.stand_in.asked[str(request)] = asked
        more: Json = {name: most for name, most in zip(LIMITS, limits, strict=True) if most is not None}
        return tokens, {**(said or {}), **more} if more else said

    def begun(self) -> tuple[Mapping[int, RequestLoad], tuple[int, ...]]:
        """The transfers into blocks that began since the last call, by request; and the requests into whose blocks a
        second one began.
        """
        each = [one.begun() for one in (self.host, self.servers, self.stand_in) if one is not None]
        loads = {request: load for one in each for request, load in one.items()}
        self._loading |= loads
        return loads, tuple(request for request in loads if sum(request in one for one in each) > 1)

    def launched(self, meta: Any) -> dict[str, Any]:
        """What ``Launched`` says of copies to host memory. ``meta``: what the workers are told with a step."""
        if self.told is not None and meta.extra_async_saves:
            raise EngineError("both connectors keep the blocks of a request that has ended, which is not driven")
        return {} if self.host is None else {"stores": self.host.stores(), "flushed": self.host.flushed()}

    def ended(self) -> tuple[Mapping[int, Tables], Mapping[int, int]]:
        """The requests that ended since the last call and whose blocks another server reads, with these blocks; and of
        how many tokens it reads them, where the connector says so.
        """
        if self.servers is not None:
            return self.servers.ended(), self.servers.read()
        return ({} if self.stand_in is None else self.stand_in.ended()), {}

    def done(self, transfers: Transfers, ranks: int) -> list[WorkerAnswer]:
        """What each of so many ranks tells of transfers that are done. Where they are more than the workers of the run,
        the last worker's moments are those of the ranks behind it, too.
        """
        said = transfers.by_worker()
        answers = [self._answer(said[min(rank, len(said) - 1)]) for rank in range(ranks)]
        loads = {request: self._loading.pop(request) for request in transfers.received}
        for request, end in transfers.received.items():
            if self.stand_in is not None and end == loads[request].first:
                self.stand_in.failed(request)
        if self.host is not None:
            self.host.forgets([request for request, load in loads.items() if load.copies], transfers.stored)
        return answers

    def _answer(self, said: WorkerEnds) -> WorkerAnswer:
        """What a rank tells."""
        loads = {request: self._loading[request] for request in said.received}
        failed: Sequence[str] = ()
        if self.servers is not None and self.servers.half.names_failures:
            failed = [str(request) for request, load in loads.items() if said.received[request] < load.end]
        lost = self._lost(loads, said) if self.servers is None else ()
        received = [str(request) for request, load in loads.items() if not load.within_step]
        sent = [*map(str, said.sent)]
        return WorkerAnswer(received, sent, failed, lost, self._of_copies(loads, said))

    def _lost(self, loads: Mapping[int, RequestLoad], said: WorkerEnds) -> list[int]:
        """The blocks that did not come."""
        lost: list[int] = []
        for request, load in loads.items():
            end = said.received[request]
            if end < load.end:
                places = slice(end // self.size, -(-load.end // self.size))
                lost += [block for table in load.tables for block in table[places]]
        return lost

    def _of_copies(self, loads: Mapping[int, RequestLoad], said: WorkerEnds) -> Any:
        """What a rank says of copies to and from host memory; ``None`` where there is none."""
        if self.host is None:
            return None
        told = self.host.answer([request for request, load in loads.items() if load.copies], said.stored)
        return told if self.told is None or told is None else self.told(metadata=(None, told))
