"""``docs/findings.json`` has one row a verdict, and from it a row for each release is made again."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from conformance.driver.protocol import Json
from slotproof.pages.kept_findings import FINDINGS, NOTHING, packed, stems_of_traces, unpacked

COLUMNS = [("ours", None), *(("sglang", f"0.5.{n}") for n in range(4)), ("vllm", "0.1")]
SHOWN: list[Json] = [
    {**NOTHING, "verdict": "conforms"},
    {**NOTHING, "step": 1, "detail": "it has no cache to drive"},
    NOTHING,
    {**NOTHING, "verdict": "violation", "step": 2, "law": "no_leak", "kind": "invariant", "detail": "page 1"},
    {**NOTHING, "verdict": "violation", "step": 2, "law": "no_leak", "kind": "invariant", "harm": {"a": 1}},
    {**NOTHING, "verdict": "latent", "step": 3, "law": "places", "kind": "invariant", "ran": {"c": 1}},
]


@given(st.lists(st.lists(st.sampled_from(SHOWN), min_size=len(COLUMNS), max_size=len(COLUMNS)), min_size=1, max_size=4))
def test_what_is_packed_is_unpacked_again(drawn: list[list[Json]]) -> None:
    names = [f"trace_{number}" for number in range(len(drawn))]
    stems = {name: ("cache", "allocator")[number % 2] for number, name in enumerate(names)}
    found = {
        name: [{"subject": s, "release": r, **shown} for (s, r), shown in zip(COLUMNS, rows, strict=True)]
        for name, rows in zip(names, drawn, strict=True)
    }
    assert unpacked(json.loads(json.dumps(packed(found, stems))), stems) == found


def test_the_file_is_as_it_would_be_packed() -> None:
    kept = json.loads(FINDINGS.read_text("utf-8"))
    stems = stems_of_traces()
    rows = unpacked(kept, stems)
    assert packed(rows, stems) == {key: kept[key] for key in ("subjects", "traces")}
    assert len(rows) * sum(map(len, kept["subjects"].values())) == sum(map(len, rows.values()))
