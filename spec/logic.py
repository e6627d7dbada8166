"""The words in which every spec is written. Each spec is one text with two readings.

Finite reading: on plain values (``spec.finite``) a spec is an executable oracle, with which conformance compares an
engine. Symbolic reading: on z3 terms (``proofs.symbols``) the provers read the very same functions. A spec must
therefore never branch on a value with Python's ``if``, ``and``, ``or``, ``not`` or ``in``: it uses ``ite``, ``&``,
``|`` and ``no`` (``slotproof.spec_lint`` checks this). Of the files in ``spec/`` only this one knows both readings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from inspect import signature
from typing import Any, Generic, NamedTuple, TypeVar

Number = Any  # an int, or a symbol for one
Truth = Any  # a bool, or a symbol for one
Map = Any  # a total map: keys to numbers; see spec.finite.Map for the operations
Domain = Any  # a range of numbers; laws quantify over it
Seq = Any  # a finite sequence of distinct numbers, with a map from each number to its position
Set = Any  # a finite set of numbers
Slots = Any  # a finite set of token slots, each a (page, offset) pair

S = TypeVar("S")
FIRST_STATE = "start"  # what the proofs call the first state, where they name transitions


def ite(cond: Truth, then: Any, other: Any) -> Any:
    """If-then-else: ``then`` where ``cond`` holds, else ``other``. Both branches are always evaluated."""
    if isinstance(cond, bool):
        return then if cond else other
    return cond.ite(then, other)


def no(truth: Truth) -> Truth:
    """The negation of ``truth``."""
    return (not truth) if isinstance(truth, bool) else truth.negated()


def implies(premise: Truth, conclusion: Truth) -> Truth:
    """``premise`` implies ``conclusion``."""
    return no(premise) | conclusion


def every(truths: Iterable[Truth]) -> Truth:
    """The conjunction of a fixed list of truths."""
    result: Truth = True
    for truth in truths:
        result = result & truth
    return result


def but(state: S, /, **changes: Any) -> S:
    """``state`` with some fields changed. A faster ``dataclasses.replace``: states have no ``__post_init__``.

    Raises ``TypeError`` for a field that the state does not have.
    """
    if not changes.keys() <= state.__dict__.keys():
        unknown = ", ".join(sorted(changes.keys() - state.__dict__.keys()))
        raise TypeError(f"{type(state).__name__} has no field {unknown}")
    new = object.__new__(type(state))
    new.__dict__.update(state.__dict__)
    new.__dict__.update(changes)
    return new


def zeroed(state: S, maps: Iterable[str], numbers: Iterable[str]) -> S:
    """``state`` with these maps set to 0 at every key, and these numbers set to 0."""
    return but(state, **{name: getattr(state, name).all_to(0) for name in maps}, **dict.fromkeys(numbers, 0))


def either(cond: Truth, then: Any, other: Any) -> Any:
    """If-then-else of two states: on symbols field by field and map by map, where the two differ."""
    if isinstance(cond, bool):
        return then if cond else other
    if then is other:
        return then
    if type(then) is not type(other) and is_dataclass(then):
        raise TypeError(f"either is a {type(then).__name__} or a {type(other).__name__}: the two are of one class")
    if is_dataclass(then) and not isinstance(then, type):
        return but(then, **{f.name: either(cond, getattr(then, f.name), getattr(other, f.name)) for f in fields(then)})
    if callable(then):  # a map
        return other.where(lambda *_: cond, then, tuple)
    return ite(cond, then, other)


class Requirement(NamedTuple):
    """A condition, with a sentence that says what must be true; the sentence is printed when the condition is false."""

    sentence: str
    holds: Truth


def requires(holds: Truth, sentence: str) -> Requirement:
    """Names a condition: a promise of the caller, or what the implementation's choice must satisfy."""
    return Requirement(sentence, holds)


