"""``slotproof faults``: known bugs, planted in the law and in our implementation.

By default each bug is shown by what is kept of it, in seconds; with ``--search`` it is found from nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json
from conformance.planted.faults.catch import Caught, catch_all
from conformance.planted.faults.kept import without_fault
from conformance.planted.faults.known_bugs import ALL, FAULTS, Fault
from conformance.planted.faults.show import Shown, show_all
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.console.screen import broken, choose, console, progress, say, show, table, write_json
from slotproof.planted import kept_search

Result = TypeVar("Result")


@dataclass(frozen=True)
class FaultOptions:
    """What is asked of the command.

    ``names``: the faults, all where none is named. ``search``: they are found from nothing. ``seed``: of the search.
    ``keep``: the result of the search is written to ``docs/faults.json``. ``json``: a file for the result.
    """

    names: Sequence[str] = ()
    search: bool = False
    seed: int | None = None
    keep: bool = False
    json: Path | None = None


def run(options: FaultOptions) -> int:
    """Shows each fault and prints the results; exit code 1 if a proof does not refute one or no run shows it.

    Raises ``UsageError`` for options that do not go together.
    """
    if options.keep and not options.search:
        raise UsageError("--keep is for the result of --search: give both")
    if options.seed is not None and not options.search:
        raise UsageError("--seed is for --search: a kept run has no seed")
    if options.keep and options.names:
        raise UsageError("--keep is for all known bugs: name none")
    if options.search:
        return _searched(options)
    return BROKEN if missed(caught(options.names, options.json)) else HOLDS


def caught(names: Sequence[str] = (), json: Path | None = None) -> list[Caught]:
    """Refutes each fault by its kept law and replays its kept run, prints what came of it, and writes it to ``json``.

    Raises ``UsageError`` where a fault has no kept run, and where a kept run is of no fault.
    """
    if left := without_fault(ALL):
        raise UsageError(f"kept runs of no known bug: {', '.join(left)}")
    found = _each(names, catch_all)
    write_json(json, {"faults": [_kept_data(one) for one in found]})
    _by_stem(found, "Known bugs, by their kept runs")
    columns = ("fault", "proof", "law broken in the proof", "run", "broken in the run", "operations")
    _details(columns, [(*_row(one), one.kept.refuted_by, one.found, *_broken_by(one)) for one in found])
    for one in found:
        if not one.refuted:
            say((one.fault.name, "bold red"), f": {one.kept.refuted_by} does not refute its wrong transition")
        if one.missing:
            say((one.fault.name, "bold red"), f": {one.missing}")
    return found


def missed(found: Sequence[Caught | Shown]) -> list[str]:
    """The names of the faults that a proof does not refute or that no run shows."""
    return [one.fault.name for one in found if "missed" in (one.proof, one.found)]


def _searched(options: FaultOptions) -> int:
    seconds = kept_search.seconds()
    found = _each(options.names, lambda faults, done: show_all(faults, options.seed, done, seconds))
    write_json(options.json, {"faults": [_data(one) for one in found]})
    if options.keep:
        kept_search.keep(found)
    _by_stem(found, "Known bugs, found from nothing")
    columns = ("fault", "proof", "law broken in the proof", "reachable", "run", "broken in the run", "operations")
    rows = [
        (*_row(one), one.invariant or "-", one.reach or "-", one.found, broken(one.run.law, one.run.kind), one.steps)
        for one in found
    ]
    _details(columns, rows)
    for one in found:
        if console.is_terminal or "missed" in (one.proof, one.found):
            _story(one)
    names = missed(found)
    say(f"{len(found) - len(names)} of {len(found)} known bugs refuted and found from nothing")
    if names:
        say(("missed", "bold red"), f": {', '.join(names)}")
    return BROKEN if names else HOLDS


def _each(names: Sequence[str], work: Callable[[list[Fault], Callable[[Fault], None]], list[Result]]) -> list[Result]:
    """The results of the work on the named faults, with a progress bar."""
    chosen = choose(names, FAULTS, "fault")
    with progress() as bar:
        task = bar.add_task("known bugs", total=len(chosen))
        return work([FAULTS[name] for name in chosen], lambda _: bar.advance(task))


# What is printed.


def _by_stem(found: Sequence[Caught | Shown], title: str) -> None:
    """One line for each stem: the table of all faults is too long for a file."""
    rows = []
    for stem in dict.fromkeys(one.fault.stem for one in found):
        of_stem = [one for one in found if one.fault.stem == stem]
        refuted, shown = (sum(getattr(one, what) != "missed" for one in of_stem) for what in ("proof", "found"))
        rows.append((stem, len(of_stem), refuted, shown, f"{sum(one.seconds for one in of_stem):.1f}"))
    show(table(title, ("stem", "bugs", "refuted by a proof", "shown by a run", "seconds"), rows))


def _details(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """The table of all faults, where somebody looks at a screen."""
    if console.is_terminal:
        show(table("Known bugs", columns, rows))


def _row(one: Caught | Shown) -> tuple[str, str]:
    return one.fault.name, one.proof


def _broken_by(one: Caught) -> tuple[str, int]:
    return broken(one.kept.law, one.kept.kind), len(one.kept.trace.steps)


def _story(shown: Shown) -> None:
    say(f"{shown.fault.name} ({shown.seconds:.1f} s): {shown.fault.sentence}")
    say(f"  proof: {shown.example}")
    if shown.run.trace is not None:
        say(f"  run:   {'; '.join(shown.run.trace.lines())}")
        say(f"         {shown.run.detail}")


# What is written.


def _kept_data(one: Caught) -> Json:
    return {
        **_common(one),
        "invariant": one.kept.refuted_by,
        "law": one.kept.law,
        "steps": len(one.kept.trace.steps),
        "missing": one.missing,
        "trace": one.kept.trace.as_json(),
    }


def _data(shown: Shown) -> Json:
    return {
        **_common(shown),
        "invariant": shown.invariant,
        "counterexample": str(shown.example),
        "reach": shown.reach,
        "law": shown.run.law,
        "steps": shown.steps,
        "trace": None if shown.run.trace is None else shown.run.trace.as_json(),
    }


def _common(one: Caught | Shown) -> Json:
    search = isinstance(one, Shown)
    name, stem = one.fault.name, one.fault.stem
    return {
        "name": name,
        "stem": stem,
        "search": search,
        "proof": one.proof,
        "run": one.found,
        "seconds": one.seconds,
    }
