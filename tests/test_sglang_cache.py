"""The whole cache of a real release: lawful calls are followed by the law, with every kind of track buffer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from driven import NEWEST, between, driven, some

from conformance.stems.mamba_slots.rules import LAZY, NO_BUFFER, ONE, TWO

EARLY = between("0.5.11", "0.5.14")
# Two requests that share a prefix, a session of two turns whose window moves, and everything given back.
DRIVE = """
    import json, sys
    from conformance.driver.protocol import Unsupported
    from conformance.engines.registry import load
    from conformance.stems.stem_registry import start

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
@pytest.mark.parametrize("release", some(EARLY))
def test_what_is_lawful_is_followed(release: str) -> None:
    plain, two, lazy, one, bare = driven(release, DRIVE, json.dumps(KINDS))
    assert {"admit", "continue_prefill", "insert_leaf", "resume", "save", "slide", "evict_leaf", "free_rest"} <= set(
        plain
    )
    for stateful in (two, one):
        assert {"state_admit", "state_save", "state_restore"} <= set(stateful)
        given = "state_swap" if release in ("0.5.13", "0.5.14") else "state_copy"
        assert {"state_swap", "state_copy"} & set(stateful) == {given}
    assert "state_track" in two
    assert "state_swap" not in bare
    assert "state_copy" in bare
    assert lazy == {"unsupported": "the release has no lazy buffer"} or {"state_second", "state_give_second"} <= set(
        lazy
    )


# Requests of which the newest goes on from the middle of what the tree has, or had: the tree gets the shared page with
# its SWA page, and the window moves afterwards.
BRANCHES = """
    import json, sys
    from conformance.engines.registry import load
    from conformance.stems.stem_registry import start

    make = load("sglang", release=sys.argv[1]).makers["cache"]
    config = {"page_size": 1, "size": 6, "size_swa": 5, "window": 2, "need_sort": False, "rows": 3, "sessions": 1,
              "components": ["full", "swa"], "tree": "unified"}
    said = []
    for earlier in ([(4, 1)], [(3, 1), (3, 0)]):
        run = start("cache", make, config, strict=True)
        for more, fork in earlier:
            run.do("admit", request=0, more=more, fork=fork)
            run.do("finish", request=0)
        run.do("admit", request=0, more=5, fork=2)
        row = run.run.calls.view(0).lengths
        said.append([row.protected, row.cursor])
        run.do("quiesce")
    print(json.dumps(said))
"""


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize("release", some(between("0.5.20")))
def test_a_window_may_move_after_the_tree_took_the_beginning_of_a_prompt(release: str) -> None:
    """``SWAComponent.cleanup_after_caching_req``: the tree's page has its SWA page, though the cursor is behind it."""
    said: list[Any] = driven(release, BRANCHES)
    assert said == [[1, 2], [1, 2]]


# A request that runs puts a state into the tree where no state slot is free: it gives up the state of its own lock, and
# the tree evicts that.
FULL = """
    import json, sys
    from conformance.engines.registry import load
    from conformance.stems.stem_registry import start

    make = load("sglang", release=sys.argv[1]).makers["cache"]
    sizes = {"page_size": 1, "size": 4, "size_swa": 4, "window": 1, "need_sort": False, "rows": 1, "sessions": 1}
    kinds = {"lazy": {"buffered": True, "doubled": True, "lazy": True}, "one": {"buffered": True, "doubled": False,
             "lazy": False}}
    runs = [
        ("lazy", ["admit 2", "boundary", "track", "checkpoint 2"]),
        ("lazy", ["admit 2", "decode", "track", "boundary", "checkpoint 3"]),
        ("one", ["admit 1", "decode", "release_swa", "evict", "track", "checkpoint 2"]),
    ]
    said = []
    for kind, steps in runs:
        config = {**sizes, **kinds[kind], "size_mamba": 4, "components": ["full", "swa", "mamba"], "tree": "unified"}
        run = start("cache", make, config, strict=True)
        for step in steps:
            op, *number = step.split()
            more = {"admit": "more", "checkpoint": "upto"}.get(op)
            named = {"decode": {"requests": [0]}, "evict": {"states": 1}}.get(op, {"request": 0})
            run.do(op, **named, **({more: int(number[0])} if more else {}))
        counts = run.run.law.counts
        said.append([counts[name, "done"] for name in ("release_state", "state_evict", "state_swap")])
        run.do("quiesce")
    print(json.dumps(said))
"""


