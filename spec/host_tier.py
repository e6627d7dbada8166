"""A tier of host memory: keys get slots, copies fill them, keys are found, promised, loaded and evicted.

``spec.host_tier_state`` has the state and the laws. The way of a key in the terms of vLLM's ``OffloadingManager``:
``prepare_store`` is a ``reserve``; the worker's copy to the host is a ``store`` with its ``end``; ``complete_store`` is
``publish``, or ``discard`` where the copy has failed; ``lookup`` is ``find``; ``prepare_load`` is a ``promise``, the
worker's copy to the device a ``load`` with its ``end``, and ``complete_load`` a ``withdraw``.
"""

from __future__ import annotations

from spec import host_tier_effects, host_tier_state, in_flight
from spec.host_tier_state import (
    ABSENT,
    NO_BLOCK,
    NO_KEY,
    NO_SLOT,
    READY,
    UNWRITTEN,
    WRITING,
    HostTierState,
    blocks_of,
    copies,
    holds_text,
    initial,
    is_load,
    is_store,
    is_untouched,
    key_of,
    keys_of,
    start,
)
from spec.in_flight import NO_JOB, READS, WRITES, flies, uses
from spec.logic import Number, Requirement, Seq, Stem, Step, Truth, but, ite, no, requires

stem = Stem("host_tier", state=HostTierState, start=start)


def in_phase(st: HostTierState, key: Number, phase: Number, sentence: str) -> Requirement:
    """The key is in this phase."""
    return requires(st.every_key.has(key) & (st.phase(key) == phase), sentence)


def is_new(st: HostTierState, job: Number) -> Requirement:
    """The number is free for a new copy."""
    return requires(
        copies(st).has(job) & (st.flight.kind(job) == NO_JOB),
        "no copy in flight has the number",
    )


def is_slot_of(st: HostTierState, key: Number, slot: Number) -> Requirement:
    """The caller names the slot of the key."""
    return requires(st.slots.has(slot) & (st.slot(key) == slot), "the slot is that of the key")


def forgotten(st: HostTierState, key: Number, slot: Number) -> HostTierState:
    """The state in which the key is not on the host, and its slot is free."""
    return but(
        st,
        phase=st.phase.put(key, ABSENT),
        slot=st.slot.put(key, NO_SLOT),
        seen=st.seen.put(key, 0),
        key=st.key.put(slot, NO_KEY),
        available=st.available + 1,
    )


# The transitions.


@stem.transition
def write(st: HostTierState, block: Number, what: Number) -> Step[HostTierState]:
    """A forward pass, or anything but a copy of this tier, writes a device block: it holds the text ``what`` then.

    No copy in flight reads or writes the block: the pass waits for the copy, or the block was not handed out before.
    """
    return Step(
        promises=(
            requires(blocks_of(st).has(block), "the block is one of the device"),
            requires(
                copies(st).all(lambda j: no(flies(st.flight, j) & uses(st.flight, j, block))),
                "no copy in flight reads or writes the block",
            ),
        ),
        then=but(st, block_text=st.block_text.put(block, what)),
    )


@stem.transition
def find(st: HostTierState, key: Number, found: Truth) -> Step[HostTierState]:
    """A look-up says whether the host has the key (vLLM ``lookup``, a hit). The engine may say no at any time; that
    takes nothing back. It says yes only of a key whose copy has ended well, and that was neither evicted nor forgotten
    since.
    """
    return Step(
        promises=(requires(st.every_key.has(key), "the key is one of the host"),),
        choice=(requires(no(found) | (st.phase(key) == READY), "a key is found only after its copy ended well"),),
        then=but(st, seen=st.seen.put(key, ite(found, 1, st.seen(key)))),
    )


