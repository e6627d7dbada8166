"""A decode takes its full pages, then finds the SWA pool short and says out of memory: the full pages are lost.

Seen in SGLang 0.5.12 to 0.5.14, ``SWATokenToKVPoolAllocator.alloc_decode``.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from conformance.faults.base import Fault
from conformance.subjects import ours
from impl import checks
from impl.checks import Rows
from impl.swa_mapping import SWATokenToKVPoolAllocator
from spec import swa_mapping as law
from spec.lengths import next_token, touched
from spec.logic import Number, Seq, Step
from spec.pool import length, take
from spec.swa_mapping import SwaMapping


def alloc_decode(st: SwaMapping, row: Number, full_pages: Seq, swa_pages: Seq) -> Step[SwaMapping]:
    """A refused decode has taken its full pages."""
    step = law.alloc_decode(st, row, full_pages, swa_pages)
    full = st.now.full
    half = take(full, row, touched(length(full, row)), next_token(length(full, row), full.page_size), full_pages)
    return replace(step, otherwise=replace(st, now=replace(st.now, full=half)))


class Faulty(SWATokenToKVPoolAllocator):
    """Takes from the full pool before it looks at the SWA pool."""

    def alloc_decode(self, seq_lens: Tensor, seq_lens_cpu: Tensor, last_loc: Tensor) -> Tensor | None:
        """A refusal costs the full pages."""
        slots = super().alloc_decode(seq_lens, seq_lens_cpu, last_loc)
        need = checks.decode_plan(Rows(seq_lens, seq_lens_cpu, last_loc), self.page_size).pages
        if slots is None and (pages := self.full_attn_allocator.peek(need)) is not None:
            self.full_attn_allocator.take(pages)
        return slots


HALF_DECODE = Fault(
    name="half_decode",
    stem="swa_mapping",
    sentence="A decode that the SWA pool refuses keeps the full pages it took.",
    spec={"alloc_decode": alloc_decode},
    make=ours.faulty(Faulty),
)
