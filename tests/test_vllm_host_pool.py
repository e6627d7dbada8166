"""vLLM's simple connector to host memory under its scheduler: what the runs notice, and what they must leave alone."""

from __future__ import annotations

import pytest
from driven import SOAK
from host_pool_edits import BUGS, HARMLESS
from test_vllm_runs import answer

from conformance.driver.lockstep import Finding
from conformance.engines.vllm import RELEASES
from conformance.engines.vllm.reading import unheld
from conformance.stems.block_cache.host import COPIES_END, IdleCopies
from conformance.stems.block_cache.protocol import Launched
from conformance.stems.block_cache.rules import HOST_POOLS
from conformance.stems.block_pool.protocol import BlockPoolSnapshot
from conformance.stems.host_tier.projection import host_problems
from conformance.stems.host_tier.protocol import HostTierSnapshot
from spec.finite import Domain

QUICK = ("store_source_is_freed_early",)  # the others in `make soak`
DRIVEN = """
    from conformance.search.check import Search, check
    from conformance.stems.block_cache import rules
    from hypothesis import strategies as st
    rules.CONFIG |= {"transfers": st.just(True), "host": st.sampled_from(rules.HOST_POOLS)}
    from host_memory_edits import KNOWN
    asked = Search(examples=int(sys.argv[2]), seed=5, exclude=KNOWN)
    found = check("block_cache", makers["block_cache"], asked)
    print(json.dumps([found.verdict, f"{found.law}: {found.detail}", found.transitions]))
"""
SMALL = str(len(HOST_POOLS) - 1)  # of the pools the last one is lazy, and smaller than the device
# What random clients send to schedulers with a pool, while what is known is left out but for the exclusions that are
# named: the law that is broken, how often a reset preempts, and how often while copies go on, and which share of the
# device is copied at most while no request is there.
SENT = """
    from contextlib import suppress
    from random import Random
    from conformance.driver.lockstep import Finding
    from conformance.search.trials import SchedulerTrial
    from conformance.stems.block_cache import rules
    from conformance.stems.exclusions import exclusions
    from host_memory_edits import KNOWN
    loaded = registry.load("vllm", release=sys.argv[1])
    preempts, idle = [], [0.0]
    def do(machine, op, **arguments):
        run = machine.begun
        idle.append(run.idle.share)
        if op == "reset" and arguments["preempt"]:
            preempts.append(run.stores_hold_blocks())
        sent(machine, op, **arguments)
    sent, rules.BlockCacheMachine.do = rules.BlockCacheMachine.do, do
    pool = {"transfers": True, "caching": True, "drafts": 0, "host": rules.HOST_POOLS[int(sys.argv[2])]}
    law, avoid = None, {*KNOWN} - exclusions(sys.argv[3:])
    try:
        for seed in range(12):
            with suppress(Unsupported):
                SchedulerTrial(loaded, Random(seed), pool, avoid).go()
    except Finding as found:
        law = found.law
    print(json.dumps([law, len(preempts), sum(preempts), max(idle)]))
"""
STARTS = """
    from conformance.stems.block_cache.claims import BESIDE, PROBES
    from conformance.stems.block_cache.rules import HOST_POOLS
    try:
        makers["block_cache"]({**PROBES[0], **BESIDE, "events": False, "host": HOST_POOLS[0]})
        print(json.dumps(True))
    except Unsupported:
        print(json.dumps(False))
"""


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("release", RELEASES[-2:])
def test_a_release_conforms_and_loads_from_its_pool(release: str) -> None:
    verdict, said, transitions = answer(release, DRIVEN, "40")
    assert verdict == "conforms", said
    assert transitions["admit_and_load done"] > 20


@pytest.mark.engine
def test_what_is_next_to_the_known_findings_is_sent() -> None:
    """A server with a small lazy pool is left without requests until it has copied as many blocks as the device has; a
    reset preempts where no copy goes on.
    """
    law, preempts, of_stores, idle = answer(RELEASES[-1], SENT, SMALL)
    assert law is None
    assert (preempts > 0, of_stores) == (True, 0)
    assert 1 <= idle <= 2


