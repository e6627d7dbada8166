"""A client limits how many tokens of its request come from host memory, and how many are copied there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from block_runs import config as config_of
from driven import RIGHT
from test_vllm_runs import answer

from conformance.driver.protocol import Misuse
from conformance.engines.vllm import RELEASES, causes
from conformance.stems.block_cache import rules
from conformance.stems.stem_registry import start

LIMITS = {"most_loaded", "most_copied"}

TWICE = """
    from conformance.stems.block_cache import rules
    first, second = runs.one_text_twice(makers["block_cache"], rules.HOSTS[0], 13, **json.loads(sys.argv[2]))
    copied = sum(len(copies) for step in first for copies in step.stores.values())
    print(json.dumps([copied, [[load.first, load.end] for step in second for load in step.loads.values()]]))
"""


@pytest.mark.engine
@pytest.mark.parametrize(
    ("limits", "copied", "loaded"),
    [
        ("{}", 3, [[0, 12]]),
        ('{"most_loaded": 8}', 3, [[0, 8]]),
        ('{"most_loaded": 7}', 3, [[0, 4]]),  # whole blocks
        ('{"most_loaded": 0}', 3, []),
        ('{"most_copied": 9}', 2, [[0, 8]]),
        ('{"most_copied": 0}', 0, []),
    ],
)
def test_no_more_is_loaded_and_copied_than_the_client_allows(limits: str, copied: int, loaded: Any) -> None:
    """The first request's blocks are copied, the device is reset, and the second one begins with its text."""
    assert answer(RELEASES[-1], TWICE, limits) == [copied, loaded]


BESIDE_SERVERS = """
    from conformance.stems.block_cache import rules
    from conformance.stems.stem_registry import start
    config = {**runs.config("full"), "transfers": True, "servers": True, "both_ways": True, "failure": "recompute"}
    config |= {"host": rules.HOSTS[0], "events": False, "blocks": 20}
    lock = start("block_cache", makers["block_cache"], config)
    lock.do("add", request=1, tokens=[*range(1, 10)], outputs=2, most_copied=4)
    for _ in range(4):
        lock.do("schedule")
        lock.do("complete")
    print(json.dumps(lock.run.ends[1] - len(lock.run.follower.here[1].tokens) if 1 in lock.run.follower.here else 0))
"""


@pytest.mark.engine
def test_a_limit_says_nothing_of_other_servers() -> None:
    """A server with a connector to both: the client says how much is copied, and names no other server."""
    assert answer(RELEASES[-1], BESIDE_SERVERS) == 0  # no token of it lacks


def test_the_page_of_a_cause_tells_what_a_client_sends() -> None:
    step = {"op": "add", "request": 3, "tokens": [1, 2], "outputs": 1}
    limited = causes.call({**step, "most_loaded": 4, "most_copied": 0})
    assert '"kv_transfer_params": {"max_load_tokens": 4, "max_offload_tokens": 0}' in limited
    assert '"kv_transfer_params": {"max_load_tokens": 4}' in causes.call({**step, "most_loaded": 4})
    assert "kv_transfer_params" not in causes.call(step)


def test_some_clients_of_a_server_with_host_memory_limit_either() -> None:
    machine: Any = object.__new__(rules.BlockCacheMachine)
    drawn = [(length, fork, more) for length in range(1, 25) for fork in range(6) for more in range(3)]
    for host, limited in ((rules.HOSTS[0], LIMITS), (rules.HOST_POOLS[0], set()), (None, set())):
        machine.run = SimpleNamespace(config={**config_of("full"), "host": host})
        limits = [machine._limits(*one) for one in drawn]
        assert {name for one in limits for name in one} == limited
        assert limits.count({}) > len(limits) / 2


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_a_server_without_host_memory_has_no_limits(name: str) -> None:
    lock = start("block_cache", RIGHT["block_cache"], config_of("full"))
    with pytest.raises(Misuse, match="no host memory is configured"):
        lock.do("add", request=1, tokens=[1, 2], outputs=1, **{name: 1})
    lock.do("add", request=1, tokens=[1, 2], outputs=1)
