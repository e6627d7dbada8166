"""The configuration of a run of the room ``server``: a model, and the launch flags of a server."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from conformance.stems.configs import EXPECTED, Sessions, exact

MOST_FLAGS = 64


def _words(flags: list[Any]) -> list[Any]:
    """Flags are texts, and not too many."""
    if len(flags) > MOST_FLAGS or not all(isinstance(flag, str) and flag for flag in flags):
        raise PydanticCustomError(EXPECTED, f"at most {MOST_FLAGS} launch flags and their values, each a text")
    return flags


def _variables(given: dict[Any, Any]) -> dict[Any, Any]:
    """Names and values are texts, and not too many."""
    if len(given) > MOST_FLAGS or not all(isinstance(one, str) for pair in given.items() for one in pair):
        raise PydanticCustomError(EXPECTED, f"at most {MOST_FLAGS} variables of the environment, each a text")
    return given


@exact
class ServerConfig(TypedDict):
    """A server.

    ``model``: the name of a small model that the engine knows, such as ``windowed`` (layers with a sliding window, and
    others) or ``full``. ``flags``: the launch flags of the server, as its command line has them. ``sessions``: how many
    streaming sessions clients open at a time. ``environment``: variables of its environment,
    without the prefix of the engine's name.
    """

    model: str
    flags: Annotated[list[str], AfterValidator(_words)]
    sessions: Sessions
    environment: NotRequired[Annotated[dict[str, str], AfterValidator(_variables)]]


CONFIG = ServerConfig
