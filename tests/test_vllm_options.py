"""No option of vLLM is overlooked: each one that its cache and its scheduler read is drawn, or has a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.engines.vllm import RELEASES, options
from conformance.engines.vllm.download import WHEELS
from conformance.stems.block_cache.config import BlockCacheConfig, TuningConfig
from conformance.stems.block_cache.rules import CONFIG, TUNINGS


@pytest.fixture(scope="module")
def release() -> Path:
    """The package of the newest release."""
    return WHEELS.release(RELEASES[-1]) / "vllm"


def test_each_option_that_is_read_is_drawn_or_has_a_reason(release: Path) -> None:
    read, drawn, undrawn = set(options.read_by(release)), set(options.DRAWN), set(options.undrawn())
    assert sorted(read - drawn - undrawn) == [], "read, neither in DRAWN nor in UNDRAWN"
    assert sorted(undrawn - read) == [], "in UNDRAWN, and not read"
    assert sorted(drawn - read) == [], "in DRAWN, and not read"
    assert sorted(undrawn & drawn) == [], "in UNDRAWN, and in DRAWN"


def test_a_name_has_one_reason() -> None:
    names = [name for listed in options.UNDRAWN.values() for name in listed.split()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("where", sorted(set(options.DRAWN.values())))
def test_what_is_said_to_be_drawn_is_drawn(where: str) -> None:
    name, _, field = where.partition(".")
    if name == "tuning":
        assert field in TuningConfig.__annotations__
        assert len({repr((tuning or {}).get(field)) for tuning in TUNINGS}) > 1, f"each drawn run has one {field}"
    else:
        assert name in BlockCacheConfig.__annotations__
        assert name in {*CONFIG, "block_size", "requests", "max_length", "events", "eagle"}


def test_an_option_of_a_new_release_is_seen(tmp_path: Path) -> None:
    for name, text in (
        ("config/cache.py", "class CacheConfig:\n    block_size: int = 16\n    fresh_option: bool = False\n"),
        ("v1/core/new.py", "def made(config, envs):\n    return config.fresh_option and envs.VLLM_FRESH_SWITCH\n"),
        (
            "v1/kv_offload/spec.py",
            "def made(it):\n    return it.extra_config.get('fresh_key', 1), it.names['no key']\n",
        ),
        ("v1/kv_offload/asked.py", "def made(params):\n    return params['fresh_wish']\n"),
        ("v1/kv_offload/tiering/disk.py", "def made(config):\n    return config.block_size\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = ["fresh_option", "VLLM_FRESH_SWITCH", "fresh_key", "fresh_wish"]
    assert [*options.read_by(tmp_path)] == found
