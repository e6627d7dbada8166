"""The laws of a server, on a scripted one whose memory nobody uses, each with a lawful neighbour."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.driver.lockstep import Finding, LockStep
from conformance.driver.protocol import Misuse
from conformance.driver.trace import Trace
from conformance.search.harm import harm
from conformance.stems.allocator.protocol import AllocatorSnapshot
from conformance.stems.cache.protocol import CacheSnapshot
from conformance.stems.lock_ref.protocol import LockRefSnapshot, NodePart, NodeSnapshot
from conformance.stems.server import run as server
from conformance.stems.server.client import ADDS_NOTHING, LEAST, WANTS_NOTHING, Client
from conformance.stems.server.exclusions import (
    ServerExclusion,
    may_ask_for_turn,
    may_release_memory,
    may_say_priority,
    may_update_weights,
)
from conformance.stems.server.protocol import (
    DEAF,
    POLL,
    SENDS,
    TRANSFER,
    SendStep,
    Sent,
    ServedRequest,
    ServerEvent,
    TransferStep,
)
from conformance.stems.server.run import ServerRun
from conformance.stems.server.served import ANSWERS, GOES_ON, HEARS, MOST_TURNS, SOON
from conformance.stems.session_trim.protocol import SessionTrimSnapshot
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot
from conformance.traces.harm_found import rank_of

PAGES, ROWS = 4, 2
Script = Iterator[ServerEvent | Exception]
CONFIG = {"model": "full", "flags": [], "sessions": 1}
WAITS = ServedRequest([1, 2], [], 0, 0, None, False)
STANDS = ServerEvent(POLL, {0: WAITS}, waiting=[0])
WORKS = ServerEvent(POLL, {0: WAITS}, waiting=[0], batch=1)
IDLE = ServerEvent(POLL)


class Scripted:
    """A server that does what its script says. ``alone``: what its admission answers. ``amiss``: what its own check
    says.
    """

    fragile = False
    overlaps = True
    lacks: Collection[str] = frozenset({SENDS, TRANSFER})

    def __init__(self, events: Script, alone: bool = True, amiss: tuple[str, ...] = ()) -> None:
        self.shape = {
            **{"page_size": 1, "size": PAGES, "size_swa": 1, "rows": ROWS, "sessions": 1, "window": 1},
            **{"need_sort": False, "components": ["full"]},
        }
        self.events, self.alone, self.amiss = events, alone, amiss

    def generate(self, *_: Any) -> None:
        """It hears nothing."""

    abort = open = close = flush = pause = resume = update_weights = release_memory = resume_memory = generate
    transfer = generate

    def send(self, *_: Any) -> Sent:
        """Nothing is sent."""
        return Sent(0, ())

    def send_steps(self, *_: Any) -> tuple[SendStep, ...]:
        """No decode server stands behind it."""
        return ()

    def kept_buffers(self) -> int:
        """It has no buffers for first tokens."""
        return 0

    def transfer_steps(self, *_: Any) -> tuple[TransferStep, ...]:
        """No prefill server stands behind it."""
        return ()

    def go_on(self) -> ServerEvent:
        """The next event of the script; an exception is raised."""
        event = next(self.events)
        if isinstance(event, Exception):
            raise event
        return event

    def grants_alone(self, request: int) -> bool:
        """Its admission."""
        assert request == 0
        return self.alone

    def idle_problems(self) -> list[str]:
        """Its check."""
        return list(self.amiss)

    def cache_snapshot(self) -> CacheSnapshot:
        """Empty rows, full pools, and the root of a tree."""
        pools = SwaMappingSnapshot.without_swa(AllocatorSnapshot([*range(1, PAGES + 1)], [], PAGES))
        root = NodeSnapshot(0, None, [], {"full": NodePart([], 1)})
        tree = LockRefSnapshot([root], {"full": 0}, {"full": 0}, {"full": list(pools.full.free)})
        return CacheSnapshot(SessionTrimSnapshot({}, {}, [*range(1, ROWS + 1)], pools), tree, {}, None)


def begun(events: Script, **more: Any) -> LockStep:
    run = LockStep(ServerRun(Scripted(events, **more), CONFIG), CONFIG)
    run.do("generate", request=0, tokens=[1, 2], longest=2)
    return run


def law_of(lock: LockStep, turns: int) -> str:
    """The law that so many turns break; empty if none."""
    try:
        lock.do("turn", times=turns)
    except Finding as finding:
        return finding.law
    return ""


def test_a_server_that_would_admit_and_does_not_stands_still() -> None:
    assert law_of(begun(repeat(STANDS)), server.STILL - 1) == ""
    assert law_of(begun(repeat(STANDS)), server.STILL) == server.SERVES


def test_a_server_that_computes_now_and_then_does_not_stand_still() -> None:
    now_and_then = (WORKS if n % (server.STILL - 1) == 0 else STANDS for n in range(1000))
    assert law_of(begun(now_and_then), MOST_TURNS) == ""


def test_a_request_that_nothing_makes_room_for_is_named_and_one_behind_a_session_is_lawful(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = begun(repeat(STANDS), alone=False)
    assert law_of(lock, server.STILL) == server.SERVES
    lock = begun(repeat(STANDS), alone=False)
    monkeypatch.setattr(ServerRun, "sessions_that_hold_memory", lambda _: [1])
    assert law_of(lock, server.STILL) == ""


def test_a_request_with_a_row_that_is_in_no_batch_stands_still() -> None:
    assert law_of(begun(repeat(ServerEvent(POLL, {0: WAITS}))), server.STILL) == server.SERVES


def test_a_paused_server_does_nothing_lawfully() -> None:
    lock = begun(repeat(STANDS))
    lock.do("pause", mode="in_place")
    assert law_of(lock, MOST_TURNS) == ""
    lock.do("resume")
    assert law_of(lock, server.STILL) == server.SERVES


def test_an_idle_server_stands_still_lawfully() -> None:
    lock = begun(chain([ServerEvent("arrived", {0: WAITS}), STANDS], repeat(IDLE)))
    assert [law_of(lock, MOST_TURNS) for _ in range(3)] == ["", "", ""]


def test_a_request_that_never_comes_to_the_server_is_missed() -> None:
    """After as many polls as there are messages, and some."""
    assert law_of(begun(repeat(IDLE)), SOON + 1) == ""
    assert law_of(begun(repeat(IDLE)), SOON + 2) == HEARS
    lock = begun(repeat(IDLE))
    for _ in range(10):
        lock.do("flush")
    assert law_of(lock, SOON + 11) == "", "a server may read one message at a poll"
    assert law_of(lock, 1) == HEARS


def test_a_request_that_leaves_has_an_answer() -> None:
    assert law_of(begun(iter([STANDS, IDLE])), 2) == ""
    assert law_of(begun(iter([STANDS, ServerEvent(POLL, unanswered=[0])])), 2) == ANSWERS


def test_a_server_whose_loop_reads_no_message_hears_of_nothing() -> None:
    assert law_of(begun(iter([STANDS, ServerEvent(DEAF)])), 2) == HEARS


def test_the_servers_own_check_must_agree() -> None:
    assert law_of(begun(repeat(IDLE), amiss=("2 tokens leak",)), 1) == server.AGREES
    assert law_of(begun(repeat(STANDS), amiss=("2 tokens leak",)), 1) == "", "it is checked where nothing is left"


def test_no_message_may_stop_a_server() -> None:
    lock = begun(iter([STANDS, AssertionError("session already has a slot")]))
    with pytest.raises(Finding, match="session already has a slot") as caught:
        lock.do("turn", times=2)
    assert caught.value.law == GOES_ON


def test_the_end_of_a_server_is_its_harm() -> None:
    """Nothing can be driven on; where another law breaks, the run goes on."""
    steps = [{"op": "generate", "request": 0, "tokens": [1, 2], "longest": 2}, {"op": "turn", "times": 2}]
    trace = Trace("server", CONFIG, steps)
    ended = harm(trace, 2, lambda _: Scripted(iter([STANDS, AssertionError("already has a slot")])))
    assert (ended["ended"], rank_of(ended)) == (True, 1)
    assert "has ended" in ended["sentence"]
    goes_on = harm(trace, 2, lambda _: Scripted(repeat(IDLE), amiss=("2 tokens leak",)))
    assert (goes_on["ended"], rank_of(goes_on)) == (False, 2)


def test_what_a_known_difference_avoids_is_not_sent() -> None:
    """A second turn while one is there; a lawful neighbour is a turn after it, or one of another session."""
    arrived = ServerEvent("arrived", {1: WAITS._replace(session=1)})
    here = ServerEvent(POLL, {0: WAITS, 1: WAITS}, waiting=[0, 1])
    lock, avoid = begun(iter([arrived, here, IDLE])), frozenset({ServerExclusion.TURN_BESIDE_TURN})
    run: Any = lock.run
    assert may_ask_for_turn(run, avoid, 1)
    lock.do("open", session=1)
    lock.do("generate", request=1, tokens=[1, 2], longest=2, session=1)
    assert not may_ask_for_turn(run, avoid, 1), "it is on its way"
    lock.do("turn")
    assert not may_ask_for_turn(run, avoid, 1), "it waits"
    assert may_ask_for_turn(run, avoid, 2)
    assert may_ask_for_turn(run, frozenset(), 1), "nothing is excluded"
    lock.do("turn")
    assert may_ask_for_turn(run, avoid, 1)


def turn_of(tokens: list[int], text: list[int] | None = None, beside: bool = False) -> str:
    """The law that a server breaks with a turn of the session 1, whose client sends the token 5, by reading these
    tokens. ``text``: what the session's turns have made. ``beside``: another turn of it is on the server.
    """
    lock = begun(iter([ServerEvent("arrived", {1: WAITS._replace(session=1, tokens=tokens)}), IDLE]))
    run: Any = lock.run
    run.said.update({} if text is None else {1: text})
    if beside:
        run.sent_to[0], run.here = 1, {0}
    lock.do("open", session=1)
    lock.do("generate", request=1, tokens=[5], longest=2, session=1)
    return law_of(lock, 1)


def test_a_turn_goes_on_with_the_text_of_its_session() -> None:
    assert turn_of([5]) == ""
    assert turn_of([1, 2, 5], [1, 2]) == ""
    assert turn_of([1, 2, 3, 5], [1, 2]) == server.OWN_TEXT, "a token that no turn left there"
    assert turn_of([5], [1, 2]) == server.OWN_TEXT, "a text that is lost"
    assert turn_of([1, 2, 3, 5], [1, 2], beside=True) == "", "whether the other turn ends well is not known yet"


def test_a_session_is_left_alone_after_an_aborted_turn_that_stays_in_its_text() -> None:
    """A turn is taken back while it waits."""
    arrived = ServerEvent("arrived", {1: WAITS._replace(session=1)})
    lock = begun(iter([arrived, ServerEvent(POLL, {1: WAITS}, waiting=[1]), IDLE]))
    run: Any = lock.run
    avoid = frozenset({ServerExclusion.ABORTED_TURN})
    lock.do("open", session=1)
    lock.do("generate", request=1, tokens=[1, 2], longest=2, session=1)
    lock.do("turn")
    assert may_ask_for_turn(run, avoid, 1)
    lock.do("abort", request=1)
    lock.do("turn")
    assert not may_ask_for_turn(run, avoid, 1)
    assert may_ask_for_turn(run, avoid, 2)
    assert may_ask_for_turn(run, frozenset(), 1)


def test_turns_on_tracked_states_are_left_out_where_steps_overlap() -> None:
    run: Any = begun(repeat(IDLE)).run
    avoid = frozenset({ServerExclusion.OVERLAPPED_STATE})
    for overlaps, buffered, sent in ((True, True, False), (True, False, True), (False, True, True)):
        run.engine.overlaps, run.engine.shape["buffered"] = overlaps, buffered
        assert may_ask_for_turn(run, avoid, 1) is sent, (overlaps, buffered)
        assert may_ask_for_turn(run, frozenset(), 1)


def test_new_weights_are_loaded_on_a_paused_server_unless_that_stops_it() -> None:
    run: Any = begun(repeat(IDLE)).run
    avoid = frozenset({ServerExclusion.UPDATE_WHILE_PAUSED})
    assert not may_update_weights(run, frozenset()), "a request is on its way"
    run.paused = True
    assert may_update_weights(run, frozenset())
    assert not may_update_weights(run, avoid)
    run.coming.clear()
    assert may_update_weights(run, avoid)


def test_priorities_are_said_unless_sessions_are_preempted() -> None:
    run: Any = begun(repeat(IDLE)).run
    assert may_say_priority(run, frozenset())
    assert not may_say_priority(run, frozenset({ServerExclusion.PREEMPTED_TURN}))
    run.config = {**CONFIG, "sessions": 0}
    assert may_say_priority(run, frozenset({ServerExclusion.PREEMPTED_TURN}))


def test_a_server_makes_some_turns_before_it_gives_its_memory_back_where_it_must() -> None:
    """On a server that has nothing to do."""
    released = LEAST._replace(pick=7)
    for avoid, sent in (([], ["release_memory"]), ([*ServerExclusion], ["turn", "release_memory"])):
        config = {**CONFIG, "sessions": 0}
        run = ServerRun(Scripted(repeat(IDLE)), config)
        lock = LockStep(run, config)
        Client(lock.do, avoid).send(run, released)
        assert [step["op"] for step in lock.trace.steps] == sent


@pytest.mark.parametrize(
    ("paused", "settled", "avoided"),
    [
        (False, True, set()),
        (True, True, {ServerExclusion.RELEASE_AFTER_ANSWER}),
        (False, False, {ServerExclusion.RELEASE_BESIDE_COPY}),
    ],
)
def test_each_way_to_give_memory_back_is_avoided_by_itself(
    paused: bool, settled: bool, avoided: set[ServerExclusion]
) -> None:
    run: Any = SimpleNamespace(quiet=True, paused=paused, settled=settled)
    assert {one for one in ServerExclusion if not may_release_memory(run, {one})} == avoided
    client = Client(lambda *_, **__: None, {*ServerExclusion})
    assert client._may(may_release_memory, run) == (not avoided)
    assert dict(client.avoided) == dict.fromkeys(avoided, 1)
    run.quiet = False
    assert not client._may(may_release_memory, run)
    assert dict(client.avoided) == dict.fromkeys(avoided, 1), "nobody may ask for it now"


@pytest.mark.parametrize("avoid", [[], [ServerExclusion.EMPTY_TURN]], ids=["any", "avoided"])
def test_a_client_sends_turns_that_add_nothing_and_turns_that_want_nothing(avoid: list[ServerExclusion]) -> None:
    """Of a session alone; one whose text is empty adds a token, since an input has one."""
    lock = begun(repeat(IDLE))
    lock.do("open", session=1)
    run = lock.run
    assert isinstance(run, ServerRun)
    client = Client(lock.do, avoid, 1)
    sent: list[tuple[int, int]] = []
    for pick, texts in ((ADDS_NOTHING, {}), (ADDS_NOTHING, {1: [5]}), (WANTS_NOTHING[0], {1: [5]}), (8, {1: [5]})):
        run.calls.texts = dict(texts)
        client.send(run, LEAST._replace(pick=pick, answer=3))
        sent.append((len(lock.trace.steps[-1]["tokens"]), lock.trace.steps[-1]["longest"]))
    assert sent == ([(1, 3)] * 4 if avoid else [(1, 3), (0, 3), (1, 0), (1, 3)])
    assert dict(client.avoided) == dict.fromkeys(avoid, 2)


def test_what_no_client_sends_is_misuse() -> None:
    lock = begun(repeat(IDLE))
    for wrong in (
        {"op": "generate", "request": 0, "tokens": [1], "longest": 1},
        {"op": "generate", "request": 1, "tokens": [], "longest": 1},
        {"op": "open", "session": 2},
        {"op": "resume_memory"},
        {"op": "turn", "times": 0},
        {"op": "turn", "times": MOST_TURNS + 1},
    ):
        with pytest.raises(Misuse):
            lock.do(**wrong)
    lock.do("pause", mode="retract")
    with pytest.raises(Misuse, match="paused"):
        lock.do("generate", request=1, tokens=[1], longest=1)
    lock.do("resume")
    lock.do("generate", request=1, tokens=[1], longest=1)
    lock.do("generate", request=2, tokens=[1], longest=0)
    lock.do("generate", request=3, tokens=[], longest=1, session=1)
