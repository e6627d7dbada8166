"""Causes of findings in SGLang: of each a file that tells it, and a module that repairs it at run time."""

from __future__ import annotations

import json
from collections.abc import Sequence

from conformance.driver.protocol import Json
from conformance.engines.sglang.server.http import call, launch
from conformance.engines.sglang.server.scripted import Server

__all__ = ["ASSERTION", "RUNS_ALONE", "SIZES", "STANDS_IN", "TURNS", "call", "launch", "script"]

RUNS_ALONE = True  # a program loads the release itself
TURNS = "steps of the loop"  # what one round of a scheduler is called
SIZES = "The server is small, so that few messages are enough"
STANDS_IN = "[what stands in](../server.md) is the model, the device and the sockets"
CALLED = {"turn": "steps"}  # calls of a program that have another name than the operation of a trace
ASSERTION = "says what is wrong"  # what the assertion says that ends a program


def script(trace: str, title: str, release: str, config: Json, steps: Sequence[Json]) -> str:
    """A program that sends these steps to the release's own scheduler."""
    del trace
    lines = [f'"""{title}."""', "", f"from {Server.__module__} import {Server.__name__}", ""]
    more = {"environment": config.get("environment"), "sessions": config["sessions"]}
    named = "".join(f", {name}={json.dumps(value)}" for name, value in more.items() if value)
    lines.append(f"flags = {json.dumps(' '.join(config['flags']))}")
    lines.append(f"server = Server({json.dumps(release)}, {json.dumps(config['model'])}, flags.split(){named})")
    for step in steps:
        given = ", ".join(f"{name}={json.dumps(value)}" for name, value in step.items() if name != "op")
        lines.append(f"server.{CALLED.get(step['op'], step['op'])}({given})")
    return "\n".join(lines) + "\n"
