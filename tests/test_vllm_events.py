"""The KV events of real releases: runs of a scheduler keep the law, and a wrong stream of one is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from driven import sampled

from conformance.driver.protocol import EngineError
from conformance.engines.vllm import RELEASES
from conformance.engines.vllm.download import WHEELS

# Drawn runs. With a wrong publisher, events are lost, or name a parent that there never was.
DRIVE = """
    import json, sys
    from dataclasses import replace
    from conformance.stems.exclusions import exclusions
    from conformance.traces import known
    from conformance.search.check import Search, draw
    from conformance.engines import registry
    from conformance.engines.vllm import PLUGIN
    from conformance.driver.lockstep import Finding
    from conformance.stems.machine import Sink

    make = registry.load("vllm", release=sys.argv[1]).makers["block_cache"]
    listed = known.of_release(PLUGIN.folder, sys.argv[1])  # no run ends at a difference that is not of the events
    search = Search(examples=10, seed=3, exclude=exclusions(k.exclude for k in listed if k.exclude))

    def tag(event):
        return event["type"] if isinstance(event, dict) else event[0]

    def orphaned(event):
        if tag(event) != "BlockStored":
            return event
        return {**event, "parent_block_hash": 7} if isinstance(event, dict) else [*event[:2], 7, *event[3:]]

    WRONG = {
        "right": lambda events: events,
        "loses what is stored": lambda events: [e for e in events if tag(e) != "BlockStored"],
        "loses removals": lambda events: [e for e in events if tag(e) != "BlockRemoved"],
        "loses clears": lambda events: [e for e in events if tag(e) != "AllBlocksCleared"],
        "has no such parents": lambda events: [orphaned(e) for e in events],
    }

    def law(wrong):
        count = 0

        def made(config):
            engine = make(config)
            said = engine.published

            def told():
                nonlocal count
                found = said()
                if found is None:
                    return None
                count += len(found.events)
                return replace(found, events=wrong(found.events))

            engine.published = told
            return engine

        try:
            draw("block_cache", made, Sink(), search)
        except Finding as finding:  # not made smaller: which law breaks is all that is asked
            return finding.law
        return count

    print(json.dumps({name: law(wrong) for name, wrong in WRONG.items()}))
"""


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize("release", sampled([RELEASES[-1], "0.18.1"], 2))
def test_a_release_keeps_the_law_and_a_wrong_stream_of_it_is_found(release: str) -> None:
    try:
        WHEELS.release(release)
    except EngineError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-c", textwrap.dedent(DRIVE), release]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ})
    assert ran.returncode == 0, ran.stderr
    said: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    assert said.pop("right") > 100
    assert said == {
        "loses what is stored": "believes_what_is_held",
        "loses removals": "believes_what_is_held",
        "loses clears": "believes_what_is_held",
        "has no such parents": "parent_is_believed",
    }
