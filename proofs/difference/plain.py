"""The values of a telling example as plain data, and as short text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from proofs import explore
from spec.finite import Domain, Map, Seq, Set


def example(values: Mapping[str, Any]) -> dict[str, Any]:
    """The states and arguments by name: of a state what is not 0, by path."""
    return {name: state(value) if is_dataclass(value) else argument(value) for name, value in values.items()}


def state(one: Any, path: str = "") -> dict[str, Any]:
    """What is not 0 and not empty in a state, by path; of a map its values by key. The sizes of domains come first."""
    found: dict[str, Any] = {}
    for f in fields(one):
        value, name = getattr(one, f.name), path + f.name
        if is_dataclass(value):
            found |= state(value, f"{name}.")
        elif isinstance(value, Map):
            entries = {_key(key): item for key, item in sorted(value.items(), key=str) if item != 0}
            found |= {name: entries} if entries else {}
        elif isinstance(value, Domain):
            found[name] = [value.low, value.high]
        elif value or f.metadata.get("constant"):
            found[name] = value
    return found


def _key(key: Any) -> str:
    return ", ".join(map(str, key)) if isinstance(key, tuple) else str(key)


def argument(value: Any) -> Any:
    """An argument of a call."""
    return explore.show(value) if isinstance(value, Seq | Set | tuple) else value