@stem.transition
def reserve(st: HostTierState, key: Number, slot: Number) -> Step[HostTierState]:
    """A key that is not on the host gets a free slot, into which a copy will come. It is not found before that.

    The engine chooses the slot. A copy that a reset has made lost may still use it: then the copy of the key waits for
    the end of the lost one (vLLM ``OffloadingConnectorScheduler.reset_cache``).
    """
    return Step(
        promises=(in_phase(st, key, ABSENT, "the key is not on the host"),),
        choice=(requires(st.slots.has(slot) & (st.key(slot) == NO_KEY), "the slot is of no other key"),),
        fits=st.slots.any(lambda s: st.key(s) == NO_KEY),
        then=but(
            st,
            phase=st.phase.put(key, WRITING),
            slot=st.slot.put(key, slot),
            key=st.key.put(slot, key),
            available=st.available - 1,
        ),
    )


def begun(st: HostTierState, job: Number, key: Number, kind: int, first: Number, blocks: Seq) -> HostTierState:
    """The state in which a copy of the key is in flight. ``kind``: what it does with the device blocks, of which the
    first is that of the part ``first``.
    """
    the_blocks = blocks_of(st).such(blocks.has, blocks.items)
    return but(
        st,
        flight=in_flight.begun(st.flight, job, kind, key, the_blocks),
        place=st.place.put(job, st.slot(key)),
        lost=st.lost.put(job, 0),
        source=st.source.where(
            lambda j, _: j == job,
            lambda _, o: ite((first <= o) & (o < first + blocks.length), blocks.at(o - first), NO_BLOCK),
            lambda: [(job, o) for o in st.parts.items()],
        ),
        part=st.part.where(
            lambda j, b: (j == job) & blocks.has(b),
            lambda _, b: first + blocks.index(b),
            lambda: [(job, b) for b in blocks.items()],
        ),
    )


def are_blocks(st: HostTierState, blocks: Seq) -> tuple[Requirement, ...]:
    """The blocks are different blocks of the device."""
    return (
        requires(blocks.distinct(), "the blocks are all different"),
        requires(blocks.all(blocks_of(st).has), "the blocks are blocks of the device"),
    )


def nobody_writes(st: HostTierState, blocks: Seq) -> Truth:
    """No copy in flight writes one of the blocks."""
    return copies(st).all(lambda j: no(is_load(st, j)) | blocks.all(lambda b: no(uses(st.flight, j, b))))


def nobody_uses(st: HostTierState, blocks: Seq) -> Truth:
    """No copy in flight reads or writes one of the blocks."""
    return copies(st).all(lambda j: no(flies(st.flight, j)) | blocks.all(lambda b: no(uses(st.flight, j, b))))


@stem.transition
def store(st: HostTierState, job: Number, key: Number, blocks: Seq) -> Step[HostTierState]:
    """A copy from the device to the host begins: ``blocks`` go into the slot of the key, one for each part, in order.

    They hold the text of the key, and nobody writes them until the copy has ended.
    """
    return Step(
        promises=(
            is_new(st, job),
            in_phase(st, key, WRITING, "a slot is reserved for the key, and the key is not published"),
            requires(is_untouched(st, st.slot(key)), "no other copy in flight uses the slot"),
            *are_blocks(st, blocks),
            requires(blocks.length == st.parts.size, "there is a block for each part of the slot"),
            requires(
                blocks.all(lambda b: st.block_text(b) == st.tells(key, blocks.index(b))),
                "each block holds the text of the key at its part",
            ),
            requires(nobody_writes(st, blocks), "no copy in flight writes a block that is stored"),
        ),
        then=begun(st, job, key, READS, 0, blocks),
    )


@stem.transition
def load(st: HostTierState, job: Number, key: Number, first: Number, blocks: Seq) -> Step[HostTierState]:
    """A copy from the host to the device begins: the parts of the key from ``first`` on go into ``blocks``, in order.

    The key was promised, and no more copies read it than were promised. Nobody else uses the blocks until the copy has
    ended.
    """
    last = first + blocks.length - 1
    return Step(
        promises=(
            is_new(st, job),
            in_phase(st, key, READY, "the key is found"),
            requires(st.loads(key) < st.refs(key), "the key was promised to this load"),
            *are_blocks(st, blocks),
            requires(
                (blocks.length > 0) & st.parts.has(first) & st.parts.has(last),
                "the slot has the parts that are loaded",
            ),
            requires(nobody_uses(st, blocks), "no copy in flight reads or writes a block that is loaded"),
        ),
        then=but(
            begun(st, job, key, WRITES, first, blocks),
            loads=st.loads.put(key, st.loads(key) + 1),
        ),
    )


