"""Known bugs of request rows and streaming sessions."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.faults.fault import Fault
from impl.rows import Numbers
from impl.session_trim import RequestRows
from proofs import session_trim as wrong


class KeepsTail(RequestRows):
    """SGLang PR 22862: a session's next turn begins before the end of its row, and nobody gives the rest back. The new
    tokens are written over draft slots, or over a token that a retract or the logit reserve cuts off. Seen in SGLang
    0.5.10, where one token leaks a turn.
    """

    def free_tail(self, rows: Tensor, to: Tensor) -> None:
        """Frees nothing."""


class KeepsCursor(RequestRows):
    """SGLang PR 22900: a turn that decoded past its end is cut in the session's slot, and its SWA cursor is not. Then the
    cursor stands beyond the row: the next turn's tokens below it are taken for evicted, and their SWA pages leak.
    """

    def save(self, rows: Numbers, agreed: Numbers) -> None:
        """The cursor stays."""
        cursor = self.cursor.clone()
        super().save(rows, agreed)
        self.cursor.copy_(cursor)


class FreesPartialPage(RequestRows):
    """A turn that goes on inside a page gives that page back with the tail: freeing is by pages, and the prefix ends there.
    What a free of the slots after the prefix does that is not aligned upwards.
    """

    def free_tail(self, rows: Tensor, to: Tensor) -> None:
        """The page that the prefix ends in goes too."""
        super().free_tail(rows, self.page_floor(to))


class CapsCursor(RequestRows):
    """A cut below the SWA cursor moves the cursor to the cut, as the fix of SGLang PR 22900 does. With large pages the cursor
    then stands inside a page whose SWA page was given back, and the row that grows on writes its new tokens through the
    padding page. Seen in SGLang 0.5.11 to 0.5.14, ``_trim_overshoot`` and ``_free_tail``, if a cursor ever stands there.
    """

    def cut_back(self, rows: Tensor, to: Tensor) -> tuple[Tensor, Tensor]:
        """The cut, and no cursor beyond it, whatever was given back below it."""
        return to, torch.minimum(self.cursor[rows], to)


class KeepsSlot(RequestRows):
    """A turn that is aborted gives its row back, and the session's slot still names it: the row has two owners. What a
    release does that looks at the request alone, where slot and request both name the row while a turn runs.
    """

    def release(self, rows: Numbers) -> None:
        """The slots stay."""
        slots = dict(self.slot)
        super().release(rows)
        self.slot = slots


class SlidesTooFar(RequestRows):
    """The window moves one page too far: SWA pages are given back that the next token still reads."""

    def window_reach(self, rows: Tensor) -> Tensor:
        """As far as the page that the window begins in, and that page too."""
        committed = self.committed[rows]
        return torch.minimum(self.page_ceil(committed - self.window + 1), self.page_floor(committed))


class ForgetsDraft(RequestRows):
    """A request that is aborted gives back what is computed, and not the slots that were allocated ahead for its draft."""

    def release(self, rows: Numbers) -> None:
        """Reads the committed length for the allocated one."""
        for row in rows:
            self.allocated[row] = self.committed[row]
        super().release(rows)


FAULTS = (
    Fault(
        name="pr_22862",
        stem="session_trim",
        sentence="A session's next turn overwrites the end of its row, which nobody gave back.",
        spec={"restore": wrong.overwrites_tail},
        parts={"rows": KeepsTail},
    ),
    Fault(
        name="pr_22900",
        stem="session_trim",
        sentence="A turn's row is cut to what was sent, and the SWA cursor stays where decoding had brought it.",
        spec={"save": wrong.leaves_cursor},
        parts={"rows": KeepsCursor},
    ),
    Fault(
        name="restore_takes_partial_page",
        stem="session_trim",
        sentence="A turn that goes on inside a page has that page given back.",
        spec={"restore": wrong.frees_partial_page},
        parts={"rows": FreesPartialPage},
    ),
    Fault(
        name="cursor_inside_page",
        stem="session_trim",
        sentence="A cut below the SWA cursor moves the cursor to the cut, into a page without its SWA page.",
        spec={"restore": wrong.cursor_in_page},
        parts={"rows": CapsCursor},
    ),
    Fault(
        name="released_slot_stays",
        stem="session_trim",
        sentence="The row of an aborted turn is given back, and its session's slot keeps it.",
        spec={"release": wrong.keeps_slot},
        parts={"rows": KeepsSlot},
    ),
    Fault(
        name="window_too_far",
        stem="session_trim",
        sentence="The window moves one page too far.",
        spec={"slide": wrong.slides_too_far},
        parts={"rows": SlidesTooFar},
    ),
    Fault(
        name="abort_forgets_draft",
        stem="session_trim",
        sentence="A request that ends early leaves its draft slots behind.",
        spec={"release": wrong.releases_committed_part},
        parts={"rows": ForgetsDraft},
    ),
)
