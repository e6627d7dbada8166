"""How a difference of the law is told in words: its heading, what both revisions say, and an example."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conformance.driver.protocol import Json
from proofs.difference.row import INCOMPARABLE, NOT_KNOWN, SAME, STATE_CHANGED, STRENGTHENED, WEAKENED

GROUPS = (
    (WEAKENED, "Users are guaranteed less"),
    (INCOMPARABLE, "Users are guaranteed something else"),
    (NOT_KNOWN, "Not known, or not to be compared"),
    (STRENGTHENED, "Users are guaranteed more"),
    (SAME, "Users are guaranteed as much as before"),
)
ABBREVIATED = {STATE_CHANGED: "the state changed", "same_meaning": "same meaning"}


def grouped(report: Json) -> Iterator[tuple[str, list[Json]]]:
    """The rows by what they do to what users are guaranteed, each group with its heading; the gravest first."""
    for guarantee, heading in GROUPS:
        rows = [row for row in report["changes"] if row["guarantee"] == guarantee]
        if rows:
            yield heading, rows


def title(row: Json) -> str:
    """What changed, and how: ``law allocator.no_leak: weakened``."""
    where = ".".join(part for part in (row["stem"], row["transition"]) if part)
    kind = row["kind"].replace("_", " ")
    name = row["name"]
    if row["transition"]:
        name = f"{where}, {name!r}"
    elif row["stem"]:
        name = name if row["name"] == where else f"{where}.{name}"
    known = "" if row["decided"] else " (not decided)"
    return f"{kind} {name}: {ABBREVIATED.get(row['change'], row['change'])}{known}"


def sides(row: Json) -> list[tuple[str, str, str]]:
    """What is said of old and new: which of the two, the sentence, and the formula; once where both are one."""
    found = [(word, row[word]["sentence"], row[word]["formula"]) for word in ("old", "new") if row[word]]
    if len(found) == 2 and found[0][1:] == found[1][1:]:
        return [("old and new", *found[0][1:])]
    return found


def more(row: Json) -> Iterator[str]:
    """Sentences about the row: how it was decided, what differs, and where it shows as well."""
    yield from row["notes"]
    if row["fields"]:
        yield f"Fields: {', '.join(row['fields'])}."
    if row["also_in"]:
        yield f"It changes in these transitions, too, which call it: {', '.join(row['also_in'])}."


def example(values: dict[str, Any]) -> Iterator[str]:
    """The values of an example, one line each: of a state what is not 0."""
    for name, value in values.items():
        if not isinstance(value, dict):
            yield f"{name} = {_shown(value)}"
            continue
        yield f"{name}: every number and map that is not named is 0 or false"
        sizes = ", ".join(f"{path} {_shown(v)}" for path, v in value.items() if isinstance(v, list))
        yield from [f"  domains: {sizes}"] if sizes else []
        for path, held in value.items():
            if isinstance(held, dict):
                yield "  " + ", ".join(f"{path}({key}) = {_shown(v)}" for key, v in held.items())
            elif not isinstance(held, list) and held not in (0, False):
                yield f"  {path} = {_shown(held)}"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        low, high = value
        return "empty" if high < low else f"{low} to {high}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def summary(report: Json) -> str:
    """How many changes of each kind there are, and why the exit code is what it is."""
    counts = ", ".join(f"{number} {change}" for change, number in report["counts"].items() if number)
    number = len(report["changes"])
    return f"{number} change{'s' * (number != 1)}: {counts}; {report['reason']}" if counts else report["reason"]
