"""A tier of host memory behind the device: the state and the laws, for ``spec.host_tier``.

A *key* names a run of tokens that is copied as one: vLLM's ``OffloadKey``. The host has *slots* (vLLM's chunks), each
with room for the KV cache of one key; the device has *blocks*. A slot has as many ``parts`` as blocks go into it.
``tells(key, part)`` is the text of the key at this part, as a number; ``text(slot, part)`` is the text that the slot
was last written with there, and ``block_text(block)`` the one of a device block. ``UNWRITTEN`` stands for anything that
is no text, such as what a copy that failed leaves behind.

``phase(key)``: the key is not on the host (``ABSENT``), has a slot whose copy is not published (``WRITING``), or is
found (``READY``). ``refs(key)`` counts the *promises* that were made of a key and neither used up nor withdrawn: it is
the reference count of the engine.

A *copy* is a job of ``spec.in_flight``: a *store* reads device blocks and writes a slot, a *load* reads a slot and
writes device blocks. ``place(job)`` is its slot. ``source(job, part)`` is its block of this part, 0 where it has none,
and ``part(job, block)`` the part of its block. The row of the job is its key. A copy is *lost* where a reset has
forgotten its key.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec import in_flight
from spec.finite import Domain as Range
from spec.finite import Map as FiniteMap
from spec.in_flight import READS, WRITES, InFlightState, blocks_used, flies, flying, uses
from spec.logic import Domain, Map, Number, Set, Truth, but, constant, constant_map, implies, no, number, total, zeroed

ABSENT, WRITING, READY = 0, 1, 2  # phases of a key
NO_SLOT, NO_KEY, NO_BLOCK = 0, 0, 0
UNWRITTEN = 0  # the text of a slot or a block that holds no text


@dataclass(frozen=True)
class HostTierState:
    """Which key has which slot, what is promised, what is copied, and what slots and blocks hold.

    ``seen(key)``: 1 where the last look-up has found the key, and the key has not left the host since.
    ``loads(key)``: how many copies in flight load the key. ``key(slot)``: the key of the slot, ``NO_KEY`` for a free
    slot. ``available``: the number of free slots.
    """

    flight: InFlightState
    slots: Domain = constant("pages", shared="slots")
    every_key: Domain = constant("pages", shared="keys")
    parts: Domain = constant("naturals", shared="parts")
    tells: Map = constant_map(2)
    phase: Map = total(1)
    slot: Map = total(1)
    seen: Map = total(1)
    refs: Map = total(1)
    loads: Map = total(1)
    key: Map = total(1)
    text: Map = total(2)
    block_text: Map = total(1)
    place: Map = total(1)
    source: Map = total(2)
    part: Map = total(2)
    lost: Map = total(1)
    available: Number = number()


TWO = ("text", "source", "part")  # the maps with two keys
MAPS = ("phase", "slot", "seen", "refs", "loads", "key", "block_text", "place", "lost", *TWO)


def initial(keys: int, slots: int, blocks: int, parts: int, jobs: int, tells: FiniteMap | None = None) -> HostTierState:
    """A host tier with so many slots of so many parts, a device with so many blocks, and at most so many copies at a
    time (finite reading). ``tells``: without it, each key has a text of its own at each part.
    """
    told = FiniteMap(2)
    for k in range(1, keys + 1):
        for o in range(parts):
            told = told.put((k, o), parts * k + o)
    return HostTierState(
        in_flight.initial(jobs, blocks),
        slots=Range(1, slots),
        every_key=Range(1, keys),
        parts=Range(0, parts - 1),
        tells=told if tells is None else tells,
        **{name: FiniteMap(2 if name in TWO else 1) for name in MAPS},
        available=slots,
    )


def start(st: HostTierState) -> HostTierState:
    """Before the first call: the host has no key, nothing is copied, and nothing is written."""
    return but(zeroed(st, MAPS, ()), flight=in_flight.start(st.flight), available=st.slots.size)


def blocks_of(st: HostTierState) -> Domain:
    """The blocks of the device."""
    return st.flight.blocks


def keys_of(st: HostTierState) -> Domain:
    """The keys that the host can have."""
    return st.every_key


def copies(st: HostTierState) -> Domain:
    """The numbers that copies can have."""
    return st.flight.jobs


def is_store(st: HostTierState, job: Number) -> Truth:
    """The job is a copy in flight from the device to the host: it reads device blocks."""
    return copies(st).has(job) & (st.flight.kind(job) == READS)


def is_load(st: HostTierState, job: Number) -> Truth:
    """The job is a copy in flight from the host to the device: it writes device blocks."""
    return copies(st).has(job) & (st.flight.kind(job) == WRITES)


def stores(st: HostTierState) -> Set:
    """The copies in flight from the device to the host."""
    return copies(st).such(lambda j: is_store(st, j), lambda: [job for job, _ in st.flight.kind.items()])


def key_of(st: HostTierState, job: Number) -> Number:
    """The key for which the copy was begun."""
    return st.flight.row(job)


def is_loaded_by(st: HostTierState, key: Number, job: Number) -> Truth:
    """The copy in flight loads the key, which no reset has forgotten since."""
    return is_load(st, job) & (st.lost(job) == 0) & (key_of(st, job) == key)


def loaders(st: HostTierState, key: Number) -> Set:
    """The copies in flight that load the key, which no reset has forgotten since."""
    return copies(st).such(
        lambda j: is_loaded_by(st, key, j), lambda: [job for job, of in st.flight.row.items() if of == key]
    )


def holds_text(st: HostTierState, slot: Number, key: Number) -> Truth:
    """The slot holds the text of the key at each part."""
    return st.parts.all(lambda o: st.text(slot, o) == st.tells(key, o))


def is_untouched(st: HostTierState, slot: Number) -> Truth:
    """No copy in flight reads or writes the slot."""
    return copies(st).all(lambda j: no(flies(st.flight, j)) | (st.place(j) != slot))


# The laws.


def keys_and_slots(st: HostTierState) -> Truth:
    """A slot of the host is free or of one key, and a key on the host has one slot; it has none where it is absent."""

    def of_key(k: Number) -> Truth:
        known = (st.phase(k) >= ABSENT) & (st.phase(k) <= READY)
        there = st.slots.has(st.slot(k)) & (st.key(st.slot(k)) == k)
        return known & ((st.phase(k) == ABSENT) == (st.slot(k) == NO_SLOT)) & implies(st.slot(k) != NO_SLOT, there)

    def of_slot(s: Number) -> Truth:
        return implies(st.key(s) != NO_KEY, st.every_key.has(st.key(s)) & (st.slot(st.key(s)) == s))

    return st.every_key.all(of_key) & st.slots.all(of_slot)


def available_counts(st: HostTierState) -> Truth:
    """The number of free slots is the number of slots that are of no key."""
    return st.available == st.slots.count(lambda s: st.key(s) == NO_KEY)


def promised_is_there(st: HostTierState) -> Truth:
    """What was promised is on the host and found until the promise is used up or withdrawn: only a key that is found
    has promises.
    """
    return st.every_key.all(lambda k: (st.refs(k) >= 0) & implies(st.refs(k) > 0, st.phase(k) == READY))


def seen_is_there(st: HostTierState) -> Truth:
    """A key that a look-up has found, and that has not left the host since, can be read there."""
    return st.every_key.all(lambda k: implies(st.seen(k) == 1, st.phase(k) == READY))


def loads_are_counted(st: HostTierState, k: Number) -> Truth:
    """The loads of a key are the copies in flight that load it and that no reset has made lost."""
    return st.loads(k) == copies(st).count(lambda j: is_loaded_by(st, k, j))


def a_load_counts(st: HostTierState, k: Number) -> Truth:
    """A key that a copy in flight loads has a load, unless a reset has made the copy lost."""
    return (st.loads(k) >= 0) & loaders(st, k).all(lambda _: st.loads(k) > 0)


def a_counted_load_is_in_flight(st: HostTierState, k: Number) -> Truth:
    """A key that has a load is loaded by a copy in flight."""
    return implies(st.loads(k) > 0, copies(st).any(lambda j: is_loaded_by(st, k, j)))


def loads_are_promised(st: HostTierState) -> Truth:
    """A key is read by no more copies in flight than it has promises, so none of them loses what it reads."""
    return st.every_key.all(lambda k: st.loads(k) <= st.refs(k))


def found_holds_its_text(st: HostTierState) -> Truth:
    """A key that is found has a slot that holds the key's own text, at each part."""
    return st.every_key.all(lambda k: implies(st.phase(k) == READY, holds_text(st, st.slot(k), k)))


