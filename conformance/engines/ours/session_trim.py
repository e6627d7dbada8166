"""Our session cache as an engine of ``session_trim``: the engine of ``cache``, of which this stem reads less."""

from __future__ import annotations

from conformance.engines.ours.cache import cache as session_trim

__all__ = ["session_trim"]
