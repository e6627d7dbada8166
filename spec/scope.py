"""What the theorems about the whole cache leave out: transitions of parts that no transition of ``cache`` calls.

Each of them keeps the laws of its own stem, as the proofs of this stem show. A state to which one of them leads is no
state of ``cache``: nothing is proved there of requests and of the tree.
"""

from __future__ import annotations

WHOLE = "``cache`` has no transition that takes back what running requests were granted"

OUTSIDE = (
    (("swa_mapping", "alloc"), "rows of ``cache`` grow to a length in tokens: ``alloc_extend`` for whole pages"),
    (("swa_mapping", "alloc_decode"), "rows of ``cache`` grow to a length in tokens: ``alloc_extend`` for one token"),
    (("swa_mapping", "roll_back"), "a call that fails between two parts of an engine leaves ``cache`` as it was"),
    (("swa_mapping", "backup_state"), WHOLE),
    (("swa_mapping", "restore_state"), WHOLE),
    (
        ("swa_mapping", "merge_and_sort_free"),
        "only where a page waits to be handed out changes, which no law of ``cache`` tells apart",
    ),
    (("swa_mapping", "clear"), "``cache`` is drained request by request and node by node, and never thrown away"),
    (("mamba_slots", "clear"), "``cache`` is drained request by request and node by node, and never thrown away"),
)
