"""SGLang's real scheduler: what clients may send is followed by the law, and what stops a server is found."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from driven import NEWEST, between, driven, some

from conformance.driver.protocol import EngineError, Json, Unsupported
from conformance.engines.sglang.releases.release import Release
from conformance.engines.sglang.releases.server_parts import Releases
from conformance.engines.sglang.server import page
from conformance.engines.sglang.server.clock import ServerClock
from conformance.engines.sglang.server.copying import CopyDevice
from conformance.engines.sglang.server.launching import environment_with
from conformance.engines.sglang.server.network import Network
from conformance.engines.sglang.server.sockets import Socket
from conformance.engines.sglang.server.standing_in import Place, StandInRow, put_in_place
from conformance.engines.sglang.server.streams import PassDevice
from conformance.stems.server.served import ANSWERS, GOES_ON, HEARS
from conformance.traces import trace_files

SMALL = ["--page-size", "1", "--max-total-tokens", "16", "--context-length", "12", "--max-running-requests", "3"]
FLAGS = [*SMALL, "--attention-backend", "triton"]
NORMAL, SESSIONS = "--disable-overlap-schedule", "--enable-streaming-session"
# Runs each of some lists of operations on a server, and says how each ended and which transitions were taken.
DRIVE = """
    import json, sys
    from conformance.driver.lockstep import Finding
    from conformance.driver.protocol import EngineError, Unsupported
    from conformance.engines.registry import load
    from conformance.stems.stem_registry import start

    make = load("sglang", release=sys.argv[1]).makers["server"]
    said = []
    PLANT
    for config, steps in json.loads(sys.argv[2]):
        try:
            run = start("server", make, config)
        except Unsupported as reason:
            said.append({"refused": str(reason)})
            continue
        try:
            for step in steps:
                run.do(**step)
            ended = {}
        except Finding as finding:
            ended = {"law": finding.law, "detail": finding.detail}
        except EngineError as error:
            ended = {"error": str(error)}
        done = {name: n for (name, outcome), n in run.law.counts.items() if outcome == "done"}
        said.append({**ended, "done": done, "batches": run.run.batches, "left": len(run.run.here)})
    print(json.dumps(said))
