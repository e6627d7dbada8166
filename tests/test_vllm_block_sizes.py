"""Groups of layers whose blocks have different sizes: in the law's words, in the workers' memory, and in vLLM."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from block_size_edits import BUGS, HARMLESS, SIZED
from driven import SOAK
from hypothesis import strategies as st
from test_vllm_runs import answer, releases

from conformance.driver.lockstep import Finding, Law
from conformance.driver.protocol import Json
from conformance.engines.ours.block_cache import OurScheduler, block_cache
from conformance.engines.vllm import RELEASES
from conformance.engines.vllm.names import DigestTexts
from conformance.search.check import Search, draw
from conformance.stems.block_cache import rules
from conformance.stems.block_cache.economy import longest
from conformance.stems.block_cache.faults import CountsRefusedDrafts, HitsOneMore, HitsWithoutWindow, SlotsForTextAlone
from conformance.stems.block_cache.follow import UNKNOWN, BlockStories, Follower
from conformance.stems.block_cache.memory import BlockMemory
from conformance.stems.block_cache.projection import parts, whole
from conformance.stems.block_cache.protocol import Known, sizes_of
from conformance.stems.block_pool.protocol import BlockPoolSnapshot, Name
from conformance.stems.machine import Sink
from conformance.traces import trace_schema
from proofs.registry import hints_of
from spec import block_cache as law
from spec import block_pool
from spec.finite import Seq, Set
from spec.lengths import Length

NEWEST = RELEASES[-1]
QUICK = ("window_slides_in_hashes",)  # the others in `make soak`
FOUND = """
    import block_size_edits
    block_size_edits.main(sys.argv[1], sys.argv[2:])
"""
DRAWN = """
    import block_size_edits
    from conformance.stems.block_cache.exclusions import BlockCacheExclusion as Exclusion
    from conformance.traces import known
    from pathlib import Path
    from conformance.engines import vllm
    rows = known.of_release(Path(vllm.__file__).parent, sys.argv[1])
    avoided = {row.exclude for row in rows}
    print(json.dumps(block_size_edits.drawn_of(makers["block_cache"], [one for one in Exclusion if one in avoided])))
"""
SMALLER_THAN_STATES = """
    from test_vllm_block_sizes import rules_config
    def made(states, attention):
        layers = [{"kind": "full", "block_size": attention}, {"kind": "mamba", "block_size": states}]
        try:
            makers["block_cache"]({**rules_config(), "layers": layers})
        except Exception as error:
            return type(error).__name__
    print(json.dumps({"larger": made(8, 4), "smaller": made(4, 8), "equal": made(4, 4)}))
