"""What the provers need for a tier of host memory: a small world, calls to try, mutants and proof hints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from typing import Any

from proofs.answers import Pick
from proofs.hints import COMMON, Hints, Mutant, altered, idlers, unasked, unchosen
from spec import host_tier as law
from spec import host_tier_drain
from spec.finite import Seq
from spec.host_tier_state import ABSENT, NO_KEY, READY, UNWRITTEN, WRITING, HostTierState, copies
from spec.in_flight import NO_JOB, WRITES, flies, uses
from spec.logic import Number, Step, Truth, but, ite, no

SIZES = {"keys": 3, "slots": 2, "blocks": 2, "parts": 1, "jobs": 2}


def small() -> tuple[HostTierState, ...]:
    """Three keys, two slots of one part, two blocks, and two copies at a time."""
    return (law.initial(keys=3, slots=2, blocks=2, parts=1, jobs=2),)


def _keys(st: HostTierState, *phases: int) -> list[int]:
    return [k for k in st.every_key.items() if st.phase(k) in phases]


def _new(st: HostTierState) -> list[int]:
    """The first number that no copy in flight has."""
    return [j for j in st.flight.jobs.items() if st.flight.kind(j) == NO_JOB][:1]


def _flying(st: HostTierState) -> list[int]:
    return [j for j in st.flight.jobs.items() if flies(st.flight, j)]


def _texts(st: HostTierState) -> list[int]:
    return sorted({st.tells(k, o) for k in st.every_key.items() for o in st.parts.items()})


def _rows(st: HostTierState, count: int) -> Iterator[Seq]:
    """So many different blocks, in each order."""
    yield from map(Seq, permutations(st.flight.blocks.items(), count))


def _stores(st: HostTierState, count: int, *phases: int) -> Iterator[tuple[int, int, Seq]]:
    """A store of each key in one of these phases, from so many blocks."""
    for job in _new(st):
        yield from ((job, key, blocks) for key in _keys(st, *phases) for blocks in _rows(st, count))


def _load(st: HostTierState) -> Iterator[tuple[int, int, int, Seq]]:
    for job in _new(st):
        for key in _keys(st, READY):
            for first in st.parts.items():
                for count in range(1, st.parts.size - first + 1):
                    yield from ((job, key, first, blocks) for blocks in _rows(st, count))


def _each(*phases: int) -> Callable[[HostTierState], Iterator[tuple[int]]]:
    return lambda st: ((k,) for k in _keys(st, *phases))


MOVES = {
    "write": lambda st: ((b, what) for b in st.flight.blocks.items() for what in _texts(st)),
    "find": lambda st: ((k, st.phase(k) == READY) for k in st.every_key.items()),
    "reserve": lambda st: ((k, s) for k in _keys(st, ABSENT) for s in st.slots.items()),
    "store": lambda st: _stores(st, st.parts.size, WRITING),
    "load": _load,
    "end": lambda st: ((j, well) for j in _flying(st) for well in (True, False)),
    "publish": _each(WRITING),
    "discard": lambda st: ((k, st.slot(k)) for k in _keys(st, WRITING)),
    "promise": _each(READY),
    "withdraw": _each(READY),
    "evict": lambda st: ((k, st.slot(k)) for k in _keys(st, READY)),
    "reset": lambda _: [()],
}


# Mutants: what each transition would do without one line of the law. The bug that each stands for is named.


def writes_under_a_copy(st: HostTierState, block: Number, what: Number) -> Step[HostTierState]:
    """A block is handed out again and written while a copy still reads it (vLLM issue 45704, a missing wait)."""
    return unasked(law.write(st, block, what), "no copy in flight reads or writes the block")


def reserves_a_taken_slot(st: HostTierState, key: Number, slot: Number) -> Step[HostTierState]:
    """A slot is handed out that is another key's."""
    return unchosen(law.reserve(st, key, slot), "the slot is of no other key")


def reserves_uncounted(st: HostTierState, key: Number, slot: Number) -> Step[HostTierState]:
    """A slot is handed out and still counts as free."""
    return altered(law.reserve(st, key, slot), available=st.available)


def reserves_as_found(st: HostTierState, key: Number, slot: Number) -> Step[HostTierState]:
    """A key is found as soon as it has a slot, before its copy (vLLM pull request 37152, LMCache pull request 4068)."""
    step = law.reserve(st, key, slot)
    return altered(step, phase=step.then.phase.put(key, READY))


