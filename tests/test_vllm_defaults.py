"""What stands in for vLLM's configuration has the defaults of the newest release, where no run sets something else.

A value that is ours, and not the default of servers, would hide what servers do: so it was with the retention of the
prefix cache, which is 0 from 0.30.0 on.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from conformance.driver.exception_origin import StandIn
from conformance.engines.option_reads import defaults
from conformance.engines.vllm import RELEASES, causes, settings
from conformance.engines.vllm.download import WHEELS
from conformance.engines.vllm.settings import HostTier, Setup, Tuning

CONFIGS = {  # of each part of the configuration: the file and the class of the release
    "scheduler_config": ("scheduler.py", "SchedulerConfig"),
    "cache_config": ("cache.py", "CacheConfig"),
    "parallel_config": ("parallel.py", "ParallelConfig"),
    "observability_config": ("observability.py", "ObservabilityConfig"),
    "speculative_config": ("speculative.py", "SpeculativeConfig"),
    "model_config": ("model.py", "ModelConfig"),
    "kv_transfer_config": ("kv_transfer.py", "KVTransferConfig"),
    "kv_events_config": ("kv_events.py", "KVEventsConfig"),
}
# Field and why its value is not the default.
SET = {
    "async_scheduling": "drawn: one step in flight, or more",
    "prefix_cache_retention_interval": "drawn: 0, which is the default, or a number, or each block",
    "block_size": "drawn",
    "num_gpu_blocks": "drawn",
    "cache_dtype": "of the tensors, which stand in",
    "dtype": "of the tensors, which stand in",
    "model": "there is none",
    "max_model_len": "drawn",
    "num_speculative_tokens": "drawn",
    "method": "drawn: an EAGLE head, a draft model or none",
    "kv_load_failure_policy": "drawn: recompute or fail",
    "enable_kv_cache_events": "drawn",
    "publisher": "nobody listens outside of the process",
}


# A configuration of a run that differs from a server's defaults in nothing but sizes.
OPTIONS: dict[str, Any] = {
    **{"block_size": 4, "blocks": 10, "max_length": 40, "requests": 3, "batch": 16, "threshold": 0, "policy": "fcfs"},
    **{"caching": True, "steps_in_flight": 2, "layers": [{"kind": "full"}]},
}


def computed(release: Path, name: str, config: StandIn) -> Any:
    """What this property of the release's ``VllmConfig`` is where the object has these values."""
    tree = ast.parse((release / "config" / "vllm.py").read_text(encoding="utf-8"))
    rule = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)
    rule.decorator_list.clear()
    scope: dict[str, Any] = {}
    exec(compile(ast.Module([rule], []), "vllm.py", "exec"), scope)
    return scope[name](config)


@pytest.fixture(scope="module")
def release() -> Path:
    """The package of the newest release."""
    return WHEELS.release(RELEASES[-1]) / "vllm"


def plain(**more: Any) -> StandIn:
    """The stand-in with every part that it can have. ``more``: of the setup."""
    host = HostTier(4, 1, "lru", 0, False)
    sizes: dict[str, Any] = {
        "block_size": 4,
        "blocks": 10,
        "caching": True,
        "batch": 16,
        "requests": 3,
        "max_length": 40,
    }
    return settings.config(Setup(**{**sizes, "drafts": 2, "events": True, "transfers": True, "host": host, **more}))


def differing(release: Path, config: StandIn) -> set[str]:
    """The fields whose value is not the default of the release."""
    found = set()
    for part, (file, name) in CONFIGS.items():
        known = defaults(release / "config" / file, name)
        assert known, f"{file} has no class {name} with defaults"
        has = vars(vars(config)[part])
        found |= {field for field, value in has.items() if field in known and value != known[field]}
    return found


def test_each_value_that_no_run_sets_is_the_default(release: Path) -> None:
    assert sorted(differing(release, plain()) - SET.keys()) == []


def test_a_value_of_our_own_is_seen(release: Path) -> None:
    assert "watermark" in differing(release, plain(tuning=Tuning(watermark=2)))
    assert "scheduler_reserve_full_isl" in differing(release, plain(tuning=Tuning(whole=False)))
    assert "prefix_cache_retention_interval" not in differing(release, plain(tuning=Tuning(retention=0)))


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_as_many_steps_are_in_flight_as_the_release_would_keep(release: Path, steps: int) -> None:
    """The release's own rules, which it computes from its configuration, give the values that stand in."""
    stand_in = plain(steps_in_flight=steps)
    assert computed(release, "max_concurrent_batches", stand_in) == stand_in.max_concurrent_batches == steps
    assert computed(release, "max_in_flight_tokens", stand_in) == stand_in.max_in_flight_tokens
    told = causes.launch({**OPTIONS, "steps_in_flight": steps})
    assert ("--async-scheduling" in told, "--no-async-scheduling" in told) == (steps > 1, steps == 1)
    staged = f" --pipeline-parallel-size {stand_in.parallel_config.pipeline_parallel_size}"
    assert (staged in told, told.startswith("VLLM_USE_V2_MODEL_RUNNER=1 ")) == (steps > 2, steps > 2)


@pytest.mark.parametrize(
    ("method", "eagle", "has_model"), [("ngram", False, False), ("draft_model", False, True), ("mtp", True, True)]
)
def test_drafts_with_kv_cache_get_slots_as_the_release_gives_them(
    release: Path, method: str, eagle: bool, has_model: bool
) -> None:
    stand_in = plain(eagle=eagle, tuning=Tuning(draft_model=has_model))
    for name in ("num_lookahead_tokens", "num_prefill_lookahead_tokens"):
        assert computed(release, name, stand_in) == vars(stand_in)[name]
    assert stand_in.num_lookahead_tokens == (2 if has_model else 0)
    told = causes.launch({**OPTIONS, "drafts": 2, "eagle": eagle, "tuning": {"draft_model": has_model}})
    assert f'"method": "{method}"' in told


def test_without_its_stages_a_server_has_two_steps_in_flight() -> None:
    config = {**OPTIONS, "steps_in_flight": 3}
    assert causes.flags(config) == ["--pipeline-parallel-size 2"]
    assert causes.without(config, "--pipeline-parallel-size 2") == {**config, "steps_in_flight": 2}


def test_nothing_is_excused_that_is_the_default(release: Path) -> None:
    assert sorted(SET.keys() - differing(release, plain())) == []


def test_defaults_are_those_of_a_class_and_literals(tmp_path: Path) -> None:
    text = """
class Cache:
    size: int = 4
    kept: int | None = Field(default=0, ge=0)
    named: str = NAME
    made: int = field(init=False)
    bare: int
class Other:
    size: int = 5
"""
    (tmp_path / "cache.py").write_text(text)
    assert defaults(tmp_path / "cache.py", "Cache") == {"size": 4, "kept": 0}
