"""What is said beside a finding, for the screen and for the files alike: what its words mean, how short its run is,
which other runs are folded under it, and what it means that a known finding is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from conformance.driver.lockstep import CHOICE, PROMISE, VIOLATION
from conformance.driver.protocol import Json
from conformance.stems.found import law_of
from conformance.traces.outcome import How
from slotproof.checks.arguments import arguments_of, meaning

SPEAK_FOR_THEMSELVES = ("row", "node", "request", "session", "handle", "block", "slot")  # arguments that say their kind
# Words of a difference, and what they mean.
MEANINGS = {
    "held by nobody": "it was handed out, is not free, and no row, node or request has it: nobody can give it back",
    "not in the tree": "no path from the root leads to it",
    "waiting for the end of a free group": "it was given back, and can be handed out again when the group ends",
    "on the release list": "it was given back; it is sorted into the free list before it is handed out",
    "loading": "a transfer writes its blocks, so nothing is computed in it until the transfer is done",
    "kept for a transfer": "its request has ended; a transfer or a forward pass still uses its blocks",
}
HIDES = "your change hides a known {}: look"


def legend(row: Json) -> list[str]:
    """What the words of a finding's detail mean: the arguments of the transition that it names, and how things are."""
    said = [f"{name}: {means}" for name, means in arguments_in(row).items()]
    said += [f"{words}: {means}" for words, means in MEANINGS.items() if words in row["detail"]]
    return [f"where {said[0]}", *(f"      {line}" for line in said[1:])] if said else []


def arguments_in(row: Json) -> dict[str, str]:
    """What the arguments of the transition that a finding names mean, by name, where its detail shows them."""
    transition = transitions_of(row["stem"]).get(row["law"]) if row["kind"] in (PROMISE, CHOICE) else None
    named = [] if transition is None else [n for n in arguments_of(transition) if n not in SPEAK_FOR_THEMSELVES]
    return {name: meaning(row["stem"], row["law"], name) for name in named}


def transitions_of(stem: str) -> dict[str, Any]:
    """The transitions of a stem, by name."""
    found: dict[str, Any] = law_of(stem).transitions
    return found


def first_sentence(stem: str, transition: str) -> str:
    """What a transition does: the first sentence of its docstring."""
    known = transitions_of(stem).get(transition)
    return " ".join((known.__doc__ or "").partition("\n\n")[0].split()) if known else ""


def about_trace(row: Json) -> str:
    """How many operations the run of a finding has, how short it is, and in how many runs the finding was met."""
    count = len(row["trace"]["steps"])
    kept = f" from the kept trace {row['name']}" if row["name"] else ""
    told = {
        How.SHRUNK: f"shrunk to the end{kept}",
        How.KEPT: f"the kept trace {row['name']}, as it is",
        How.CUT_SHORT: f"cut short{kept}: the time was over before it was shrunk to the end",
        How.DRAWN: "as it was drawn, not shrunk",
    }
    often = f"; {met(row)}" if met(row) else ""
    return f"trace: {operations(count)}, {told[How(row['how'])]}{often}"


def met(row: Json) -> str:
    """In how many runs a finding, or a run folded under it, was met; empty where a kept trace alone shows it."""
    if row["name"] and row["times"] == 1:
        return ""
    return f"met in {row['times']} run{'' if row['times'] == 1 else 's'}"


def operations(count: int) -> str:
    """So many operations, in words."""
    return f"{count} operation{'' if count == 1 else 's'}"


def repairs(row: Json) -> str:
    """The known causes that are repaired where the run of a finding shows it; empty for an engine as it is."""
    named = ", ".join(row["repaired"])
    return f"shown with these known causes repaired, which end or change the run before: {named}" if named else ""


def folded(row: Json) -> Iterable[str]:
    """A line for each other run that breaks the law of a finding."""
    if row["folded"]:
        yield f"{len(row['folded'])} more of its runs, most likely for one reason with this one:"
    for run in row["folded"]:
        last = run["trace"]["steps"][-1]["op"]
        status = "" if run["status"] == "new" else f"{run['status']}; "
        yield f"  ends with {last}, {status}{about_trace(run).removeprefix('trace: ')}: {run['detail']}"


def hides(name: str, row: Json, report: Json) -> str:
    """What a row of ``gone`` means beside a base, for a line of its own; empty for other rows."""
    if name != "gone" or report["base"] is None:
        return ""
    return HIDES.format("violation" if row["severity"] == VIOLATION else "latent finding")


def hidden(report: Json) -> int:
    """How many known violations the subject does not show, and the base does."""
    beside = report["base"] is not None
    return sum(row["severity"] == VIOLATION for row in report["gone"]) if beside else 0
