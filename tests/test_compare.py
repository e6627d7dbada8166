"""Subject and base side by side: what is new, worse, incomparable, known or gone, on one trace and in drawn runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from driven import Variant

from conformance.driver.lockstep import CONFORMS, LATENT, UNSUPPORTED, VIOLATION, Finding
from conformance.driver.protocol import EngineError, Json, Unsupported
from conformance.driver.trace import Trace
from conformance.engines.registry import Loaded
from conformance.engines.toy import ToyAllocator
from conformance.planted.faults.known_bugs import FAULTS
from conformance.search import judge
from conformance.search.check import Search, check
from conformance.search.done import TELLING
from conformance.search.hunt import Difference, Hunt, Hunted, HuntLimits, Repairs
from conformance.stems.machine import Sink, TimeIsUp
from conformance.traces import known
from conformance.traces.compare import Status, compare, in_words
from conformance.traces.known import KnownDifference
from conformance.traces.outcome import Break, How, Outcome, outcome
from conformance.traces.shrink import shrink

LEAK = Break(VIOLATION, 3, "no_leak", "invariant", "No page is lost.", "page 1 is lost")
STALE = Break(LATENT, 2, "free_maps_to_nothing", "invariant", "A free slot maps to nothing.", "slot 3")


# One trace.


@pytest.mark.parametrize(
    ("found", "base", "status"),
    [
        (LEAK, Outcome(), Status.NEW),
        (STALE, Outcome(), Status.NEW),
        (LEAK, Outcome((LEAK,)), Status.KNOWN),
        (LEAK, Outcome((replace(LEAK, step=2, detail="another page"),)), Status.KNOWN),
        (LEAK, Outcome((replace(LEAK, step=4),)), Status.WORSE),
        (LEAK, Outcome((replace(LEAK, severity=LATENT),)), Status.WORSE),
        (replace(LEAK, severity=LATENT), Outcome((LEAK,)), Status.KNOWN),
        (LEAK, Outcome((replace(LEAK, kind="promise"),)), Status.INCOMPARABLE),
        (LEAK, Outcome((replace(LEAK, law="one_owner", step=2),)), Status.INCOMPARABLE),
        (LEAK, Outcome((replace(LEAK, law="one_owner", step=4),)), Status.WORSE),
        (LEAK, Outcome((STALE,)), Status.WORSE),
        (LEAK, Outcome((STALE, LEAK)), Status.KNOWN),
        (STALE, Outcome((replace(STALE, law="enough_is_granted"),)), Status.NEW),
        (LEAK, Outcome((), "the engine has no decode", 2), Status.INCOMPARABLE),
        (LEAK, Outcome((), "the engine has no decode", 3), Status.INCOMPARABLE),
        (LEAK, Outcome((), "the engine has no decode", 4), Status.NEW),
        (LEAK, Outcome((STALE,), "the engine has no decode", 3), Status.INCOMPARABLE),
    ],
)
def test_what_a_broken_law_is_beside_a_base(found: Break, base: Outcome, status: Status) -> None:
    assert compare(found, base) is status
    assert in_words(status, found, base)


def test_an_outcome_crosses_processes_whole() -> None:
    shown = Outcome((STALE, LEAK), "no decode", 4)
    assert Outcome.from_json(shown.as_json()) == shown


def test_an_outcome_names_every_latent_law_and_the_violation() -> None:
    shown = Outcome((STALE, replace(STALE, law="enough_is_granted", step=3), replace(LEAK, step=5)))
    assert (shown.verdict, shown.first) == (VIOLATION, replace(LEAK, step=5))
    assert Outcome((STALE,)).verdict == LATENT
    assert Outcome((STALE,), "no decode", 4).verdict == UNSUPPORTED
    assert Outcome((STALE,), "row 0 is empty", 4, misused=True).verdict == LATENT
    assert Outcome((), "row 0 is empty", 4, misused=True).verdict == UNSUPPORTED
    assert Outcome().verdict == CONFORMS


# Drawn runs. The engines are the toy with one or two bugs.


def leaks(config: Json) -> Any:
    """A free of several pages forgets one of them."""
    return ToyAllocator(config["size"], config["page_size"], leaks=True)


def sound(config: Json) -> Any:
    """The toy without a bug."""
    return ToyAllocator(config["size"], config["page_size"])


def doubled(make: Callable[[Json], Any], config: Json) -> Any:
    """A decode that finds no page hands out page 1, which somebody may own. The law of it is broken later than in
    ``leaks``: runs must have used every page.
    """
    made = make(config)

    def decode(after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        slots = made.decode(after, last)
        return [config["page_size"]] * len(after) if slots is None else slots

    return Variant(made, decode=decode)


BOTH = partial(doubled, leaks)


def hunted(subject: Callable[[Json], Any], base: Callable[[Json], Any], examples: int = 100) -> Hunted:
    hunt = Hunt("allocator", subject, lambda trace: outcome(trace, base), HuntLimits(examples, seed=1))
    return hunt.run([], ())


def laws(found: Hunted, status: Status) -> set[str]:
    return {d.found.law for d in found.differences if d.status is status}


def test_a_leak_is_new_beside_a_sound_base_and_its_run_is_short() -> None:
    found = hunted(leaks, sound)
    assert laws(found, Status.NEW) == {"no_leak"}
    assert not laws(found, Status.KNOWN) | laws(found, Status.WORSE) | laws(found, Status.INCOMPARABLE)
    for one in found.differences:
        assert outcome(one.trace, leaks).verdict == VIOLATION
        assert outcome(one.trace, sound) == Outcome()
        assert len(one.trace.steps) <= 3
        assert one.how is How.SHRUNK


@pytest.mark.soak
def test_one_finding_a_law_and_its_other_runs_are_folded_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each law has its first run shrunk before any law has a second run begun."""
    begun: list[tuple[str, str]] = []

    def heard(finding: Finding, trace: Trace, *more: Any, **named: Any) -> Any:
        begun.append((finding.law, trace.steps[-1]["op"]))
        return shrink(finding, trace, *more, **named)

    monkeypatch.setattr("conformance.search.hunt.shrink", heard)
    found = hunted(BOTH, sound)
    told = [(d.found.law, d.found.kind, d.found.severity) for d in found.differences]
    assert len(told) == len({*told}) > 1
    assert len(begun) > len(told), "some law has more runs than one"
    assert {law for law, _ in begun[: len(told)]} == {law for law, _, _ in told}
    runs = [(d, one) for d in found.differences for one in d.shapes]
    assert runs
    for first, one in runs:
        assert (one.found.is_like(first.found), one.shapes) == (True, ())
        assert one.trace.steps[-1]["op"] != first.trace.steps[-1]["op"] or not one.says_more_than(first)
        assert outcome(one.trace, BOTH).like(one.found)
        assert not outcome(one.trace, sound).like(one.found)


