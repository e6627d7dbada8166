"""Causes of findings in vLLM: of each a file that tells it, and a module that repairs it at run time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from conformance.driver.protocol import Json
from conformance.engines.vllm.alone import SCRIPTS
from conformance.stems.block_cache.protocol import FULL

RUNS_ALONE = False  # a program imports vLLM, as it is installed
TURNS = "steps"  # what one round of a scheduler is called
SIZES = "The pool and its blocks are small so that few messages do; attention backends have larger blocks"
STANDS_IN = "what stands in is the configuration, the workers and, if there is one, the KV connector"
# What a reader of the messages must know, line by line.
STEPS = ("A step is what one call of Scheduler.schedule gives the workers to compute.",)
ASSERTION = "says what is wrong"
NULL_BLOCK = 1  # the pool has one block more than a run counts


def launch(config: Json) -> str:
    """The command that starts a server of this configuration of a run. MODEL stands for a model of its kind, and
    CONNECTOR for a KV connector that loads asynchronously; with host memory it is vLLM's own.
    """
    flags = {
        "block-size": config["block_size"],
        "num-gpu-blocks-override": config["blocks"] + NULL_BLOCK,
        "max-model-len": config["max_length"],
        "max-num-seqs": config["requests"],
        "max-num-batched-tokens": config["batch"],
        "scheduling-policy": config["policy"],
    }
    if config["threshold"]:
        flags["long-prefill-token-threshold"] = config["threshold"]
    flags |= _tuned(config)
    switches = {"enable-prefix-caching": config["caching"], "async-scheduling": config["steps_in_flight"] > 1}
    words = ["vllm serve MODEL", *(f"--{name} {value}".strip() for name, value in flags.items())]
    words += [f"--{name}" if on else f"--no-{name}" for name, on in switches.items()]
    if config.get("transfers"):
        words.append(f"--kv-transfer-config '{json.dumps(_connector(config))}'")
    return " ".join(words)


def _tuned(config: Json) -> dict[str, object]:
    """The flags of what a run tunes of the scheduler and of the prefix cache."""
    tuning: Json = config.get("tuning", {})
    flags: dict[str, object] = {}
    if "retention" in tuning:
        flags[RETENTION] = tuning["retention"]
    elif _is_dense(config):
        flags[RETENTION] = DENSE
    if tuning.get("watermark"):
        flags["watermark"] = round((tuning["watermark"] + 0.5) / (config["blocks"] + NULL_BLOCK), 3)
    if tuning.get("interval", 1) > 1:
        flags["prefill-schedule-interval"] = tuning["interval"]
    if not tuning.get("whole_prompts", True):
        flags["no-scheduler-reserve-full-isl"] = ""
    return flags


RETENTION, DENSE = "prefix-cache-retention-interval", "None"  # the default is 0 from 0.30.0 on


def _is_dense(config: Json) -> bool:
    """Layers with a window or with states keep each block in the prefix cache, which is not the default."""
    kinds = {group["kind"] for group in config["layers"]}
    return kinds != {FULL} and "retention" not in config.get("tuning", {})


# What differs from the engine's default: the flag that says so, and the option of a run with its default.
SWITCHED = {
    "--no-enable-prefix-caching": ("caching", False, True),
    "--no-async-scheduling": ("steps_in_flight", 1, 2),
    "--scheduling-policy priority": ("policy", "priority", "fcfs"),
}


def flags(config: Json) -> list[str]:
    """The launch flags that switch something from its default."""
    found = [flag for flag, (option, switched, _) in SWITCHED.items() if config[option] == switched]
    return [*found, *([f"--{RETENTION} {DENSE}"] if _is_dense(config) else [])]


def without(config: Json, flag: str) -> Json:
    """The configuration without one of its ``flags``."""
    if RETENTION in flag:
        return {**config, "tuning": {**config.get("tuning", {}), "retention": 0}}
    option, _, default = SWITCHED[flag]
    return {**config, option: default}


def _connector(config: Json) -> Json:
    failure = {"kv_load_failure_policy": config["failure"]} if "failure" in config else {}
    host = config.get("host")
    if host is None:
        return {"kv_connector": "CONNECTOR", "kv_role": "kv_both", **failure}
    blocks = host["slots"] * host["blocks_per_slot"]
    more = {"cpu_bytes_to_use": f"the bytes of {blocks} block{'s' * (blocks > 1)}", "eviction_policy": host["policy"]}
    more |= {"blocks_per_chunk": host["blocks_per_slot"], "store_threshold": host["threshold"]}
    more |= {"offload_prompt_only": host["prompt_only"]}
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": more, **failure}


def _add(step: Json) -> str:
    body = {"request_id": str(step["request"]), "prompt": step["tokens"], "max_tokens": step["outputs"]}
    priority = {"priority": step["priority"]} if step.get("priority") else {}
    asked = f"POST /v1/completions {json.dumps({**body, 'ignore_eos': True, **priority})}"
    found = f"# the connector has the first {step.get('elsewhere')} tokens of request {step['request']}"
    return f"{asked}\n{found}" if step.get("elsewhere") else asked


def _arrive(step: Json) -> str:
    lost = f"; its last {step['lost']} blocks did not come" if step.get("lost") else ""
    return f"# the connector says that the load of request {step['request']} is done{lost}"


def _reset(step: Json) -> str:
    asked = f"POST /reset_prefix_cache?reset_running_requests={str(step['preempt']).lower()}"
    if "host" in step:
        asked += f"&reset_external={str(step['host']).lower()}"
    return f"# with VLLM_SERVER_DEV_MODE=1 in the environment of the server\n{asked}"


CALLS: dict[str, Callable[[Json], str]] = {
    "add": _add,
    "arrive": _arrive,
    "stored": lambda step: f"# copy {step['job']} to host memory ends",
    "sent": lambda step: f"# the connector says that the blocks of request {step['request']} were read",
    "abort": lambda step: f"# the client of request {step['request']} goes away",
    "schedule": lambda _: "# the scheduler makes a step",
    "complete": lambda _: "# the oldest step is computed",
    "reset": _reset,
}


def call(step: Json) -> str:
    """One step of a run: a call of a client, or in words what the connector or the scheduler does."""
    return CALLS[step["op"]](step)


def script(trace: str, title: str, release: str, config: Json, steps: Sequence[Json]) -> str:
    """The program that shows the kept trace of this name on the scheduler of any release that is installed."""
    del title, release, config, steps
    return (SCRIPTS / f"{trace}.py").read_text("utf-8")
