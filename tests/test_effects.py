"""Laws of what a call must achieve: they name what asks for them, and do not repeat the transition."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from driven import NEWEST, have

from conformance.engines.sglang.releases import download
from spec import cache_effects, row_effects, state_effects

SPEC = Path(row_effects.__file__).parent
CITED = re.compile(r"``((?:[A-Z]\w+\.)*\w+)``(?= *[,)])")
DEFINED = re.compile(r"(?:def|class) (\w+)|(\w+):")
# What reads a state or compares numbers; all else that a transition calls may be wrong in both.
READERS = {
    *(
        "allocated",
        "committed",
        "cursor",
        "protected",
        "text",
        "length",
        "full_pool",
        "swa_pool",
        "each_request",
        "begin",
    ),
    *("same", "at_most", "shorter", "shortest", "pick", "Length", "implies", "ite", "no", "every", "lives"),
    *(
        "is_request",
        "each_request",
        "each_role",
        "owns_nothing",
        "has_buffer",
        "other",
        "kept",
        "over",
        "covers",
        "each_token",
    ),
}
# Which slot of a buffer is the newest, and which index is next: ``other`` and ``kept`` are definitions of the state.


@cache
def functions(module: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((SPEC / f"{module}.py").read_text("utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def called(function: ast.FunctionDef) -> set[str]:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {call.id for call in calls if isinstance(call, ast.Name)}


def used_by(module: str, names: set[str]) -> set[str]:
    """The functions of the spec that these of a module call, and those of the module that are called by them."""
    found, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        for one in called(functions(module)[name]):
            if one in functions(module) and one not in found:
                waiting.append(one)
            found.add(one)
    return found


@pytest.mark.parametrize(
    ("module", "effects"),
    [("session_trim", "row_effects"), ("cache", "cache_effects"), ("mamba_slots", "state_effects")],
)
def test_an_effect_shares_no_helper_with_its_transition(module: str, effects: str) -> None:
    transitions = {name for name, node in functions(module).items() if node.decorator_list}
    shared = used_by(effects, set(functions(effects))) & used_by(module, transitions)
    assert shared <= READERS


@pytest.mark.soak
@pytest.mark.engine
def test_what_an_effect_cites_is_in_the_newest_release() -> None:
    have(NEWEST)
    sources = (path.read_text("utf-8", "replace") for path in download.WHEELS.release(NEWEST).rglob("*.py"))
    files = [{function or field for function, field in DEFINED.findall(source)} for source in sources]
    for module in (row_effects, cache_effects, state_effects):
        cited = set(CITED.findall(module.__doc__ or "")) | {
            name
            for node in functions(module.__name__.rpartition(".")[2]).values()
            for name in CITED.findall(ast.get_docstring(node) or "")
        }
        for name in cited:
            assert any(set(name.split(".")) <= defined for defined in files), name
