"""vLLM's own connector to host memory under its scheduler: what the runs notice, and what they must leave alone."""

from __future__ import annotations

import pytest
from driven import SOAK
from host_memory_edits import BUGS, HARMLESS
from test_vllm_runs import answer

from conformance.driver.protocol import Unsupported
from conformance.engines.ours.block_cache import block_cache
from conformance.engines.vllm import RELEASES
from conformance.stems.block_cache.rules import HOSTS

QUICK = ("no_fence", "frees_twice", "an_abort_stores_all")  # the others in `make soak`


def found(*names: str) -> dict[str, str | None]:
    """For each edit the law that is found broken in the newest release with it."""
    script = "import host_memory_edits\nhost_memory_edits.main(sys.argv[1], sys.argv[2:])"
    answered: dict[str, str | None] = answer(RELEASES[-1], script, *names)
    return answered


@pytest.mark.engine
def test_a_bug_of_host_memory_is_found() -> None:
    wanted = tuple(BUGS) if SOAK else QUICK
    laws = found(*wanted)
    assert [name for name in wanted if laws[name] is None] == []
    assert laws["no_fence"] == laws["frees_twice"] == "reads_own_content"


@pytest.mark.engine
@pytest.mark.soak
def test_a_harmless_edit_shows_nothing() -> None:
    assert found(*HARMLESS) == dict.fromkeys(HARMLESS)


def test_our_scheduler_has_no_host_memory() -> None:
    config = {"block_size": 4, "blocks": 4, "layers": [{"kind": "full"}], "transfers": True, "host": HOSTS[0]}
    with pytest.raises(Unsupported, match="our scheduler has no host memory"):
        block_cache(config)