def stores_twice(st: HostTierState, job: Number, key: Number, blocks: Seq) -> Step[HostTierState]:
    """Two copies write one slot at a time."""
    return unasked(law.store(st, job, key, blocks), "no other copy in flight uses the slot")


def stores_another_text(st: HostTierState, job: Number, key: Number, blocks: Seq) -> Step[HostTierState]:
    """Keys and blocks differ in their order (vLLM issue 52170)."""
    return unasked(law.store(st, job, key, blocks), "each block holds the text of the key at its part")


def stores_a_part(st: HostTierState, job: Number, key: Number, blocks: Seq) -> Step[HostTierState]:
    """A part of the slot is not stored, such as the window of a node that has lost it (SGLang pull request 29204)."""
    return unasked(law.store(st, job, key, blocks), "there is a block for each part of the slot")


def stores_what_is_loaded(st: HostTierState, job: Number, key: Number, blocks: Seq) -> Step[HostTierState]:
    """A block is stored while a load still writes it."""
    return unasked(law.store(st, job, key, blocks), "no copy in flight writes a block that is stored")


def stores_into_a_found_key(st: HostTierState, job: Number, key: Number, blocks: Seq) -> Step[HostTierState]:
    """A key that is found is stored again, over what is read."""
    return unasked(law.store(st, job, key, blocks), "a slot is reserved for the key, and the key is not published")


def loads_unpromised(st: HostTierState, job: Number, key: Number, first: Number, blocks: Seq) -> Step[HostTierState]:
    """A load begins though nothing keeps its key on the host (SGLang pull request 26728, a missing host lock)."""
    return unasked(law.load(st, job, key, first, blocks), "the key was promised to this load")


def loads_into_what_is_used(
    st: HostTierState, job: Number, key: Number, first: Number, blocks: Seq
) -> Step[HostTierState]:
    """A load writes blocks that another copy reads or writes."""
    wrong = "no copy in flight reads or writes a block that is loaded"
    return unasked(law.load(st, job, key, first, blocks), wrong)


def loads_too_far(st: HostTierState, job: Number, key: Number, first: Number, blocks: Seq) -> Step[HostTierState]:
    """More is loaded than the slot has (vLLM issue 43884)."""
    return unasked(law.load(st, job, key, first, blocks), "the slot has the parts that are loaded")


def loads_shifted(st: HostTierState, job: Number, key: Number, first: Number, blocks: Seq) -> Step[HostTierState]:
    """A load that begins inside a slot reads from the beginning of the slot (SGLang pull request 25088)."""
    step = law.load(st, job, key, first, blocks)
    return but(step, then=but(law.begun(st, job, key, WRITES, 0, blocks), loads=step.then.loads))


def loads_from_elsewhere(
    st: HostTierState, job: Number, key: Number, first: Number, blocks: Seq
) -> Step[HostTierState]:
    """A load reads the slot that another copy of this number had before, or no slot where no copy had it."""
    return altered(law.load(st, job, key, first, blocks), place=st.place)


def loads_uncounted(st: HostTierState, job: Number, key: Number, first: Number, blocks: Seq) -> Step[HostTierState]:
    """A load is not counted, so that its promise may be withdrawn while it reads."""
    return altered(law.load(st, job, key, first, blocks), loads=st.loads)


def ends_and_still_uses(st: HostTierState, job: Number, well: Truth) -> Step[HostTierState]:
    """A copy that has ended still counts as a user of its blocks."""
    return altered(law.end(st, job, well), flight=but(st.flight, kind=st.flight.kind.put(job, NO_JOB)))


def ends_all(st: HostTierState, job: Number, well: Truth) -> Step[HostTierState]:
    """When one copy has ended, all count as ended."""
    return altered(law.end(st, job, well), flight=but(st.flight, kind=st.flight.kind.all_to(NO_JOB)))


def loads_badly(st: HostTierState, job: Number, well: Truth) -> Step[HostTierState]:
    """A load has ended, and its blocks hold what they held before."""
    return altered(law.end(st, job, well), block_text=st.block_text)


def ends_too_many_loads(st: HostTierState, job: Number, well: Truth) -> Step[HostTierState]:
    """The end of one load counts as the end of all, and of one more."""
    return altered(law.end(st, job, well), loads=st.loads.put(st.flight.row(job), -1))


def ends_no_load(st: HostTierState, job: Number, well: Truth) -> Step[HostTierState]:
    """The end of a load is not counted: the promise of it can never be withdrawn (LMCache pull request 3884)."""
    return altered(law.end(st, job, well), loads=st.loads)


