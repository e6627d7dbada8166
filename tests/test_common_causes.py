"""Beside a base, a known cause is repaired in both engines only where its repair mends both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from driven import NEWEST, have

from conformance.driver.trace import Trace
from conformance.search.common_causes import CommonCauses, common_causes
from conformance.search.connection import Served, Subject
from conformance.traces import cause_files

CAUSE, OTHER = "retracted_turn_is_saved", "finished_batch_counts_as_busy"
SHOWN = {name: cause_files.load(name).server for name in (CAUSE, OTHER)}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    have(NEWEST)
    with Served(Subject("sglang", NEWEST)) as server:
        server.ready()
        yield server


def mended(served: Served, shown: dict[str, str], *, without: tuple[str, ...] = (), base: str = "") -> list[str]:
    sent: list[str] = []

    def tick(name: str, _: Trace) -> None:
        sent.append(name)

    found = CommonCauses(shown, [served.path, base or served.path], None).mended(without, tick)
    assert {*sent} <= {*shown.values()}
    return found


@pytest.mark.engine
@pytest.mark.soak
def test_a_cause_is_repaired_in_both_where_its_repair_mends_both(served: Served) -> None:
    assert mended(served, SHOWN) == [CAUSE, OTHER]
    assert mended(served, SHOWN, without=(SHOWN[OTHER],)) == [CAUSE], "the subject no longer shows the other one"
    assert mended(served, {CAUSE: SHOWN[CAUSE], OTHER: cause_files.load("rejected_turn_keeps_session").server}) == [
        CAUSE
    ]
    assert mended(served, {OTHER: SHOWN[CAUSE]}) == []


@pytest.mark.soak
@pytest.mark.engine
def test_a_cause_that_one_of_both_cannot_be_repaired_of_is_left(served: Served) -> None:
    with Served(Subject("toy")) as other:
        other.ready()
        assert mended(served, SHOWN, base=other.path) == []


@pytest.mark.soak
@pytest.mark.engine
def test_both_sources_have_the_lines_of_a_common_cause(served: Served, tmp_path: Path) -> None:
    roots = [Path(root) for root in served.hello["roots"]]
    known = {SHOWN[CAUSE]}
    assert common_causes("sglang", known, [roots, roots], [], None).shown == {CAUSE: SHOWN[CAUSE]}
    assert common_causes("sglang", known, [roots, [tmp_path]], [], None).shown == {}
    assert common_causes("vllm", known, [roots, roots], [], None).shown == {}
    assert common_causes("sglang", {"no_such_trace"}, [roots, roots], [], None).shown == {}
