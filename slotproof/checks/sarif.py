"""The report of ``slotproof check`` as SARIF 2.1.0, which GitHub code scanning and other viewers of findings read.

Each finding that fails the check, or that is new or worse, is a result: its rule is the law that is broken, its place
is the function of the engine that ``--format github`` marks, too. What of a release is known and does not fail the
check is left out, since a viewer would show it as new. Stems without a verdict are notifications of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, metadata
from urllib.parse import quote

from conformance.driver.lockstep import INVARIANT
from conformance.driver.printable import printable
from conformance.driver.protocol import Json
from conformance.traces.trace_files import LISTS
from slotproof.checks import github, remarks, weigh
from slotproof.checks.junit import changed, told
from slotproof.console.codes import FAILED
from slotproof.console.screen import broken

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "%SRCROOT%"  # the base of paths: the root of the checkout
LEVELS = {github.ERROR: "error", github.WARNING: "warning", github.NOTICE: "note"}
LONGEST = 8_000  # characters of a message
MOST_RELATED = 20  # changed functions that are named beside the place


def document(report: Json) -> Json:
    """The report as a SARIF log with one run."""
    found = [(name, row, level) for name in LISTS for row in report[name] if (level := github.level(name, row, report))]
    rules = [*dict.fromkeys(rule_id(row) for _, row, _ in found)]
    counted: Counter[str] = Counter()
    results = [_result(*one, report, rules, counted) for one in found]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {**_driver(report), "rules": [_rule(rule, found) for rule in rules]}},
                "automationDetails": {"id": f"slotproof/{_word(report['subject']['engine'])}/"},
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": {ROOT: {"description": {"text": "The root of the engine's checkout."}}},
                "invocations": [_invocation(report)],
                "results": results,
            }
        ],
    }


def _driver(report: Json) -> Json:
    """Who found it. The address is that of the installed package, where it says one."""
    named = {"name": "Slotproof", "version": report["slotproof"]}
    return {**named, **({"informationUri": address} if (address := _address()) else {})}


def _address() -> str:
    """The address that the installed package says is its own; empty if it says none."""
    try:
        urls = metadata("slotproof").get_all("Project-URL") or []
    except PackageNotFoundError:
        urls = []
    addresses = [str(url).partition(",")[2].strip() for url in urls]
    return next((address for address in addresses if address.startswith("https://")), "")


def rule_id(row: Json) -> str:
    """The rule of a finding: the name of its law; of a promise, a choice, a difference or an answer also that word."""
    named = str(row["law"])
    return named if row["kind"] in (INVARIANT, "", None) else f"{row['kind']}/{named}"


def _rule(rule: str, found: list[tuple[str, Json, str]]) -> Json:
    """A rule, whose help is the sentence of its law; one line for each stem where stems say it in different words."""
    rows = [row for _, row, _ in found if rule_id(row) == rule]
    sentences = [*dict.fromkeys(row["sentence"] for row in rows)]
    stems = {said: ", ".join(dict.fromkeys(r["stem"] for r in rows if r["sentence"] == said)) for said in sentences}
    text = _text("\n".join(f"{said} (stem {stems[said]})" for said in sentences))
    return {
        "id": rule,
        "shortDescription": {"text": _text(broken(rows[0]["law"], rows[0]["kind"]))},
        "fullDescription": {"text": _text(sentences[0])},
        "help": {"text": text},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["kv-cache", *dict.fromkeys(row["stem"] for row in rows)], "precision": "very-high"},
    }


def _result(name: str, row: Json, level: str, report: Json, rules: list[str], counted: Counter[str]) -> Json:
    rule = rule_id(row)
    mark = fingerprint(name, row, report)
    counted[mark] += 1
    hides = remarks.hides(name, row, report)
    lines = told(row)
    message = "\n".join([f"{hides}: {lines[0]}" if hides else lines[0], *lines[1:]])
    related = [
        {"id": number, "message": {"text": f"changed: {_text(frame['function'])}"}, **_location(frame, report)}
        for number, frame in enumerate(changed(row)[:MOST_RELATED], start=1)
    ]
    return {
        "ruleId": rule,
        "ruleIndex": rules.index(rule),
        "level": LEVELS[level],
        "message": {"text": _text(message)},
        "locations": [_location(github.frame(row), report)],
        **({"relatedLocations": related} if related else {}),
        "partialFingerprints": {
            "slotproof/v1": f"{mark}:{counted[mark]}",
            "primaryLocationLineHash": f"{mark}:{counted[mark]}",  # the only one that GitHub reads
        },
        "properties": {"list": name, "severity": row["severity"], "stem": row["stem"], "step": row["step"]},
    }


def fingerprint(name: str, row: Json, report: Json) -> str:
    """What makes a finding of the list ``name`` one over many runs: the engine without its release, the stem, the law,
    the operation that breaks it, and the kept trace of a known one. Neither the line nor the values of a drawn run are
    part of it, which differ from run to run.
    """
    steps = row["trace"]["steps"]
    operation = steps[row["step"] - 1]["op"] if row["step"] and row["step"] <= len(steps) else ""
    kept = row["name"] if name in ("known", "gone") else ""
    parts = (report["subject"]["engine"], row["stem"], row["kind"], row["law"], operation, kept)
    return sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def _location(frame: Json | None, report: Json) -> Json:
    """Where a function of the engine is: below the root of the checkout, if its file is there. GitHub refuses a result
    without a place: where no function is known, it is the engine itself.
    """
    place: Json = {"uri": quote(_module(report["subject"]["engine"]))}
    line = 1
    if frame is not None:
        file, line = github.file_of(frame, report), max(int(frame["line"]), 1)
        inside = file and github.in_checkout(file, report["subject"]["source"])
        place = {"uri": quote(inside), "uriBaseId": ROOT} if inside else {"uri": quote(frame["file"])}
    return {"physicalLocation": {"artifactLocation": place, "region": {"startLine": line}}}


def _module(engine: str) -> str:
    """The file of an engine that is named by its place; of others their name."""
    module, colon, _ = engine.partition(":")
    return f"{module.replace('.', '/')}.py" if colon else engine


def _invocation(report: Json) -> Json:
    """How the check ended, and the stems without a verdict."""
    return {
        "executionSuccessful": report["exit"] != FAILED,
        "exitCode": report["exit"],
        "exitCodeDescription": _text(report["reason"]),
        "toolExecutionNotifications": [*_notifications(report)],
    }


def _notifications(report: Json) -> Iterator[Json]:
    for result in report["results"]:
        if reason := weigh.undecided(result, report):
            yield {"level": "warning", "message": {"text": _text(f"{result['stem']}: {reason}")}}
    for note in report["subject"]["notes"]:
        yield {"level": "note", "message": {"text": _text(note)}}


def _word(text: str) -> str:
    return quote(text, safe="")


def _text(said: str) -> str:
    """A text of the engine as a message: what SARIF reads as a link, ``[words](target)``, is none any more."""
    return printable(said, LONGEST).replace("](", "] (")
