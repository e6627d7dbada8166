"""CrossHair on plain integers: the contracts that ``spec/lengths.py`` and ``impl/checks.py`` state in docstrings, and
what the functions of lengths mean in tokens.

It *confirms* each contract over all paths, for every length and every page size (its divisions by a symbolic page size
included), so a verdict short of that fails here. A check that raises with its numbers in the message is searched for a
counterexample, and not confirmed: CrossHair tries single numbers where one becomes a text.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from driven import sampled
from hypothesis import given
from hypothesis import strategies as st

from impl import checks
from spec import lengths
from spec.lengths import Length, in_pages, in_tokens

ROOT = Path(__file__).resolve().parents[1]
CONTRACTS = (
    "spec.lengths.in_pages",
    "spec.lengths.ceil_align",
    "spec.lengths.pages_needed",
    "impl.checks.pages_between",
)
SEARCHED = ("impl.checks.integer", "impl.checks.pool_sizes", "impl.checks.page_multiple")
# What functions of lengths mean in tokens: a call of one, for any lengths of any page size, and what is true of it.
MEANT = {
    "at_most": ("at_most(Length(p, r), Length(q, s))", "__return__ == (p * size + r <= q * size + s)"),
    "same": ("same(Length(p, r), Length(q, s))", "__return__ == (p * size + r == q * size + s)"),
    "shorter": ("shorter(Length(p, r), Length(q, s))", "__return__ == (p * size + r < q * size + s)"),
    "shortest": (
        "in_tokens(shortest(Length(p, r), Length(q, s)), size)",
        "__return__ == min(p * size + r, q * size + s)",
    ),
    "next_token": (
        "next_token(Length(p, r), size)",
        "in_tokens(__return__, size) == p * size + r + 1 and 0 <= __return__.rest < size",
    ),
    "touched": ("touched(Length(p, r))", "__return__ * size == ceil_align(p * size + r, size)"),
    "covers": ("covers(Length(p, r), q, s)", "__return__ == (q * size + s < p * size + r)"),
    "in_tokens": ("in_pages(in_tokens(Length(p, r), size), size)", "__return__ == Length(p, r)"),
}
CONFIRMED = "Confirmed over all paths."
A_LOOK = "1"  # seconds in which a counterexample is searched
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
    "multiples_are_few": ("tokens: int, page_size: int", "page_multiple('n', tokens, page_size)", "__return__ < 3"),
    "rare": ("tokens: int, page_size: int", "in_pages(tokens, page_size)", "__return__ != (11, 7)"),
}


def crosshair(target: str, *folders: Path, seconds: str = SECONDS) -> subprocess.CompletedProcess[str]:
    """What CrossHair says of the contracts of ``target``."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "crosshair", "check", "--analysis_kind=PEP316", "--report_all"),
            *("--per_condition_timeout", seconds, target),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *folders)))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("name", CONTRACTS)
def test_a_contract_is_confirmed(name: str) -> None:
    ran = crosshair(name)
    posts = (function_of(name).__doc__ or "").count("post:")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert posts > 0
    assert ran.stdout.count(CONFIRMED) == len(ran.stdout.splitlines()) == posts, ran.stdout


def function_of(name: str) -> Any:
    module, _, function = name.rpartition(".")
    return getattr(import_module(module), function)


@pytest.mark.soak
@pytest.mark.parametrize("name", sampled(SEARCHED, 3))
def test_no_counterexample_of_a_check_is_found(name: str) -> None:
    ran = crosshair(name, seconds=A_LOOK)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "error" not in ran.stdout


@pytest.mark.parametrize("name", sampled(MEANT, 2))
def test_a_function_of_lengths_means_what_it_says_in_tokens(name: str, tmp_path: Path) -> None:
    called, claim = MEANT[name]
    given = "p: int, r: int, q: int, s: int, size: int"
    formed = "p >= 0 and q >= 0 and 0 <= r < size and 0 <= s < size"
    body = f'def {name}_({given}) -> object:\n    """\n    pre: {formed}\n    post: {claim}\n    """\n'
    planted = f"from spec.lengths import *\n\n\n{body}    return {called}\n"
    (tmp_path / "planted.py").write_text(planted, encoding="utf-8")
    ran = crosshair(f"planted.{name}_", tmp_path)
    assert (ran.returncode, ran.stdout.count(CONFIRMED)) == (0, 1), ran.stdout + ran.stderr


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("name", sampled(WRONG, 2))
def test_a_wrong_contract_is_refuted(name: str, tmp_path: Path) -> None:
    arguments, result, claim = WRONG[name]
    condition = " and ".join(f"{a.split(':')[0]} >= {int('page_size' in a)}" for a in arguments.split(", "))
    said = f"pre: {condition}\n    post: {claim}\n    raises: ValueError"
    body = f'def {name}({arguments}) -> object:\n    """\n    {said}\n    """\n'
    planted = (
        "from impl.checks import page_multiple\nfrom spec.lengths import ceil_align, in_pages, pages_needed\n\n\n"
        + body
    )
    (tmp_path / "planted.py").write_text(f"{planted}    return {result}\n", encoding="utf-8")
    ran = crosshair(f"planted.{name}", tmp_path)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert f"error: false when calling {name}(" in ran.stdout


def test_every_contract_is_checked() -> None:
    modules = {module.__name__: vars(module) for module in (lengths, checks)}
    stated = {
        f"{name}.{n}"
        for name, known in modules.items()
        for n, f in known.items()
        if callable(f) and "post:" in (f.__doc__ or "")
    }
    assert stated == {*CONTRACTS, *SEARCHED}


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
