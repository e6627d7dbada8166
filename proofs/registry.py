"""The stems that can be proved, by name: each has a law in ``spec/`` and hints for the provers here, under one name."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from proofs.hints import Hints

HERE = Path(__file__).parent
# The order in which stems are listed, parts before what is made of them; stems that are not named here follow by name.
ORDER = (
    *("allocator", "swa_mapping", "lock_ref", "session_trim", "mamba_slots", "cache"),
    *("block_pool", "block_cache", "host_tier", "kv_events"),
)


def _place(stem: str) -> tuple[int, str]:
    """Where a stem stands in lists."""
    return (ORDER.index(stem) if stem in ORDER else len(ORDER)), stem


def _has_hints(file: Path) -> bool:
    return re.search(r"^HINTS\b", file.read_text(encoding="utf-8"), re.MULTILINE) is not None


_LAWS = {path.name for path in (HERE.parent / "spec").glob("*.py")}
STEMS = tuple(sorted((file.stem for file in HERE.glob("*.py") if file.name in _LAWS and _has_hints(file)), key=_place))


def hints_of(stem: str) -> Hints:
    """The hints of a stem; ``KeyError`` where there is no such stem."""
    if stem not in STEMS:
        raise KeyError(f"no stem {stem!r}; there are: {', '.join(STEMS)}")
    hints: Hints = import_module(f"{__package__}.{stem}").HINTS
    return hints
