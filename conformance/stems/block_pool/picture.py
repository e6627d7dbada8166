"""Pictures of blocks with many holders."""

from __future__ import annotations

from conformance.driver.diff import Names
from conformance.driver.protocol import Json
from conformance.stems.panels import item, listed, panel, uses_of
from spec.block_pool_state import NO_HASH, NULL, UNWRITTEN, BlockPoolState, holds, runs


def panels(st: BlockPoolState, names: Names, more: dict[int, Json] | None = None) -> list[Json]:
    """The blocks, the rows that hold them, and how many are free. ``more``: other facts of a row."""
    rows = (row for row in st.rows.items() if runs(st, row))
    return [
        panel("pages", "Blocks", (_block(st, block, names) for block in st.blocks.items())),
        panel("rows", "Rows", (_row(st, row, names, (more or {}).get(row, {})) for row in rows)),
        panel("counts", "Counts", [item("counts", "counts", {"available blocks": str(st.available)})]),
    ]


def _block(st: BlockPoolState, block: int, names: Names) -> Json:
    holders = [names.row(row) for row in st.rows.items() if runs(st, row) and holds(st, row, block)]
    facts = {"held by": listed(holders) if holders else "nobody", "holders counted": str(st.refs(block))}
    if st.content(block) != UNWRITTEN:
        facts["computed for"] = names.text(st.content(block))
    if st.hash(block) != NO_HASH:
        facts["the prefix cache finds it for"] = f"{names.text(st.hash(block))}, place {st.index(block)}"
    look = "free" if st.refs(block) == 0 else "held" if holders else "lost"
    wrong = ["held by"] if look == "lost" else []
    return item(f"block {block}", f"block {block}", facts, look, wrong=wrong, uses=uses_of(holders))


def _row(st: BlockPoolState, row: int, names: Names, more: Json) -> Json:
    places = [st.table(row, i) for i in range(st.length(row))]
    blocks = listed("null" if block == NULL else block for block in places)
    facts = {"group": str(st.group(row)), "blocks": blocks, "computed whole": f"{st.filled(row)} blocks"}
    return item(f"row {row}", names.row(row), facts | more)
