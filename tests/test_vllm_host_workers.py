"""Workers that end their copies apart: what a run makes of them, and bugs of what vLLM makes of their answers."""

from __future__ import annotations

import pytest
from driven import SOAK
from host_workers_edits import BUGS, HARMLESS
from test_vllm_runs import answer

from conformance.driver.protocol import Misuse
from conformance.engines import registry
from conformance.engines.vllm import RELEASES
from conformance.engines.vllm.settings import HostTier, Setup
from conformance.stems.block_cache.exchange import Exchange
from conformance.stems.block_cache.protocol import Launched, RequestLoad, RequestPass, Transfers, WorkerEnds
from conformance.stems.block_cache.run import BlockCacheRun
from conformance.stems.block_cache.worker import Workers

# Bugs that drawn runs were seen to find; the first in each run of the tests, the others in `make soak`.
DRAWN = (
    *("first_answer_ends_a_store", "first_answer_ends_a_copy", "answers_for_stores_are_counted_on"),
    *("only_the_last_loss_counts", "first_answer_ends_a_load"),
)
CONFIG = {"block_size": 4, "layers": [{"kind": "full"}], "caching": True, "transfers": True, "workers": 2}
TEXT = [1, 2, 3, 4]
OF_SERVERS, FROM_HOST = RequestLoad(0, 4, ((1,),)), RequestLoad(0, 4, ((2,),), 1, ((1, 2),))


def found(name: str) -> str | None:
    """The law that is found broken in the newest release with an edit."""
    script = "import host_workers_edits\nhost_workers_edits.main(sys.argv[1], sys.argv[2:])"
    answered: dict[str, str | None] = answer(RELEASES[-1], script, name)
    return answered[name]


@pytest.mark.engine
def test_a_scene_breaks_with_its_bugs_and_with_nothing_else() -> None:
    """Every bug has a scene. Neither the release nor a harmless edit breaks one."""
    script = "import host_workers_edits\nhost_workers_edits.scenes(sys.argv[1])"
    played: dict[str, dict[str, str | None]] = answer(RELEASES[-1], script)
    broken = {(scene, name) for scene, laws in played.items() for name, law in laws.items() if law is not None}
    wanted = {(scene, name) for scene, laws in played.items() for name in laws if name in BUGS}
    assert broken == wanted
    assert {name for _, name in broken} == set(BUGS)
    assert played["copied"]["first_answer_ends_a_copy"] == "reads_own_content"
    assert played["copied_after_others"]["answers_are_counted_on"] == "reads_own_content"


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("edit", DRAWN if SOAK else DRAWN[:1])
def test_a_bug_of_the_answers_of_workers_is_found(edit: str) -> None:
    assert found(edit) is not None


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("edit", HARMLESS)
def test_a_harmless_edit_of_the_answers_of_workers_shows_nothing(edit: str) -> None:
    assert found(edit) is None


def two_workers() -> tuple[Workers, Exchange]:
    """Block 1 holds the text on both, and a copy of it to place 1 of host memory has begun."""
    workers = Workers(CONFIG)
    exchange = Exchange(workers, 4)
    workers.comes(7, 0)
    workers.received(7, OF_SERVERS, TEXT, 4)
    exchange.launched(Launched({}, stores={0: ((1, 1),)}), {})
    exchange.completed()
    return workers, exchange


def test_a_copy_is_done_once_the_last_worker_has_told() -> None:
    _, exchange = two_workers()
    exchange.stores(0, 0)
    assert (exchange.storing(0), exchange.storing(1), exchange.storing()) == ([], [0], [0])
    assert exchange.completed() == Transfers({}, workers=(WorkerEnds({}, (), (0,)), WorkerEnds({})))
    assert exchange.copies()
    assert exchange.completed() == Transfers({}, workers=(WorkerEnds({}), WorkerEnds({})))
    exchange.stores(0)
    assert exchange.completed() == Transfers({}, stored=(0,), workers=(WorkerEnds({}), WorkerEnds({}, (), (0,))))
    assert exchange.is_quiet()


