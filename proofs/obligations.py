"""What has to be proved for a stem. Each formula has hypotheses and a goal, made by the functions of the spec."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property, partial
from typing import Any

import z3

from proofs import draining, lemmas, wellformed
from proofs.before import looks_ahead
from proofs.fitting import directions
from proofs.hints import Hints, Transition
from proofs.symbols import Count, SymMap, SymSeq, Term, World, arguments, domain_of, lift, state
from spec.logic import FIRST_STATE, Change, Invariant, Stem, Step, implies

START = FIRST_STATE
ATOMIC = "refused_changes_nothing"
CALLS = "promises_of_"
PROOF, FRAME, TRIVIAL = "proof", "frame", "trivial"  # what kind of work an obligation is, see ``Formula.kind``


@dataclass
class SymbolicCall:
    """One call of a transition on a symbolic state with symbolic arguments, and the laws encoded for it so far.

    ``one`` stands for an arbitrary member of a domain. Of the world's counts the first ``base`` come from the
    transition; the others come from the facts that the current formula uses.
    """

    name: str
    world: World
    pre: Any
    arguments: dict[str, Any]
    step: Step[Any]
    one: Term
    base: int
    encoded: dict[tuple[str, str, tuple[int, ...]], tuple[list[Any], list[Count]]] = field(default_factory=dict)

    def afresh(self) -> None:
        """Forgets all counts but those of the transition."""
        del self.world.counts[self.base :]

    def goal(self, law: Invariant) -> Any:
        """The law on the state after; of a law on each member, what it says there about an arbitrary member."""
        return self.encode(law, "goal", self.step.then, [self.one])[-1]

    def encode(self, law: Invariant, where: str, state: Any, members: list[Any], asked: bool = True) -> list[Any]:
        """The law on the state that is named ``where``, encoded once and then kept.

        If ``asked``, lemmas about the counts of the law are used from now on.
        """
        key = (law.name, where, _names_of(members))
        if key not in self.encoded:
            start = len(self.world.counts)
            facts = law_at(self.world, law, state, members)
            self.encoded[key] = (facts, self.world.counts[start:])
            del self.world.counts[start:]
        facts, counts = self.encoded[key]
        self.world.counts += counts if asked else []
        return facts


@dataclass(frozen=True)
class Formula:
    """The ``goal`` must follow from ``given``; where the ``core_facts`` suffice, ``given`` is never built.

    ``all_given`` and ``few_given`` make these hypotheses.
    """

    invariant: str
    all_given: Callable[[], list[Any]]
    goal: Any
    few_given: Callable[[], list[Any]] | None = None
    frame: bool = False

    @cached_property
    def kind(self) -> str:
        """``frame``: the call changes nothing that the law speaks about, so that the goal is a hypothesis. ``trivial``:
        the goal is true whatever the state, for example x = x. ``proof``: a solver has to prove it.
        """
        if self.frame:
            return FRAME
        return TRIVIAL if z3.is_true(z3.simplify(self.goal)) else PROOF

    @property
    def given(self) -> list[Any]:
        """All hypotheses."""
        return self.all_given()

    @cached_property
    def core_facts(self) -> list[Any] | None:
        """The hypotheses from which a proof is tried first, or ``None`` where it is tried from all alone."""
        return None if self.few_given is None else self.few_given()

    @property
    def negated(self) -> list[Any]:
        """The assertions that are satisfiable exactly where the goal does not follow."""
        return [*self.given, z3.Not(self.goal)]


def state_of(stem: Stem, world: World) -> Any:
    """A symbolic state of the stem, whose constants are as the stem assumes."""
    made = state(world, stem.state)
    if stem.sizes is not None:
        world.axioms.append(lift(stem.sizes(made)))
    return made


def call(hints: Hints, transition: Transition, world: World, name: str = "", pre: Any = None) -> SymbolicCall:
    """One call of ``transition`` on a symbolic state with fresh symbolic arguments.

    ``name``: the transition that it stands for, where it is a wrong one. ``pre``: the state; by default a fresh one.
    """
    wellformed.check_signature(name or transition.__name__, transition)
    pre = state_of(hints.stem, world) if pre is None else pre
    given = arguments(world, transition, hints.over, pre)
    step = transition(pre, **given)
    return SymbolicCall(
        name or transition.__name__, world, pre, given, step, Term(world.fresh("one")), len(world.counts)
    )


def law_at(world: World, law: Invariant, state: Any, members: list[Any]) -> list[Any]:
    """The law on a state; of a law on each member also what it says about ``members``."""
    world.about = law.name
    if law.at is None or law.domain is None:
        return [lift(law.of(state))]
    domain = domain_of(law.domain, state)
    if world.small:
        return [lift(law.of(state))]
    whole = [] if law.counts else [lift(law.of(state))]
    return whole + [lift(implies(domain.has(m), law.at(state, m))) for m in members]


def laws_of(
    hints: Hints, made: SymbolicCall, members: list[Any], parts: set[str], only: frozenset[str] | None = None
) -> list[Any]:
    """The laws on the state before the call; in a composed stem only the laws about these ``parts``.

    A theorem follows from the laws, so a proof from few facts may name it among them.
    """
    found = []
    for law in hints.stem.invariants.values():
        if only is not None and law.name not in only:
            continue
        if law.inherited in parts:
            found += part_law(made, law, "before", made.pre, members)
        elif not law.inherited and (only is not None or not law.theorem) and parts.issuperset(law.about):
            found += made.encode(law, "before", made.pre, members)
    return found


def relevant_laws_of(hints: Hints, transition: str, name: str) -> frozenset[str]:
    """The laws from which the proof of this law, or of the promises of this call, is tried first."""
    rests_on = hints.relevant_laws.get(f"{transition} {name}", hints.relevant_laws.get(name, ""))
    return frozenset({name, *rests_on.split()})


def parts_of(hints: Hints, made: SymbolicCall, about: tuple[str, ...] = ()) -> set[str]:
    """The parts whose laws a proof uses: those that the transition calls, and those that its law relates."""
    return {call.part for call in made.step.calls} | set(about) if hints.stem.parts else set()


def part_law(made: SymbolicCall, law: Invariant, where: str, state: Any, members: list[Any]) -> list[Any]:
    """What the proofs of a composed stem use of a law of its part: no saved copies, and only the named members.

    Laws that count are left out. To leave out facts is sound, and it keeps the solvers from facts that breed many
    others (ancestors of ancestors, for example).
    """
    if law.at is not None and law.domain is not None and not made.world.small:
        return [] if law.counts else made.encode(law, where, state, members)[1:]
    stated = made.encode(law.current(), where, state, members, asked=False)
    return [] if made.encoded[law.name, where, _names_of(members)][1] else stated


def _names_of(members: list[Any]) -> tuple[int, ...]:
    """The numbers that z3 has for these members."""
    return tuple(lift(member).get_id() for member in members)


def places_of(hints: Hints, made: SymbolicCall) -> dict[str, tuple[Any, ...]]:
    """For each domain, the members that the arguments of the call name."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, domain in hints.places.items():
        if name in made.arguments:
            found[domain] = (*found.get(domain, ()), made.arguments[name])
    return found