@pytest.mark.engine
@pytest.mark.parametrize(
    ("exclusion", "law"),
    [("block_cache.idle_copies", COPIES_END), ("block_cache.reset_of_stores", "lawful_call_is_answered")],
)
def test_a_known_finding_is_met_where_it_is_not_left_out(exclusion: str, law: str) -> None:
    assert answer(RELEASES[-1], SENT, SMALL, exclusion)[0] == law


@pytest.mark.soak(but=1)
@pytest.mark.engine
@pytest.mark.parametrize("pool", range(len(HOST_POOLS) - 1))
def test_copies_to_a_pool_that_is_not_small_and_lazy_come_to_an_end(pool: int) -> None:
    law, *_, idle = answer(RELEASES[-1], SENT, str(pool), "block_cache.idle_copies")
    assert law is None
    assert idle > 0, "no run has copied anything without a request"


@pytest.mark.engine
def test_a_release_without_the_connector_has_no_such_server() -> None:
    assert answer("0.18.1", STARTS) is False


def found(*names: str) -> dict[str, str | None]:
    """For each edit the law that is found broken in the newest release with it."""
    script = "import host_pool_edits\nhost_pool_edits.main(sys.argv[1], sys.argv[2:])"
    answered: dict[str, str | None] = answer(RELEASES[-1], script, *names)
    return answered


@pytest.mark.engine
def test_a_block_that_a_copy_gives_back_at_the_wrong_time_is_found() -> None:
    assert found(*QUICK) == dict.fromkeys(QUICK, "count_is_holders")


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug not in QUICK])
def test_a_planted_bug_is_found(bug: str) -> None:
    assert found(bug)[bug] is not None


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("edit", HARMLESS if SOAK else [*HARMLESS][:1])
def test_a_harmless_edit_shows_nothing(edit: str) -> None:
    assert found(edit) == {edit: None}


def test_what_only_copies_hold_is_shown_as_free() -> None:
    seen = BlockPoolSnapshot(
        free=[1], backward=[1], available=1, refs={1: 0, 2: 1, 3: 2}, named={}, found={}, null=0, null_named=False
    )
    shown = unheld(seen, {2: 1, 3: 1})
    assert shown.refs == {1: 0, 2: 0, 3: 1}
    assert (shown.free, shown.backward, shown.available) == ([1, 2], [2, 1], 2)
    assert unheld(seen, {1: 1}).refs[1] == -1  # a copy holds a block that the pool takes for free
    assert unheld(seen, {}) is seen


def test_a_load_without_a_promise_is_told() -> None:
    seen = HostTierSnapshot(slots={1: 1}, refs={1: 0}, free=(), available=0, reading={1: 1})
    said = "1 loads of slot 1 are in flight, and its key is promised to 0"
    assert said in host_problems(Domain(1, 1), seen)


def test_copies_without_a_request_come_to_an_end() -> None:
    idle = IdleCopies(2)
    step = Launched({}, stores={1: ((1, 1), (2, 2))})
    for _ in range(5):
        idle.launched(step, has_requests=True, slept=False)
    for share in (1, 2):
        idle.launched(step, has_requests=False, slept=False)
        assert idle.share == share
    with pytest.raises(Finding) as raised:
        idle.launched(step, has_requests=False, slept=False)
    assert raised.value.law == COPIES_END


def test_what_follows_from_a_step_that_no_server_makes_does_not_count() -> None:
    idle = IdleCopies(2)
    step = Launched({}, stores={1: ((1, 1), (2, 2))})
    idle.launched(step, has_requests=True, slept=False)
    for slept in (True, *[False] * 5):
        idle.launched(step, has_requests=False, slept=slept)
        assert idle.share == 0
    idle.launched(step, has_requests=True, slept=True)  # the request that wakes it
    idle.launched(step, has_requests=False, slept=False)
    assert idle.share == 1
