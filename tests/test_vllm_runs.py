"""vLLM's own block pool and scheduler, driven at random: each release in a process of its own."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import forked
import pytest
from driven import SOAK, sampled

from conformance.driver.protocol import EngineError
from conformance.engines.vllm import RELEASES
from conformance.engines.vllm.download import WHEELS

HERE = Path(__file__).parent
FINDINGS: dict[str, Any] = json.loads((HERE / "block_findings.json").read_text(encoding="utf-8"))
# Operations that ask for a step, for each family of configurations and release: more than 1,100 steps come of them, and
# more than 3,000 on all releases of ``CLEAN``.
DRAWS = 3_000 if SOAK else 1_500
# The first and the last release that shows a finding which the stem block_cache cannot tell: it loses a sampled token,
# resets while a step is in flight, has fewer drafts than before, or the stem stops earlier at its cause
# (window_slides_by_drafts). All others are kept traces.
SHOWN = {
    "reset_eats_a_token": ("0.13.0", "0.20.2"),
    "reset_counts_drafts": ("0.22.1", "0.24.0"),
    "fewer_drafts_than_before": ("0.15.1", "0.22.1"),
    "null_block_is_cached": ("0.13.0", "0.13.0"),
}
CLEAN = ("0.27.1", "0.30.0", RELEASES[-1])  # releases in whose runs nothing is found; ``make test`` runs the newest
pytestmark = pytest.mark.engine


def have(release: str) -> None:
    """Skips the test where the release cannot be had."""
    try:
        WHEELS.release(release)
    except EngineError as error:
        pytest.skip(str(error))


def answer(release: str, script: str, *arguments: str) -> Any:
    """The last line that a script printed, as JSON. It finds the release's makers as ``makers``."""
    have(release)
    before = """
        import json, sys, textwrap
        import block_runs as runs
        from conformance.engines import registry
        from conformance.driver.protocol import Unsupported
        makers = registry.load("vllm", release=sys.argv[1]).makers
    """
    text = textwrap.dedent(before) + textwrap.dedent(script)
    return forked.run(release, text, [release, *arguments], "vllm", [str(HERE)]).answer()


def between(release: str, first: str, last: str) -> bool:
    return RELEASES.index(first) <= RELEASES.index(release) <= RELEASES.index(last)


def releases(*always: str) -> Sequence[str]:
    """These releases, and all of them in ``make soak``: each costs a process."""
    return RELEASES if SOAK else always


EVERY_FAMILY = """
    told = {}
    for name in runs.FAMILIES:
        config = runs.config(name)
        try:
            run = runs.Run(makers["block_cache"], config)
            run.drive(runs.drawn(1, int(sys.argv[2]), config))
            run.end()
            told[name] = dict(run.counts)
        except Unsupported as error:
            told[name] = {"unsupported": str(error)}
        except Exception as error:
            told[name] = {"wrong": f"{type(error).__name__}: {error}"}
    print(json.dumps(told))
"""


@pytest.mark.soak
@pytest.mark.parametrize("release", sampled(reversed(CLEAN), 4))
def test_nothing_is_wrong_in_drawn_runs_of_every_family(release: str) -> None:
    """Counts, free queue, prefix cache, contents, and rest at the end; and the runs do what they are there for."""
    told = answer(release, EVERY_FAMILY, str(DRAWS))
    assert {name: counts for name, counts in told.items() if {"wrong", "unsupported"} & set(counts)} == {}
    for name, counts in told.items():
        assert counts["steps"] > 0.36 * DRAWS, name
        assert counts["finished"] > 0.13 * DRAWS, name
        assert counts["preempted"] or name == "window", name
        assert counts["abort"], name
        assert counts["resumed"], name
        assert counts["chunks"], name
        assert counts["reset True True"], name
        assert counts["reset False False"], name
        assert counts.get("hits", 0) > 10 or "no cache" in name, name
        assert (counts.get("refused", 0) > 10) == ("EAGLE" in name or "n-grams" in name), name