def preserved(hints: Hints, made: SymbolicCall, law: Invariant) -> Formula:
    """A granted call in a lawful state leads to a state in which the law holds."""
    was, goal = _before_and_after(made, law)
    if goal.eq(was):
        return Formula(law.name, lambda: [was], goal, frame=True)
    places = places_of(hints, made)
    named = [member for members in places.values() for member in members]
    if law.name in hints.named:
        named.append(hints.named[law.name](made.pre, made.one))
    given = partial(_facts, hints, made, law, [made.one, *named])
    return Formula(law.name, given, goal, partial(given, relevant_laws_of(hints, made.name, law.name)))


def changes_lawfully(hints: Hints, made: SymbolicCall, law: Change) -> Formula:
    """A granted call in a lawful state changes the state as a law of two states says."""
    made.afresh()
    goal = lift(law.of(made.pre, made.step.then, made.arguments))
    if z3.is_true(z3.simplify(goal)):
        return Formula(law.name, list, goal)
    places = places_of(hints, made)
    named = [member for members in places.values() for member in members]
    of_goal = made.world.counts[made.base :]

    def given(only: frozenset[str] | None = None) -> list[Any]:
        made.afresh()
        made.world.counts += of_goal
        before = laws_of(hints, made, [made.one, *named], set(hints.stem.parts), only)
        return [*made.world.axioms, *before, lift(made.step.granted), *_lemmas(made, places)]

    return Formula(law.name, given, goal, partial(given, relevant_laws_of(hints, made.name, law.name)))


def touches(made: SymbolicCall, law: Invariant | Change) -> bool:
    """The law does not plainly hold after the call: the call changes what a law speaks about, or what a law of two
    states says of it is not true of every state.
    """
    if isinstance(law, Change):
        made.afresh()
        return not z3.is_true(z3.simplify(lift(law.of(made.pre, made.step.then, made.arguments))))
    was, goal = _before_and_after(made, law)
    return not goal.eq(was)


def _before_and_after(made: SymbolicCall, law: Invariant) -> tuple[Any, Any]:
    """The law on the state before the call, and on the state after it; equal where the call changes nothing of it."""
    made.afresh()
    return law_at(made.world, law, made.pre, [made.one])[-1], made.goal(law)


