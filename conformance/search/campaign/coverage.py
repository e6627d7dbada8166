"""What runs have covered: for each transition of the law, and for each of its promises, how often it had which outcome.

An item is a transition, the sentence of a promise (empty for the transition itself) and an outcome. Bad input counts as
the transition ``bad input``, with its kind in the place of the outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from conformance.driver.lockstep import Law
from conformance.driver.protocol import Json
from conformance.stems.stem_registry import ROOMS

Item = tuple[str, str, str]  # transition, promise, outcome
DONE, REFUSED, BROKEN, NOT_OFFERED = "done", "refused", "broken", "not offered"
BAD_INPUT = "bad input"


@dataclass(frozen=True)
class KnownTransition:
    """A transition of the law: the sentences of its promises, and whether a lawful call may find no room."""

    promises: tuple[str, ...]
    can_be_refused: bool


def of_law(law: Law) -> Counter[Item]:
    """The items of one run, with how often each was met."""
    found: Counter[Item] = Counter(law.promised)
    found.update({(name, "", outcome): n for (name, outcome), n in law.counts.items()})
    return found


def rows(counts: Mapping[Item, int]) -> list[list[Any]]:
    """The counts as plain data: ``[transition, promise, outcome, count]``."""
    return [[*item, n] for item, n in sorted(counts.items())]


def from_rows(data: Iterable[Sequence[Any]]) -> Counter[Item]:
    """The counts that ``rows`` made plain."""
    return Counter({(name, promise, outcome): n for name, promise, outcome, n in data})


def table(stem: str, known: Mapping[str, KnownTransition], counts: Mapping[Item, int]) -> Json:
    """The coverage of a stem. ``known``: every transition of its law, by name, so that one that was never asked is in
    the table too.
    """
    transitions = {name: _of_transition(name, one, counts) for name, one in known.items()}
    bad = {kind: counts.get((BAD_INPUT, "", kind), 0) for kind in kinds_of_bad_input(stem)}
    lacking = sorted(name for name, promise, outcome in counts if outcome == NOT_OFFERED and not promise)
    covered = {"transitions": transitions, "bad_input": bad, "not_offered": lacking}
    return {**covered, "items": len(_wanted(covered)), "reached": _reached(covered), "never_reached": missed(covered)}


def _of_transition(name: str, known: KnownTransition, counts: Mapping[Item, int]) -> Json:
    return {
        "taken": counts.get((name, "", DONE), 0),
        "no_room": counts.get((name, "", REFUSED), 0) if known.can_be_refused else None,
        "promises": {
            sentence: {
                "taken": counts.get((name, sentence, DONE), 0),
                "no_room": counts.get((name, sentence, REFUSED), 0),
                "broken": counts.get((name, sentence, BROKEN), 0),
            }
            for sentence in known.promises
        },
    }


def _wanted(covered: Json) -> dict[str, int]:
    """Everything that a run can reach, by name, with how often it was reached."""
    found = {}
    for name, one in covered["transitions"].items():
        found[f"{name}: taken"] = one["taken"]
        if one["no_room"] is not None:
            found[f"{name}: refused, no room"] = one["no_room"]
        for sentence, outcomes in one["promises"].items():
            found[f'{name}: taken, where "{sentence}"'] = outcomes["taken"]
    if "bad" not in covered["not_offered"] or any(covered["bad_input"].values()):
        found |= {f"{BAD_INPUT}: {kind}": count for kind, count in covered["bad_input"].items()}
    return found


def _reached(covered: Json) -> int:
    return sum(count > 0 for count in _wanted(covered).values())


def missed(covered: Json) -> list[str]:
    """What no run has reached, by name. The promises of a transition that was never taken are not named each."""
    taken = {name for name, one in covered["transitions"].items() if one["taken"]}
    names = [name for name, count in _wanted(covered).items() if not count]
    return [name for name in names if ': taken, where "' not in name or name.partition(":")[0] in taken]


def kinds_of_bad_input(stem: str) -> tuple[str, ...]:
    """The kinds of bad input that runs of the stem send."""
    operations = [vars(owner)["bad"] for owner in ROOMS[stem].callers if "bad" in vars(owner)]
    return tuple(kind for operation in operations for kind in get_args(get_type_hints(operation)["kind"]))
