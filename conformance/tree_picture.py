"""A radix tree as a picture in words: a line a node, indented, with what it has and who holds it; and what changed."""

from __future__ import annotations

from conformance.machine import Json
from spec.tree import ROOT, Tree, begin, lives, path

WORDS = {"full": "full", "swa": "SWA", "mamba": "state"}


def tree_frame(st: Tree, unit: str = "tokens") -> Json:
    """The nodes of a state, parents first; ``unit`` is what the tree counts."""
    return {"pools": [], "lines": [], "words": [_line(st, n, unit) for n in _in_order(st, ROOT)] or ["the root alone"]}


def tree_changes(old: Tree, new: Tree, unit: str = "tokens") -> list[str]:
    """What can be seen to differ between two observed trees."""
    nodes = sorted({*_alive(old), *_alive(new)})
    return [line for n in nodes for line in _changed(old, new, n, unit)] + _sizes(old, new)


def _alive(st: Tree) -> list[int]:
    return [n for n in st.nodes.items() if lives(st, n)]


def _in_order(st: Tree, under: int) -> list[int]:
    below = sorted((n for n in _alive(st) if st.parent(n) == under), key=st.stop)
    return [m for n in below for m in (n, *_in_order(st, n))]


def _line(st: Tree, n: int, unit: str) -> str:
    return "  " * (len(path(st, n)) - 1) + f"{_name(st, n, unit)}: {', '.join(_parts(st, n))}"


def _name(st: Tree, n: int, unit: str) -> str:
    return f"node {n} ({unit} {begin(st, n)} to {st.stop(n)})"


def _parts(st: Tree, n: int) -> list[str]:
    found = [f"full lock {st.full_ref(n)}"]
    if st.windowed:
        found.append(f"SWA lock {st.swa_ref(n)}" if st.swa(n) else f"tombstone (SWA lock {st.swa_ref(n)})")
    if st.stateful:
        found.append(f"state lock {st.mamba_ref(n)}" if st.mamba(n) else "no state")
    return found


def _changed(old: Tree, new: Tree, n: int, unit: str) -> list[str]:
    was, now, name = n in _alive(old), n in _alive(new), _name(new, n, unit)
    if was and not now:
        return [f"{_name(old, n, unit)} left the tree"]
    if now and not was:
        return [f"{name} is new: {', '.join(_parts(new, n))}"]
    known = _name(old, n, unit)
    found = [] if known == name else [f"{known} has {unit} {begin(new, n)} to {new.stop(n)}"]
    parts = [f"{a} → {b}" for a, b in zip(_parts(old, n), _parts(new, n), strict=True) if a != b]
    found += [f"{name}: {', '.join(parts)}"] if parts else []
    return found + ([f"{name} has other slots"] if old.source(n) != new.source(n) else [])


def _sizes(old: Tree, new: Tree) -> list[str]:
    names = [(part, which) for part in WORDS for which in ("evictable", "protected")]
    pairs = [(p, w, getattr(old, f"{p}_{w}"), getattr(new, f"{p}_{w}")) for p, w in names]
    return [f"{WORDS[p]} {w} {a} → {b}" for p, w, a, b in pairs if a != b]