def a_copy_has_a_key_and_a_slot(st: HostTierState) -> Truth:
    """A copy in flight is a store or a load: it has a key for which it was begun, and one slot on the host."""

    def formed(j: Number) -> Truth:
        there = st.every_key.has(key_of(st, j)) & st.slots.has(st.place(j))
        return (is_store(st, j) | is_load(st, j)) & there

    return copies(st).all(lambda j: implies(flies(st.flight, j), formed(j)))


def a_copy_is_of_its_key(st: HostTierState) -> Truth:
    """The slot of a copy in flight is that of the copy's key, which waits for a store and is found during a load. The
    slot of a lost copy is of no key that is found, until the copy has ended.

    So source and target of a copy on the host are neither freed for another key nor handed out.
    """

    def own(j: Number) -> Truth:
        k = key_of(st, j)
        stored = implies(is_store(st, j), st.phase(k) == WRITING)
        loaded = implies(is_load(st, j), st.phase(k) == READY)
        known = implies(st.lost(j) == 0, (st.slot(k) == st.place(j)) & stored & loaded)
        next_key = st.key(st.place(j))
        return known & implies(st.lost(j) != 0, (next_key == NO_KEY) | (st.phase(next_key) == WRITING))

    return copies(st).all(lambda j: implies(flies(st.flight, j), own(j)))


