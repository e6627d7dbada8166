"""Drawn runs depend on the seed alone."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis.internal.conjecture import providers

from conformance.driver.draws import KEPT, LOOKS
from conformance.engines import toy
from conformance.search.check import Search, check


@pytest.fixture(autouse=True, scope="module")
def drawn_alike() -> None:
    """Not what keeps the other tests from the loaded modules: here the checks themselves do."""


@pytest.mark.parametrize("seed", [None, 7])
def test_what_is_drawn_does_not_depend_on_the_modules_that_are_loaded(
    seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    def counts() -> tuple[int, dict[str, int]]:
        found = check("allocator", toy.allocator, Search(30, seed))
        return found.steps, found.transitions

    before = counts()
    name = f"many_numbers_{seed}"
    (tmp_path / f"{name}.py").write_text(f"NUMBERS = {list(range(120))}\n", encoding="utf-8")
    sys.modules[name] = import_module(name)
    assert counts() == before


def test_hypothesis_still_looks_where_it_is_kept_from_looking() -> None:
    """With a Hypothesis that looks elsewhere, the runs of a seed would depend on the modules again."""
    assert callable(getattr(providers, LOOKS))
    assert len(getattr(providers, KEPT)) >= 0
