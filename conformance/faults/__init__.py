"""Known bugs, each as a small named change to the spec and the same change to our implementation.

The proof must refute the one and the stateful run must find the other, from nothing.
"""

from __future__ import annotations

from conformance.faults.base import Fault
from conformance.faults.half_decode import HALF_DECODE
from conformance.faults.nested_group import NESTED_GROUP
from conformance.faults.pr_25805 import PR_25805
from conformance.faults.tail_inside_page import TAIL_INSIDE_PAGE

FAULTS: dict[str, Fault] = {f.name: f for f in (PR_25805, HALF_DECODE, TAIL_INSIDE_PAGE, NESTED_GROUP)}