def _facts(
    hints: Hints, made: SymbolicCall, law: Invariant, members: list[Any], only: frozenset[str] | None = None
) -> list[Any]:
    """What the proof that a law is preserved uses: laws before, the used laws after, the granted call, and lemmas."""
    made.afresh()
    before = laws_of(hints, made, members, parts_of(hints, made, law.about), only)
    for name in law.uses:
        before += made.encode(hints.stem.invariants[name], "after", made.step.then, [made.one])[-1:]
    made.goal(law)  # from here on lemmas speak of its counts
    lemmas_used = _lemmas(made, places_of(hints, made))
    return [*made.world.axioms, *before, lift(made.step.granted), *lemmas_used]


def established(stem: Stem, made: SymbolicCall, where: str, state: Any, members: list[Any]) -> list[Any]:
    """The laws of ``stem`` on a state after one of its transitions: the proofs of ``stem`` show that they hold."""
    return [fact for law in stem.invariants.values() for fact in part_law(made, law, where, state, members)]


def promised(hints: Hints, made: SymbolicCall, number: int) -> Formula:
    """The transition keeps the promises of what it calls, with a lawful choice and a call that fits.

    The step of a call that is made only where a condition holds is guarded by this condition (``spec.logic.call``).
    """
    call = made.step.calls[number]
    name = CALLS + call.transition.__name__
    given = partial(_facts_for_call, hints, made, number)
    few = partial(given, relevant_laws_of(hints, made.name, name))
    return Formula(name, given, lift(call.step.granted), few)


def _facts_for_call(hints: Hints, made: SymbolicCall, number: int, only: frozenset[str] | None = None) -> list[Any]:
    """What the proof that a call is granted uses: the laws before, and the laws of the part after its earlier calls."""
    made.afresh()
    call, places = made.step.calls[number], places_of(hints, made)
    named = [made.one, *(member for members in places.values() for member in members)]
    before = laws_of(hints, made, named, parts_of(hints, made), only)
    for k, earlier in enumerate(made.step.calls[:number]):
        if earlier.part == call.part:
            before += established(hints.stem.parts[earlier.part], made, f"after {k}", earlier.then, named)
    return [*made.world.axioms, *before, lift(made.step.granted), *_lemmas(made, places)]


def atomic(hints: Hints, made: SymbolicCall) -> Formula:
    """A call that does not fit changes no field of the state."""
    made.afresh()
    refused = [lift(made.step.kept), z3.Not(lift(made.step.fits))]
    if made.step.otherwise is None:
        return Formula(ATOMIC, lambda: refused, z3.And(*_equal(made.world, made.pre, made.pre)))
    given = [*made.world.axioms, *laws_of(hints, made, [], parts_of(hints, made)), *refused]
    return Formula(ATOMIC, lambda: given, z3.And(*_equal(made.world, made.pre, made.step.otherwise)))


def fits(hints: Hints, made: SymbolicCall, transition: Transition) -> Iterator[Formula]:
    """A call fits exactly where a lawful answer exists (``proofs.fitting``)."""
    for direction in directions(hints, transition, made):
        given = partial(_with_laws, hints, made, direction.facts)
        few = partial(given, relevant_laws_of(hints, made.name, direction.name))
        yield Formula(direction.name, given, direction.goal, few)


def _with_laws(
    hints: Hints,
    made: SymbolicCall,
    facts: list[Any],
    only: frozenset[str] | None = None,
    members: Sequence[Any] = (),
) -> list[Any]:
    """The laws on the state before, without those that count, and these facts."""
    made.afresh()
    return [*made.world.axioms, *laws_of(hints, made, list(members), set(hints.stem.parts), only), *facts]


def initially(hints: Hints, law: Invariant) -> Formula:
    """The law holds on the first state."""
    world = World()
    assert hints.stem.start is not None
    before = state_of(hints.stem, world)
    wellformed.check_parts(hints.stem, before)
    first = hints.stem.start(before)
    wellformed.check_state(world, before, first)
    goal = law_at(world, law, first, [Term(world.fresh("one"))])[-1]
    given = [*world.axioms, *lemmas.instances(world, [], {})]
    return Formula(law.name, lambda: given, goal)


