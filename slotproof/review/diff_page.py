"""The page in Markdown of ``slotproof diff --format github``, for a pull request or the summary of a step."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from conformance.driver.printable import printable
from conformance.driver.protocol import Json
from proofs.difference.row import WEAKENED
from slotproof.checks.github import LONGEST_SUMMARY, WARNING, annotation
from slotproof.review.diff_words import example, grouped, more, summary, title


def text(report: Json) -> str:
    """The page: a table with old and new side by side for each change, the gravest first; cut where GitHub cuts it."""
    parts = list(_parts(report))
    made, left = "", 0
    for part in parts:
        if left or len(made) + len(part) > LONGEST_SUMMARY:
            left += 1
        else:
            made += part
    return made + (f"\n{left} more parts are left out: `--format json` has them.\n" if left else "")


def warnings(report: Json) -> Iterator[str]:
    """A warning for each change after which users are guaranteed less."""
    for row in report["changes"]:
        if row["guarantee"] == WEAKENED:
            said = (row["new"] or row["old"] or {"sentence": ""})["sentence"]
            yield annotation(WARNING, title(row), said or title(row))


def _parts(report: Json) -> Iterator[str]:
    old, new = (_one_line(report[side]["why"]) for side in ("base", "head"))
    yield f"## The law: {old} → {new}\n\n{_one_line(summary(report))}\n"
    for heading, rows in grouped(report):
        yield f"\n### {heading}\n"
        for row in rows:
            yield f"\n<details><summary>{_one_line(title(row))}</summary>\n\n{_body(row)}\n</details>\n"


def _body(row: Json) -> str:
    cells = [row[word] or {"sentence": "", "formula": ""} for word in ("old", "new")]
    table = "".join(f"<td>{_one_line(side['sentence'])}<pre>{_code(side['formula'])}</pre></td>" for side in cells)
    body = f"<table><tr><th>old</th><th>new</th></tr><tr>{table}</tr>"
    for helper in row["helpers"]:
        name = f"<tr><td colspan=2>made of {_one_line(helper['name'])}, which changed</td></tr>"
        body += (
            name + "<tr>" + "".join(f"<td><pre>{_code(helper[word])}</pre></td>" for word in ("old", "new")) + "</tr>"
        )
    body += "</table>\n"
    body += "".join(f"<p>{_one_line(said)}</p>\n" for said in more(row))
    for shown in row["examples"]:
        body += f"<p>{_one_line(shown['shows'])}</p>\n<pre>{_code(chr(10).join(example(shown['values'])))}</pre>\n"
    return body


def _one_line(said: str) -> str:
    """Text on one line, in which nothing is read as HTML or Markdown."""
    line = " ".join(printable(said).split())
    return "".join(c if c.isalnum() or c in " .,;:()=" else f"&#{ord(c)};" for c in line)


def _code(said: str) -> str:
    """Text in a ``pre`` element; no line of it is empty, since GitHub ends an element there."""
    return escape(printable(said)).replace("\n\n", "\n \n").replace("\n", "&#10;")
