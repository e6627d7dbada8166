"""vLLM's own connector between servers, the scheduler's half, under the release's scheduler.

The scheduler's half of NIXL (the mode in which a server reads from another one) of the release decides everything: how
many tokens are loaded, into which blocks of each group of layers, which blocks another server gets to read, and which
of them are left out. What the workers' half would do, the transfers, is done by the stand-in workers of the run
(``conformance.stems.block_cache.worker``), at moments that the run draws.

The workers are told two lists of blocks for each group, one on each server, without places. The release's own function
pairs them (``server_workers``): a block too many in one of the lists moves the contents of all others, or an assertion
stops the process that reads. Both lists of the other server, that which is read here and that into which it reads, are
what the release's own half makes of the table that this server would have, with the same layers.

The other server has computed the whole prompt (``do_remote_prefill``), or a part of it that it gives back to the server
that computes the rest for it (``do_remote_decode``). Whether who computes a prompt for another server leaves out its
last token, the release's half says: it takes this token away, as where the model has states. So it is given here behind
the prompt of the run, and the other server has computed what the same half leaves of the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from conformance.driver.protocol import Json
from conformance.engines.vllm.server_workers import Lists, Pairs
from conformance.engines.vllm.settings import Setup, nothing
from conformance.engines.vllm.transfers import AllGroups, TransferParams
from conformance.stems.block_cache.protocol import MAMBA, WINDOW, RequestLoad, Tables
from conformance.stems.block_pool.protocol import NULL

PREFILL, DECODE = "do_remote_prefill", "do_remote_decode"
OTHER = {
    "remote_engine_id": "other",
    "remote_request_id": "theirs",
    "remote_host": "host",
    "remote_port": 1,
    "tp_size": 1,
}
# What a scheduler asks of a connector that is not about one of its calls.
SAYS_OF_ITSELF = (
    "supports_divergent_local_hybrid_hits",  # a load may bring states that lag behind what attention has in the cache
    "requires_kv_delivery",  # a request that is preempted must be computed again before it ends
    "get_loaded_kv_cache_group_ids",  # the groups of layers whose blocks a load brings
    "register_finished_partial_tail",  # it keeps blocks of which only a part is computed when a request ends
    "has_pending_block_frees",  # blocks come free when a transfer is done
    "has_pending_push_work",  # a transfer goes on without a request
)
TAKEN_AWAY = 1_000_000_000  # a token that no text has


@dataclass(frozen=True)
class ServerHalf:
    """The scheduler's half of a release's connector, with what differs between releases. ``clip``: leaves out of the
    tables of a request what no other server reads. ``comes``, ``told``: what it is told of a new request, and of
    transfers that are done. ``pairs``: which blocks its workers read into which. ``answers``: what the connector says
    of itself, by the names of ``SAYS_OF_ITSELF`` that the release has. ``names_failures``: the scheduler is told the
    requests whose transfers have failed.
    """

    real: Any
    clip: Callable[[Lists], Lists]
    comes: Callable[[Any], None]
    told: Callable[[Any], None]
    pairs: Pairs
    answers: Mapping[str, Callable[..., Any]]
    names_failures: bool


class ServerConnector(AllGroups):
    """The scheduler's half of vLLM's connector between servers as a scheduler calls it."""

    def __init__(self, half: ServerHalf, setup: Setup) -> None:
        self.half, self._setup, self._size = half, setup, setup.block_size
        self.supports_divergent_local_hybrid_hits = self._says("supports_divergent_local_hybrid_hits")
        self.requires_kv_delivery = self._says("requires_kv_delivery")
        self._has: dict[str, int] = {}  # by request how many of its tokens the other server has computed
        self._ranges: dict[str, tuple[int, int]] = {}  # by request the tokens that are loaded
        self._loads: dict[int, RequestLoad] = {}
        self._sends: dict[int, Tables] = {}
        self._read: dict[int, int] = {}

    # What the run asks.

    def comes(self, request: int, tokens: Sequence[int], asked: TransferParams) -> tuple[Sequence[int], Json | None]:
        """A request comes with a prompt. Returns what a client sends: the prompt, and what it says of transfers."""
        is_whole = asked.elsewhere == len(tokens)
        has = asked.elsewhere if is_whole or self._setup.both_ways else 0
        if not asked.sends and not has:
            return tokens, None
        self._has[str(request)] = self._left(has) if is_whole else has
        more = self._computed(self._has[str(request)]) if has else {}
        is_shortened = not is_whole and self._left(len(tokens) + 1) == len(tokens)
        last = (TAKEN_AWAY,) if is_shortened else ()
        return (*tokens, *last), {PREFILL: is_whole, DECODE: not is_whole, **more}

    def begun(self) -> Mapping[int, RequestLoad]:
        """The transfers into blocks that began since the last call, by request."""
        loads, self._loads = self._loads, {}
        return loads

    def ended(self) -> Mapping[int, Tables]:
        """The requests that ended since the last call and whose blocks another server reads, with these blocks."""
        sends, self._sends = self._sends, {}
        return sends

    def read(self) -> Mapping[int, int]:
        """Of these requests how many tokens of the text the other server reads."""
        read, self._read = self._read, {}
        return read

    # The other server.

    def _left(self, count: int) -> int:
        """How many tokens of a prompt of so many are computed for another server: the half takes the others away."""
        tokens = [TAKEN_AWAY] * count
        request = SimpleNamespace(
            **{"request_id": "other", "kv_transfer_params": {PREFILL: False, DECODE: True}},
            **{"prompt_token_ids": [*tokens], "_all_token_ids": [*tokens], "num_prompt_tokens": count},
            get_skip_reading_prefix_cache=lambda: False,
        )
        self.half.comes(request)
        self.half.real.get_num_new_matched_tokens(request, 0)
        return int(request.num_prompt_tokens)

    def _computed(self, count: int) -> Json:
        """What the other server says of a request of which it has computed so many tokens. Its blocks have the numbers
        of their places, from 1 on.
        """
        return {"remote_block_ids": self._lists(count), "remote_num_tokens": count, **OTHER}

    def _lists(self, count: int) -> list[list[int]]:
        """By group the blocks of so many tokens that the other server sends, or into which it reads."""
        lists = self.half.clip([[*self._table(group, count)] for group in self._setup.layers])
        return [[*each] for each in lists]

    def _table(self, group: Json, count: int) -> Iterator[int]:
        """The table of a group on the other server."""
        places = self._places(count)
        skipped = 0
        if group["kind"] == WINDOW:
            skipped = max(0, count - group["window"] + 1) // self._size
        elif group["kind"] == MAMBA:
            skipped, places = places - 1, places + self._setup.drafts
        yield from (NULL if place < skipped else place + 1 for place in range(places))

    def _places(self, count: int) -> int:
        return -(-count // self._size)

    # What a scheduler calls.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens behind the ``num_computed_tokens`` first another server has."""
        self._ranges[request.request_id] = (num_computed_tokens, num_computed_tokens)
        found: tuple[int | None, bool] = self.half.real.get_num_new_matched_tokens(request, num_computed_tokens)
        return found

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The request has blocks, into which so many tokens are loaded."""
        first, _ = self._ranges.get(request.request_id, (0, 0))
        self._ranges[request.request_id] = (first, first + num_external_tokens)
        self.half.real.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """What the workers are told with a step. Where no block is read, the other server is told that it may forget
        the request.
        """
        meta = self.half.real.build_connector_meta(scheduler_output)
        for name, told in meta.reqs_to_recv.items():
            if any(told.local_block_ids):
                first, end = self._ranges[name]
                local, remote = self.half.pairs(told.local_block_ids, told.remote.block_ids)
                tables = tuple(map(_table, remote, local))
                self._loads[int(name)] = RequestLoad(first, end, tables, has=self._has[name])
        return meta

    def request_finished_all_groups(
        self, request: Any, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request ends. Another server reads the blocks into its own blocks of the tokens that it loads: the prompt
        that was computed for it, or what it is told of.
        """
        is_read, params = self.half.real.request_finished(request, block_ids)
        if is_read:
            count = request.num_prompt_tokens if request.kv_transfer_params.get(DECODE) else params["remote_num_tokens"]
            self._read[int(request.request_id)] = count
            into = [[*filter(None, each)] for each in self._lists(count)]  # it loads nothing into the null block
            places, blocks = self.half.pairs(into, params["remote_block_ids"])
            self._sends[int(request.request_id)] = tuple(map(_table, places, blocks))
        return is_read, params

    def on_new_request(self, request: Any) -> None:
        """A request comes."""
        self.half.comes(request)

    def update_connector_output(self, connector_output: Any) -> None:
        """Transfers are done."""
        self.half.told(connector_output)

    # What it says of itself. A release without the method does not ask.

    def _says(self, name: str, *asked: Any) -> bool:
        answer: Callable[..., Any] = self.half.answers.get(name, nothing)
        return bool(answer(*asked))

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """The groups of layers whose blocks a load brings."""
        return tuple(self.half.answers["get_loaded_kv_cache_group_ids"](request))

    def register_finished_partial_tail(self, *told: Any) -> bool:
        """It keeps blocks of which only a part is computed when a request ends."""
        return self._says("register_finished_partial_tail", *told)

    def has_pending_block_frees(self) -> bool:
        """Blocks come free when a transfer is done."""
        return self._says("has_pending_block_frees")

    def has_pending_push_work(self) -> bool:
        """A transfer goes on without a request."""
        return self._says("has_pending_push_work")

    def reset_cache(self) -> bool:
        """Nothing is to be reset."""
        return True


def _table(numbers: Sequence[int], blocks: Sequence[int]) -> tuple[int, ...]:
    """A table with each block at the place of the other server's block of which it gets the contents, or to which it
    gives them. ``numbers``: of these blocks, see ``ServerConnector._computed``.
    """
    pairs = {number: int(block) for number, block in zip(numbers, blocks, strict=True) if number}
    return tuple(pairs.get(number, NULL) for number in range(1, max(pairs, default=0) + 1))