def wipes_the_device(st: HostTierState, job: Number, well: Truth) -> Step[HostTierState]:
    """The end of a copy wipes blocks of others."""
    return altered(law.end(st, job, well), block_text=st.block_text.all_to(UNWRITTEN))


def fails_unnoticed(st: HostTierState, job: Number, well: Truth) -> Step[HostTierState]:
    """A copy that fails leaves what it should have brought: nobody can tell that it has failed."""
    del well
    return law.end(st, job, True)


def stores_badly(st: HostTierState, job: Number, well: Truth) -> Step[HostTierState]:
    """A store that has failed leaves the text that it should have brought."""
    return altered(law.end(st, job, well), text=st.text)


def wipes_when_loaded(st: HostTierState, job: Number, well: Truth) -> Step[HostTierState]:
    """The slot of a copy that has ended is wiped, also that of a load."""
    step = law.end(st, job, well)
    slot = st.place(job)
    wiped = step.then.text.where(
        lambda s, o: (s == slot) & st.parts.has(o) & (st.flight.kind(job) == WRITES),
        UNWRITTEN,
        lambda: [(slot, o) for o in st.parts.items()],
    )
    return altered(step, text=wiped)


def publishes_what_failed(st: HostTierState, key: Number) -> Step[HostTierState]:
    """A copy that failed is published (SGLang pull request 27108, LMCache pull request 5032)."""
    return unasked(law.publish(st, key), "the copy into the slot has ended well")


def publishes_too_early(st: HostTierState, key: Number) -> Step[HostTierState]:
    """A key is published whose first copy has ended well, and a second copy still writes its slot."""
    return unasked(law.publish(st, key), "no copy into the slot is in flight any more")


def discards_under_a_copy(st: HostTierState, key: Number, slot: Number) -> Step[HostTierState]:
    """An abort gives a slot back that a copy still writes (SGLang pull request 31668)."""
    return unasked(law.discard(st, key, slot), "no copy of the key is in flight any more")


def discards_half(st: HostTierState, key: Number, slot: Number) -> Step[HostTierState]:
    """A key that is given up keeps its slot (LMCache pull request 4068, a reservation that leaks)."""
    step = law.discard(st, key, slot)
    return altered(step, slot=st.slot)


def discards_uncounted(st: HostTierState, key: Number, slot: Number) -> Step[HostTierState]:
    """The slot of a key that is given up does not count as free."""
    return altered(law.discard(st, key, slot), available=st.available)


def discards_for_good(st: HostTierState, key: Number, slot: Number) -> Step[HostTierState]:
    """The slot of a key that is given up is lost for every other key."""
    return altered(law.discard(st, key, slot), available=st.available, key=st.key)


def promises_what_is_written(st: HostTierState, key: Number) -> Step[HostTierState]:
    """A key is promised to a load by what a look-up said before the key left the host (SGLang pull request 26728)."""
    return unasked(law.promise(st, key), "a look-up has found the key, which has not left the host since")


def promises_all(st: HostTierState, key: Number) -> Step[HostTierState]:
    """A promise of one key counts for others, too."""
    return altered(
        law.promise(st, key), refs=st.refs.where(lambda _: True, lambda k: st.refs(k) + 1, st.every_key.items)
    )


def withdraws_under_a_load(st: HostTierState, key: Number) -> Step[HostTierState]:
    """A promise is withdrawn twice, so that its load goes on without it (LMCache pull requests 2954 and 3004)."""
    return unasked(law.withdraw(st, key), "the key has a promise whose load is not in flight")


def withdraws_nothing_left(st: HostTierState, key: Number) -> Step[HostTierState]:
    """A promise is withdrawn that nobody made: the count is negative (SGLang pull request 27666)."""
    return unasked(law.withdraw(st, key), "the key has a promise whose load is not in flight")


def evicts_what_was_promised(st: HostTierState, key: Number, slot: Number) -> Step[HostTierState]:
    """A key is evicted that a load was promised (LMCache pull request 3130)."""
    return unasked(law.evict(st, key, slot), "nobody was promised the key")


def withdraws_the_key(st: HostTierState, key: Number) -> Step[HostTierState]:
    """A key is not found any more after its last promise, and has its slot for ever."""
    last = st.refs(key) == 1
    phase, seen = ite(last, WRITING, st.phase(key)), ite(last, 0, st.seen(key))
    return altered(law.withdraw(st, key), phase=st.phase.put(key, phase), seen=st.seen.put(key, seen))


