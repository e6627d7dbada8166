"""What a run of mamba state slots follows and sees: who names what, which states the tree has, what is free."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from conformance.machine import ENOUGH, Finding, Json, LockStep, Misuse
from conformance.state_picture import PLACES, owner_name
from conformance.subjects.stateview import NONE, Key, Named, OutOfSlots, Seen, Three
from spec import mamba_slots as law
from spec import states
from spec.logic import but
from spec.states import ABSENT, FREE, GROUPED, HELD, IDLE, OWN, ROLES, RUNNING, MambaSlots, owns_nothing


class StatesRun(LockStep):
    """One pool of state slots beside the spec."""

    stem = law.stem
    state: MambaSlots

    def __init__(self, subject: Any, config: Json, strict: bool = True, avoid: Iterable[str] = ()) -> None:
        super().__init__(subject, config, strict, avoid)
        known = {"requests": 2, "sessions": 1, "buffered": True, "doubled": True, "lazy": False, **config}
        kind = (known["buffered"], known["doubled"], known["lazy"])
        self.limit, self.session_count = known["requests"], known["sessions"]
        self.state = law.initial(known["size"], self.limit, self.session_count, known["size"] + 1, kind)
        self.at: dict[Key, int] = {}  # the spec's number of each node with a state
        self.here: dict[int, int] = {}  # requests that have come -> their session, 0 if none
        self.lent: dict[int, int] = {}  # sessions whose slots a turn has -> that request
        self.known: set[int] = set()  # requests that were there once
        self.depth = 0

    def do(self, op: str, **arguments: Any) -> None:
        """One operation, if the subject has what the configuration asks for."""
        if self.subject.missing:
            raise Misuse(self.subject.missing)
        super().do(op, **arguments)

    def offers(self, name: str) -> bool:
        """The subject has the call."""
        return bool(self.subject.offers(name))

    def ask(self, name: str, call: Callable[[], Any], risky: bool = False) -> Any:
        """The subject's answer; that it is out of slots is one, too."""
        refusal: list[OutOfSlots] = []

        def caught() -> Any:
            try:
                return call()
            except OutOfSlots as error:
                refusal.append(error)
                return None

        answer = super().ask(name, caught, risky)
        if refusal:
            raise refusal[0]
        return answer

    def refused(self, name: str, need: int) -> None:
        """A refusal is lawful where the slots do not suffice, after what the tree gave up for it."""
        self.follow()
        st = self.state
        have = st.available + st.slots.count(lambda s: st.place(s) == GROUPED)
        if need <= have:
            detail = f"{name} needs {need} of {have} slots, but was refused"
            raise Finding(ENOUGH, "A call that fits is granted.", detail)
        self.counts[name, "refused"] += 1

    def session(self, number: int) -> int:
        """The spec's number of a session."""
        return int(self.limit + number - 1)

    def saved(self) -> list[int]:
        """Sessions whose slot has states."""
        return [s for s in range(1, self.session_count + 1) if not owns_nothing(self.state, self.session(s))]

    def running(self, request: int) -> bool:
        """The request is admitted."""
        return bool(self.state.phase(request) == RUNNING)

    def idle(self) -> bool:
        """Nobody has a slot."""
        return all(owns_nothing(self.state, o) for o in self.state.owners.items())

    def surely_fits(self, requests: list[int]) -> bool:
        """The free slots suffice for a batch."""
        return bool(sum(map(self.missing, requests)) <= self.state.available)

    def missing(self, request: int) -> int:
        """How many slots an admitted request would get."""
        st = self.state
        bare = st.names(request, 1) == st.names(request, 2) == ABSENT
        tracks = 0 if not st.buffered else 2 if st.doubled and not st.lazy else 1
        return int(st.names(request, OWN) == ABSENT) + (tracks if bare else 0)

    def must_run(self, request: int) -> None:
        """Only a running request can do this, and not while a group is open."""
        if request not in self.here or not self.running(request):
            raise Misuse("the request is not running")

    def must_be_lazy(self, request: int) -> None:
        """Only a running request with a lazy buffer can do this."""
        self.must_run(request)
        if not (self.state.lazy and states.has_two(self.state)):
            raise Misuse("the buffer is not lazy")

    # Following the tree.

    def follow(self, new_nodes: bool = True) -> Seen:
        """States that left the tree are evicted, in the law too; ``new_nodes``: new ones were copied into it."""
        seen: Seen = self.subject.observe()
        for key in [key for key, n in self.at.items() if seen.nodes.get(key) != self.state.table(n, OWN)]:
            self.step("evict", self.at.pop(key))
        if new_nodes:
            for key in [key for key in seen.nodes if key not in self.at]:
                self.new_node(key, seen.nodes[key])
        return seen

    def new_node(self, key: Key, slot: int) -> None:
        """A node of the tree gets a new slot."""
        number = self.number()
        self.step("alloc_copy", number, slot)
        self.at[key] = number

    def number(self) -> int:
        """A node of the spec that is not in use."""
        taken = set(self.at.values())
        return next(int(o) for o in self.state.owners.items() if o >= self.state.first_node and o not in taken)

    # What can be observed.

    def observed(self) -> Any:
        """The lists, the names, the rows, and what sessions and nodes have."""
        seen, st = self.subject.observe(), self.state
        table, names, row, next_ = st.table, st.names, st.row, st.next
        for r, named in seen.requests.items():
            names = _put(names, r, named.slots)
            next_ = next_.put(r, named.next) if r in self.here and st.phase(r) != IDLE else next_
        for r, three in seen.rows.items():
            row = _put(row, r, three)
        for s in range(1, self.session_count + 1):
            named = self._not_lent(s, seen)
            table = _put(table, self.session(s), named.slots)
            next_ = next_.put(self.session(s), named.next) if named.slots != NONE else next_
        for key, n in self.at.items():
            table = table.put((n, OWN), seen.nodes.get(key, ABSENT))
        place = _places(st, seen)
        return but(st, place=place, table=table, names=names, row=row, next=next_, available=seen.available)

    def _not_lent(self, session: int, seen: Seen) -> Named:
        """What a session's slot names. While a turn runs on it, it may go on naming what the turn has: a loan."""
        named = seen.sessions.get(session, Named())
        turn = seen.requests.get(self.lent.get(session, -1))
        return Named() if turn is not None and named.slots == turn.slots else named

    def differences(self, seen: Any) -> str:
        """What a caller can tell apart."""
        st, found = self.state, []
        for s in st.slots.items():
            if st.place(s) != seen.place(s):
                now = "nobody's" if seen.place(s) == HELD else PLACES[seen.place(s)]
                found.append(f"slot {s} is {now}, not {self._place(s)}")
        found += _unlike(self.who, "has", st.table, seen.table, st.owners.items())
        found += _unlike(self.who, "names", st.names, seen.names, (r for r in self.here if st.phase(r) != IDLE))
        found += [
            f"the row of {self.who(r)} holds {_words(seen.row, r)}, not {_words(st.table, r)}"
            for r in self.here
            if self.running(r) and _words(seen.row, r) != _words(st.table, r)
        ]
        nexts = [(o, seen.next(o), st.next(o)) for o in range(st.first_node) if states.has_buffer(st, o)]
        found += [f"the next track of {self.who(o)} is {now}, not {was}" for o, now, was in nexts if now != was]
        found += [] if st.available == seen.available else [f"{seen.available} are available, not {st.available}"]
        return "; ".join(found)

    def details(self, seen: Any) -> str:
        """What requests that are gone still name."""
        gone = (r for r in range(self.limit) if self.state.phase(r) == IDLE)
        return "; ".join(_unlike(self.who, "names", self.state.names, seen.names, gone))

    def _place(self, slot: int) -> str:
        st = self.state
        return f"{self.who(st.owner(slot))}'s" if st.place(slot) == HELD else PLACES[st.place(slot)]

    def who(self, o: int) -> str:
        """An owner in words."""
        key = next((list(k) for k, n in self.at.items() if n == o), None)
        return owner_name(self.state, o) if key is None else f"node {key}"


def _put(table: Any, o: int, slots: Three) -> Any:
    for k in ROLES:
        table = table.put((o, k), slots[k])
    return table


def _unlike(who: Callable[[int], str], what: str, was: Any, now: Any, owners: Iterable[int]) -> list[str]:
    pairs = [(o, _words(now, o), _words(was, o)) for o in owners]
    return [f"{who(o)} {what} {found}, not {expected}" for o, found, expected in pairs if found != expected]


def _words(table: Any, o: int) -> list[int]:
    return [table(o, k) for k in ROLES]


def _places(st: MambaSlots, seen: Seen) -> Any:
    """Where the lists have each slot; a number that is no slot stands for what is absent."""
    free, waiting = set(seen.free), set(seen.waiting)

    def place(s: int) -> int:
        if s in free or s in waiting:
            return GROUPED if s in waiting else FREE
        return HELD

    found = st.place
    for s in st.slots.items():
        found = found.put(s, place(s)) if place(s) != st.place(s) else found
    outside = any(not st.slots.has(s) for s in seen.free)
    return found.put(ABSENT, FREE) if outside else found
