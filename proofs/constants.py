"""What the proofs of a stem assume of its constants: which fields are one constant, which are at least 1, and what the
stem says of its sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from proofs.hints import Assumption
from proofs.symbols import NAMED_STATES, hints_of_class
from spec.logic import Stem


def assumptions(stem: Stem) -> list[Assumption]:
    """What no transition of the stem checks: a world in which one of these is false is in no proof."""
    found: dict[str, list[str]] = {}
    least, said = [], []
    named = [*constants(stem.state)]
    if len(named) > len(set(named)):
        said.append(Assumption(f"saved_in_{stem.name}", "What is saved has the constants of what is now."))
    for path, kind, shared in dict.fromkeys(named):
        found.setdefault(shared or path, []).append(path)
        least += [path] if kind == "number" and len(found[shared or path]) == 1 else []
    if alike := [_listed(paths) for paths in found.values() if len(paths) > 1]:
        said.append(
            Assumption(f"shared_in_{stem.name}", f"These fields are one constant, never two: {'; '.join(alike)}.")
        )
    if least:
        said.append(Assumption(f"positive_in_{stem.name}", f"At least 1: {_listed(least)}."))
    if stem.sizes is not None:
        said.append(Assumption(f"sizes_in_{stem.name}", " ".join((stem.sizes.__doc__ or "").split())))
    return said


def constants(cls: Any, path: str = "") -> Iterator[tuple[str, str, str | None]]:
    """The path, the kind and the shared name of each constant of a state, in the order of its fields.

    The parts ``now`` and ``saved`` of a state have one set of constants, so that they do not stand in a path.
    """
    for f in fields(cls):
        name, kind = path + f.name, str(f.metadata.get("kind", ""))
        if f.metadata.get("constant") and kind != "map":
            yield re.sub(NAMED_STATES, "", name), kind, f.metadata["shared"]
        elif not kind and is_dataclass(of := hints_of_class(cls)[f.name]):
            yield from constants(of, name + ".")


def _listed(names: list[str]) -> str:
    *most, last = (f"`{name}`" for name in names)
    return f"{', '.join(most)} and {last}" if most else last
