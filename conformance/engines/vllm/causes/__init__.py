"""Causes of findings in vLLM: of each a file that tells it, and a module that repairs it at run time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from conformance.driver.protocol import Json
from conformance.engines.vllm.alone import SCRIPTS
from conformance.engines.vllm.connectors import LIMITS
from conformance.stems.block_cache.protocol import FULL, has_own_connector

RUNS_ALONE = False  # a program imports vLLM, as it is installed
SAID = dict(zip(("most_loaded", "most_copied"), LIMITS, strict=True))  # how the limits of a request are said
TURNS = "steps"  # what one round of a scheduler is called
SIZES = "The pool and its blocks are small so that few messages do; attention backends have larger blocks"
STANDS_IN = "what stands in is the configuration, the workers and, if there is one, the KV connector"
# What a reader of the messages must know, line by line.
STEPS = ("A step is what one call of Scheduler.schedule gives the workers to compute.",)
ASSERTION = "says what is wrong"
NULL_BLOCK = 1  # the pool has one block more than a run counts


def launch(config: Json) -> str:
    """The command that starts a server of this configuration of a run. MODEL stands for a model of its kind, and
    CONNECTOR for a KV connector that loads asynchronously; with host memory, or with other layers than one group with
    full attention, it is vLLM's own.
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
    switches = {"enable-prefix-caching": config["caching"], "async-scheduling": config["steps_in_flight"] > 1}
    words = [*_runner(config), "vllm serve MODEL", *(f"--{name} {value}" for name, value in flags.items())]
    words += [f"--{name}" if on else f"--no-{name}" for name, on in switches.items()]
    words += [*_staged(config), *_tuned(config).values()]
    if config.get("drafts"):
        drafts = {**_drafter(config), "num_speculative_tokens": config["drafts"]}
        drafts |= {option: True for name, option in OF_DRAFTS.items() if config.get("tuning", {}).get(name)}
        words.append(f"--speculative-config '{json.dumps(drafts)}'")
    if config.get("events"):
        words.append(f"--kv-events-config '{json.dumps({'enable_kv_cache_events': True})}'")
    if config.get("transfers"):
        words.append(f"--kv-transfer-config '{json.dumps(_connector(config))}'")
    return " ".join(words)


def _drafter(config: Json) -> Json:
    """What drafts: DRAFTER stands for a draft model."""
    if config.get("eagle"):
        return {"method": "mtp"}
    has_model = config.get("tuning", {}).get("draft_model")
    return {"method": "draft_model", "model": "DRAFTER"} if has_model else {"method": "ngram"}


def _runner(config: Json) -> list[str]:
    """What the environment of the server says: of the model runners only the second one has pipeline stages beside
    asynchronous scheduling.
    """
    return ["VLLM_USE_V2_MODEL_RUNNER=1"] if _staged(config) else []


def _staged(config: Json) -> list[str]:
    """The flag that splits the model into pipeline stages: asynchronous scheduling has one step more in flight than
    there are stages.
    """
    return [f"--pipeline-parallel-size {config['steps_in_flight'] - 1}"] if config["steps_in_flight"] > 2 else []


# What a run tunes, with the default of a server; the retention has it from 0.30.0 on.
TUNED: Mapping[str, object] = {
    **{"retention": 0, "watermark": 0, "interval": 1, "whole_prompts": True, "match": None},
    **{"junctions": False, "adaptive": False},
}
# What a run tunes of the drafts of an EAGLE head, with the option that is off by default.
OF_DRAFTS = {"whole_hits": "disable_eagle_block_drop", "short_hashes": "disable_lookahead_block_hashes"}