@pytest.mark.soak
def test_after_the_time_one_run_for_each_operation_is_told_as_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: Any, **__: Any) -> Any:
        raise TimeIsUp

    monkeypatch.setattr("conformance.search.hunt.shrink", late)
    hunt = Hunt("allocator", BOTH, lambda trace: outcome(trace, sound), HuntLimits(100, seed=1))
    hunt.run([], ())
    monkeypatch.setattr(hunt, "_time_is_up", lambda _: True)
    told = hunt.new()
    assert len({d.found.law for d in told}) > 1
    for first in told:
        ends = [one.trace.steps[-1]["op"] for one in (first, *first.shapes)]
        assert len(ends) == len({*ends})
        assert {one.how for one in (first, *first.shapes)} == {How.CUT_SHORT}
    assert any(first.shapes for first in told)


def test_an_engine_beside_itself_shows_nothing_new_and_every_broken_law_as_known() -> None:
    found = hunted(BOTH, BOTH)
    assert {d.status for d in found.differences} == {Status.KNOWN}
    assert "no_leak" in laws(found, Status.KNOWN)
    assert found.steps > 300
    (leak,) = [d for d in found.differences if d.found.law == "no_leak"]
    assert leak.times > 10


def test_a_new_bug_is_found_behind_a_known_one() -> None:
    """Almost every run meets the leak first."""
    found = hunted(BOTH, leaks)
    assert "no_leak" in laws(found, Status.KNOWN)
    assert laws(found, Status.NEW)
    assert "no_leak" not in laws(found, Status.NEW)
    for one in found.differences:
        if one.status is Status.NEW:
            assert outcome(one.trace, leaks) == Outcome()
            assert one.trace.steps[-1]["op"] == "decode"


