"""The session caches of a real release: what the engine does and shows, and what is known of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from driven import between, driven, have, sampled, some

from conformance.engines.sglang import PLUGIN
from conformance.search.replay import rows_elsewhere
from conformance.traces import known, trace_files

WITH_BOTH = between("0.5.10", "0.5.14")  # releases whose servers build both trees
LATER = WITH_BOTH[1:]
# A plain request, two turns of a session with a chunk, a draft and a moving window, and everything given back.
DRIVE = """
    import json, sys
    from conformance.engines.registry import load

    release = sys.argv[1]
    make = load("sglang", release=release).makers["session_trim"]
    said = []
    for tree in ("swa_radix", "unified"):
        for page in (1, 2, 4, 16):
            config = {"page_size": page, "size": 12, "size_swa": 12, "window": 2 * page,
                      "need_sort": page == 2, "rows": 2}
            rows = make({**config, "tree": tree})
            first, text = rows.snapshot(), list(range(1, 2 * page + 2))
            plain = rows.admit(1, 0, [9, 9], 2)
            rows.cache(1, 5)
            turn = rows.admit(2, 1, text, page)
            rows.cache(2, None)
            chunked = rows.snapshot().requests[2].lengths
            more = rows.chunk(2, 2 * page)
            rows.cache(2, 90)
            for token in range(3 * page):
                rows.slide(2)
                rows.decode([2], [91 + token])
            rows.reserve(2, 2)
            rows.commit(2, [500])
            running = rows.snapshot()
            rows.finish(2, 3 * page + 2)
            saved = rows.snapshot()
            rows.finish(1, 1)
            text = [*text, *[90 + n for n in range(3 * page + 1)], 500]
            prefixes = [rows.look(3, 1, [*text, 7, 8]), rows.look(3, 1, [*text, 7, 8])]
            looked = rows.snapshot()
            second = rows.admit(3, 1, [*text, 7, 8], 2)
            rows.cache(3, 6)
            rows.finish(3, 1)
            closed = rows.close(1)
            rows.evict(12 * page, 12 * page)
            end = rows.snapshot()
            said.append({
                "page": page, "plain": plain, "turn": turn, "chunked": chunked, "more": more,
                "running": [v.lengths for _, v in sorted(running.requests.items())], "idle": running.sessions == {},
                "saved": saved.sessions[1].lengths, "left": sorted(saved.requests), "prefixes": prefixes,
                "looked": looked.sessions[1].lengths, "second": second, "closed": closed,
                "back": sorted(end.pools.full.free + end.pools.full.released)
                == sorted(first.pools.full.free + first.pools.full.released)
                and sorted(end.pools.swa.free + end.pools.swa.released)
                == sorted(first.pools.swa.free + first.pools.swa.released),
                "rows": sorted(end.free_rows) == sorted(first.free_rows), "tree": end.tree == {},
            })
    print(json.dumps(said))
"""


@pytest.mark.engine
@pytest.mark.parametrize("release", some(WITH_BOTH))
def test_a_real_session_is_driven_and_observed(release: str) -> None:
    for said in driven(release, DRIVE):
        page = said["page"]
        where = f"{release} page size {page}"
        whole, computed = (2 * page + 1) // page * page, 5 * page + 2
        assert (said["plain"], said["turn"], said["more"]) == ([0, True], [0, True], True), where
        assert said["chunked"] == [0, 0, page, page], "a chunk of a turn is not the tree's yet"
        _, running = said["running"]
        assert (running[0], *running[2:]) == (whole, computed, computed + 1), where
        assert whole <= running[1] <= computed - 2 * page, "the cursor is past the tree, and the window stays"
        assert running[1] % page == 0, where
        assert (said["idle"], said["left"]) == (True, [1]), where
        assert said["saved"][:3] == running[:3], where
        assert said["prefixes"] == [computed, computed], "a turn that was not admitted looks again"
        assert (said["second"], said["closed"]) == ([computed, True], True), where
        tail = 0 if release != "0.5.10" else said["saved"][3] - computed
        assert said["looked"][2:] == [computed, computed + tail], where
        assert (said["rows"], said["tree"]) == (True, True), where
        assert said["back"] or release == "0.5.10", "every page comes back, but for the tail that 0.5.10 forgets"


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize("release", sampled(some(PLUGIN.releases)[::-1], 2))
def test_what_is_known_still_occurs(release: str) -> None:
    have(release)
    listed = [
        k for k in known.of_release(PLUGIN.folder, release) if trace_files.load(k.trace).trace.stem == "session_trim"
    ]
    shown = rows_elsewhere([k.trace for k in listed], "sglang", release)
    assert [(row["verdict"], row["law"]) for row in shown] == [(k.verdict, k.law) for k in listed]


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("release", some(LATER))
def test_the_overwritten_tail_is_gone(release: str) -> None:
    have(release)
    names = ["turn_overwrites_tail", "turn_overwrites_tail_paged", "retract_overwrites_tail", "draft_tail_stays"]
    assert [row["verdict"] for row in rows_elsewhere(names, "sglang", release)] == ["conforms"] * len(names)


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("release", some(LATER))
def test_a_request_that_was_turned_away_takes_no_state_of_its_session(release: str, tmp_path: Path) -> None:
    """The harness once showed the session without its states while such a request ran."""
    have(release)
    config = {
        **{"rows": 2, "size": 2, "page_size": 1, "tree": "swa_radix", "size_swa": 2, "size_mamba": 6, "window": 1},
        **{"need_sort": False, "buffered": False, "doubled": False, "lazy": False, "sessions": 2},
        "components": ["full", "swa", "mamba"],
    }
    steps = [
        {"op": "admit", "request": 0, "more": 1, "session": 1, "unknown": True},
        {"op": "finish", "request": 0},
        {"op": "overlapping_turn", "request": 1, "session": 1, "unsupported": True},
        {"op": "admit", "request": 1},
    ]
    file = tmp_path / "turned_away.json"
    file.write_text(json.dumps({"stem": "cache", "config": config, "steps": steps}))
    (row,) = rows_elsewhere([str(file)], "sglang", release)
    assert row["verdict"] == "conforms", row
