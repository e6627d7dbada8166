"""The whole cache of a real release: lawful calls are followed by the law, with every kind of track buffer."""

from __future__ import annotations

import json

import pytest
from driven import driven, some

from conformance.mamba_slots.rules import LAZY, NO_BUFFER, ONE, TWO

RELEASES = ("0.5.11", "0.5.12", "0.5.13", "0.5.14")
# Two requests that share a prefix, a session of two turns whose window moves, and everything given back.
DRIVE = """
    import json, sys
    from conformance.engines.protocol import Unsupported
    from conformance.engines.registry import load
    from conformance.stems import start

    make = load("sglang", release=sys.argv[1]).makers["cache"]
    said = []
    for kind in json.loads(sys.argv[2]):
        page = 2 if kind is None or kind[0] else 1
        names = ("buffered", "doubled", "lazy")
        states = {} if kind is None else dict(zip(names, kind)) | {"size_mamba": 15}
        config = {"page_size": page, "size": 24, "size_swa": 24, "window": 2 * page, "need_sort": False, "rows": 3,
                  "sessions": 2, "components": ["full", "swa"] + ["mamba"] * (kind is not None), **states}
        try:
            run = start("cache", make, config, strict=True)
        except Unsupported as reason:
            said.append({"unsupported": str(reason)})
            continue
        turn = {"session": int(kind != [True, True, True])}  # a lazy buffer does not outlive its turn: a finding
        run.do("admit", request=0, more=4 * page + 1)
        run.do("admit", request=1, more=4 * page + 1)
        run.do("admit", request=2, more=2 * page + 1, fork=page, **turn)
        for _ in range(4 * page):
            run.do("decode", requests=[0, 2], slide=True)
        if kind == [True, True, True]:
            run.do("boundary", request=0)
            run.do("settle", request=0)
        run.do("finish", request=2)
        run.do("finish", request=1)
        run.do("admit", request=1, more=3, **turn)
        run.do("finish", request=0)
        run.do("evict", full=page, swa=page, **({"states": 1} if kind is not None else {}))
        run.do("quiesce")
        said.append({name: n for (name, outcome), n in run.law.counts.items() if outcome == "done"})
    print(json.dumps(said))
"""
KINDS = (None, TWO, LAZY, ONE, NO_BUFFER)


@pytest.mark.engine
@pytest.mark.parametrize("release", some(RELEASES))
def test_what_is_lawful_is_followed(release: str) -> None:
    plain, two, lazy, one, bare = driven(release, DRIVE, json.dumps(KINDS))
    assert {"admit", "continue_prefill", "insert_leaf", "resume", "save", "slide", "evict_leaf", "free_rest"} <= set(
        plain
    )
    for stateful in (two, one):
        assert {"state_admit", "state_copy", "state_save", "state_restore"} <= set(stateful)
        assert ("state_swap" in stateful) == (release in ("0.5.13", "0.5.14"))  # the others copy
    assert "state_track" in two
    assert "state_swap" not in bare
    assert "state_copy" in bare
    assert lazy == {"unsupported": "the release has no lazy buffer"} or {"state_second", "state_give_second"} <= set(
        lazy
    )
