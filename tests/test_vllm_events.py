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
from test_vllm_runs import answer

from conformance.driver.protocol import EngineError
from conformance.engines.vllm import RELEASES
from conformance.engines.vllm.download import WHEELS
from conformance.stems.block_cache.rules import ATTENTION, STATES, WINDOWED, _plainer

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


# Which groups of layers the release makes of a model where its configuration turns the hybrid manager off, which kinds
# of groups the adapter lets a scheduler have with KV events, and which without.
GROUPS = """
    from types import SimpleNamespace
    import torch
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec
    from test_vllm_block_sizes import rules_config

    layer = {"block_size": 4, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    LAYERS = {
        "full": FullAttentionSpec(**layer),
        "window": SlidingWindowSpec(**layer, sliding_window=6),
        "mamba": MambaSpec(block_size=4, shapes=((2,),), dtypes=(torch.float32,)),
    }
    off = SimpleNamespace(scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=True))

    def planned(*kinds):
        try:
            return len(get_kv_cache_groups(off, {kind: LAYERS[kind] for kind in kinds}))
        except ValueError:
            return "refused"

    def made(events, *kinds):
        layers = [{"kind": kind, **({"window": 6} if kind == "window" else {})} for kind in kinds]
        try:
            makers["block_cache"]({**rules_config(), "layers": layers, "events": events})
        except Unsupported:
            return False
        return True

    MODELS = (["full"], ["window"], ["full", "window"], ["full", "mamba"])
    print(json.dumps([[planned(*kinds), made(True, *kinds), made(False, *kinds)] for kinds in MODELS]))
"""


@pytest.mark.engine
@pytest.mark.parametrize(("release", "of_groups"), [("0.15.1", False), ("0.18.1", False), ("0.20.2", True)])
def test_a_server_of_an_older_release_publishes_events_of_one_group(release: str, of_groups: bool) -> None:
    """Its configuration turns the hybrid manager off with KV events (``VllmConfig.__post_init__``)."""
    one = [1, True, True]
    assert answer(release, GROUPS) == [one, one, [1, of_groups, True], ["refused", of_groups, True]]


def test_where_groups_publish_nothing_they_are_drawn_without_events() -> None:
    """With what else may be left out they are tried again."""
    kind: Any = {"layers": [ATTENTION, {**STATES, "checkpoint": 1}], "events": True, "steps_in_flight": 3}
    plain = {**kind, "layers": [ATTENTION, STATES]}
    wanted = [
        each for one in (kind, plain, {**plain, "steps_in_flight": 2}) for each in (one, {**one, "events": False})
    ]
    assert list(_plainer([kind])) == wanted
    alone = [{"layers": [layer], "events": True, "steps_in_flight": 2} for layer in (ATTENTION, WINDOWED)]
    assert list(_plainer(alone)) == alone


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