"""


def config(*more: str, model: str = "windowed", sessions: int = 0) -> Json:
    return {"model": model, "flags": [*FLAGS, *more, *([SESSIONS] if sessions else [])], "sessions": sessions}


def asks(request: int, tokens: int, longest: int, fork: int = 9, session: int = 0) -> Json:
    text = [n + 1 if n < fork else 1000 * (fork + 1) + n for n in range(tokens)]
    return {"op": "generate", "request": request, "tokens": text, "longest": longest, "session": session, "fork": fork}


def turn(times: int = 1) -> Json:
    return {"op": "turn", "times": times}


def sent(*runs: tuple[Json, list[Json]], plant: str = "", release: str = NEWEST) -> list[Any]:
    """How runs on a release end. ``plant``: code that changes the release before."""
    found: list[Any] = driven(release, DRIVE.replace("PLANT", plant), json.dumps(runs))
    return found


def test_the_page_of_the_server_says_what_stands_in_and_what_is_watched() -> None:
    kept = Path(__file__).resolve().parents[1] / "docs" / "server.md"
    assert kept.read_text("utf-8") == page.page(), f"run python -m {page.__name__}"


# Prompts that share beginnings and wait for room, a prompt that is computed in chunks, an abort, and an empty cache.
USUAL = [
    *(asks(0, 5, 6), asks(1, 6, 3, fork=3), turn(3)),
    *(asks(2, 5, 5), asks(3, 4, 6, fork=0), {"op": "abort", "request": 1}, turn(9)),
    *(asks(4, 6, 5, fork=3), turn(60), {"op": "flush"}, turn(2)),
]
# A session of two turns, another request beside it, and its end.
TURNS = [
    *({"op": "open", "session": 1}, turn(), asks(0, 2, 2, session=1), turn(9)),
    *(asks(1, 4, 2, fork=2), asks(2, 1, 2, session=1), turn(9), {"op": "close", "session": 1}, turn(9)),
]
# Two first turns of a session that come in one poll.
TWO_FIRST_TURNS = [
    *({"op": "open", "session": 1}, asks(0, 3, 4, session=1), asks(1, 2, 4, fork=2, session=1), turn()),
]


@pytest.mark.engine
def test_what_clients_send_is_followed_by_the_law() -> None:
    chunks = ("--chunked-prefill-size", "4")
    normal, overlapped, whole, mixed = sent(
        (config(NORMAL), USUAL),
        (config(), USUAL),
        (config(model="full"), USUAL),
        (config(*chunks, "--enable-mixed-chunk"), USUAL),
    )
    for said in (normal, overlapped, whole, mixed):
        assert not {"law", "error", "refused"} & said.keys(), said
        assert said["left"] == 0
        assert said["batches"] > 10
        assert {"admit", "extend", "decode", "continue_prefill", "insert_leaf", "free_rest"} <= said["done"].keys()
    assert mixed["done"]["extend"] > overlapped["done"]["extend"], "a prompt is computed in chunks"


DRAFTS = (
    *("--speculative-algorithm", "STANDALONE", "--speculative-num-steps", "2"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "3"),
)
# An answer of two tokens; of the draft that is verified for the last one, one token is accepted (fork 7) or all (fork
# 8). In the second case its keys and values are computed, so that the session rightly counts them.
LAST_BY_DRAFT = {
    fork: [{"op": "open", "session": 1}, turn(), asks(0, 2, 2, fork=fork, session=1), turn(12)] for fork in (7, 8)
}


@pytest.mark.engine
def test_drafts_are_followed_by_the_law() -> None:
    """In the default schedule steps overlap: a step has begun before it is known what was accepted."""
    normal, overlapped, mixed = sent(
        (config(NORMAL, *DRAFTS), USUAL),
        (config(*DRAFTS), USUAL),
        (config(*DRAFTS, "--chunked-prefill-size", "4", "--enable-mixed-chunk", model="full"), USUAL),
    )
    for said in (normal, overlapped, mixed):
        assert not {"law", "error", "refused"} & said.keys(), said
        assert said["left"] == 0
        assert said["done"]["reserve"] > 3
        assert said["done"]["commit"] > 3
        assert "decode" not in said["done"]


@pytest.mark.engine
def test_a_session_may_count_what_a_draft_or_a_step_in_flight_has_computed() -> None:
    wrong, right = sent(*((config(*DRAFTS, model="full", sessions=1), LAST_BY_DRAFT[fork]) for fork in (7, 8)))
    assert wrong["law"] == "save", wrong
    assert not {"law", "error", "refused"} & right.keys(), right


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("release", some(between("0.5.16", "0.5.21")[::-1]))
def test_older_releases_are_followed(release: str) -> None:
    lpm = ("--schedule-policy", "lpm")
    for said in sent((config(*lpm), USUAL), (config(NORMAL, sessions=1), TURNS), release=release):
        assert not {"law", "error", "refused"} & said.keys(), said
        assert said["left"] == 0
        assert {"admit", "extend", "decode", "insert_leaf"} <= said["done"].keys()


class Fake:
    """A release whose modules have these names."""

    label = "fake"

    def __init__(self, modules: dict[str, set[str]]) -> None:
        self._modules = {name: SimpleNamespace(**dict.fromkeys(names)) for name, names in modules.items()}

    def has(self, name: str) -> bool:
        """Whether it has a module; without a name this is the package itself."""
        return not name or name in self._modules

    def module(self, name: str) -> Any:
        """The module of this name."""
        return self._modules.setdefault(name, SimpleNamespace())


def no_server() -> Any:
    raise AssertionError("no server drafts here")


def stood_in(modules: dict[str, set[str]]) -> dict[str, Any]:
    """What stands in the module ``groups`` of such a release: of two names, ``old`` marks the releases that have it."""
    fake: Any = Fake(modules)
    marked = Releases("groups", "old")
    rows = [
        StandInRow("groups", "new", lambda _: 1, "", "", marked._replace(lacking=True)),
        StandInRow("groups", "inner", lambda _: 2, "", "", marked),
        StandInRow("groups", "kind", lambda _: 3, "", "", Releases("kinds")),
    ]
    network = Network(lambda _: no_server())
    devices = CopyDevice(), PassDevice()
    put_in_place(
        Place(fake, lambda _: Socket(), type, ServerClock(int), no_server, *devices, network, lambda _: None), rows
    )
    return dict(vars(fake.module("groups")))


def test_a_name_that_some_releases_have_is_still_asked_of_all() -> None:
    assert stood_in({"groups": {"new"}}) == {"new": 1}
    assert stood_in({"groups": {"old", "inner"}}) == {"old": None, "inner": 2}
    assert stood_in({"groups": {"new", "kind"}, "kinds": set()}) == {"new": 1, "kind": 3}
    neither: tuple[tuple[str, dict[str, set[str]]], ...] = (
        ("new", {"groups": set()}),
        ("inner", {"groups": {"old"}}),
        ("kind", {"groups": {"new"}, "kinds": set()}),
    )
    for missing, modules in neither:
        with pytest.raises(EngineError, match=f"fake: {missing} is to be stood in for; groups has no such name"):
            stood_in(modules)


@pytest.mark.engine
def test_turns_of_a_session_are_followed_and_two_first_turns_stop_a_server() -> None:
    *lawful, normal, overlapped = sent(
        *((config(*loop, sessions=1), TURNS) for loop in ((NORMAL,), ())),
        *((config(*loop, sessions=1), TWO_FIRST_TURNS) for loop in ((NORMAL,), ())),
    )
    for said in lawful:
        assert not {"law", "error", "refused"} & said.keys(), said
        assert {"save", "resume", "close"} <= said["done"].keys()
    for said in (normal, overlapped):
        assert said["law"] == GOES_ON
        assert "already has a slot" in said["detail"]


LEAKS = """
    rows = __import__("importlib").import_module("sglang.srt.mem_cache.memory_pool").ReqToTokenPool
    rows.free = lambda self, req: setattr(req.kv, "req_pool_idx", None)
