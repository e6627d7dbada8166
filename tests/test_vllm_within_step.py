"""Loads from host memory that end before their step computes: what a run makes of them, and bugs of vLLM's in them."""

from __future__ import annotations

import pytest
from test_vllm_runs import answer
from within_step_edits import BUGS, HARMLESS

from conformance.engines.vllm import RELEASES
from conformance.stems.block_cache.exchange import Exchange
from conformance.stems.block_cache.protocol import NEW, Launched, RequestLoad, RequestPass
from conformance.stems.block_cache.worker import Workers

CONFIG = {"block_size": 4, "layers": [{"kind": "full"}], "caching": True, "transfers": True}
TEXT = [1, 2, 3, 4, 5]
FROM_HOST = RequestLoad(0, 4, ((1, 2),), 1, ((1, 1),), within_step=True)
STEP = Launched({1: RequestPass(4, 1, 0, True, NEW, ((1, 2),), tuple(TEXT))}, loads={1: FROM_HOST})


def exchange(*steps: Launched) -> tuple[Exchange, Workers]:
    """Host memory has the first block of a text, and these steps were sent."""
    workers = Workers(CONFIG)
    for request in (0, 1, 2):
        workers.comes(request, 0)
    workers.received(0, RequestLoad(0, 4, ((9,),)), TEXT, 4)
    workers.copied_to_host(((9, 1),))
    made = Exchange(workers, 4)
    for step in steps:
        workers.launched(step)
        made.launched(step, {1: TEXT, 2: TEXT})
    return made, workers


def test_the_load_is_done_when_its_step_computes() -> None:
    made, workers = exchange(STEP)
    made.begins()
    assert made.incoming() == []
    assert workers.completed({1: [6]}, {1}) is None
    assert made.completed().received == {1: 4}


def test_a_step_that_does_not_wait_for_it_is_seen() -> None:
    made, workers = exchange(STEP)
    wrong = workers.completed({1: [6]}, {1})
    assert wrong is not None
    assert (wrong.request, wrong.token, wrong.holds) == (1, 0, "a slot that nobody has written")
    assert made.incoming() == [1]


def test_it_may_be_done_before_earlier_steps_are_computed() -> None:
    made, _ = exchange(Launched({}), STEP)
    made.arrives(1, 0)
    assert made.incoming() == []


def test_a_step_does_not_wait_for_the_loads_of_the_next_one() -> None:
    made, _ = exchange(Launched({}), STEP)
    made.begins()
    assert made.incoming() == [1]
    made.completed()
    made.begins()
    assert made.incoming() == []


def test_no_transfer_of_a_later_step_begins_before() -> None:
    later = Launched({}, loads={2: RequestLoad(0, 4, ((3,),), 2, ((1, 3),))})
    made, _ = exchange(STEP, later)
    assert made.incoming() == [1]
    made.begins()
    assert made.incoming() == [2]


LOADED = """
    from conformance.stems.block_cache import rules
    host = {**rules.HOSTS[0], "within_step": tokens} if (tokens := int(sys.argv[2])) else rules.HOSTS[0]
    _, second = runs.one_text_twice(makers["block_cache"], host, 9)
    told = [[2 in step.passes, [[l.end, l.within_step] for l in step.loads.values()]] for step in second]
    print(json.dumps(told))
"""


@pytest.mark.engine
@pytest.mark.parametrize(("tokens", "runs_at_once"), [(8, True), (7, False), (0, False)])
def test_a_request_runs_in_the_step_in_which_it_is_loaded_where_its_load_fits(tokens: int, runs_at_once: bool) -> None:
    first, second, *_ = answer(RELEASES[-1], LOADED, str(tokens))
    assert first == [runs_at_once, [[8, runs_at_once]]]
    assert second == [True, []] or not runs_at_once


BUILT = """
    from conformance.stems.block_cache import rules
    config = {**runs.config("full"), "transfers": True, "failure": "recompute", "host": rules.WITHIN_STEPS[0]}
    try:
        makers["block_cache"](config)
        print("null")
    except Unsupported as error:
        print(json.dumps(str(error)))
"""


@pytest.mark.engine
def test_an_older_release_says_that_it_does_not_load_so() -> None:
    assert "does not read sync_load_budget_bytes" in answer("0.32.0", BUILT)


EDITED = """
    import within_step_edits as edits
    edits.main(sys.argv[1], sys.argv[2:], edits.EDITS, edits.with_host(edits.rules.WITHIN_STEPS), edits.OF_THIS)
"""


def found(name: str) -> str | None:
    """The law that is found broken in the newest release with an edit."""
    answered: dict[str, str | None] = answer(RELEASES[-1], EDITED, name)
    return answered[name]


@pytest.mark.engine
@pytest.mark.soak(but=1)
@pytest.mark.parametrize("edit", sorted(BUGS))
def test_a_bug_is_found(edit: str) -> None:
    assert found(edit) is not None


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("edit", HARMLESS)
def test_a_harmless_edit_shows_nothing(edit: str) -> None:
    assert found(edit) is None
