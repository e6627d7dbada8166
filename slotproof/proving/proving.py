"""``slotproof prove``: every obligation of the law, by z3 and by cvc5."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import proofs
import spec
from conformance.driver.cache_folder import cache_folder
from conformance.driver.naming import UsageError
from proofs import counterexample, explore, prover, walks
from proofs.counterexample import REACHABLE
from proofs.explore import Path as Route
from proofs.following import following
from proofs.hints import Hints, Mutant, without_mutant
from proofs.memory import AnswerMemory
from proofs.prover import Verdict
from proofs.registry import STEMS, hints_of
from proofs.walks import Seen
from slotproof import spec_lint
from slotproof.console.codes import BROKEN, HOLDS, UNKNOWN
from slotproof.console.remembering import remembered
from slotproof.console.screen import choose, progress, write_json
from slotproof.proving import proof_lines
from slotproof.proving.headlines import assumptions, theorems
from slotproof.proving.proof_lines import BareLaw, ProofResults, Reach
from spec.logic import Stem

Unit = tuple[Any, ...]  # a function and its arguments


@dataclass(frozen=True)
class ProofCounts:
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
) -> ProofCounts:
    """Proves the stems, all where none is named; prints the results, writes them to ``json``, and counts them.

    ``certificates``: a folder for cvc5's proofs. ``fresh``: remembered proofs are not believed. Raises ``UsageError``
    where the lint of the spec has a complaint: such a spec could read differently for the provers, and a proof would
    say nothing.
    """
    chosen = choose(stems, STEMS, "stem")
    if complaints := spec_lint.complaints([str(Path(spec.__file__).parent)]):
        raise UsageError(f"the spec cannot be proved: {complaints[0]} ({len(complaints)} complaints of the lint)")
    for stem in chosen:
        if unknown := parts_unknown(hints_of(stem).stem):
            raise UsageError(f"the spec cannot be proved: {', '.join(unknown)} of {stem} is no stem that is proved")
    start = time.perf_counter()
    found = _work(chosen, certificates, memory_of(fresh))
    if json is not None:  # what the theorems rest on takes seconds to find
        write_json(json, _data(chosen, found))
    bare = [one for stem in chosen for one in without_mutants(stem, found)]
    seconds = time.perf_counter() - start
    code = code_of(found, bare)
    proof_lines.end(chosen, found, bare, seconds, code)
    verdicts = found.verdicts
    proved, remembered = sum(v.proved for v in verdicts), sum(v.remembered for v in verdicts)
    return ProofCounts(code, len(chosen), len(verdicts), proved, remembered, seconds)


def parts_unknown(whole: Stem) -> list[str]:
    """The parts of a stem, and of its parts, that are not the registered stem of their name: nobody proves these."""
    own = [name for name, part in whole.parts.items() if not (part.name in STEMS and hints_of(part.name).stem is part)]
    return [*own, *(name for part in whole.parts.values() for name in parts_unknown(part))]


def memory_of(fresh: bool) -> AnswerMemory:
    """The memory of proofs in the cache folder. ``fresh``: it is not believed, but what is proved is kept. In
    continuous integration (the variable ``CI`` is set) nothing is kept or read.
    """
    if os.environ.get("CI"):
        return AnswerMemory(None)
    memory = AnswerMemory(cache_folder() / "proofs", believed=not fresh)
    memory.forget_unused()
    return memory


def _work(stems: list[str], certificates: Path | None, memory: AnswerMemory) -> ProofResults:
    """Everything briefly, and then at length what is left. What fails is printed when it is found."""
    brief = [(prover.look_briefly, *unit, certificates, memory) for unit in prover.tasks(stems)]
    shown = [(vacuity_of, stem) for stem in stems]
    walked = [(walked_or_remembered, stem, memory) for stem in stems]
    killed = [(mutant_of, stem, number) for stem in stems for number in range(len(hints_of(stem).mutants))]
    results = iter(_done([*brief, *walked, *shown, *killed], "proving", final=False))
    verdicts, seen = list(islice(results, len(brief))), list(islice(results, len(walked)))
    witnesses = [row for rows in islice(results, len(shown)) for row in rows]
    found = ProofResults(witnesses=witnesses, walks=seen, mutants=list(results))
    broken = _refuted(verdicts)
    left = [(prover.look_at_length, *unit, memory) for unit in prover.still_open(v for rows in verdicts for v in rows)]
    later = _done([*((reached, stem) for stem in broken), *left], "long looks at what is left")
    found.verdicts = prover.with_later(verdicts, later[len(broken) :])
    more = [stem for stem in _refuted([found.verdicts]) if stem not in broken]
    found.reach = [*later[: len(broken)], *_done([(reached, stem) for stem in more], "the way to the bug")]
    return found


def without_mutants(stem: str, found: ProofResults) -> list[BareLaw]:
    """The laws of a stem that no mutant breaks, without those that are refuted, and whether they follow from others."""
    hints, false = hints_of(stem), {v.invariant for v in found.verdicts if v.stem == stem and v.refuted}
    names = [name for name in without_mutant(hints) if name not in false]
    asked = following(hints, [name for name in names if not hints.is_theorem(name)])
    return [BareLaw(stem, name, asked.get(name)) for name in names]


def _refuted(verdicts: Iterable[Iterable[Verdict]]) -> list[str]:
    """The stems of which an obligation is refuted."""
    return list(dict.fromkeys(v.stem for rows in verdicts for v in rows if v.refuted))


def _done(units: Sequence[Unit], what: str, final: bool = True) -> list[Any]:
    """The results of the units, in order; units of stems with many laws begin first."""
    with progress() as bar:
        task = bar.add_task(what, total=len(units))

        def report(result: Any) -> None:
            bar.advance(task)
            if lines := proof_lines.failures(result, final):
                bar.stop()  # else the bar would be drawn into what is printed
                proof_lines.show_failures(lines)
                bar.start()

        return prover.on_every_core(_call, units, report, weight=lambda unit: prover.weight(unit[1]))


def _call(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


def reached(stem: str) -> Reach:
    """Whether calls lead from the first state to a state that breaks a law, and the shortest way there."""
    hints = hints_of(stem)
    reach, path = counterexample.classify(hints, hints.stem.transitions)
    return Reach(stem, reach, _words(path))


def walked_or_remembered(stem: str, memory: AnswerMemory) -> Seen:
    """What walks see; remembered where they saw all corners and nothing wrong, and the code is as it was."""
    if memory.folder is None:
        return walks.seen(stem)
    made: list[Seen] = []

    def make() -> Any:
        made.append(walks.seen(stem))
        return made[0].calls

    def kept(_: Any) -> list[str] | None:
        return None if made[0].missing or made[0].wrong else []

    packages = (spec, proofs)  # these import no other of ours: a test looks
    calls = remembered(f"walks/{stem}", stem, make, kept, packages, memory.believed)
    return made[0] if made else Seen(stem, calls, (), (), remembered=True)


def vacuity_of(stem: str) -> list[dict[str, str | None]]:
    """The witnesses of a stem, see ``vacuity``."""
    return vacuity(hints_of(stem))


def mutant_of(stem: str, number: int) -> dict[str, Any]:
    """One mutant of a stem, and how its law refutes it."""
    hints = hints_of(stem)
    return _mutant(hints, hints.mutants[number])


def code_of(found: ProofResults, bare: Sequence[Any]) -> int:
    """The exit code. ``bare``: the laws that no mutant breaks."""
    if any(one.reach == REACHABLE for one in found.reach):
        return BROKEN
    vacuous = any(not row["witness"] for row in found.witnesses) or any(not row["killed"] for row in found.mutants)
    vacuous |= any(seen.missing or seen.wrong for seen in found.walks)
    return UNKNOWN if vacuous or bare or not all(v.proved for v in found.verdicts) else HOLDS


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


def _data(stems: list[str], found: ProofResults) -> dict[str, Any]:
    return {
        "obligations": [asdict(v) for v in found.verdicts],
        "vacuity": found.witnesses,
        "walks": [asdict(seen) for seen in found.walks],
        "mutants": found.mutants,
        "assumptions": assumptions(stems),
        "theorems": theorems(stems),
    }
