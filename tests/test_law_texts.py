"""Where two revisions of a function are made of one text, and so of one formula."""

from __future__ import annotations

from pathlib import Path

import pytest

from proofs.difference.texts import RevisionTexts, of_one_text

BASE = {
    "pages": (
        "LIMIT = 3\nUNUSED = 1\n\n\n"
        "class Pool:\n    used: int\n\n    def count(self) -> int:\n        return self.used\n"
    ),
    "law": (
        "from spec.pages import LIMIT, Pool\n\n\n"
        "def few(st: Pool) -> bool:\n    '''Few pages are used.'''\n    return below(st)\n\n\n"
        "def below(st: Pool) -> bool:\n    return st.count() < LIMIT\n"
    ),
}


def revision(folder: Path, **changed: str) -> RevisionTexts:
    folder.mkdir()
    for name, text in {**BASE, **changed}.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return RevisionTexts(folder)


def few() -> None: ...


few.__module__ = "spec.law"


@pytest.mark.parametrize(
    ("module", "was", "now", "one"),
    [
        ("pages", "UNUSED = 1", "UNUSED = 2", True),
        ("law", "'''Few pages are used.'''", "'''Not many pages are used.'''", True),
        ("law", "\n\n\ndef below", "\n# What is few.\n\n\ndef below", True),
        ("pages", "LIMIT = 3", "LIMIT = 4", False),
        ("pages", "return self.used", "return self.used + 1", False),
        ("pages", "used: int", "used: bool", False),
        ("law", "st.count() < LIMIT", "st.count() <= LIMIT", False),
        ("law", "return below(st)", "return not below(st)", False),
    ],
)
def test_whatever_a_function_reaches_counts(tmp_path: Path, module: str, was: str, now: str, one: bool) -> None:
    assert was in BASE[module]
    old, new = revision(tmp_path / "old"), revision(tmp_path / "new", **{module: BASE[module].replace(was, now)})
    assert of_one_text((old, new), few, few) is one


def test_a_function_that_another_one_has_made_is_not_judged_by_its_text(tmp_path: Path) -> None:
    old, new = revision(tmp_path / "old"), revision(tmp_path / "new")
    limit = 3

    def made() -> int:
        return limit

    made.__module__, made.__name__ = "spec.law", "few"
    assert of_one_text((old, new), few, few)
    assert not of_one_text((old, new), made, made)
