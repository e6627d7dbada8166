"""The old name of ``conformance.stems.kv_events.published``, whose ``differs`` a test of an engine's events calls."""

from __future__ import annotations

from conformance.stems.kv_events.published import differs

__all__ = ["differs"]
