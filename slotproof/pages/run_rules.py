"""The rules that runs judge beside the laws of the stems, for ``docs/laws/runs.md``: of answers, contents and servers.

No proof speaks of them. Each is a name and a sentence that stand side by side in the code of ``conformance/``, where a
finding is made of them; they are found there, so that none is forgotten.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import conformance
from conformance.stems.stem_registry import ROOMS

NAME = re.compile(r"[a-z]+(_[a-z]+)*")
ROOT = Path(conformance.__file__).parent
FOLDERS = ("driver", "stems")  # of ``conformance``: the code that judges runs


class RunRule(NamedTuple):
    """A rule of runs. ``rooms``: the stems and servers whose runs judge it; none where rooms share the code."""

    name: str
    sentence: str
    rooms: tuple[str, ...]


@cache
def rules() -> tuple[RunRule, ...]:
    """The rules, by name. One name may have two sentences, in runs of different stems."""
    found: dict[tuple[str, str], set[str]] = {}
    for file in sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")):
        for said in _pairs(file):
            found.setdefault(said, set()).add(_room(file))
    return tuple(RunRule(*said, _rooms(where)) for said, where in sorted(found.items()))


def _room(file: Path) -> str:
    folder, *inner = file.relative_to(ROOT).parts
    return inner[0] if folder == "stems" and len(inner) > 1 else ""


def _rooms(where: set[str]) -> tuple[str, ...]:
    return tuple(room for room in ROOMS if room in where) if where <= ROOMS.keys() else ()


def _pairs(file: Path) -> Iterator[tuple[str, str]]:
    """The names of rules with their sentences: constants that stand side by side in a call or a tuple."""
    place = ".".join((conformance.__name__, *file.relative_to(ROOT).with_suffix("").parts))
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        side_by_side: Sequence[ast.expr] = ()
        if isinstance(node, ast.Call):
            side_by_side = node.args
        elif isinstance(node, ast.Tuple):
            side_by_side = node.elts
        for name, sentence in pairwise(side_by_side):
            if isinstance(name, ast.Name) and isinstance(sentence, ast.Name | ast.Constant):
                said = tuple(_value(place, one) for one in (name, sentence))
                if NAME.fullmatch(said[0]) and said[1].endswith("."):
                    yield said[0], said[1]


def _value(place: str, node: ast.expr) -> str:
    """The text of a constant of the module ``place``; empty where it is none."""
    value = node.value if isinstance(node, ast.Constant) else getattr(import_module(place), ast.unparse(node), "")
    return value if isinstance(value, str) else ""