@dataclass
class Consequence:
    """A law as what may follow from others, on any state. ``claim``: the law there; of a law on each member, what it
    says about an arbitrary one.
    """

    hints: Hints
    law: Invariant

    def __post_init__(self) -> None:
        self.world = World()
        self.held = state_of(self.hints.stem, self.world)
        self.members = [Term(self.world.fresh("one"))]
        self.claim = law_at(self.world, self.law, self.held, self.members)[-1]
        if self.law.name in self.hints.named:
            self.members.append(self.hints.named[self.law.name](self.held, self.members[0]))
        self.counts = list(self.world.counts)

    def given(self, laws: Iterable[Invariant]) -> list[Any]:
        """What these laws say of the state, between what is so of every state."""
        facts = [fact for said in self.facts(laws) for fact in said]
        return [*self.world.axioms, *facts, *self.lemmas()]

    def facts(self, laws: Iterable[Invariant]) -> list[list[Any]]:
        """What each of these laws says of the state. Lemmas are about what these laws and the claim count."""
        self.world.counts[:] = self.counts
        stated = (law.current() if law.inherited else law for law in laws)
        return [law_at(self.world, law, self.held, self.members) for law in stated]

    def lemmas(self) -> list[Any]:
        """The lemmas about what is counted."""
        sums = [lemmas.weighty(count) for count in self.world.counts if not count.unweighted]
        return [*lemmas.instances(self.world, [], {}), *sums]


def follows(hints: Hints, theorem: Invariant) -> Formula:
    """A theorem follows from the laws, on any state; its proof may name theorems that are registered before it."""
    about = set(theorem.about)
    laws = [law for law in hints.stem.invariants.values() if not law.theorem]
    known = [law for law in laws if (law.inherited in about if law.inherited else about.issuperset(law.about))]
    every = list(hints.stem.invariants.values())
    earlier = [law for law in every[: every.index(theorem)] if law.theorem]
    relevant = relevant_laws_of(hints, START, theorem.name)
    made = Consequence(hints, theorem)
    few = [law for law in (*known, *earlier) if law.name in relevant]
    return Formula(theorem.name, partial(made.given, known), made.claim, partial(made.given, few))


def drains(hints: Hints) -> Iterator[Formula]:
    """How calls bring every lawful state to rest (``proofs.draining``)."""
    if hints.drain is None:
        return
    wellformed.check_drain(hints.stem, hints.drain)

    def new() -> tuple[World, Any]:
        world = World()
        return world, state_of(hints.stem, world)

    claims = [draining.claims(hints.drain, new)]
    if hints.drain.returns is not None:
        claims.append(draining.returns(hints, new))
    for world, held, claim in itertools.chain(*claims):
        made = SymbolicCall(START, world, held, {}, Step(then=held), Term(world.fresh("one")), len(world.counts))
        given = partial(_with_laws, hints, made, claim.facts, members=claim.members)
        few = partial(given, relevant_laws_of(hints, START, claim.name))
        yield Formula(claim.name, given, claim.goal, few)


def all_of(hints: Hints, name: str, transition: Transition) -> Iterator[Formula]:
    """Every formula for one transition; for ``START`` those of the first state.

    Raises ``TypeError`` for a transition whose promises speak of a state after the one before the call, or that changes
    what it must not change.
    """
    if name == START:
        laws = hints.stem.invariants.values()
        yield from (follows(hints, law) if law.theorem else initially(hints, law) for law in laws)
        yield from drains(hints)
        return
    if ahead := looks_ahead(hints, transition):
        raise TypeError(f"{name}: {'; '.join(map(repr, ahead))} speaks of the state after, which no caller knows")
    made = checked(hints.stem, call(hints, transition, World(), name))
    for law in hints.stem.invariants.values():
        if not law.inherited and not law.theorem:
            yield preserved(hints, made, law)
    yield from (changes_lawfully(hints, made, law) for law in hints.stem.changes.values() if law.binds(name))
    yield from (promised(hints, made, number) for number in range(len(made.step.calls)))
    yield atomic(hints, made)
    yield from fits(hints, made, transition)


def checked(stem: Stem, made: SymbolicCall) -> SymbolicCall:
    """The call, after a check that its step keeps the kind of each field and every constant, and that parts change by
    calls of their own transitions alone.
    """
    wellformed.check_step(stem, made.world, made.pre, made.step)
    return made


def _lemmas(made: SymbolicCall, places: dict[str, tuple[Any, ...]]) -> list[Any]:
    sequences = [a for a in made.arguments.values() if isinstance(a, SymSeq)]
    return list(lemmas.instances(made.world, sequences, places))


def _equal(world: World, one: Any, other: Any) -> Iterator[Any]:
    for f in fields(one):
        a, b = getattr(one, f.name), getattr(other, f.name)
        if is_dataclass(a):
            yield from _equal(world, a, b)
        elif isinstance(a, SymMap):
            keys = [Term(world.fresh("key")) for _ in range(a.arity)]
            yield lift(a(*keys)) == lift(b(*keys))
        elif isinstance(a, Term):
            yield a.z == lift(b)