def test_what_is_behind_a_known_bug_is_found_where_both_are_repaired() -> None:
    """The known bug breaks a law in the first call of each run, so that no run goes on behind it."""
    repaired: list[str] = []

    def stops(make: Callable[[Json], Any], broken: bool | None, config: Json) -> Any:
        made = make(config)
        stopped = not repaired if broken is None else broken
        return Variant(made, extend=lambda *_: [1] * 99) if stopped else made

    def shows(broken: bool) -> Callable[[Trace], Outcome]:
        return lambda trace: outcome(trace, partial(stops, sound, broken))

    def search(repairs: Repairs | None) -> tuple[Hunt, Hunted]:
        repaired.clear()
        subject = partial(stops, leaks, None)
        hunt = Hunt("allocator", subject, shows(broken=True), HuntLimits(60, seed=1))
        return hunt, hunt.run([], (), None if repairs is None else lambda: repairs)

    as_they_are, found = search(None)
    assert not laws(found, Status.NEW)
    assert not as_they_are.repaired
    with_repairs, found = search(Repairs(["known"], partial(repaired.append, "the known bug"), shows(broken=False), ()))
    assert with_repairs.repaired == ["known"]
    assert laws(found, Status.NEW) == {"no_leak"}
    assert laws(found, Status.KNOWN), "the first runs are of the engines as they are"
    for one in found.differences:
        if one.status is Status.NEW:
            assert one.how is How.SHRUNK
            assert shows(broken=False)(one.trace) == Outcome()


