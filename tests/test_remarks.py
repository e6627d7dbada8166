"""What is said beside a finding: what its words mean, how short its run is, what is folded, and what is gone."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.traces.outcome import Break, How
from conformance.traces.trace_files import LISTS, Kept
from proofs.registry import STEMS, hints_of
from slotproof.checks import checking, github, junit, remarks, replays, verdicts
from slotproof.checks.arguments import ARGUMENTS, OTHERWISE, arguments_of, meaning
from slotproof.pages import explorer
from slotproof.pages.law_pages import arguments_of_stem

DETAIL = 'advance broke a promise of slide: "the row holds the blocks" is false: row of request 1, to 1, gone [1]'
SLIDE = Break("violation", 2, "slide", "promise", "The window moves on.", DETAIL)
LEAK = Break(
    "violation", 2, "no_leak", "invariant", "No page is lost.", "full page 1 is held by nobody, the law has free"
)
STEPS = [{"op": "admit", "request": 0}, {"op": "finish", "request": 0}]


def row(found: Break, stem: str, steps: list[Json] = STEPS, **more: Any) -> Json:
    return found.row(Trace(stem, {}, steps), **more)


# Arguments.


def test_every_argument_of_every_transition_has_a_meaning_and_no_meaning_is_for_nothing() -> None:
    used = set()
    for name in STEMS:
        for transition, function in import_module(f"spec.{name}").stem.transitions.items():
            for argument in arguments_of(function):
                assert meaning(name, transition, argument)
                keys = (f"{name}.{transition}.{argument}", f"{transition}.{argument}")
                used.add(next((key for key in keys if key in OTHERWISE), argument))
    assert used == {*ARGUMENTS, *OTHERWISE}


def test_an_argument_without_a_meaning_is_an_error() -> None:
    with pytest.raises(KeyError):
        meaning("allocator", "free", "gonne")


def test_the_arguments_in_a_detail_are_explained_below_it() -> None:
    first, second = remarks.legend(row(SLIDE, "block_cache"))
    assert first == f"where to: {meaning('block_cache', 'slide', 'to')}"
    assert second.strip() == f"gone: {meaning('block_cache', 'slide', 'gone')}"
    assert "window" in first
    assert "row" not in [line.strip().partition(":")[0] for line in (first, second)]
    assert meaning("cache", "slide", "to") != meaning("block_cache", "slide", "to")


def test_words_of_a_difference_are_explained() -> None:
    (line,) = remarks.legend(row(LEAK, "allocator"))
    assert line.startswith("where held by nobody: it was handed out")
    assert remarks.legend(row(Break("violation", 1, "no_leak", "invariant", "", "page 1 is lost"), "allocator")) == []


def test_a_transition_that_no_run_reached_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    enough = {"enough": True, "too_seldom": []}
    verdicts._reach({"stem": "swa_mapping", "never_reached": ["settle_swa", "clear"], **enough}, sentences=True)
    said = capsys.readouterr().out
    assert "settle_swa: An engine need not wait for the end of the free group" in said
    assert "clear: The allocator is again as before the first call." in said
    for name in STEMS:
        for transition in remarks.transitions_of(name):
            assert remarks.first_sentence(name, transition).endswith(".")


def test_of_several_stems_the_transitions_that_no_run_reached_are_one_line_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    enough = {"enough": True, "too_seldom": []}
    verdicts._reach({"stem": "swa_mapping", "never_reached": ["settle_swa", "clear"], **enough}, sentences=False)
    assert capsys.readouterr().out == "swa_mapping: no run reached settle_swa, clear\n"


def test_a_replay_and_a_page_explain_the_arguments_of_a_promise() -> None:
    stem, said = "block_cache", "slide broke a promise of slide: row of request 1, to 1, gone [1]"
    shows = {"law": "slide", "kind": "promise", "detail": said, "verdict": "violation", "step": 1, "harm": None}
    rows = [{**shows, "subject": "vllm", "release": "0.33.0"}]
    kept = Kept("a_trace", "slide", "", "", Trace(stem, {}, [{"op": "step"}]))
    lines = replays.shown(kept, rows)
    assert f"  where to: {meaning(stem, 'slide', 'to')}" in lines
    named = {term.name: term.means for term in explorer._arguments(kept, rows[0])}
    assert named == {"argument to": meaning(stem, "slide", "to"), "argument gone": meaning(stem, "slide", "gone")}
    assert list(explorer._arguments(kept, {"law": "", "kind": ""})) == []


def test_the_page_of_the_law_says_what_each_argument_means() -> None:
    (stem,) = (hints_of(name).stem for name in STEMS if name == "swa_mapping")
    said = dict(arguments_of_stem(stem))
    assert said["`hand_over.to`"] == meaning("swa_mapping", "hand_over", "to")
    assert "`alloc_extend.to`, `alloc_extend_swa_tail.to`, `shorten.to`, `roll_back.to`" in said
    assert said["`available`"] == meaning("swa_mapping", "free_swa", "available")


# The run.


@pytest.mark.parametrize(
    ("how", "name", "words"),
    [
        (How.SHRUNK, "", "shrunk to the end; met in 1 run"),
        (How.SHRUNK, "stale", "shrunk to the end from the kept trace stale"),
        (How.KEPT, "stale", "the kept trace stale, as it is"),
        (
            How.CUT_SHORT,
            "",
            "cut short: the time was over before it was shrunk to the end; met in 1 run",
        ),
        (How.DRAWN, "", "as it was drawn, not shrunk; met in 1 run"),
    ],
)
def test_a_trace_says_how_short_it_is(how: How, name: str, words: str) -> None:
    found = row(LEAK, "allocator", how=how, name=name)
    assert remarks.about_trace(found) == f"trace: 2 operations, {words}"
    assert remarks.about_trace(found) in junit.told(found)
    assert (found["how"], found["shrunk"]) == (str(how), how in (How.SHRUNK, How.KEPT))


def test_other_runs_are_a_line_each() -> None:
    other = {"status": "worse", "step": 1, "detail": "page 2 is lost", "base": "", "name": "", "how": "cut short"}
    other["times"] = 7
    found = row(LEAK, "allocator", folded=[{**other, "trace": Trace("allocator", {}, STEPS[:1]).as_json()}])
    head, line = remarks.folded(found)
    assert head.startswith("1 more of its runs")
    assert line.startswith("  ends with admit, worse; 1 operation, cut short: the time was over")
    assert line.endswith("; met in 7 runs: page 2 is lost")
    assert [head, line] == junit.told(found)[-5:-3] or {head, line} <= {*junit.told(found)}
    assert list(remarks.folded(row(LEAK, "allocator"))) == []


def test_a_short_known_run_is_printed_and_a_long_one_says_where_it_is() -> None:
    known = row(LEAK, "allocator", how=How.DRAWN)
    assert verdicts.run_of(known, 1) == "admit(request=0); finish(request=0)"
    long = row(LEAK, "allocator", STEPS * 19, how=How.DRAWN)
    assert "slotproof replay FILE#known.3 repeats them" in verdicts.run_of(long, 3)


# What is gone.


def report(base: Json | None, *gone: Json, new: tuple[Json, ...] = ()) -> Json:
    empty: Json = {name: [] for name in LISTS}
    subject = {"label": "mine", "own": False, "options": {}, "notes": [], "source": None, "engine": "mine", "roots": []}
    isolation = {"network": "none", "home": "none"}
    looked: Json = {
        "runs": 9,
        "steps": 900,
        "refused": 1,
        "never_reached": [],
        "avoided": {},
        "enough": True,
        "ran": {},
    }
    looked |= {"stem": "allocator", "verdict": "conforms", "cut_short": False, "seconds": 1.0}
    looked |= {"claimed": [], "too_seldom": [], "over": 0.0}
    made = {
        **empty,
        "base": base,
        "gone": list(gone),
        "new": list(new),
        "options": {"stems": [], "repaired": []},
        "seconds": 1.0,
    }
    made["over"] = 0.0
    made |= {"subject": {**subject, "isolation": isolation}, "slotproof": "0"}
    made["results"] = [{**looked, **{name: len(made[name]) for name in LISTS}}]
    made["exit"], made["reason"] = checking._exit(made)
    return made


BASE = {"why": "the folder base"}
SAYS = "your change hides a known violation: look"


def test_a_hidden_violation_has_its_own_line_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    gone = row(LEAK, "allocator", name="kept_leak", detail="the subject holds; the base: page 1 is lost")
    made = report(BASE, gone)
    assert (made["exit"], made["reason"]) == (0, f"nothing new; but {SAYS} (1 gone)")
    verdicts.show_report(made)
    printed = capsys.readouterr().out.splitlines()
    (line,) = [line for line in printed if line.startswith(SAYS)]
    assert "law no_leak" in line
    assert "kept_leak" in line
    assert "  the subject holds; the base: page 1 is lost" in printed
    assert f"gone: law no_leak (violation): {SAYS}" in junit.text(made)
    (annotated,) = github.annotated(made)
    assert annotated.startswith("::warning")
    assert SAYS.replace(":", "%3A") in annotated
    assert SAYS in github.summary(made)


def test_a_hidden_latent_finding_is_a_notice_and_no_reason() -> None:
    gone = row(Break("latent", 2, "stale", "invariant", "", ""), "allocator", name="kept_stale")
    made = report(BASE, gone)
    assert made["reason"] == "nothing new"
    (annotated,) = github.annotated(made)
    assert annotated.startswith("::notice")
    assert "hides a known latent finding" in annotated


def test_without_a_base_a_listed_difference_that_is_gone_hides_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    made = report(None, row(LEAK, "allocator", name="kept_leak"))
    assert (made["exit"], "take it off its list" in made["reason"]) == (1, True)
    verdicts.show_report(made)
    assert "hides" not in capsys.readouterr().out + junit.text(made) + github.summary(made)


def test_something_new_is_the_reason_though_something_is_gone() -> None:
    made = report(BASE, row(LEAK, "allocator", name="kept_leak"), new=(row(SLIDE, "block_cache"),))
    assert (made["exit"], made["reason"]) == (1, "something new is broken")


def test_what_was_drawn_otherwise_is_told_with_how_often() -> None:
    said = verdicts.avoided({"stem": "server", "avoided": {"server.b": 1, "server.a": 1, "server.c": 12}})
    assert said == (
        "server: drawn otherwise, since it is known to break a law: server.c 12 times, server.a once, server.b once"
    )
