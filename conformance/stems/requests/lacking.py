"""What engines of requests may lack, and what they may not, in ``session_trim`` and ``cache``."""

from __future__ import annotations

NEVER_LACKING = frozenset({"evict", "cancel", "abort", "close"})
ABILITIES = frozenset({"abort_chunked", "close_waiting", "close_running", "share_prefix"})
