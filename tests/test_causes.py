"""Causes of findings: their files, the place in the release, the repair, the pages, and the script."""

from __future__ import annotations

import ast
import inspect
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
from driven import NEWEST, driven, have, sampled
from hypothesis import given
from hypothesis import strategies as st

from conformance.driver.lockstep import Finding, Ignores
from conformance.driver.naming import UsageError
from conformance.driver.protocol import EngineError, Json, Unsupported
from conformance.engines import registry, vllm
from conformance.engines.registry import Loaded
from conformance.engines.sglang.launches import HOSTING
from conformance.engines.sglang.server.tokens import as_json, as_python
from conformance.search import trials
from conformance.search.causes import ProgramEnd, _driven, ending, tried_elsewhere
from conformance.search.trials import TRIALS, SchedulerTrial
from conformance.stems.host_server.exclusions import HostServerExclusion
from conformance.stems.kv_events.reader import AGREE
from conformance.traces import cause_files, known
from conformance.traces.cause_files import Cause
from slotproof.commands.causes import is_settled

ROOT = Path(__file__).resolve().parents[1]
CAUSES = cause_files.every()
FOUND = {one["cause"]: one for one in json.loads((ROOT / "docs" / "causes.json").read_text("utf-8"))}
MOST_WORDS = 400  # of a page that a maintainer reads, its programs and launch command not counted
MOST_LINES = 15  # of the function that stands in the place of the release's own
SHOWN = {  # by engine: what a page has beside the place, the repair and what was searched upstream
    "sglang": (
        "sglang.launch_server",
        "POST /generate",
        "from conformance.engines.sglang.server.scripted import Server",
    ),
    "vllm": ("vllm serve MODEL", "POST /v1/completions", "from vllm.v1.core.sched"),
}


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_a_cause_was_shown_and_mended(cause: Cause) -> None:
    found = FOUND[cause.name]
    assert is_settled(found), found
    assert all(one["before"]["verdict"] != one["after"]["verdict"] for one in found["traces"].values())
    assert found["repaired"]["batches"] >= 2_000
    assert {*found["traces"]} == {cause.server, *cause.traces}
    assert found["release"] == registry.plugin(cause.engine).releases[-1]


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_its_traces_are_known_of_the_newest_release_and_its_repair_is_short(cause: Cause) -> None:
    plugin = registry.plugin(cause.engine)
    listed = {one.trace for one in known.of_release(plugin.folder, plugin.releases[-1])}
    assert {cause.server, *cause.traces} <= listed
    assert cause.shown.trace.stem in TRIALS
    (inner,) = (
        node
        for node in ast.walk(ast.parse(inspect.getsource(cause.module.repair)))
        if isinstance(node, ast.FunctionDef) and node.name != "repair"
    )
    assert (inner.end_lineno or 0) - inner.lineno < MOST_LINES


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_a_page_is_short_and_has_what_a_maintainer_needs(cause: Cause) -> None:
    text = (ROOT / "docs" / "causes" / f"{cause.name}.md").read_text("utf-8")
    words = re.sub(r"```.*?```", "", text, flags=re.DOTALL).split()
    assert len(words) <= MOST_WORDS
    upstream = cause.upstream.found or cause.upstream.queries
    for needed in (*SHOWN[cause.engine], "def repair", cause.upstream.searched, *upstream):
        assert needed in text
    assert f"{cause.file}:{FOUND[cause.name]['line']}" in text


def test_no_trace_has_two_causes() -> None:
    names = [name for cause in CAUSES for name in (cause.server, *cause.traces)]
    assert len(names) == len(set(names))


