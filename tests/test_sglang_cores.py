"""The two cores of a real release's unified tree: which one runs, what the Rust core shows, and that both agree."""

from __future__ import annotations

import pytest
from driven import NEWEST, driven, have

from conformance.engines.sglang.driving.windows import Windows

NO_RUST = "sglang 0.5.18 has no Rust core of its tree"
START = """
    import json, sys
    from pathlib import Path
    from conformance.driver.protocol import EngineError
    from conformance.engines.sglang.releases import release
    from conformance.engines.sglang.driving.makers import makers
    from conformance.driver.lockstep import Finding

    label, root = sys.argv[1:]
    loaded = release.load(Path(root), label)
    CONFIG = {"kind": "unified", "components": ["full", "swa", "mamba"], "page_size": 1, "size": 16, "size_swa": 16,
              "window": 2, "size_mamba": 4}
    def tree(core):
        return makers(loaded, "cpu", {"core": core})["lock_ref"](CONFIG)
"""
CORES = """
    said = {}
    for core in ("default", "python", "rust", "both"):
        try:
            said[core] = tree(core).ran["core"]
        except EngineError as error:
            said[core] = str(error)
    print(json.dumps([said]))
"""
SHOWN = """
    rust = tree("rust")
    rust.insert([1, 2, 3, 4])
    rust.insert([1, 2, 7])
    first, second = rust.acquire(rust.match([1, 2, 3, 4]).node), rust.acquire(rust.match([1, 2, 3, 4]).node)
    def parts(tokens):
        found, at = {}, {0: ()}
        for node in rust.snapshot().nodes[1:]:
            at[node.id] = (*at[node.parent], *node.key)
            found[at[node.id]] = {name: (part.lock, part.held, part.slots is None) for name, part in node.parts.items()}
        return [found[tuple(tokens[:n + 1])] for n in range(len(tokens)) if tuple(tokens[:n + 1]) in found]
    held, beside = parts([1, 2, 3, 4]), parts([1, 2, 7])
    rust.release(first)
    once = parts([1, 2, 3, 4])
    rust.release(second)
    print(json.dumps([{"held": held[-1], "above": held[0], "beside": beside[-1], "once": once[-1],
                       "free": parts([1, 2, 3, 4])[-1]}]))
"""
FALLS_BACK = """
    loaded.imported.module("rust_extensions.torch_build")._MAX_SUPPORTED_TORCH = (1, 0)
    said = {}
    for core in ("default", "rust", "both"):
        try:
            said[core] = tree(core).ran["core"]
        except EngineError as error:
            said[core] = str(error)
    print(json.dumps([said]))
"""
BROKEN = """
    both = tree("both")
    both.insert([1, 2, 3, 4])
    handle = both.acquire(both.match([1, 2, 3, 4]).node)
    both.snapshot()
    python = both._sides[1].engine
    python.locks.release = lambda *_: None
    said = ""
    try:
        both.release(handle)
        both.snapshot()
    except Finding as finding:
        said = f"{finding.law}: {finding.detail}"
    print(json.dumps([said]))
"""


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize(
    ("release", "default", "rust", "both"),
    [
        (
            "0.5.18",
            "python",
            "sglang 0.5.18 has no Rust core of its tree",
            "sglang 0.5.18 has no Rust core of its tree",
        ),
        ("0.5.20", "python", "rust", "rust and python"),
        (NEWEST, "rust", "rust", "rust and python"),
    ],
)
def test_the_core_that_runs_is_read_off_the_tree(release: str, default: str, rust: str, both: str) -> None:
    (said,) = driven(release, START + CORES, str(have(release)))
    assert said == {"default": default, "python": "python", "rust": rust, "both": both}


@pytest.mark.engine
def test_a_core_that_is_asked_for_and_falls_back_is_an_error_with_the_releases_reason() -> None:
    (said,) = driven(NEWEST, START + FALLS_BACK, str(have(NEWEST)))
    assert said["default"] == "python"
    for core in ("rust", "both"):
        assert said[core].startswith(f"sglang {NEWEST}: core rust was asked for and core python was built: PyTorch ")


@pytest.mark.engine
def test_a_rust_core_shows_full_lock_counts_and_whether_other_parts_are_held() -> None:
    (said,) = driven(NEWEST, START + SHOWN, str(have(NEWEST)))
    assert said["held"] == {"full": [2, None, False], "swa": [None, True, False], "mamba": [None, True, False]}
    assert said["above"] == {"full": [2, None, False], "swa": [None, False, False], "mamba": [None, None, True]}
    assert said["beside"] == {"full": [0, None, False], "swa": [None, False, False], "mamba": [None, False, False]}
    assert said["once"] == {"full": [1, None, False], "swa": [None, True, False], "mamba": [None, True, False]}
    assert said["free"] == {"full": [0, None, False], "swa": [None, False, False], "mamba": [None, False, False]}


@pytest.mark.engine
def test_a_core_that_forgets_a_release_disagrees_with_the_other() -> None:
    (said,) = driven(NEWEST, START + BROKEN, str(have(NEWEST)))
    assert str(said).startswith("cores_agree: snapshot: rust has node [1, 2]")
    assert "python has" in str(said)


def test_a_lock_whose_node_has_left_the_tree_ends_nowhere() -> None:
    assert Windows(4).tops(object(), []) == []
