"""A step in flight uses the slots that it writes until the scheduler waits for it, on the host, by whatever call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from decode_server_edits import DOES_NOT_WAIT, WAITS
from driven import NEWEST, driven

from conformance.traces import trace_files

TRACES = ("transfer_under_pass", "transfer_under_pass_of_abort")
# By edit, the law that a run of these steps finds broken; first in the release as it is.
SCRIPT = """
    import json, sys

    release, folder, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    sys.path.insert(1, folder)

    from contextlib import nullcontext

    from host_memory_edits import Edit, made

    from conformance.driver.lockstep import Finding
    from conformance.engines import registry
    from conformance.stems.stem_registry import start

    make = registry.load("sglang", release=release).makers["server"]

    def broken():
        try:
            lock = start("server", make, given["config"])
            for step in given["steps"]:
                lock.do(**step)
        except Finding as finding:
            return finding.law
        return None

    said = [broken()]
    for edit in given["edits"]:
        with made(Edit(*edit)):
            said.append(broken())
    print(json.dumps(said))
"""


@pytest.mark.engine
@pytest.mark.parametrize("name", TRACES)
def test_a_prompt_may_be_written_where_a_step_has_ended_for_which_the_scheduler_has_waited(name: str) -> None:
    trace = trace_files.load(name).trace
    edits = {**WAITS, **DOES_NOT_WAIT}
    given = json.dumps({"config": trace.config, "steps": trace.steps, "edits": [*edits.values()]})
    laws: list[Any] = driven(NEWEST, SCRIPT, str(Path(__file__).parent), given)
    expected = dict.fromkeys(WAITS) | dict.fromkeys(DOES_NOT_WAIT, "receive")
    assert dict(zip(["as it is", *edits], laws, strict=True)) == {"as it is": "receive", **expected}
