"""What was measured, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from benchmarks import engines, locks, lockstep, transitions

INTERPRETED = (
    "* SGLang's paged calls are Triton kernels; on CPU they run in Triton's interpreter, which is not what an engine "
    "pays: these rows say nothing about SGLang's speed, so they have no ratio. "
)
LOOKS = "On CPU our calls also check what they are given (double frees, lengths); SGLang's do not. "


def lock_step(rates: Sequence[lockstep.Rate]) -> Table:
    """Steps a second, one line a stem."""
    caption = "Drawn from a seed, without Hypothesis; building the subjects is part of it. Seconds of processor time."
    table = _table(
        "Lock-step with our implementation, on one core",
        caption,
        "stem",
        "steps done",
        "steps/s",
        "steps/s, no laws evaluated",
    )
    for r in rates:
        table.add_row(r.stem, f"{r.steps:,}", f"{r.steps_a_second:,.0f}", f"{r.without_laws:,.0f}")
    return table


def spec_alone(rates: Sequence[transitions.Rate]) -> Table:
    """Transitions a second, one line a stem."""
    size = f"{transitions.PAGES} pages of {transitions.PAGE_SIZE} tokens, {transitions.ROWS} rows; no law is evaluated."
    table = _table("The spec alone on one core", size, "stem", "transitions done", "transitions/s")
    for r in rates:
        table.add_row(r.stem, f"{r.transitions:,}", f"{r.a_second:,.0f}")
    return table


def side_by_side(rows: Sequence[engines.Row], release: str, device: str) -> Table:
    """Ours and SGLang's, one line a case."""
    caption = (INTERPRETED if any(r.interpreted for r in rows) else "") + (LOOKS if device == "cpu" else "")
    caption += "Medians of interleaved repetitions; ratio is SGLang's time over ours; "
    caption += f"pools of {engines.TOKENS:,} tokens, rows of {engines.PROMPT} or more."
    headings = ("pools", "call", "page", "batch", "ours", "SGLang", "ratio")
    table = _table(f"Ours and SGLang {release} on {device}", caption, *headings)
    for r in rows:
        star = "*" if r.interpreted else ""
        sides = (_time(r.ours_us), _time(r.sglang_us) + star, "-" if r.ratio is None else f"{r.ratio:,.2f}")
        table.add_row(r.pools, r.call, str(r.page_size), str(r.batch), *sides)
    return table


def locking(rows: Sequence[locks.Row], release: str, device: str) -> Table:
    """Locks on a tree, one line a batch."""
    caption = f"A tree of {locks.NODES:,} nodes of {locks.SPAN} tokens with full and SWA parts, window {locks.WINDOW}; "
    caption += "SGLang's tree is Python on the host wherever its pools are. Medians of interleaved repetitions."
    headings = ("requests", "ours", "SGLang", "ratio")
    table = _table(f"Acquire and release, ours on {device} and SGLang {release}", caption, *headings)
    for r in rows:
        table.add_row(
            f"{r.batch:,}", _time(r.ours_us), _time(r.sglang_us), "-" if r.ratio is None else f"{r.ratio:,.2f}"
        )
    return table


def _time(us: float | None) -> str:
    if us is None:
        return "-"
    return f"{us:,.1f} µs" if us < 10_000 else f"{us / 1000:,.1f} ms"


def _table(title: str, caption: str, *headings: str) -> Table:
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=box.SIMPLE)
    for heading in headings:
        text = heading in {"stem", "pools", "call"}
        table.add_column(heading, justify="left" if text else "right", no_wrap=len(heading) < 20)
    return table
