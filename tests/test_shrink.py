"""A failing run is made small: what its arguments count is read off the operations, and the law that breaks stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from random import Random
from typing import Any

import pytest
from driven import Variant
from shrunk_beside import drawn

from conformance.driver.forking import forked
from conformance.driver.lockstep import Calls, Finding, Law, LockStep, Operation
from conformance.driver.operations import KEY, TOKENS, KeyTokens, Tokens, kinds_of
from conformance.driver.protocol import Json, Misuse, Unsupported
from conformance.driver.shadow import Shadow
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.planted.faults.known_bugs import ALL
from conformance.search import check
from conformance.stems.allocator.protocol import AllocatorSnapshot
from conformance.stems.session_trim.protocol import SessionTrimSnapshot
from conformance.stems.stem_registry import STEMS, start
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot
from conformance.traces.shrink import Shrinker, any_run, shrink
from spec import allocator

DRAWN_SLOWLY = ("block_cache", "cache", "host_tier", "mamba_slots", "session_trim", "swa_mapping")
TRIES = 40  # operations that are tried between those of a run


def test_what_an_argument_counts_is_read_off_its_annotation() -> None:
    def operation(request: int, more: Tokens, tokens: KeyTokens, sent: Tokens | None = None, session: int = 0) -> Calls:
        del request, more, tokens, sent, session
        yield None

    kinds = {"request": "", "more": TOKENS, "tokens": KEY, "sent": TOKENS, "session": ""}
    assert kinds_of({"go": operation}) == {"go": kinds}


def test_the_operations_of_requests_say_what_counts_tokens() -> None:
    kinds = kinds_of(STEMS["session_trim"].run(Nothing(), CONFIG).operations)
    counts = {(op, name) for op, known in kinds.items() for name, kind in known.items() if kind == TOKENS}
    assert counts == {
        *((op, name) for op in ("look", "admit", "admit_tail", "interrupted_admit") for name in ("more", "fork")),
        *(("reserve", "more"), ("overlapping_turn", "more"), ("commit", "count"), ("roll_back", "count")),
        ("checkpoint", "upto"),
        *(("finish", "sent"), ("retract", "sent"), ("evict", "full"), ("evict", "swa")),
    }


class Nothing:
    """An engine that shows empty pools and rows."""

    lacks: Collection[str] = ()

    def snapshot(self) -> Any:
        """No rows."""
        pool = AllocatorSnapshot([1, 2, 3], [], 6)
        return SessionTrimSnapshot({}, {}, [0, 1], SwaMappingSnapshot(pool, pool, [0] * 8))


CONFIG: Json = {"page_size": 2, "size": 3, "size_swa": 3, "rows": 2, "sessions": 1, "window": 2, "need_sort": False}


class Counting:
    """A run whose operations count tokens; ``break_at``: the sum at which each law breaks, the first one first."""

    def __init__(self, config: Json, break_at: dict[str, int]) -> None:
        self.law = Law(allocator.stem, allocator.initial(1, 1, 1, False))
        self.config, self.break_at, self.sum = config, break_at, 0
        self.lacks: Collection[str] = ()
        self.engine: Any = None
        self.seen: Any = None
        self.shadow = Shadow()
        self.operations: Mapping[str, Operation] = {"look": self.look, "add": self.add, "name": self.name}

    def look(self, request: int, more: Tokens = 0) -> Calls:
        """A request asks, and nothing comes of it."""
        del request, more
        yield None

    def add(self, request: int, more: Tokens = 0, chunk: int = 0) -> Calls:
        """So many tokens."""
        del request, chunk
        self.sum += more
        self._judge()
        yield None

    def name(self, tokens: KeyTokens) -> Calls:
        """So many tokens of a key."""
        self.sum += len(tokens)
        self._judge()
        yield None

    def _judge(self) -> None:
        pages = self.sum // self.config["page_size"]
        for law, most in self.break_at.items():
            if pages >= most:
                raise Finding(law, "It holds.", f"{self.sum} tokens")

    def snapshot(self) -> None:
        """Nothing."""

    def follow(self) -> None:
        """Nothing."""

    def project(self) -> Any:
        """The law's own state."""
        return self.law.state

    def hidden(self, change: Any) -> bool:
        """Nothing."""
        del change
        return False

    def beyond_state(self) -> list[str]:
        """Nothing."""
        return []

    def judge(self) -> None:
        """Nothing."""


def shrunk(steps: list[Json], page_size: int = 1, **break_at: int) -> tuple[Finding, Trace]:
    """The smallest run that a search finds."""

    def start(config: Json) -> LockStep:
        return LockStep(Counting(config, break_at), config)

    lock = start({"page_size": page_size, "size": 3})
    for step in steps[:-1]:
        lock.do(**step)
    with pytest.raises(Finding) as caught:
        lock.do(**steps[-1])
    return shrink(caught.value, lock.trace, start)


