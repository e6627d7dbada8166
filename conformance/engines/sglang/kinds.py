"""The kinds of trees that SGLang's servers have, and their names in configurations. The release is not imported."""

from __future__ import annotations

from conformance.engines.sglang.launches import HOSTING, LAUNCHES
from conformance.stems.kinds import Kinds

FULL, WINDOWED, STATEFUL = ("full",), ("full", "swa"), ("full", "mamba")
ALL = ("full", "swa", "mamba")
# Each kind has these components. SWARadixCache and MambaRadixCache are older trees of one kind each. A
# PureSWARadixCache has one pool, for the windows of all layers; what is locked in it is the whole path, as a full part.
# Trees with a window come more often: their locks have most to go wrong.
LOCKED = (
    *(("unified", WINDOWED),) * 4,
    *(("unified", ALL),) * 4,
    *(("swa_radix", WINDOWED),) * 3,
    *(("unified", STATEFUL),) * 2,
    ("unified", FULL),
    ("radix", FULL),
    ("pure_swa", FULL),
    ("mamba_radix", STATEFUL),
)
# The tree of a server by what its model has, the newest first.
SERVED = (
    *(("unified", WINDOWED), ("swa_radix", WINDOWED)),
    *(("unified", STATEFUL), ("mamba_radix", STATEFUL)),
    *(("unified", FULL), ("radix", FULL)),
)
# The trees of ``mamba_slots``: kind and components.
WITH_STATES = {
    "mamba_radix": ("mamba_radix", STATEFUL),
    "unified": ("unified", STATEFUL),
    "unified_swa": ("unified", ALL),
}
KINDS = Kinds(LOCKED, SERVED, tuple(WITH_STATES), LAUNCHES, HOSTING)
