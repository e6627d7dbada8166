"""Known bugs of request rows and streaming sessions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from conformance.stems.fault import Fault
from impl.allocator import Backup
from impl.rows import RUNNING, Numbers
from impl.session_trim import RequestRows
from proofs import session_trim as wrong


class KeepsTail(RequestRows):
    """SGLang PR 22862: a session's next turn goes on before the end of its row, and the rest of the row is not freed.

    New slots overwrite the old ones in the row: draft slots, or a token that a retract or the logit reserve cut off.
    Seen in SGLang 0.5.10, where each turn leaks one token.
    """

    def free_tail(self, rows: Tensor, to: Tensor) -> None:
        """Frees nothing."""


class KeepsCursor(RequestRows):
    """SGLang PR 22900: a turn that decoded past its end is cut in the session's slot, and its SWA cursor is not.

    The cursor then stands beyond the row. Tokens of the next turn below it count as evicted, and their SWA pages leak.
    """

    def save(self, rows: Numbers, agreed: Numbers) -> None:
        """Saves the row, and leaves the cursor where it was."""
        cursor = self.cursor.clone()
        super().save(rows, agreed)
        self.cursor.copy_(cursor)


class FreesPartialPage(RequestRows):
    """A turn that goes on inside a page frees this page with the tail, although it holds the end of the prefix.

    A free of all slots after the prefix does this, since it frees whole pages, unless its start is rounded up to a
    page.
    """

    def free_tail(self, rows: Tensor, to: Tensor) -> None:
        """Frees from the page on in which the prefix ends."""
        super().free_tail(rows, self.page_floor(to))


class CapsCursor(RequestRows):
    """A cut below the SWA cursor moves the cursor to the cut, as the fix of SGLang PR 22900 does.

    With large pages the cursor then stands inside a page whose SWA page was freed. New tokens of the row are written
    through the padding page. Seen in SGLang 0.5.11 to 0.5.14, in ``_trim_overshoot`` and ``_free_tail``, if a cursor
    can stand there.
    """

    def cut_back(self, rows: Tensor, to: Tensor) -> tuple[Tensor, Tensor]:
        """The cut, and the cursor no further than the cut, whatever was freed below it."""
        return to, torch.minimum(self.cursor[rows], to)


class KeepsSlot(RequestRows):
    """A turn that is aborted frees its row, and the session's slot still names this row: the row gets two owners.

    While a turn runs, slot and request both name the row. A release that looks only at the request does this.
    """

    def release(self, rows: Numbers) -> None:
        """Releases the rows, and leaves the slots as they were."""
        slots = dict(self.slot)
        super().release(rows)
        self.slot = slots


class SlidesTooFar(RequestRows):
    """The window moves one page too far: SWA pages are freed that the next token still reads."""

    def window_reach(self, rows: Tensor) -> Tensor:
        """The end of the page in which the window begins; correct is the start of this page."""
        committed = self.committed[rows]
        return torch.minimum(self.page_ceil(committed - self.window + 1), self.page_floor(committed))


class ForgetsDraft(RequestRows):
    """A request that is aborted frees its committed tokens, and not the slots that were allocated for its draft."""

    def release(self, rows: Numbers) -> None:
        """Uses the committed length as the allocated one."""
        for row in rows:
            self.allocated[row] = self.committed[row]
        super().release(rows)


class StartsAtPrefix(RequestRows):
    """A row that has SWA slots only for its tail counts as a row whose window has not moved: its cursor is not set."""

    def admit_tail(self, prefix: Tensor, to: int, start: int, session: Hashable = None) -> tuple[int, Tensor] | None:
        """Begins the row, and puts its cursor at the end of the prefix."""
        begun = super().admit_tail(prefix, to, start, session)
        if begun is not None:
            self.cursor[begun[0]] = prefix.numel()
        return begun


class FreesRejectedPage(RequestRows):
    """The slots of a rejected draft are freed as they are, so that a page goes back which begins with other tokens."""

    def free_unused(self, rows: Tensor, to: Tensor) -> None:
        """Frees from the page on in which the draft begins."""
        super().free_unused(rows, self.page_floor(to))


class SlidesWithoutWindow(RequestRows):
    """The cursor of a row moves also where the model has no sliding-window layers. A later cut of the row then takes
    the window for gone.
    """

    def slide(self, rows: Numbers) -> Tensor:
        """Moves the cursor as far as it can."""
        if self.window:
            return super().slide(rows)
        batch = self.batch(rows, RUNNING)
        reach = torch.maximum(self.window_reach(batch), self.cursor[batch])
        self.cursor[batch] = reach
        return reach


class LeavesPagesBehind(RequestRows):
    """Where every layer has a sliding window, the cursor moves on, and what left the window is not given back."""

    def free_left(self, rows: Tensor, start: Tensor, stop: Tensor) -> None:
        """Frees nothing."""


class DonatesFreedPages(RequestRows):
    """Where every layer has a sliding window, a request that ends gives the tree the pages that left its window.

    They are free already, so that another request gets them, and the tree hands them to every prompt that matches. Seen
    in SGLang's PureSWARadixCache from 0.5.15 to 0.5.23, for models that are not prefill-aware (SGLang PR 31486).
    """

    def donatable(self, rows: Tensor) -> Tensor:
        """All that is committed."""
        return self.page_floor(self.committed[rows])


class CutsIntoTree(RequestRows):
    """A turn whose whole input the tree has goes on on its session's row, which is cut into a page of the tree.

    The last token of the input is then computed into this page, which other requests read. SGLang 0.5.23 says by an
    assertion that this must not be, and stops.
    """

    def begins_anew(self, session: Hashable, given: int) -> bool:
        """Says that every row can go on."""
        del session, given
        return False

    def restore(self, sessions: Sequence[Hashable], prefix: Numbers) -> Tensor:
        """Cuts the rows, and with them what the tree has of them."""
        rows = self._saved(sessions)
        to = torch.tensor(list(prefix))
        shorter = to < self.protected[rows]
        self.protected[rows] = torch.where(shorter, self.page_floor(to), self.protected[rows])
        return super().restore(sessions, prefix)


class FreesInterrupted(RequestRows):
    """After an exception the new slots are freed as they are, so that a page goes back which begins with other tokens.

    Read in SGLang 0.5.23, in ``alloc_for_extend`` and ``alloc_for_decode``: they free the slots that they had allocated
    if the pool of auxiliary lengths raises.
    """

    def undo(self, saved: Backup, slots: Tensor) -> None:
        """Frees the pages in which the new slots lie."""
        del saved
        pages = torch.unique(slots // self.page_size)
        self.allocator.free(self.allocator.full_pool.slots(pages))


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
        sentence="When a turn goes on inside a page, that page is given back.",
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
    Fault(
        name="window_without_layers",
        stem="session_trim",
        sentence="A window moves in a model that has no sliding-window layers.",
        spec={"slide": wrong.slides_without_window},
        parts={"rows": SlidesWithoutWindow},
    ),
    Fault(
        name="left_pages_stay",
        stem="session_trim",
        sentence="Where every layer has a sliding window, the pages that left the window are not given back.",
        spec={"leave_window": wrong.leaves_pages_behind},
        parts={"rows": LeavesPagesBehind},
    ),
    Fault(
        name="left_pages_go_to_the_tree",
        stem="session_trim",
        sentence="Where every layer has a sliding window, the tree gets pages that left it and were given back.",
        spec={"donate": wrong.donates_the_gap},
        parts={"rows": DonatesFreedPages},
        search={"routes": {"donate": "admit extend leave_window"}},
    ),
    Fault(
        name="tail_starts_at_prefix",
        stem="session_trim",
        sentence="A row that has SWA slots only for its tail begins with the cursor at its cached prefix.",
        spec={"admit_tail": wrong.starts_at_prefix},
        parts={"rows": StartsAtPrefix},
    ),
    Fault(
        name="turn_writes_into_tree",
        stem="session_trim",
        sentence="A turn whose whole input the tree has computes the last token again, in a page of the tree.",
        spec={"restore": wrong.cuts_into_tree},
        parts={"rows": CutsIntoTree},
        search=wrong.INTO_TREE,
    ),
    Fault(
        name="rejected_draft_takes_page",
        stem="session_trim",
        sentence="The slots of a rejected draft are given back with the page in which the draft begins.",
        spec={"roll_back": wrong.rolls_back_page},
        parts={"rows": FreesRejectedPage},
    ),
    Fault(
        name="interrupted_step_takes_page",
        stem="session_trim",
        sentence="After an exception the new slots are given back with the page in which they begin.",
        spec={"roll_back": wrong.rolls_back_page},
        parts={"rows": FreesInterrupted},
    ),
)
