"""The old name of ``conformance.telling.pasted``."""

from __future__ import annotations

from conformance.telling.pasted import assert_holds

__all__ = ["assert_holds"]