"""
KEEPS_LOCKS = """
    tree = __import__("importlib").import_module("sglang.srt.mem_cache.unified_radix_cache").UnifiedRadixCache
    tree.unlock = lambda self, lock: None
"""
ALLOCATES_APART = """
    scheduler = __import__("importlib").import_module("sglang.srt.managers.scheduler").Scheduler
    real = scheduler.get_next_batch_to_run
    def get_next_batch_to_run(self, *args, real=real, **kwargs):
        self.token_to_kv_pool_allocator.alloc(1)
        return real(self, *args, **kwargs)
    scheduler.get_next_batch_to_run = get_next_batch_to_run
"""


@pytest.mark.engine
@pytest.mark.parametrize("plant", [LEAKS, KEEPS_LOCKS])
def test_a_broken_scheduler_is_found(plant: str) -> None:
    (said,) = sent((config(NORMAL), USUAL), plant=plant)
    assert "law" in said, said


PYTHON_CORE = {"UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}
# After request 0 the tree has the nodes [1, 2, 3, 4] and [5, 6]. Request 1 locks both, since a window has four tokens.
# Then request 2 is matched in the same batch, and its two known tokens split the upper node. It is admitted, too, or
# waits for room.
SPLITS_LOCKED = [asks(0, 4, 3), turn(9), asks(1, 7, 9), asks(2, 4, 2, fork=2), turn(30)]
SPLITS_AND_WAITS = [asks(0, 4, 3), turn(9), asks(1, 7, 9), asks(2, 22, 8, fork=2), turn(60)]
# Each of three requests but the first splits the node that the one before it has locked: [1 to 6] after 5 tokens, and
# [1 to 5] after one.
SPLITS_TWICE = [asks(0, 10, 1), turn(9), asks(1, 8, 3, fork=6), asks(2, 7, 3, fork=5), asks(3, 4, 3, fork=1), turn(40)]
# With pages of two tokens. Request 1 locks [1 to 8] and [9, 10], and request 2 splits [1 to 8] after 6 tokens. When the
# prompt of request 1 is computed, it has no whole page more: the tree takes nothing, and locks the same node anew. A
# window has four tokens, so it ends at [7, 8] then.
SPLITS_AND_LOCKS_ANEW = [asks(0, 8, 3), turn(9), asks(1, 11, 9), asks(2, 7, 2, fork=6), turn(30)]
# When request 2 has split the node that request 1 has locked, the lock of request 1 is lost, and is AGAIN taken as if
# the window had begun to count at that moment: then it ends at the lower part.
LOSES_SPLIT = """
    tree = __import__("importlib").import_module("sglang.srt.mem_cache.unified_radix_cache").UnifiedRadixCache
    lock, match, taken = tree.lock, tree.match_prefix, []
    def takes(self, node, *args, **kwargs):
        taken.append(lock(self, node, *args, **kwargs))
        return taken[-1]
    def matches(self, params):
        found = match(self, params)
        if taken and 3002 in list(params.key.token_ids):
            self.unlock(taken[-1])
            AGAIN
            taken.clear()
        return found
    tree.lock, tree.match_prefix = takes, matches