def publishes_and_wipes_slots(st: HostTierState, key: Number) -> Step[HostTierState]:
    """When a key is published, the slots of keys that wait for it are cleared."""

    def waits(s: Number) -> Truth:
        return (st.key(s) != NO_KEY) & (st.key(s) != key) & (st.phase(st.key(s)) == WRITING)

    wiped = st.text.where(
        lambda s, _: waits(s), UNWRITTEN, lambda: [(s, o) for s in st.slots.items() for o in st.parts.items()]
    )
    return altered(law.publish(st, key), text=wiped)


def publishes_and_wipes_blocks(st: HostTierState, key: Number) -> Step[HostTierState]:
    """When a key is published, blocks of the device that no copy uses are cleared."""

    def is_used(b: Number) -> Truth:
        return copies(st).any(lambda j: flies(st.flight, j) & uses(st.flight, j, b))

    wiped = st.block_text.where(lambda b: no(is_used(b)), UNWRITTEN, st.flight.blocks.items)
    return altered(law.publish(st, key), block_text=wiped)


def evicts_and_is_seen(st: HostTierState, key: Number, slot: Number) -> Step[HostTierState]:
    """A key leaves the host, and what a look-up said of it still counts."""
    return altered(law.evict(st, key, slot), seen=st.seen)


def evicts_and_keeps_the_promise(st: HostTierState, key: Number, slot: Number) -> Step[HostTierState]:
    """A key is evicted, and the promises of it are forgotten with it."""
    step = unasked(law.evict(st, key, slot), "nobody was promised the key")
    return altered(step, refs=st.refs.put(key, 0))


def evicts_what_is_written(st: HostTierState, key: Number, slot: Number) -> Step[HostTierState]:
    """A key is evicted while its copy is under way (SGLang pull request 28468)."""
    return unasked(law.evict(st, key, slot), "the key is found")


def resets_the_copies(st: HostTierState) -> Step[HostTierState]:
    """A reset forgets what is in flight: nobody waits for the ends of the copies."""
    step = law.reset(st)
    return altered(step, flight=but(st.flight, kind=st.flight.kind.all_to(NO_JOB), uses=st.flight.uses.all_to(0)))


def resets_some(st: HostTierState) -> Step[HostTierState]:
    """A reset forgets the keys, and the copies still count as copies of them."""
    return altered(law.reset(st), lost=st.lost)


def resets_without_the_slots(st: HostTierState) -> Step[HostTierState]:
    """A reset forgets the keys, and their slots stay taken."""
    return altered(law.reset(st), key=st.key)


def resets_uncounted(st: HostTierState) -> Step[HostTierState]:
    """A reset forgets the keys, and does not count their slots as free."""
    return altered(law.reset(st), available=st.available)


def finds_what_is_written(st: HostTierState, key: Number, found: Truth) -> Step[HostTierState]:
    """A look-up finds a key whose copy has not ended (vLLM pull request 37152)."""
    return unchosen(law.find(st, key, found), "a key is found only after its copy ended well")


# Calls that break a promise or a choice: they show what a mutant does that no longer asks for it.


def tried(transition: str, calls: Callable[[HostTierState], Iterator[tuple[Any, ...]]], **more: Any) -> dict[str, Any]:
    """Where a mutant is searched for: these calls of its transition, and all else as for the right one."""
    return {"moves": {**MOVES, transition: calls}, **more}


def _load_too_far(st: HostTierState) -> Iterator[tuple[int, int, int, Seq]]:
    """A load of each key into one block more than its slot has parts."""
    for job in _new(st):
        yield from ((job, key, 0, blocks) for key in _keys(st, READY) for blocks in _rows(st, st.parts.size + 1))


def _load_by_any_number(st: HostTierState) -> Iterator[tuple[int, int, int, Seq]]:
    """Each load, by each number that no copy in flight has, also by one that no copy had before."""
    free = [j for j in st.flight.jobs.items() if st.flight.kind(j) == NO_JOB]
    yield from ((j, *rest) for _, *rest in _load(st) for j in free)


def _two_parts() -> tuple[HostTierState, ...]:
    return (law.initial(keys=1, slots=1, blocks=3, parts=2, jobs=2),)


def _all_found() -> tuple[HostTierState, ...]:
    """A slot for each key, so that all keys can be found together."""
    return (law.initial(keys=2, slots=2, blocks=2, parts=1, jobs=2),)


