"""The report of ``slotproof check`` as a JUnit XML file.

Each stem is a test case, and so is each finding that fails the check. All other findings stand in the output of the
test case of their stem. So the file shows a failure or an error if and only if the exit code is not 0. Properties
of the file say what of the engine ran, such as which core.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from conformance.driver.lockstep import UNSUPPORTED
from conformance.driver.printable import printable
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.search.ran import in_words
from conformance.traces.harm_found import lines_of
from conformance.traces.trace_files import LISTS
from slotproof.checks import remarks, weigh
from slotproof.console.screen import broken


def text(report: Json) -> str:
    """The XML file. Characters that XML forbids, and all others that cannot be seen, stand there as escapes."""
    suite = TestSuite(_printable(f"slotproof check {report['subject']['label']}"))
    suite.add_property("slotproof", report["slotproof"])
    suite.add_property("reason", _printable(report["reason"]))
    for name, value in _properties(report):
        suite.add_property(_line(name), _line(value))
    suite.add_testcases(list(_cases(report)))
    document = JUnitXml("slotproof")
    document.add_testsuite(suite)
    document.update_statistics()
    made: bytes = document.tostring()
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{made.decode()}\n'


def _properties(report: Json) -> Iterator[tuple[str, str]]:
    """What of the engine ran, and what is to be read beside the verdict."""
    for result in report["results"]:
        yield from ((f"ran.{result['stem']}.{name}", ", ".join(values)) for name, values in result["ran"].items())
    for number, note in enumerate(report["subject"]["notes"], start=1):
        yield f"note.{number}", note


def _cases(report: Json) -> Iterator[TestCase]:
    names: Counter[tuple[str, str]] = Counter()
    for result in report["results"]:
        stem, engine = result["stem"], report["subject"]["engine"].replace(".", "_")
        where = _printable(f"slotproof.{engine}.{stem}")
        yield _stem(result, where, report)
        for name, row in _rows(stem, report):
            if weigh.fails(name, row, report):
                what = broken(row["law"], row["kind"])
                names[stem, what] += 1
                number = names[stem, what]
                yield _finding(what if number == 1 else f"{what} ({number})", where, name, row)


def _rows(stem: str, report: Json) -> Iterator[tuple[str, Json]]:
    for name in LISTS:
        yield from ((name, row) for row in report[name] if row["stem"] == stem)


def _stem(result: Json, where: str, report: Json) -> TestCase:
    """The test case of a stem: an error if there is no verdict, skipped if the engine has nothing to be judged."""
    case = TestCase(f"{result['stem']}: every finding", where, float(result["seconds"]))
    reason = weigh.undecided(result, report)
    if reason:
        case.result = [Error(_printable(reason), "no verdict")]
    elif result["verdict"] == UNSUPPORTED and result["runs"] == 0:
        case.result = [Skipped("no run could be started", "unsupported")]
    missed = ", ".join(result["never_reached"]) or "none"
    looked = f"{result['runs']} runs, {result['steps']} operations, {result['refused']} refused"
    lines = [f"verdict: {result['verdict']}; {looked}; transitions that no run reached: {missed}"]
    lines += [f"ran: {in_words(result['ran'])}"] if result["ran"] else []
    for name, row in _rows(result["stem"], report):
        if not weigh.fails(name, row, report):
            hides = remarks.hides(name, row, report)
            lines += [
                "",
                f"{name}: {broken(row['law'], row['kind'])} ({row['severity']}){hides and f': {hides}'}",
                *told(row),
            ]
    case.system_out = _printable("\n".join(lines))
    return case


def _finding(title: str, where: str, name: str, row: Json) -> TestCase:
    case = TestCase(_printable(title), where, 0.0)
    failure = Failure(_printable(f"{name}: {row['sentence']}"), _printable(row["severity"]))
    failure.text = _printable("\n".join(told(row)))
    case.result = [failure]
    return case


def told(row: Json) -> list[str]:
    """A finding in lines: the law, where it broke, what the base shows, the operations, and the engine's exception."""
    base = [said for said in (row["base"], remarks.repairs(row)) if said]
    trace = Trace(**row["trace"])
    config = ", ".join(f"{name}={value}" for name, value in trace.config.items())
    calls = [f"  {number}. {line}" for number, line in enumerate(trace.lines(), start=1)]
    for raised in row["story"][-1]["raised"] if row["story"] else []:
        calls += [
            raised["what"],
            *(f"  {frame['file']}:{frame['line']} {frame['function']}" for frame in raised["frames"]),
        ]
    calls += [f"changed: {frame['file']}:{frame['line']} {frame['function']}" for frame in changed(row)]
    said = [row["sentence"], f"step {row['step']}: {row['detail']}", *remarks.legend(row), remarks.about_trace(row)]
    return [*said, *lines_of(row["harm"]), *base, *remarks.folded(row), f"{trace.stem}: {config}", *calls]


def changed(row: Json) -> list[Json]:
    """The functions that the run called and whose text differs from the base's, each once, in the order of calls."""
    called = (frame for told in row["story"] for name in ("engine", "below") for frame in told[name])
    return [*{(frame["file"], frame["line"]): frame for frame in called if frame["changed"]}.values()]


def _printable(said: str) -> str:
    return printable(said, None)


def _line(said: str) -> str:
    """A text as the value of an attribute, in which a reader of XML would lose a line end."""
    return " ".join(_printable(said).split())
