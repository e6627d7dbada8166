"""What the stems of pools share: a caller with rows of slots, for ``allocator`` and ``swa_mapping``."""
