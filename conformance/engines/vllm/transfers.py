"""A KV connector for a release's scheduler: it says what a run says of KV cache on other servers.

Only the scheduler's half is here. What the workers' half would do, the transfers themselves, is done by the stand-in
workers of the run. The connector decides nothing: for each request a run says how many tokens of the prompt another
server has, and whether another server reads the request's blocks when it has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from conformance.stems.block_cache.protocol import RequestLoad, Tables

MOST_GROUPS = 8


class TransferParams(NamedTuple):
    """What a run says of a request: ``elsewhere`` tokens of its prompt are on another server; another server reads its
    blocks when it has ended (``sends``).
    """

    elsewhere: int = 0
    sends: bool = False


class AllGroups:
    """Stands for vLLM's class ``SupportsHMA``, a connector that is given the blocks of all groups of layers, with what
    both connectors of this package answer alike.
    """

    supports_divergent_local_hybrid_hits = False
    requires_kv_delivery = False

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """The connector does not look into the manager."""

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """The connector does not look into the pool."""

    def get_loaded_kv_cache_group_ids(self, _: Any) -> tuple[int, ...]:
        """All groups of layers are loaded; a scheduler has at most ``MOST_GROUPS``."""
        return tuple(range(MOST_GROUPS))

    def has_pending_block_frees(self) -> bool:
        """No block is kept but what ``request_finished_all_groups`` says."""
        return False

    def register_finished_partial_tail(self, *_: Any) -> bool:
        """Nobody reads blocks of which only a part is computed."""
        return False

    def take_events(self) -> Iterable[Any]:
        """No KV events of other servers."""
        return ()

    def get_kv_connector_stats(self) -> None:
        """No figures."""

    def get_finished_count(self) -> None:
        """Each rank tells of each transfer."""


class StandInConnector(AllGroups):
    """The scheduler's half of a connector with asynchronous transfers, as a scheduler calls it."""

    unread: Sequence[Any]  # the statuses with which a request ends whose blocks no other server reads

    size: int  # the tokens of a block

    reoffers = False  # whether a transfer of which nothing came is offered again

    def __init__(self) -> None:
        self.asked: dict[str, TransferParams] = {}
        self._local: dict[str, int] = {}  # the tokens that the prefix cache of this server has found
        self._came: dict[str, int] = {}  # how often the request had been preempted when its last transfer began
        self._loads: dict[int, RequestLoad] = {}
        self._sends: dict[int, Tables] = {}

    def begun(self) -> Mapping[int, RequestLoad]:
        """The transfers into blocks that began since the last call, by request."""
        loads, self._loads = self._loads, {}
        return loads

    def ended(self) -> Mapping[int, Tables]:
        """The requests that ended since the last call and whose blocks another server reads, with these blocks."""
        sends, self._sends = self._sends, {}
        return sends

    # What a scheduler calls.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """How many tokens behind the ``num_computed_tokens`` first another server has; they come asynchronously.

        They come once, again after each preemption, and where nothing came if the connector ``reoffers`` it: whole
        blocks, or the whole text. Older releases count whole blocks.
        """
        name = request.request_id
        has = self.asked[name].elsewhere
        more = (has if has == request.num_tokens else has // self.size * self.size) - num_computed_tokens
        if more <= 0 or self._came.get(name) == request.num_preemptions:
            return 0, False
        self._local[name] = num_computed_tokens
        return more, True

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The blocks for the tokens that another server has are there, and the transfer into them begins."""
        if num_external_tokens:
            name, first = request.request_id, self._local[request.request_id]
            self._came[name] = request.num_preemptions
            tables = tuple(tuple(map(int, each)) for each in blocks.get_block_ids())
            self._loads[int(name)] = RequestLoad(first, first + num_external_tokens, tables)

    def failed(self, request: int) -> None:
        """Nothing of the transfer into the request's blocks came."""
        if self.reoffers:
            self._came.pop(str(request), None)

    def build_connector_meta(self, scheduler_output: Any) -> None:
        """What the workers are told: ``begun`` says it."""

    def request_finished_all_groups(
        self, request: Any, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request ends. Its blocks are kept where another server reads them; of a request that was aborted or has
        failed none does, nor of one that was preempted before its last token came.
        """
        sends = self.asked.pop(request.request_id).sends and any(block_ids)
        if sends and request.status not in self.unread:
            self._sends[int(request.request_id)] = tuple(tuple(map(int, each)) for each in block_ids)
            return True, None
        return False, None

    def on_new_request(self, request: Any) -> None:
        """A request comes."""

    def update_connector_output(self, connector_output: Any) -> None:
        """Transfers are done."""

    def has_pending_push_work(self) -> bool:
        """No transfer goes on without a request."""
        return False

    def reset_cache(self) -> bool:
        """Nothing is to be reset."""
        return True


class Factory:
    """Stands for the factory of connectors: a scheduler with transfers gets a ``StandInConnector``, one with host
    memory the release's own (``conformance.engines.vllm.host_connector``), and so does one with transfers of several
    groups of layers (``conformance.engines.vllm.server_connector``), or with both.
    """

    @staticmethod
    def create_connector(config: Any, role: Any, kv_cache_config: Any = None) -> Any:
        """A fresh connector."""
        del role
        make = vars(config.kv_transfer_config).get("connector")
        return StandInConnector() if make is None else make(config, kv_cache_config)

    @staticmethod
    def get_connector_class(kv_transfer_config: Any) -> Any:
        """Of one of several connectors what makes it, see ``conformance.engines.vllm.connectors.both``."""
        return lambda config, _, groups: vars(config)["makers"][kv_transfer_config.kv_connector](config, groups)

    @staticmethod
    def supports_hma_config(_: Any) -> bool:
        """Each of several connectors takes the blocks of all groups of layers."""
        return True