def test_pages_get_smaller_and_numbers_of_tokens_with_them() -> None:
    _, trace = shrunk([{"op": "add", "request": 0, "more": 12, "chunk": 3}], page_size=4, law=3)
    assert trace.config == {"page_size": 1, "size": 1}
    assert trace.steps == [{"op": "add", "request": 0, "more": 3, "chunk": 0}]


def test_operations_that_differ_in_a_number_of_tokens_alone_become_one() -> None:
    _, trace = shrunk([{"op": "add", "request": 1, "more": 2}, {"op": "add", "request": 1, "more": 2}], law=4)
    assert trace.steps == [{"op": "add", "request": 0, "more": 4}]


def test_what_counts_no_tokens_is_not_added_up() -> None:
    steps = [{"op": "add", "request": 1, "more": 2, "chunk": 1}, {"op": "add", "request": 2, "more": 2, "chunk": 2}]
    _, trace = shrunk(steps, law=4)
    assert sum(step["more"] for step in trace.steps) == 4
    assert all(step["request"] == 0 and step["chunk"] == 0 for step in trace.steps)


def test_a_look_becomes_part_of_the_operation_that_follows() -> None:
    """Alone each of them is needed: the look gives the number of tokens."""
    trace = Trace("allocator", {"page_size": 1}, [{"op": "look", "request": 0, "more": 4}, {"op": "add", "request": 0}])
    made = Shrinker(Finding("law", "", ""), lambda config: LockStep(Counting(config, {}), config), trace, any_run)
    assert [t.steps for t in made._merged(trace)] == [[{"op": "add", "request": 0, "more": 4}]]


def test_requests_that_do_not_matter_are_left_out_many_at_a_time() -> None:
    steps = [{"op": "look", "request": n, "more": 1} for n in range(1, 65)] + [{"op": "add", "request": 0, "more": 4}]
    trace, tries = Trace("allocator", {"page_size": 1, "size": 3}, steps), list[int]()

    def start(config: Json) -> LockStep:
        return LockStep(Counting(config, {"law": 4}), config)

    found = Finding("law", "It holds.", "4 tokens")
    made = Shrinker(found, start, trace, any_run, before=lambda: tries.append(1))
    assert made._fewer_owners((found, trace))[1].steps == steps[-1:]
    assert len(tries) <= 10


def test_keys_get_shorter_and_keep_their_tokens() -> None:
    _, trace = shrunk([{"op": "name", "tokens": [7, 8, 9, 10]}], law=2)
    assert trace.steps == [{"op": "name", "tokens": [7, 8]}]


def test_shrinking_never_slips_to_another_law() -> None:
    """Smaller runs would break the second law, and are left alone."""
    finding, trace = shrunk([{"op": "add", "request": 0, "more": 9}], first=6, second=2)
    assert finding.law == "first"
    assert trace.steps == [{"op": "add", "request": 0, "more": 6}]


@pytest.mark.parametrize(
    "stem",
    [pytest.param(s, marks=pytest.mark.soak) if s in DRAWN_SLOWLY else s for s in sorted({f.stem for f in ALL})],
)
def test_an_operation_that_cannot_be_sent_leaves_the_run_as_it_was(stem: str) -> None:
    """Other operations of a run are tried between its operations. Those that nobody may send then change nothing."""
    faults = (fault for fault in ALL if fault.stem == stem)
    fault, (finding, trace) = next((fault, found) for fault in faults if (found := drawn(fault, examples=60)))
    lock, chance, left_out = start(stem, fault.make, trace.config), Random(1), 0
    tried = Counter(chance.choices(range(len(trace.steps)), k=TRIES))
    again: Finding | None = None
    for number, step in enumerate(trace.steps):
        for other in chance.choices(trace.steps, k=tried[number]):
            if forked(partial(_is_left_out, lock, other)):
                assert not lock.does(other)
                left_out += 1
        try:
            lock.do(**step)
        except Finding as shown:
            again = shown
    assert left_out
    assert again is not None
    assert (again.law, again.detail, lock.trace.steps) == (finding.law, finding.detail, trace.steps)


def _is_left_out(lock: LockStep, step: Json) -> bool:
    try:
        return not lock.does(step)
    except (Finding, Misuse, Unsupported):
        return False


def test_a_run_in_which_the_engine_raises_an_exception_shrinks() -> None:
    def make(config: Json) -> Variant:
        def decode(*_: Any) -> None:
            raise RuntimeError("the engine is torn")

        return Variant(registry.load("ours").makers["allocator"](config), decode=decode)

    found = check.check("allocator", make, check.Search(100, seed=1))
    assert found.law == "lawful_call_is_answered"
    assert found.trace is not None
    assert [step["op"] for step in found.trace.steps] == ["decode"]
