"""Our session cache as an engine shows its states, beside its tree."""

from __future__ import annotations

from test_impl_cache import text

from conformance.driver.protocol import Json
from conformance.engines.ours.cache import cache


def test_the_engine_shows_its_states() -> None:
    config: Json = {"page_size": 2, "size": 12, "size_swa": 12, "rows": 3, "window": 2, "need_sort": False}
    config |= {"components": ["full", "swa", "mamba"], "size_mamba": 6, "doubled": False}
    ours = cache(config)
    assert ("track" in ours.lacks, "boundary" in ours.lacks) == (False, True)
    assert ours.admit(1, 0, text(5), 9).granted
    ours.track(1)
    ours.cache(1, 7)
    assert ours.admit(2, 5, text(6), 9).prefix == 4
    seen = ours.cache_snapshot()
    shown, tree = seen.states, seen.tree
    assert shown is not None
    assert (len(shown.free), list(shown.nodes), list(shown.rows)) == (1, [(0, 1, 2, 3)], [1, 2])
    assert all(shown.requests[n].slots == shown.rows[n] for n in (1, 2))
    assert tree.nodes[1].parts["mamba"].slots == list(shown.nodes.values())
    assert (tree.nodes[1].parts["mamba"].lock, tree.protected["mamba"]) == (2, 1)
    assert all(hold.state for hold in seen.holds.values())
    ours.finish(2, 0)
    saved = ours.cache_snapshot().states
    assert saved is not None
    assert saved.sessions.keys() == {5}
    ours.close(5)
    ours.finish(1, 1)
    ours.evict(99, 0)
    left = ours.cache_snapshot().states
    assert left is not None
    assert (sorted(left.free), left.nodes) == ([1, 2, 3, 4, 5, 6], {})