@pytest.mark.soak
def test_without_the_steps_back_the_leak_would_end_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above is good for: runs that end at the known leak do many fewer operations."""
    on = hunted(BOTH, leaks, examples=300)
    monkeypatch.setattr("conformance.stems.machine.STEPS_BACK", 0)
    off = hunted(BOTH, leaks, examples=300)
    assert off.steps < on.steps * 0.8


def test_what_the_subject_has_mended_is_gone() -> None:
    config = {"size": 3, "page_size": 1, "size_swa": 1, "rows": 3, "need_sort": False}
    steps: list[Json] = [{"op": "extend", "rows": [0], "more": [2]}, {"op": "finish", "row": 0, "committed": 2}]
    trace = Trace("allocator", config, steps)
    hunt = Hunt("allocator", sound, lambda t: outcome(t, leaks), HuntLimits(5, seed=1))
    (gone,) = hunt.run([("kept_leak", trace)], ()).gone
    assert (gone.name, gone.found.law, gone.detail) == ("kept_leak", "no_leak", "holds")


def test_what_is_mended_is_gone_though_another_law_is_broken_less_gravely() -> None:
    """The subject refuses what fits, which is latent, and leaks no more."""

    def refuses(config: Json) -> Any:
        made = sound(config)

        def extend(*rows: Sequence[int]) -> Any:
            return None if len(made.free_pages) == 1 else made.extend(*rows)

        return Variant(made, extend=extend)

    config = {"size": 3, "page_size": 1, "size_swa": 1, "rows": 3, "need_sort": False}
    steps: list[Json] = [
        {"op": "extend", "rows": [0], "more": [2]},
        {"op": "extend", "rows": [1], "more": [1]},
        {"op": "finish", "row": 0, "committed": 2},
    ]
    hunt = Hunt("allocator", refuses, lambda t: outcome(t, leaks), HuntLimits(1, seed=1))
    found = hunt.run([("kept_leak", Trace("allocator", config, steps))], ())
    assert [(gone.found.law, gone.detail) for gone in found.gone] == [("no_leak", "holds")]
    assert "enough_is_granted" in laws(found, Status.NEW) | laws(found, Status.INCOMPARABLE)


@pytest.mark.soak
def test_a_call_that_the_base_lacks_is_incomparable() -> None:
    def without_decode(config: Json) -> Any:
        made = sound(config)
        made.lacks = (*made.lacks, "decode")
        return made

    found = hunted(partial(doubled, sound), without_decode)
    assert laws(found, Status.INCOMPARABLE)
    assert not laws(found, Status.NEW)
    assert all("cannot make the call" in d.base for d in found.differences)


def test_a_configuration_that_the_base_lacks_is_incomparable() -> None:
    def nothing(_: Json) -> Any:
        raise Unsupported("nothing fits")

    assert {d.status for d in hunted(leaks, nothing).differences} == {Status.INCOMPARABLE}


def fails_with_pages(config: Json) -> Any:
    """An engine whose own code fails with pages of several tokens."""
    if config["page_size"] > 1:
        raise EngineError("toy, allocator: the engine cannot be built", unbuilt="ValueError: no pages (toy.py:7)")
    return sound(config)


def test_an_engine_that_cannot_be_built_is_new_beside_a_base_that_can() -> None:
    def answers(make: Any) -> Callable[[Trace], Outcome]:
        return lambda trace: outcome(trace, make)

    built = judge.Built("allocator", fails_with_pages, answers(sound))
    found = Hunt("allocator", built, answers(sound), HuntLimits(examples=20, seed=1)).run([], ())
    (row,) = built.rows()
    assert (row["severity"], row["law"], row["step"]) == (VIOLATION, "lawful_call_is_answered", 0)
    assert row["detail"] == "the engine cannot be built: ValueError: no pages (toy.py:7)"
    assert row["trace"]["config"]["page_size"] > 1
    assert found.runs, "runs go on with what can be built"

    def nothing(_: Json) -> Any:
        raise Unsupported("nothing fits")

    for other in (nothing, fails_with_pages):
        refused = judge.Built("allocator", fails_with_pages, answers(other))
        with pytest.raises(Unsupported, match="the engine cannot be built"):
            refused({"page_size": 4, "size": 4})
        assert not refused.rows(), "no server has this configuration"


@pytest.mark.soak
def test_shrinking_makes_an_incomparable_run_new_where_a_shorter_one_shows_it() -> None:
    """The base breaks another law in most runs in which the decode is wrong."""
    found = hunted(partial(doubled, sound), leaks)
    assert laws(found, Status.NEW)
    assert not laws(found, Status.INCOMPARABLE) - laws(found, Status.NEW)


@pytest.fixture
def empty_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run that is drawn has no operation."""

    def draws_an_empty_run(_: str, __: Any, sink: Sink, ___: Any) -> None:
        sink.runs += 1
        assert sink.runs < 1_000, "the search never ends"
        time.sleep(0.001)

    monkeypatch.setattr("conformance.search.hunt.draw", draws_an_empty_run)


@pytest.mark.usefixtures("empty_runs")
def test_runs_without_an_operation_end_with_the_time() -> None:
    limits = HuntLimits(None, seed=1, seconds=0.01, together=1)
    assert Hunt("allocator", sound, lambda trace: outcome(trace, sound), limits).run([], ()).cut_short


def test_a_search_that_is_cut_short_says_so_and_keeps_what_it_has() -> None:
    limits = HuntLimits(None, seconds=1.5, seed=1)
    found = Hunt("allocator", leaks, lambda trace: outcome(trace, sound), limits).run([], ())
    assert found.cut_short
    assert laws(found, Status.NEW) == {"no_leak"}
    assert found.seconds < 30


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("seed", [None, 2, 3])
def test_other_seeds_find_nothing_new_between_equals(seed: int | None) -> None:
    hunt = Hunt("allocator", BOTH, lambda trace: outcome(trace, BOTH), HuntLimits(60, seed=seed))
    assert {d.status for d in hunt.run([], ()).differences} == {Status.KNOWN}


def shape(*ops: str, found: Break = LEAK) -> Difference:
    return Difference(Status.NEW, found, Trace("allocator", {}, [{"op": op} for op in ops]), "")


