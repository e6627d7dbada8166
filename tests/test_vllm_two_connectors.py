"""vLLM's ``MultiConnector`` under its scheduler: KV cache from other servers beside host memory."""

from __future__ import annotations

import pytest
from test_vllm_runs import answer
from two_connectors_edits import ADDED, BUGS, HARMLESS

from conformance.engines.vllm import RELEASES

NEWEST = RELEASES[-1]
QUICK = ("first_is_always_chosen", "sends_are_not_waited_for", "each_loads_what_it_found")  # the others in `make soak`
MISSED = ("other_sees_no_blocks",)  # needs a copy that ends late, and then a load of what it has copied
FOUND = """
    import two_connectors_edits
    two_connectors_edits.main(sys.argv[1], sys.argv[2:])
"""


def found(*names: str) -> dict[str, str | None]:
    """For each edit the law that is found broken in the newest release with it."""
    answered: dict[str, str | None] = answer(NEWEST, FOUND, *names)
    return answered


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("bug", [bug for bug in {**BUGS, **ADDED} if bug not in MISSED])
def test_a_planted_bug_of_two_connectors_is_found(bug: str) -> None:
    assert found(bug)[bug] is not None


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("edit", HARMLESS)
def test_a_harmless_edit_of_two_connectors_shows_nothing(edit: str) -> None:
    assert found(edit) == {edit: None}
