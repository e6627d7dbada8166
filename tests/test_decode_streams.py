"""A step in flight uses the slots that it writes until the scheduler waits for it, on the host, by whatever call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from decode_server_edits import DOES_NOT_WAIT, RESTORES, WAITS
from driven import NEWEST, driven
from host_memory_edits import Edit
from test_sglang_decode_server import CACHES, ON_TENSORS, RETRACTS, decodes

from conformance.driver.protocol import Json
from conformance.traces import trace_files

TRACES = ("transfer_under_pass", "transfer_under_pass_of_abort")
# The law that a run of these steps finds broken, with the edits of each list.
SCRIPT = """
    import json, sys

    release, folder, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    sys.path.insert(1, folder)

    from contextlib import ExitStack

    from host_memory_edits import Edit, law_broken_by, made

    from conformance.engines import registry

    make = registry.load("sglang", release=release).makers["server"]

    said = []
    for edits in given["edits"]:
        with ExitStack() as places:
            for edit in edits:
                places.enter_context(made(Edit(*edit)))
            said.append(law_broken_by("server", make, given["config"], given["steps"]))
    print(json.dumps(said))
"""


def broken(config: Json, steps: Sequence[Json], edits: Mapping[str, Sequence[Edit]]) -> dict[str, str | None]:
    """By name, the law that a run of these steps finds broken with these edits; ``None``: none."""
    given = json.dumps({"config": config, "steps": steps, "edits": [*edits.values()]})
    laws: list[Any] = driven(NEWEST, SCRIPT, str(Path(__file__).parent), given)
    return dict(zip(edits, laws, strict=True))


@pytest.mark.engine
@pytest.mark.parametrize("name", TRACES)
def test_a_prompt_may_be_written_where_a_step_has_ended_for_which_the_scheduler_has_waited(name: str) -> None:
    trace = trace_files.load(name).trace
    edits = {"as it is": (), **{name: (edit,) for name, edit in {**WAITS, **DOES_NOT_WAIT}.items()}}
    expected = {"as it is": "receive", **dict.fromkeys(WAITS), **dict.fromkeys(DOES_NOT_WAIT, "receive")}
    assert broken(trace.config, trace.steps, edits) == expected


@pytest.mark.engine
@pytest.mark.parametrize("name", TRACES)
def test_with_the_coarse_barrier_of_the_release_the_slots_are_read_behind_the_step(name: str) -> None:
    trace = trace_files.load(name).trace
    config = {**trace.config, "environment": {"FORCE_COARSE_WAR_BARRIER": "1"}}
    assert broken(config, trace.steps, {"as it is": ()}) == {"as it is": None}


@pytest.mark.engine
@pytest.mark.parametrize("kind", [(CACHES,), ON_TENSORS])
def test_a_copy_is_loaded_behind_the_step_in_flight(kind: tuple[str, ...]) -> None:
    edits = {"as it is": (), **{name: (edit,) for name, edit in RESTORES.items()}, "both": (*RESTORES.values(),)}
    found = broken(decodes(*kind), RETRACTS, edits)
    assert found == {**dict.fromkeys(edits), "both": "receive"}
