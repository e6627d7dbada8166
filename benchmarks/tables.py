"""What was measured, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from benchmarks import engines, events, locks, lockstep, recording, schedulers, shadow, startup, transitions, trees
from conformance.driver.lockstep import OFTEN

NO_PEER = (
    "No peer: these calls of the engine are Triton kernels alone. On a CPU they run in Triton's interpreter, which no "
    "server does. "
)
CHECKS = "On a CPU our calls also check their input (double frees, lengths). "


def lock_step(rates: Sequence[lockstep.Rate]) -> Table:
    """Operations a second, one line a stem."""
    caption = (
        "Runs are drawn once by Hypothesis from a fixed seed, then replayed without it; building the engine is part of "
        "a run. By default all laws are evaluated where the engine's state differs from the law's own, and once in "
        f"{OFTEN} judgements; elsewhere only the theorems are, since the provers show that the law's own state keeps "
        "all laws. Processor time, median."
    )
    headings = ("stem", "operations", "default", "every law", "no laws")
    table = _table("Lock-step with our implementation on one core, operations a second", caption, *headings)
    for r in rates:
        table.add_row(r.stem, f"{r.operations:,}", f"{r.a_second:,.0f}", f"{r.every_law:,.0f}", f"{r.no_laws:,.0f}")
    return table


def time_spent(rates: Sequence[lockstep.Rate]) -> Table:
    """Where the time of the lock-step goes, one line a stem."""
    caption = (
        "Percent of the default. Building: of the engine. Engine: its calls. Snapshots: it is read. Explaining: "
        "the answer of a call as steps of the law. Projecting: the snapshot as a state of the law. Laws: they are "
        "evaluated on that state. Differences: it is compared with the law's own state."
    )
    table = _table("Where the time goes, in percent", caption, "stem", *lockstep.SHARES)
    for r in rates:
        table.add_row(r.stem, *(f"{r.shares[share]:.0f}" for share in lockstep.SHARES))
    return table


def shadow_memory(costs: Sequence[shadow.Cost]) -> Table:
    """What the shadow memory costs, one line a stem."""
    caption = (
        "Each drawn run is replayed with the shadow and without it, in turn in one process. Processor time of an "
        f"operation, median of each run. Ratio: with it / without it; it may be {shadow.LIMIT}."
    )
    headings = ("stem", "operations", "with it", "without it", "ratio", "")
    table = _table("The shadow memory on one core, milliseconds an operation", caption, *headings)
    for c in costs:
        times = (f"{c.with_ms:.3f}", f"{c.without_ms:.3f}", f"{c.ratio:.3f}")
        table.add_row(c.stem, f"{c.operations:,}", *times, "too dear" if c.dear else "")
    return table


def recorders(costs: Sequence[recording.Cost]) -> Table:
    """What recording costs a scheduler, one line a load."""
    caption = (
        "Two schedulers make the steps of one load in turn, one of them recorded. Processor time of this thread in the "
        f"scheduler's calls, medians of a step. With {recording.AT} requests a recorder may take {recording.LIMIT_US} "
        "µs. Judged: calls a second, of one core. On a device: unmeasured; the hooks read no tensor."
    )
    headings = ("engine", "requests", "own µs", "more µs", "share", "bytes a step", "judged", "")
    table = _table("A recorded scheduler under load, on one core", caption, *headings)
    for c in costs:
        if c.skipped:
            table.add_row(c.engine, str(c.requests), *["-"] * 5, c.skipped)
            continue
        numbers = (f"{c.own_us:,.0f}", f"{c.more_us:,.0f}", f"{c.share:.2f}", f"{c.bytes:,}", f"{c.judged:,.0f}")
        table.add_row(c.engine, str(c.requests), *numbers, "too dear" if c.dear else "")
    return table


def spec_alone(rates: Sequence[transitions.Rate]) -> Table:
    """Transitions a second, one line a stem."""
    size = f"{transitions.PAGES} pages of {transitions.PAGE_SIZE} tokens, {transitions.ROWS} rows; no law is evaluated."
    table = _table("The spec alone on one core, transitions a second", size, "stem", "transitions", "a second")
    for r in rates:
        table.add_row(r.stem, f"{r.transitions:,}", f"{r.a_second:,.0f}")
    return table


def kv_events(rates: Sequence[events.Rate]) -> Table:
    """KV events a second, one line a format."""
    size = (
        f"A file of batches of {events.BATCH} events, each of one block of {events.TOKENS} tokens, is read and judged. "
    )
    table = _table(
        "KV events on one core, a second", f"{size}Asked for: {events.LIMIT:,}.", "format", "events", "a second", ""
    )
    for r in rates:
        table.add_row(r.format, f"{r.events:,}", f"{r.a_second:,.0f}", "too slow" if r.slow else "")
    return table


def scheduler_steps(rates: Sequence[schedulers.Rate]) -> Table:
    """Scheduler steps a second, one line an engine."""
    size = f"Drawn runs of the stem {schedulers.STEM} with every law on. Asked for: {schedulers.LIMIT}."
    table = _table("Scheduler steps judged on one core, a second", size, "engine", "steps", "a second", "")
    for r in rates:
        table.add_row(r.engine, f"{r.steps:,}", f"{r.a_second:,.0f}", r.skipped or ("too slow" if r.slow else ""))
    return table


def helps(rows: Sequence[startup.Row]) -> Table:
    """Seconds until a help text has been shown, one line a command."""
    caption = f"Wall time of a process, median. A user may have to wait {startup.LIMIT_S} s."
    table = _table("--help of each command, seconds", caption, "command", "seconds", "")
    for r in rows:
        table.add_row(r.command or "(none)", f"{r.seconds:.2f}", "too slow" if r.late else "")
    return table


def side_by_side(rows: Sequence[engines.Row], label: str, device: str) -> Table:
    """Our allocators and an engine's, one line a case."""
    caption = (NO_PEER if any(r.ratio is None for r in rows) else "") + (CHECKS if device == "cpu" else "")
    caption += "Medians; both sides are timed in turn. Ratio: its time / our time. "
    caption += f"Rows of {engines.PROMPT} tokens or more. Tokens: of each pool."
    headings = ("pools", "call", "page", "batch", "tokens", "our time", "its time", "ratio", "")
    table = _table(f"Allocators: our implementation and {label} on {device}", caption, *headings)
    for r in rows:
        sides = (_time(r.own_us), _time(r.engine_us), _ratio(r.ratio), _remark(r.ratio))
        table.add_row(r.pools, r.call, str(r.page_size), str(r.batch), f"{r.tokens:,}", *sides)
    return table