FOUND = "write reserve store end publish"  # the calls after which a key is found
PROMISED = f"{FOUND} find promise"
COPIED_AGAIN = {"routes": {"publish": "write reserve store end store"}}
LATE = {"routes": {"publish": "write reserve store end write reserve store end"}}  # two keys wait
INTO_WRITTEN = {"routes": {"store": f"{PROMISED} write reserve load"}}  # the text of another key is in the block
PROMISED_TWICE = f"{PROMISED} promise"
LOADED = {"routes": {"end": f"{PROMISED} load"}}
LOADED_WELL = tried("end", lambda st: ((j, True) for j in _flying(st)), **LOADED)
LOST_LOADS = {"routes": {"end": f"{PROMISED_TWICE} load load reset"}}  # of a key that a reset has forgotten
TWICE = {"routes": {"load": f"{PROMISED_TWICE} load"}}
WHEN_PROMISED = {"routes": {"evict": PROMISED}}
WHEN_GONE = tried("promise", _each(ABSENT), routes={"promise": f"{FOUND} find evict"})
ANY_EVICT = tried("evict", lambda st: ((k, st.slot(k)) for k in _keys(st, WRITING, READY)))
ANY_FIND = tried("find", lambda st: ((k, True) for k in st.every_key.items()))
PARTS = {"small": _two_parts, "sizes": {"keys": 1, "slots": 1, "blocks": 3, "parts": 2, "jobs": 2}}
ALL_FOUND = {"small": _all_found, "sizes": {"keys": 2, "slots": 2, "blocks": 2, "parts": 1, "jobs": 2}}
ONE_BLOCK = tried("store", lambda st: _stores(st, 1, WRITING), **PARTS, routes={"store": "write reserve"})
FOUND_KEY = tried("store", lambda st: _stores(st, st.parts.size, WRITING, READY), routes={"store": FOUND})
TOO_MANY = tried("load", _load_too_far, routes={"load": PROMISED})
ANY_NUMBER = tried("load", _load_by_any_number, routes={"load": PROMISED})