@pytest.mark.soak
def test_the_oldest_release_conforms_where_one_step_is_in_flight() -> None:
    told = answer(RELEASES[0], EVERY_FAMILY, "1000")
    wrong = {name for name, counts in told.items() if "wrong" in counts}
    assert {name for name in wrong if "two steps" not in name} == set()
    unsupported = {name for name, counts in told.items() if "unsupported" in counts}
    states = {name for name in told if "mamba" in name}
    assert unsupported == {*states, "two windows"}


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("release", releases("0.22.1", RELEASES[-1]))
def test_findings_are_where_they_were_found(release: str) -> None:
    script = """
        findings = json.loads(sys.argv[2])
        make = makers["block_cache"]
        told = {n: runs.outcome(make, runs.config(f["family"]), f["ops"], False) for n, f in findings.items()}
        print(json.dumps(told))
    """
    told = answer(release, script, json.dumps(FINDINGS))
    shows = {name for name, finding in FINDINGS.items() if finding["says"] in told[name]}
    assert shows == {name for name, (first, last) in SHOWN.items() if between(release, first, last)}, told


# What is done to the newest release, and the words in which a run must complain.
DAMAGES = {
    "a hit is not counted": ("full", "pool.touch = lambda blocks: None", "counts"),
    "a block is free twice": (
        "full",
        """
        free = pool.free_blocks
        def twice(blocks):
            free(blocks)
            pool.free_block_queue.append_n([block for block in pool.blocks[1:2] if block.ref_cnt])
        pool.free_blocks = twice
        """,
        "free queue",
    ),
    "the backward links are torn": (
        "full",
        """
        free = pool.free_blocks
        def torn(blocks):
            free(blocks)
            pool.free_block_queue.fake_free_list_tail.prev_free_block = pool.blocks[1]
        pool.free_blocks = torn
        """,
        "backward",
    ),
    "a block that is taken stays in the prefix cache": (
        "full",
        "pool._maybe_evict_cached_block = lambda block: block.reset_hash() or True",
        "the prefix cache knows",
    ),
    "the window moves a block too early": (
        "window",
        "for m in managers:\n    m.get_num_skipped_tokens = lambda n, old=m.get_num_skipped_tokens: old(n) + 4",
        "reads",
    ),
    "a request gives back a block before it ends": (
        "full",
        """
        allocate = manager.allocate_slots
        def early(request, *more, **named):
            blocks = managers[0].req_to_blocks.get(request.request_id, [])
            if request.num_computed_tokens > 12 and blocks:
                pool.free_blocks(blocks[:1])
                blocks[0] = pool.null_block
            return allocate(request, *more, **named)
        manager.allocate_slots = early
        """,
        "reads",
    ),
    "hashes forget the mark": (
        "full",
        """
        class Forgets:
            def __init__(self, release):
                self.release = release
            def __getattr__(self, name):
                return getattr(self.release, name)
            def request(self, number, tokens, outputs, mark, *more):
                return self.release.request(number, tokens, outputs, 0, *more)
        engine._release = Forgets(engine._release)
        """,
        "reads",
    ),
    "a sampled token is replaced": (
        "full",
        """
        update = scheduler._update_request_with_output
        def replaces(request, tokens, **more):
            return update(request, [9] * len(tokens) if request.request_id == "3" else tokens, **more)
        scheduler._update_request_with_output = replaces
        """,
        "has the text",
    ),
    "mamba states are not kept for the next step": (
        "mamba",
        "for m in managers[1:]:\n    m.get_num_skipped_tokens = lambda n: n + 4",
        "reads the state",
    ),
}


@pytest.fixture(scope="module")
def damaged() -> dict[str, str]:
    """What the runs say, by the name of the damage. One process has them all: a damage is of one engine's objects."""
    script = """
        def broken(family, damage):
            def make(config):
                engine = makers["block_cache"](config)
                scheduler, manager = engine._scheduler, engine._manager
                pool, managers = manager.block_pool, manager.coordinator.single_type_managers
                exec(textwrap.dedent(damage), dict(globals(), **locals()))
                return engine
            config = runs.config(family)
            return runs.outcome(make, config, runs.drawn(1, 400, config))
        damages = json.loads(sys.argv[2])
        told = {name: broken(family, damage) for name, (family, damage, _) in damages.items()}
        whole = {f"no damage: {family}": broken(family, "") for family, *_ in damages.values()}
        print(json.dumps({**told, **whole}))
    """
    told: dict[str, str] = answer(RELEASES[-1], script, json.dumps(DAMAGES))
    return told


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found(name: str, damaged: dict[str, str]) -> None:
    """Each check of a run finds what it is there for."""
    assert damaged[name].startswith("Broken: "), damaged[name]
    assert DAMAGES[name][2] in damaged[name]


