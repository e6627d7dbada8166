"""What a scheduler of blocks wastes is a latent finding: small states of the law, with one or two groups of layers."""

from __future__ import annotations

import pytest

from conformance.driver.lockstep import Finding, Law
from conformance.stems.block_cache.economy import GIVES, HIT, STATES, Economy, longest
from proofs.registry import hints_of
from spec import block_cache, block_pool
from spec.finite import Seq, Set
from spec.lengths import Length

SIZE = 4  # tokens of a block


def law_of(windows: list[int | None], states: list[bool]) -> Law:
    """The law on a pool of 8 blocks, in which all requests have one text. Row ``r`` is one of group ``r % groups``."""
    pool = block_pool.initial(8, 2 * len(windows), 4, groups=len(windows))
    return Law(
        hints_of("block_cache").stem, block_cache.initial(pool, [SIZE] * len(windows), windows, states), strict=False
    )


def filled(law: Law, row: int, blocks: list[int], named: set[int]) -> None:
    """A row computes so many blocks, of which some get a hash."""
    law.engine_step("admit", row, 0, 0, Seq())
    law.engine_step("allocate", row, Length(len(blocks), 0), 0, Seq(blocks))
    law.engine_step("compute", row, Length(len(blocks), 0), Set(named))


def economy_of(law: Law) -> Economy:
    economy = Economy.of(law, {"block_size": SIZE, "eagle": False, "caching": True})
    assert economy is not None
    economy.begins()
    return economy


def told(law: Law) -> list[str]:
    return [finding.law for finding in law.latents]


def test_a_hit_goes_as_far_as_blocks_are_cached() -> None:
    law = law_of([None], [False])
    filled(law, 1, [1, 2, 3], {1, 2})
    economy = economy_of(law)
    economy.admits(2, [2], [0], tokens=16)
    economy.launches(2, start=2 * SIZE)
    assert told(law) == []
    economy.launches(2, start=SIZE)
    assert told(law) == [HIT]
    assert "goes on after 4 tokens, and 8 are cached" in law.latents[0].detail


def test_the_last_token_is_computed_in_any_case() -> None:
    law = law_of([None], [False])
    filled(law, 1, [1, 2], {1, 2})
    economy = economy_of(law)
    for tokens, blocks in ((8, 1), (9, 2), (1, 0)):
        economy.admits(2, [2], [0], tokens)
        assert economy.had[2] == blocks * SIZE


def test_a_hash_of_this_call_does_not_count() -> None:
    law = law_of([None], [False])
    economy = economy_of(law)
    filled(law, 1, [1, 2], {1, 2})
    economy.admits(2, [2], [0], tokens=16)
    assert economy.had[2] == 0


@pytest.mark.parametrize(
    ("windows", "states", "cached", "blocks"),
    [
        ([None, 5], [False, False], [{1, 2, 3}, {5, 6}], 3),  # the window before the twelfth token is two blocks
        ([None, 5], [False, False], [{1, 2, 3}, {6}], 0),
        ([None, None], [False, True], [{1, 2, 3}, {5}], 2),  # the state at the end of the second block
        ([None, None], [False, True], [{1}, {5}], 0),  # there is a state, and no KV cache up to it
    ],
)
def test_each_group_has_what_it_needs(
    windows: list[int | None], states: list[bool], cached: list[set[int]], blocks: int
) -> None:
    """Group 0 has the rows 2 and 4, group 1 the rows 1 and 3. The blocks 1 to 3 stand in group 0, and 4 to 6 in 1."""
    law = law_of(windows, states)
    filled(law, 2, [1, 2, 3], cached[0])
    filled(law, 1, [4, 5, 6], cached[1])
    pool = law.state.pool
    hashes = {block: pool.hash(block) for block in pool.blocks.items() if pool.hash(block)}
    assert longest(law.state, [4, 3], [0, 0], 3 * SIZE, hashes) == blocks * SIZE


def test_a_preemption_that_gives_nothing_back_is_told() -> None:
    law = law_of([None], [False])
    filled(law, 1, [1], {1})
    law.engine_step("admit", 2, 0, 0, Seq([1]))
    economy_of(law).preempts([], [])
    economy_of(law).preempts([7, 8], [1, 2])  # together the two give the block back
    assert told(law) == []
    economy_of(law).preempts([7], [2])
    assert told(law) == [GIVES]
    law.engine_step("allocate", 2, Length(2, 0), 1, Seq([2]))
    law.latents.clear()
    economy_of(law).preempts([7], [2])
    assert told(law) == []


def test_a_state_that_nothing_goes_on_from_is_told() -> None:
    law = law_of([None, None], [False, True])
    filled(law, 2, [1, 2, 3], {1, 2})
    filled(law, 1, [4, 5, 6], {4, 5})
    economy = economy_of(law)
    economy.goes_on(7, [2, 1], start=1)  # the pass goes on from the state at the end of the first token
    assert told(law) == []
    law.engine_step("launch", 1, 1, 0)
    economy.goes_on(7, [2, 1], start=3 * SIZE)  # another pass in flight uses the states before the last one
    assert told(law) == []
    law.caller_step("end", 1)
    economy.goes_on(7, [2, 1], start=3 * SIZE)
    assert told(law) == [STATES]
    assert "goes on after 12 tokens, and holds 2 earlier states" in law.latents[0].detail
    law.latents.clear()
    law.engine_step("slide", 1, 0, Set({4, 5}))
    economy.goes_on(7, [2, 1], start=3 * SIZE)
    assert told(law) == []


def test_waste_ends_a_strict_run() -> None:
    law = law_of([None], [False])
    law.strict = True
    with pytest.raises(Finding, match=GIVES):
        economy_of(law).preempts([7], [2])


@pytest.mark.parametrize("apart", [{"transfers": True}, {"eagle": True}, {"caching": False}])
def test_where_waste_is_not_looked_for(apart: dict[str, bool]) -> None:
    config = {"block_size": SIZE, "eagle": False, "caching": True}
    assert Economy.of(law_of([None], [False]), config | apart) is None
