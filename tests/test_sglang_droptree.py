"""A release's own scheduler, rows and sessions on our prefix cache: lawful, and as on the release's own tree but for
page numbers.

``make soak`` drives 10,000 steps of each; here it is some hundred.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from driven import driven, have

RELEASES = ("0.5.14", "0.5.23")
STEPS = 10_000 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 300
START = """
    import json, sys
    from itertools import count
    from pathlib import Path
    from conformance import known
    from conformance.check import Search, check
    from conformance.engines.sglang import PLUGIN, release
    from conformance.engines.sglang.makers import makers

    label, root, *more = sys.argv[1:]
    loaded = release.load(Path(root), label)
    listed = [one.exclude for one in known.of_release(PLUGIN.folder, label) if one.exclude]

    def drawn(tree, stem, seed, examples=12):
        make = makers(loaded, "cpu", {"tree": tree})[stem]
        excluded = known.exclusions(listed)
        return check(stem, make, Search(examples=examples, seed=seed, exclude=excluded, parts=("full",)))
"""
# The law ends a run where the release breaks it; then the release on its own tree must break it so, too.
DRIVE = """
    stem, steps = more[0], int(more[1])
    done, seeds, broken = 0, 0, []
    while done < steps:
        seeds += 1
        both = drawn("both", stem, seeds)
        done += both.steps
        if both.law is not None:
            own = drawn("own", stem, seeds)
            same = (own.law, own.detail, own.steps) == (both.law, both.detail, both.steps)
            broken.append([both.law, both.detail, same])
    print(json.dumps([{"steps": done, "broken": broken}]))
"""


def drive(release: str, stem: str, steps: int) -> Any:
    (said,) = driven(release, START + DRIVE, str(have(release)), stem, str(steps))
    return said


@pytest.mark.engine
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("stem", ["session_trim", "cache"])
def test_a_server_on_our_cache_does_what_it_does_on_its_own_tree(release: str, stem: str) -> None:
    said = drive(release, stem, STEPS)
    assert said["steps"] >= STEPS
    assert [found for found in said["broken"] if found[0] == "trees_agree" or not found[2]] == []
