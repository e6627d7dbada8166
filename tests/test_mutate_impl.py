"""``slotproof mutate impl``: mutants that runs, tests and the limit of time notice, and one that nothing notices.

Not all mutants are tried here, since that takes an hour: see ``make mutate-impl``.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from cosmic_ray.mutating import mutate_code

from conformance.driver.naming import UsageError
from conformance.planted.mutants import places, record, trials
from conformance.planted.mutants.places import CodeMutant, DropStatement, Spot
from conformance.planted.mutants.record import EQUIVALENT, NO_END, OPEN, RUNS, SURVIVES, TESTS
from conformance.stems.stem_registry import STEMS
from slotproof.planted import mutating_impl

ROOT = Path(__file__).resolve().parents[1]
IMPL = ROOT / "impl"
FILE, TEST = "block_pool.py", "tests/test_impl_block_pool.py"  # a small file, and short tests
LIMITS = trials.TrialLimits(dict.fromkeys(STEMS, 0.5), dict.fromkeys(STEMS, 2.0), {TEST: 1.0})


@pytest.mark.soak(but=1)
@pytest.mark.parametrize(
    ("was", "now", "fate", "by"),
    [
        ("self.refs[block] = 1", "pass", RUNS, "block_pool "),
        ("block = self._next[NULL]", "while True: pass", NO_END, "ended by signal"),
        ("return self._free", "return self._fre", RUNS, "block_pool "),
        ("for block in filter(None, blocks):\n            self.refs", "for block in (:", RUNS, "cannot be loaded"),
        ("self._changed()\n        return taken", "return taken", SURVIVES, ""),
    ],
)
def test_what_becomes_of_a_mutant(was: str, now: str, fate: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MANY": trials.FEW, "LEAST_S": 3, "FACTOR": 2, "tests_of": lambda _: [TEST]}.items():
        monkeypatch.setattr(trials, name, value)
    text = (IMPL / FILE).read_text(encoding="utf-8")
    assert was in text
    mutant = CodeMutant(Spot(FILE, "", "", ((1, 0), (1, 0)), 0, 0, ""), was, now, text.replace(was, now))
    found = trials.judged(mutant, LIMITS)
    assert (found.fate, found.by[: len(by)]) == (fate, by)
    assert (IMPL / FILE).read_text(encoding="utf-8") == text


def test_a_test_notices_what_no_run_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "stems_of", lambda _: [])
    monkeypatch.setattr(trials, "tests_of", lambda _: [TEST])
    text = (IMPL / FILE).read_text(encoding="utf-8")
    was, now = "if self.refs[block] < times:", "if False:"
    mutant = CodeMutant(Spot(FILE, "", "", ((1, 0), (1, 0)), 0, 0, ""), was, now, text.replace(was, now))
    found = trials.judged(mutant, LIMITS)
    assert found.fate == TESTS
    assert found.by.startswith(f"{TEST}::test_")


def test_a_sample_has_each_place_once_and_depends_on_the_seed_alone() -> None:
    spots = [spot for name in (FILE, "rows.py") for spot in places.spots(IMPL / name)]
    assert len({spot.key for spot in spots}) == len(spots)
    once, again, other = (places.sample(IMPL, spots, 12, seed) for seed in (0, 0, 1))
    assert once == again != other
    assert len({(one.spot.file, one.spot.place) for one in once}) == 12
    ours = {one.spot.key for one in once if one.spot.file == FILE}
    alone = places.sample(IMPL, [spot for spot in spots if spot.file == FILE], len(ours), 0)
    assert {one.spot.key for one in alone} == ours
    for one in once:
        assert ast.dump(ast.parse(one.text)) != ast.dump(ast.parse((IMPL / one.spot.file).read_text("utf-8")))
        assert one.was != one.now


def test_annotations_and_messages_are_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text('Pair = tuple[int, 2]\ndef f(a: int | 1, b=3) -> int | 4:\n    raise ValueError(f"{a + 5}")\n')
    found = {one.now for spot in places.spots(file) if (one := places.mutant(tmp_path, spot))}
    assert found == {"def f(a: int | 1, b= 4) -> int | 4:", "def f(a: int | 1, b= 2) -> int | 4:"}


def test_a_statement_that_is_left_out() -> None:
    for example in DropStatement.examples():
        assert mutate_code(example.pre_mutation_code, DropStatement(), 0) == example.post_mutation_code
    for kept in ('"""A text."""\n', "a = b\n", "a: int = 3\n", "return f(x)\n", "a.b\n"):
        assert mutate_code(kept, DropStatement(), 0) is None


def test_each_file_is_used_by_a_stem_and_by_tests() -> None:
    files = [path.name for path in IMPL.glob("*.py") if path.name != "__init__.py"]
    alone = [name for name in files if not trials.stems_of(name)]
    assert sorted(alone) == ["kv_events.py", "prefix_cache.py"]  # they run in an engine alone
    assert trials.stems_of("block_cache.py") == ["block_cache"]
    assert trials.tests_of("kernels.py")[0] == "tests/test_kernels.py"


def test_kernels_for_cuda_are_put_to_the_tests() -> None:
    spots = places.spots(IMPL / "kernels.py")
    cuda = {spot.function for spot in spots if trials.only_on_cuda(spot)}
    assert {"_extend_kernel", "decode_triton"} <= cuda
    assert not {"extend_torch", "page_rows", "_layout"} & cuda


def row(fate: str, kind: str = "", reason: str = "") -> dict[str, Any]:
    return {"file": "a.py", "function": "f", "was": "x", "now": "y", "fate": fate, "kind": kind, "reason": reason}


def test_equivalent_mutants_are_not_counted_as_wrong() -> None:
    rows = [row(RUNS), row(TESTS), row(NO_END), row(SURVIVES, EQUIVALENT, "r"), row(SURVIVES, OPEN, "r")]
    sums = record.sums(rows)
    assert (sums["wrong"], sums["noticed"], sums["share"], sums["check_share"]) == (4, 3, 0.75, 0.5)
    assert record.sums([row(SURVIVES)])["share"] == 0
    assert not record.with_reasons([row(SURVIVES)], {})[0]["reason"]


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"), [(190, 200, 0.910, 0.973), (0, 10, 0, 0.278), (10, 10, 0.722, 1)]
)
def test_the_interval_is_wilsons(hits: int, of: int, low: float, high: float) -> None:
    assert record.interval(hits, of) == pytest.approx((low, high), abs=5e-4)


@pytest.mark.parametrize("missing", ["file", "reason", "kind"])
def test_a_reason_that_is_not_whole_is_refused(missing: str, tmp_path: Path) -> None:
    entry = {"file": "a.py", "function": "f", "was": "x", "now": "", "kind": OPEN, "reason": "r"}
    file = tmp_path / "survivors.toml"
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in entry.items())
    file.write_text(f"[[survivor]]\n{lines}\n")
    assert len(record.REASONS.read(file)) == 1
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in entry.items() if name != missing)
    file.write_text(f"[[survivor]]\n{lines}\n")
    with pytest.raises(UsageError, match=missing):
        record.REASONS.read(file)


def test_each_reason_is_of_a_survivor() -> None:
    kept = json.loads((ROOT / "docs" / mutating_impl.KEPT).read_text("utf-8"))
    alive = {tuple(row[name] for name in record.NAMED) for row in kept["mutants"] if row["fate"] == SURVIVES}
    assert {*record.REASONS.read(ROOT / "docs" / mutating_impl.REVIEWED)} <= alive