"""
GIVES_TO_LOWER_PART = LOSES_SPLIT.replace("AGAIN", "self.inc_lock_ref(taken[-1].node)")
GIVES_TO_NOBODY = LOSES_SPLIT.replace("AGAIN", "pass")


def roomy(*more: str, environment: Json) -> Json:
    """A server whose pool has room for texts of 24 tokens."""
    flags = [{"16": "40", "12": "30"}.get(flag, flag) for flag in config(*more)["flags"]]
    return {**config(), "flags": flags, "environment": environment}


@pytest.mark.engine
def test_a_node_that_a_request_of_a_batch_has_locked_is_split_for_the_next_one() -> None:
    runs = (SPLITS_LOCKED, SPLITS_AND_WAITS, SPLITS_TWICE)
    servers = [roomy(*loop, environment=core) for loop in ((NORMAL,), ()) for core in ({}, PYTHON_CORE)]
    for said in sent(*((server, run) for server in servers for run in runs)):
        assert not {"law", "error", "refused"} & said.keys(), said
        assert said["left"] == 0
        assert said["done"]["split"] > 0
        assert "merge" not in said["done"]


@pytest.mark.engine
def test_a_row_that_gives_the_tree_nothing_may_lock_less_after_a_split() -> None:
    servers = [roomy(*loop, environment=core) for loop in ((NORMAL,), ()) for core in ({}, PYTHON_CORE)]
    for server in servers:
        server["flags"][server["flags"].index("--page-size") + 1] = "2"
    for said in sent(*((server, SPLITS_AND_LOCKS_ANEW) for server in servers)):
        assert not {"law", "error", "refused"} & said.keys(), said
        assert said["done"]["split"] > 0


@pytest.mark.soak(but=1)
@pytest.mark.engine
@pytest.mark.parametrize("plant", [GIVES_TO_LOWER_PART, GIVES_TO_NOBODY])
def test_a_lock_that_a_split_loses_or_gives_to_the_wrong_part_is_found(plant: str) -> None:
    servers = [roomy(NORMAL, environment=core) for core in ({}, PYTHON_CORE)]
    asked = [(server, run) for server in servers for run in (SPLITS_LOCKED, SPLITS_AND_WAITS)]
    for said in sent(*asked, plant=plant):
        assert "SWA" in said.get("detail", ""), said


# A loop that reads no message from the start, or from the third turn on; and one that loses what it has read.
READS_NOTHING = """
    receiver = __import__("importlib").import_module("sglang.srt.managers.scheduler_components.request_receiver")
    real, turns = receiver.SchedulerRequestReceiver._pull_raw_reqs, []
    def pulls(self):
        turns.append(len(turns))
        return WHAT
    receiver.SchedulerRequestReceiver._pull_raw_reqs = pulls
