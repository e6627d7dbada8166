"""What an audit of the proofs found that no law refused, with siblings in other transitions, pools and components.

Each case is a wrong transition. In a small world the solver must find a lawful state from which a granted call of it
breaks the named law, or makes an unlawful call; and it must find none for the transition of the law.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from proofs import counterexample
from proofs.hints import unasked, unchosen
from proofs.obligations import CALLS, call
from proofs.registry import hints_of
from proofs.symbols import SymSet, World
from spec import allocator, cache, mamba_in_cache, mamba_slots, session_trim, swa_mapping
from spec.lengths import NOTHING
from spec.logic import Step, but
from spec.logic import call as made_call
from spec.mamba_slots_state import OWN, drop, hold, only, written
from spec.pool import beyond, in_range
from spec.session_trim_state import full_pool

FOUND = "the new lock finds the SWA part of each node in the window before the next token"
HELD = "the row's lock holds the SWA part of each node in the window before the next token"
BEHIND = "every node of the row's cached prefix is behind the window before the next token"
Wrong = Callable[..., Step[Any]]


def changed(lawful: Wrong) -> Callable[[Callable[[Any, Step[Any], tuple[Any, ...]], Step[Any]]], Wrong]:
    """Makes a wrong transition that is called as the lawful one, from a function of the state and the lawful step."""

    def made(change: Callable[[Any, Step[Any], tuple[Any, ...]], Step[Any]]) -> Wrong:
        @functools.wraps(lawful)
        def wrong(st: Any, **arguments: Any) -> Step[Any]:
            return change(st, lawful(st, **arguments), tuple(arguments.values()))

        return wrong

    return made


def at_once(lawful: Wrong) -> Wrong:
    """What is given back is available at once, though a free group is open."""
    return changed(lawful)(
        lambda st, step, of: but(step, then=but(step.then, now=lawful(but(st, group=0), *of).then.now))
    )


def without(lawful: Wrong, sentence: str) -> Wrong:
    """Nothing is asked about the window that the row's lock must hold."""
    drop_it = unchosen if sentence == FOUND else unasked
    return changed(lawful)(lambda _, step, __: drop_it(step, sentence))


def freed_again(lawful: Wrong, gone_of: Callable[..., Any]) -> Wrong:
    """The pages that the row has given back are given back again, by the call that an engine has for it."""

    def again(st: Any, step: Step[Any], of: tuple[Any, ...]) -> Step[Any]:
        pools, gone = step.calls[-1].then, gone_of(full_pool(st), st, *of)
        slots = SymSet(gone.world, 2, lambda p, o: gone.has(p) & full_pool(st).offsets.has(o), gone.domain)
        second = made_call("pools", swa_mapping.free, pools, gone, slots)
        return but(step, calls=(*step.calls, second), then=but(step.then, pools=second.then))

    return changed(lawful)(again)


def loses_own_state(_: Any, step: Step[Any], of: tuple[Any, ...]) -> Step[Any]:
    """The state that a running request computes with is given back."""
    return but(step, then=written(drop(step.then, only(step.then, of[0], OWN)), of[0]))


def swaps_own_state(st: Any, step: Step[Any], of: tuple[Any, ...]) -> Step[Any]:
    """The state that a running request computes with goes to the tree in exchange for the tree's."""
    request, node = of
    old, new = st.table(request, OWN), st.table(node, OWN)
    return but(step, then=written(hold(hold(st, node, OWN, old), request, OWN, new), request))


CASES = {
    # A freed page waits for the end of the outermost group.
    **{
        f"{stem}.{name} at once": (stem, name, at_once(law.stem.transitions[name]), broken)
        for stem, law, name, broken in (
            ("swa_mapping", swa_mapping, "free", "freed_page_waits"),
            ("swa_mapping", swa_mapping, "free_swa", "freed_swa_page_waits"),
            ("allocator", allocator, "free", "freed_page_waits"),
        )
    },
    # The window of the rows and the window of the locks.
    **{
        f"cache.{name} without its window": (
            "cache",
            name,
            without(cache.stem.transitions[name], said),
            "window_is_locked",
        )
        for name, said in (
            ("admit", FOUND),
            ("admit_tail", FOUND),
            ("continue_prefill", FOUND),
            ("save", HELD),
            ("restore", HELD),
            ("roll_back", HELD),
            ("release_swa", BEHIND),
        )
    },
    # A double free, where rows are given back.
    "session_trim.release twice": (
        *("session_trim", "release"),
        freed_again(session_trim.release, lambda full, _, row: beyond(full, row, NOTHING)),
        CALLS + "free",
    ),
    "session_trim.roll_back twice": (
        *("session_trim", "roll_back"),
        freed_again(session_trim.roll_back, lambda full, _, row, to: beyond(full, row, to)),
        CALLS + "free",
    ),
    "session_trim.dedupe twice": (
        *("session_trim", "dedupe"),
        freed_again(session_trim.dedupe, lambda full, st, row, pages: in_range(full, row, st.protected(row), pages)),
        CALLS + "free",
    ),
    "session_trim.drop twice": (
        *("session_trim", "drop"),
        freed_again(session_trim.drop, lambda full, _, row: beyond(full, row, NOTHING)),
        CALLS + "free",
    ),
    # States that are freed, given away or changed under a running request.
    "cache.state_release of a running row": (
        *("cache", "state_release"),
        changed(mamba_in_cache.state_release)(
            lambda _, step, __: unasked(step, "the request has no row, or its row is leaving")
        ),
        "running_keeps_its_states",
    ),
    "cache.state_save of a running row": (
        *("cache", "state_save"),
        changed(mamba_in_cache.state_save)(
            lambda _, step, __: unasked(step, "the turn's row is saved in the session's slot")
        ),
        "running_keeps_its_states",
    ),
    "cache.state_donate of a running row": (
        *("cache", "state_donate"),
        changed(mamba_in_cache.state_donate)(lambda _, step, __: unasked(step, "the request's row is leaving")),
        "running_row_has_running_states",
    ),
    "mamba_slots.track frees the own state": (
        *("mamba_slots", "track"),
        changed(mamba_slots.track)(loses_own_state),
        "running_keeps_its_state",
    ),
    "mamba_slots.donate_and_replace of the own state": (
        *("mamba_slots", "donate_and_replace"),
        changed(mamba_slots.donate_and_replace)(swaps_own_state),
        "running_keeps_its_state",
    ),
}


def breaks(stem: str, name: str, transition: Wrong, law: str) -> bool:
    """A granted call in a small lawful state breaks the law, or makes an unlawful call."""
    hints = hints_of(stem)
    made = call(hints, transition, World(dict(hints.sizes)), name)
    return counterexample._model(counterexample._broken(hints, made, law, ())) is not None


@pytest.mark.parametrize("case", CASES)
def test_what_the_audit_found_is_refuted(case: str) -> None:
    stem, name, wrong, law = CASES[case]
    assert breaks(stem, name, wrong, law)
    if not law.startswith(CALLS):
        assert not breaks(stem, name, hints_of(stem).stem.transitions[name], law)
