"""The trees of a real release: what the engine does and shows, for every component set."""

from __future__ import annotations

import json

import pytest
from driven import between, driven, have, some

WITH_ALL = between("0.5.11", "0.5.14")  # releases whose servers build each of these trees
TREES = [
    ("unified", ("full", "swa")),
    ("unified", ("full", "mamba")),
    ("unified", ("full", "swa", "mamba")),
    ("swa_radix", ("full", "swa")),
]
# Two rows with one prefix, a lock on the longer one, an eviction beside it, then everything given back.
DRIVE = """
    import json, sys
    from dataclasses import asdict
    from pathlib import Path
    from conformance.driver.protocol import Misuse
    from conformance.engines.sglang.releases import release
    from conformance.engines.sglang.driving.makers import makers

    label, root, trees = sys.argv[1:]
    make = makers(release.load(Path(root), label))["lock_ref"]
    said = []
    for kind, components in json.loads(trees):
        for page in (1, 2):
            tree = make({"kind": kind, "components": components, "page_size": page, "size": 24 // page,
                         "size_swa": 24 // page, "window": 4, "size_mamba": 4})
            full = tree.snapshot().free
            one, two = list(range(1, 9)), [1, 2, 3, 4, 21, 22, 23, 24]
            prefixes = [tree.insert(one).prefix, tree.insert(two).prefix]
            found = tree.match(one)
            handle = tree.acquire(found.node)
            tree.evict(full=2, swa=2)
            held = tree.snapshot()
            longer = tree.insert([*one, 31, 32, 33, 34], cursor=10, protected=found.length)
            refused = 0
            for misuse in (lambda: tree.acquire(99), lambda: tree.release(99), lambda: tree.insert(one, protected=7)):
                try:
                    misuse()
                except Misuse:
                    refused += 1
            below = [node for node in tree.snapshot().nodes if node.key[:2] == [31, 32]]
            tree.release(handle)
            tree.evict(24, 24, 24)
            end = tree.snapshot()
            said.append({
                "prefixes": prefixes, "matched": found.length, "held": asdict(held), "longer": longer.prefix,
                "below": asdict(below[0]), "end": asdict(end), "refused": refused,
                "back": all(sorted(end.free[name]) == sorted(full[name]) for name in full),
            })
    print(json.dumps(said))
"""


@pytest.mark.engine
@pytest.mark.parametrize("release", some(WITH_ALL))
def test_a_real_tree_is_driven_and_observed(release: str) -> None:
    answers = driven(release, DRIVE, str(have(release)), json.dumps(TREES))
    for said, (kind, components) in zip(answers, [tree for tree in TREES for _ in range(2)], strict=True):
        where = f"{release} {kind} {components}"
        assert (said["prefixes"], said["matched"], said["longer"]) == ([0, 4], 8, 8), where
        nodes = {node["id"]: node for node in said["held"]["nodes"]}
        root, *path = nodes.values()
        assert (root["parent"], root["key"], [n["key"] for n in path]) == (None, [], [[1, 2, 3, 4], [5, 6, 7, 8]]), (
            where
        )
        assert [n["parts"]["full"]["lock"] for n in path] == [1, 1], where
        assert (said["held"]["evictable"]["full"], said["held"]["protected"]["full"]) == (0, 8), where
        if "swa" in components:  # the window of 4 is the lower node
            assert [n["parts"]["swa"]["lock"] for n in path] == [0, 1], where
            assert said["below"]["parts"]["swa"]["slots"] is None, "the part below the cursor is a tombstone"
        if "mamba" in components:
            assert [(n["parts"]["mamba"]["lock"], n["parts"]["mamba"]["slots"] is None) for n in path] == [
                (0, True),
                (1, False),
            ], where
        assert said["refused"] == 3, where
        assert said["back"], where
        assert [n["key"] for n in said["end"]["nodes"]] == [[]], where
