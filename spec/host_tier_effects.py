"""What the calls of ``spec.host_tier`` achieve, and what they leave alone. Sources: vLLM ``OffloadingManager`` and
``CPUOffloadingManager`` (``vllm/v1/kv_offload/base.py``, ``cpu/manager.py``), whose calls each sentence names.
"""

from __future__ import annotations

from spec import in_flight
from spec.host_tier_state import ABSENT, NO_KEY, NO_SLOT, READY, UNWRITTEN, WRITING, HostTierState
from spec.in_flight import NO_JOB, READS, WRITES
from spec.logic import Number, Seq, Truth, implies, ite, no


def key_stays(was: HostTierState, now: HostTierState, key: Number) -> Truth:
    """The key has the phase and the slot that it had."""
    return (was.phase(key) == now.phase(key)) & (was.slot(key) == now.slot(key))


def other_keys_stay(was: HostTierState, now: HostTierState, key: Number) -> Truth:
    """Every other key has the phase and the slot that it had."""
    return was.every_key.all(lambda k: (k == key) | key_stays(was, now, k))


def block_is_written(was: HostTierState, now: HostTierState, block: Number, what: Number) -> Truth:
    """A device block that is written holds what was written; every other block holds what it held."""
    return was.flight.blocks.has(block) & was.flight.blocks.all(
        lambda b: now.block_text(b) == ite(b == block, what, was.block_text(b))
    )


def key_is_seen(was: HostTierState, now: HostTierState, key: Number, found: Truth) -> Truth:
    """After a look-up that has found a key of the host the caller knows this key (vLLM ``lookup``), and no more than
    before.
    """
    others = was.every_key.all(lambda k: (k == key) | (was.seen(k) == now.seen(k)))
    return was.every_key.has(key) & (now.seen(key) == ite(found, 1, was.seen(key))) & others


def key_gets_a_slot(was: HostTierState, now: HostTierState, key: Number, slot: Number) -> Truth:
    """A key that gets a slot has this slot, and is not found (vLLM ``prepare_store``); other keys stay."""
    own = (now.slot(key) == slot) & (now.key(slot) == key) & (now.phase(key) == WRITING)
    return own & other_keys_stay(was, now, key)


def copy_begins(was: HostTierState, now: HostTierState, job: Number, key: Number, kind: int, blocks: Seq) -> Truth:
    """A copy of the key is in flight. It uses exactly the blocks, all different, and the key's slot; every other copy
    goes on.
    """
    different = blocks.distinct() & blocks.all(was.flight.blocks.has)
    of_key = (now.flight.row(job) == key) & (now.place(job) == was.slot(key)) & (now.lost(job) == 0)
    used = was.flight.blocks.all(lambda b: in_flight.uses(now.flight, job, b) == blocks.has(b))
    return (now.flight.kind(job) == kind) & different & of_key & used & others_go_on(was, now, job)


def others_go_on(was: HostTierState, now: HostTierState, job: Number) -> Truth:
    """Every other copy goes on, with its slot, and is lost only where it was."""

    def goes_on(j: Number) -> Truth:
        return (was.place(j) == now.place(j)) & (was.lost(j) == now.lost(j))

    others = was.flight.jobs.all(lambda j: (j == job) | goes_on(j))
    return in_flight.others_go_on(was.flight, now.flight, job) & others


def store_begins(was: HostTierState, now: HostTierState, job: Number, key: Number, blocks: Seq) -> Truth:
    """A store reads the blocks and writes the slot of the key; the block at each position is that of this part."""
    parts = was.parts.all(lambda o: now.source(job, o) == blocks.at(o))
    return copy_begins(was, now, job, key, READS, blocks) & parts


def load_begins(was: HostTierState, now: HostTierState, job: Number, key: Number, first: Number, blocks: Seq) -> Truth:
    """A load reads the slot of the key and writes the blocks; the first block gets the part ``first``, and so on."""
    parts = was.flight.blocks.all(lambda b: implies(blocks.has(b), now.part(job, b) == first + blocks.index(b)))
    return (blocks.length > 0) & copy_begins(was, now, job, key, WRITES, blocks) & parts


def a_copy_ends_once(was: HostTierState, now: HostTierState, job: Number) -> Truth:
    """The end of a copy comes once, while the copy is in flight. Then it uses no block and no slot; every other copy
    goes on.
    """
    once = was.flight.jobs.has(job) & (was.flight.kind(job) != NO_JOB) & (now.flight.kind(job) == NO_JOB)
    nothing = was.flight.blocks.all(lambda b: no(in_flight.uses(now.flight, job, b)))
    return once & nothing & others_go_on(was, now, job)


def a_store_brings_the_keys_text(was: HostTierState, now: HostTierState, job: Number, well: Truth) -> Truth:
    """After a store that ended well, its slot holds the text of the key for which it was begun, at each part. Every
    other slot holds what it held.
    """
    stores, slot = was.flight.kind(job) == READS, was.place(job)
    own = was.parts.all(lambda o: now.text(slot, o) == was.tells(was.flight.row(job), o))
    others = was.slots.all(
        lambda s: was.parts.all(lambda o: (stores & (s == slot)) | (now.text(s, o) == was.text(s, o)))
    )
    return implies(stores & well, own) & others


