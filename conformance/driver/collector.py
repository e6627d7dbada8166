"""How often the processes of Slotproof look for objects that nothing uses any more."""

from __future__ import annotations

import gc

NEW_OBJECTS = 100_000


def collect_rarely() -> None:
    """Lets Python look for unused cycles of objects after 100,000 new objects, where it looks after 700 by itself.

    A proof has millions of formulas, and a release millions of nodes of syntax trees. They stay until the end, and each
    look goes through them again: half of the time of ``slotproof prove`` and of ``slotproof compat`` went there.
    """
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