@stem.transition
def end(st: HostTierState, job: Number, well: Truth) -> Step[HostTierState]:
    """A copy has ended, well or not: it uses nothing any more. What it has written is a text only if it ended well.

    Ends come in any order, late, and also after an abort or a reset.
    """
    slot = st.place(job)
    stores, loads = is_store(st, job), is_load(st, job)
    return Step(
        promises=(requires(copies(st).has(job) & flies(st.flight, job), "the copy is in flight"),),
        then=but(
            st,
            flight=in_flight.ended(st.flight, job),
            loads=st.loads.put(key_of(st, job), st.loads(key_of(st, job)) - ite(loads & (st.lost(job) == 0), 1, 0)),
            text=st.text.where(
                lambda s, o: stores & (s == slot) & st.parts.has(o),
                lambda _, o: ite(well, st.block_text(st.source(job, o)), UNWRITTEN),
                lambda: [(slot, o) for o in st.parts.items()],
            ),
            block_text=st.block_text.where(
                lambda b: loads & blocks_of(st).has(b) & uses(st.flight, job, b),
                lambda b: ite(well, st.text(slot, st.part(job, b)), UNWRITTEN),
                lambda: list(blocks_of(st).items()),
            ),
        ),
    )


@stem.transition
def publish(st: HostTierState, key: Number) -> Step[HostTierState]:
    """The copy into the slot of a key has ended well: the key is found from now on."""
    return Step(
        promises=(
            in_phase(st, key, WRITING, "the key has a slot and is not published"),
            requires(is_untouched(st, st.slot(key)), "no copy into the slot is in flight any more"),
            requires(holds_text(st, st.slot(key), key), "the copy into the slot has ended well"),
        ),
        then=but(st, phase=st.phase.put(key, READY)),
    )


@stem.transition
def discard(st: HostTierState, key: Number, slot: Number) -> Step[HostTierState]:
    """A key that is not published is given up, since its copy failed or never began: nobody finds the key."""
    return Step(
        promises=(
            in_phase(st, key, WRITING, "the key has a slot and is not published"),
            is_slot_of(st, key, slot),
            requires(
                copies(st).all(lambda j: no(is_store(st, j)) | (st.place(j) != slot) | (st.lost(j) != 0)),
                "no copy of the key is in flight any more",
            ),
        ),
        then=forgotten(st, key, slot),
    )


@stem.transition
def promise(st: HostTierState, key: Number) -> Step[HostTierState]:
    """A key that a look-up has found is promised to a load: it stays on the host until the promise is withdrawn."""
    return Step(
        promises=(
            requires(
                st.every_key.has(key) & (st.seen(key) == 1),
                "a look-up has found the key, which has not left the host since",
            ),
        ),
        then=but(st, refs=st.refs.put(key, st.refs(key) + 1)),
    )


@stem.transition
def withdraw(st: HostTierState, key: Number) -> Step[HostTierState]:
    """A promise ends, since its load has ended or will not come. A promise whose load is in flight stays."""
    return Step(
        promises=(
            requires(
                st.every_key.has(key) & (st.loads(key) < st.refs(key)),
                "the key has a promise whose load is not in flight",
            ),
        ),
        then=but(st, refs=st.refs.put(key, st.refs(key) - 1)),
    )


@stem.transition
def evict(st: HostTierState, key: Number, slot: Number) -> Step[HostTierState]:
    """A key that is found and that nobody was promised leaves the host; its slot is free."""
    return Step(
        promises=(
            in_phase(st, key, READY, "the key is found"),
            is_slot_of(st, key, slot),
            requires(st.refs(key) == 0, "nobody was promised the key"),
        ),
        then=forgotten(st, key, slot),
    )


