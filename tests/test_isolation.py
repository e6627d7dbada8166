"""The law of contents: stories of runs, a match that answers with another text, and two stories in a small world."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.driver.lockstep import CHOICE, Finding, LockStep, breaks
from conformance.driver.protocol import Json
from conformance.driver.shadow import PrefixNumbers
from conformance.engines.ours.cache import cache
from conformance.stems.cache.run import CacheRun
from conformance.stems.cache.stories import Stories
from conformance.stems.requests.request import RunRequest
from conformance.stems.stem_registry import start
from proofs import explore
from proofs.registry import hints_of
from spec import cache as law
from spec.logic import but

ROWS: Json = {"page_size": 2, "size": 12, "size_swa": 12, "window": 3, "need_sort": False, "rows": 3, "sessions": 2}
CACHE: Json = {**ROWS, "tree": "unified", "components": ["full", "swa"]}
STATES: Json = {
    **{**CACHE, "components": ["full", "swa", "mamba"], "size_mamba": 8},
    **{"buffered": False, "doubled": False, "lazy": False},
}


def told(stories: Stories, story: int, count: int) -> list[int]:
    return [stories(story, *divmod(at, stories.page_size)) for at in range(count)]


def test_stories_that_begin_alike_have_the_same_numbers_up_to_where_they_differ() -> None:
    stories = Stories(2, PrefixNumbers())
    one, other = stories.of(RunRequest(0, [1, 2, 3], 9)), stories.of(RunRequest(0, [1, 2, 7], 9))
    assert one != other
    assert told(stories, one, 2) == told(stories, other, 2)
    assert not set(told(stories, one, 5)[2:]) & set(told(stories, other, 5)[2:])


def test_a_request_that_comes_again_with_its_answer_has_the_text_that_it_had() -> None:
    stories, first = Stories(2, PrefixNumbers()), RunRequest(0, [1, 2, 3], 1)
    again = RunRequest(0, first.tokens + first.next(2), 1)
    assert told(stories, stories.of(first), 9) == told(stories, stories.of(again), 9)
    assert stories.of(first) == stories.of(RunRequest(0, [1, 2, 3], 1))


def test_no_token_has_the_number_of_a_slot_that_is_not_written() -> None:
    stories = Stories(2, PrefixNumbers())
    story = stories.of(RunRequest(0, [1], 0))
    assert stories(story, 0, 0) != 0 == stories(story, -1, 0) == stories(story + 1, 0, 0)


def run_of(config: Json) -> tuple[LockStep, CacheRun]:
    lock = start("cache", cache, config)
    run: Any = lock.run
    assert isinstance(run, CacheRun)
    return lock, run


@pytest.mark.parametrize("config", [CACHE, STATES], ids=["pages", "pages and states"])
def test_a_match_that_answers_with_another_text_is_a_finding(config: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is right, and the law is told that the second request has another text: as if it had another LoRA."""
    lock, run = run_of(config)
    lock.do("admit", request=0, more=6)
    lock.do("finish", request=0)
    real = run.stories.of

    def other(request: RunRequest) -> int:
        return real(RunRequest(request.session, [-1, *request.tokens[1:]], request.fork))

    monkeypatch.setattr(run.stories, "of", other)
    with pytest.raises(Finding, match="computed for the request's own text") as caught:
        lock.do("admit", request=1, more=7)
    assert (caught.value.law, caught.value.kind) == ("admit", CHOICE)


@pytest.mark.parametrize("config", [CACHE, STATES], ids=["pages", "pages and states"])
def test_a_run_writes_what_its_requests_read(config: Json) -> None:
    lock, run = run_of(config)
    lock.do("admit", request=0, more=7)
    lock.do("decode", requests=[0])
    lock.do("reserve", request=0, more=2)
    lock.do("commit", request=0, count=1)
    state = run.law.state
    laws = [known for known in law.stem.invariants.values() if known.ledger]
    assert len(laws) > 8
    assert not any(breaks(known, state) for known in laws)
    page = state.reads(run.calls.row_of[0], 0)
    wrong = but(state, contents=but(state.contents, full=state.contents.full.put((page, 1), 999)))
    assert {known.name for known in laws if breaks(known, wrong)} >= {"reads_own_text"}


def test_a_draft_holds_nobodys_text_until_it_is_verified() -> None:
    lock, run = run_of(CACHE)
    lock.do("admit", request=0, more=4)
    lock.do("reserve", request=0, more=2)
    row = run.calls.row_of[0]
    state = run.law.state
    page = state.reads(row, 2)
    assert [state.contents.full(page, o) for o in (0, 1)] == [0, 0]
    lock.do("commit", request=0, count=1)
    state = run.law.state
    story = state.contents.story(row)
    assert [state.contents.full(page, o) for o in (0, 1)] == [run.stories(story, 2, 0), 0]


def test_the_small_world_matches_a_prefix_across_stories_and_no_further() -> None:
    """Two stories begin alike: a node of one token is matched by both, a node of two tokens by one."""
    hints = hints_of("cache")
    route, known = "admit extend finish insert_leaf free_rest", hints.stem.transitions
    ways = [way[-1].after for way in explore.along(hints, route, "admit", known) if way[-1].transition == "free_rest"]
    lengths: dict[int, set[bool]] = {}
    for state in ways:
        for node in (n for n in state.tree.nodes.items() if state.tree.alive(n)):
            for move in explore.moves(hints, {"admit": known["admit"]}, state):
                if move.granted and move.arguments[4] == node:
                    own = state.contents.full(state.rows.pools.now.full.table(state.rows.limit + node, 1), 0)
                    told = state.contents.tells(move.arguments[2], 1, 0)
                    lengths.setdefault(state.tree.stop(node), set()).add(own == told)
    assert lengths[1] == {False}, "the node has one token, and what follows is not its text"
    assert lengths[2] == {True}
