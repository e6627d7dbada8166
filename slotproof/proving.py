"""``slotproof prove``: every obligation of the law, by z3 and by cvc5."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import spec
from conformance.naming import UsageError
from proofs import counterexample, explore, prover
from proofs.counterexample import REACHABLE, Counterexample
from proofs.explore import Path as Route
from proofs.hints import Hints, Mutant, without_mutant
from proofs.obligations import FRAME, PROOF, START, TRIVIAL
from proofs.prover import Verdict
from proofs.registry import STEMS, hints_of
from slotproof import spec_lint
from slotproof.codes import BROKEN, HOLDS, UNKNOWN
from slotproof.headlines import assumptions, theorems
from slotproof.screen import choose, progress, say, show, table, write_json

COLUMNS = ("transition", "obligations", "z3", "cvc5", "seconds", "not proved")
REACHES = {REACHABLE: "bold red"}  # a lawful state from which a law breaks, and that no call leads to, is no bug


@dataclass(frozen=True)
class Failure:
    """An obligation that was not proved, with a counterexample on a small state if there is one.

    ``reach``: whether calls lead to that state. ``path``: the shortest sequence of calls to the bug.
    """

    verdict: Verdict
    example: Counterexample | None
    reach: str
    path: Route | None


@dataclass(frozen=True)
class Counts:
    """What one call of ``counted`` did, in numbers.

    ``code``: the exit code. ``stems``: how many were proved. ``obligations``: of the stems and of the lemmas;
    ``proved``: how many of these, by both solvers; ``remembered``: for how many of these both proofs were remembered.
    ``seconds``: of wall time, for all of it.
    """

    code: int
    stems: int
    obligations: int
    proved: int
    remembered: int
    seconds: float


def run(stems: Sequence[str], json: Path | None, certificates: Path | None = None, fresh: bool = False) -> int:
    """Does what ``counted`` does; the exit code."""
    return counted(stems, json, certificates, fresh).code


def counted(
    stems: Sequence[str] = (), json: Path | None = None, certificates: Path | None = None, fresh: bool = False
) -> Counts:
    """Proves the stems, all where none is named; prints the results, writes them to ``json``, and counts them.

    ``certificates``: a folder for cvc5's proofs. ``fresh``: remembered proofs are not believed. Raises ``UsageError``
    where the lint of the spec has a complaint: such a spec could read differently for the provers, and a proof would
    say nothing.
    """
    del fresh  # nothing is remembered yet
    chosen = choose(stems, STEMS, "stem")
    if complaints := spec_lint.complaints([str(Path(spec.__file__).parent)]):
        raise UsageError(f"the spec cannot be proved: {complaints[0]} ({len(complaints)} complaints of the lint)")
    start = time.perf_counter()
    verdicts = _prove(chosen, certificates)
    witnesses, killed = _vacuity(chosen)
    failures = [_explain(v) for v in verdicts if not v.proved]
    if json is not None:  # what the theorems rest on takes seconds to find
        write_json(json, _data(chosen, verdicts, witnesses, killed))
    _matrix(verdicts)
    for failure in failures:
        _print_failure(failure)
    bare = [f"{stem}.{law}" for stem in chosen for law in without_mutant(hints_of(stem))]
    for law in bare:
        say(("no mutant", "bold red"), f": no wrong transition breaks {law}, so that this law could say nothing")
    empty = [w for w in witnesses if not w["witness"]] + [m for m in killed if not m["killed"]]
    seconds = time.perf_counter() - start
    _summary(verdicts, witnesses, killed, seconds)
    proved = sum(v.proved for v in verdicts)
    return Counts(_code(failures, [*empty, *bare]), len(chosen), len(verdicts), proved, 0, seconds)


def _prove(stems: list[str], certificates: Path | None) -> list[Verdict]:
    with progress() as bar:
        task = bar.add_task("proving", total=len(prover.tasks(stems)))
        return prover.prove(stems, lambda _: bar.advance(task), certificates)


def _vacuity(stems: list[str]) -> tuple[list[Any], list[Any]]:
    """The witnesses of all transitions, and which mutants were refuted."""
    units: list[tuple[str, int | None]] = [(stem, None) for stem in stems]
    units += [(stem, number) for stem in stems for number in range(len(hints_of(stem).mutants))]
    with progress() as bar:
        task = bar.add_task("witnesses and mutants", total=len(units))
        found = prover.on_every_core(_shown, units, lambda _: bar.advance(task))
    return [row for rows in found[: len(stems)] for row in rows], found[len(stems) :]


def _shown(stem: str, number: int | None) -> Any:
    hints = hints_of(stem)
    return vacuity(hints) if number is None else _mutant(hints, hints.mutants[number])


def _code(failures: list[Failure], empty: list[Any]) -> int:
    if any(f.reach == REACHABLE for f in failures):
        return BROKEN
    return UNKNOWN if failures or empty else HOLDS


def vacuity(hints: Hints) -> list[dict[str, str | None]]:
    """For each transition the shortest path to a granted call, and to a refused one."""
    return [
        {
            "stem": hints.stem.name,
            "transition": name,
            "witness": _words(found.get("granted")),
            "refused": _words(found.get("refused")),
        }
        for name, found in explore.witnesses(hints).items()
    ]


def _words(path: Route | None) -> str | None:
    return None if path is None else "; ".join(map(str, path))


def mutants(hints: Hints) -> list[dict[str, Any]]:
    """For each law its mutants, and how the law refutes each, see ``counterexample.killed_by``."""
    return [_mutant(hints, mutant) for mutant in hints.mutants]


def _mutant(hints: Hints, mutant: Mutant) -> dict[str, Any]:
    """One mutant, and how its law refutes it."""
    how = counterexample.killed_by(hints, mutant)
    return {
        "stem": hints.stem.name,
        "invariant": mutant.invariant,
        "mutant": mutant.name,
        "transition": mutant.transition,
        "killed": how is not None,
        "how": how,
    }


def _explain(verdict: Verdict) -> Failure:
    if verdict.stem not in STEMS or verdict.transition == START:
        return Failure(verdict, None, "unknown", None)
    hints = hints_of(verdict.stem)
    transition = hints.stem.transitions[verdict.transition]
    example = counterexample.find(hints, verdict.transition, transition, verdict.invariant)
    if example is None:
        return Failure(verdict, None, "unknown", None)
    return Failure(verdict, example, *counterexample.classify(hints, hints.stem.transitions))


def _print_failure(failure: Failure) -> None:
    v = failure.verdict
    where = f"{v.stem}.{v.transition} x {v.invariant} (z3 {v.z3}, cvc5 {v.cvc5})"
    say((failure.reach, REACHES.get(failure.reach, "yellow")), f": {where}")
    if failure.example:
        say(f"  from a lawful state, {failure.example}")
    if failure.path:
        say("  shortest path from the first state: " + (_words(failure.path) or ""))


def _matrix(verdicts: list[Verdict]) -> None:
    by_stem: dict[str, dict[str, list[Verdict]]] = defaultdict(lambda: defaultdict(list))
    for verdict in verdicts:
        by_stem[verdict.stem][verdict.transition].append(verdict)
    for stem, rows in by_stem.items():
        show(table(stem, COLUMNS, [(name, *_row(found)) for name, found in rows.items()]))


def _row(found: list[Verdict]) -> list[str]:
    unsat = [str(sum(getattr(v, solver) == "unsat" for v in found)) for solver in ("z3", "cvc5")]
    left = ", ".join(v.invariant for v in found if not v.proved)
    return [str(len(found)), *unsat, f"{sum(v.seconds for v in found):.2f}", left or "-"]


def _summary(verdicts: list[Verdict], witnesses: list[Any], mutations: list[Any], seconds: float) -> None:
    proved, seen = sum(v.proved for v in verdicts), sum(bool(w["witness"]) for w in witnesses)
    killed = sum(m["killed"] for m in mutations)
    kinds = Counter(v.kind for v in verdicts)
    say(
        f"{proved} of {len(verdicts)} obligations proved by z3 and cvc5, for any number of pages and any page size: "
        f"{kinds[PROOF]} need a proof, {kinds[FRAME]} are frames (the call changes nothing that the law speaks about), "
        f"{kinds[TRIVIAL]} are true of every state; "
        f"{seen} of {len(witnesses)} transitions have a witness; {killed} of {len(mutations)} mutants are refuted by "
        f"their law, alone, first, or with laws that it rests on; {seconds:.0f} s"
    )


def _data(stems: list[str], verdicts: list[Verdict], witnesses: list[Any], mutations: list[Any]) -> dict[str, Any]:
    return {
        "obligations": [asdict(v) for v in verdicts],
        "vacuity": witnesses,
        "mutants": mutations,
        "assumptions": assumptions(stems),
        "theorems": theorems(stems),
    }
