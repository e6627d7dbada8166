"""What the stems of requests share: a scheduler and its clients, for ``session_trim`` and ``cache``."""
