"""A run of the stem ``mamba_slots``: state slots beside the law, with requests, sessions, a tree, and groups of slots.

The engine chooses which slots it hands out, and which states its tree keeps and evicts. After each call the run looks
who names which slot, and takes the law's step for each slot that was handed out, moved or freed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from conformance.driver.diff import FieldDifference, Names
from conformance.driver.lockstep import (
    ENOUGH,
    ENOUGH_SENTENCE,
    QUIESCENT,
    QUIET,
    REFUSAL,
    Calls,
    EngineCall,
    Finding,
    Ignores,
    Law,
    Operation,
    nothing,
    refusing,
)
from conformance.driver.operations import KeyTokens, operation, operations_of
from conformance.driver.protocol import Json, Key, Misuse
from conformance.driver.shadow import Shadow
from conformance.stems.mamba_slots.contents import StatePasses
from conformance.stems.mamba_slots.projection import (
    hidden_state_change,
    owner_names,
    project_states,
    record_of,
    state_problems,
)
from conformance.stems.mamba_slots.protocol import NO_SLOTS, MambaSlotsEngine, MambaSlotsSnapshot, SlotNames
from spec import mamba_slots as law
from spec.finite import Seq
from spec.mamba_slots_state import (
    ABSENT,
    FIRST,
    GROUPED,
    IDLE,
    LEAVING,
    OWN,
    ROLES,
    RUNNING,
    SECOND,
    MambaSlotsState,
    across,
    has_two,
    kept,
    owns_nothing,
)

BadCall = Literal["free_padding", "free_outside", "free_again", "alloc_negative", "donate_nothing", "row_of_nobody"]


class MambaSlotsRun:
    """Operations on requests, sessions and a tree that own state slots.

    ``nodes``: the law's owner number of each node with a state, by its key. ``here``: the requests that have come and
    not left, each with its session (0: none). ``lent``: the sessions whose slots a turn uses now, each with the
    request of that turn. ``known``: the requests that were here once. ``decoded``: those that decode since long, so
    that no prefill of theirs can end any more. ``copied``: the node whose state a request that waits got a copy of.
    ``stale``: those whose node has lost its state since, so that they match again. ``depth``: how many groups are
    open. ``passes``: what requests compute and read.
    """

    def __init__(self, engine: MambaSlotsEngine, config: Json, strict: bool = True, ignores: Ignores = nothing) -> None:
        self.engine, self.lacks = engine, engine.lacks
        kind = (config["buffered"], config["doubled"], config["lazy"])
        self.request_count: int = config["requests"]
        self.session_count: int = config["sessions"]
        empty = law.initial(config["size"], self.request_count, self.session_count, config["size"] + 1, kind)
        self.nodes: dict[Key, int] = {}
        self.here: dict[int, int] = {}
        self.lent: dict[int, int] = {}
        self.known: set[int] = set()
        self.decoded: set[int] = set()
        self.copied: dict[int, int] = {}
        self.stale: set[int] = set()
        self.depth = 0
        self.shadow = Shadow()
        self.law = Law(law.stem, empty, strict, ignores)
        self.passes = StatePasses(self.shadow)
        name = owner_names(empty, self.nodes)
        self.law.names = Names(node=name, owner=name)
        self.operations: Mapping[str, Operation] = operations_of(self)
        self.seen: MambaSlotsSnapshot = engine.snapshot()

    # A request comes.

    @operation
    def match(self, request: int, tokens: KeyTokens, session: int = 0, again: bool = False) -> Calls:
        """A request comes and matches. A session's later turn takes over what the session saved.

        ``again``: the request object that was here before comes again.
        """
        if request >= self.request_count:
            raise Misuse(f"there is no request {request}: there are {self.request_count}, numbered from 0")
        self._must_have_session(session)
        busy = session and session in self.here.values()
        if request in self.here or busy or (again and (request not in self.known or session)):
            raise Misuse("the request is there, or its session is busy")
        self.here[request] = session
        self.known.add(request)
        self._forget(request)
        if session and not owns_nothing(self.state, self.session(session)):
            self.law.caller_step("restore", self.session(session), request)
            self.lent[session] = request
        copied = yield EngineCall("match", lambda: self.engine.match(request, tokens, session, again), refusable=True)
        if copied is REFUSAL:
            del self.here[request]
            self._explain_refusal("alloc_for_match", 1)
            return
        self.passes.begin(request, None if again else tokens, session)
        if copied is not None:
            self.passes.copied(request, copied, self.seen)
        self._explain_tree()
        if copied is not None:
            slot = record_of(self.seen, request).slots[OWN]
            if copied not in self.nodes:
                what = f"the match copied the state of node {list(copied)}, which has none"
                raise Finding("alloc_for_match", self.law.sentence("alloc_for_match"), what)
            self.copied[request] = self.nodes[copied]
            self.law.engine_step("alloc_for_match", request, self.nodes[copied], slot)

    @operation
    def admit(self, requests: list[int]) -> Calls:
        """A batch is admitted. A request that runs asks for another chunk, and keeps what it has."""
        if self.depth or not requests or len(set(requests)) < len(requests) or not set(requests) <= self.here.keys():
            raise Misuse("a batch of requests that have come is admitted outside a group")
        if self.stale & set(requests):
            raise Misuse("a state that a request matched has left the tree: schedulers match again before they admit")
        before = {r: tuple(self.state.names(r, role) for role in ROLES) for r in requests}
        answer = yield EngineCall("admit", lambda: self.engine.admit(requests), refusable=True)
        if answer is REFUSAL:
            self._explain_refusal("alloc", sum(map(self.missing, requests)))
            return
        self.passes.computed(requests, self.seen)
        self._explain_tree()
        for request in requests:
            named = record_of(self.seen, request).slots
            new = [ABSENT if had else now for had, now in zip(before[request], named, strict=True)]
            self.law.engine_step("alloc", request, *new)
            self.copied.pop(request, None)

    # A request works.

    @operation
    def track(self, request: int) -> Calls:
        """A tracking boundary: the state is written to the track buffer."""
        self._must_run(request)
        if not self.state.buffered:
            raise Misuse("the request has no track buffer")
        if self.state.doubled and not self.state.lazy:
            self.law.caller_step("track", request)
        self.passes.computed([request], self.seen)
        self.passes.tracked(request, self.seen)
        yield EngineCall("track", lambda: self.engine.track(request))

    @operation
    def boundary(self, request: int) -> Calls:
        """Before a tracking boundary a lazy track buffer gets its second slot, if one is free."""
        self._must_be_lazy(request)
        yield EngineCall("boundary", lambda: self.engine.boundary(request))
        self.passes.computed([request], self.seen)
        self.passes.tracked(request, self.seen)
        self._explain_tree()
        role = across(self.state, request)
        if self.state.names(request, role) != ABSENT:
            return
        slot = record_of(self.seen, request).slots[role]
        if slot == ABSENT:
            self._explain_refusal("alloc_second", 1)
        else:
            self.law.engine_step("alloc_second", request, slot)

    @operation
    def settle(self, request: int) -> Calls:
        """After a tracking boundary a lazy track buffer gives back the slot that is not written next."""
        self._must_be_lazy(request)
        self.law.caller_step("give_second", request)
        self.passes.computed([request], self.seen)
        self.passes.tracked(request, self.seen)
        yield EngineCall("settle", lambda: self.engine.settle(request))

    @operation
    def slide(self, request: int) -> Calls:
        """A long decode moves the window past what was tracked."""
        self._must_run(request)
        self.decoded.add(request)
        self.passes.computed([request], self.seen)
        yield EngineCall("slide", lambda: self.engine.slide(request))

    @operation
    def cache(self, request: int) -> Calls:
        """A request that runs puts its newest state into the tree, as engines do after a prefill. The tree takes it, or
        has a state for this key already.
        """
        self._must_run(request)
        if request in self.decoded:
            raise Misuse("a request that decodes since long puts its state into the tree only when it ends")
        answer = yield EngineCall("cache", lambda: self.engine.cache(request), refusable=True)
        if answer is REFUSAL:
            self._explain_refusal("alloc_copy", 1)
            return
        self._explain_evictions()
        new, other = self._new_keys(), self._other_track(request)
        turned = other != ABSENT and record_of(self.seen, request).slots[across(self.state, request)] != other
        if turned:
            self.law.engine_step("turn_lazy", request)
        self.passes.given(request, new, self.seen, self._newest(request), self.state.buffered)
        role = kept(self.state, request)
        was, now = self.state.table(request, role), record_of(self.seen, request).slots[role]
        for key in new:
            self._explain_copy(key, now if self.seen.nodes[key] == was else self.seen.nodes[key])
        if now == was:
            return
        # The request donated the slot of its newest state and has another slot in its place. Where the tree had a state
        # for the key already, it freed the donated slot. In the law a node number that no node has takes the donated
        # slot, and its state is evicted.
        carrier = self.nodes[new[0]] if new else self._new_number()
        if not new:
            self.law.engine_step("alloc_copy", carrier, now)
        self.law.engine_step("donate_and_replace", request, carrier)
        if not new:
            self.law.engine_step("evict", carrier)
        if turned:
            self.law.engine_step("turn_lazy", request)

    # A request leaves.

    @operation
    def finish(self, request: int) -> Calls:
        """A request ends."""
        self._must_run(request)
        return self._leave("finish", request, self.engine.finish)

    @operation
    def abort(self, request: int) -> Calls:
        """A request that runs is aborted."""
        self._must_run(request)
        return self._leave("abort", request, self.engine.abort)

    @operation
    def retract(self, request: int) -> Calls:
        """A request that runs gives up its row for lack of memory."""
        self._must_run(request)
        return self._leave("retract", request, self.engine.retract)

    @operation
    def withdraw(self, request: int) -> Calls:
        """A request that waits is aborted."""
        if request not in self.here or self.running(request):
            raise Misuse("the request is not waiting")
        return self._leave("withdraw", request, self.engine.withdraw)

    def _leave(self, name: str, request: int, send: Callable[[int], None]) -> Calls:
        """Explains where the slots of a request that left went: its newest state to the tree or all to its session,
        the rest freed.
        """
        session = self.here.pop(request)
        yield EngineCall(name, lambda: send(request))
        self.lent.pop(session, None)
        self._explain_evictions()
        new, other = self._new_keys(), self._other_track(request)
        if other != ABSENT and other in map(self.seen.nodes.get, new):
            self.law.engine_step("turn_lazy", request)
        self.passes.given(request, new, self.seen, self._newest(request), self.state.buffered)
        saved = session and self.seen.sessions.get(session, SlotNames()).slots != NO_SLOTS
        self.passes.left(request, session if saved else 0)
        for key in new:
            self.nodes[key] = number = self._new_number()
            self.law.engine_step("donate", request, number)
        phase = self.state.phase(request)
        if phase == IDLE:
            return
        if session and phase != LEAVING and self.seen.sessions.get(session, SlotNames()).slots != NO_SLOTS:
            self.law.engine_step("save", request, self.session(session))
        else:
            self.law.engine_step("release", request)

    @operation
    def close(self, session: int) -> Calls:
        """A session ends between two turns."""
        self._must_have_session(session or -1)
        if session in self.here.values():
            raise Misuse("a turn of the session is there")
        self.law.caller_step("close", self.session(session))
        self.passes.closed(session)
        yield EngineCall("close", lambda: self.engine.close(session))

    # The pool and the tree.

    @operation
    def evict(self, states: int) -> Calls:
        """The tree is asked to free so many states."""
        yield EngineCall("evict", lambda: self.engine.evict(states))
        self._explain_tree()

    @operation
    def begin_group(self, need: int) -> Calls:
        """A group begins, and sets ``need`` slots aside."""
        yield EngineCall("begin_group", lambda: self.engine.begin_group(need))
        new = [slot for slot in self.seen.waiting if self.state.place(slot) != GROUPED]
        self.law.caller_step("begin_group", need, Seq(new))
        self.depth += 1

    @operation
    def end_group(self) -> Calls:
        """A group ends."""
        self.law.caller_step("end_group")
        self.depth -= 1
        yield EngineCall("end_group", self.engine.end_group)

    @operation
    def clear(self) -> Calls:
        """The pool is cleared while no request is here."""
        if self.here:
            raise Misuse("a request is there")
        self.law.caller_step("clear")
        self.nodes.clear()
        self.passes.clear()
        self.depth = 0
        yield EngineCall("clear", self.engine.clear)

    @operation
    def audit(self) -> Calls:
        """The end of a run: the tree is asked for all states that it has, and then nobody has a slot. The driver's
        comparison says that then every slot is free.
        """
        if self.here or self.depth or not self.callers_are_idle():
            raise Misuse("somebody has a slot")
        if self.nodes:
            yield from self.evict(len(self.nodes))
        if self.nodes:
            raise Finding(QUIESCENT, QUIET, f"the tree keeps the states of {', '.join(map(str, self.nodes))}")
        self.law.counts["quiescence", "done"] += 1

    @operation
    def bad(self, kind: BadCall) -> Calls:
        """Bad input: the engine must answer with a clear error, and nothing may change."""
        yield refusing(lambda: self.engine.bad(kind), self.law, kind)

    # What callers can send now.

    @property
    def state(self) -> MambaSlotsState:
        """The law's state slots."""
        state: MambaSlotsState = self.law.state
        return state

    def session(self, number: int) -> int:
        """The law's owner number of a session's slot."""
        return int(self.state.limit) + number - 1

    def saved(self) -> list[int]:
        """The sessions whose slot has states."""
        return [s for s in range(1, self.session_count + 1) if not owns_nothing(self.state, self.session(s))]

    def running(self, request: int) -> bool:
        """The request is admitted."""
        return bool(self.state.phase(request) == RUNNING)

    def callers_are_idle(self) -> bool:
        """No request and no session has a slot."""
        nodes = self.nodes.values()
        return all(owns_nothing(self.state, owner) for owner in self.state.owners.items() if owner not in nodes)

    def surely_fits(self, requests: list[int]) -> bool:
        """There are enough free slots to admit a batch."""
        return bool(sum(map(self.missing, requests)) <= self.state.available)

    def missing(self, request: int) -> int:
        """How many slots the request gets when it is admitted."""
        st = self.state
        bare = st.names(request, FIRST) == st.names(request, SECOND) == ABSENT
        tracks = 0 if not st.buffered else 2 if st.doubled and not st.lazy else 1
        return int(st.names(request, OWN) == ABSENT) + (tracks if bare else 0)

    def _must_have_session(self, session: int) -> None:
        if not 0 <= session <= self.session_count:
            raise Misuse(f"there is no such session: there are {self.session_count}, numbered from 1")

    def _must_run(self, request: int) -> None:
        if request not in self.here or not self.running(request):
            raise Misuse("the request is not running")

    def _must_be_lazy(self, request: int) -> None:
        self._must_run(request)
        if not (self.state.lazy and has_two(self.state)):
            raise Misuse("the buffer is not lazy")

    # What the engine has done.

    def _newest(self, request: int) -> int:
        """The slot of the newest state that a request can give away."""
        return int(self.state.table(request, kept(self.state, request)))

    def _other_track(self, request: int) -> int:
        """The slot of a lazy buffer from before a tracking boundary; ABSENT where the request has none."""
        st = self.state
        return int(st.table(request, across(st, request))) if st.lazy and has_two(st) else ABSENT

    def _explain_refusal(self, name: str, need: int) -> None:
        """Raises ``Finding`` if there are enough slots, after what the tree has freed for the refused call."""
        self._explain_tree()
        st = self.state
        have = st.available + st.slots.count(lambda slot: st.place(slot) == GROUPED)
        if need <= have:
            detail = f"{name} was refused: it needs {need} slots, and {have} can be handed out"
            raise Finding(ENOUGH, ENOUGH_SENTENCE, detail)
        self.law.counts[name, "refused"] += 1

    def _explain_tree(self) -> None:
        """Explains that states left the tree, and that others were copied into it."""
        self._explain_evictions()
        for key in self._new_keys():
            self._explain_copy(key, self.seen.nodes[key])

    def _explain_evictions(self) -> None:
        shown, table = self.seen.nodes, self.state.table
        for key in [key for key, node in self.nodes.items() if shown.get(key) != table(node, OWN)]:
            node = self.nodes.pop(key)
            self.stale |= {request for request, copied in self.copied.items() if copied == node}
            self.law.engine_step("evict", node)

    def _new_keys(self) -> list[Key]:
        return [key for key in self.seen.nodes if key not in self.nodes]

    def _explain_copy(self, key: Key, slot: int) -> None:
        """Explains that a node of the tree has a new slot, into which a state was copied."""
        number = self._new_number()
        self.law.engine_step("alloc_copy", number, slot)
        self.nodes[key] = number

    def _new_number(self) -> int:
        """The number of an owner that is no node of the tree now. Raises ``Finding`` if there is none."""
        st, taken = self.state, set(self.nodes.values())
        number = next((int(owner) for owner in range(st.first_node, st.owners.high + 1) if owner not in taken), None)
        if number is None:
            raise Finding("alloc_copy", self.law.sentence("alloc_copy"), "more nodes have a state than there are slots")
        return number

    def _forget(self, request: int) -> None:
        """A request begins: what is noted here of the last one with its number does not concern it."""
        self.decoded.discard(request)
        self.copied.pop(request, None)
        self.stale.discard(request)

    # What the driver needs.

    def snapshot(self) -> MambaSlotsSnapshot:
        """The lists, and which slots requests, sessions and nodes name."""
        seen = self.engine.snapshot()
        self.passes.shown(seen)
        return seen

    def follow(self) -> None:
        """Nothing to do: each operation explains what its calls have changed."""

    def project(self) -> Any:
        """The law's state slots, with lists, records, rows, session slots and nodes as the engine shows them."""
        return project_states(self.state, self.seen, self.nodes, self.here, self.lent)

    def hidden(self, change: FieldDifference) -> bool:
        """What the record or the row of a request that is gone still names is hidden from callers."""
        return hidden_state_change(change, self.state, self.here)

    def beyond_state(self) -> list[str]:
        """Numbers on the free list that are no state slots, and requests that are not shown."""
        return state_problems(self.state, self.seen, self.here)

    def judge(self) -> None:
        """Nothing to add: the invariants say everything."""