def test_without_damage_nothing_is_found(damaged: dict[str, str]) -> None:
    """Though the process has driven damaged engines before: what is found above is found for its damage."""
    whole = {name: said for name, said in damaged.items() if name not in DAMAGES}
    assert whole == {f"no damage: {family}": "" for family in ("full", "window", "mamba")}


# Runs with transfers alone. What is known of the release is left out, but for the differences that are named. The run
# that breaks a law is not shrunk: only the law is asked for.
TRANSFERS = """
    from contextlib import suppress
    from conformance.stems.exclusions import exclusions
    from conformance.traces import known
    from conformance.stems.block_cache import rules
    from conformance.search.check import Search, draw
    from conformance.engines.vllm import PLUGIN
    from conformance.driver.lockstep import Finding
    from conformance.stems.machine import Sink
    from hypothesis import strategies as st
    rules.CONFIG |= {"transfers": st.just(True), "host": st.none()}  # transfers between servers alone
    release, seed, examples, *sought = sys.argv[1:]
    if "block_cache.two_steps" in sought:
        rules.CONFIG |= {"steps_in_flight": st.just(2)}
    listed = {one.exclude for one in known.of_release(PLUGIN.folder, release) if one.exclude} - {*sought}
    search = Search(examples=int(examples), seed=int(seed), exclude=exclusions(listed))
    sink = Sink()
    with suppress(Finding):
        draw("block_cache", makers["block_cache"], sink, search)
    finding = sink.failure[0] if sink.failure else None
    found = {"law": finding and finding.law, "detail": finding and finding.detail}
    print(json.dumps({**found, "transitions": sink.transitions}))
"""


@pytest.mark.soak
@pytest.mark.parametrize("release", sampled([RELEASES[-1], "0.15.1"], 2))
def test_transfers_are_driven(release: str) -> None:
    told = answer(release, TRANSFERS, "1", "30")
    assert told["law"] is None, told["detail"]
    for transition in ("admit_and_load", "loaded", "keep"):
        assert told["transitions"][f"{transition} done"] > 20


@pytest.mark.soak
@pytest.mark.parametrize(
    ("release", "seed", "law", "sought"),
    [
        pytest.param("0.15.1", "1", "finish", ["block_cache.aborted_loads"], marks=pytest.mark.soak),
        ("0.33.0", "1", "waiting_requests_run", ["block_cache.stalled_loads"]),
        pytest.param(
            "0.22.1",
            "15",
            "load",
            ["block_cache.transfers_in_flight", "block_cache.two_steps", "block_cache.crowded_loads"],
            marks=pytest.mark.soak,
        ),
    ],
)
def test_bugs_of_transfers_are_found_without_their_traces(release: str, seed: str, law: str, sought: list[str]) -> None:
    """vLLM pull requests 32255 and 45357, and a transfer that is offered again."""
    assert answer(release, TRANSFERS, seed, "60", *sought)["law"] == law


