"""How large the world of a run is: its requests, its pools, and its operations."""

from __future__ import annotations

from conformance.driver.protocol import Json
from conformance.driver.trace import Trace

READERS = (("request", "requests"), ("row", "rows"), ("handle", "handles"))  # arguments that name who reads
POOLS = {"blocks": "block", "size": "page", "size_swa": "SWA page", "size_mamba": "state slot"}  # of a configuration
LEAST = 2  # readers, and pages of each pool of pages, below which nobody can read what another has written


def world_of(trace: Trace) -> str:
    """The world of a run, such as ``2 requests, 4 pages, 2 SWA pages and 7 operations``."""
    name, readers = _readers(trace)
    parts = [_counted(readers, name), *(_counted(trace.config[key], what) for key, what in _pools(trace).items())]
    return f"{', '.join(parts)} and {_counted(len(trace.steps), 'operation')}"


def is_small(trace: Trace) -> bool:
    """Nobody can read in this world what was computed for another: there is one reader, or a pool has one page."""
    return _readers(trace)[1] < LEAST or any(trace.config[key] < LEAST for key in _pools(trace))


def _readers(trace: Trace) -> tuple[str, int]:
    """Who reads in a run, and how many there are: requests, else rows, else lock handles."""
    for one, many in READERS:
        found = {number for step in trace.steps for number in _numbers(step, one, many)}
        if found:
            return one, len(found)
    return "request", 0


def _numbers(step: Json, one: str, many: str) -> list[int]:
    named = step.get(many)
    return [*([step[one]] if one in step else []), *(named if isinstance(named, list) else [])]


def _pools(trace: Trace) -> dict[str, str]:
    """The keys of the configuration that say how large a pool is, and what is in it. A model without a sliding window
    or without states has a size for these that nobody reads.
    """
    if trace.stem == "mamba_slots":
        return {"size": "state slot"}
    parts = trace.config.get("components")
    unused = {"size_swa"} if trace.stem == "allocator" or (parts is not None and "swa" not in parts) else set()
    unused |= {"size_mamba"} if parts is not None and "mamba" not in parts else set()
    return {key: what for key, what in POOLS.items() if key in trace.config and key not in unused}


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