@pytest.mark.engine
def test_a_request_may_give_up_the_state_of_its_lock_for_its_next_track() -> None:
    """``MambaComponent._alloc_mamba_slot`` of 0.5.23."""
    said: list[Any] = driven("0.5.23", FULL)
    assert said == [[1, 1, 2]] * 3, "given up, evicted, and given to the tree in exchange for the next track"


# A request whose prompt is computed elsewhere, another one that reads its pages, and one that is refused. What the rows
# and the pools look like after every step.
TAILS = """
    import json, sys
    from conformance.engines.registry import load
    from conformance.stems.stem_registry import start

    make = load("sglang", release=sys.argv[1]).makers["cache"]
    config = {"page_size": 4, "size": 9, "size_swa": 9, "window": 4, "need_sort": False, "rows": 3, "sessions": 2,
              "components": ["full", "swa"]}
    run = start("cache", make, config, strict=True)
    if "admit_tail" in run.run.lacks:
        print(json.dumps([{}]))
        sys.exit()
    said = []

    def do(op, **arguments):
        run.do(op, **arguments)
        rows = run.run.seen.rows
        said.append({"op": op, "rows": {n: list(row.lengths) for n, row in rows.requests.items()},
                     "free": [len(pool.free) + len(pool.released) for pool in (rows.pools.full, rows.pools.swa)]})

    do("admit_tail", request=0, more=26)
    do("admit_tail", request=1, more=30)
    do("admit_tail", request=2, more=12, fork=4)
    do("decode", requests=[0, 1], slide=True)
    do("finish", request=1)
    do("finish", request=0)
    run.do("quiesce")
    said.append({name: n for (name, outcome), n in run.law.counts.items() if outcome == "done"})
    print(json.dumps(said))
"""


@pytest.mark.engine
@pytest.mark.parametrize("release", some(["0.5.18", *between("0.5.20")]))
def test_a_prompt_that_is_computed_elsewhere_has_swa_slots_for_its_tail_alone(release: str) -> None:
    first, *later = driven(release, TAILS)
    if release == "0.5.18":
        assert not first, "a server of this release ends at the start"
        return
    second, refused, _, _, _, counts = later
    # Of 26 tokens the last 6 have SWA slots: a window before the last whole page is what a later match needs.
    assert first["rows"] == {"0": [24, 20, 26, 26]}
    assert first["free"] == [2, 7]
    # The second request reads the 24 tokens that the tree has by now, and takes 2 pages of each pool for the rest.
    assert second["rows"]["1"] == [28, 24, 30, 30]
    assert second["free"] == [0, 5]
    assert "2" not in refused["rows"], "no page is free, and the tree can give up none"
    assert counts["admit_tail"] == 2
    assert counts["continue_prefill"] == 2


# A request that decodes puts a part of its answer into the tree, and goes on; a turn of a session its input alone.
CHECKPOINTS = """
    import json, sys
    from conformance.engines.registry import load
    from conformance.stems.stem_registry import start

    make = load("sglang", release=sys.argv[1]).makers["cache"]
    config = {"page_size": 2, "size": 24, "size_swa": 24, "window": 4, "need_sort": False, "rows": 3, "sessions": 2,
              "components": ["full", "swa"]}
    run = start("cache", make, config, strict=True)
    if "checkpoint" in run.run.lacks:
        print(json.dumps([{}]))
        sys.exit()
    said = []

    def shows():
        rows, tree = run.run.seen.rows, run.run.seen.tree
        said.append({"protected": {n: row.lengths.protected for n, row in rows.requests.items()},
                     "tree": sum(len(node.key) for node in tree.nodes)})

    run.do("admit", request=0, more=5)
    run.do("admit", request=1, more=3, session=1, fork=2)
    for _ in range(6):
        run.do("decode", requests=[0, 1], slide=True)
    shows()
    run.do("checkpoint", request=0, upto=9)
    run.do("checkpoint", request=1, upto=3)
    shows()
    run.do("decode", requests=[0, 1], slide=True)
    run.do("checkpoint", request=0, upto=12)
    shows()
    run.do("finish", request=0)
    run.do("finish", request=1)
    run.do("quiesce")
    said.append({name: n for (name, outcome), n in run.law.counts.items() if outcome == "done"})
    print(json.dumps(said))
"""


