"""The vocabulary of the law. A spec is one text with two readings, and only this file knows it.

On finite values (``spec.finite``) a spec is the oracle that conformance runs; on symbols (``proofs.symbols``)
the very same functions are what the provers read. A spec therefore never branches on a value with Python's own
``if``, ``and``, ``or``, ``not`` or ``in`` (an AST lint sees to it): it says ``ite``, ``&``, ``|``, ``no``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

Number = Any  # an int, or a symbol for one
Truth = Any  # a bool, or a symbol for one
Map = Any  # a total map: keys to numbers; see spec.finite.Map for the operations
Domain = Any  # a range of numbers that can be quantified over
Seq = Any  # a finite sequence of distinct numbers, with its inverse
Set = Any  # a finite set of numbers
Slots = Any  # a finite set of (page, offset) pairs

S = TypeVar("S")


def ite(cond: Truth, then: Any, other: Any) -> Any:
    """``then`` where ``cond`` holds, else ``other``; both are always evaluated."""
    if isinstance(cond, bool):
        return then if cond else other
    return cond.ite(then, other)


def no(truth: Truth) -> Truth:
    """The negation of ``truth``."""
    return (not truth) if isinstance(truth, bool) else truth.negated()


def implies(premise: Truth, conclusion: Truth) -> Truth:
    """``conclusion`` holds wherever ``premise`` does."""
    return no(premise) | conclusion


def every(truths: Iterable[Truth]) -> Truth:
    """All of a fixed, finite list of truths."""
    result: Truth = True
    for truth in truths:
        result = result & truth
    return result


def but(state: S, /, **changes: Any) -> S:
    """``state`` with some fields changed: ``dataclasses.replace`` for states, which have no ``__post_init__``."""
    new = object.__new__(type(state))
    new.__dict__.update(state.__dict__)
    new.__dict__.update(changes)
    return new


def zeroed(state: S, maps: Iterable[str], numbers: Iterable[str]) -> S:
    """``state`` with these maps 0 everywhere and these numbers 0."""
    return but(state, **{name: getattr(state, name).all_to(0) for name in maps}, **dict.fromkeys(numbers, 0))


class Requirement(NamedTuple):
    """A condition with the sentence that is shown when it does not hold."""

    sentence: str
    holds: Truth


def requires(holds: Truth, sentence: str) -> Requirement:
    """Names a condition: what the caller promises, or what the implementation's choice must satisfy."""
    return Requirement(sentence, holds)


@dataclass(frozen=True)
class Step(Generic[S]):
    """What a transition says of one call.

    ``promises``: the caller must keep them; a call that breaks one is refused as bad input.
    ``fits``: the resources suffice; a call that does not fit is refused as out of memory.
    ``choice``: what the implementation was free to choose, and must have chosen lawfully.
    ``then``: the state after a granted call. ``otherwise``: after a refused one (``None``: as before).
    ``calls``: the transitions of parts that it is made of, in order; their promises are its own to keep.
    """

    then: S
    promises: tuple[Requirement, ...] = ()
    choice: tuple[Requirement, ...] = ()
    fits: Truth = True
    otherwise: S | None = None
    calls: tuple[Call, ...] = ()

    @property
    def kept(self) -> Truth:
        """Every promise is kept."""
        return every(r.holds for r in self.promises)

    @property
    def granted(self) -> Truth:
        """The call is lawful, fits, and was answered by a lawful choice."""
        return self.kept & self.fits & every(r.holds for r in self.choice)

    def broken(self) -> list[str]:
        """The sentences that do not hold (finite reading)."""
        return [r.sentence for r in (*self.promises, *self.choice) if not r.holds]


class Call(NamedTuple):
    """A transition of a part of the state, made within a transition of the whole."""

    part: str
    transition: Callable[..., Step[Any]]
    before: Any
    step: Step[Any]

    @property
    def then(self) -> Any:
        """The part after the call."""
        return self.step.then


def call(part: str, transition: Callable[..., Step[Any]], before: Any, /, *arguments: Any) -> Call:
    """Makes a transition of a part; what it promises, the provers ask of the whole."""
    return Call(part, transition, before, transition(before, *arguments))


Part = tuple[str, Any]


