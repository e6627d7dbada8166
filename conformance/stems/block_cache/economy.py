"""Economy of a scheduler: what it may do otherwise, since it decides policy, but wastes time or memory with. What it
wastes is a latent finding, never a violation.

Not looked at where KV cache is transferred, since a request may wait for what another server has, nor with draft layers
that have KV cache of their own, since these compute the last block again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm

from conformance.driver.lockstep import CHOICE, Finding, Law
from conformance.driver.protocol import Json
from conformance.stems.block_cache.jobs import first_read
from spec.block_cache import BlockCacheState, has_states
from spec.block_pool_state import NO_HASH, of_row
from spec.in_flight import NO_JOB

HIT = "hit_is_as_long_as_what_is_cached"
HIT_SENTENCE = (
    "A request that is admitted goes on after the longest beginning of its text that the prefix cache has, so that "
    "nothing is computed twice; its last token is computed in any case."
)
GIVES = "preemption_gives_something_back"
GIVES_SENTENCE = (
    "Where a step preempts requests, at least one of their blocks is held by nobody else, so that others get it."
)

STATES = "request_keeps_states_in_use"
STATES_SENTENCE = (
    "When a pass of a request is launched, the request holds no state from before the one that this pass goes on from, "
    "but for states that passes in flight use; it goes on from the last one alone."
)


def longest(
    st: BlockCacheState, rows: Sequence[int], stories: Sequence[int], most: int, hashes: Mapping[int, int]
) -> int:
    """How many tokens of a text the prefix cache has, at most ``most``, so that each row of the request could go on
    behind them: in each group whole blocks. ``rows``, ``stories``: of the request, one for each group. ``hashes``:
    those that blocks had when the call began; a hash that came since does not count, since what it stands for may not
    be computed yet.
    """
    cached = {
        (home, st.pool.index(block))
        for block, known in hashes.items()
        if known == st.pool.hash(block) == st.pool.tells(stories[home := st.pool.home(block)], st.pool.index(block))
    }
    step = lcm(*(st.block_size(row) for row in rows))
    fits = (n for n in range(most // step * step, 0, -step) if all(_goes_on(st, row, n, cached) for row in rows))
    return next(fits, 0)


def _goes_on(st: BlockCacheState, row: int, tokens: int, cached: set[tuple[int, int]]) -> bool:
    """The row could go on behind so many tokens with what is cached."""
    group, places = st.pool.group(row), tokens // st.block_size(row)
    last = places - 1
    first = last if has_states(st, row) else min(last, first_read(st, row, tokens))
    return all((group, place) in cached for place in range(first, places))


@dataclass
class Economy:
    """What a scheduler wastes in a run."""

    law: Law
    hashes: dict[int, int] = field(default_factory=dict)
    had: dict[int, int] = field(default_factory=dict)  # by request that was admitted in this call, in tokens

    @classmethod
    def of(cls, law: Law, config: Json) -> Economy | None:
        """``None`` where it is not looked at."""
        apart = config.get("transfers", False) or config["eagle"] or not config["caching"]
        return None if apart else cls(law)

    def begins(self) -> None:
        """A call of the scheduler begins."""
        pool = self.law.state.pool
        self.hashes = {b: known for b in pool.blocks.items() if (known := pool.hash(b)) != NO_HASH}
        self.had.clear()

    def admits(self, request: int, rows: Sequence[int], stories: Sequence[int], tokens: int) -> None:
        """A request gets its rows, and nothing is done for it before. ``tokens``: of its text so far."""
        self.had[request] = longest(self.law.state, rows, stories, max(0, tokens - 1), self.hashes)

    def launches(self, request: int, start: int) -> None:
        """A pass of a request that was admitted in this call begins at the token ``start``."""
        if start < self.had.get(request, 0):
            detail = f"request {request} goes on after {start} tokens, and {self.had[request]} are cached"
            self.law.report(Finding(HIT, HIT_SENTENCE, detail, latent=True, kind=CHOICE))

    def goes_on(self, request: int, rows: Sequence[int], start: int) -> None:
        """A pass of a request begins at the token ``start``; its ``rows``, one a group, have their blocks for it."""
        st = self.law.state
        flight = st.flight
        for row in (row for row in rows if has_states(st, row)):
            last = (start - 1) // st.block_size(row)
            jobs = [job for job in flight.jobs.items() if flight.row(job) == row and flight.kind(job) != NO_JOB]
            early = [block for block in of_row(st.pool, row) if st.pool.index(block) < last]
            if idle := [block for block in early if not any(flight.uses(job, block) for job in jobs)]:
                detail = f"request {request} goes on after {start} tokens, and holds {len(idle)} earlier states"
                self.law.report(Finding(STATES, STATES_SENTENCE, detail, latent=True, kind=CHOICE))

    def preempts(self, requests: Sequence[int], rows: Sequence[int]) -> None:
        """A step has preempted these requests, and their rows have their blocks still."""
        pool = self.law.state.pool
        held = Counter(block for row in rows for block in of_row(pool, row))
        if requests and not any(pool.refs(block) <= times for block, times in held.items()):
            detail = f"requests {[*requests]} are preempted, and others hold each of their {len(held)} blocks"
            self.law.report(Finding(GIVES, GIVES_SENTENCE, detail, latent=True, kind=CHOICE))