# Edits of the newest release, each with what is drawn of a configuration, and with the law that its runs break.
EDITS = {
    "a state is found in the step that computes it": (
        {"layers": 3},
        """
        from vllm.v1.core.single_type_kv_cache_manager import MambaManager
        def forgets(self, *more, cached=MambaManager.cache_blocks, **named):
            cached(self, *more, **named)
            self.cached_blocks_this_step.clear()
        edit = patch.object(MambaManager, "cache_blocks", forgets)
        """,
        "reads_own_content",
    ),
    "a hash does not say what a name is the name of": (
        {"layers": 0},
        """
        from vllm.v1.core import kv_cache_utils
        def untagged(*more, tagged=kv_cache_utils.generate_block_hash_extra_keys):
            keys, at = tagged(*more)
            return None if keys is None else tuple(key[1] for key in keys), at
        edit = patch.object(kv_cache_utils, "generate_block_hash_extra_keys", untagged)
        """,
        "hash_names_content",
    ),
    "a hit leaves out a block": (
        {"layers": 0, "drafts": 0},
        """
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        def shorter(self, request, most=None, found=KVCacheManager.get_computed_blocks):
            return found(self, request, max(0, request.num_tokens - 1 - 4))
        edit = patch.object(KVCacheManager, "get_computed_blocks", shorter)
        """,
        "hit_is_as_long_as_what_is_cached",
    ),
    "a request keeps each of its states": (
        {"layers": 3, "drafts": 0},
        """
        from vllm.v1.core.single_type_kv_cache_manager import MambaManager
        edit = patch.object(MambaManager, "remove_skipped_blocks", lambda *more, **named: None)
        """,
        "request_keeps_states_in_use",
    ),
}
EDITED = """
    from contextlib import nullcontext, suppress
    from unittest.mock import patch
    from conformance.driver.lockstep import Finding
    from conformance.engines.vllm import PLUGIN
    from conformance.search.check import Search, draw
    from conformance.stems.block_cache import rules
    from conformance.stems.exclusions import exclusions
    from conformance.stems.machine import Sink
    from conformance.traces import known
    from hypothesis import strategies as st
    listed = exclusions(one.exclude for one in known.of_release(PLUGIN.folder, sys.argv[1]) if one.exclude)
    plain = {**rules.CONFIG, "transfers": st.just(False), "caching": st.just(True), "steps_in_flight": st.just(1)}
    def law(wanted, edit):
        rules.CONFIG |= {**plain, **{name: st.just(value) for name, value in wanted.items()}}
        sink = Sink()
        with edit, suppress(Finding):
            draw("block_cache", makers["block_cache"], sink, Search(examples=20, seed=3, exclude=listed))
        return sink.failure[0].law if sink.failure else None
    told = {}
    for name, (wanted, text, _) in json.loads(sys.argv[2]).items():
        scope = {"patch": patch}
        exec(textwrap.dedent(text), scope)
        told[name] = [law(wanted, scope["edit"]), law(wanted, nullcontext())]
    print(json.dumps(told))
"""


def test_an_edit_is_found_in_drawn_runs() -> None:
    """The same runs of the release as it is break no law."""
    edits = dict(sampled(EDITS.items(), 4))
    told = answer(RELEASES[-1], EDITED, json.dumps(edits))
    assert told == {name: [law, None] for name, (_, _, law) in edits.items()}


# A request is aborted with all steps in flight that can be. Another one, whose prompt a transfer brings, needs its
# blocks, and gets them when all but one of these steps are done. Which law is broken, with that many steps in flight?
LATE_STEP = """
    from contextlib import nullcontext
    from unittest.mock import patch
    from conformance.driver.lockstep import Finding, LockStep
    from conformance.stems.block_cache.run import BlockCacheRun
    from conformance.stems.requests.request import token
    from vllm.v1.core.sched.scheduler import Scheduler
    def two_steps_later(self, request):
        if self._request_blocks_can_be_freed(request):
            self.kv_cache_manager.free(request)
        elif blocks := self.kv_cache_manager.pop_blocks_for_free(request):
            self.deferred_frees.append((min(self.sched_step_seq, self.processed_step_seq + 2), blocks))
    def law(steps):
        config = {**runs.config("full"), "blocks": steps, "batch": 4, "steps_in_flight": steps, "events": False}
        config |= {"transfers": True, "reoffers": False, "failure": "recompute"}
        lock = LockStep(BlockCacheRun(makers["block_cache"](config), config), config)
        tokens = [token(n, 0) for n in range(4 * steps)]
        try:
            lock.do("add", request=1, tokens=tokens, outputs=1)
            for _ in range(steps):
                lock.do("schedule")
            lock.do("abort", request=1)
            lock.do("add", request=2, tokens=tokens[:4], outputs=1, elsewhere=4)
            for _ in range(steps - 1):
                lock.do("complete")
            lock.do("schedule")
            lock.do("complete")
        except Finding as finding:
            return finding.law
        return None
    edit = patch.object(Scheduler, "_free_request_blocks", two_steps_later)
    told = []
    for edited in (nullcontext(), edit):
        with edited:
            told.append([law(steps) for steps in (2, 3, 4)])
    print(json.dumps(told))
"""


