"""Mamba states of a server that a release has built: track buffers, and copies in the pool of states."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from conformance.engines.sglang.releases.release import TrackBuffers


def track_buffers(rows: Any) -> TrackBuffers:
    """The track buffers of the requests on these rows."""
    if not getattr(rows, "enable_mamba_extra_buffer", False):
        return TrackBuffers(doubled=False)
    doubled = int(rows.mamba_ping_pong_track_buffer_size) == 2
    return TrackBuffers(True, doubled, bool(getattr(rows, "enable_mamba_extra_buffer_lazy", False)))


def watched_copies(pool: Any) -> list[tuple[int, int]]:
    """From now on the copies that the release makes in this pool of states are put on the list that is returned, each
    as the slots read and written.
    """
    copies: list[tuple[int, int]] = []
    real = pool.copy_from

    def copy_from(sources: Tensor, targets: Tensor) -> Any:
        copies.extend(zip(sources.view(-1).tolist(), targets.view(-1).tolist(), strict=True))
        return real(sources, targets)

    pool.copy_from = copy_from
    return copies
