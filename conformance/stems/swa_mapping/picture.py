"""Pictures of two pools, of the mapping between them, and of the rows that hold their pages."""

from __future__ import annotations

from conformance.stems.pools.picture import of_pools as panels

__all__ = ["panels"]