@pytest.mark.soak(but=1)
@pytest.mark.engine
@pytest.mark.parametrize("release", ["0.5.22", NEWEST])
def test_a_request_that_decodes_puts_what_it_has_computed_into_the_tree(release: str) -> None:
    before, *later = driven(release, CHECKPOINTS)
    if release == "0.5.22":
        assert not before, "the tree of this release looks for the node again, and may not find it"
        return
    after, again, counts = later
    assert before == {"protected": {"0": 4, "1": 2}, "tree": 6}
    assert after == {"protected": {"0": 8, "1": 2}, "tree": 10}
    assert again == {"protected": {"0": 12, "1": 2}, "tree": 14}
    assert counts["continue_prefill"] == 4


# What a request gives back before its end, once for each case: the page size, whether there are states, and what of the
# release or of the harness is not done ("" for nothing).
GIVE_BACK = """
    import json, sys
    from conformance.engines.registry import load
    from conformance.driver.lockstep import Finding
    from conformance.stems.stem_registry import start

    make = load("sglang", release=sys.argv[1]).makers["cache"]
    SENT = ("release_swa", "roll_back", "interrupted_admit", "interrupted_chunk", "interrupted_decode")

    def given_back(run, page, broken):
        engine, pools = run.run.engine, run.run.engine.memory.pools.engine
        offers, free, freed = [name not in run.run.lacks for name in SENT], pools.free, []
        run.do("admit", request=0, more=4 * page + 1)
        run.do("admit", request=1, more=4 * page + 1)
        run.do("admit", request=2, more=4 * page + 1, chunk=1, fork=1)
        for _ in range(2 * page):
            run.do("decode", requests=[0, 1])
        pools.free = lambda slots: freed.append(len(slots)) or free(slots)
        if broken == "slots":
            pools.free = lambda *_: None
        if broken == "raise":
            engine.undoing._interrupted = lambda step: step()
        if broken == "lock":
            engine.undoing.release_swa = lambda *_: None
        if offers[4]:
            run.do("interrupted_decode", requests=[0, 1])
        if offers[3]:
            run.do("interrupted_chunk", request=2)
        if broken == "":
            pools.free = free
        if offers[1]:
            run.do("reserve", request=0, more=3 * page)
            run.do("commit", request=0, count=page)
            run.do("roll_back", request=0, count=page)
            run.do("roll_back", request=0, count=page)
        if offers[0]:
            run.do("release_swa", request=0)
        pools.free = free
        run.do("chunk", request=2)
        run.do("evict", full=0, swa=20 * page)
        run.do("decode", requests=[0, 1])
        run.do("quiesce")
        return freed

    said = []
    for page, mamba, broken in json.loads(sys.argv[2]):
        states = {"buffered": True, "doubled": True, "lazy": False, "size_mamba": 15} if mamba else {}
        config = {"page_size": page, "size": 24, "size_swa": 24, "window": 2 * page, "need_sort": False, "rows": 3,
                  "sessions": 2, "components": ["full", "swa"] + ["mamba"] * mamba, **states}
        run, law, freed = start("cache", make, config, strict=False), "", []
        try:
            freed = given_back(run, page, broken)
        except Finding as finding:
            law = finding.law
        counts = {f"{name} {outcome}": n for (name, outcome), n in run.law.counts.items()}
        offers = [name for name in SENT if name not in run.run.lacks]
        said.append({"law": law, "freed": freed, "offers": offers, **counts})
    print(json.dumps(said))
"""


