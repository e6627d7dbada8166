"""A run of the stem ``host_tier``: requests store keys on the host and load them, beside the law.

The engine chooses which of the offered keys it stores, in which slots, and which keys it evicts for them. Everything
else is the caller's. The caller is as vLLM's ``OffloadingConnectorScheduler``: keys that are offered are one job, which
ends as one; a request loads nothing while it has a job, and stores nothing while it loads; and after a reset nothing is
offered until every copy of before has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from conformance.driver.diff import FieldDifference, Names
from conformance.driver.lockstep import Calls, EngineCall, Finding, Ignores, Law, Operation, nothing
from conformance.driver.operations import KeyTokens, operation, operations_of
from conformance.driver.protocol import Json, Misuse, lacking
from conformance.driver.shadow import BLOCKS, Shadow
from conformance.stems.host_tier.contents import HostJob, HostRequest, copied, read_back
from conformance.stems.host_tier.projection import host_problems, project_host
from conformance.stems.host_tier.protocol import FOUND, PENDING, HostTierEngine, HostTierSnapshot, Offered
from spec import host_tier as law
from spec.finite import Seq
from spec.host_tier_state import ABSENT, READY, WRITING, HostTierState, copies
from spec.in_flight import NO_JOB

JOBS, MOST = 4, 4  # jobs at a time, and keys of a request
KNOWN = "answers_for_what_was_offered"
KNOWN_SENTENCE = "An offer stores keys that were offered, each once, and names a slot for each."
STAYS = "offered_key_stays"
STAYS_SENTENCE = "A key that is offered and on the host already is not evicted for the other keys of the offer."
STORES = "offered_key_is_stored"
STORES_SENTENCE = "Where no key has to be seen twice, each key that is offered and not on the host is stored."
WAITS = "pending_is_written"
WAITS_SENTENCE = "A look-up says to wait only for a key whose copy is under way."
OWN_SLOT = "load_names_the_slot"
OWN_SLOT_SENTENCE = "A load is told the slot of each of its keys."


class HostTierRun:
    """Operations on requests and jobs. Requests and jobs count from 1.

    ``requests``: those that have begun and not finished. ``jobs``: the jobs whose ends are not reported, and those that
    a reset has forgotten and whose copies are in flight.
    """

    def __init__(self, engine: HostTierEngine, config: Json, strict: bool = True, ignores: Ignores = nothing) -> None:
        self.engine = engine
        self.lacks: Collection[str] = lacking(engine)
        self.parts: int = config["parts"]
        self.most_requests: int = config["requests"]
        self.threshold: int = config["threshold"]
        blocks = (config["requests"] + JOBS) * MOST * self.parts
        empty = law.initial(config["keys"], config["slots"], blocks, self.parts, JOBS * MOST)
        self.law = Law(law.stem, empty, strict, ignores)
        self.law.names = Names(text=self.text_name)
        self.shadow = Shadow()
        self.requests: dict[int, HostRequest] = {}
        self.jobs: dict[int, HostJob] = {}
        self.operations: Mapping[str, Operation] = operations_of(self)
        self.seen: HostTierSnapshot = engine.snapshot()

    # Requests.

    @operation
    def begin(self, request: int, keys: KeyTokens) -> Calls:
        """A request begins. ``keys``: those of its text, in order."""
        if request in self.requests or not 1 <= request <= self.most_requests:
            raise Misuse(f"there is no request {request} that is not in use")
        if len(keys) > MOST or len(set(keys)) < len(keys) or not all(map(self.state.every_key.has, keys)):
            raise Misuse("the keys of a request are different keys of the host, and not so many")
        self.requests[request] = HostRequest(list(keys))
        yield EngineCall("begin", partial(self.engine.begin, request, list(keys)))

    @operation
    def finish(self, request: int) -> Calls:
        """A request has finished. Its jobs go on."""
        self._must_run(request)
        del self.requests[request]
        yield EngineCall("finish", partial(self.engine.finish, request))

    @operation
    def compute(self, request: int, to: int) -> Calls:
        """A forward pass computes the parts of a request up to the part ``to``, into new device blocks, and reads all
        parts before. The engine is not asked.
        """
        of = self._must_run(request)
        if self._loads(request) or not of.filled < to <= len(of.keys) * self.parts:
            raise Misuse("the request waits for a load, has the parts already, or has not so many")
        texts = self.texts(of.keys)
        new = self._unused(to - of.filled)
        for block, text in zip(new, texts[of.filled : to], strict=True):
            self.law.caller_step("write", block, text)
        self.shadow.write(BLOCKS, new, texts[of.filled : to], f"request {request}")
        of.blocks, of.filled = of.blocks[: of.filled] + new, to
        read_back(self.shadow, request, of, texts)
        yield from ()

    # Keys.

    @operation
    def look_up(self, request: int, first: int, last: int) -> Calls:
        """A request asks for its keys at the places from ``first`` to ``last``, until one is not found."""
        yield from self._found(request, self._must_run(request).keys[first:last])

    def _found(self, request: int, keys: Iterable[int]) -> Any:
        """How many of the keys the engine finds, until it does not find one."""
        found = 0
        for key in keys:
            answer = yield EngineCall("look_up", partial(self.engine.look_up, request, key))
            self.law.engine_step("find", key, answer == FOUND)
            if answer == PENDING and self.state.phase(key) != WRITING:
                raise Finding(WAITS, WAITS_SENTENCE, f"key {key} is not under way")
            if answer != FOUND:
                break
            found += 1
        return found

    @operation
    def touch(self, request: int, first: int, last: int) -> Calls:
        """A request uses its keys at the places from ``first`` to ``last``."""
        keys = list(self._must_run(request).keys[first:last])
        if not keys:
            raise Misuse("the request has no keys there")
        yield EngineCall("touch", partial(self.engine.touch, request, keys))

    @operation
    def offer(self, request: int, first: int, last: int, job: int) -> Calls:
        """A request offers its keys at the places from ``first`` to ``last``, which it has on the device. What the
        engine stores is a new job, whose copies begin later.
        """
        of = self._must_run(request)
        self._must_be_free(job)
        keys = list(of.keys[first:last])
        if not keys or (first + len(keys)) * self.parts > of.filled or self._loads(request):
            raise Misuse("the request has no such keys on the device, or waits for a load")
        if any(known.lost for known in self.jobs.values()):
            raise Misuse("a copy from before a reset is in flight")
        absent = [key for key in keys if self.state.phase(key) == ABSENT]
        answer = yield EngineCall("offer", partial(self.engine.offer, request, keys))
        if answer is None:
            self._explain_refusal(keys, absent)
            return
        stored, slots, _ = answer
        if len(set(stored)) < len(stored) or not set(stored) <= set(keys) or len(slots) != len(stored):
            what = f"of the keys {keys} it stores {list(stored)}, in the slots {list(slots)}"
            raise Finding(KNOWN, KNOWN_SENTENCE, what)
        if stored:
            places = [keys.index(key) + first for key in stored]
            blocks = [b for place in places for b in of.blocks[place * self.parts : (place + 1) * self.parts]]
            self.jobs[job] = HostJob(request, of, stored, slots, blocks, stores=True)
        self._explain_offer(keys, absent, answer)

    def _explain_refusal(self, keys: Sequence[int], absent: Sequence[int]) -> None:
        """An offer that is refused may have evicted keys. It is lawful where the new keys have no room, even if every
        key that nobody needs is evicted; how many of them have to be stored is the engine's choice.
        """
        st = self.state
        idle = [key for key in st.every_key.items() if st.phase(key) == READY and not st.refs(key)]
        room = sum(key not in keys for key in idle) + int(st.available)
        self.law.refused("reserve", len(absent) <= room)
        for key in idle:
            if key not in self.seen.slots:
                self.law.engine_step("evict", key, st.slot(key))

    def _explain_offer(self, keys: Sequence[int], absent: Sequence[int], answer: Offered) -> None:
        """Explains the answer to an offer: first keys are evicted, then others are stored in their places."""
        stored, slots, evicted = answer
        for key in evicted:
            self.law.engine_step("evict", key, self.state.slot(key))
            if key in keys:
                raise Finding(STAYS, STAYS_SENTENCE, f"key {key} is evicted for an offer of {list(keys)}")
        if self.threshold == 1 and (left := [key for key in absent if key not in stored]):
            raise Finding(STORES, STORES_SENTENCE, f"of the keys {list(keys)} it does not store {left}")
        for key, slot in zip(stored, slots, strict=True):
            self.law.engine_step("reserve", key, slot)

    @operation
    def load(self, request: int, count: int, job: int) -> Calls:
        """A request asks for its next ``count`` keys, and loads those that are found. That is a new job, whose copies
        begin later. Of a key that it has computed in part it loads the rest.
        """
        of = self._must_run(request)
        self._must_be_free(job)
        place, first = divmod(of.filled, self.parts)
        if count < 1 or any(known.request == request for known in self.jobs.values()):
            raise Misuse("the request asks for no key, or has a job")
        found = yield from self._found(request, of.keys[place : place + count])
        keys = list(of.keys[place : place + found])
        if not keys:
            return
        yield None
        for key in keys:
            self.law.caller_step("promise", key)
        slots = yield EngineCall("promise", partial(self.engine.promise, request, keys))
        if list(slots) != (own := [self.state.slot(key) for key in keys]):
            raise Finding(OWN_SLOT, OWN_SLOT_SENTENCE, f"for the keys {keys} it names {list(slots)}, not {own}")
        blocks = self._unused(len(keys) * self.parts - first)
        of.blocks = of.blocks[: of.filled] + blocks
        self.jobs[job] = HostJob(request, of, keys, slots, blocks, stores=False, first=first)

    # Jobs.

    @operation
    def start(self, job: int) -> Calls:
        """The copies of a job begin. The engine is not asked."""
        known = self._must_have(job)
        if known.begun:
            raise Misuse(f"the copies of job {job} have begun")
        known.begun = True
        for key, first, blocks in known.blocks_of(self.parts):
            number = self._new_copy()
            if known.stores:
                self.law.caller_step("store", number, key, Seq(blocks))
            else:
                self.law.caller_step("load", number, key, first, Seq(blocks))
            known.copies.append(number)
        yield from ()

    @operation
    def end(self, job: int, well: bool) -> Calls:
        """The copies of a job end, well or not. The engine does not know of it yet."""
        known = self._must_have(job)
        if not known.flies:
            raise Misuse(f"the copies of job {job} are not in flight")
        for number in known.copies:
            self.law.caller_step("end", number, well)
        known.ended, known.well = True, well
        copied(self.shadow, known, self.parts, well)
        if known.lost:
            del self.jobs[job]
        if well and not known.stores and self.requests.get(known.request) is known.of:
            known.of.filled = len(known.of.blocks)
            read_back(self.shadow, known.request, known.of, self.texts(known.of.keys))
        yield from ()

    @operation
    def report(self, job: int) -> Calls:
        """The engine hears that the copies of a job have ended. Where they never began, the job is given up: a store
        has failed then.
        """
        known = self._must_have(job)
        if known.flies or known.lost:
            raise Misuse(f"the copies of job {job} are in flight, or a reset has forgotten it")
        del self.jobs[job]
        name = "withdraw" if not known.stores else "publish" if known.well else "discard"
        for key in known.keys:
            self.law.caller_step(name, key, *([self.state.slot(key)] if name == "discard" else []))
        if known.stores:
            send = partial(self.engine.stored, known.request, list(known.keys), known.well)
            yield EngineCall("stored", send)
        else:
            yield EngineCall("loaded", partial(self.engine.loaded, known.request, list(known.keys)))

    @operation
    def reset(self) -> Calls:
        """The host shall forget every key, as after new weights. Copies in flight go on until they end."""
        self.law.caller_step("reset")
        for job, known in list(self.jobs.items()):
            known.lost = True
            if not known.flies:
                del self.jobs[job]
        yield EngineCall("reset", self.engine.reset)

    # What callers can send now.

    @property
    def state(self) -> HostTierState:
        """The law's tier."""
        state: HostTierState = self.law.state
        return state

    def _must_run(self, request: int) -> HostRequest:
        if request not in self.requests:
            raise Misuse(f"request {request} is not in use")
        return self.requests[request]

    def _must_be_free(self, job: int) -> None:
        if not 1 <= job <= JOBS or job in self.jobs:
            raise Misuse(f"there is no job {job} that is not in use")

    def _must_have(self, job: int) -> HostJob:
        if job not in self.jobs:
            raise Misuse(f"there is no job {job}", by_engine=1 <= job <= JOBS)
        return self.jobs[job]

    def _loads(self, request: int) -> bool:
        """The request waits for a load."""
        of = self.requests[request]
        return any(job.of is of and not job.stores for job in self.jobs.values())

    def _unused(self, count: int) -> list[int]:
        """So many device blocks that no request and no job has, the first ones."""
        used = {block for of in self.requests.values() for block in of.blocks}
        used |= {block for job in self.jobs.values() for block in job.blocks}
        return list(islice((b for b in self.state.flight.blocks.items() if b not in used), count))

    def _new_copy(self) -> int:
        st = self.state
        return next(int(n) for n in copies(st).items() if st.flight.kind(n) == NO_JOB)

    # Texts.

    def texts(self, keys: Iterable[int]) -> list[int]:
        """The law's number of the text of each part of each key."""
        return [self.state.tells(key, part) for key in keys for part in self.state.parts.items()]

    def text_name(self, text: int) -> str:
        """The text with a number, in words."""
        key, part = divmod(text, self.parts)
        return f"key {key}" if self.parts == 1 else f"part {part} of key {key}"

    # What the driver needs.

    def snapshot(self) -> HostTierSnapshot:
        """The keys, their slots and counts, and the free slots."""
        return self.engine.snapshot()

    def follow(self) -> None:
        """Nothing to do: each operation explains what its calls have changed."""

    def project(self) -> Any:
        """The law's tier, with keys, slots, promises and the number of free slots as the engine shows them."""
        return project_host(self.state, self.seen)

    def hidden(self, change: FieldDifference) -> bool:
        """Nothing is hidden from a caller."""
        del change
        return False

    def beyond_state(self) -> list[str]:
        """What is wrong with the free slots, and with what the manager counts."""
        return host_problems(self.state.slots, self.seen)

    def judge(self) -> None:
        """Nothing to add: the invariants say everything."""
