"""What the findings of a report weigh: which of them fail the check, and which stems are without a verdict.

The exit code, the JUnit file and the annotations rest on these functions, so they never contradict each other.
"""

from __future__ import annotations

from typing import Any

from conformance.driver.lockstep import UNSUPPORTED, VIOLATION
from conformance.driver.protocol import Json
from conformance.search.enough import NOT_ENOUGH, OPERATIONS, TIMES
from conformance.traces.trace_files import LISTS


def fails(name: str, row: Json, report: Json) -> bool:
    """Whether the finding ``row`` of the list ``name`` fails the check. A latent finding fails only our own
    implementation. What is known or gone fails only a check without a base, which judges a release as it is listed.
    With options another tree or other allocators may run, which do not have the differences of the release.
    """
    grave: bool = row["severity"] == VIOLATION or report["subject"]["own"]
    beside = report["base"] is not None
    return {
        "new": grave,
        "worse": grave,
        "incomparable": False,
        "known": grave and not beside,
        "gone": not beside and not report["subject"]["options"],
    }[name]


def too_little(result: Json) -> str:
    """What of a stem was done too seldom, in words. ``result``: with ``steps``, ``transitions`` and ``too_seldom``."""
    few = [f"{result['steps']} operations, {OPERATIONS} are asked for"] if result["steps"] < OPERATIONS else []
    times = {name: result["transitions"].get(f"{name} done", 0) for name in result["too_seldom"]}
    never = [name for name, count in times.items() if not count]
    seldom = [f"{name} {count}" for name, count in times.items() if count]
    few += [f"never reached: {', '.join(never)}"] if never else []
    few += [f"reached fewer than {TIMES} times: {', '.join(seldom)}"] if seldom else []
    return "; ".join(few) or "the search came to no end"


def undecided(result: Json, report: Json) -> str:
    """Why there is no verdict on a stem; empty if there is one, or if none is wanted."""
    if not result["enough"]:
        return f"no verdict: {NOT_ENOUGH}: {too_little(result)}"
    asked = report["base"] is None or report["options"]["stems"]
    if result["verdict"] == UNSUPPORTED and result["runs"] == 0 and asked:
        return "no verdict: no run could be started"
    return ""


def nothing_judged(stem: str) -> Json:
    """The judgement on a stem on which no search came to its end."""
    empty: dict[str, Any] = {name: [] for name in LISTS}
    looked: Json = {"runs": 0, "steps": 0, "refused": 0, "transitions": {}, "avoided": {}, "ran": {}}
    looked |= {"never_reached": [], "cut_short": True}
    looked |= {"claimed": [], "too_seldom": [], "enough": False, "seconds": 0.0, "over": 0.0}
    return {"stem": stem, "verdict": NOT_ENOUGH, **looked, **empty}
