"""A trace told to a person: the steps as calls, what each of them changed on the subject, and a test to paste."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conformance.check import STEMS
from conformance.machine import Finding, Json, Misuse, Trace
from conformance.picture import PLACES, frame, owner
from conformance.row_picture import row_changes
from conformance.state_picture import state_changes
from conformance.tree_picture import tree_changes
from spec.pool import HELD, Pool
from spec.rows import Rows
from spec.states import MambaSlots
from spec.tree import Tree
from spec.whole import Whole


@dataclass(frozen=True)
class Told:
    """One step: the call, what it changed, what was wrong after it, and the state after it as a picture."""

    call: str
    changed: str
    wrong: str
    picture: Json


def tell(trace: Trace, make: Callable[[Json], Any]) -> list[Told]:
    """Does the trace once more and writes down each step."""
    run: Any = STEMS[trace.stem][1](make(trace.config), trace.config, False)
    told: list[Told] = []
    before = run.observed()
    for line, step in zip(trace.lines(), trace.steps, strict=True):
        latent, wrong = run.latent, ""
        try:
            run.do(step["op"], **{k: v for k, v in step.items() if k != "op"})
        except (Finding, Misuse) as error:
            wrong = str(error)
        if run.latent is not latent:
            wrong = f"latent: {run.latent}"
        after = _after(run, before)
        told.append(Told(line, changes(before, after), wrong, frame(after)))
        before = after
    return told


def _after(run: Any, before: Any) -> Any:
    """The state after a step; what shows nothing that the spec could be asked about shows what it did before."""
    try:
        return run.observed()
    except Finding:
        return before


def changes(before: Any, after: Any) -> str:
    """What can be seen to differ between two observed states."""
    return "; ".join(_changes(before, after)) or "nothing"


def _changes(old: Any, new: Any) -> list[str]:
    if isinstance(new, Whole):
        states = state_changes(old.states, new.states)
        return [*_changes(old.life, new.life), *tree_changes(old.tree, new.tree, "pages"), *states]
    if isinstance(new, Rows):
        return [*row_changes(old, new), *_changes(old.pools, new.pools)]
    if isinstance(new, Tree):
        return tree_changes(old, new)
    if isinstance(new, MambaSlots):
        return state_changes(old, new)
    if isinstance(new.now, Pool):
        return _pages("page", old.now, new.now)
    full, swa = _pages("full page", old.now.full, new.now.full), _pages("SWA page", old.now.swa, new.now.swa)
    return [*full, *swa, *_mapping(old.now, new.now)]


def _pages(name: str, old: Pool, new: Pool) -> list[str]:
    moved: dict[str, list[int]] = {}
    for page in new.pages.items():
        if old.place(page) != new.place(page):
            who = f" by {_who(new, page)}" if new.place(page) == HELD else ""
            moved.setdefault(f"{PLACES[old.place(page)]} → {PLACES[new.place(page)]}{who}", []).append(page)
    return [f"{name} {', '.join(map(str, pages))} {how}" for how, pages in moved.items()]


def _who(pool: Pool, page: int) -> str:
    row = owner(pool, page)
    return "nobody" if row is None else f"row {row}"


def _mapping(old: Any, new: Any) -> list[str]:
    size, found = new.full.page_size, []
    for page in new.full.pages.items():
        for offset in new.full.offsets.items():
            a, b = ((s.to_page(page, offset), s.to_offset(page, offset)) for s in (old, new))
            if a != b:
                found.append(f"{page * size + offset}→{b[0] * size + b[1] or 'nothing'}")
    return [f"mapping {', '.join(found)}"] if found else []


def as_test(trace: Trace, subject: str, release: str | None) -> str:
    """A paste-ready pytest: it fails as long as the subject breaks the law."""
    steps = ",\n        ".join(map(repr, trace.steps))
    where = f'load("{subject}"' + (f', release="{release}")' if release else ")")
    return f'''def test_found_by_slotproof() -> None:
    from conformance.check import STEMS
    from conformance.subjects.loading import load

    config = {trace.config!r}
    subject = {where}.makers["{trace.stem}"](config)
    run = STEMS["{trace.stem}"][1](subject, config)
    steps = [
        {steps},
    ]
    for step in steps:
        run.do(**step)
'''
