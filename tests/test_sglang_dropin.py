"""A release's own scheduler and trees on our allocators: lawful, and as on the release's own but for page numbers."""

from __future__ import annotations

from typing import Any

import pytest
from driven import NEWEST, SOAK, driven, have, sampled, some

RELEASES = ("0.5.14", NEWEST)
STEPS = 10_000 if SOAK else 400
START = """
    import json, os, sys
    from itertools import count
    from pathlib import Path
    import torch
    from conformance.stems.exclusions import exclusions
    from conformance.traces import known
    from conformance.search.check import Search, check
    from conformance.driver.protocol import EngineError
    from conformance.engines.sglang import PLUGIN
    from conformance.engines.sglang.releases import release
    from conformance.engines.sglang.replacing import dropin
    from conformance.engines.sglang.replacing.hooks import HOOKS
    from conformance.engines.sglang.driving.makers import makers
    from conformance.driver.lockstep import Finding

    label, root, *more = sys.argv[1:]
    loaded = release.load(Path(root), label)
"""
# The law ends a run where the release breaks it; then the release on its own allocators must break it so, too.
DRIVE = """
    stem, steps = more[0], int(more[1])
    listed = [one.exclude for one in known.of_release(PLUGIN.folder, label) if one.exclude]
    def drawn(allocators, seed):
        make = makers(loaded, "cpu", {"allocators": allocators})[stem]
        return check(stem, make, Search(examples=12, seed=seed, exclude=exclusions(listed)))
    done, seeds, broken = 0, 0, []
    while done < steps:
        seeds += 1
        both = drawn("both", seeds)
        done += both.steps
        if both.law is not None:
            own = drawn("own", seeds)
            same = (own.law, own.detail, own.steps) == (both.law, both.detail, both.steps)
            broken.append([both.law, both.detail, same])
    print(json.dumps([{"steps": done, "broken": broken}]))
"""
# Our allocator of one pool hands out one page twice; the servers must be told apart by the comparison alone.
FAULT = """
    from impl.allocator import BaseTokenToKVPoolAllocator as Pool
    put = Pool.put
    Pool.put = lambda self, pages: put(self, pages[:-1]) if pages.numel() > 1 else put(self, pages)
    make = makers(loaded, "cpu", {"allocators": "both"})["session_trim"]
    found = None
    for seed in count(1):
        found = check("session_trim", make, Search(examples=10, seed=seed))
        if found.law == "allocators_agree" or seed > 5:
            break
    print(json.dumps([{"law": found.law, "detail": found.detail}]))
"""
CLASSES = """
    os.environ[dropin.DEBUG_SWITCH] = "1"
    ours = dropin.with_stand_ins(loaded)
    said = []
    for one in (ours.allocator(8, 1, False), ours.allocator(8, 2, False), ours.swa_allocator(8, 8, 2, False)):
        name = type(one).__name__
        own = [kind for kind in type(one).__mro__ if kind.__module__.startswith("sglang.")]
        hooks = [name for name in HOOKS if any(name in vars(kind) for kind in own)]
        hidden = [name for kind in own for name in vars(kind) if not name.startswith("__") and not hasattr(one, name)]
        parts = [part for part in (getattr(one, "full_attn_allocator", None),) if part is not None]
        said.append({
            "instance": isinstance(one, loaded.imported.find_class(name, dropin.STAND_INS[name][1])),
            "debug": [one.debug, one.debug_mode, *(part.debug for part in parts)],
            "hooks": all(getattr(type(one), name).__module__.startswith("sglang.") for name in hooks), "of": len(hooks),
            "alloc": type(one).alloc.__module__, "hidden": sorted(set(hidden)),
            "parts": [any(kind.__module__.startswith("sglang.") for kind in type(part).__mro__) for part in parts],
        })
    os.environ[dropin.DEBUG_SWITCH] = "0"
    said.append({"debug": ours.allocator(8, 1, False).debug})
    print(json.dumps(said))
"""


def drive(release: str, stem: str, steps: int) -> Any:
    (said,) = driven(release, START + DRIVE, str(have(release)), stem, str(steps))
    return said


@pytest.mark.engine
@pytest.mark.parametrize("release", some(RELEASES))
@pytest.mark.parametrize(("stem", "steps"), sampled([("cache", STEPS), ("session_trim", STEPS)], 2))
def test_a_server_on_our_allocators_does_what_it_does_on_its_own(release: str, stem: str, steps: int) -> None:
    said = drive(release, stem, steps)
    assert said["steps"] >= steps
    assert [found for found in said["broken"] if found[0] == "allocators_agree" or not found[2]] == []


@pytest.mark.engine
def test_servers_that_differ_are_told_apart() -> None:
    (said,) = driven("0.5.14", START + FAULT, str(have("0.5.14")))
    assert said["law"] == "allocators_agree"
    assert "slotproof has" in said["detail"]


@pytest.mark.engine
@pytest.mark.parametrize("release", RELEASES)
def test_a_class_of_ours_is_one_of_the_releases_with_its_hooks_and_none_of_its_lists(release: str) -> None:
    *said, quiet = driven(release, START + CLASSES, str(have(release)))
    assert quiet == {"debug": False}
    for one in said:
        assert one["instance"]
        assert all(one["debug"])
        assert one["hooks"]
        assert one["alloc"].startswith("impl.")
        assert all(one["parts"])
    if release == NEWEST:
        assert [one["of"] > 10 for one in said] == [True] * 3
        assert "free_page_ids" in said[1]["hidden"]
