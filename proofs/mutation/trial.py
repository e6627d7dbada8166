"""Judges one edit of the spec: a law refutes it, or it changes nothing, or it asks more, or it survives.

The laws are those of the right spec; of the edited one only the transitions are taken. So an edit can never weaken the
law that judges it.

``REFUTED``: in a small world there is a lawful state and a granted call after which a law, or a law of two states, is
broken; or a call that calls a transition of a part without keeping its promises; or a call that fits though it has no
lawful answer, or does not fit though it has one. Or the transition has no witness: no granted call changes anything, or
no call is ever refused. Or the framework refuses it, for example since a promise speaks of the state after. Or what it
asks is wrong (``proofs.mutation.asked``): a call of a drain is not granted, or brings the state no nearer to rest; a
call of a kept trace is not granted; or a requirement that in the right spec refuses nothing but what would break a law
refuses a call that would break none.

``EQUIVALENT``: z3 proves, for every number of pages and every page size, that under the laws the edited transition asks
the very promises and choices of the right one, fits exactly where it fits, and leads to the very state.

``STRICTER``: z3 proves that the edited transition is granted only where the right one is granted, and does what the
right one does there. No law about what a call does can refute it, since every such law also holds for fewer calls; and
no judge of what it asks noticed it. It counts as not refuted. A call that is refused for want of pages although it fits
is never excused in this way.

``SURVIVES``: none of these. So an edit that z3 says ``unknown`` about survives.

``INVALID``: Python raises when the edited text is loaded or read, so that nobody could use it. It is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import z3

from proofs import obligations, prover
from proofs.before import looks_ahead
from proofs.mutation import asked, beside, reach
from proofs.mutation.operators import Edit
from proofs.mutation.right import (
    ANY,
    ASKED,
    LARGER,
    SEARCH,
    SMALL,
    STUCK,
    Goals,
    Right,
    Said,
    counted,
    false_in,
    narrower,
    plainly,
    right,
    said,
    same,
)
from proofs.obligations import START, SymbolicCall
from spec.logic import Stem, Step

REFUTED, EQUIVALENT, STRICTER, SURVIVES, INVALID = "refuted", "equivalent", "stricter", "survives", "invalid"
UNKNOWN = "unknown"  # no small world shows a difference, and z3 does not prove that there is none
FRAMEWORK = "framework"


@dataclass(frozen=True)
class TriedEdit:
    """What became of an edit. ``by``: the law that refutes it, in the ``transition`` of the ``stem``; of a survivor
    and of one that asks more, what differs there.
    """

    edit: Edit
    fate: str
    stem: str = ""
    transition: str = ""
    by: str = ""


def tried(edit: Edit) -> TriedEdit:
    """Judges the edit on each transition that is made of the edited function.

    The transitions of the whole that differ only in calls of transitions of their parts come last: where the parts do
    what they did, so does the whole.
    """
    reached = reach.reached()[edit.module, edit.function]
    for stem, transition in reached:
        right(stem, transition, ANY)  # what cannot be made of the right spec is no fault of the edit
    try:
        stems = beside.stems_with(edit)
        edited = [_Edited(s, t, stems[s]) for s, t in reached if s in stems]
        differing = [one for one in edited if one.differences]
    except Exception as error:  # whatever a wrong text raises
        return TriedEdit(edit, INVALID, by=type(error).__name__)
    direct = [one for one in differing if reach.is_direct((edit.module, edit.function), one.stem, one.transition)]
    if found := _refuted(edit, direct, SMALL):
        return found
    fates = {one: one.compared() for one in direct}
    if all(fate == EQUIVALENT for fate in fates.values()):
        return TriedEdit(edit, EQUIVALENT)
    alive = [one for one, fate in fates.items() if fate == SURVIVES]
    indirect = [one for one in differing if one not in direct]
    if found := _refuted(edit, indirect, SMALL) or _refuted(edit, alive, LARGER):
        return found
    if alive:
        return TriedEdit(edit, SURVIVES, alive[0].stem, alive[0].transition, alive[0].example(same) or UNKNOWN)
    narrower = next(one for one, fate in fates.items() if fate == STRICTER)
    return TriedEdit(
        edit, STRICTER, narrower.stem, narrower.transition, ", ".join(sorted(narrower.differences & {*ASKED}))
    )


def _refuted(edit: Edit, edited: list[_Edited], kind: str) -> TriedEdit | None:
    """The first refutation in small worlds of this kind, if there is one."""
    for one in edited:
        if by := (one.refused() if kind == SMALL else "") or one.refuted(kind):
            return TriedEdit(edit, REFUTED, one.stem, one.transition, by)
    return None


@dataclass(frozen=True, eq=False)
class _Edited:
    """A transition with the edit, beside the right one."""

    stem: str
    transition: str
    laws: Stem

    @property
    def right(self) -> Right:
        """The right transition, for any number of pages."""
        return right(self.stem, self.transition, ANY)

    @property
    def function(self) -> Callable[..., Any]:
        """The edited transition."""
        found = self.laws.start if self.transition == START else self.laws.transitions[self.transition]
        assert found is not None
        return found

    @cached_property
    def _read(self) -> tuple[Step[Any], list[Any]]:
        """The edited step for any number of pages, and what it counts."""
        counts = self.right.world.counts
        step = self.right.read(self.function)
        made = counts[len(self.right.counts) :]
        del counts[len(self.right.counts) :]
        return step, made

    @cached_property
    def said(self) -> Said:
        """What the edited step asks and does; a count of what the right step counts is the very symbol."""
        step, counts = self._read
        made, known = said(step), {counted(count): count.term.z for count in self.right.counts}
        new = [(count.term.z, known[what]) for count in counts if (what := counted(count)) in known]
        if not new:
            return made
        return {name: (z3.substitute(value, *new), z3.substitute(where, *new)) for name, (value, where) in made.items()}

    @cached_property
    def differences(self) -> set[str]:
        """What the right step and the edited one ask and do, where the formulas are not the very same."""
        was, now = self.right.said, self.said
        if was.keys() != now.keys():
            raise TypeError("the edited transition leads to no state of the stem")
        return {name for name in was if not was[name][0].eq(now[name][0])}

    def refused(self) -> str:
        """Why the framework refuses the edited transition; empty where it does not."""
        if self.transition == START:
            return ""
        of, (step, _) = self.right, self._read
        try:
            obligations.checked(
                self.laws, SymbolicCall(self.transition, of.world, of.pre, of.arguments, step, of.one, 0)
            )
        except TypeError:
            return FRAMEWORK
        return FRAMEWORK if self.differences & {*ASKED} and looks_ahead(of.hints, self.function) else ""

    def refuted(self, kind: str) -> str:
        """The law that a counterexample in a small world of this kind shows broken; empty where there is none."""
        of = right(self.stem, self.transition, kind)
        judged = of.refutes(self.function) or asked.noticed(of, self.function)
        return judged or asked.refused(self.stem, self.transition, self.function)

    def compared(self) -> str:
        """``EQUIVALENT``, ``STRICTER`` or ``SURVIVES``."""
        for fate, goals_of in ((EQUIVALENT, same), (STRICTER, narrower)):
            possible = fate == EQUIVALENT or (self.transition != START and "fits" not in self.differences)
            if possible and not self.example(goals_of):
                plain, goals = plainly(self.right.said, self.said), goals_of(self.right.said, self.said)
                if all(self._proved(plain[name], goals[name]) for name in sorted(self.differences)):
                    return fate
        return SURVIVES

    def example(self, goals_of: Callable[[Said, Said], Goals]) -> str:
        """Which of these goals a call in a lawful state of a small world does not meet; empty where none is found."""
        small = right(self.stem, self.transition, SMALL)
        goals = goals_of(small.said, said(small.read(self.function)))
        goals = {name: goal for name, goal in goals.items() if name in self.differences}
        model = small.model(z3.Not(z3.And(*goals.values())))
        return "" if model is None else false_in(model, goals)

    def _proved(self, plain: Any, goal: Any) -> bool:
        """z3 proves the goal for every lawful state, or even the ``plain`` goal for every state."""
        axioms, laws = self.right.world.axioms, self.right.facts(self._read[1])
        looks: tuple[Any, ...] = ((axioms, plain, {}), (axioms, goal, {}), (laws, goal, QUICK), (laws, goal, {}))
        for facts, claim, look in looks:
            solver = prover.looking([*facts, z3.Not(claim)], look, SEARCH[ANY])
            solver.set("timeout", STUCK)
            if solver.check() == z3.unsat:
                return True
        return False


QUICK = prover.LOOKS[0]

__all__ = ["EQUIVALENT", "INVALID", "REFUTED", "STRICTER", "SURVIVES", "TriedEdit", "tried"]