def test_what_is_read_before_the_second_worker_has_copied_is_not_there() -> None:
    """A load that the first worker's answer has let begin finds nothing on the second one, and a run says where."""
    workers, exchange = two_workers()
    exchange.stores(0, 0)
    exchange.launched(Launched({}, loads={7: FROM_HOST}), {7: TEXT})
    exchange.arrives(7, 0)
    wrong = workers.sent(7, ((2,),), TEXT)
    assert wrong is not None
    assert (wrong.worker, wrong.token, wrong.writer) == (1, 0, None)
    assert "in block 2 of worker 1, offset 0" in str(wrong)
    assert workers.sent(7, ((2,),), TEXT, 0) is None
    assert workers.lacks(0, 0, TEXT, 2) == 0


def test_a_worker_waits_for_its_own_copies_alone() -> None:
    """With a step that waits for a copy, the load of this step is done on the worker that has ended the copy. The other
    worker has neither ended its copy then nor begun its load.
    """
    workers, exchange = two_workers()
    exchange.launched(Launched({}, flushed=(0,), loads={7: FROM_HOST}), {7: TEXT})
    exchange.arrives(7, 0, 0)
    assert (exchange.storing(0), exchange.storing(1)) == ([], [0])
    assert workers.sent(7, ((2,),), TEXT, 0) is None
    assert workers.sent(7, ((2,),), TEXT, 1) is not None
    exchange.begins()
    assert exchange.completed() == Transfers(
        {}, stored=(0,), workers=(WorkerEnds({7: 4}, (), (0,)), WorkerEnds({}, (), (0,)))
    )
    exchange.arrives(7, 0, 1)
    assert workers.sent(7, ((2,),), TEXT) is None
    assert exchange.completed().received == {7: 4}


@pytest.mark.parametrize("short", [0, 1])
def test_a_load_has_failed_where_it_has_on_one_worker(short: int) -> None:
    _, exchange = two_workers()
    exchange.launched(Launched({}, loads={7: RequestLoad(0, 8, ((2, 3),))}), {7: range(8)})
    exchange.arrives(7, 1, short)
    first = exchange.completed()
    assert (first.received, first.failed, first.workers[short].received) == ({}, (7,), {7: 4})
    exchange.arrives(7, 0)
    last = exchange.completed()
    assert (last.received, last.failed, last.workers[1 - short].received) == ({7: 4}, (7,), {7: 8})
    assert exchange.completed().failed == ()


def test_another_server_reads_from_each_worker_at_its_own_moment() -> None:
    workers, exchange = two_workers()
    exchange.ended(7, ((1,),), TEXT)
    assert exchange.leaves(7, 1) is None
    assert (exchange.outgoing(0), exchange.outgoing(1)) == ([7], [])
    with pytest.raises(Misuse, match="no other server reads"):
        exchange.leaves(7, 1)
    workers.comes(8, 0)
    workers.received(8, OF_SERVERS, [5, 6, 7, 8], 4)
    wrong = exchange.leaves(7, 0)
    assert wrong is not None
    assert wrong.worker == 0


def test_both_workers_compute_a_pass() -> None:
    workers, _ = two_workers()
    workers.launched(Launched({7: RequestPass(0, 4, 0, True, "new", ((3,),), tuple(TEXT))}))
    assert workers.completed({7: [5]}, [7]) is None
    assert workers.lacks(0, 0, TEXT, 3) is None


def test_a_run_has_the_workers_of_its_configuration() -> None:
    more = {"blocks": 8, "batch": 8, "requests": 2, "drafts": 0, "eagle": False, "steps_in_flight": 1, "threshold": 0}
    config = {**CONFIG, **more, "policy": "fcfs", "max_length": 16, "events": False}
    run = BlockCacheRun(registry.load("ours").makers["block_cache"](config), config)
    assert run.exchange.workers == range(2)
    with pytest.raises(Misuse, match="there is no worker 2"):
        list(run.arrive(1, worker=2))


@pytest.mark.parametrize(
    ("steps_in_flight", "workers", "ranks", "of_a_stage"),
    [(1, 1, 1, 1), (2, 2, 2, 2), (3, 1, 2, 1), (3, 2, 2, 1), (4, 2, 3, 1)],
)
def test_a_server_has_a_rank_for_each_stage_or_worker(
    steps_in_flight: int, workers: int, ranks: int, of_a_stage: int
) -> None:
    host = HostTier(4, 1, "lru", 0, False)
    setup = Setup(4, 8, True, 8, 2, 16, steps_in_flight=steps_in_flight, workers=workers, transfers=True, host=host)
    assert (setup.ranks, setup.ranks // setup.stages) == (ranks, of_a_stage)