def test_a_longer_way_to_one_operation_that_breaks_one_law_says_nothing_more() -> None:
    assert shape("extend", "trim", "extend", "free").says_more_than(shape("extend", "free"))
    assert not shape("extend", "free").says_more_than(shape("extend", "trim", "free"))
    assert not shape("extend", "trim").says_more_than(shape("extend", "free")), "another operation breaks it"
    assert not shape("extend", "free").says_more_than(shape("extend", "free", found=STALE)), "another law"


# An engine alone.

ASKED = {"stem": "allocator", "engine": "toy", "examples": 30, "steps": 0, "seed": None, "seconds": None}


def alone(make: Callable[[Json], Any], **asked: Any) -> Json:
    return judge.alone(
        Loaded("toy", None, {"allocator": make}), {**ASKED, "listed": None, "strict": False, **asked}, lambda *_: None
    )


def test_alone_a_leak_is_a_violation_with_its_story() -> None:
    found = alone(leaks)
    assert found["verdict"] == VIOLATION
    (row,) = found["new"]
    assert row["law"] == "no_leak"
    assert row["story"][-1]["wrong"]
    assert found["never_reached"]


def test_who_wants_to_go_on_soon_gets_a_longer_run_without_its_story() -> None:
    (row,) = alone(leaks, first=True, shrinking=0.0, untold=True)["new"]
    assert row["law"] == "no_leak"
    assert (row["how"], row["story"]) == (str(How.CUT_SHORT), [])
    assert alone(leaks, first=True)["new"][0]["story"]


def test_alone_a_frequent_bug_hides_no_rare_one() -> None:
    """Almost every run meets the leak; the decode is wrong only where a run has used every page."""
    found = alone(BOTH, examples=100)
    told = {row["law"]: row for row in found["new"]}
    assert len(told) == len(found["new"]) > 1
    assert found["runs"] >= 100, "a finding is no reason to draw fewer runs than were asked for"
    leak, rare = told.pop("no_leak"), min(told.values(), key=lambda row: row["times"])
    assert 2 * rare["times"] < leak["times"]
    assert rare["trace"]["steps"][-1]["op"] == "decode"
    for row in (leak, rare):
        assert (row["base"], row["how"], bool(row["story"])) == ("", str(How.SHRUNK), True)
        assert outcome(Trace(**row["trace"]), BOTH).breaks[-1].law == row["law"]
    assert outcome(Trace(**rare["trace"]), leaks) == Outcome(), "the leak has no part in it"


def test_alone_who_wants_the_first_finding_gets_one_and_draws_no_more() -> None:
    found = alone(BOTH, examples=100, first=True)
    assert len(found["new"]) == 1
    assert found["runs"] < 20


@pytest.mark.soak
def test_equal_seeds_find_equal_things() -> None:
    def shown(seed: int | None) -> list[Json]:
        return [{**row, "harm": None} for row in alone(BOTH, examples=60, seed=seed)["new"]]

    assert shown(None) == shown(None)
    assert shown(5) == shown(5) != shown(None)


def test_a_run_that_meets_a_finding_several_times_counts_once() -> None:
    """Each run steps back before the leak and meets it again."""
    heard: list[int] = []
    hunt = Hunt("allocator", leaks, lambda _: Outcome(), HuntLimits(50, seed=1, shapes=1))
    passes = hunt.sink.passes

    def hears(finding: Finding, trace: Trace) -> bool:
        heard.append(hunt.sink.runs)
        return passes(finding, trace)

    hunt.sink.passes = hears
    (leak,) = hunt.run([], ()).differences
    assert leak.times == len({*heard}) < len(heard)
    ends = [one.trace.steps[-1]["op"] for one in (leak, *leak.shapes)]
    assert len(ends) == len({*ends}) > 1
    for shape in leak.shapes:
        assert 1 <= shape.times <= leak.times


