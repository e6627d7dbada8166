"""Pictures of the radix tree: its nodes with their locks and holders, the lock handles, and the sizes."""

from __future__ import annotations

from conformance.driver.diff import Names
from conformance.driver.protocol import Json
from conformance.stems.panels import item, panel
from spec.lock_ref_state import COUNTED, ROOT, SIZES, SKIPPED, LockRefState, begin, holds_full, holds_swa, lives, path

HOW = {SKIPPED: "skipped", COUNTED: "counted, holds nothing yet"}


def panels(st: LockRefState, names: Names, unit: str = "tokens") -> list[Json]:
    """The nodes, parents first, then those from which no way leads to the root; the handles; the sizes. ``unit``: what
    the tree counts.
    """
    hanging = _in_order(st, ROOT)
    lost = [n for n in st.nodes.items() if lives(st, n) and n not in hanging]
    nodes = [item("root", "the root", {})]
    nodes += [_node(st, n, names, unit, n in lost) for n in [*hanging, *lost]]
    handles = (h for h in st.handles.items() if st.active(h) == 1)
    parts = ("full", *(["swa"] * bool(st.windowed)), *(["mamba"] * bool(st.stateful)))
    shown = (size for size in SIZES if size.split("_")[0] in parts)
    sizes = {
        size.replace("swa", "SWA").replace("mamba", "state").replace("_", " "): str(getattr(st, size)) for size in shown
    }
    return [
        panel("tree", "Prefix tree", nodes),
        panel("handles", "Lock handles", (_handle(st, h, names) for h in handles)),
        panel("counts", "Sizes that the tree reports", [item("sizes", "sizes", sizes)]),
    ]


def _in_order(st: LockRefState, under: int) -> list[int]:
    alive = (n for n in st.nodes.items() if lives(st, n))
    below = sorted((n for n in alive if st.parent(n) == under), key=st.stop)
    return [m for n in below for m in (n, *_in_order(st, n))]


def _node(st: LockRefState, n: int, names: Names, unit: str, lost: bool) -> Json:
    first, last = begin(st, n), st.stop(n) - 1  # counted from 0, as everything in a text
    covers = f"{unit} {first} to {last} of its key" if first < last else f"{unit.removesuffix('s')} {last} of its key"
    facts = {"covers": covers, "full lock": str(st.full_ref(n))}
    if st.windowed:
        facts["SWA part"] = "there" if st.swa(n) else "gone (tombstone)"
        facts["SWA lock"] = str(st.swa_ref(n))
    if st.stateful:
        facts["state"] = "there" if st.mamba(n) else "none"
        facts["state lock"] = str(st.mamba_ref(n))
    holders = [_hold(st, h, n, names) for h in st.handles.items() if holds_full(st, h, n)]
    facts["locked by"] = ", ".join(holders) or "nobody"
    if lost:
        facts["place"] = f"not below the root: its parent is {names.node(st.parent(n))}"
    look = "lost" if lost else "tombstone" if st.windowed and not st.swa(n) else "node"
    return item(f"node {n}", names.node(n), facts, look, len(path(st, n)), ["place"] * lost)


def _hold(st: LockRefState, h: int, n: int, names: Names) -> str:
    """A handle, and which parts of the node it counts in the locks of."""
    parts = ["full", *(["SWA"] * bool(holds_swa(st, h, n)))]
    parts += ["state"] * (st.node(h) == n and st.state(h) != SKIPPED)
    return f"{names.handle(h)} ({', '.join(parts)})"


def _handle(st: LockRefState, h: int, names: Names) -> Json:
    facts = {"locks": f"{names.node(st.node(h))} and all above it"}
    if st.windowed:
        facts["SWA locks up to"] = names.node(st.top(h)) if st.top(h) != ROOT else "none"
    if st.stateful:
        facts["state lock"] = HOW.get(st.state(h), "held")
    return item(f"handle {h}", names.handle(h), facts)
