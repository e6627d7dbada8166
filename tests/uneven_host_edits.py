"""Edits of SGLang's Python core that show where host memory has room for the KV cache of full attention and none for a
window or a state, and a harmless one. Written down before their first run.

``python tests/uneven_host_edits.py RELEASE NAME ...`` prints for each edit and seed, as JSON, the law that drawn runs
of ``host_server`` find broken, and after how many seconds.
"""

from __future__ import annotations

import sys

from drawn_edits import report
from hicache_edits import CORE, SEEDS, in_python
from host_memory_edits import Edit

from conformance.engines.sglang.kinds import KINDS

COMPONENTS = "sglang.srt.mem_cache.unified_cache.components"
BUGS = {
    # A node that cannot be copied is dropped, and what is below it on the host stays there for ever.
    "keeps_what_is_below": Edit(
        CORE, "UnifiedTreeCore.drop_subtree_no_host", "for desc in reversed(descendants):", "for desc in ():"
    ),
    # A state that is evicted without a copy is listed as one that the host has.
    "listed_without_a_copy": Edit(
        f"{COMPONENTS}.mamba",
        "MambaComponent.evict_component",
        "target is EvictLayer.DEVICE\n        and cd.value is None\n        and cd.host_value is not None",
        "target is EvictLayer.DEVICE\n        or cd.value is None\n        or cd.host_value is not None",
    ),
    # The lock on the host copy of a window is never given back.
    "window_stays_locked": Edit(
        f"{COMPONENTS}.swa", "SWAComponent.release_component_lock", "comp.host_lock_ref = ref - 1", "pass"
    ),
}
HARMLESS = {
    # What cannot be copied stays on the device.
    "drops_nothing": Edit(
        CORE,
        "UnifiedTreeCore.drop_subtree_no_host",
        "if node.load_back_pending_id is not None or any(",
        "if True or any(",
    ),
}


if __name__ == "__main__":
    the_release, *names = sys.argv[1:]
    every = {**BUGS, **HARMLESS}
    chosen = {name: every[name] for name in names or every}
    report("host_server", the_release, chosen, KINDS._replace(hosting=in_python(KINDS.hosting)), SEEDS)
