"""Locks of a batch in one Triton launch, against plain torch."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from impl.lock_ref import LockHandle, LockTree

pytest.importorskip("triton")

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [
    {}, {"counting": True}, {"windowed": False}, {"stateful": True}, {"stateful": True, "counting": True},
])  # fmt: skip
def test_locks_in_one_launch_count_what_plain_torch_counts(kind: dict[str, Any], device: str) -> None:
    """Trees that grow, are cut, and get tombstones and states, under batches of locks with repeated nodes."""
    both = [LockTree(40, window=5, debug=True, device=device, backend=name, **kind) for name in ("torch", "triton")]
    held: list[list[LockHandle]] = [[], []]
    draws, plain = random.Random(3), both[0]
    for _ in range(120):
        there = plain.alive.nonzero()[:, 0].tolist()
        node, other = draws.choice([0, *there]), draws.choice([*there, 0])
        wanted = [draws.choice(there) for _ in range(draws.randint(0, 5))] if there else []
        chosen = draws.sample(range(len(held[0])), min(len(held[0]), draws.randint(0, 4)))
        action, more = (
            draws.choice(("leaf", "leaf", "cut", "bury", "revive", "lock", "lock", "unlock", "early")),
            draws.random(),
        )
        for tree, handles in zip(both, held, strict=True):
            some = [handles[at] for at in chosen]
            if action == "leaf" and len(there) < 30:
                tree.add_leaf(node, int(tree.stop[node]) + 1 + int(more * 4), swa=more > 0.2, mamba=more > 0.5)
            elif action == "cut" and other and int(tree.stop[other] - tree.start[other]) > 1 and len(there) < 40:
                tree.split(other, int(tree.start[other]) + 1)
            elif action == "bury" and other and tree.windowed and tree.swa[other] and not tree.swa_ref[other]:
                tree.evict_swa(other)
            elif action == "revive" and other and tree.windowed and not tree.swa[other]:
                tree.restore_swa(other)
            elif action == "lock" and wanted:
                handles.extend(tree.acquire(wanted, over_tombstones=True))
            elif action == "unlock":
                tree.release(some)
                handles[:] = [one for one in handles if one not in some]
            elif action == "early":
                tree.release_swa([one for one in some if one.holds_swa], with_state=more > 0.5)
        for name in ("ref", "weight", "protected"):
            assert torch.equal(getattr(both[0].counts, name), getattr(both[1].counts, name)), (action, name)
        records = [
            tree.held[[one.number for one in handles]].tolist() for tree, handles in zip(both, held, strict=True)
        ]
        assert records[0] == records[1]
    assert len(held[0]) > 5
