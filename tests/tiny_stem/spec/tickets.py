"""A desk that hands out tickets: the smallest stem there is."""

from __future__ import annotations

from dataclasses import dataclass

from spec.logic import Number, Stem, Step, Truth, but, constant, number, requires

stem = Stem("tickets")


@dataclass(frozen=True)
class TicketsState:
    """How many tickets the desk has, and how many of them are out."""

    size: Number = constant("number", shared="tickets")
    out: Number = number()


def initial(size: int) -> TicketsState:
    """No ticket is out (finite reading)."""
    return start(TicketsState(size=size, out=0))


def start(st: TicketsState) -> TicketsState:
    """Before the first call no ticket is out."""
    return but(st, out=0)


stem.state, stem.start = TicketsState, start


@stem.transition
def take(st: TicketsState, count: Number) -> Step[TicketsState]:
    """A caller takes tickets that are left."""
    return Step(
        promises=(
            requires(count > 0, "at least one ticket is asked for"),
            requires(st.out + count <= st.size, "so many tickets are left"),
        ),
        then=but(st, out=st.out + count),
    )


@stem.invariant()
def no_more_than_there_are(st: TicketsState) -> Truth:
    """No more tickets are out than the desk has."""
    return (st.out >= 0) & (st.out <= st.size)