"""
LATER = "real(self) if len(turns) < 4 else []"
LOSES = "real(self)[:0]"


@pytest.mark.engine
@pytest.mark.parametrize("loop", [(NORMAL,), ()])
@pytest.mark.parametrize("what", [LATER, LOSES])
def test_a_server_that_hears_of_no_request_breaks_a_law(what: str, loop: tuple[str, ...]) -> None:
    (said,) = sent((config(*loop), USUAL), plant=READS_NOTHING.replace("WHAT", what))
    assert said.get("law") == HEARS, said


# A server that forgets a request that waits, or that runs and has ended, without a word.
FORGETS = """
    from sglang.srt.managers.scheduler import Scheduler
    real = Scheduler.get_next_batch_to_run
    def forgets(self, *args, **kwargs):
        self.waiting_queue[:] = [one for one in self.waiting_queue if one.rid != "2"]
        return real(self, *args, **kwargs)
    Scheduler.get_next_batch_to_run = forgets
"""
SAYS_NOTHING = """
    streamer = __import__("importlib").import_module("sglang.srt.managers.scheduler_components.output_streamer")
    real = streamer.SchedulerOutputStreamer.stream_output
    def says(self, reqs, *args, **kwargs):
        return real(self, [one for one in reqs if one.rid != "2"], *args, **kwargs)
    streamer.SchedulerOutputStreamer.stream_output = says
"""


@pytest.mark.engine
@pytest.mark.parametrize("loop", [(NORMAL,), ()])
@pytest.mark.parametrize("plant", [FORGETS, SAYS_NOTHING])
def test_a_request_that_is_forgotten_without_a_word_breaks_a_law(plant: str, loop: tuple[str, ...]) -> None:
    (said,) = sent((config(*loop), USUAL), plant=plant)
    assert said.get("law") == ANSWERS, said


@pytest.mark.engine
def test_a_server_that_reads_no_message_from_the_start_is_told_beside_a_base() -> None:
    script = DRIVE.replace("PLANT", READS_NOTHING.replace("WHAT", "[]"))
    script = script.replace("except Unsupported as reason:", "except EngineError as reason:").replace(
        "str(reason)", "reason.unbuilt"
    )
    ((said,),) = (driven(NEWEST, script, json.dumps([(config(), [])])),)
    assert said["refused"].startswith("its loop goes on, and reads no message in 1000 calls of "), said


@pytest.mark.engine
def test_a_call_that_the_law_does_not_follow_is_no_verdict() -> None:
    (said,) = sent((config(NORMAL), USUAL), plant=ALLOCATES_APART)
    assert "SWATokenToKVPoolAllocator.alloc was called where the law follows no call" in said["error"]


@pytest.mark.engine
def test_flags_that_the_release_refuses_are_unsupported() -> None:
    bad = config()
    bad["flags"] = [*bad["flags"], "--no-such-flag"]
    (said,) = sent((bad, USUAL))
    assert "refuses these flags" in said["refused"]


@pytest.mark.engine
def test_flags_that_a_scheduler_refuses_are_unsupported() -> None:
    (said,) = sent((config("--enable-session-radix-cache", model="sliding"), []))
    assert "refuses these flags" in said["refused"]


def test_a_cache_that_keeps_no_prefix_is_unsupported_and_an_unknown_tree_is_an_error() -> None:
    release: Any = SimpleNamespace(imported=SimpleNamespace(label="0.0.0"))
    with pytest.raises(Unsupported, match="SWAChunkCache, which keeps no prefix"):
        Release.kind_of(release, type("SWAChunkCache", (), {})())
    with pytest.raises(EngineError, match="has built a NewTree"):
        Release.kind_of(release, type("NewTree", (), {})())


@pytest.mark.engine
def test_memory_is_given_back_once_the_last_batch_is_done() -> None:
    """The lawful neighbour of a kept trace that stops a server."""
    kept = trace_files.load("memory_released_after_answer_stops_server").trace
    early, turns = list(kept.steps), [turn(3)]
    later, more = [*early[:2], *turns, *early[2:]], [{"op": "resume_memory"}, asks(1, 3, 2), turn(6)]
    stops, goes_on = sent((kept.config, early), (kept.config, [*later, *more]))
    assert stops["law"] == GOES_ON
    assert ("law" not in goes_on, goes_on["left"], goes_on["batches"]) == (True, 0, 3)


# Launches one server of flags that are not known, and one of flags that are: what each was launched with.
REMEMBERED = """
    import json, re, sys
    from conformance.engines.registry import load
    from conformance.engines.sglang.server.launching import Launcher

    make, told = load("sglang", release=sys.argv[1]).makers["server"], []
    launch = Launcher.launch

    def told_of(launcher, model, flags, environment):
        known = len(launcher._known)
        scheduler, published = launch(launcher, model, flags, environment)
        read = [repr(scheduler.server_args), repr(published.environment), repr(sorted(published.values.items()))]
        told.append([len(launcher._known) - known, *(re.sub("0x[0-9a-f]+", "", each) for each in read)])
        return scheduler, published

    Launcher.launch = told_of
    for config in json.loads(sys.argv[2]):
        make(config)
    print(json.dumps(told))
