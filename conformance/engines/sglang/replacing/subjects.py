"""One object of each of our classes that stand in for a class of a release, to look at its members."""

from __future__ import annotations

from typing import Any

import torch

from impl.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from impl.states import MambaSlotAllocator
from impl.swa_mapping import SWATokenToKVPoolAllocator

PAGE = 2


def stand_ins() -> dict[str, Any]:
    """By the name that the class has in a release too."""
    common = (torch.float16, "cpu", None, False)
    made = (
        TokenToKVPoolAllocator(PAGE, *common),
        PagedTokenToKVPoolAllocator(PAGE, PAGE, *common),
        SWATokenToKVPoolAllocator(PAGE, PAGE, PAGE, *common),
        MambaSlotAllocator(1),
    )
    return {type(one).__name__: one for one in made}