@dataclass(frozen=True)
class Step(Generic[S]):
    """What the law says about one call of a transition.

    ``promises``: preconditions that the caller must keep; a call that breaks one is refused as bad input.
    ``fits``: there are enough free pages or slots; a call that does not fit is refused as out of memory.
    ``choice``: what the implementation's answer must satisfy (which pages it hands out, for example).
    ``then``: the state after a granted call. ``otherwise``: the state after a refused call (``None``: nothing changes).
    ``calls``: the transitions of parts that this step is made of, in order. This step must keep the promises of each.
    """

    then: S
    promises: tuple[Requirement, ...] = ()
    choice: tuple[Requirement, ...] = ()
    fits: Truth = True
    otherwise: S | None = None
    calls: tuple[Call, ...] = ()

    @property
    def kept(self) -> Truth:
        """The caller keeps every promise."""
        return every(r.holds for r in self.promises)

    @property
    def granted(self) -> Truth:
        """The promises are kept, the call fits, and the implementation's choice is lawful."""
        return self.kept & self.fits & every(r.holds for r in self.choice)

    def broken(self) -> list[str]:
        """The sentences of the promises and choices that are false (finite reading)."""
        return [r.sentence for r in (*self.promises, *self.choice) if not r.holds]

    def only_where(self, cond: Truth, before: S) -> Step[S]:
        """The step of a call that is made only where ``cond`` holds (symbolic reading).

        Where ``cond`` holds, the promises, the choice and the fit are asked, and the state after is that of this step.
        Elsewhere nothing is asked, and the state stays ``before``.
        """

        def asked(requirements: tuple[Requirement, ...]) -> tuple[Requirement, ...]:
            return tuple(Requirement(r.sentence, implies(cond, r.holds)) for r in requirements)

        return Step(
            then=either(cond, self.then, before),
            promises=asked(self.promises),
            choice=asked(self.choice),
            fits=implies(cond, self.fits),
        )


class Call(NamedTuple):
    """A call of a part's transition, made inside a transition of the composed state.

    ``step`` is what the call asks and what it does; the caller must make sure that ``step.granted`` holds.
    """

    part: str
    transition: Callable[..., Step[Any]]
    before: Any
    step: Step[Any]
    arguments: tuple[Any, ...] = ()

    @property
    def then(self) -> Any:
        """The part after the call."""
        return self.step.then


def call(part: str, transition: Callable[..., Step[Any]], before: Any, /, *arguments: Any, when: Truth = True) -> Call:
    """Calls a transition of a part. The provers show that the caller keeps the promises of the called transition.

    ``when``: the call is made only where this truth holds; elsewhere it asks nothing and the part does not change. The
    finite reading does not evaluate the transition where ``when`` is false. In both readings ``step`` is guarded by
    ``when``, so that a caller cannot use what an unmade call would promise or do.
    """
    if when is False:
        return Call(part, transition, before, Step(then=before), arguments)
    made = transition(before, *arguments)
    return Call(part, transition, before, made if when is True else made.only_where(when, before), arguments)


Part = tuple[str, Any]
Parts = Iterable[Part]


@dataclass(frozen=True)
class Invariant:
    """A law, and the parts of a state on which it must hold (``now`` and ``saved``, the full and the SWA pool, ...).

    ``latent``: a state that breaks the law does harm only when stale data is read later. ``at``, ``domain``: the law on
    one member, and the domain of the members. ``counts``: it counts or sums. ``uses``: laws of the state after that its
    proof may use. ``inherited``: the part that the law comes from. ``about``: the parts that it relates. ``theorem``:
    it follows from the other laws in every state. ``ledger``: it speaks of a ledger that the law keeps for itself, so
    that it says nothing about what an engine shows.
    """

    name: str
    holds: Callable[[Any], Truth]
    parts: Callable[[Any], Parts]
    latent: bool = False
    at: Callable[[Any, Any], Truth] | None = None
    domain: Callable[[Any], Domain] | None = None
    counts: bool = False
    uses: tuple[str, ...] = ()
    inherited: str = ""
    about: tuple[str, ...] = ()
    theorem: bool = False
    ledger: bool = False

    @property
    def sentence(self) -> str:
        """The law in English: the docstring, on one line."""
        return " ".join((self.holds.__doc__ or "").split())

    @property
    def derived(self) -> bool:
        """The law follows from others: a theorem, or a law whose proof uses others of the state after the call."""
        return self.theorem or bool(self.uses)

    def of(self, state: Any) -> Truth:
        """The law holds on every part of ``state`` that it applies to."""
        return every(self.holds(part) for _, part in self.parts(state))

    def current(self) -> Invariant:
        """This law without the parts that a backup saved."""

        def parts(state: Any) -> Parts:
            return [(label, part) for label, part in self.parts(state) if "saved" not in label.split(".")]

        return replace(self, parts=parts)

    def within(self, name: str) -> Invariant:
        """This law as a law of a composed state, whose field ``name`` is the state that the law speaks about."""

        def parts(state: Any) -> Parts:
            return [(f"{name}.{label}".rstrip("."), part) for label, part in self.parts(getattr(state, name))]

        at, domain = self.at, self.domain
        return replace(
            self,
            parts=parts,
            at=at and (lambda state, member: at(getattr(state, name), member)),
            domain=domain and (lambda state: domain(getattr(state, name))),
            inherited=name,
        )