@dataclass(frozen=True)
class Invariant:
    """A law on every part of a state it applies to (``now`` and ``saved``, the full and the SWA pool …)."""

    name: str
    holds: Callable[[Any], Truth]
    parts: Callable[[Any], list[Part]]
    latent: bool = False
    at: Callable[[Any, Any], Truth] | None = None
    domain: Callable[[Any], Domain] | None = None
    counts: bool = False
    uses: tuple[str, ...] = ()
    inherited: str = ""  # the part whose law it is
    about: tuple[str, ...] = ()
    theorem: bool = False

    @property
    def sentence(self) -> str:
        """The law in English: the docstring, on one line."""
        return " ".join((self.holds.__doc__ or "").split())

    def of(self, state: Any) -> Truth:
        """The law on all its parts of ``state``."""
        return every(self.holds(part) for _, part in self.parts(state))

    def current(self) -> Invariant:
        """The same law without the parts that a backup saved."""

        def parts(state: Any) -> list[Part]:
            return [(label, part) for label, part in self.parts(state) if "saved" not in label.split(".")]

        return replace(self, parts=parts)

    def within(self, name: str) -> Invariant:
        """The same law, of a state that has the law's own state as its field ``name``."""

        def parts(state: Any) -> list[Part]:
            return [(f"{name}.{label}".rstrip("."), part) for label, part in self.parts(getattr(state, name))]

        at, domain = self.at, self.domain
        return replace(
            self,
            parts=parts,
            at=at and (lambda state, member: at(getattr(state, name), member)),
            domain=domain and (lambda state: domain(getattr(state, name))),
            inherited=name,
        )


def _itself(state: Any) -> list[Part]:
    return [("", state)]


@dataclass
class Stem:
    """One feature: its state, initial state, transitions and invariants, by name and in order of definition."""

    name: str
    transitions: dict[str, Callable[..., Step[Any]]] = field(default_factory=dict)
    invariants: dict[str, Invariant] = field(default_factory=dict)
    state: Any = None
    start: Callable[[Any], Any] | None = None
    parts: dict[str, Stem] = field(default_factory=dict)

    def part(self, name: str, stem: Stem) -> None:
        """The field ``name`` of the state changes by transitions of ``stem`` alone, and so inherits its laws."""
        self.parts[name] = stem
        for law in stem.invariants.values():
            known = law.name if law.name not in self.invariants else f"{name}.{law.name}"  # two parts, one word
            self.invariants[known] = replace(law.within(name), name=known)

    def transition(self, function: Callable[..., Step[S]]) -> Callable[..., Step[S]]:
        """Registers a pure function ``state, arguments -> Step``; its docstring is printed as the law."""
        self.transitions[function.__name__] = function
        return function

    def invariant(
        self, parts: Callable[[Any], list[Part]] = _itself, latent: bool = False, about: tuple[str, ...] = ()
    ) -> Callable[[Callable[[Any], Truth]], Callable[[Any], Truth]]:
        """Registers a law. ``latent``: breaking it harms only who reads what nobody may read.

        ``about``: the parts of a composed state that the law ties; its proof is told of these, and of what is called.
        """

        def register(function: Callable[[Any], Truth]) -> Callable[[Any], Truth]:
            known = Invariant(function.__name__, function, parts, latent, about=about)
            self.invariants[known.name] = known
            return function

        return register

    def theorem(self, about: tuple[str, ...]) -> Callable[[Callable[[Any], Truth]], Callable[[Any], Truth]]:
        """Registers what follows, in any state, from the laws on the parts that it is ``about``."""

        def register(function: Callable[[Any], Truth]) -> Callable[[Any], Truth]:
            known = Invariant(function.__name__, function, _itself, about=about, theorem=True)
            self.invariants[known.name] = known
            return function

        return register

    def each(
        self, domain: Callable[[Any], Domain], counts: bool = False, uses: tuple[str, ...] = ()
    ) -> Callable[[Callable[[Any, Any], Truth]], Callable[[Any, Any], Truth]]:
        """Registers a law on each member of a domain.

        One that ``counts`` is only known of the members that a proof names. ``uses``: laws registered before it that
        its proof may take as proved of the state after, too.
        """

        unknown = [name for name in uses if name not in self.invariants]
        if unknown:
            raise ValueError(f"a law may use those registered before it alone, not {', '.join(unknown)}")

        def register(function: Callable[[Any, Any], Truth]) -> Callable[[Any, Any], Truth]:
            def holds(state: Any) -> Truth:
                return domain(state).all(lambda member: function(state, member))

            holds.__doc__ = function.__doc__
            name = function.__name__
            self.invariants[name] = Invariant(name, holds, _itself, False, function, domain, counts, uses)
            return function

        return register

    def broken(self, state: Any) -> list[tuple[Invariant, str]]:
        """The laws that ``state`` breaks, each with the part it breaks on (finite reading)."""
        return [
            (law, label) for law in self.invariants.values() for label, part in law.parts(state) if not law.holds(part)
        ]


# How a field of a state is read on symbols: ``arity`` keys of a map, or a constant of the machine.


def total(arity: int) -> Any:
    """A field that is a total map with ``arity`` keys."""
    return field(metadata={"kind": "map", "arity": arity})


def number() -> Any:
    """A field that is a number."""
    return field(metadata={"kind": "number"})


def truth() -> Any:
    """A field that is a truth."""
    return field(metadata={"kind": "truth"})


def constant(kind: str, shared: str | None = None) -> Any:
    """A field that no transition changes: a ``number`` (from 1), a ``count`` (from 0), a ``truth`` or a domain.

    ``shared`` names a constant that is one and the same wherever it stands in a state.
    """
    return field(metadata={"kind": kind, "constant": True, "shared": shared})