def test_a_fence_that_is_right_for_two_steps_is_found_with_three() -> None:
    """Blocks that a step in flight may still write are given back when two more steps are done, not when all are."""
    whole, edited = answer(RELEASES[-1], LATE_STEP)
    assert whole == [None, None, None]
    assert edited == [None, "admit_and_load", "admit_and_load"]


def test_an_older_release_has_no_more_than_two_steps_in_flight() -> None:
    """Its asynchronous scheduler serves no model that is split into stages."""
    script = """
        told = []
        for steps in (2, 3):
            try:
                makers["block_cache"]({**runs.config("full"), "steps_in_flight": steps})
                told.append("")
            except Unsupported as error:
                told.append(str(error))
        print(json.dumps(told))
    """
    assert answer("0.22.1", script) == ["", "the release's asynchronous scheduler serves no model with pipeline stages"]


DRAFT_MODEL = """
    told = {}
    for tuning in ({}, {"draft_model": True}):
        config = {**runs.config("full"), "drafts": 2, "eagle": False, "steps_in_flight": 1, "tuning": tuning}
        engine = makers["block_cache"](config)
        engine.add(1, list(range(2, config["block_size"])), 4)
        engine.schedule()
        engine.complete({1: [9]})
        engine.schedule()
        told[json.dumps(tuning)] = len(engine.snapshot().requests[1].tables[0])
    print(json.dumps([*told.values()]))
"""


@pytest.mark.parametrize("release", ["0.15.1", RELEASES[-1]])
def test_the_drafts_of_a_model_have_slots(release: str) -> None:
    """Two passes compute one token less than a block has. A draft model writes behind them, and n-grams do not."""
    assert answer(release, DRAFT_MODEL) == [1, 2]


PINNED = """
    from conformance.driver.lockstep import LockStep
    from conformance.stems.block_cache.run import BlockCacheRun
    layers = [{"kind": "full"}, {"kind": "mamba"}]
    transfers = {"transfers": True, "reoffers": False, "failure": "recompute"}
    config = {**runs.config("full"), **transfers, "layers": layers, "tuning": {"match": 1}, "steps_in_flight": 1}
    run = BlockCacheRun(makers["block_cache"](config), config)
    lock = LockStep(run, config)
    lock.do("add", request=1, tokens=[5], outputs=3)
    told = []
    for _ in range(3):
        lock.do("schedule")
        told.append(len(run.seen.lent))
        lock.do("complete")
    lock.do("audit")
    print(json.dumps([*told, len(run.seen.lent)]))
"""


def test_a_state_that_is_kept_for_a_connector_is_held_by_no_request() -> None:
    """Of 0.27.1 alone: the prefix cache gets a copy of the state after a part of a block, and the copy is kept until
    its request ends, for a connector that stores it.
    """
    assert answer("0.27.1", PINNED) == [0, 1, 1, 0]


PLACEHOLDERS = """
    from conformance.driver.lockstep import LockStep
    from conformance.stems.block_cache.run import BlockCacheRun
    from conformance.stems.requests.request import token
    transfers = {"transfers": True, "reoffers": False, "failure": "recompute"}
    told = {}
    for eagle in (False, True):
        config = {**runs.config("full"), **transfers, "steps_in_flight": 1, "drafts": 2, "eagle": eagle, "blocks": 20}
        run = BlockCacheRun(makers["block_cache"](config), config)
        lock = LockStep(run, config)
        lock.do("add", request=1, tokens=[token(n, 0) for n in range(8)], outputs=9, elsewhere=8)
        lock.do("schedule")
        lock.do("arrive", request=1)
        lock.do("complete")
        counts = []
        for _ in range(2):
            lock.do("schedule")
            drafts = run.flying[0].passes[1].drafts
            lock.do("complete", accept=2)
            counts.append([drafts, len(run.follower.here[1].tokens)])
        told["eagle" if eagle else "ngram"] = counts
    print(json.dumps(told))
"""


@pytest.mark.parametrize(("release", "eagle"), [("0.30.0", 11), (RELEASES[-1], 9)])
def test_drafts_that_fill_up_a_pass_are_refused(release: str, eagle: int) -> None:
    """Where the workers know that nobody drafted them. In the next pass drafts are accepted."""
    filled = {"ngram": [[2, 9], [2, 12]], "eagle": [[2, eagle], [2, eagle + 3]]}
    assert answer(release, PLACEHOLDERS) == filled