def locking(rows: Sequence[locks.Row], label: str, device: str) -> Table:
    """Locks on a tree, one line a batch."""
    caption = f"A tree of {locks.NODES:,} nodes of {locks.SPAN} tokens with full and SWA parts, window {locks.WINDOW}. "
    caption += "Our tree locks a batch in one call, the engine's locks request by request on the host. Medians."
    headings = ("requests", "our time", "its time", "ratio")
    table = _table(f"Lock and unlock: our implementation on {device} and {label}", caption, *headings)
    for r in rows:
        table.add_row(f"{r.batch:,}", _time(r.own_us), _time(r.engine_us), _ratio(r.ratio))
    return table


def prefix_caches(rows: Sequence[trees.Row], label: str) -> Table:
    """Calls of a prefix cache, one line a call; no lines where the engine has no such trees."""
    caption = f"{trees.TEXTS:,} texts of {2 * trees.HALF} tokens, of which {trees.PROMPTS} prompts of {trees.HALF} are "
    caption += "shared; full attention, on the host. Each call is made through the engine's interface. Medians."
    names = list(rows[0].engine_us) if rows else []
    headings = ("call", "page", "our time", *(heading for name in names for heading in (name, "ratio")))
    table = _table(f"Prefix caches: our implementation and {label}", caption, *headings)
    for r in rows:
        sides = [text for name in names for text in (_time(r.engine_us[name]), _ratio(r.ratios[name]))]
        table.add_row(r.call, str(r.page_size), _time(r.own_us), *sides)
    return table


def _remark(ratio: float | None) -> str:
    return "no peer" if ratio is None else "slower" if ratio < 1 else ""


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:,.2f}"


def _time(us: float | None) -> str:
    if us is None:
        return "-"
    return f"{us:,.1f} µs" if us < 10_000 else f"{us / 1000:,.1f} ms"


def _table(title: str, caption: str, *headings: str) -> Table:
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=box.SIMPLE)
    for heading in headings:
        text = heading in {"stem", "pools", "call", "command"}
        table.add_column(heading, justify="left" if text else "right", no_wrap=len(heading) < 12)
    return table
