"""The provers' view of the lock handles."""

from __future__ import annotations

from proofs.hints import COMMON, Hints
from spec import lock_ref as law

SIZES = {"nodes": 3, "handles": 2, "window": 2}

HINTS = Hints(
    stem=law.stem,
    over={},
    sizes=SIZES,
    small=lambda: (law.initial(3, 2, 2, True, True),),
    moves={},
    places={
        "handle": "handles",
        "node": "nodes",
        "child": "nodes",
        "new": "nodes",
        "leaf": "nodes",
    },
    assumptions=COMMON,
)