def a_load_brings_the_keys_text(was: HostTierState, now: HostTierState, job: Number, well: Truth) -> Truth:
    """After a load that ended well, each block that it wrote holds the text of the key for which the load was begun, at
    the block's part: what a request goes on from is its own.
    """

    def brought(b: Number, o: Number) -> Truth:
        mine = (was.flight.kind(job) == WRITES) & in_flight.uses(was.flight, job, b) & (was.part(job, b) == o)
        return implies(mine & well, now.block_text(b) == was.tells(was.flight.row(job), o))

    return was.flight.blocks.all(lambda b: was.parts.all(lambda o: brought(b, o)))


def only_a_load_writes_blocks(was: HostTierState, now: HostTierState, job: Number) -> Truth:
    """The end of a copy leaves each block as it is that the copy did not write."""

    def stays(b: Number) -> Truth:
        mine = (was.flight.kind(job) == WRITES) & in_flight.uses(was.flight, job, b)
        return mine | (now.block_text(b) == was.block_text(b))

    return was.flight.blocks.all(stays)


def a_failed_copy_leaves_no_text(was: HostTierState, now: HostTierState, job: Number, well: Truth) -> Truth:
    """What a copy that has failed was to write holds no text: nobody may publish the slot or read the blocks."""
    slot = was.parts.all(lambda o: now.text(was.place(job), o) == UNWRITTEN)

    def written(b: Number) -> Truth:
        mine = (was.flight.kind(job) == WRITES) & in_flight.uses(was.flight, job, b)
        return implies(mine, now.block_text(b) == UNWRITTEN)

    stores = was.flight.kind(job) == READS
    return well | (implies(stores, slot) & was.flight.blocks.all(written))


def key_is_found(was: HostTierState, now: HostTierState, key: Number) -> Truth:
    """A key whose copy ended well is found, in the slot that it has (vLLM ``complete_store``); other keys stay."""
    own = (now.phase(key) == READY) & (now.slot(key) == was.slot(key))
    return own & other_keys_stay(was, now, key)


def key_is_gone(was: HostTierState, now: HostTierState, key: Number, slot: Number) -> Truth:
    """A key that is given up or evicted is not on the host, and its slot is free; other keys stay."""
    own = (now.phase(key) == ABSENT) & (now.slot(key) == NO_SLOT) & (now.key(slot) == NO_KEY)
    return own & other_keys_stay(was, now, key)


def one_promise_more(was: HostTierState, now: HostTierState, key: Number) -> Truth:
    """A promise counts once, for its key alone, which is one of the host (vLLM ``prepare_load``)."""
    return was.every_key.has(key) & was.every_key.all(lambda k: now.refs(k) == was.refs(k) + ite(k == key, 1, 0))


def one_promise_less(was: HostTierState, now: HostTierState, key: Number) -> Truth:
    """A promise that ends counts no more, for its key alone, which is one of the host (vLLM ``complete_load``)."""
    return was.every_key.has(key) & was.every_key.all(lambda k: now.refs(k) == was.refs(k) - ite(k == key, 1, 0))


def everything_is_forgotten(was: HostTierState, now: HostTierState) -> Truth:
    """After a reset no key is on the host and nothing is promised (vLLM ``reset_cache``)."""
    return was.every_key.all(lambda k: (now.phase(k) == ABSENT) & (now.slot(k) == NO_SLOT) & (now.refs(k) == 0))


def copies_go_on(was: HostTierState, now: HostTierState) -> Truth:
    """No other call begins or ends a copy: an eviction, an abort or a reset does not stop it."""

    def goes_on(j: Number) -> Truth:
        return in_flight.a_job_goes_on(was.flight, now.flight, j) & (was.place(j) == now.place(j))

    return was.flight.jobs.all(goes_on)


def slots_keep_their_texts(was: HostTierState, now: HostTierState) -> Truth:
    """What a slot holds is changed by the end of a copy into it alone."""
    return was.slots.all(lambda s: was.parts.all(lambda o: was.text(s, o) == now.text(s, o)))


def blocks_keep_their_texts(was: HostTierState, now: HostTierState) -> Truth:
    """What a device block holds is changed by who writes it and by the end of a copy into it alone."""
    return was.flight.blocks.all(lambda b: was.block_text(b) == now.block_text(b))


def promises_stay(was: HostTierState, now: HostTierState) -> Truth:
    """No other call makes, uses up or withdraws a promise."""
    return was.every_key.all(lambda k: was.refs(k) == now.refs(k))


def keys_stay(was: HostTierState, now: HostTierState) -> Truth:
    """No other call brings a key to the host or takes it away."""
    return was.every_key.all(lambda k: key_stays(was, now, k))
