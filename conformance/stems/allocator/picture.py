"""Pictures of one pool and of the rows that hold its pages."""

from __future__ import annotations

from conformance.stems.pools.picture import of_pools as panels

__all__ = ["panels"]
