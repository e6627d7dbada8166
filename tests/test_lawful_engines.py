"""Lawful engines in styles of the field that are neither SGLang's nor vLLM's conform, and the bug of one line that is
planted in each is found (``lawful_engines``). Beside each place at which the law or the explanation grew for them, the
neighbouring wrong behaviour is still found.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from driven import SOAK, Variant
from lawful_engines import copying_rows, nano_blocks

from conformance.driver.lockstep import CONFORMS, VIOLATION, Finding, LockStep
from conformance.driver.protocol import Json
from conformance.engines import registry
from conformance.search.check import Search, check
from conformance.stems.lock_ref.protocol import Inserted
from conformance.stems.stem_registry import start
from conformance.stems.vetting import vetted

FOLDER = Path(__file__).parent / "lawful_engines"
PLANTED: dict[str, dict[str, str]] = tomllib.loads((FOLDER / "planted.toml").read_text(encoding="utf-8"))
FULL = {"parts": ("full",)}
DRIVEN: dict[str, tuple[str, dict[str, Any]]] = {  # the stem, and which configurations are drawn
    "anew_tree": ("lock_ref", {**FULL, "page_sizes": (1,)}),
    "nano_blocks": ("block_pool", {}),
    "lazy_lru_tree": ("lock_ref", FULL),
    "copying_rows": ("session_trim", FULL),
    "plain_rows": ("session_trim", FULL),
}
SEEDS = (None, 1, 2, 3)
Make = Callable[[Json], Any]


def test_each_engine_has_one_planted_bug() -> None:
    assert sorted(PLANTED) == sorted(DRIVEN) == sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


@pytest.mark.soak(but=3)
@pytest.mark.parametrize("seed", SEEDS if SOAK else SEEDS[:2])
@pytest.mark.parametrize("name", DRIVEN)
def test_a_lawful_engine_conforms(name: str, seed: int | None) -> None:
    stem, drawn = DRIVEN[name]
    make = vetted(stem, import_module(f"lawful_engines.{name}").make, name)
    result = check(stem, make, Search(examples=200 if SOAK else 40, seed=seed, **drawn))
    assert result.verdict == CONFORMS, (result.law, result.detail, result.trace)
    assert result.steps > 300


@pytest.mark.soak(but=2)
@pytest.mark.parametrize("seed", SEEDS if SOAK else SEEDS[:2])
@pytest.mark.parametrize("name", DRIVEN)
def test_its_planted_bug_is_found(name: str, seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, bug = (FOLDER / f"{name}.py").read_text(encoding="utf-8"), PLANTED[name]
    assert text.count(bug["line"]) == 1
    (tmp_path / f"planted_{name}.py").write_text(text.replace(bug["line"], bug["bug"]), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    stem, drawn = DRIVEN[name]
    make = vetted(stem, import_module(f"planted_{name}").make, name)
    assert check(stem, make, Search(seed=seed, **drawn)).verdict == VIOLATION


# A tree that evicts what is not locked before it inserts.

TREE: Json = {"page_size": 1, "size": 5, "size_swa": 5, "size_mamba": 2, "window": 2, "kind": "unified"}


def test_a_leaf_that_is_evicted_and_inserted_anew_is_no_split() -> None:
    lock = start("lock_ref", import_module("lawful_engines.anew_tree").make, {**TREE, "components": ["full"]})
    lock.do("insert", tokens=[1, 2, 3, 4])
    lock.do("insert", tokens=[1, 2])
    assert lock.law.counts["evict_leaf", "done"] == 1
    assert lock.law.counts["split", "done"] == 0
    assert lock.law.counts["add_leaf", "done"] == 2


def evicts_first(config: Json) -> Any:
    """Our tree, which evicts all leaves that nobody holds before each insert."""
    tree = registry.load("ours").makers["lock_ref"](config)

    def insert(tokens: list[int], cursor: int, protected: int) -> Inserted | None:
        tree.evict(64, 0, 0)
        found: Inserted | None = tree.insert(tokens, cursor, protected)
        return found

    return Variant(tree, insert=insert)


@pytest.mark.parametrize("parts", [("full",), ("full", "swa"), ("full", "mamba"), ("full", "swa", "mamba")])
def test_nodes_with_any_parts_may_be_evicted_and_inserted_anew(parts: tuple[str, ...]) -> None:
    result = check("lock_ref", evicts_first, Search(examples=60 if SOAK else 25, parts=parts))
    assert result.verdict == CONFORMS, (result.law, result.detail, result.trace)


class GivesOthersSlots(Variant):
    """A tree that shows the slots of its longest node for every node that has as many tokens."""

    def snapshot(self) -> Any:
        seen = self.engine.snapshot()
        for node in seen.nodes:
            if len(node.key) == 2:
                node.parts["full"].slots[0] = 5
        return seen


def refused(lock: LockStep, op: str, **arguments: Any) -> Finding:
    with pytest.raises(Finding) as caught:
        lock.do(op, **arguments)
    return caught.value


def test_slots_that_are_not_the_inserts_explain_no_eviction() -> None:
    lock = start("lock_ref", lambda config: GivesOthersSlots(tree_of(config)), {**TREE, "components": ["full"]})
    lock.do("insert", tokens=[1, 2, 3])
    found = refused(lock, "insert", tokens=[1, 2])
    assert found.law == "every_slot_has_one_owner"
    assert "node [1, 2] has the full slots" in found.detail


def tree_of(config: Json) -> Any:
    return registry.load("ours").makers["lock_ref"](config)


# One block for each hash.

BLOCKS: Json = {"blocks": 4, "groups": 1, "caching": True, "rows": 5, "indices": 4}
TWICE: list[Json] = [
    {"op": "admit", "row": 1, "text": [1, 1], "to": 1},
    {"op": "compute", "row": 1, "to": 1},
    {"op": "admit", "row": 2, "text": [1, 1], "to": 1},
    {"op": "compute", "row": 2, "to": 1},
]


def blocks(make: Make, steps: Sequence[Json]) -> LockStep:
    lock = start("block_pool", make, BLOCKS)
    for step in steps:
        lock.do(**step)
    return lock


def test_the_newer_of_two_equal_blocks_may_be_the_one_that_is_found() -> None:
    lock = blocks(nano_blocks.make, TWICE)
    assert lock.law.counts["displace", "done"] == 1
    lock.do("release", row=2)
    lock.do("admit", row=3, text=[2, 2], to=3)  # takes the newer block too: then none is found
    lock.do("admit", row=2, text=[1, 1], hits=1, to=0)
    run: Any = lock.run
    assert not run.tables[2].blocks


def test_the_older_of_two_equal_blocks_may_stay_the_one_that_is_found() -> None:
    class KeepsFirst(nano_blocks.BlockManager):
        def cache(self, group: int, text: Sequence[int], table: Sequence[int], first: int, last: int) -> None:
            for place in range(first, last):
                if self.find(group, text[: place + 1]) is None:
                    super().cache(group, text, table, place, place + 1)

    result = check("block_pool", lambda config: KeepsFirst(config["blocks"]), Search(examples=20))
    assert result.verdict == CONFORMS, (result.law, result.detail)


class LosesAnother(nano_blocks.BlockManager):
    """A block that gets a hash takes the hash of a block with another text away."""

    def cache(self, group: int, text: Sequence[int], table: Sequence[int], first: int, last: int) -> None:
        super().cache(group, text, table, first, last)
        self.evict([block for block in self.blocks if block not in table])


def test_a_block_with_another_text_is_not_displaced() -> None:
    other = [{**step, "text": [2, 2]} if "text" in step else step for step in TWICE[2:]]
    lock = blocks(lambda config: LosesAnother(config["blocks"]), [*TWICE[:2], *other[:1]])
    found = refused(lock, **other[1])
    assert "what the prefix cache finds block" in found.detail
    assert "is nothing, the law has [1]" in found.detail


def test_a_block_is_displaced_only_when_another_gets_its_hash() -> None:
    class LosesLater(nano_blocks.BlockManager):
        def touch(self, blocks: Sequence[int]) -> None:
            super().touch(blocks)
            self.evict(blocks)

    lock = blocks(lambda config: LosesLater(config["blocks"]), TWICE)
    assert "is nothing, the law has [1]" in refused(lock, "admit", row=3, text=[1, 1], hits=1, to=1).detail


# Rows that copy.

ROWS: Json = {
    **{"page_size": 1, "size": 6, "size_swa": 1, "window": 1, "need_sort": False, "rows": 3, "sessions": 0},
    **{"tree": "unified", "components": ["full"]},
}
HIT: list[Json] = [{"op": "admit", "request": 0, "more": 3}, {"op": "finish", "request": 0}]


def copied(copies: Callable[[list[tuple[int, int]]], list[tuple[int, int]]]) -> LockStep:
    """A run in which a request hits two cached tokens. ``copies``: what the engine copies instead."""

    class Copies(copying_rows.CopyingRows):
        def admit(self, request: int, session: int, tokens: list[int], most: int) -> Any:
            answer = super().admit(request, session, tokens, most)
            self.copies = copies(self.copies)
            return answer

    lock = start("session_trim", lambda config: Copies(config["rows"], config["size"], config["page_size"]), ROWS)
    for step in HIT:
        lock.do(**step)
    return lock


def test_a_copied_prefix_is_read_by_its_row() -> None:
    lock = copied(lambda copies: copies)
    lock.do("admit", request=1, more=3)
    assert lock.run.seen.requests[1].lengths.protected == 0
    assert lock.law.counts["extend", "done"] == 2


@pytest.mark.parametrize(
    ("copies", "said"),
    [
        (lambda copies: copies[:-1], "reads a slot that nobody has written"),
        (
            lambda copies: [(target, source) for source, target in copies[:1]] + copies[1:],
            "reads a slot that nobody has written",
        ),
        (lambda copies: copies[:1] + [(copies[0][0], target) for _, target in copies[1:]], "reads request 0's tokens"),
    ],
)
def test_a_copy_that_misses_or_mixes_tokens_is_found(copies: Any, said: str) -> None:
    found = refused(copied(copies), "admit", request=1, more=3)
    assert found.law == "reads_own_content"
    assert said in found.detail


def test_an_engine_that_shares_may_not_show_a_copy() -> None:
    class Shares(copying_rows.CopyingRows):
        lacks = tuple(name for name in copying_rows.LACKS if name != "share_prefix")  # type: ignore[assignment]

    lock = start("session_trim", lambda config: Shares(config["rows"], config["size"], config["page_size"]), ROWS)
    for step in HIT:
        lock.do(**step)
    assert refused(lock, "admit", request=1, more=3)
