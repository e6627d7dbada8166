"""Known bugs, each as a small named change to the spec and the same change to our implementation.

The proof must refute the one and the stateful run must find the other, from nothing.
"""

from __future__ import annotations

from conformance.faults.abort_forgets_draft import ABORT_FORGETS_DRAFT
from conformance.faults.absent_track_is_freed import ABSENT_TRACK_IS_FREED
from conformance.faults.base import Fault
from conformance.faults.cursor_inside_page import CURSOR_INSIDE_PAGE
from conformance.faults.donated_to_nobody import DONATED_TO_NOBODY
from conformance.faults.early_release_takes_state import EARLY_RELEASE_TAKES_STATE
from conformance.faults.early_release_twice import EARLY_RELEASE_TWICE
from conformance.faults.half_decode import HALF_DECODE
from conformance.faults.insert_under_reader import INSERT_UNDER_READER
from conformance.faults.nested_group import NESTED_GROUP
from conformance.faults.nested_state_group import NESTED_STATE_GROUP
from conformance.faults.pr_22862 import PR_22862
from conformance.faults.pr_22900 import PR_22900
from conformance.faults.pr_25805 import PR_25805
from conformance.faults.pr_26941_abort import PR_26941_ABORT
from conformance.faults.pr_26941_free import PR_26941_FREE
from conformance.faults.pr_26941_save import PR_26941_SAVE
from conformance.faults.pr_27038 import PR_27038
from conformance.faults.released_slot_stays import RELEASED_SLOT_STAYS
from conformance.faults.restore_takes_partial_page import RESTORE_TAKES_PARTIAL_PAGE
from conformance.faults.restore_under_lock import RESTORE_UNDER_LOCK
from conformance.faults.split_forgets_counts import SPLIT_FORGETS_COUNTS
from conformance.faults.tail_inside_page import TAIL_INSIDE_PAGE
from conformance.faults.window_too_far import WINDOW_TOO_FAR

ALL = (
    *(PR_25805, HALF_DECODE, TAIL_INSIDE_PAGE, NESTED_GROUP),
    *(PR_27038, SPLIT_FORGETS_COUNTS, RESTORE_UNDER_LOCK, EARLY_RELEASE_TWICE, EARLY_RELEASE_TAKES_STATE),
    *(PR_22862, PR_22900, RESTORE_TAKES_PARTIAL_PAGE, CURSOR_INSIDE_PAGE),
    *(RELEASED_SLOT_STAYS, WINDOW_TOO_FAR, ABORT_FORGETS_DRAFT),
    *(PR_26941_SAVE, PR_26941_FREE, PR_26941_ABORT, ABSENT_TRACK_IS_FREED, NESTED_STATE_GROUP, DONATED_TO_NOBODY),
    INSERT_UNDER_READER,
)
FAULTS: dict[str, Fault] = {f.name: f for f in ALL}
