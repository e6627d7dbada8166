"""CrossHair on the plain integers at the border: the contracts that ``spec/lengths.py`` states in its docstrings.

It *confirms* each of them over all paths, for every length and every page size (its divisions by a symbolic page size
included), so a verdict short of that fails here. ``in_tokens`` and the comparisons of lengths have no contract of their
own; they are held against plain token numbers below.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec import lengths
from spec.lengths import Length, in_pages, in_tokens

ROOT = Path(__file__).resolve().parents[1]
CONTRACTS = ("in_pages", "ceil_align", "pages_needed", "page_range")
CONFIRMED = "Confirmed over all paths."
SECONDS = "20"  # of CPU time for one condition; each takes well under one

WRONG = {
    "aligned_is_longer": ("tokens: int, page_size: int", "ceil_align(tokens, page_size)", "__return__ > tokens"),
    "aligned_is_close": (
        "tokens: int, page_size: int",
        "ceil_align(tokens, page_size)",
        "__return__ < tokens + page_size - 1",
    ),
    "growth_forgets_the_partial_page": (
        "tokens: int, more: int, page_size: int",
        "pages_needed(tokens, tokens + more, page_size)",
        "__return__ * page_size >= more",
    ),
    "range_ends_before_the_partial_page": (
        "tokens: int, page_size: int",
        "page_range(0, tokens, page_size)",
        "__return__[1] == tokens // page_size",
    ),
    "rare": ("tokens: int, page_size: int", "in_pages(tokens, page_size)", "__return__ != (11, 7)"),
}


def crosshair(target: str, *folders: Path) -> subprocess.CompletedProcess[str]:
    """What CrossHair says of the contracts of ``target``."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "crosshair", "check", "--analysis_kind=PEP316", "--report_all"),
            *("--per_condition_timeout", SECONDS, target),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *folders)))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_contract_is_confirmed(name: str) -> None:
    ran = crosshair(f"spec.lengths.{name}")
    posts = (getattr(lengths, name).__doc__ or "").count("post:")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert posts > 0
    assert ran.stdout.count(CONFIRMED) == len(ran.stdout.splitlines()) == posts, ran.stdout


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_contract_is_refuted(name: str, tmp_path: Path) -> None:
    arguments, result, claim = WRONG[name]
    condition = " and ".join(f"{a.split(':')[0]} >= {int('page_size' in a)}" for a in arguments.split(", "))
    body = f'def {name}({arguments}) -> object:\n    """\n    pre: {condition}\n    post: {claim}\n    """\n'
    planted = "from spec.lengths import ceil_align, in_pages, page_range, pages_needed\n\n\n" + body
    (tmp_path / "planted.py").write_text(f"{planted}    return {result}\n", encoding="utf-8")
    ran = crosshair(f"planted.{name}", tmp_path)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert f"error: false when calling {name}(" in ran.stdout


def test_every_contract_is_checked() -> None:
    stated = {n for n, f in vars(lengths).items() if callable(f) and "post:" in (f.__doc__ or "")}
    assert stated == set(CONTRACTS)


tokens = st.integers(0, 600)
page_sizes = st.sampled_from([1, 2, 3, 16, 32, 64, 128, 256])


@given(tokens, tokens, page_sizes)
def test_lengths_compare_as_their_tokens_do(one: int, other: int, page_size: int) -> None:
    a, b = in_pages(one, page_size), in_pages(other, page_size)
    assert lengths.at_most(a, b) == (one <= other)
    assert lengths.same(a, b) == (one == other)


@given(tokens, page_sizes)
def test_lengths_count_as_their_tokens_do(count: int, page_size: int) -> None:
    length = in_pages(count, page_size)
    assert lengths.formed(length, page_size)
    assert in_tokens(length, page_size) == count
    assert in_tokens(lengths.next_token(length, page_size), page_size) == count + 1
    assert lengths.touched(length) * page_size == lengths.ceil_align(count, page_size)


@given(tokens, st.integers(0, 40), page_sizes)
def test_positions_are_those_between_two_lengths(start: int, more: int, page_size: int) -> None:
    first, last = in_pages(start, page_size), in_pages(start + more, page_size)
    found = lengths.positions(first, last, page_size)
    assert [index * page_size + offset for index, offset in found] == list(range(start, start + more))
    assert all(lengths.covers(last, *place) and not lengths.covers(first, *place) for place in found)


def test_a_length_that_is_not_formed() -> None:
    assert not lengths.formed(Length(0, 4), 4)
    assert not lengths.formed(Length(-1, 0), 4)
    assert not lengths.formed(Length(0, -1), 4)
