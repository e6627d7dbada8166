"""Bugs that are planted into the classes of a real release: the run in which each occurs finds it, and finds nothing
in the release as it is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from driven import between, driven, some
from host_memory_edits import Edit

from conformance.driver.protocol import Json

# The law that a run of these steps finds broken, in the release as it is and with the edit.
SCRIPT = """
    import json, sys

    release, folder, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    sys.path.insert(1, folder)

    from contextlib import nullcontext

    from host_memory_edits import Edit, law_broken_by, made

    from conformance.engines import registry
    from conformance.engines.sglang.releases.release import _release

    def broken():
        _release.cache_clear()  # what was read of a class before the edit is forgotten
        make = registry.load("sglang", release=release).makers[given["stem"]]
        return law_broken_by(given["stem"], make, given["config"], given["steps"])

    said = []
    for edit in (None, given["edit"]):
        with nullcontext() if edit is None else made(Edit(*edit)):
            said.append(broken())
    print(json.dumps(said))
"""


def broken(release: str, edit: Edit, stem: str, config: Json, steps: list[Json]) -> list[Any]:
    """The laws that a run of these steps finds broken: in the release as it is, and with the edit. ``None``: no law."""
    given = json.dumps({"edit": edit, "stem": stem, "config": config, "steps": steps})
    return driven(release, SCRIPT, str(Path(__file__).parent), given)


@pytest.mark.engine
@pytest.mark.parametrize("release", some(between("0.5.20")))
def test_unmapped_slots_that_are_not_left_out_are_found(release: str) -> None:
    """At page sizes above 1 a release of which SWA slots are freed by segments takes slots without an SWA page in
    ``free`` and in ``free_swa``, and must leave them out of what its SWA pool gets back.
    """
    edit = Edit(
        "sglang.srt.mem_cache.allocator.swa",
        "SWATokenToKVPoolAllocator._release_swa",
        "swa_indices = swa_indices[swa_indices > 0]",
        "pass",
    )
    config: Json = {"page_size": 4, "size": 4, "size_swa": 4, "rows": 2, "need_sort": False}
    grows = {"op": "extend", "rows": [0], "more": [8]}
    slid = {"op": "slide", "row": 0, "to": 1}
    for again in ({"op": "slide", "row": 0, "to": 2}, {"op": "free_pages", "row": 0, "first": 0, "last": 2}):
        before, after = broken(release, edit, "swa_mapping", config, [grows, slid, again])
        assert before is None
        assert after is not None, again


WINDOW_OF_THREE: Json = {
    **{"page_size": 1, "size": 8, "size_swa": 8, "size_mamba": 2, "window": 3},
    **{"kind": "unified", "components": ["full", "swa"]},
}


def skipping(caller: str) -> list[Json]:
    """A lock skips a tombstone, which comes to life and is locked once more; then this caller gives the first back."""
    return [
        {"op": "insert", "tokens": [1, 2]},
        {"op": "insert", "tokens": [1, 2, 3, 4]},
        {"op": "evict", "swa": 1},
        {"op": "pin", "handle": 1, "tokens": [1, 2, 3, 4]},
        {"op": "insert", "tokens": [1, 2]},
        {"op": "acquire", "handle": 2, "tokens": [1, 2]},
        {"op": "release", "handle": 1, "caller": caller},
    ]


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize("release", some(between("0.5.17", "0.5.18")))
def test_a_session_that_forgets_which_nodes_its_lock_skips_is_found(release: str) -> None:
    """A session without the field gives the other lock back."""
    field = "    skip_lock_node_ids: dict = field(default_factory=dict)\n"
    edit = Edit("sglang.srt.session.streaming_session", "SessionSlot", field, "")
    before, after = broken(release, edit, "lock_ref", WINDOW_OF_THREE, skipping("session"))
    assert before is None
    assert after is not None


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize("release", some(between("0.5.15", "0.5.16")))
def test_a_lock_around_one_call_that_forgets_what_it_skips_is_found(release: str) -> None:
    """In these releases the tree skips tombstones, and neither a request nor a session keeps which: a copy to the host
    locks over tombstones, and gives back all that the lock says.
    """
    module = "sglang.srt.mem_cache.base_prefix_cache"
    edit = Edit(module, "IncLockRefResult.to_dec_params", "self.skip_lock_node_ids.items()", "{}.items()")
    before, after = broken(release, edit, "lock_ref", WINDOW_OF_THREE, skipping("temporary"))
    assert before is None
    assert after is not None


@pytest.mark.engine
@pytest.mark.parametrize("tree", ["swa_radix", "unified"])
@pytest.mark.parametrize("page", [1, 2, 4, 16])
@pytest.mark.parametrize("release", some(between("0.5.10", "0.5.13")))
def test_slots_of_drafts_that_are_not_given_back_are_found(release: str, page: int, tree: str) -> None:
    """A draft reaches over two pages. All of it but a token is not accepted, and then this token is not either. The run
    ends before the request does: what a slot of a draft maps to then is known (``draft_slot_keeps_mapping``).
    """
    slots = "batch.out_cache_loc[evict_mask]" if page == 1 else "to_free_slots"
    free = f"batch.token_to_kv_pool_allocator.free({slots})"
    edit = Edit("sglang.srt.speculative.ngram_info", "NgramVerifyInput._free_cache", free, "pass")
    config: Json = {
        **{"page_size": page, "size": 12, "size_swa": 12, "window": 2 * page, "need_sort": False},
        **{"rows": 2, "sessions": 1, "tree": tree},
    }
    steps: list[Json] = [
        {"op": "admit", "request": 0, "more": page},
        {"op": "decode", "requests": [0]},
        {"op": "reserve", "request": 0, "more": 2 * page + 1},
        {"op": "roll_back", "request": 0, "count": 2 * page},
        {"op": "roll_back", "request": 0, "count": 1},
        {"op": "decode", "requests": [0]},
    ]
    before, after = broken(release, edit, "session_trim", config, steps)
    assert before is None
    assert after is not None


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize("release", some(between("0.5.18")))
def test_a_salt_that_is_taken_for_an_extra_key_is_found(release: str) -> None:
    """Two requests have the same tokens. One has an ``extra_key``, the other a ``cache_salt`` of the same name: the KV
    cache of one is not that of the other.
    """
    module = "sglang.srt.mem_cache.radix_cache"
    merged = "self.extra_key, self.cache_salt = extra_key or cache_salt or None, None"
    edit = Edit(module, "RadixKey.__init__", "self.cache_salt = cache_salt or None", merged)
    config: Json = {
        **{"page_size": 1, "size": 12, "size_swa": 12, "window": 2, "need_sort": False},
        **{"rows": 2, "sessions": 1, "tree": "unified"},
    }
    steps: list[Json] = [
        {"op": "admit", "request": 0, "more": 4, "mark": 1},
        {"op": "finish", "request": 0},
        {"op": "admit", "request": 1, "more": 4, "mark": 2},
    ]
    before, after = broken(release, edit, "session_trim", config, steps)
    assert before is None
    assert after is not None