def only_copies_use_blocks(st: HostTierState) -> Truth:
    """Only a copy in flight uses device blocks."""
    return in_flight.only_jobs_in_flight_use_blocks(st.flight)


def a_target_on_the_host_is_its_own(st: HostTierState) -> Truth:
    """A slot that a store in flight writes is read and written by no other copy."""

    def apart(j: Number, k: Number) -> Truth:
        return (j == k) | (st.place(j) != st.place(k))

    return stores(st).all(lambda j: flying(st.flight).all(lambda k: apart(j, k)))


def a_target_on_the_device_is_its_own(st: HostTierState) -> Truth:
    """A device block that a load in flight writes is read and written by no other copy."""
    return in_flight.what_a_transfer_writes_is_its_own(st.flight)


def parts_and_blocks(st: HostTierState) -> Truth:
    """Each device block of a copy in flight is that of one part, and a store has a block for each part."""

    def its_block(j: Number, b: Number) -> Truth:
        o = st.part(j, b)
        return st.parts.has(o) & (st.source(j, o) == b)

    def its_part(j: Number, o: Number) -> Truth:
        b = st.source(j, o)
        there = blocks_of(st).has(b) & uses(st.flight, j, b) & (st.part(j, b) == o)
        return implies(is_store(st, j), there)

    def fit(j: Number) -> Truth:
        return blocks_used(st.flight, j).all(lambda b: its_block(j, b)) & st.parts.all(lambda o: its_part(j, o))

    return flying(st.flight).all(fit)


def a_store_reads_the_keys_text(st: HostTierState) -> Truth:
    """Until a store has ended, each device block that it reads holds the text of the copy's key at the block's part."""

    def read(j: Number, o: Number) -> Truth:
        return implies(is_store(st, j), st.block_text(st.source(j, o)) == st.tells(key_of(st, j), o))

    return copies(st).all(lambda j: st.parts.all(lambda o: read(j, o)))


def a_load_reads_the_keys_text(st: HostTierState) -> Truth:
    """Until a load has ended, its slot holds the text of the copy's key, also where a reset has forgotten the key."""
    return copies(st).all(lambda j: implies(is_load(st, j), holds_text(st, st.place(j), key_of(st, j))))


# What follows from the laws.


def a_found_key_is_not_written(st: HostTierState) -> Truth:
    """No copy in flight writes the slot of a key that is found: it is found only after its copy has ended well."""

    def apart(k: Number, j: Number) -> Truth:
        return implies(st.phase(k) == READY, st.place(j) != st.slot(k))

    return stores(st).all(lambda j: st.every_key.all(lambda k: apart(k, j)))


def nothing_is_known(st: HostTierState) -> Truth:
    """No key is on the host."""
    return st.every_key.all(lambda k: st.phase(k) == ABSENT)


def every_slot_comes_back(st: HostTierState) -> Truth:
    """Where no key is on the host, every slot is free: no slot is lost."""
    return implies(nothing_is_known(st), st.available == st.slots.size)
