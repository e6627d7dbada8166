"""Causes of findings in SGLang: of each a file that tells it, and a module that repairs it at run time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from conformance.driver.protocol import Json
from conformance.engines.sglang.server import http
from conformance.engines.sglang.server.http import call, flags, without
from conformance.engines.sglang.server.scripted import Server
from conformance.engines.sglang.server.tokens import as_python

__all__ = [
    "ASSERTION",
    "RUNS_ALONE",
    "SIZES",
    "STANDS_IN",
    "STEPS",
    "TURNS",
    "call",
    "flags",
    "launch",
    "script",
    "without",
]

RUNS_ALONE = True  # a program loads the release itself
TURNS = "steps of the loop"  # what one round of a scheduler is called
SIZES = "The server is small, so that few messages are enough"
STANDS_IN = "[what stands in](../server.md) is the model, the device and the sockets"
NO_SESSION = ("session", 0, "generate")
CALLED = {"turn": "steps"}  # calls of a program that have another name than the operation of a trace
# What a reader of the messages must know, line by line.
STEPS = (
    "A step is one iteration of the scheduler's loop. Messages without a step between them are read in one poll.",
    "No HTTP call makes a server wait for a step: the program below does. Over HTTP, wait about as long.",
    "Where a prompt goes on after an answer, take the tokens of that answer.",
)
MODELS = {  # by the small model of a run: what MODEL of a launch command stands for
    "full": "any model",
    "windowed": "a model that has layers with a sliding window, here of 4 tokens, and others",
    "sliding": "a model whose layers all have a sliding window, here of 4 tokens",
    "recurrent": "a model with recurrent (mamba) layers",
}
WORDS = {  # by an argument of a program: what it means
    "longest": "max_new_tokens",
    "stop": "the position in the text at which a stop token is sampled",
    "fork": "at position n of the text the token n + 1 is sampled, and 1000 * (fork + 1) + n from position fork on",
}
ASSERTION = "says what is wrong"  # what the assertion says that ends a program


def launch(config: Json) -> str:
    """The command that starts a server of this configuration of a run, and what MODEL is in it."""
    return f"# MODEL: {MODELS[config['model']]}\n{http.launch(config)}"


def script(trace: str, title: str, release: str, config: Json, steps: Sequence[Json]) -> str:
    """A program that sends these steps to the release's own scheduler."""
    del trace
    named = [name for name in WORDS if any(name in step for step in steps)]
    lines = [f'"""{title}.', ""]
    lines += [f"Run it with the Python of a checkout of Slotproof. It downloads SGLang {release} once."]
    lines += [f"{name}: {WORDS[name]}." for name in named]
    lines += ['"""', "", f"from {Server.__module__} import {Server.__name__}", ""]
    more = {"environment": config.get("environment"), "sessions": config["sessions"]}
    given = "".join(f", {name}={json.dumps(value)}" for name, value in more.items() if value)
    lines.append(f"flags = {json.dumps(' '.join(config['flags']))}")
    lines.append(f"server = Server({json.dumps(release)}, {json.dumps(config['model'])}, flags.split(){given})")
    return "\n".join([*lines, *(f"server.{_call(step)}" for step in steps)]) + "\n"


def _call(step: Json) -> str:
    """The call of a program that sends a step. A request without a session says nothing of one."""
    op = step["op"]
    more = {name: value for name, value in step.items() if name != "op" and (name, value, op) != NO_SESSION}
    given = (f"{name}={_value(name, value)}" for name, value in more.items())
    return f"{CALLED.get(op, op)}({', '.join(given)})"


def _value(name: str, value: Any) -> str:
    if name == "tokens":
        return as_python(value)
    return json.dumps(value) if isinstance(value, str) else repr(value)