def test_findings_share_the_time_in_which_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one gets all that the others have left."""
    given: list[float] = []

    def harmless(*asked: Any) -> None:
        given.append(asked[-1])

    monkeypatch.setattr(judge, "harm", harmless)
    told = alone(BOTH, seconds=10.0)["new"]
    assert len(given) == len(told) > 1
    assert given == sorted(given)
    assert given[0] * len(told) <= 10.0
    assert given[-1] > 10.0 * TELLING / 2


@pytest.mark.usefixtures("empty_runs")
def test_alone_runs_without_an_operation_end_with_the_time() -> None:
    assert alone(sound, examples=None, seconds=0.01, drawn_alone=True)["cut_short"]


def test_alone_goes_on_until_so_many_operations_are_done() -> None:
    found = alone(sound, examples=2, steps=400)
    assert found["verdict"] == CONFORMS
    assert 400 <= found["steps"] < 800
    assert found["transitions"]["alloc_extend done"] > 0
    assert found["refused"] == sum(n for name, n in found["transitions"].items() if name.endswith(" refused"))


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy is known to have a bug of another engine, which it has not."""
    gone = KnownDifference("decode_on_empty_list", "lawful_call_is_answered", VIOLATION, "allocator.short_decode")
    monkeypatch.setattr(known, "of_release", lambda *_: [gone])


@pytest.mark.usefixtures("listed")
def test_a_listed_difference_that_is_gone_hides_no_finding() -> None:
    found = alone(leaks)
    (gone,) = found["gone"]
    assert (gone["name"], gone["law"]) == ("decode_on_empty_list", "lawful_call_is_answered")
    assert (found["verdict"], found["new"][0]["law"]) == (VIOLATION, "no_leak")


@pytest.mark.usefixtures("listed")
def test_a_listed_difference_that_occurs_is_the_verdict_and_hides_no_latent_finding() -> None:
    """The engine dies where the list says so, and besides refuses what fits, which is latent."""

    def dies(config: Json) -> Any:
        made = sound(config)

        def decode(after: Sequence[int], last: Sequence[int]) -> list[int] | None:
            slots: list[int] | None = made.decode(after, last)
            if slots is None:
                raise RuntimeError("no free page")
            return slots

        def extend(*rows: Sequence[int]) -> Any:
            return None if len(made.free_pages) == 1 else made.extend(*rows)

        return Variant(made, decode=decode, extend=extend)

    found = alone(dies, examples=60)
    (row,) = found["known"]
    assert (row["law"], row["severity"], row["name"]) == ("lawful_call_is_answered", VIOLATION, "decode_on_empty_list")
    assert found["verdict"] == VIOLATION
    assert [(new["law"], new["severity"]) for new in found["new"]] == [("enough_is_granted", LATENT)]
    assert found["new"][0]["trace"] != row["trace"]


def test_new_runs_leave_out_what_is_known_of_a_stem_and_of_its_parts() -> None:
    listed = [
        KnownDifference("tail_inside_page", "mapping_keeps_offset", VIOLATION, "swa_mapping.tail_inside_page"),
        KnownDifference("second_retract_detaches", "no_leak", VIOLATION, "session_trim.retract_twice"),
        KnownDifference("nested_group_forgets_allocator", "no_leak", VIOLATION, "allocator.nested_group"),
        KnownDifference("restore_under_reader", "one_owner", VIOLATION, ""),
    ]
    left_out = {stem: {str(e) for e in judge.excluded(stem, listed)} for stem in ("allocator", "cache", "lock_ref")}
    assert left_out == {
        "allocator": {"allocator.nested_group"},
        "cache": {"swa_mapping.tail_inside_page", "session_trim.retract_twice"},
        "lock_ref": set(),
    }


def test_a_finding_is_kept_where_the_time_ends_while_its_run_is_repeated() -> None:
    """Hypothesis repeats a run that fails. It used to say that the run is flaky, and the finding was lost."""
    sink = Sink(late=lambda: True)

    def before(*_: object) -> None:
        if sink.failure is not None:
            raise TimeIsUp

    sink.before = before
    found = check("swa_mapping", FAULTS["tail_inside_page"].make, Search(200, seed=1), sink)
    assert (found.verdict, found.how) == (VIOLATION, How.CUT_SHORT)
