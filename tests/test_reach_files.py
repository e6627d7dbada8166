"""What is told of findings that no trace on the engine's own scheduler shows."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from driven import NEWEST, have

from conformance.driver.naming import UsageError
from conformance.engines import registry
from conformance.stems import found
from conformance.traces import cause_files, known, reach_files
from conformance.traces.reach_files import Reach

ENGINE = "sglang"
LISTED = reach_files.of_engine(ENGINE)
KNOWN = {one.trace: one for one in known.of_release(registry.plugin(ENGINE).folder, NEWEST)}
GOOD: dict[str, Any] = {
    "finding": "some",
    "reach": "not shown",
    "why": "Nobody calls it.",
    "functions": ["mem_cache/common.py:f"],
}


def written(tmp_path: Path, told: Any) -> Path:
    path = tmp_path / reach_files.FILE
    path.write_text(told if isinstance(told, str) else json.dumps(told), encoding="utf-8")
    return path


@pytest.mark.parametrize("one", LISTED.values(), ids=lambda one: one.finding)
def test_a_listed_finding_stands_and_is_of_a_part(one: Reach) -> None:
    assert KNOWN[one.finding].stem not in found.servers()


@pytest.mark.parametrize("one", LISTED.values(), ids=lambda one: one.finding)
def test_a_listed_finding_has_no_other_answer(one: Reach) -> None:
    of_causes = {name for cause in cause_files.every() for name in cause.names_of_traces}
    assert one.finding not in of_causes
    assert f"{one.finding}_on_server" not in KNOWN


@pytest.mark.parametrize("name", [name for name, one in KNOWN.items() if one.stem not in found.servers()])
def test_each_finding_of_a_part_has_a_reach(name: str) -> None:
    """It is of a cause, or a trace on the engine's own scheduler shows it, or it is told why none does."""
    of_causes = {name for cause in cause_files.every() for name in cause.names_of_traces}
    assert name in of_causes or f"{name}_on_server" in KNOWN or name in LISTED


def has_function(text: str, names: list[str]) -> bool:
    body: list[ast.stmt] = ast.parse(text).body
    for name in names:
        inner = next((node for node in body if getattr(node, "name", None) == name), None)
        if not isinstance(inner, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        body = inner.body
    return True


@pytest.mark.engine
def test_named_functions_exist_in_the_newest_release() -> None:
    sources = have(NEWEST)
    for one in LISTED.values():
        for named in one.functions:
            file, _, function = named.partition(":")
            (path,) = (path for path in sources.rglob(Path(file).name) if path.as_posix().endswith(f"/srt/{file}"))
            assert has_function(path.read_text("utf-8"), function.split(".")), named


def test_a_good_file_is_read(tmp_path: Path) -> None:
    assert reach_files.read(written(tmp_path, [GOOD])) == {"some": Reach(**GOOD)}


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ("[", "is no JSON"),
        ({}, "expected a list"),
        ([3], "entry 1: expected an object with finding, functions, reach, why"),
        ([{**GOOD, "more": 1}], "expected an object"),
        ([{**GOOD, "reach": "far"}], "reach is 'far', and must be one of ends the server anyway"),
        ([{**GOOD, "why": " "}], "why must be a text"),
        ([{**GOOD, "finding": 3}], "finding must be a text"),
        ([{**GOOD, "functions": []}], "functions must be a list"),
        ([{**GOOD, "functions": ["mem_cache/common.py"]}], "functions must be a list"),
        ([GOOD, GOOD], "entry 2: some is listed twice"),
    ],
)
def test_a_bad_file_says_what_is_wrong(tmp_path: Path, told: Any, wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        reach_files.read(written(tmp_path, told))