def test_a_place_that_is_gone_or_told_too_loosely_is_an_error(tmp_path: Path) -> None:
    cause = CAUSES[0]
    with pytest.raises(UsageError, match="has not one line with"):
        cause.place([tmp_path])
    path = tmp_path / cause.file
    path.parent.mkdir(parents=True)
    owner, name = cause.function.split(".")
    line, last = f"# {' '.join(cause.names)}", "        pass\n"
    for count, right in ((1, True), (2, False)):
        body, other = f"        {line}\n" * count + last, f"    def other(self):\n        {line}\n{last}"
        path.write_text(f"{line}\nclass {owner}:\n    def {name}(self):\n{body}{other}")
        if right:
            assert cause.place([tmp_path]) == (cause.file, 4)
        else:
            with pytest.raises(UsageError):
                cause.place([tmp_path])


def test_an_unsettled_cause_is_told_apart() -> None:
    found = json.loads(json.dumps(FOUND[CAUSES[0].name]))
    name = next(iter(found["traces"]))
    before, after, repaired = (
        json.loads(json.dumps(found)),
        json.loads(json.dumps(found)),
        json.loads(json.dumps(found)),
    )
    before["traces"][name]["before"]["verdict"] = "conforms"
    after["traces"][name]["after"]["verdict"] = "violation"
    repaired["repaired"]["broken"].append({"law": "no_leak", "detail": "", "seed": 1})
    assert [is_settled(one) for one in (found, before, after, repaired)] == [True, False, False, False]


TRIED = """
    import json, sys
    from conformance.engines import registry, vllm
    from conformance.search.causes import tried
    from conformance.traces import cause_files

    loaded = registry.load("sglang", release=sys.argv[1])
    print(json.dumps([tried(cause_files.load(sys.argv[2]), loaded, 25, 1)]))
"""


@pytest.mark.soak(but=1)
@pytest.mark.engine
@pytest.mark.parametrize("cause", sampled(CAUSES, 6), ids=lambda cause: cause.name)
def test_the_repair_of_a_cause_mends_its_traces(cause: Cause) -> None:
    found = _tried(cause)
    assert is_settled(found), found
    assert (found["file"], found["line"]) == (FOUND[cause.name]["file"], FOUND[cause.name]["line"])


@pytest.mark.soak(but=6)
@pytest.mark.engine
@pytest.mark.parametrize("cause", [one for one in CAUSES if one.engine == "sglang"], ids=lambda cause: cause.name)
def test_the_script_of_a_page_shows_the_cause(cause: Cause) -> None:
    """In a copy of a process that has imported the release, which takes ten times as long as the program."""
    have(NEWEST)
    ran = forked.run(NEWEST, cause.program(NEWEST), [])
    assert ran.returncode != 0
    found = FOUND[cause.name]
    assert ending(ran.stderr) == ProgramEnd(found["program"], found["told"])
    assert ENDS[cause.name] in found["program"]


# What the program of a page ends with.
ENDS = {
    "admission_counts_no_states": "Not enough space for mamba ping pong idx",
    "arrived_prompt_is_matched_again": "Trying to create tensor with negative dimension -1: [-1]",
    "cancelled_turn_is_saved": "request 3: its input is [1, 1001, 5, 6, 7, 8, 3005], not [1, 1001, 3005]",
    "chunk_ends_inside_page": "request 2 computes token 8 of its text on a state after 9 tokens of another text",
    "empty_turn_cuts_session": "a reused row must carry allocated KV",
    "finished_batch_counts_as_busy": "release_memory_occupation should be called only when server is idle",
    "freed_window_enters_tree": "pool memory leak detected",
    "host_backups_hold_states": "Can not alloc mamba cache",
    "host_copies_count_as_busy": "release_memory_occupation should be called only when server is idle",
    "paused_request_asks_for_too_much": "request 0 waits: in 50 steps of its loop the server computed nothing",
    "prefill_turns_no_track": "request 1 computes token 256 of its text on a state after 512 tokens of another text",
    "refused_load_forgets_state": "request 5 computes token 2 of its text on a state after 0 tokens of its own text",
    "dfs_order_meets_session": "'_VirtualNode' object cannot be interpreted as an integer",
    "rejected_turn_keeps_session": "session_id='1' already has a slot",
    "retracted_turn_is_saved": "request 1 goes on after 8 tokens of its text",
    "retracted_waits_behind_arrived": "request 0 waits: in 50 steps of its loop the server computed nothing",
    "slow_storage_stops_server": "RuntimeError: Out of memory. Try to lower your batch size.",
    "transfer_under_pass": "into KV slot 8 now; the step in flight still writes a token of request 0 there",
    "turn_counts_draft_slot": "request 1 goes on after 4 tokens of its text",
    "unsent_window": "request 1 goes on after 6 tokens of its text; the KV cache in SWA slot 6, of token 2, was never",
    "waiting_turn_keeps_state_copy": "request 33 computes token 12 of its text on a state after 4 tokens",
    "window_is_no_room": "KV cache is full! Bug in memory estimation",
}