MUTANTS = (
    *idlers(
        law.stem,
        write="block_is_written",
        find="key_is_seen",
        reserve="key_gets_a_slot",
        store="store_begins",
        load="load_begins",
        end="a_copy_ends_once",
        publish="key_is_found",
        discard="key_is_gone",
        promise="one_promise_more",
        withdraw="one_promise_less",
        evict="key_is_gone",
        reset="everything_is_forgotten",
    ),
    Mutant("finds_what_is_written", "find", "seen_is_there", finds_what_is_written, ANY_FIND),
    Mutant("evicts_and_is_seen", "evict", "seen_is_there", evicts_and_is_seen),
    Mutant("loads_uncounted", "load", "loads_are_counted", loads_uncounted),
    Mutant("ends_too_many_loads", "end", "a_load_counts", ends_too_many_loads),
    Mutant("ends_no_load", "end", "a_counted_load_is_in_flight", ends_no_load, LOADED),
    Mutant("fails_unnoticed", "end", "a_failed_copy_leaves_no_text", fails_unnoticed),
    Mutant("wipes_the_device", "end", "only_a_load_writes_blocks", wipes_the_device),
    Mutant("publishes_and_wipes_slots", "publish", "slots_keep_their_texts", publishes_and_wipes_slots, LATE),
    Mutant("publishes_and_wipes_blocks", "publish", "blocks_keep_their_texts", publishes_and_wipes_blocks),
    Mutant("withdraws_the_key", "withdraw", "keys_stay", withdraws_the_key),
    Mutant("writes_under_a_copy", "write", "a_store_reads_the_keys_text", writes_under_a_copy),
    Mutant("reserves_a_taken_slot", "reserve", "keys_and_slots", reserves_a_taken_slot),
    Mutant("publishes_too_early", "publish", "a_copy_is_of_its_key", publishes_too_early, COPIED_AGAIN),
    Mutant("reserves_uncounted", "reserve", "available_counts", reserves_uncounted),
    Mutant("reserves_as_found", "reserve", "found_holds_its_text", reserves_as_found),
    Mutant("stores_twice", "store", "a_target_on_the_host_is_its_own", stores_twice),
    Mutant("stores_another_text", "store", "a_store_reads_the_keys_text", stores_another_text),
    Mutant("stores_a_part", "store", "parts_and_blocks", stores_a_part, ONE_BLOCK),
    Mutant("stores_what_is_loaded", "store", "a_target_on_the_device_is_its_own", stores_what_is_loaded, INTO_WRITTEN),
    Mutant("stores_into_a_found_key", "store", "a_found_key_is_not_written", stores_into_a_found_key, FOUND_KEY),
    Mutant("loads_unpromised", "load", "loads_are_promised", loads_unpromised),
    Mutant("loads_into_what_is_used", "load", "a_target_on_the_device_is_its_own", loads_into_what_is_used, TWICE),
    Mutant("loads_too_far", "load", "parts_and_blocks", loads_too_far, TOO_MANY),
    Mutant("loads_shifted", "load", "load_begins", loads_shifted, PARTS),
    Mutant("loads_from_no_slot", "load", "a_copy_has_a_key_and_a_slot", loads_from_elsewhere, ANY_NUMBER),
    Mutant("ends_and_still_uses", "end", "only_copies_use_blocks", ends_and_still_uses),
    Mutant("ends_all", "end", "only_copies_use_blocks", ends_all),
    Mutant("stores_badly", "end", "a_store_brings_the_keys_text", stores_badly),
    Mutant("loads_badly", "end", "a_load_brings_the_keys_text", loads_badly, LOADED_WELL),
    Mutant("wipes_when_loaded", "end", "found_holds_its_text", wipes_when_loaded, LOADED),
    Mutant("wipes_under_another_load", "end", "a_load_reads_the_keys_text", wipes_when_loaded, LOST_LOADS),
    Mutant("publishes_what_failed", "publish", "found_holds_its_text", publishes_what_failed),
    Mutant("discards_under_a_copy", "discard", "a_copy_is_of_its_key", discards_under_a_copy),
    Mutant("discards_half", "discard", "keys_and_slots", discards_half),
    Mutant("discards_uncounted", "discard", "available_counts", discards_uncounted),
    Mutant("discards_for_good", "discard", "every_slot_comes_back", discards_for_good),
    Mutant("promises_what_is_written", "promise", "promised_is_there", promises_what_is_written, WHEN_GONE),
    Mutant("promises_all", "promise", "one_promise_more", promises_all, ALL_FOUND),
    Mutant("withdraws_under_a_load", "withdraw", "loads_are_promised", withdraws_under_a_load),
    Mutant("withdraws_nothing_left", "withdraw", "promised_is_there", withdraws_nothing_left),
    Mutant("evicts_what_was_promised", "evict", "promised_is_there", evicts_what_was_promised, WHEN_PROMISED),
    Mutant("evicts_and_keeps_the_promise", "evict", "promises_stay", evicts_and_keeps_the_promise, WHEN_PROMISED),
    Mutant("evicts_what_is_written", "evict", "a_copy_is_of_its_key", evicts_what_is_written, ANY_EVICT),
    Mutant("resets_the_copies", "reset", "copies_go_on", resets_the_copies),
    Mutant("resets_some", "reset", "a_copy_is_of_its_key", resets_some),
    Mutant("resets_without_the_slots", "reset", "keys_and_slots", resets_without_the_slots),
    Mutant("resets_uncounted", "reset", "available_counts", resets_uncounted),
)


def _free_slot(pick: Pick, st: HostTierState, _: Mapping[str, Any]) -> dict[str, Any]:
    return {"slot": pick.one(st.slots, lambda s: st.key(s) == NO_KEY)}


HINTS = Hints(
    stem=law.stem,
    over={"blocks": lambda st: st.flight.blocks},
    sizes=SIZES,
    small=small,
    moves=MOVES,
    places={"key": "keys", "job": "jobs", "slot": "slots", "block": "blocks"},
    refusable=frozenset({"reserve"}),
    routes={"load": PROMISED, "withdraw": PROMISED, "evict": FOUND, "promise": f"{FOUND} find"},
    answers={"find": lambda _, st, given: {"found": st.phase(given["key"]) == READY}, "reserve": _free_slot},
    relevant_laws={
        "end a_load_brings_the_keys_text": "a_load_reads_the_keys_text a_copy_has_a_key_and_a_slot parts_and_blocks",
        "load parts_and_blocks": "parts_and_blocks only_copies_use_blocks",
        "every_slot_comes_back": "available_counts keys_and_slots",
    },
    drain=host_tier_drain.DRAIN,
    mutants=MUTANTS,
    assumptions=COMMON,
)
