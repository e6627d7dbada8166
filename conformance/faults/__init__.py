"""Known bugs, each as a small named change to the spec and the same change to our implementation.

The proof must refute the one and the stateful run must find the other, from nothing.
"""

from __future__ import annotations

from conformance.faults.base import Fault
from conformance.faults.early_release_takes_state import EARLY_RELEASE_TAKES_STATE
from conformance.faults.early_release_twice import EARLY_RELEASE_TWICE
from conformance.faults.half_decode import HALF_DECODE
from conformance.faults.nested_group import NESTED_GROUP
from conformance.faults.pr_25805 import PR_25805
from conformance.faults.pr_27038 import PR_27038
from conformance.faults.restore_under_lock import RESTORE_UNDER_LOCK
from conformance.faults.split_forgets_counts import SPLIT_FORGETS_COUNTS
from conformance.faults.tail_inside_page import TAIL_INSIDE_PAGE

ALL = (
    *(PR_25805, HALF_DECODE, TAIL_INSIDE_PAGE, NESTED_GROUP),
    *(PR_27038, SPLIT_FORGETS_COUNTS, RESTORE_UNDER_LOCK, EARLY_RELEASE_TWICE, EARLY_RELEASE_TAKES_STATE),
)
FAULTS: dict[str, Fault] = {f.name: f for f in ALL}