def _tried(cause: Cause) -> Json:
    if cause.engine == "sglang":
        (found,) = driven(NEWEST, TRIED, cause.name)
        return found
    release = vllm.RELEASES[-1]
    try:
        vllm.PLUGIN.fetch(release)
    except EngineError as error:
        pytest.skip(str(error))
    return tried_elsewhere(cause, release, 25, 1)


def _trial(make: Any, seed: int) -> SchedulerTrial:
    """A scheduler with full attention, and blocks for its longest request."""
    wanted = {"layers": 0, "drafts": 0, "caching": True, "transfers": False, "blocks": 12}
    return SchedulerTrial(Loaded("ours", None, {"block_cache": make}, own=True), random.Random(seed), wanted, ())


def test_requests_of_a_lawful_scheduler_end_in_a_trial() -> None:
    trial = _trial(registry.load("ours").makers["block_cache"], 1)
    assert trial.go() == (0, 0)
    assert trial.batches > 10 < trial.requests


def test_a_trial_without_its_configuration_is_not_made() -> None:
    def refuses(_: Json) -> Any:
        raise Unsupported("there is none")

    with pytest.raises(Unsupported):
        _trial(refuses, 1)


def test_a_cause_that_draws_what_no_server_has_is_refused() -> None:
    def refuses(_: Json) -> Any:
        raise Unsupported("there is none")

    cause = replace(cause_files.load("preempted_in_its_step"), drawn={"layers": 0})
    loaded = Loaded("vllm", None, {"block_cache": refuses}, own=False)
    with pytest.raises(EngineError, match=r"preempted_in_its_step: no server has what it draws: .*layers"):
        _driven(cause, loaded, 10, 1, ())


def test_what_a_program_tells_stands_between_its_traceback_and_its_error() -> None:
    errors = (
        'Traceback (most recent call last):\n  File "a.py", line 1\n    raise ValueError: no\n'
        "What happened to KV slot 3:\n  step 1: is free\nWhat happened to KV slot 4:\n"
        "ValueError: pool memory leak detected! \n[swa] total=16\n"
    )
    told = ["What happened to KV slot 3:", "  step 1: is free", "What happened to KV slot 4:"]
    assert ending(errors) == ProgramEnd("ValueError: pool memory leak detected!", told)
    assert ending("Traceback:\n  File\nAssertionError\n") == ProgramEnd("AssertionError", [])
    assert ending("Killed\n") == ProgramEnd("", [])


@given(st.lists(st.integers(0, 9) | st.integers(100, 120)), st.integers(0, 300))
def test_tokens_are_written_short_and_mean_what_they_were(tokens: list[int], run: int) -> None:
    tokens = [*tokens, *range(1000, 1000 + run), *tokens]
    assert ast.literal_eval(re.sub(r"\*range\((\d+), (\d+)\)", _listed, as_python(tokens))) == tokens
    if run < 64:
        assert json.loads(as_json(tokens)) == tokens
    else:
        assert ", ..., " in as_json(tokens)


def _listed(found: re.Match[str]) -> str:
    return ", ".join(map(str, range(int(found[1]), int(found[2]))))