def _itself(state: Any) -> Parts:
    return (("", state),)


@dataclass(frozen=True)
class Change:
    """A law of two states: what a granted call does to the state, or may do to it.

    It binds the calls of the transitions ``only``, or, where ``only`` is empty, of all but those of ``besides``. It may
    speak of arguments of the call: those that it names after the two states. ``part``: the name of the part of a
    composed state that the law speaks about; empty where it speaks about the whole state.
    """

    name: str
    holds: Callable[..., Truth]
    besides: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    part: str = ""

    @property
    def sentence(self) -> str:
        """The law in English: the docstring, on one line."""
        return " ".join((self.holds.__doc__ or "").split())

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments of a call that the law speaks of."""
        return tuple(signature(self.holds).parameters)[2:]

    def binds(self, transition: str) -> bool:
        """The law speaks of the calls of this transition."""
        return transition in self.only if self.only else transition not in self.besides

    def of(self, was: Any, now: Any, arguments: Mapping[str, Any]) -> Truth:
        """The law holds for a call with these arguments that leads from ``was`` to ``now``."""
        before, after = (getattr(st, self.part) if self.part else st for st in (was, now))
        return self.holds(before, after, **{name: arguments[name] for name in self.arguments})


class Measure(NamedTuple):
    """A number that is never negative, for each member of a domain; one number alone where there is no domain."""

    value: Callable[[Any, Any], Number]
    domain: Callable[[Any], Domain] | None = None


class Descent(NamedTuple):
    """One kind of call by which a state comes nearer to rest: for each member for which ``when`` holds, a call of
    ``transition`` with ``arguments``.

    ``members``: the domain of the members; or ``pick``: the only member. ``lowers``: the measure that the call makes
    smaller at the member; it is one of the measures of the drain.
    """

    name: str
    when: Callable[[Any, Any], Truth]
    transition: Callable[..., Step[Any]]
    arguments: Callable[[Any, Any], tuple[Any, ...]]
    lowers: Measure
    members: Callable[[Any], Domain] | None = None
    pick: Callable[[Any], Number] | None = None

    def step(self, state: Any, member: Number) -> Step[Any]:
        """The call for a member."""
        return self.transition(state, *self.arguments(state, member))


@dataclass(frozen=True)
class Return:
    """What a request gets that comes, or comes back, where the state is at rest.

    ``calls``: transitions, one after the other. Arguments of two calls that have one name have one value. ``asks``:
    which requests these are, by the state at rest and by arguments of the calls.
    """

    calls: tuple[Callable[..., Step[Any]], ...]
    asks: Callable[..., Truth]

    @property
    def sentence(self) -> str:
        """The claim in English."""
        calls = ", ".join(call.__name__ for call in self.calls)
        who = " ".join((self.asks.__doc__ or "").split())
        return (
            f"Where nothing is in use, a request that comes, or was preempted and comes back, gets what it needs: one "
            f"after the other these calls are granted, and those that memory can refuse fit: {calls}. Of the request "
            f"this is asked: {who}"
        )


@dataclass(frozen=True)
class Drain:
    """How calls bring every lawful state to rest.

    Where a state is not at ``rest``, one of the ``descents`` is granted. Each makes one measure smaller at one member
    and makes none of the ``measures`` greater at any member. As no measure is negative and the members are finitely
    many, a state is at rest after finitely many of these calls. ``given``: what the sizes of the state must satisfy.
    ``returns``: what a request gets that comes then; ``None`` where no call is refused for want of memory.
    """

    rest: Callable[[Any], Truth]
    measures: tuple[Measure, ...]
    descents: tuple[Descent, ...]
    given: Callable[[Any], Truth]
    returns: Return | None = None

    @property
    def sentence(self) -> str:
        """The claim in English."""
        what, sizes = (" ".join((said.__doc__ or "").split()) for said in (self.rest, self.given))
        calls = ", ".join(descent.name for descent in self.descents)
        return (
            f"From every lawful state there are finitely many calls, each granted, that lead to a state of which this "
            f"is true: {what} The calls: {calls}. What the sizes must satisfy: {sizes}"
        )


def _on_each(domain: Callable[[Any], Domain], law: Callable[[Any, Any], Truth]) -> Callable[[Any], Truth]:
    """The law on the whole state: ``law`` on each member of the domain."""

    def holds(state: Any) -> Truth:
        return domain(state).all(lambda member: law(state, member))

    holds.__doc__ = law.__doc__
    return holds


@dataclass
class Stem:
    """One feature: its state, first state, transitions and invariants, by name and in order of definition.

    ``parts``: by field of the state, the stems that it is composed of. ``closed``: it is a part of another stem, so
    that nothing more is registered. ``sizes``: what the proofs assume of constants, such as how many rows a table has;
    its docstring is listed among the assumptions.
    """

    name: str
    transitions: dict[str, Callable[..., Step[Any]]] = field(default_factory=dict)
    invariants: dict[str, Invariant] = field(default_factory=dict)
    state: Any = None
    start: Callable[[Any], Any] | None = None
    parts: dict[str, Stem] = field(default_factory=dict)
    changes: dict[str, Change] = field(default_factory=dict)
    closed: bool = False
    sizes: Callable[[Any], Truth] | None = None

    def part(self, name: str, stem: Stem) -> None:
        """The field ``name`` of the state is a state of ``stem``: only its transitions change the field.

        So every law of ``stem`` holds there too, and every theorem follows there. Where two parts have a law of one
        name, the later one is renamed ``name.law``.
        """
        if name in self.parts:
            raise ValueError(f"{self.name} has a part {name} already")
        self.parts[name] = stem
        stem.closed = True
        for law in (law for law in stem.invariants.values() if not law.theorem):
            known = law.name if law.name not in self.invariants else f"{name}.{law.name}"
            self._add(replace(law.within(name), name=known))

    def _must_be_open(self, name: str) -> None:
        """Raises ``ValueError`` if the stem is a part of another one, which has read its laws and transitions."""
        if self.closed:
            raise ValueError(f"{self.name} is a part of another stem already: {name} comes too late")

    def _add(self, law: Invariant) -> None:
        """Registers a law. A second law of one name would silently take the place of the first."""
        self._must_be_open(law.name)
        if law.name in self.invariants or law.name in self.changes:
            raise ValueError(f"{self.name} has a law {law.name} already")
        self.invariants[law.name] = law

    def transition(self, function: Callable[..., Step[S]]) -> Callable[..., Step[S]]:
        """Registers a pure function from a state and arguments to a ``Step``; its docstring is printed as the law."""
        if function.__name__ == FIRST_STATE:
            raise ValueError(
                f"no transition is called {FIRST_STATE}: this is the name of the proof about the first state"
            )
        if function.__name__ in self.transitions:
            raise ValueError(f"{self.name} has a transition {function.__name__} already")
        self._must_be_open(function.__name__)
        self.transitions[function.__name__] = function
        return function

    def invariant(
        self,
        parts: Callable[[Any], Parts] = _itself,
        latent: bool = False,
        about: tuple[str, ...] = (),
        ledger: bool = False,
    ) -> Callable[[Callable[[Any], Truth]], Callable[[Any], Truth]]:
        """Registers a law. ``latent``: a state that breaks it does harm only when stale data is read later.

        ``about``: the parts of a composed state that the law relates. Its proof uses the laws of these parts, and of
        the parts that the transition calls. ``ledger``: see ``Invariant``.
        """

        def register(function: Callable[[Any], Truth]) -> Callable[[Any], Truth]:
            self._add(Invariant(function.__name__, function, parts, latent, about=about, ledger=ledger))
            return function

        return register

    def change(
        self, besides: tuple[str, ...] = (), only: tuple[str, ...] = (), part: str = ""
    ) -> Callable[[Callable[..., Truth]], Callable[..., Truth]]:
        """Registers a law of the state before a granted call and the state after it.

        ``besides``: the transitions that may do what the law forbids to all others; its sentence says why. ``only``:
        the law says what the calls of these transitions do. It may name arguments of the call after the two states;
        each transition that it binds must have them. ``part``: the law is one of this part's state, and says of the
        calls of the composed state what it says of the part's own.
        """

        def register(function: Callable[..., Truth]) -> Callable[..., Truth]:
            name = function.__name__
            if name in self.invariants or name in self.changes:
                raise ValueError(f"{self.name} has a law {name} already")
            if part and part not in self.parts:
                raise ValueError(f"{self.name} has no part {part}")
            if unknown := {*besides, *only} - self.transitions.keys():
                raise ValueError(f"{self.name} has no transition {', '.join(sorted(unknown))}")
            self._must_be_open(name)
            law = Change(name, function, besides, only, part)
            for bound in filter(law.binds, self.transitions):
                if missing := set(law.arguments) - {*signature(self.transitions[bound]).parameters}:
                    raise ValueError(f"{self.name}.{bound} has no argument {', '.join(sorted(missing))}")
            self.changes[name] = law
            return function

        return register

    def theorem(
        self, about: tuple[str, ...], each: Callable[[Any], Domain] | None = None, ledger: bool = False
    ) -> Callable[[Callable[..., Truth]], Callable[..., Truth]]:
        """Registers what holds in every lawful state; ``about``: the parts whose laws the proof uses.

        ``each``: the theorem speaks of each member of this domain; then its proof may count for this member.
        ``ledger``: see ``Invariant``.
        """

        def register(function: Callable[..., Truth]) -> Callable[..., Truth]:
            law = Invariant(function.__name__, function, _itself, about=about, theorem=True, ledger=ledger)
            if each is not None:
                law = replace(law, holds=_on_each(each, function), at=function, domain=each)
            self._add(law)
            return function

        return register

    def each(
        self,
        domain: Callable[[Any], Domain],
        counts: bool = False,
        uses: tuple[str, ...] = (),
        about: tuple[str, ...] = (),
        ledger: bool = False,
    ) -> Callable[[Callable[[Any, Any], Truth]], Callable[[Any, Any], Truth]]:
        """Registers a law on each member of a domain.

        ``counts``: the law counts or sums; a proof then knows it only for the members that the proof names. ``uses``:
        laws registered earlier; the proof of this law may use them for the state after the call, too. A theorem is none
        of these: it follows from all laws, and so from this one. ``about``, ``ledger``: see ``invariant``.
        """

        earlier = {name for name, law in self.invariants.items() if not law.theorem}
        if unknown := [name for name in uses if name not in earlier]:
            raise ValueError(
                f"a law may use only laws registered before it that are no theorems, not {', '.join(unknown)}"
            )

        def register(function: Callable[[Any, Any], Truth]) -> Callable[[Any, Any], Truth]:
            holds = _on_each(domain, function)
            known = Invariant(function.__name__, holds, _itself, False, function, domain, counts, uses)
            self._add(replace(known, about=about, ledger=ledger))
            return function

        return register

    def done_wrong(self, transition: str, before: Any, after: Any, arguments: Mapping[str, Any]) -> list[Change]:
        """The laws of two states that a granted call of the transition breaks (finite reading)."""
        bound = [law for law in self.changes.values() if law.binds(transition)]
        return [law for law in bound if not law.of(before, after, arguments)]

    def broken(self, state: Any) -> list[tuple[Invariant, str]]:
        """The laws that ``state`` breaks, each with the part on which it is broken (finite reading)."""
        return [
            (law, label) for law in self.invariants.values() for label, part in law.parts(state) if not law.holds(part)
        ]


# What kind of field a field of a state is; the symbolic reading makes its symbols by it.


def total(arity: int) -> Any:
    """A field that is a total map with ``arity`` keys."""
    return field(metadata={"kind": "map", "arity": arity})


def constant_map(arity: int) -> Any:
    """A field that is a total map with ``arity`` keys and that no transition changes."""
    return field(metadata={"kind": "map", "arity": arity, "constant": True, "shared": None})


def number() -> Any:
    """A field that is a number."""
    return field(metadata={"kind": "number"})


def truth() -> Any:
    """A field that is true or false."""
    return field(metadata={"kind": "truth"})


def constant(kind: str, shared: str | None = None) -> Any:
    """A field that no transition changes: a ``number`` (at least 1), a ``count`` (at least 0), a ``truth`` or a domain.

    ``shared``: a name; fields with one such name are one constant, wherever they stand in the state.
    """
    return field(metadata={"kind": kind, "constant": True, "shared": shared})