@stem.transition
def reset(st: HostTierState) -> Step[HostTierState]:
    """The host forgets every key and every promise, as after new weights. Copies in flight go on until their own end,
    and keep their slots from others until then.
    """
    return Step(
        then=but(
            st,
            phase=st.phase.all_to(ABSENT),
            slot=st.slot.all_to(NO_SLOT),
            seen=st.seen.all_to(0),
            refs=st.refs.all_to(0),
            loads=st.loads.all_to(0),
            key=st.key.all_to(NO_KEY),
            lost=st.lost.all_to(1),
            available=st.slots.size,
        ),
    )


# The laws.

stem.invariant()(host_tier_state.keys_and_slots)
stem.invariant()(host_tier_state.available_counts)
stem.invariant()(host_tier_state.promised_is_there)
stem.invariant()(host_tier_state.seen_is_there)
stem.each(keys_of, counts=True)(host_tier_state.loads_are_counted)
stem.each(keys_of, uses=("loads_are_counted",))(host_tier_state.a_counted_load_is_in_flight)
stem.each(keys_of, uses=("loads_are_counted",))(host_tier_state.a_load_counts)
stem.invariant()(host_tier_state.loads_are_promised)
stem.invariant()(host_tier_state.found_holds_its_text)
stem.invariant()(host_tier_state.only_copies_use_blocks)
stem.invariant()(host_tier_state.a_copy_has_a_key_and_a_slot)
stem.invariant()(host_tier_state.a_copy_is_of_its_key)
stem.invariant()(host_tier_state.a_target_on_the_host_is_its_own)
stem.invariant()(host_tier_state.a_target_on_the_device_is_its_own)
stem.invariant()(host_tier_state.parts_and_blocks)
stem.invariant()(host_tier_state.a_store_reads_the_keys_text)
stem.invariant()(host_tier_state.a_load_reads_the_keys_text)
stem.theorem(about=())(host_tier_state.a_found_key_is_not_written)
stem.theorem(about=())(host_tier_state.every_slot_comes_back)

# What calls do.

stem.change(only=("write",))(host_tier_effects.block_is_written)
stem.change(only=("find",))(host_tier_effects.key_is_seen)
stem.change(only=("reserve",))(host_tier_effects.key_gets_a_slot)
stem.change(only=("store",))(host_tier_effects.store_begins)
stem.change(only=("load",))(host_tier_effects.load_begins)
stem.change(only=("end",))(host_tier_effects.a_copy_ends_once)
stem.change(only=("end",))(host_tier_effects.a_store_brings_the_keys_text)
stem.change(only=("end",))(host_tier_effects.a_load_brings_the_keys_text)
stem.change(only=("end",))(host_tier_effects.only_a_load_writes_blocks)
stem.change(only=("end",))(host_tier_effects.a_failed_copy_leaves_no_text)
stem.change(only=("publish",))(host_tier_effects.key_is_found)
stem.change(only=("discard", "evict"))(host_tier_effects.key_is_gone)
stem.change(only=("promise",))(host_tier_effects.one_promise_more)
stem.change(only=("withdraw",))(host_tier_effects.one_promise_less)
stem.change(only=("reset",))(host_tier_effects.everything_is_forgotten)
stem.change(besides=("store", "load", "end"))(host_tier_effects.copies_go_on)
stem.change(besides=("end",))(host_tier_effects.slots_keep_their_texts)
stem.change(besides=("write", "end"))(host_tier_effects.blocks_keep_their_texts)
stem.change(besides=("promise", "withdraw", "reset"))(host_tier_effects.promises_stay)
stem.change(besides=("reserve", "publish", "discard", "evict", "reset"))(host_tier_effects.keys_stay)

__all__ = ["HostTierState", "initial", "stem"]
