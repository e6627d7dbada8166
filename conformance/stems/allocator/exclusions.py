"""What drawn runs of ``allocator`` avoid, so that they find other bugs than those that are known."""

from __future__ import annotations

from enum import StrEnum


class AllocatorExclusion(StrEnum):
    """What runs of ``allocator`` and ``swa_mapping`` avoid."""

    NESTED_GROUP = "allocator.nested_group"  # a free group within a free group
    STRAY_END = "allocator.stray_end"  # the end of a free group where none is open
    OVERWRITE = "allocator.overwrite"  # a caller that overwrites the table rows whose slots it has freed
    RESTORE = "allocator.restore"  # backups, and restoring them
    SHORT_DECODE = "allocator.short_decode"  # a decode for which there is no room
    SHORT_EXTEND = "allocator.short_extend"  # a prefill for which there is no room
    OVERRUN = "allocator.overrun"  # slots beyond what was committed when a row ends or is cut


EXCLUSIONS = AllocatorExclusion