def test_a_drawn_server_looks_past_what_is_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Ignores] = []

    def start(*_: Any, ignores: Ignores) -> Any:
        asked.append(ignores)
        return SimpleNamespace(run=None)

    monkeypatch.setattr(trials, "start", start)
    loaded: Any = SimpleNamespace(kinds=SimpleNamespace(hosting=HOSTING), makers={"host_server": None})
    for avoid in ((), (HostServerExclusion.SAID_AGAIN,)):
        trials.ServerTrial("host_server", loaded, random.Random(1), {}, avoid)
    said_again = Finding(AGREE, "", "")
    assert [ignores(said_again) for ignores in asked] == [False, True]


EVERY_REPAIR = """
import json, sys
from conformance.driver.lockstep import Finding
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.stems.stem_registry import start
from conformance.traces import cause_files
engine, release, more = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
makers = registry.load(engine, release).makers
causes = [cause for cause in cause_files.every() if cause.engine == engine]
for cause in causes:
    cause.module.repair()
left, traces = {}, {cause.name: cause.shown.trace for cause in causes}
for name, trace in (traces | {name: Trace(**one) for name, one in more.items()}).items():
    lock = start(trace.stem, makers[trace.stem], trace.config, strict=False)
    try:
        for step in trace.steps:
            lock.does(step)
    except Finding as found:
        left[name] = str(found)
print(json.dumps([len(causes), left]))
"""
HOST = {"policy": "lru", "threshold": 0, "prompt_only": False}
ONE_REQUEST = {
    "block_size": 4, "blocks": 9, "caching": True, "batch": 8, "requests": 1, "max_length": 40, "policy": "fcfs",
    "threshold": 0, "eagle": False, "transfers": True, "workers": 2, "layers": [{"kind": "full"}, {"kind": "mamba"}],
}  # fmt: skip
# Where the repairs of several causes meet: each was told as a finding, and a repair was wrong.
MEET = {
    "vllm": {
        "a reset refused for a step in flight leaves host memory, too": {
            "stem": "block_cache",
            "config": ONE_REQUEST | {
                "steps_in_flight": 2, "drafts": 2, "events": True, "tuning": {"match": 1},
                "host": HOST | {"slots": 4, "blocks_per_slot": 2},
            },
            "steps": [
                {"op": "add", "request": 0, "tokens": [*range(1, 11)], "outputs": 3},
                *({"op": op} for op in ("schedule", "schedule", "complete", "schedule", "complete", "schedule")),
                *({"op": op} for op in ("complete", "complete", "schedule")),
                {"op": "reset", "preempt": True, "host": True},
                {"op": "complete"},
            ],
        },
        "a block that is copied to host memory keeps its hash": {
            "stem": "block_cache",
            "config": ONE_REQUEST | {
                "blocks": 2, "steps_in_flight": 3, "drafts": 0, "events": False,
                "host": HOST | {"slots": 24, "blocks_per_slot": 1, "pool": "eager"},
            },
            "steps": [
                {"op": "add", "request": 0, "tokens": [1, 2, 3, 4], "outputs": 1},
                {"op": "schedule"},
                {"op": "schedule"},
                {"op": "reset", "preempt": True, "host": True},
                {"op": "complete"},
                {"op": "stored", "job": 0},
                {"op": "complete"},
            ],
        },
    },
    "sglang": {},
}  # fmt: skip


@pytest.mark.engine
@pytest.mark.parametrize("engine", [*MEET])
def test_all_repairs_together_leave_nothing_of_any_cause(engine: str) -> None:
    """``--repaired`` makes all of them at once."""
    release = registry.plugin(engine).releases[-1]
    try:
        registry.fetch(engine, release)
    except EngineError as error:
        pytest.skip(str(error))
    ran = forked.run(release, EVERY_REPAIR, [engine, release, json.dumps(MEET[engine])], engine)
    repaired, left = ran.answer()
    assert repaired > 20
    assert left == {}