"""


@pytest.mark.engine
def test_a_server_of_known_flags_is_launched_as_the_first_one_was() -> None:
    one, other = config(), config("--schedule-policy", "lpm")
    told: Any = driven(NEWEST, REMEMBERED, json.dumps([one, other, one, one | {"environment": {"REQ_A": "1"}}]))
    assert [added for added, *_ in told] == [1, 1, 0, 1]
    first, second, again, variables = (list(each) for _, *each in told)
    assert again == first != second
    assert "lpm" in second[0]
    assert "REQ_A" in variables[1]
    assert "REQ_A" not in first[1]


# Twelve requests wait on each of some servers: in which order a set of them is.
IN_A_SET = """
    import json, sys
    from conformance.engines.registry import load

    make, orders, kept = load("sglang", release=sys.argv[1]).makers["server"], [], []
    for _ in range(3):
        server = make(json.loads(sys.argv[2]))
        for request in range(12):
            kept.append([object() for _ in range(97 * len(kept))])  # so that requests have other addresses
            server.generate(request, 0, [1, 2], 1, 9)
        while server.go_on().kind != "arrived" or len(server.requests) < 12:
            pass
        orders.append([int(request.rid) for request in {*server.requests.values()}])
    print(json.dumps(orders))
"""


@pytest.mark.engine
def test_a_set_of_requests_has_one_order() -> None:
    """The release queues requests that are preempted together again in the order of a set."""
    first, *others = driven(NEWEST, IN_A_SET, json.dumps(config()))
    assert sorted(first) == [*range(12)]
    assert others == [first] * 2


@pytest.mark.engine
def test_nobody_opens_a_streaming_session_of_a_server_without_the_flag() -> None:
    opened: list[Json] = [{"op": "open", "session": 1}, {"op": "turn", "times": 2}]
    servers = [({**config(NORMAL), "sessions": 1}, opened), (config(NORMAL, sessions=1), opened)]
    script = DRIVE.replace("PLANT", "").replace("except EngineError", "except (EngineError, Unsupported)")
    refused, served = driven(NEWEST, script, json.dumps(servers))
    assert refused["error"] == "the engine has no open in this configuration"
    assert "error" not in served


def test_an_event_of_a_server_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_BOTH", "before")
    monkeypatch.setenv("REMOVED", "was here")
    monkeypatch.setenv("UNTOUCHED", "stays")
    before = dict(os.environ)

    def seen_by_a_process() -> str:
        return subprocess.run(["env"], capture_output=True, text=True, check=True).stdout

    with environment_with({"OF_BOTH": "server", "OF_SERVER": "server"}):
        assert (os.environ["OF_BOTH"], os.environ["OF_SERVER"]) == ("server", "server")
        os.environ["SET_BY_RELEASE"] = os.environ["OF_BOTH"] = "release"
        del os.environ["REMOVED"]
        assert "SET_BY_RELEASE=release" in seen_by_a_process()
    assert dict(os.environ) == before
    shown = seen_by_a_process()
    assert "OF_BOTH=before" in shown
    assert "REMOVED=was here" in shown
    assert "SET_BY_RELEASE" not in shown
    assert "OF_SERVER" not in shown
