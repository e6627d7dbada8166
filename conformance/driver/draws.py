"""Drawn runs that depend on the seed alone, and not on which modules happen to be loaded.

Hypothesis draws some of its numbers from the constants that it finds in the source of every loaded module that is not
installed in site-packages: the modules of the engine that is checked, and in a checkout our own. So one seed would draw
other runs in another place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hypothesis.internal.conjecture import providers

LOOKS = "_get_local_constants"  # Hypothesis's function that looks through the loaded modules
KEPT = "CONSTANTS_CACHE"  # where it keeps what it found


@contextmanager
def by_seed_alone() -> Iterator[None]:
    """What is drawn in this block does not depend on the loaded modules. A Hypothesis that has no such function draws
    as it does.
    """
    if not (hasattr(providers, LOOKS) and hasattr(providers, KEPT)):
        yield
        return
    nothing = type(providers.GLOBAL_CONSTANTS)()
    with patch.object(providers, LOOKS, lambda: nothing), patch.object(providers, KEPT, {}):
        yield
