"""What an implementation may answer: for each call that fits a lawful answer, as terms over the state and the call.

``proofs.fitting`` proves with these answers that a call fits exactly where a lawful answer exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import z3

from proofs import lemmas
from proofs.hints import Answer
from proofs.symbols import Count, SymDomain, SymMap, SymSeq, SymSet, Term, World, lift
from spec.lengths import Length, next_token, same, touched
from spec.logic import ite
from spec.mamba_slots_state import ABSENT, MambaSlotsState, is_open, needed
from spec.pair import Pair
from spec.pool import length


@dataclass
class Pick:
    """Names members of sets; ``facts`` has what the lemmas say of them. ``counts``: the sizes that the laws count."""

    world: World
    counts: list[Count]
    facts: list[Any] = field(default_factory=list)

    def members(self, domain: SymDomain, size: Any) -> SymSeq:
        """``size`` different members of the set that a law counts over this domain, if it has so many."""
        seq = SymSeq(self.world, str(self.world.fresh("answer")), domain)
        self.facts.append(lemmas.members(seq, size, self.counted(domain)))
        return seq

    def counted(self, domain: SymDomain) -> Count:
        """The count over this domain."""
        return next(count for count in self.counts if count.domain is domain)

    def one(self, domain: SymDomain, law: Callable[[Any], Any]) -> Term:
        """A member for which ``law`` holds, if there is one."""
        found = Term(self.world.fresh("answer"))
        self.facts.append(z3.Implies(lift(domain.any(law)), lift(domain.has(found) & law(found))))
        return found


def no_pages(domain: SymDomain) -> SymSeq:
    """The empty sequence."""
    nothing = SymMap(1, lambda _: Term(z3.IntVal(0)))
    return SymSeq.of(domain, Term(z3.IntVal(0)), nothing, nothing)


def empty(domain: SymDomain) -> SymSet:
    """The empty set."""
    return SymSet(domain.world, 1, lambda _: Term(z3.BoolVal(False)), domain)


def opens(_: Pick, __: Any, ___: Mapping[str, Any]) -> dict[str, Any]:
    """The group opens."""
    return {"opens": True}


# Pages of one pool and of two.


def pages_of_pool(to: Callable[[Any, Mapping[str, Any]], Length]) -> Answer:
    """The pages with which a row of one pool grows to a length."""

    def answer(pick: Pick, st: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        need = touched(to(st.now, given)) - touched(length(st.now, given["row"]))
        return {"chosen": pick.members(st.now.pages, need)}

    return answer


def pages_of_pair(
    to: Callable[[Any, Mapping[str, Any]], Length], pools: Callable[[Any], Any] = lambda st: st
) -> Answer:
    """The pages with which a row of both pools grows to a length. ``pools``: where the state has its pools."""

    def answer(pick: Pick, st: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        held = pools(st)
        need = touched(to(held.now.full, given)) - touched(length(held.now.full, given["row"]))
        return both(pick, held.now, need, ite(held.windowed, need, 0))

    return answer


def both(pick: Pick, pair: Pair, need: Any, need_swa: Any) -> dict[str, Any]:
    """So many full pages and so many SWA pages."""
    return {
        "full_pages": pick.members(pair.full.pages, need),
        "swa_pages": pick.members(pair.swa.pages, need_swa),
    }


def tail(pick: Pick, pair: Pair, first: Any, start: Length, to: Length) -> dict[str, Any]:
    """The pages of a row of ``first`` whole pages that grows to ``to``, with SWA pages from ``start`` on."""
    return both(pick, pair, touched(to) - first, ite(same(start, to), 0, touched(to) - start.pages))


def asked(_: Any, given: Mapping[str, Any]) -> Length:
    """The length that the call names."""
    to: Length = given["to"]
    return to


def one_more(pool: Any, given: Mapping[str, Any]) -> Length:
    """The length of the row and one token."""
    return next_token(length(pool, given["row"]), pool.page_size)


def whole_pages(pool: Any, given: Mapping[str, Any]) -> Length:
    """The length of the row and ``count`` pages."""
    now = length(pool, given["row"])
    return Length(now.pages + given["count"], now.rest)


def settles_nothing(st: Any) -> dict[str, Any]:
    """No SWA page need be settled before the end of the group."""
    return {"done": empty(st.now.swa.pages), "available": False}


# Mamba state slots.


def open_slot(pick: Pick, st: MambaSlotsState) -> dict[str, Any]:
    """A slot that can be handed out by itself."""
    return {"slot": pick.one(st.slots, lambda s: is_open(st, s))}


def set_aside(pick: Pick, st: MambaSlotsState, need: Any) -> dict[str, Any]:
    """The slots that a group sets aside: ``need``, or none if fewer are free."""
    return {"chosen": pick.members(st.slots, ite(need <= st.available, need, 0))}


def equipment(pick: Pick, st: MambaSlotsState, request: Any) -> dict[str, Any]:
    """The slots that a request lacks, one for each role."""
    wants, (*places, size) = needed(st, request), wanted(st, request)
    chosen = pick.members(st.slots, size)
    slots = [ite(want, chosen.at(at), ABSENT) for want, at in zip(wants, places, strict=True)]
    return dict(zip(("own", "first", "second"), slots, strict=True))


def handed_out(st: MambaSlotsState, given: Mapping[str, Any]) -> SymSeq:
    """The slots that a request gets, those alone that it lacks, in order of their roles."""
    wants = needed(st, given["request"])
    _, second, third, size = wanted(st, given["request"])
    own, one, two = given["own"], given["first"], given["second"]
    at = SymMap(1, lambda j: ite(wants[0] & (j == 0), own, ite(wants[1] & (j == second), one, two)))
    index = SymMap(1, lambda s: ite(wants[0] & (s == own), 0, ite(wants[1] & (s == one), second, third)))
    return SymSeq.of(st.slots, size, at, index)


def wanted(st: MambaSlotsState, request: Any) -> tuple[Any, Any, Any, Any]:
    """How many slots a request lacks in the roles before each of the three roles, and in all roles."""
    own, first, second = (ite(want, 1, 0) for want in needed(st, request))
    return Term(z3.IntVal(0)), own, own + first, own + first + second
