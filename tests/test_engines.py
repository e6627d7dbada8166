"""Engines are plug-ins: the registry, the toy engine as the worked example, the adapters, and faulty engines."""

from __future__ import annotations

import pickle
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.driver.lockstep import CONFORMS, INVARIANT, UNSUPPORTED, VIOLATION
from conformance.driver.protocol import EngineError, Json, Unsupported
from conformance.engines import registry, toy
from conformance.engines.adapters import PairAdapter, PoolAdapter
from conformance.engines.ours import MAKERS
from conformance.planted.faults.known_bugs import ALL, FAULTS, Fault
from conformance.search import judge
from conformance.search.check import Search, check
from conformance.stems.stem_registry import STEMS, start
from impl.allocator import PagedTokenToKVPoolAllocator
from impl.swa_mapping import SWATokenToKVPoolAllocator
from slotproof.checks import checking
from slotproof.checks.weigh import undecided

POOL: Json = {"page_size": 2, "size": 4, "size_swa": 3, "rows": 2, "need_sort": False}


def offered(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Another package offers an engine ``other``."""
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint("other", value, group)])


OTHER = registry.SimplePlugin("other", {"allocator": toy.allocator})
OURS_AGAIN = registry.SimplePlugin("ours", {}, own=True)
NO_PLUGIN = SimpleNamespace(name="other", releases=())


# The registry.


def test_our_own_implementation_comes_first() -> None:
    names = registry.names()
    assert names[0] == registry.own().name == "ours"
    assert names[1:] == sorted(names[1:])
    assert {"sglang", "toy"} <= set(names)
    assert [plugin.name for plugin in registry.released()] == ["sglang", "vllm"]


def test_an_unknown_engine_is_refused_with_the_names_that_there_are() -> None:
    for name in ("nosuch", "protocol", "registry", "no such"):
        with pytest.raises(EngineError, match=f"no engine '{name}': there are ours, sglang, toy"):
            registry.load(name)


def test_an_engine_of_another_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, f"{__name__}:OTHER")
    assert registry.names() == ["ours", "other", "sglang", "toy", "vllm"]
    loaded = registry.load("other")
    assert (loaded.label, loaded.own, list(loaded.makers)) == ("other", False, ["allocator"])
    assert check("allocator", loaded.makers["allocator"], Search(examples=5)).verdict == CONFORMS


def test_what_is_no_plugin_is_said_to_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, f"{__name__}:NO_PLUGIN")
    expected = "the entry point slotproof.engines other is no engine: expected an object like"
    with pytest.raises(EngineError, match=expected):
        registry.load("other")


@pytest.mark.parametrize("name", ["ours", "toy"])
def test_what_an_engine_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(EngineError, match=r"--release.*: the engine \w+ has"):
        registry.load(name, release="1.0")
    with pytest.raises(EngineError, match=r"--source|has no .*impl|another folder"):
        registry.load(name, source=Path("/nosuch"))
    with pytest.raises(EngineError, match="no device 'tpu': there are cpu and cuda"):
        registry.load(name, device="tpu")


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EngineError, match="this machine has no CUDA device"):
        registry.load("ours", device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(EngineError, match="the engine toy runs on cpu alone"):
        registry.load("toy", device="cuda")


def test_every_plugin_says_where_its_files_are() -> None:
    for plugin in map(registry.plugin, registry.names()):
        assert all(isinstance(release, str) for release in plugin.releases)
        assert not plugin.releases or (plugin.folder is not None and plugin.folder.is_dir())


def test_our_implementation_is_an_engine_of_every_stem_but_that_of_host_memory() -> None:
    loaded = registry.load("ours")
    assert loaded.own
    assert list(loaded.makers) == list(MAKERS) == [stem for stem in STEMS if stem != "host_tier"]


def test_an_unsupported_configuration_starts_no_run() -> None:
    def only_one(config: Json) -> Any:
        if config["page_size"] > 1:
            raise Unsupported("a page has one token")
        return toy.allocator(config)

    with pytest.raises(Unsupported, match="a page has one token"):
        start("allocator", only_one, POOL)
    result = check("allocator", only_one, Search(examples=30))
    assert result.verdict == CONFORMS
    assert 0 < result.steps < check("allocator", toy.allocator, Search(examples=30)).steps


def test_an_engine_that_cannot_be_imported_stops_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, "nosuch.package:PLUGIN")
    assert "other" in registry.names()
    assert [plugin.name for plugin in registry.plugins()] == ["ours", "sglang", "toy", "vllm"]
    with pytest.raises(EngineError, match=r"slotproof\.engines other cannot be imported: No module named 'nosuch'"):
        registry.load("other")


def test_no_other_package_takes_the_place_of_an_engine_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        registry,
        "entry_points",
        lambda group: [
            EntryPoint("ours", f"{__name__}:OURS_AGAIN", group),
            EntryPoint("a", f"{__name__}:OTHER", group),
        ],
    )
    assert registry.names() == ["ours", "a", "sglang", "toy", "vllm"]
    assert list(registry.load("ours").makers) == list(MAKERS)


def test_a_check_without_a_supported_configuration_fails() -> None:
    def none(_: Json) -> Any:
        raise Unsupported("nothing fits")

    asked = {"stem": "allocator", "engine": "toy", "listed": None, "examples": 3, "steps": 100}
    judged = judge.alone(
        registry.Loaded("toy", None, {"allocator": none}),
        {**asked, "seed": None, "seconds": None, "strict": False},
        lambda *_: None,
    )
    assert (judged["verdict"], judged["steps"]) == (UNSUPPORTED, 0)
    assert undecided({**checking._result(judged)}, {"base": None}) == "no verdict: no run could be started"


# The worked example.


def test_the_toy_engine_conforms() -> None:
    result = check("allocator", toy.allocator, Search(examples=60))
    assert result.verdict == CONFORMS, result
    assert {"alloc_extend done", "alloc_extend refused", "alloc_decode done", "shorten done", "clear done"} <= set(
        result.transitions
    )
    assert result.transitions["backup not offered"] > 0, "what an engine lacks is not sent, and counted"


def test_a_leak_that_is_planted_in_it_is_found_and_shrunk() -> None:
    def leaky(config: Json) -> Any:
        return toy.ToyAllocator(config["size"], config["page_size"], leaks=True)

    result = check("allocator", leaky)
    assert (result.verdict, result.law, result.kind) == (VIOLATION, "no_leak", INVARIANT)
    assert result.trace is not None
    assert len(result.trace.steps) <= 2, result.trace.lines()
    assert result.trace.config["page_size"] == 1
    assert str(result.detail).startswith("page 2 is held by nobody, the law has free")


# The adapters.


def test_one_pool_is_called_with_plain_numbers() -> None:
    engine = PoolAdapter(PagedTokenToKVPoolAllocator(8, 2, torch.float16, "cpu", None, False), 2, lacks=("bad",))
    assert engine.alloc(4) == [2, 3, 4, 5]
    assert engine.extend([0, 0], [1, 2], [-1, -1]) == [6, 8, 9]
    assert engine.decode([2], [6]) == [7]
    assert engine.alloc(2) is None
    engine.begin_group()
    engine.free([2, 3])
    assert engine.snapshot().free == []
    engine.end_group()
    engine.backup()
    assert engine.alloc(2) == [2, 3]
    engine.restore()
    seen = engine.snapshot()
    assert (seen.free, seen.released, seen.available) == ([1], [], 2)
    engine.clear()
    assert engine.snapshot().available == 8
    assert (set(engine.lacks), engine.fragile) == ({"bad"}, False)


@pytest.mark.parametrize("kind", ["free_again", "free_padding", "alloc_negative", "free_outside", "end_group"])
def test_each_kind_of_bad_input_is_sent(kind: str) -> None:
    for config in (POOL, {**POOL, "page_size": 1}):
        for stem in ("allocator", "swa_mapping"):
            engine = registry.load("ours").makers[stem](config)
            before = engine.snapshot()
            with pytest.raises((ValueError, TypeError, RuntimeError)):
                engine.bad(kind, 1)
            assert engine.snapshot() == before


def test_two_pools_are_called_with_plain_numbers() -> None:
    engine = PairAdapter(SWATokenToKVPoolAllocator(8, 6, 2, torch.float16, "cpu", None, False), 2)
    assert engine.tail(3, 1) == [2, 3, 4]
    seen = engine.snapshot()
    assert seen.mapping[:5] == [0, 0, 0, 0, 2]
    assert (len(seen.full.free), len(seen.swa.free), len(seen.mapping)) == (2, 2, 10)
    engine.free_swa([4])
    assert (len(engine.snapshot().swa.free), engine.snapshot().mapping[4]) == (3, 0)
    engine.free_full([2, 3, 4])
    assert len(engine.snapshot().full.free) == 4


# Faulty engines.


def test_a_fault_is_a_variant_of_our_engine_of_its_stem() -> None:
    fault = FAULTS["half_decode"]
    engine = fault.make(POOL)
    assert type(engine.engine).__name__ == "HalfDecode"
    assert isinstance(engine.engine, SWATokenToKVPoolAllocator)
    assert "bad" in engine.lacks


@pytest.mark.parametrize("fault", ALL, ids=FAULTS)
def test_every_fault_can_be_made_and_goes_to_another_process_by_its_name(fault: Fault) -> None:
    config: Json = {**POOL, "size_mamba": 4, "window": 2, "sessions": 1, "requests": 2, "kind": "unified"}
    config |= {"components": ["full", "swa", "mamba"], "buffered": True, "doubled": True, "lazy": False}
    config |= {"blocks": 4, "indices": 3, "groups": 1, "caching": True, "slots": 3, "keys": 4, "parts": 1}
    config |= {"block_size": 2, "layers": [{"kind": "full"}], "batch": 8, "drafts": 0, "eagle": False}
    config |= {"steps_in_flight": 1, "threshold": 0, "policy": "fcfs", "max_length": 8, "events": False}
    assert fault.make({**config, "page_size": 2}).snapshot() is not None
    assert pickle.loads(pickle.dumps(fault)) is fault
