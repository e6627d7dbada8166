"""What ``slotproof prove`` prints: each failure when it is found, and at the end what is proved.

On a terminal the end has a table of each stem. Elsewhere, as in a pipe or a log, it has a line for each stem and each
theorem, and of the tables only the rows that fail.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from proofs import corners, registry
from proofs.counterexample import REACHABLE
from proofs.fitting import ANSWERED
from proofs.following import Following
from proofs.obligations import FRAME, PROOF, TRIVIAL
from proofs.prover import LEMMAS, Verdict
from proofs.registry import hints_of
from proofs.walks import Seen
from slotproof.console import screen
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.console.screen import say, show, table
from slotproof.proving.headlines import assumed
from spec.theorems import HEADLINES, Headline

COLUMNS = ("transition", "obligations", "z3", "cvc5", "seconds", "not proved")
WORDS = {HOLDS: "every law holds", BROKEN: "a law is broken"}  # of an exit code; else not everything is known
Line = tuple[str, str, str]  # a word, its style, and what follows it


@dataclass(frozen=True)
class Reach:
    """Whether calls lead from the first state of a stem to a state that breaks a law (``reach``), and the shortest way
    there in words.
    """

    stem: str
    reach: str
    path: str | None


class BareLaw(NamedTuple):
    """A law that no mutant breaks. ``found``: whether it follows from the others; ``None`` where this was not asked: of
    a law of two states, and of a theorem.
    """

    stem: str
    law: str
    found: Following | None = None


@dataclass
class ProofResults:
    """What all units of work found. ``reach``: of each stem with a refuted obligation."""

    verdicts: list[Verdict] = field(default_factory=list)
    witnesses: list[dict[str, Any]] = field(default_factory=list)
    walks: list[Seen] = field(default_factory=list)
    mutants: list[dict[str, Any]] = field(default_factory=list)
    reach: list[Reach] = field(default_factory=list)


# What fails.


def failures(found: Any, final: bool) -> list[Line]:
    """What failed in one unit of work. ``final``: an obligation that is open now is not looked at again."""
    if isinstance(found, Reach):
        return [_reached(found)]
    if isinstance(found, Seen):
        return _walked(found)
    if isinstance(found, dict):
        return [] if found["killed"] else [_survivor(found)]
    return [line for one in found if (line := _failure(one, final))]


def _failure(one: Any, final: bool) -> Line | None:
    if isinstance(one, Verdict):
        if one.refuted:
            return "refuted", "bold red", f": {_place(one)}\n  from a lawful state, {one.refuted}"
        if one.proved or (one.open and not final):
            return None
        return "not proved", "yellow", f": {_place(one)} (z3 {one.z3}, cvc5 {one.cvc5}); no small state breaks it"
    if one["witness"]:
        return None
    return (
        "no witness",
        "bold red",
        f": no calls lead to a granted {one['stem']}.{one['transition']} that has an effect",
    )


def _walked(seen: Seen) -> list[Line]:
    """The corners that no call has reached, and what is wrong with the calls that run."""
    excluded = [
        f": no granted call of {seen.stem}.{name} in {seen.calls} calls, as engines make it: {corner}. A promise or a "
        "choice may exclude it"
        for name, corner in seen.missing
    ]
    wrong = [
        f" on a random walk: {seen.stem}.{what}. If the contrary is proved, what runs is not what is proved"
        for what in seen.wrong
    ]
    return [("no witness", "bold red", said) for said in excluded] + [("wrong", "bold red", said) for said in wrong]


def _place(verdict: Verdict) -> str:
    return f"{verdict.stem}.{verdict.transition} x {verdict.invariant}"


def _survivor(mutant: dict[str, Any]) -> Line:
    said = f"the wrong {mutant['transition']} {mutant['mutant']} does not break {mutant['stem']}.{mutant['invariant']}"
    return "mutant not refuted", "bold red", f": {said}"


def _reached(found: Reach) -> Line:
    if found.reach == REACHABLE:
        said = f" of {found.stem}: the shortest path from the first state to a broken law: {found.path}"
        return found.reach, "bold red", said
    said = f": no path of calls to a broken law of {found.stem} was found in its small worlds"
    return found.reach, "yellow", said


def show_failures(lines: Iterable[Line]) -> None:
    """Prints what failed."""
    for word, style, said in lines:
        say((word, style), said)


# The end.


def end(stems: Sequence[str], found: ProofResults, bare: Sequence[BareLaw], seconds: float, code: int) -> None:
    """Prints what is proved, and what is missing. ``bare``: the laws that no mutant breaks."""
    _left_out(found.verdicts)
    for law in bare:
        say(("no mutant", "bold red"), f": {_without_mutant(law)}")
    if screen.console.is_terminal:
        matrix(found.verdicts)
    else:
        matrix(v for v in found.verdicts if not v.proved)
        _by_stem(found.verdicts)
    _theorems(stems, found.verdicts)
    _not_here(stems)
    _summary(found, seconds, code)


def _left_out(verdicts: Sequence[Verdict]) -> None:
    """The open obligations of laws that are refuted elsewhere, which got no long looks."""
    false = {(v.stem, v.invariant) for v in verdicts if v.refuted}
    left: dict[str, list[str]] = defaultdict(list)
    for v in verdicts:
        if v.open and (v.stem, v.invariant) in false:
            left[f"{v.stem}.{v.invariant}"].append(v.transition)
    for law, transitions in left.items():
        said = f": {law} of {', '.join(transitions)}: no long looks, since the law is refuted above"
        say(("not proved", "yellow"), said)


def _without_mutant(bare: BareLaw) -> str:
    """What to do about a law that could say nothing."""
    hints, law = hints_of(bare.stem), f"{bare.stem}.{bare.law}"
    file = Path(str(import_module(f"{registry.__package__}.{bare.stem}").__file__))
    mutant = f"add a mutant in {file.parent.name}/{file.name}"
    if (found := bare.found) is not None and found.laws:
        others = f"{law}: this law follows from the others ({', '.join(found.laws)}), as z3 and cvc5 prove"
        return f"{others}: make it a theorem, or {mutant}"
    if found is not None and found.laws is not None:
        return f"{law}: this law is true of every state, as z3 and cvc5 prove, so that it says nothing: drop it"
    said = f"no wrong transition breaks {law}, so that this law could say nothing"
    if hints.is_theorem(bare.law):
        return f"{said}: {mutant} that breaks it together with a law from which it follows"
    if found is not None and not found.apart:
        return f"{said}: {mutant}, or make it a theorem, if it follows from the others, which is not known"
    return f"{said}: {mutant}"


def matrix(verdicts: Iterable[Verdict]) -> None:
    """A table for each stem: for each transition how many obligations each solver proved."""
    by_stem: dict[str, dict[str, list[Verdict]]] = defaultdict(lambda: defaultdict(list))
    for verdict in verdicts:
        by_stem[verdict.stem][verdict.transition].append(verdict)
    for stem, rows in by_stem.items():
        show(table(stem, COLUMNS, [(name, *_row(found)) for name, found in rows.items()]))


def _row(found: list[Verdict]) -> list[str]:
    unsat = [str(sum(getattr(v, solver) == "unsat" for v in found)) for solver in ("z3", "cvc5")]
    left = ", ".join(v.invariant for v in found if not v.proved)
    return [str(len(found)), *unsat, f"{sum(v.seconds for v in found):.2f}", left or "-"]


def _by_stem(verdicts: Sequence[Verdict]) -> None:
    for stem in dict.fromkeys(v.stem for v in verdicts):
        own = [v for v in verdicts if v.stem == stem]
        proved, units = sum(v.proved for v in own), len({v.transition for v in own})
        what = f"{units} lemmas" if stem == LEMMAS else f"{units - 1} transitions and the first state"
        say(f"{stem}: {proved} of {len(own)} obligations proved, of {what}")


def _theorems(stems: Sequence[str], verdicts: Sequence[Verdict]) -> None:
    """The theorems about these stems by number, each with whether it is proved: whether every obligation of the lemmas,
    of its stems and of the stems that these are made of is proved.
    """
    bad = {v.stem for v in verdicts if not v.proved}
    for number, headline in enumerate(HEADLINES, start=1):
        own = {stem for stem, _ in headline.laws}
        if own <= set(stems):
            held = bad.isdisjoint({LEMMAS, *own, *(part for stem in own for part in _parts(stem))})
            say(
                f"theorem {number}, {headline.name}: ",
                ("proved", "green") if held else ("not proved", "bold red"),
                _but(headline),
            )


def _not_here(stems: Sequence[str]) -> None:
    """The parts of these stems whose laws are proved elsewhere."""
    if parts := sorted({part for stem in stems for part in _parts(stem)} - set(stems)):
        say(f"not proved here: the laws of {', '.join(parts)}, which are parts: slotproof prove {' '.join(parts)}")


def _but(headline: Headline) -> str:
    """The transitions of which a theorem assumes choices, or says nothing; ``docs/laws.md`` has the sentences."""
    of = [name for stem, law in headline.laws if law == ANSWERED for name in assumed(stem)]
    return f", with what docs/laws.md says of {', '.join(of)}" if of else ""


def _parts(stem: str) -> set[str]:
    parts = hints_of(stem).stem.parts.values()
    return {part.name for part in parts} | {name for part in parts for name in _parts(part.name)}


def _summary(found: ProofResults, seconds: float, code: int) -> None:
    verdicts = found.verdicts
    proved, remembered = sum(v.proved for v in verdicts), sum(v.remembered for v in verdicts)
    kinds = Counter(v.kind for v in verdicts)
    kept = sum(len(corners.of(w.stem)) for w in found.walks)
    met = kept - sum(len(w.missing) for w in found.walks)
    again = ", remembered" if any(w.remembered for w in found.walks) else ""
    seen, killed = sum(bool(w["witness"]) for w in found.witnesses), sum(m["killed"] for m in found.mutants)
    say(
        f"{proved} of {len(verdicts)} obligations proved by z3 and cvc5, for any number of pages and any page size: "
        f"{kinds[PROOF]} need a proof, {kinds[FRAME]} are frames (the call changes nothing that the law speaks about), "
        f"{kinds[TRIVIAL]} are true of every state; "
        f"{seen} of {len(found.witnesses)} transitions have a witness; {killed} of {len(found.mutants)} mutants are "
        f"refuted by their law, alone, first, or with laws that it rests on; {met} of {kept} kinds of calls that "
        f"engines make are met on random walks of {sum(w.calls for w in found.walks)} calls{again}"
    )
    word = WORDS.get(code, "not everything is proved")
    say(f"{word}: {remembered} proofs remembered, {proved - remembered} proved now; {seconds:.0f} s")
