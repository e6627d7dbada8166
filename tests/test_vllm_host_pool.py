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
    idle, busy = IdleCopies(2), HostTierSnapshot({}, {}, (), 0, busy=True)
    step = Launched({}, stores={1: ((1, 1), (2, 2))})
    for _ in range(5):
        idle.launched(step, has_requests=True)
        idle.completed(busy)
    for _ in range(2):
        idle.launched(step, has_requests=False)
        idle.completed(busy)
    with pytest.raises(Finding) as raised:
        idle.launched(step, has_requests=False)
    assert raised.value.law == COPIES_END
    idle.completed(HostTierSnapshot({}, {}, (), 0))
    idle.launched(step, has_requests=False)
