"""The pages of the findings: their order, the releases that they name, and that no page is left behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance.driver.lockstep import CONFORMS, LATENT, UNSUPPORTED, VIOLATION
from conformance.driver.protocol import Json
from conformance.engines import registry
from conformance.traces import trace_files
from slotproof.pages import catalogue, finding_pages, kept_findings, templating
from slotproof.pages.finding_pages import KeptFinding

RELEASES = ("1", "2", "3", "4")
SHORT = {"v": VIOLATION, "l": LATENT, ".": CONFORMS, " ": UNSUPPORTED}
NAMES = trace_files.names()


def rows(marks: str) -> list[Json]:
    """A row for each release, by the first letter of its verdict."""
    shown = {"step": 1, "law": "no_leak", "kind": "invariant", "detail": "page 1", "harm": None}
    return [
        {"subject": "e", "release": release, "verdict": SHORT[mark], **shown}
        for release, mark in zip(RELEASES, marks, strict=True)
    ]


def finding(marks: str, name: str = NAMES[0]) -> KeptFinding:
    return KeptFinding(trace_files.load(name), None, rows(marks))


@pytest.mark.parametrize(
    ("marks", "spans", "stands"),
    [
        ("vvvv", "every release", True),
        (".vl.", "2 to 3", False),
        ("  vv", "from 3 on", True),
        ("v.v.", "1, 3", False),
        ("v..v", "1, from 4 on", True),
    ],
)
def test_the_releases_of_a_finding(marks: str, spans: str, stands: bool) -> None:
    assert (finding(marks).spans, finding(marks).stands) == (spans, stands)


def test_violations_stand_before_latent_findings_and_new_before_old() -> None:
    several = [
        finding(marks, name) for marks, name in zip(("lll.", "v...", "...l", ".v..", "l..v"), NAMES, strict=False)
    ]
    order = [NAMES.index(found.kept.name) for found in sorted(several, key=lambda found: found.place)]
    assert order == [4, 3, 1, 2, 0]


def test_the_gravest_row_is_the_newest_of_its_verdict() -> None:
    assert finding("vvl.").gravest["release"] == "2"
    assert finding(" l.l").gravest["release"] == "4"


def test_each_finding_has_a_page_and_a_row(tmp_path: Path) -> None:
    found = kept_findings.kept()
    made = catalogue.pages(templating.environment(), tmp_path, found, kept_findings.with_rows(found))
    pages = {path.stem for path in made if path.parent.name == "findings"}
    broken = {
        name for name, several in found["traces"].items() if any(r["verdict"] in finding_pages.BROKEN for r in several)
    }
    assert pages == broken
    matrices = [part for part in made[tmp_path / "findings.md"].split("\n## ")[1:] if "every finding" in part[:60]]
    assert all(sum(part.count(f"(findings/{name}.md)") for part in matrices) == 1 for name in broken)
    marks = list(finding_pages.MARKS.values())
    for engine, *lines in (part.splitlines() for part in matrices):
        assert any("](findings/" in line for line in lines), engine
        for line in lines:
            if "](findings/" in line:
                cells = [cell.strip() for cell in line.strip("|").split("|")][7:]
                assert len(cells) == len(registry.plugin(engine.partition(":")[0]).releases), line
                assert set(cells) <= {mark.strip() for mark in marks}


def test_a_page_of_a_finding_that_is_gone_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "findings"
    folder.mkdir()
    for name in ("kept", "gone"):
        (folder / f"{name}.md").write_text("")
    assert finding_pages.left_over(tmp_path, [folder / "kept.md"]) == [folder / "gone.md"]


def test_a_script_makes_a_text_to_file() -> None:
    found = finding("...v")
    page = templating.environment().get_template("finding.md.j2")
    on_scheduler = SimpleNamespace(cause=None, on_scheduler=[found])
    assert "To file upstream" not in page.render(finding=found, entry=on_scheduler)
    kept = replace(found.kept, harm="The server stops.", expected="It goes on.", elsewhere="In 1 a page leaks.")
    with_script = KeptFinding(kept, None, found.rows, '"""A page is lost.\n\nAnyone."""\nprint(1)\n')
    text = page.render(finding=with_script, entry=on_scheduler)
    about, _, filed = text.partition("To file upstream")
    assert "e 4: A page is lost\n" in filed
    assert "What should hold: It goes on.\n" in filed
    assert '```python\n"""A page is lost.\n' in filed
    assert "In 1 a page leaks." not in filed
    assert "Other releases: In 1 a page leaks.\n" in about
    for part in (about, filed):
        assert "What it does to users: The server stops.\n" in part


def test_a_finding_of_older_releases_is_not_to_be_filed() -> None:
    """Its page has the program, and names the newest release on which it runs."""
    found = finding(".vl.")
    old = KeptFinding(found.kept, None, found.rows, '"""A page is lost.\n\nAnyone."""\nprint(1)\n')
    text = templating.environment().get_template("finding.md.j2").render(finding=old, entry=None)
    assert "To file upstream" not in text
    assert "A page is lost: this program shows it with e 3 alone" in text
    assert '```python\n"""A page is lost.\n' in text
    assert "\n\n\n" not in text


def test_a_text_that_a_trace_lacks_leaves_no_line() -> None:
    kept = replace(finding("...v").kept, harm="", expected="", elsewhere="")
    text = (
        templating.environment()
        .get_template("finding.md.j2")
        .render(finding=KeptFinding(kept, None, rows("...v")), entry=None)
    )
    assert "What it does" not in text
    assert "Other releases" not in text
    assert "\n\n\n" not in text
