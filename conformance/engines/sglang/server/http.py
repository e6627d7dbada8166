"""A client's messages to a server as HTTP calls, for who has a real one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable

from conformance.driver.protocol import Json
from conformance.engines.sglang.server.tokens import as_json
from conformance.stems.host_server.protocol import StorageOutcome, StorageThread
from conformance.stems.server.protocol import SendStep, TransferStep

CAPACITY = 1 << 20  # of a session, in characters of its text
LAUNCH = "python -m sglang.launch_server --model-path MODEL"
# Flags that only make a server small, so that few messages do; and for a machine without a GPU, the kernels, and where
# a decode server copies what it takes off its rows.
SMALL = (
    *("--page-size", "--max-total-tokens", "--max-mamba-cache-size", "--context-length", "--max-running-requests"),
    *("--num-reserved-decode-tokens", "--attention-backend", "--disaggregation-decode-retraction-backup"),
)


def launch(config: Json) -> str:
    """The command that starts a server of this configuration of a run. MODEL stands for a model of its kind."""
    variables = [f"SGLANG_{name}={value}" for name, value in config.get("environment", {}).items()]
    flags = list(config["flags"])
    if "--speculative-algorithm" in flags:
        flags += ["--speculative-draft-model-path", "DRAFT_MODEL"]
    return " ".join([*variables, LAUNCH, *map(shlex.quote, flags)])


def flags(config: Json) -> list[str]:
    """The launch flags of a configuration, each with its value, without those that only make a server small."""
    return [flag for flag in _with_values(config) if flag.split()[0] not in SMALL]


def without(config: Json, flag: str) -> Json:
    """The configuration without one of its ``flags``."""
    return {**config, "flags": [word for one in _with_values(config) if one != flag for word in one.split()]}


def _with_values(config: Json) -> list[str]:
    found: list[str] = []
    for word in config["flags"]:
        if word.startswith("--"):
            found.append(word)
        else:
            found[-1] += f" {word}"
    return found


def _generate(step: Json) -> Json:
    sampling = {"max_new_tokens": step["longest"]}
    if "stop" in step:
        sampling["stop_token_ids"] = ["the token sampled at position " + str(step["stop"])]
    session = {"session_params": {"id": str(step["session"])}} if step.get("session") else {}
    priority = {"priority": step["priority"]} if "priority" in step else {}
    return {
        "rid": str(step["request"]),
        "input_ids": step["tokens"],
        "sampling_params": sampling,
        **session,
        **priority,
    }


def _open(step: Json) -> Json:
    return {"session_id": str(step["session"]), "capacity_of_str_len": CAPACITY, "streaming": True}


CALLS: dict[str, tuple[str, Callable[[Json], Json]]] = {
    "open": ("open_session", _open),
    "close": ("close_session", lambda step: {"session_id": str(step["session"])}),
    "generate": ("generate", _generate),
    "abort": ("abort_request", lambda step: {"rid": str(step["request"])}),
    "flush": ("flush_cache", lambda _: {}),
    "pause": ("pause_generation", lambda step: {"mode": step["mode"]}),
    "resume": ("continue_generation", lambda _: {}),
    "update_weights": ("update_weights_from_disk", lambda _: {"model_path": "MODEL"}),
    "release_memory": ("release_memory_occupation", lambda _: {}),
    "resume_memory": ("resume_memory_occupation", lambda _: {}),
}
# What the prefill server of a decode server does for a request, by ``TransferStep``.
PREFILLS: dict[TransferStep, str] = {
    "registers": "request {} is sent to a prefill server, too, with the same bootstrap_host and bootstrap_room",
    "completes": "the prefill server has written the prompt of request {}, and says so",
    "fails": "the prefill server says that it failed with request {}, and writes no more",
    "breaks": "the prefill server says that it failed with request {}, and a write goes on",
    "writes": "the prefill server has written the prompt of request {}, late",
    "stops": "the prefill server has stopped, and has not written the prompt of request {}",
}
# What a decode server of a prefill server, or the worker of this one, does for a request, by ``SendStep``.
SENDINGS: dict[SendStep, str] = {
    "asks": "a decode server says where the prompt of request {} is to be written",
    "asks_rest": "a decode server says where the rest of the prompt of request {} is to be written, behind what it has",
    "cancels": "the decode server wants request {} no more",
    "takes": "the transfer worker takes the next part of the prompt of request {}, and stands before it reads it",
    "reads": "the transfer worker reads what it stands before of request {}, and goes on",
    "hurries": "the transfer worker reads each part of the prompt of request {} as soon as it is handed over",
    "breaks_off": "the transfer that the worker stands before fails, of request {}",
}

# What becomes of a call of the storage that does not end well, and what the server's threads do with a storage.
OUTCOMES: dict[StorageOutcome, str] = {"partly": "is done in part", "fails": "fails", "raises": "raises an exception"}
STORAGE: dict[StorageThread, str] = {
    "queries": "asks what the storage has",
    "fetches": "fetches from the storage",
    "agrees": "agrees with other ranks on what was fetched",
    "saves": "saves to the storage",
}


def call(step: Json) -> str:
    """One step of a run: a call, what a prefill server or a storage does, or how far the server goes before the next
    one.
    """
    if step["op"] == "copies_end":
        way = "to" if step["stores"] else "from"
        return f"# copies {way} host memory that are under way end, {step['count']} at most"
    if step["op"] == "storage_goes_on":
        outcome = step.get("outcome", "well")
        ends = "" if outcome == "well" else f": its call {OUTCOMES[outcome]}"
        return f"# the thread that {STORAGE[step['thread']]} goes on, up to its next call{ends}"
    if step["op"] == "transfer":
        return f"# {PREFILLS[step['step']].format(step['request'])}"
    if step["op"] == "send":
        return f"# {SENDINGS[step['step']].format(step['request'])}"
    if step["op"] == "turn":
        times = step.get("times", 1)
        return f"# the server makes {times} step{'s' if times > 1 else ''}"
    path, body = CALLS[step["op"]]
    said = json.dumps(body(step))
    tokens = step.get("tokens", [])
    return f"POST /{path} {said.replace(json.dumps(tokens), as_json(tokens))}"
