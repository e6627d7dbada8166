"""From every lawful state calls lead to rest: the calls are made on small states, and wrong ones are not proved."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache as cache_of
from typing import Any

import pytest
import z3

from proofs import obligations, prover
from proofs.draining import COMES_BACK, GOES_ON, GRANTED, LOWERS, claim_names
from proofs.explore import along, paths
from proofs.registry import hints_of
from spec import cache
from spec.block_cache import least
from spec.block_pool_state import some_free
from spec.cache_drain import DRAIN, RETURNS, at_rest
from spec.cache_state import CacheState
from spec.finite import Seq
from spec.lengths import Length, formed, in_pages, touched
from spec.lock_ref_state import path
from spec.logic import Descent, Measure, Number, Truth, ite, no
from spec.pool import some_open
from spec.session_trim_state import LEAVING, RUNNING, allocated, full_pool, is_row, swa_pool

HINTS = hints_of("cache")


@cache_of
def states() -> list[CacheState]:
    """Lawful states: the first that calls lead to, and those on the way to each transition with a route."""
    transitions = HINTS.stem.transitions
    found = [way[-1].after for way in itertools.islice(paths(HINTS, transitions), 700)]
    for name, route in HINTS.routes.items():
        ways = along(HINTS, route, name.split()[0], transitions)
        found += [way[-1].after for way in deque(ways, maxlen=12)]
    return found


def members(descent: Descent, st: CacheState) -> Iterator[int]:
    """The members for which the call can be made."""
    every = [descent.pick(st)] if descent.pick else descent.members(st).items()  # type: ignore[misc]
    yield from (member for member in every if descent.when(st, member))


def sizes(measure: Measure, st: CacheState) -> list[int]:
    """The measure at each member."""
    every = [0] if measure.domain is None else measure.domain(st).items()
    return [measure.value(st, member) for member in every]


@pytest.mark.soak  # drains are proved, too
def test_every_state_comes_to_rest_and_then_everything_is_free() -> None:
    made: set[str] = set()
    for first in states():
        st = first
        while not at_rest(st):
            descent, member = next((d, m) for d in DRAIN.descents for m in members(d, st))
            step = descent.step(st, member)
            assert step.granted, (descent.name, member)
            before, after = ([n for m in DRAIN.measures for n in sizes(m, s)] for s in (st, step.then))
            assert all(a <= b for a, b in zip(after, before, strict=True))
            assert min(after) >= 0
            assert sum(after) < sum(before)
            made.add(descent.name)
            st = step.then
        assert full_pool(st.rows).available == full_pool(st.rows).pages.size
        assert swa_pool(st.rows).available == swa_pool(st.rows).pages.size
        assert st.states.available == st.states.slots.size
    assert made == {descent.name for descent in DRAIN.descents}, "each call is made from some state"


def others_end(st: CacheState, row: int) -> CacheState:
    """The state after every other request and session ended and the tree lost every leaf that nobody holds."""
    while True:
        calls = [(d, m) for d in DRAIN.descents for m in members(d, st) if d.name != "finish" or m != row]
        if calls:
            descent, member = calls[0]
            st = descent.step(st, member).then
            continue
        evicted = [move for n in st.tree.nodes.items() for move in evictions(st, n)]
        if not evicted:
            return st
        st = evicted[0]


def evictions(st: CacheState, node: int) -> Iterator[CacheState]:
    """The states after the node, its SWA part or its mamba state was evicted."""
    for evict in (cache.evict_leaf, HINTS.stem.transitions["evict_leaf_and_state"], cache.evict_swa):
        if st.tree.nodes.has(node) and (step := evict(st, node)).granted:
            yield step.then


@pytest.mark.soak
def test_a_request_that_is_alone_gets_every_page_there_is() -> None:
    """So every request that is admitted ends, if the pools hold one of the greatest length and its window."""
    grew, refused = 0, 0
    for first in states():
        for row in (r for r in range(first.rows.limit) if first.rows.phase(r) == RUNNING):
            grew, last = grew + 1, grown(others_end(first, row), row)
            if last is not None:
                refused += 1
                full, swa = full_pool(last.rows), swa_pool(last.rows)
                mine = {row, *(last.rows.limit + n for n in path(last.tree, last.tree.node(last.handle(row))))}
                assert any(all(pool.owner(p) in mine for p in pool.pages.items()) for pool in (full, swa))
    assert (grew > 100, refused > 5) == (True, True)


def grown(st: CacheState, row: int) -> CacheState | None:
    """The state in which the row cannot grow since a pool has no page left; ``None`` if the row is full before."""
    while True:
        pages = [some_open(pool, 1) for pool in (full_pool(st.rows), swa_pool(st.rows))]
        now = allocated(st.rows, row)
        step = cache.decode(st, row, *(pages if now.rest == 0 else [Seq(), Seq()]))
        if not step.kept:
            return None
        if not step.granted:
            moved = cache.slide(st, row, st.rows.cursor(row) + 1)
            if not moved.granted:
                return st
            step = moved
        st = step.then


FEW = prover.SolverLimits(z3=4_000_000, cvc5=60_000)


def from_few(claim: obligations.Formula) -> list[Any]:
    """The assertions that are satisfiable where the claim does not follow from the laws that the hints name for it."""
    assert claim.core_facts is not None
    return [*claim.core_facts, z3.Not(claim.goal)]


@pytest.mark.parametrize(
    ("wrong", "claim"),
    [
        ("without", GOES_ON),
        ("any_time", GRANTED.format("close")),
        ("any_time", GRANTED.format("evict_leaf")),
        ("unmeasured", LOWERS.format("finish")),
        ("level", LOWERS.format("finish")),
    ],
)
def test_a_wrong_way_to_rest_is_not_proved(wrong: str, claim: str) -> None:
    calls, level = {descent.name: descent for descent in DRAIN.descents}, Measure(lambda *_: 0)
    ways = {
        "without": tuple(d for d in DRAIN.descents if d.name != "close_states"),
        "any_time": tuple(d._replace(when=lambda *_: True) for d in DRAIN.descents),
        "unmeasured": (calls["finish"]._replace(lowers=DRAIN.measures[2]),),
        "level": (calls["finish"]._replace(lowers=level),),
    }
    hints = replace(HINTS, drain=replace(DRAIN, descents=ways[wrong], measures=(*DRAIN.measures, level)))
    wanted = next(formula for formula in obligations.drains(hints) if formula.invariant == claim)
    right = next(formula for formula in obligations.drains(HINTS) if formula.invariant == claim)
    assert "unsat" not in prover.solve(from_few(wanted), FEW)
    assert "unsat" in prover.solve(from_few(right), FEW)


@pytest.mark.soak
def test_a_call_that_makes_another_measure_greater_is_no_way_to_rest() -> None:
    """Two calls that take turns could go on for ever: each makes a measure smaller that the other makes greater."""
    finish = next(descent for descent in DRAIN.descents if descent.name == "finish")
    leaving = Measure(lambda st, row: ite(st.rows.phase(row) == LEAVING, 1, 0), finish.lowers.domain)

    def proved(*measures: Measure) -> bool:
        hints = replace(HINTS, drain=replace(DRAIN, descents=(finish,), measures=measures))
        wanted = next(f for f in obligations.drains(hints) if f.invariant == LOWERS.format("finish"))
        return "unsat" in prover.solve(wanted.negated, prover.SolverLimits(z3=4_000_000, cvc5=60_000))

    assert proved(*DRAIN.measures)
    assert not proved(*DRAIN.measures, leaving)


def returning(stem: str, asks: Callable[..., Truth] | None = None) -> dict[str, obligations.Formula]:
    """The claims of a stem about who comes at rest, with other requests in the place of those that the stem names."""
    hints = hints_of(stem)
    assert hints.drain is not None
    assert hints.drain.returns is not None
    if asks is not None:
        hints = replace(hints, drain=replace(hints.drain, returns=replace(hints.drain.returns, asks=asks)))
    assert hints.drain is not None
    names = {*claim_names(hints.drain, COMES_BACK)}
    return {found.invariant: found for found in obligations.drains(hints) if found.invariant in names}


@pytest.mark.parametrize("stem", ["cache", "block_cache"])
def test_a_request_that_comes_back_is_one_that_can_be(stem: str) -> None:
    """The claims speak of some request: what they assume is no contradiction."""
    for claim in returning(stem).values():
        assert claim.core_facts is not None
        assert "unsat" not in prover.solve(claim.core_facts, FEW)


@pytest.mark.parametrize(
    ("stem", "claim"), [("cache", "return_extend_is_granted"), ("block_cache", "return_allocate_is_granted")]
)
def test_a_request_that_does_not_fit_into_the_pool_is_not_said_to_come_back(stem: str, claim: str) -> None:
    def longer(st: Any, row: Number, story: Number, to: Length, session: Number = 0) -> Truth:
        if stem == "cache":
            room = full_pool(st.rows).indices.has(touched(to)) & (session == 0)
            return is_row(st.rows, row) & st.contents.stories.has(story) & no(st.tree.stateful) & room
        room = st.pool.indices.has(touched(to) - 1) & st.pool.rows.has(row)
        return room & st.pool.stories.has(story) & formed(to, st.block_size(row))

    assert "unsat" not in prover.solve(from_few(returning(stem, longer)[claim]), FEW)


def test_where_nothing_is_in_use_each_row_that_fits_gets_its_blocks() -> None:
    """Where no block is held: a row of block tables is admitted and gets its blocks, with every length that fits."""
    drain = hints_of("block_cache").drain
    assert drain is not None
    assert drain.returns is not None
    admit, allocate = drain.returns.calls
    served = refused = 0
    for st in hints_of("block_cache").small():
        row, story = min(st.pool.rows.items()), min(st.pool.stories.items())
        for tokens in range(1, (st.pool.blocks.size + 2) * st.block_size(row)):
            to = in_pages(tokens, st.block_size(row))
            begun = admit(st, row, story, 0, Seq())
            assert begun.granted
            need = least(begun.then, row, to)
            step = allocate(begun.then, row, to, touched(to) - need, some_free(st.pool, need))
            if drain.returns.asks(st, row, story, to):
                assert step.granted
                served += 1
            else:
                assert not step.granted
                refused += 1
    assert (served > 2, refused > 2) == (True, True)


def test_where_nothing_is_in_use_each_request_that_fits_gets_its_pages() -> None:
    """On small states at rest: the calls are made, with every length that ``has_room`` allows."""
    served = refused = 0
    admit, extend = RETURNS.calls
    for st in HINTS.small():
        full, swa = full_pool(st.rows), swa_pool(st.rows)
        for tokens in range(1, (full.pages.size + 1) * full.page_size + 1):
            to = in_pages(tokens, full.page_size)
            begun = admit(st, 0, 0, 0, 0, 0, 0, False, Seq())
            assert begun.granted
            need_swa = touched(to) if st.rows.pools.windowed else 0
            step = extend(begun.then, 0, to, some_open(full, touched(to)), some_open(swa, need_swa))
            if RETURNS.asks(st, 0, 0, 0, to):
                assert (step.granted, st.tree.stateful) == (True, False)
                served += 1
            elif not st.tree.stateful:
                assert not step.granted
                refused += 1
    assert (served > 2, refused > 2) == (True, True)
