"""No option of SGLang is overlooked: each one that its cache and its scheduler read is drawn, or has a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.engines.option_reads import declared, options_read, variables_read
from conformance.engines.sglang import RELEASES, options
from conformance.engines.sglang.releases import download

# Read where a model's settings are made, by the code that computes, and by the storage of a run.
READ_ELSEWHERE = ("mamba_radix_cache_strategy", "mamba_track_interval", "sim_op_latency_us", "sim_write_gbps")
MODULE = """
EAGER = get_int_env_var("TOY_EAGER", 3)
LATE = lambda: os.environ.get("OTHER_NAME")
def room(server_args, settings):
    if envs.TOY_FLUSHES.get() or os.environ["TOY_PAGES"]:
        settings.page_size = 4
    return server_args.overlap, getattr(settings, "chunk", None), settings.unknown, "TOY"
"""
SETTINGS = """
class ServerArgs:
    overlap: bool = False
    chunk: int = 4
    page_size: int = 1
    loud: bool = False
    limit = 7
"""


@pytest.fixture(scope="module")
def release() -> Path:
    """The package of the newest release."""
    return download.WHEELS.release(RELEASES[-1]) / "sglang"


def test_each_option_that_is_read_is_drawn_or_has_a_reason(release: Path) -> None:
    read, drawn, undrawn = set(options.read_by(release)), options.drawn(), set(options.undrawn())
    assert sorted(read - drawn - undrawn) == [], "read, neither drawn nor in UNDRAWN"
    assert sorted(undrawn - read) == [], "in UNDRAWN, and not read"
    assert sorted(undrawn & drawn) == [], "in UNDRAWN, and drawn"
    assert sorted(drawn - read) == sorted(READ_ELSEWHERE), "drawn, and not read"


def test_no_drawn_variable_is_read_when_a_module_is_imported(release: Path) -> None:
    """A process imports a module once, and then makes many servers: all of them would have the first value."""
    imported = set(variables_read(release, options.modules(release), options.PREFIX, imported=True))
    assert "SGLANG_TEST_RETRACT" in imported
    assert sorted(imported & options.drawn_variables()) == []


def test_what_is_left_out_is_of_another_cache_or_of_one_model(release: Path) -> None:
    every = {file.name for pattern in options.MODULES for file in release.glob(pattern)}
    kept = {file.name for file in options.modules(release)}
    assert {"scheduler_input_blocker.py", "unified_radix_cache.py", "scheduler.py"} <= kept
    assert {"npu_memfabric.py", "deepseek_v4_memory_pool.py", "multimodal_cache.py"} <= every - kept


def test_a_name_has_one_reason() -> None:
    names = [name for listed in options.UNDRAWN.values() for name in listed.split()]
    assert len(names) == len(set(names))


def test_an_option_of_a_new_release_is_seen(tmp_path: Path) -> None:
    for name, text in (("srt/server_args.py", SETTINGS), ("srt/mem_cache/new.py", MODULE)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [*options.read_by(tmp_path)] == ["chunk", "overlap", "OTHER_NAME", "TOY_EAGER"]


def test_reads_and_names_are_told_from_writes_and_parts_of_names(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(MODULE)
    (tmp_path / "settings.py").write_text(SETTINGS)
    names = declared([tmp_path / "settings.py"])
    assert names == {"overlap", "chunk", "page_size", "loud"}
    files = [tmp_path / "module.py"]
    assert options_read(tmp_path, files, names) == {"chunk": ["module.py"], "overlap": ["module.py"]}
    assert variables_read(tmp_path, files, "TOY_") == {
        name: ["module.py"] for name in ("OTHER_NAME", "TOY_EAGER", "TOY_FLUSHES", "TOY_PAGES")
    }
    assert variables_read(tmp_path, files, "TOY_", imported=True) == {"TOY_EAGER": ["module.py"]}
