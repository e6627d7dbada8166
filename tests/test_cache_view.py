"""Our session cache as a subject shows its states, beside its tree."""

from __future__ import annotations

from test_impl_cache import text

from conformance.machine import Json
from conformance.subjects import cache_subjects


def test_the_subject_shows_its_states() -> None:
    config: Json = {"page_size": 2, "size": 12, "size_swa": 12, "rows": 3, "window": 2, "need_sort": False}
    config |= {"components": ["full", "swa", "mamba"], "size_mamba": 6, "doubled": False}
    ours = cache_subjects.cache(config)
    assert (ours.offers("track"), ours.offers("boundary")) == (True, False)
    assert ours.admit(1, 0, text(5), 9).granted
    ours.track(1)
    ours.cache(1, 7)
    assert ours.admit(2, 5, text(6), 9).prefix == 4
    shown, tree = ours.states(), ours.nodes()
    assert (len(shown.free), list(shown.nodes), list(shown.rows)) == (1, [(0, 1, 2, 3)], [1, 2])
    assert all(shown.requests[n].slots == shown.rows[n] for n in (1, 2))
    assert tree.nodes[1].parts["mamba"].slots == list(shown.nodes.values())
    assert (tree.nodes[1].parts["mamba"].lock, tree.protected["mamba"], tree.free["mamba"]) == (2, 1, shown.free)
    assert all(hold.state for hold in ours.holds().values())
    ours.finish(2, 0)
    assert ours.states().sessions.keys() == {5}
    ours.close(5)
    ours.finish(1, 1)
    ours.evict(99, 0)
    assert (sorted(ours.states().free), ours.states().nodes) == ([1, 2, 3, 4, 5, 6], {})
