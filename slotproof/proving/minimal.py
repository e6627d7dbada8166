"""``slotproof prove --minimal``: which promises, choices and fits no law needs, and why each of these stays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from proofs import prover, unneeded
from proofs.minimal import REFUTED, UNDECIDED, AskedRequirement, Need, asked_of, needs
from proofs.registry import STEMS, hints_of
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.console.screen import choose, progress, say, write_json


def run(stems: Sequence[str], json: Path | None) -> int:
    """Drops each requirement of the stems in turn, and prints those that no law needs, each with its reason to stay.

    The exit code is 1 where one of them has no reason.
    """
    chosen = choose(stems, STEMS, "stem")
    units = [(stem, name) for stem in chosen for name in hints_of(stem).stem.transitions]
    with progress() as bar:
        task = bar.add_task("dropping each promise", total=len(units))
        found = [need for group in prover.on_every_core(needs, units, lambda _: bar.advance(task)) for need in group]
    if json is not None:
        write_json(json, as_data(found))
    idle = [need for need in found if need.idle]
    for need in idle:
        _print(need)
    open_ones = [need for need in found if need.how == UNDECIDED]
    for need in open_ones:
        say(("not known", "yellow"), f": {_name(need)}; without it z3 does not prove {', '.join(need.fails)}")
    say(
        f"{len(found)} promises, choices and fits. Without each of {len(found) - len(idle) - len(open_ones)} a small "
        f"lawful state breaks a law. Without each of {len(open_ones)} z3 finds no proof, but no small state breaks a "
        f"law. {len(idle)} are needed by no law; {sum(need.follows for need in idle)} of these follow from the laws "
        "and the other requirements of their transition."
    )
    return BROKEN if any(reason_of(need) is None for need in idle) else HOLDS


def reason_of(need: Need) -> str | None:
    """Why a requirement that no law needs stays; ``None`` where nobody has said why."""
    return _reason(need.asked, need.follows)


def _name(need: Need) -> str:
    asked = need.asked
    return f"{asked.stem}.{asked.transition}, {asked.kind}: {asked.sentence}"


def _print(need: Need) -> None:
    reason = reason_of(need)
    say(("needed by no law", "yellow" if reason else "bold red"), f": {_name(need)}")
    say(f"  {need.asked.place}: {need.asked.text}")
    say(f"  it stays: {reason}" if reason else "  nobody has said why it stays: find the law that needs it, or drop it")


def listed(kept: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a document says of the requirements: those that no law needs, those of which it is not known, and those that
    are new since they were dropped in turn. ``kept``: the requirements as ``as_data`` has them. Place and source text
    are those of the spec as it is now.
    """
    known = {(row["stem"], row["transition"], row["kind"], row["sentence"]): row for row in kept}
    rows = []
    for asked in (a for stem in STEMS for name in hints_of(stem).stem.transitions for a in _asked(stem, name)):
        row = known.get((asked.stem, asked.transition, asked.kind, asked.sentence))
        if row is None or row["how"] != REFUTED:
            found = {"how": "new", "follows": False} if row is None else row
            rows.append({**found, **asdict(asked), "reason": _reason(asked, bool(found["follows"]))})
    return rows


def _asked(stem: str, name: str) -> Iterable[AskedRequirement]:
    return asked_of(hints_of(stem), name).values()


def _reason(asked: AskedRequirement, follows: bool) -> str | None:
    return unneeded.FOLLOWS if follows else unneeded.reason(asked)


def as_data(found: Iterable[Need]) -> dict[str, Any]:
    """The needs as JSON data."""
    return {
        "requirements": [
            {
                **asdict(need.asked),
                "fails": [*need.fails],
                "how": need.how,
                "follows": need.follows,
                "reason": reason_of(need) if need.idle else None,
            }
            for need in found
        ]
    }