def _tuned(config: Json) -> dict[str, str]:
    """The flag of each option that a run tunes, and that is not at its default. Without a retention, layers with a
    window or with states keep each block in the prefix cache, which a server has to be asked for.
    """
    only_full = all(group["kind"] == FULL for group in config["layers"])
    has = {**TUNED, **({} if only_full else {"retention": None}), **config.get("tuning", {})}
    texts = {
        "retention": f"--prefix-cache-retention-interval {has['retention']}",
        "watermark": f"--watermark {(has['watermark'] + 0.5) / (config['blocks'] + NULL_BLOCK):.3f}",
        "interval": f"--prefill-schedule-interval {has['interval']}",
        "whole_prompts": "--no-scheduler-reserve-full-isl",
        "match": f"--prefix-match-unit {has['match']}",
        "junctions": "--enable-mamba-shared-prefix-checkpoint",
        "adaptive": "--long-prefill-token-threshold-adaptive",
    }
    return {name: texts[name] for name, default in TUNED.items() if has[name] != default}


# What differs from the engine's default: the flag that says so, and the option of a run with its default.
SWITCHED = {
    "--no-enable-prefix-caching": ("caching", False, True),
    "--no-async-scheduling": ("steps_in_flight", 1, 2),
    "--scheduling-policy priority": ("policy", "priority", "fcfs"),
}


def flags(config: Json) -> list[str]:
    """The launch flags that switch something from its default."""
    found = [flag for flag, (option, switched, _) in SWITCHED.items() if config[option] == switched]
    return [*found, *_staged(config), *_tuned(config).values()]


def without(config: Json, flag: str) -> Json:
    """The configuration without one of its ``flags``."""
    for name, text in _tuned(config).items():
        if text == flag:
            tuning = {**config.get("tuning", {}), name: TUNED[name]}
            return {**config, "tuning": {option: value for option, value in tuning.items() if value is not None}}
    if flag in _staged(config):
        return {**config, "steps_in_flight": 2}
    option, _, default = SWITCHED[flag]
    return {**config, option: default}


def _connector(config: Json) -> Json:
    """What is said of the connector of a server of this configuration."""
    failure = {"kv_load_failure_policy": config["failure"]} if "failure" in config else {}
    if "host" not in config:
        return {**_between_servers(config), **failure}
    if not config.get("servers"):
        return {**_to_host(config["host"]), **failure}
    both = {"connectors": [_between_servers(config), _to_host(config["host"])]}
    return {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": both, **failure}


def _between_servers(config: Json) -> Json:
    name = "NixlConnector" if has_own_connector(config) else "CONNECTOR"
    between = {"bidirectional_kv_xfer": True, "kv_recompute_threshold": 0}
    both = {"kv_connector_extra_config": between} if config.get("both_ways") else {}
    return {"kv_connector": name, "kv_role": "kv_both", **both}


def _to_host(host: Json) -> Json:
    if host.get("pool"):
        name, sized = "SimpleCPUOffloadConnector", host["slots"] + NULL_BLOCK
        more: Json = {"lazy_offload": True} if host["pool"] == "lazy" else {}
    else:
        name, sized = "OffloadingConnector", host["slots"] * host["blocks_per_slot"]
        more = {"eviction_policy": host["policy"], "blocks_per_chunk": host["blocks_per_slot"]}
        more |= {"store_threshold": host["threshold"], "offload_prompt_only": host["prompt_only"]}
        more |= {"self_describing_kv_events": True} if host.get("describes") else {}
        if "within_step" in host:
            more["sync_load_budget_bytes"] = f"the bytes of {host['within_step']} tokens"
    size = {"cpu_bytes_to_use": f"the bytes of {sized} block{'s' * (sized > 1)}"}
    return {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": {**size, **more}}


def _add(step: Json) -> str:
    body = {"request_id": str(step["request"]), "prompt": step["tokens"], "max_tokens": step["outputs"]}
    more: Json = {"priority": step["priority"]} if step.get("priority") else {}
    limits = {said: step[name] for name, said in SAID.items() if step.get(name) is not None}
    more |= {"kv_transfer_params": limits} if limits else {}
    asked = f"POST /v1/completions {json.dumps({**body, 'ignore_eos': True, **more})}"
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
    "copied": lambda _: "# the copies to host memory end",
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
