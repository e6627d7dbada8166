"""What vLLM's connectors publish of host memory: bugs of it, and what a reader may rely on."""

from __future__ import annotations

from typing import Any

import pytest
from host_events_edits import BUGS, HARMLESS
from test_vllm_runs import answer

from conformance.engines.vllm import RELEASES


def found(name: str) -> str | None:
    """The law that drawn runs of the newest release find broken with an edit."""
    script = "import host_events_edits\nhost_events_edits.main(sys.argv[1], sys.argv[2])"
    answered: dict[str, str | None] = answer(RELEASES[-1], script, name)
    return answered[name]


@pytest.mark.engine
def test_the_scene_breaks_with_each_bug_and_with_nothing_else() -> None:
    script = "import host_events_edits\nhost_events_edits.scenes(sys.argv[1])"
    laws: dict[str, Any] = answer(RELEASES[-1], script)
    assert {name for name, law in laws.items() if law is not None} == set(BUGS)
    assert laws["eviction_is_not_said"] == laws["removed_from_the_device"] == "believes_what_is_held"
    assert laws["block_is_its_own_parent"] == "one_text_for_a_hash"


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("edit", [*BUGS, *HARMLESS])
def test_drawn_runs_find_bugs_of_events_and_mind_nothing_else(edit: str) -> None:
    assert (found(edit) is None) is (edit in HARMLESS)