def given_back(release: str, *cases: tuple[int, bool, str]) -> list[dict[str, Any]]:
    return driven(release, GIVE_BACK, json.dumps(cases))


@pytest.mark.engine
@pytest.mark.parametrize("release", some(between("0.5.20")))
def test_a_running_request_gives_back_its_window_and_an_interrupted_step(release: str) -> None:
    broken = [(1, False, "slots"), (1, False, "raise"), (2, False, "lock")]
    one, two, mamba, leaks, goes_on, keeps = given_back(release, (1, False, ""), (2, False, ""), (2, True, ""), *broken)
    for said in (one, two, mamba):
        assert (said["law"], said["release_swa done"]) == ("", 1)
        assert said.get("release_state done", 0) == int(said is mamba)
    assert one["offers"] == ["release_swa", "interrupted_chunk", "interrupted_decode"]
    assert (one["decode interrupted"], one["extend interrupted"]) == (1, 1)
    assert one["freed"] == [2, 4], "slots were allocated: one for each request that decodes, and the rest of a prompt"
    assert two["offers"] == mamba["offers"] == ["release_swa"], "a page has more tokens than the auxiliary cache allows"
    assert leaks["law"] == "no_leak", "slots that are not freed are leaked"
    assert goes_on["law"] == "one_owner", "the step was not interrupted"
    assert "release_swa done" not in keeps


@pytest.mark.soak
@pytest.mark.engine
def test_before_0_5_20_the_state_goes_with_the_window_and_the_request_does_not_know() -> None:
    one, mamba = given_back("0.5.18", (1, False, ""), (2, True, ""))
    assert (one["law"], one["release_swa done"], one["offers"]) == ("", 1, ["release_swa"])
    assert mamba["law"] == "mamba_pairs"


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize("release", some(("0.5.10", "0.5.13")))
def test_the_slots_of_rejected_drafts_come_back(release: str) -> None:
    *whole, leaks = given_back(release, *((page, False, "") for page in (1, 2, 4)), (1, False, "slots"))
    for said in whole:
        assert (said["law"], said["offers"], said["roll_back done"]) == ("", ["roll_back"], 2)
    assert leaks["law"] == "no_leak", "slots that are not freed are leaked"


# A checkpoint of a prompt that the tree has already: the lock, whose window and state were given back early, is taken
# anew with both.
ANEW = """
    import json, sys
    from conformance.engines.registry import load
    from conformance.stems.stem_registry import start

    make = load("sglang", release=sys.argv[1]).makers["cache"]
    config = {"page_size": 1, "size": 4, "size_swa": 3, "window": 1, "need_sort": False, "rows": 2, "sessions": 1,
              "buffered": True, "doubled": True, "lazy": True, "size_mamba": 8, "components": ["full", "swa", "mamba"],
              "tree": "unified"}
    run = start("cache", make, config, strict=True)
    run.do("admit", request=0, more=3)
    run.do("track", request=0)
    run.do("decode", requests=[0], slide=True)
    run.do("release_swa", request=0)
    tree, handle = run.run.law.state.tree, run.run.law.state.handle(0)
    before = [int(tree.swa_ref(tree.node(handle))), int(tree.mamba_ref(tree.node(handle)))]
    run.do("checkpoint", request=0, upto=3)
    tree, handle = run.run.law.state.tree, run.run.law.state.handle(0)
    after = [int(tree.swa_ref(tree.node(handle))), int(tree.mamba_ref(tree.node(handle)))]
    run.do("quiesce")
    print(json.dumps([before, after]))
"""


@pytest.mark.engine
def test_a_checkpoint_may_take_its_lock_anew() -> None:
    said: list[Any] = driven("0.5.23", ANEW)
    assert said == [[0, 0], [1, 1]]
