"""vLLM's own connector to host memory under its scheduler: what the runs notice, and what they must leave alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driven import SOAK
from host_memory_edits import BUGS, HARMLESS
from host_memory_sample import MORE_HARMLESS, SAMPLE
from test_vllm_runs import answer

from conformance.driver.protocol import Unsupported
from conformance.engines.ours.block_cache import block_cache
from conformance.engines.vllm import RELEASES
from conformance.stems.block_cache.exchange import Exchange
from conformance.stems.block_cache.host import does_not_rest
from conformance.stems.block_cache.protocol import Launched, RequestLoad
from conformance.stems.block_cache.rules import HOSTS
from conformance.stems.block_cache.worker import Workers
from conformance.stems.host_tier.protocol import HostTierSnapshot

QUICK = ("no_fence", "frees_twice", "an_abort_stores_all")  # the others in `make soak`


def found(*names: str) -> dict[str, str | None]:
    """For each edit the law that is found broken in the newest release with it."""
    script = "import host_memory_edits\nhost_memory_edits.main(sys.argv[1], sys.argv[2:])"
    answered: dict[str, str | None] = answer(RELEASES[-1], script, *names)
    return answered


@pytest.mark.soak
@pytest.mark.engine
def test_a_bug_of_host_memory_is_found() -> None:
    wanted = tuple(BUGS) if SOAK else QUICK
    laws = found(*wanted)
    assert [name for name in wanted if laws[name] is None] == []
    assert laws["frees_twice"] == "compute"


@pytest.mark.engine
@pytest.mark.soak
def test_a_harmless_edit_shows_nothing() -> None:
    assert found(*HARMLESS) == dict.fromkeys(HARMLESS)


@pytest.mark.engine
@pytest.mark.soak
def test_most_bugs_of_a_draw_are_found() -> None:
    """Each with two of three seeds within a minute, one of them a load whose slots are not kept."""
    script = "import host_memory_sample\nhost_memory_sample.main(sys.argv[1], sys.argv[2:])"
    answered: dict[str, dict[str, tuple[str | None, float]]] = answer(RELEASES[-1], script, *SAMPLE, *MORE_HARMLESS)
    often = {name: sum(law is not None and s < 60 for law, s in seeds.values()) for name, seeds in answered.items()}
    assert sum(often[name] >= 2 for name in SAMPLE) >= 7, often
    assert often["evicted_during_load"] >= 2, often
    assert [name for name in MORE_HARMLESS if often[name]] == []


def test_a_copy_for_which_two_steps_wait_is_done_once() -> None:
    """A load that begins with the second of them is done, which needs the copy."""
    config = {"block_size": 4, "layers": [{"kind": "full"}], "caching": False, "transfers": True}
    exchange = Exchange(Workers(config), 4)
    load = RequestLoad(0, 4, ((2,),), 1, ((1, 2),))
    exchange.launched(Launched({}, stores={0: ((1, 1),)}), {})
    exchange.completed()
    exchange.launched(Launched({}, flushed=(0,)), {})
    exchange.launched(Launched({}, flushed=(0,), loads={7: load}), {7: [1, 2, 3, 4]})
    exchange.arrives(7, 0)
    assert exchange.completed().stored == (0,)


def test_host_memory_rests_when_nobody_waits_for_a_copy() -> None:
    rests = HostTierSnapshot(slots={1: 1}, refs={1: 0}, free=(2,), available=1)
    assert does_not_rest(rests) == ""
    assert does_not_rest(replace(rests, busy=True)) == "copies count as under way, so that the server never sleeps"
    assert does_not_rest(replace(rests, refs={1: 1}, busy=True)) == "host memory keeps slot 1 (promised)"


def test_our_scheduler_has_no_host_memory() -> None:
    config = {"block_size": 4, "blocks": 4, "layers": [{"kind": "full"}], "transfers": True, "host": HOSTS[0]}
    with pytest.raises(Unsupported, match="our scheduler has no host memory"):
        block_cache(config)


@pytest.mark.parametrize(("reset_before", "lacks"), [("nothing", None), ("end", 0), ("load", 0), ("launch", None)])
def test_what_was_in_host_memory_before_a_reset_may_not_come_back(reset_before: str, lacks: int | None) -> None:
    """What was there does not come back, and nor does what a copy that was under way writes. What is copied after the
    reset does.
    """
    config = {"block_size": 4, "layers": [{"kind": "full"}], "caching": True, "transfers": True}
    workers, text = Workers(config), [1, 2, 3, 4]
    exchange = Exchange(workers, 4)
    workers.comes(7, 0)
    workers.received(7, RequestLoad(0, 4, ((1,),)), text, 4)

    def reset(when: str) -> None:
        if when == reset_before:
            exchange.forgets_host()

    reset("launch")
    exchange.launched(Launched({}, stores={0: ((1, 1),)}), {})
    exchange.completed()
    reset("end")
    exchange.stores(0)
    reset("load")
    exchange.launched(Launched({}, loads={7: RequestLoad(0, 4, ((2,),), 1, ((1, 2),))}), {7: text})
    exchange.arrives(7, 0)
    assert workers.lacks(0, 0, text, 1) is None
    assert workers.lacks(0, 0, text, 2) == lacks
