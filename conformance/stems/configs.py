"""The configurations of the stems: which keys there are, what they count, and the bounds of a trace file.

A configuration is a plain dict, from which an engine is made and with which a run begins. These types say what it has;
``conformance.traces.trace_schema`` checks the traces of users with them. The bounds lie above what drawn runs use:
those have at most 16 pages of at most 16 tokens, in a whole cache at most 8 pages. They are no larger, so that a replay
ends within 5 s: the time of a step grows with the number of slots, and with the third power of the number of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, PlainValidator, ValidationInfo, with_config
from pydantic_core import PydanticCustomError

from conformance.stems.kinds import Kinds

# Types of errors: the message says what was expected, or what an object lacks.
EXPECTED, INCOMPLETE = "expected", "incomplete"


def whole(first: int, last: int) -> PlainValidator:
    """Accepts the whole numbers from ``first`` to ``last``. A truth value is no number, and neither is 1.0."""

    def check(value: Any) -> int:
        if type(value) is not int or not first <= value <= last:
            raise PydanticCustomError(EXPECTED, f"a whole number from {first} to {last}")
        return value

    return PlainValidator(check)


Tokens = Annotated[int, whole(1, 4096)]
PageSize = Annotated[int, whole(1, 32)]
Pages = Annotated[int, whole(1, 32)]
FewPages = Annotated[int, whole(1, 16)]
States = Annotated[int, whole(1, 64)]
Rows = Annotated[int, whole(1, 16)]
FewRows = Annotated[int, whole(1, 8)]
Groups = Annotated[int, whole(1, 8)]
Sessions = Annotated[int, whole(0, 8)]
Requests = Annotated[int, whole(1, 8)]
exact = with_config(extra="forbid", strict=True)


def _declared(key: str) -> PlainValidator:
    """Accepts the kinds of trees that engines declare. ``key``: a field of ``Kinds``, which stand in the context."""

    def check(value: Any, asked: ValidationInfo) -> str:
        assert isinstance(asked.context, Kinds), "a configuration is checked against what engines declare"
        known = asked.context.names(key)
        if not isinstance(value, str) or value not in known:
            raise PydanticCustomError(EXPECTED, f"one of {', '.join(known)}")
        return value

    return PlainValidator(check, json_schema_input_type=str)


LockedTree = Annotated[str, _declared("locked")]
ServedTree = Annotated[str, _declared("served")]
StatefulTree = Annotated[str, _declared("stateful")]


def _one_of(*known: list[str]) -> AfterValidator:
    """Accepts these lists of components."""

    def check(value: list[str]) -> list[str]:
        if value not in known:
            raise PydanticCustomError(EXPECTED, f"one of {', '.join(map(str, known))}")
        return value

    return AfterValidator(check)


FULL, WINDOWED, SLIDING = ["full"], ["full", "swa"], ["swa"]
STATEFUL, ALL = ["full", "mamba"], ["full", "swa", "mamba"]
TreeComponents = Annotated[list[str], _one_of(FULL, WINDOWED, STATEFUL, ALL)]
RowComponents = Annotated[list[str], _one_of(FULL, WINDOWED, SLIDING)]
CacheComponents = Annotated[list[str], _one_of(FULL, WINDOWED, STATEFUL, ALL, SLIDING)]


def is_windowed(config: Mapping[str, Any]) -> bool:
    """The model of a configuration has layers with a sliding window and others, so that there are two pools. A
    configuration that names no components has both.
    """
    return {"full", "swa"} <= set(config.get("components", WINDOWED))


def is_all_sliding(config: Mapping[str, Any]) -> bool:
    """Every layer of the model has a sliding window: there is one pool, and a token that left the window needs no
    page.
    """
    return list(config.get("components", WINDOWED)) == SLIDING


def is_prefill_aware(config: Mapping[str, Any]) -> bool:
    """Every layer of the model reads the whole prompt, and a window of the answer."""
    return is_all_sliding(config) and bool(config.get("prefill_aware"))


def swa_size(config: Mapping[str, Any]) -> int:
    """How many pages the SWA pool of a configuration has; 0 without sliding-window layers."""
    return int(config["size_swa"]) if is_windowed(config) else 0
