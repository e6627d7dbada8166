"""Which corners of the transitions the kept traces reach (``proofs.corners``): each granted call of the law on a kept
trace is looked at.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from proofs.corners import corner
from proofs.mutation.asked import FiniteCall
from proofs.registry import STEMS, hints_of
from slotproof.planted import kept_calls
from spec.logic import Step


def derived() -> str:
    """The text of ``proofs/corners.json``: for each stem and transition its corners, in order."""
    reached: dict[str, dict[str, set[str]]] = {stem: defaultdict(set) for stem in STEMS}

    def note(stem: str, call: FiniteCall, step: Step[Any]) -> None:
        transition = hints_of(stem).stem.transitions[call.transition]
        reached[stem][call.transition].add(corner(transition, call.arguments, step))

    kept_calls.watch(note)
    found = {stem: {name: sorted(corners) for name, corners in reached[stem].items()} for stem in STEMS}
    return json.dumps(found, indent=1, sort_keys=True) + "\n"