"""
CONFIG: Json = {"block_size": 4, "layers": [{"kind": "full"}, {"kind": "window", "window": 6, "block_size": 8}]}


# The law and what is shown to it.


def law_of(sizes: list[int]) -> Law:
    """The law on a pool of 12 blocks, with two rows in each of two groups. Row ``r`` is one of group ``r % 2``."""
    pool = block_pool.initial(12, 4, 8, groups=2)
    state = law.initial(pool, sizes, [None, None], [False, False])
    return Law(hints_of("block_cache").stem, state, strict=False)


def test_a_group_has_the_size_that_it_says() -> None:
    assert sizes_of(CONFIG) == [4, 8]


def test_lengths_of_a_row_are_in_its_own_blocks() -> None:
    made = law_of([4, 8])
    for row, rest, is_length in ((2, 5, False), (1, 5, True), (1, 8, False)):  # rows of the groups 0, 1 and 1
        begun = law.admit(made.state, row, 0, 0, Seq()).then
        step = law.allocate(begun, row, Length(0, rest), 0, Seq([row]))
        assert step.granted == is_length, (row, rest)


def test_a_block_without_a_token_is_none() -> None:
    with pytest.raises(AssertionError, match="room for a token"):
        law_of([4, 0])


def test_a_text_has_a_story_for_each_size() -> None:
    stories = BlockStories([4, 8, 4])
    text, other = stories.new(1, 0, range(12)), stories.new(2, 0, [*range(8), 99, 99, 99, 99])
    fours, eights = stories.cut(text, 0), stories.cut(text, 1)
    assert stories.cut(text, 2) == fours != eights
    assert stories(fours, 1) == stories(eights, 0) == stories.number((0, *range(8)))
    assert (stories(fours, 2), stories(eights, 1)) == (stories.number((0, *range(12))), UNKNOWN)
    assert stories(stories.cut(other, 1), 0) == stories(eights, 0)
    assert stories(stories.cut(other, 0), 2) != stories(fours, 2)
    assert dict(stories.items())[eights, 0] == stories(eights, 0)


def test_which_hashes_are_of_whole_blocks_depends_on_the_group() -> None:
    small, large = Name(0, (0, 1, 2, 3, 4)), Name(1, (0, 1, 2, 3, 4))
    seen = BlockPoolSnapshot([], [], 0, {}, {1: (small,), 2: (large,)}, {small: (1,), large: (2,)}, 0, False)
    assert whole(seen, [4, 8]).found == {small: (1,)}
    assert list(parts(seen, [4, 8])) == [(large, (2,))]


def test_a_hit_ends_where_blocks_of_all_groups_end() -> None:
    """The blocks 1 to 4 stand in group 0, whose blocks have 4 tokens, and 5 and 6 in group 1, whose have 8."""
    for cached, tokens in (({1, 2, 3, 4, 5, 6}, 16), ({1, 2, 3, 5, 6}, 8), ({1, 2, 3, 4, 5}, 8), ({1, 5, 6}, 0)):
        made = law_of([4, 8])
        for row, blocks in ((2, [1, 2, 3, 4]), (1, [5, 6])):
            made.engine_step("admit", row, 0, 0, Seq())
            made.engine_step("allocate", row, Length(len(blocks), 0), 0, Seq(blocks))
            made.engine_step("compute", row, Length(len(blocks), 0), Set(cached.intersection(blocks)))
        pool = made.state.pool
        assert pool.tells(0, 3) != pool.tells(0, 1), "the law's texts tell the places apart"
        hashes = {block: pool.hash(block) for block in pool.blocks.items() if pool.hash(block)}
        assert longest(made.state, [4, 3], [0, 0], 20, hashes) == tokens


def test_each_group_has_slots_for_what_a_pass_computes() -> None:
    follower = Follower(law_of([4, 8]), CONFIG, BlockStories([4, 8]))
    for tables, end, group in ((((1, 2), (3,)), 8, None), (((1,), (3,)), 8, 0), (((1, 2, 4), (3,)), 9, 1)):
        known = {1: Known("running", 0, (), tables)}
        if group is None:
            follower._must_have_slots(1, end, known)
        else:
            with pytest.raises(Finding, match=f"blocks in group {group}"):
                follower._must_have_slots(1, end, known)


def test_traces_may_have_sizes() -> None:
    with_groups: Json = {**rules_config(), "layers": CONFIG["layers"]}
    trace_schema.check({"stem": "block_cache", "config": with_groups, "steps": [{"op": "schedule"}]})
    for wrong in (0, "8"):
        layers = [{"kind": "full", "block_size": wrong}]
        with pytest.raises(Exception, match="block_size"):
            trace_schema.check(
                {"stem": "block_cache", "config": {**with_groups, "layers": layers}, "steps": [{"op": "schedule"}]}
            )


def rules_config() -> Json:
    return {
        **{"block_size": 4, "blocks": 8, "caching": True, "batch": 8, "requests": 2, "drafts": 0, "eagle": False},
        **{"steps_in_flight": 1, "threshold": 0, "policy": "fcfs", "max_length": 20, "events": False},
    }


# What blocks hold.


def test_a_larger_block_of_another_group_overwrites_what_lies_there() -> None:
    """A block has four tokens of group 0 or eight of group 1, whose third lies in the second of group 0."""
    memory = BlockMemory([4, 8])
    prefixes = memory.prefixes(range(8), 0)
    memory.named(prefixes[2], 7, 2)
    memory.write(0, [1], 0, prefixes[:4])
    assert memory.wrong(0, [1], prefixes[:4], 0) is None
    memory.write(1, [1], 2, prefixes[2:3])
    wrong = memory.wrong(0, [1], prefixes[:4], 0)
    assert wrong == (1, 1, 2)
    assert memory.holds(1, wrong.part) == "token 2 of request 7 in group 1"
    assert memory.writer(1, wrong.part) == 7
    assert memory.wrong(0, [1], prefixes[:4], 2) is None


def test_a_hash_that_is_made_of_several_is_of_the_last_ones_text() -> None:
    names = DigestTexts()
    made = [bytes([number]) * 32 for number in range(4)]
    names._texts = {
        made[0]: (0, (1, 2)),
        made[1]: (0, (1, 2, 3, 4)),
        made[2]: (0, (1, 2, 9, 9)),
        made[3]: (1, (1, 2, 3, 4)),
    }
    assert names.text(made[0] + made[1]) == (0, (1, 2, 3, 4))
    for wrong in (made[1] + made[0], made[1] + made[2], made[0] + made[3], made[0] + b"?" * 32, b"?" * 32):
        assert names.text(wrong) is None


# Schedulers.


def conforms(make: Any, monkeypatch: pytest.MonkeyPatch, examples: int = 120) -> str | None:
    monkeypatch.setitem(rules.CONFIG, "layers", st.sampled_from(SIZED))
    monkeypatch.setitem(rules.CONFIG, "transfers", st.just(False))
    sink = Sink()
    with suppress(Finding):
        draw("block_cache", make, sink, Search(examples=examples, seed=6))
    return None if sink.failure is None else sink.failure[0].law


@pytest.mark.soak
def test_our_scheduler_has_groups_of_several_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert conforms(block_cache, monkeypatch, 120 if SOAK else 40) is None


@pytest.mark.parametrize("kind", [HitsOneMore, HitsWithoutWindow, SlotsForTextAlone, CountsRefusedDrafts])
def test_bugs_of_a_scheduler_are_found_with_several_sizes(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert conforms(lambda config: block_cache(config, kind=kind), monkeypatch) is not None


def test_a_request_finds_what_is_whole_in_each_group() -> None:
    engine = OurScheduler({**rules_config(), "layers": CONFIG["layers"], "blocks": 20, "batch": 40})
    for request, tokens in ((1, 15), (2, 17), (3, 10)):
        engine.add(request, [*range(tokens)], 1)
        step = engine.schedule()
        engine.complete({request: [99]})
        assert step.passes[request].start == {1: 0, 2: 8, 3: 8}[request]


@pytest.mark.engine
def test_a_planted_bug_with_several_sizes_is_found() -> None:
    assert all(answer(NEWEST, FOUND, *QUICK).values())


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug not in QUICK])
def test_another_planted_bug_is_found(bug: str) -> None:
    assert answer(NEWEST, FOUND, bug)[bug] is not None


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("edit", HARMLESS)
def test_a_harmless_edit_shows_nothing(edit: str) -> None:
    assert answer(NEWEST, FOUND, edit) == {edit: None}


@pytest.mark.engine
@pytest.mark.parametrize("release", releases(NEWEST))
def test_runs_with_several_sizes_find_nothing_new(release: str) -> None:
    assert answer(release, DRAWN) is None


@pytest.mark.engine
@pytest.mark.parametrize("release", ["0.15.1", "0.18.1"])
def test_no_group_has_smaller_blocks_than_cached_states_in_older_releases(release: str) -> None:
    """``unify_kv_cache_spec_page_size`` makes blocks of attention larger there, or fails an assertion."""
    assert answer(release, SMALLER_THAN_STATES) == {"larger": "Unsupported", "smaller": None, "equal": None}
