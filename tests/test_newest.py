"""``slotproof engines --newest``: what it says of an engine that loads, of one that does not, and without a network."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from driven import NEWEST, have

from conformance.driver.protocol import EngineError
from conformance.engines import registry
from conformance.engines.vllm import RELEASES
from conformance.engines.vllm.download import WHEELS
from conformance.search.connection import Subject
from conformance.traces import trace_files
from slotproof.commands import newest
from slotproof.console import codes

ENGINE = """
from conformance.engines import registry
from conformance.driver.protocol import EngineError, Unsupported
from conformance.engines.toy import ToyAllocator

def good(config) -> ToyAllocator:
    return ToyAllocator(config["size"], config["page_size"])

def lacking(config) -> ToyAllocator:
    raise EngineError("absent.thing is a stub")

def picky(config):
    if config["caching"] or config["blocks"] == 8:
        raise Unsupported("a prefix cache is not supported")
    return registry.load("ours").makers["block_pool"](config)

def declining(config):
    raise Unsupported(f"{config['blocks']} blocks are not supported")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "newest_engine.py").write_text(ENGINE)
    return tmp_path


def test_a_stem_loads_if_an_engine_can_be_built_for_it(folder: Path) -> None:
    found = newest.reasons(Subject("newest_engine:good", source=folder), ("cache", "allocator"))
    assert found == {"allocator": "", "cache": newest.MISSING}
    undeclared = newest.reasons(Subject("newest_engine:good", source=folder), ())
    assert undeclared == {"allocator": ""}


def test_what_an_engine_lacks_is_the_reason(folder: Path) -> None:
    lacking = newest.reasons(Subject("newest_engine:lacking", source=folder, stems=("allocator",)), ("allocator",))
    assert lacking == {"allocator": "absent.thing is a stub"}
    nowhere = newest.reasons(Subject("nosuch_engine:make", source=folder), ("cache", "allocator"))
    assert list(nowhere) == ["allocator", "cache"]
    assert all("there is no module 'nosuch_engine'" in why for why in nowhere.values())


@pytest.mark.soak
@pytest.mark.parametrize(("maker", "said"), [("picky", ""), ("declining", "blocks are not supported")])
def test_a_stem_without_kept_traces_is_tried_with_drawn_configurations(
    maker: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [kept for kept in trace_files.every() if kept.trace.stem != "block_pool"]
    monkeypatch.setattr(trace_files, "every", lambda: others)
    subject = Subject(f"newest_engine:{maker}", source=folder, stems=("block_pool",))
    why = newest.reasons(subject, ("block_pool",))["block_pool"]
    assert said in why
    assert bool(why) is bool(said)


@pytest.mark.parametrize("plugin", registry.released(), ids=lambda plugin: plugin.name)
def test_an_engine_names_the_stems_of_its_releases(plugin: Any) -> None:
    checks = json.loads((Path(__file__).parents[1] / "docs" / "findings.json").read_text("utf-8"))["checks"]
    assert {check["stem"] for check in checks if check["subject"] == plugin.name} == {*plugin.stems}


@pytest.mark.soak
@pytest.mark.engine
def test_a_release_whose_tree_has_moved_does_not_load(tmp_path: Path) -> None:
    source = tmp_path / "moved"
    shutil.copytree(have(NEWEST).resolve(), source, copy_function=os.symlink)
    tree = source / "sglang" / "srt" / "mem_cache" / "unified_radix_cache.py"
    tree.rename(tree.with_name("elsewhere.py"))
    found = newest.reasons(Subject("sglang", source=source), getattr(registry.plugin("sglang"), "stems"))  # noqa: B009
    assert found["lock_ref"] == newest.MISSING
    assert "no server of this release builds a tree" in found["mamba_slots"]
    assert "cannot be imported" in found["cache"]
    assert found["allocator"] == ""


@pytest.mark.soak
@pytest.mark.engine
def test_a_release_whose_block_pool_has_moved_does_not_load(tmp_path: Path) -> None:
    try:
        root = WHEELS.release(RELEASES[-1])
    except EngineError as error:
        pytest.skip(str(error))
    stems = getattr(registry.plugin("vllm"), "stems")  # noqa: B009
    assert newest.reasons(Subject("vllm", RELEASES[-1]), stems) == dict.fromkeys(stems, "")
    source = tmp_path / "moved"
    shutil.copytree(root.resolve(), source, copy_function=os.symlink)
    pool = source / "vllm" / "v1" / "core" / "block_pool.py"
    pool.rename(pool.with_name("elsewhere.py"))
    found = newest.reasons(Subject("vllm", source=source), stems)
    assert list(found) == list(stems)
    assert all("no class BlockPool in" in found[stem] for stem in ("block_pool", "block_cache"))


@pytest.mark.parametrize(("why", "code"), [({}, codes.HOLDS), ({"cache": "absent is missing"}, codes.USAGE)])
def test_one_line_for_each_stem_and_an_exit_code(
    why: dict[str, str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stems = ("allocator", "cache")
    one = SimpleNamespace(name="e", releases=("1.0", "1.1"), stems=stems, newest=lambda: "1.2")
    none = SimpleNamespace(name="no index", releases=("1.0",))
    monkeypatch.setattr(registry, "released", lambda: [one, none])
    asked = []

    def reasons(subject: Subject, stems: tuple[str, ...]) -> dict[str, str]:
        asked.append(subject)
        return {**dict.fromkeys(stems, ""), **why}

    monkeypatch.setattr(newest, "reasons", reasons)
    assert newest.run(tmp_path / "out.json") == code
    assert asked == [Subject("e", "1.2")]
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(
        "the newest release of e on the package index is 1.2; `slotproof engines` judges 1.1 and older ones"
    )
    said = {stem: f"does not load: {why[stem]}" if stem in why else "loads" for stem in stems}
    assert out.endswith(" ".join(f"e 1.2 {stem}: {told}" for stem, told in said.items()))
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["loads"] for row in rows] == [stem not in why for stem in stems]


def test_without_a_network_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> str:
        raise EngineError("the package index names no release")

    one = SimpleNamespace(name="e", releases=("1.0",), newest=fails)
    monkeypatch.setattr(registry, "released", lambda: [one])
    with pytest.raises(EngineError, match="names no release"):
        newest.run(None)
