"""Scenes of host memory: copies that fail or are forgotten, keys that are promised twice, and slots that are wanted."""

from __future__ import annotations

from conformance.search.scenes.scene import Scenes
from spec.host_tier_state import ABSENT, READY, HostTierState, copies, is_load, is_store, key_of
from spec.in_flight import flies
from spec.logic import Truth

scenes = Scenes("host_tier")


def in_flight(st: HostTierState) -> list[int]:
    """The copies in flight."""
    return [j for j in copies(st).items() if flies(st.flight, j)]


@scenes.at("reset")
def reset_under_a_store(was: HostTierState, _: HostTierState) -> Truth:
    """The host forgets everything while a copy to it is in flight."""
    return any(is_store(was, j) for j in in_flight(was))


@scenes.at("reset")
def reset_under_a_load(was: HostTierState, _: HostTierState) -> Truth:
    """The host forgets everything while a copy from it is in flight."""
    return any(is_load(was, j) for j in in_flight(was))


@scenes.at("reset")
def reset_with_promises(was: HostTierState, _: HostTierState) -> Truth:
    """The host forgets everything while a key is promised and not loaded."""
    return any(was.refs(k) > was.loads(k) for k in was.every_key.items())


@scenes.at("reserve")
def slot_of_a_lost_copy(was: HostTierState, _: HostTierState, slot: int) -> Truth:
    """A key gets a slot that a copy still uses which a reset has made lost."""
    return any(was.place(j) == slot and was.lost(j) != 0 for j in in_flight(was))


@scenes.at("reserve")
def last_slot(was: HostTierState, _: HostTierState) -> Truth:
    """A key gets the last free slot."""
    return was.available == 1


@scenes.at("end")
def load_fails(was: HostTierState, _: HostTierState, job: int, well: bool) -> Truth:
    """A copy from the host fails."""
    return not well and bool(is_load(was, job))


@scenes.at("end")
def store_fails(was: HostTierState, _: HostTierState, job: int, well: bool) -> Truth:
    """A copy to the host fails."""
    return not well and bool(is_store(was, job))


@scenes.at("end")
def lost_copy_ends(was: HostTierState, _: HostTierState, job: int) -> Truth:
    """A copy ends that a reset has made lost, and its key is on the host again."""
    return was.lost(job) != 0 and was.phase(key_of(was, job)) != ABSENT


@scenes.at("load")
def loaded_twice(was: HostTierState, _: HostTierState, key: int) -> Truth:
    """A key is loaded while another copy of it is in flight."""
    return any(key_of(was, j) == key for j in in_flight(was))


@scenes.at("load")
def loaded_in_part(_: HostTierState, __: HostTierState, first: int) -> Truth:
    """The last parts of a key are loaded alone."""
    return first > 0


@scenes.at("evict")
def evicted_beside_a_promise(was: HostTierState, _: HostTierState, key: int) -> Truth:
    """A key is evicted while another one is promised."""
    return any(was.refs(k) > 0 for k in was.every_key.items() if k != key)


@scenes.at("evict")
def evicted_after_a_look_up(was: HostTierState, _: HostTierState, key: int) -> Truth:
    """A key is evicted that a look-up has found and that was not promised."""
    return was.seen(key) == 1


@scenes.at("withdraw")
def withdrawn_without_a_load(was: HostTierState, _: HostTierState, key: int) -> Truth:
    """A promise is withdrawn that no copy has used, and the key is on the host."""
    return was.loads(key) == 0 and was.phase(key) == READY


@scenes.at("discard")
def given_up_beside_a_copy(was: HostTierState, _: HostTierState, slot: int) -> Truth:
    """A key is given up while a copy is in flight into another slot."""
    return any(was.place(j) != slot for j in in_flight(was))
