"""What the explorer draws of kept traces on our implementation with planted bugs, and on an engine of the tests: which
page is the red one, who is told to be hurt by it, and that one can step on to the harm.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import pytest

from conformance.driver.lockstep import UNSUPPORTED, VIOLATION
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.engines.registry import Loaded
from conformance.planted.faults.known_bugs import FAULTS
from conformance.search.harm import PLANS
from conformance.search.replay import row
from conformance.stems.panels import item, panel, uses_of
from conformance.telling.tell import tell
from conformance.traces import trace_files
from conformance.traces.outcome import outcome
from conformance.traces.trace_files import Kept
from slotproof.pages import explorer
from slotproof.pages.explorer import ExplorerStep, steps_of
from slotproof.pages.marking import marked, with_guides
from slotproof.pages.strip import Owners, figures
from slotproof.pages.templating import environment


def of_bug(trace: str, fault: str) -> list[ExplorerStep]:
    """The steps of a kept trace on our implementation with a planted bug."""
    return steps_of([asdict(step) for step in tell(trace_files.load(trace).trace, FAULTS[fault].make)])


def red(step: ExplorerStep) -> list[str]:
    """The pages whose cells are red."""
    strips = (strip for drawn in step.figures for strip in drawn["strips"])
    return [cell["key"] for strip in strips for cell in strip["cells"] if cell["mark"] == "bad"]


def red_arrows(step: ExplorerStep) -> list[tuple[str, str]]:
    """Who has a red arrow, and to which page."""
    lanes = (lane for drawn in step.figures for lane in drawn["lanes"])
    return [(lane["name"], arrow["to"]) for lane in lanes for arrow in lane["arrows"] if arrow["bad"]]


# The page that is wrong.

RED = {
    "insert_under_reader": ("insert_under_reader", 3, ["full page 1"]),  # freed under its reader
    "restore_leaves_mapping": ("pr_25805", 3, ["full page 1"]),  # a stale mapping
    "decode_keeps_full_pages": ("half_decode", 2, ["full page 3", "full page 4"]),  # lost pages
    "tail_inside_page": ("tail_inside_page", 1, ["full page 1"]),  # slots without their offset
}


@pytest.mark.parametrize("trace", RED)
def test_the_page_that_is_wrong_is_the_red_one(trace: str) -> None:
    fault, broken, pages = RED[trace]
    steps = of_bug(trace, fault)
    assert [red(step) for step in steps] == [[]] * broken + [pages]


def test_a_page_that_is_freed_under_its_reader_says_who_reads_it() -> None:
    before, step = of_bug("insert_under_reader", "insert_under_reader")[-2:]
    assert before.hurts == []
    assert step.hurts == ["full page 1 is free, and row 0 (request 0) still reads it"]
    assert red_arrows(step) == [("row 0 (request 0)", "full page 1")]


def test_a_stale_mapping_is_a_red_line() -> None:
    (*_, before, step) = of_bug("restore_leaves_mapping", "pr_25805")
    wrong = [
        [(m["from"], m["to"]) for drawn in one.figures for m in drawn["maps"] if m["wrong"]] for one in (before, step)
    ]
    assert wrong == [[], [("full page 1", "SWA page 1")]]


@pytest.mark.parametrize(
    ("look", "uses", "says"),
    [
        ("free", uses_of(read=["row 0"]), ["page 1 is free, and row 0 still reads it"]),
        ("free", uses_of(read=["row 0", "row 2"]), ["page 1 is free, and row 0 and row 2 still read it"]),
        ("released", uses_of(kept=["row 0"]), ["page 1 was freed, and row 0 still has it"]),
        ("free", uses_of(["row 1"], (), ["row 2"]), [f"page 1 is free, and row {n}" for n in (1, 2)]),
        ("held", uses_of(["node [1]"], (), ["row 0"]), []),
        ("pending", uses_of(kept=["row 0"]), []),
        ("free", uses_of(), []),
    ],
)
def test_who_is_hurt_by_a_page(look: str, uses: Json, says: list[str]) -> None:
    pages = [panel("pages", "Pages", [item("page 1", "page 1", {"place": look}, look, uses=uses)])]
    (shown,) = marked(pages, pages, [])[0]["items"]
    assert [said[: len(wanted)] for said, wanted in zip(shown["hurts"], says, strict=True)] == says
    assert shown["mark"] == ("bad" if says else "")


def test_a_page_that_hurts_is_red_and_what_else_is_named_is_not() -> None:
    uses = uses_of(read=["row 0"])
    pages = [item("page 1", "page 1", {}, "free", uses=uses), item("page 2", "page 2", {}, "held")]
    now = [panel("pages", "Pages", pages), panel("rows", "Rows", [item("row 0", "row 0", {})])]
    marks = {
        one["key"]: one["mark"] for one in (i for p in marked(now, now, [], "page 2 and row 0") for i in p["items"])
    }
    assert marks == {"page 1": "bad", "page 2": "odd", "row 0": "odd"}


def test_nothing_is_red_in_a_lawful_run() -> None:
    makers = registry.load(registry.own().name).makers
    seen = 0
    for kept in trace_files.every():
        make = makers.get(kept.trace.stem)
        if make is None or outcome(kept.trace, make).verdict == UNSUPPORTED:
            continue
        for step in steps_of([asdict(told) for told in tell(kept.trace, make)]):
            assert (red(step), step.hurts, red_arrows(step), step.harmed) == ([], [], [], None), (kept.name, step.call)
            seen += 1
    assert seen > 100


# The strip, the lines and the tree.


def test_a_cell_has_the_letter_of_its_holder_on_every_step() -> None:
    steps = of_bug("insert_under_reader", "insert_under_reader")
    letters: dict[str, set[str]] = {}
    for step in steps:
        for lane in (lane for drawn in step.figures for lane in drawn["lanes"]):
            letters.setdefault(Owners.who(lane["name"]), set()).add(lane["letter"])
    assert all(len(found) == 1 for found in letters.values()), letters
    assert len({*map(tuple, letters.values())}) == len(letters), "nobody shares a letter"
    last = steps[2].figures[0]
    cells = {cell["key"]: cell["says"] for cell in last["strips"][-1]["cells"]}
    (node,) = letters["node [1000]"]
    assert (cells["full page 1"], cells["full page 5"]) == (node, "free")


def test_an_arrow_leads_to_each_page_that_somebody_holds_or_reads() -> None:
    step = of_bug("insert_under_reader", "insert_under_reader")[2]
    (drawn,) = step.figures
    lanes = {lane["name"]: sorted((arrow["to"], arrow["how"]) for arrow in lane["arrows"]) for lane in drawn["lanes"]}
    assert lanes == {
        "row 0 (request 0)": [(f"full page {n}", "read") for n in (1, 2, 3, 4)],
        "node [1000]": [("full page 1", "held")],
        "node [1000, 1001, 1002, 1003]": [(f"full page {n}", "held") for n in (2, 3, 4)],
    }
    centers = {cell["key"]: cell["x"] + 25 for strip in drawn["strips"] for cell in strip["cells"]}
    below = max(cell["y"] for strip in drawn["strips"] for cell in strip["cells"])
    for lane in drawn["lanes"]:
        for arrow in lane["arrows"]:
            assert abs(arrow["x"] - centers[arrow["to"]]) < 25, "it ends below its cell"
            assert arrow["y"] > below
    assert {(m["from"], m["to"]) for m in drawn["maps"]} == {(f"full page {n}", f"SWA page {n}") for n in (1, 2, 3, 4)}


def test_lines_lead_from_each_node_to_its_parent() -> None:
    depths = [0, 1, 2, 2, 1]
    nodes = with_guides([{"depth": depth} for depth in depths])
    assert [node["guides"] for node in nodes] == [[], ["tee"], ["pass", "tee"], ["pass", "elbow"], ["elbow"]]


def test_a_strip_without_holders_has_no_lanes() -> None:
    pages = [panel("pages", "Pages", [item("page 1", "page 1", {"place": "free"}, "free")])]
    shown = marked(pages, pages, [])
    (drawn,) = figures(shown, Owners([shown]))
    assert (drawn["lanes"], [cell["says"] for cell in drawn["strips"][0]["cells"]]) == ([], ["free"])


# The steps up to the harm.


def story_of(trace: str, fault: str) -> tuple[Kept, Json]:
    kept = trace_files.load(trace)
    faulty = Loaded("faulty", "1", {kept.trace.stem: FAULTS[fault].make})
    return kept, row(kept, faulty, told=True)


@pytest.mark.parametrize(
    ("trace", "fault"), [("insert_under_reader", "insert_under_reader"), ("restore_under_reader", "restore_under_lock")]
)
def test_the_steps_reach_the_harm(trace: str, fault: str) -> None:
    kept, found = story_of(trace, fault)
    harm, steps = found["harm"], steps_of(found["story"])
    own = len(kept.trace.steps)
    assert [step.driven_on for step in steps] == [False] * (own + 1) + [True] * len(harm["onward"])
    assert [step.call for step in steps[own + 1 :]] == [*harm["onward"]]
    assert [n for n, step in enumerate(steps) if step.harmed] == [harm["step"]] == [len(steps) - 1]
    last = steps[-1]
    assert last.harmed is not None
    assert (last.harmed["reader"], last.harmed["says"]) == (harm["request"], harm["where"])
    assert red(last) == [last.harmed["page"]]
    assert [name for name, _ in red_arrows(last)] == [harm["request"]]
    slot = int(re.findall(r"slot (\d+) of the full pool", harm["where"])[0])
    assert red(last) == [f"full page {slot // kept.trace.config['page_size']}"]


def test_steps_of_a_run_with_another_request_beside_it_have_the_numbers_of_the_harm() -> None:
    kept, found = story_of("insert_under_reader", "insert_under_reader")
    assert found["beside"] == found["harm"]["beside"] > 0
    assert [told["call"] for told in found["story"][:3]] == kept.trace.lines(), "the other request comes in step 0"
    rows = [
        one["name"]
        for p in found["story"][0]["picture"]["before"]
        for one in p["items"]
        if one["key"].startswith("row")
    ]
    assert len(rows) == 1
    words = " ".join(
        str(fact) for p in found["story"][-1]["picture"]["panels"] for i in p["items"] for fact in i["facts"].values()
    )
    numbers = {int(n) for n in re.findall(r"in step (\d+)", words)}
    assert max(numbers) == found["harm"]["step"], "who wrote what is counted alike"


def test_a_harm_that_does_not_come_again_has_no_steps() -> None:
    kept = trace_files.load("restore_under_reader")
    faulty = Loaded("faulty", "1", {kept.trace.stem: FAULTS["restore_under_lock"].make})
    known = row(kept, faulty)
    wrong = {**known, "harm": {**known["harm"], "onward": [*known["harm"]["onward"][:-1], "a call of nobody"]}}
    found = row(kept, faulty, told=True, known=wrong)
    assert len(found["story"]) == len(kept.trace.steps)
    assert len(row(kept, faulty, told=True, known=known)["story"]) == len(kept.trace.steps) + len(
        known["harm"]["onward"]
    )


def test_a_harm_is_looked_for_where_the_trace_shows_something_else_than_before() -> None:
    kept = trace_files.load("restore_under_reader")
    faulty = Loaded("faulty", "1", {kept.trace.stem: FAULTS["restore_under_lock"].make})
    found = row(kept, faulty)
    for key, other in (("step", 2), ("law", "another"), ("kind", "answer"), ("verdict", "latent")):
        assert row(kept, faulty, known={**found, key: other, "harm": None})["harm"] == found["harm"], key
    assert row(kept, faulty, known={**found, "harm": None})["harm"] is None, "it is taken over"
    assert len(PLANS) > 1


# A finding of one's own.


def page_of(kept: Kept, found: Json) -> str:
    more: dict[str, Any] = {"up": "", "home": False, "title": "", "test": "", "rows": []}
    return explorer.page(environment(html=True), kept, {"missing": "", **found}, **more)


def test_a_finding_of_ones_own_has_the_sentence_of_the_law() -> None:
    """A trace from a file has no words about what goes wrong."""
    kept = trace_files.load("tail_inside_page")
    alone = Kept("run.json", "", "", "", Trace(kept.trace.stem, kept.trace.config, kept.trace.steps))
    found = row(alone, Loaded("mine", None, {kept.trace.stem: FAULTS["tail_inside_page"].make}), told=True)
    assert found["verdict"] == VIOLATION
    head = page_of(alone, found).partition('id="steps-head"')[0]
    (broken,) = found["story"][-1]["picture"]["broken"]
    plain = " ".join(re.sub(r"<.*?>", "", head).split())
    assert f"{broken['words']} is broken in step 1: {broken['sentence']}" in plain
    assert broken["detail"].split("; ")[0] in plain
