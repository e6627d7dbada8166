"""What a picture marks: what changed, where the law has something else, what a finding names; and what it folds."""

from __future__ import annotations

import pytest

from conformance.driver.protocol import Json
from conformance.stems.panels import item, panel
from slotproof.pages.explorer import steps_of
from slotproof.pages.marking import folded, marked, spelled_out
from slotproof.pages.terms import TERMS, linked, met_in


def pages(**places: str) -> list[Json]:
    """A pool: the place of each page, by a name such as ``p1``."""
    made = (item(f"page {name[1:]}", f"page {name[1:]}", {"place": at}, at) for name, at in places.items())
    return [panel("pages", "Pages", made)]


def the_item(panels: list[Json], key: str) -> Json:
    found: Json = next(one for p in panels for one in p["items"] if one["key"] == key)
    return found


def test_a_change_has_the_value_before() -> None:
    panels = marked(pages(p1="held", p2="free"), pages(p1="free", p2="free"), [])
    assert the_item(panels, "page 1")["facts"] == [
        {"name": "place", "value": "held", "was": "free", "law": None, "wrong": False}
    ]
    assert [the_item(panels, f"page {n}")["touched"] for n in (1, 2)] == [True, False]


def test_things_that_come_and_go_are_marked() -> None:
    panels = marked(pages(p2="free"), pages(p1="free"), pages(p3="free"))
    assert {one["key"]: one["state"] for one in panels[0]["items"]} == {
        "page 2": "new",
        "page 1": "gone",
        "page 3": "absent",
    }


def test_the_law_is_said_only_where_it_has_something_else() -> None:
    panels = marked(pages(p1="free", p2="held"), pages(p1="free", p2="held"), pages(p1="held", p2="held"))
    assert [the_item(panels, f"page {n}")["differs"] for n in (1, 2)] == [True, False]
    assert the_item(panels, "page 1")["facts"][0]["law"] == "held"
    alone = marked(pages(p1="free"), pages(p1="free"), [])
    assert the_item(alone, "page 1")["differs"] is False, "without the law nothing differs from it"


@pytest.mark.parametrize(
    ("detail", "named"),
    [
        ("page 1 is free", ["page 1"]),
        ("page 11 is free", ["page 11"]),
        ("pages 1, 10 to 11 are held by nobody", ["page 1", "page 10", "page 11"]),
        ("mypage 1", []),
        ("", []),
    ],
)
def test_a_finding_marks_the_very_page_that_it_names(detail: str, named: list[str]) -> None:
    now = pages(p1="free", p10="free", p11="free")
    assert [one["key"] for one in marked(now, now, [], detail)[0]["items"] if one["named"]] == named


def test_a_node_is_named_by_all_its_tokens() -> None:
    nodes = [item(f"node {n}", f"node {tokens}", {}) for n, tokens in enumerate(([1], [1, 2], [1, 2, 3]))]
    tree = [panel("tree", "Prefix tree", nodes)]
    found = marked(tree, tree, [], "the SWA lock count of node [1, 2] is 0, the law has 1")
    assert [one["name"] for one in found[0]["items"] if one["named"]] == ["node [1, 2]"]


def test_numbers_are_spelled_out_with_their_pool() -> None:
    said = "full pages 1, 3 to 5 are held by nobody; the mapping of SWA slots 2 to 3"
    assert spelled_out(said) == (
        "full page 1, full page 3, full page 4, full page 5 are held by nobody; the mapping of SWA slot 2, SWA slot 3"
    )


def test_only_what_is_free_in_every_step_is_folded() -> None:
    first, then = pages(p1="free", p2="free", p3="free", p4="free"), pages(p1="free", p2="held", p3="free", p4="free")
    shown = folded([marked(first, first, []), marked(then, first, []), marked(then, then, [])])
    assert [[one["key"] for one in step[0]["items"]] for step in shown] == [["page 2"]] * 3
    assert shown[0][0]["rest"] == "3 others stay free", "pages 1, 3 and 4 do not follow each other"
    assert [step[0]["same"] for step in shown] == [False, False, True]


def test_a_story_begins_before_its_first_call() -> None:
    picture = {"does": "It takes a page.", "before": pages(p1="free"), "panels": pages(p1="held")}
    broken = {"law": "one", "kind": "invariant", "sentence": "S.", "detail": "page 1 is held", "latent": False}
    broken["words"] = "law one"
    last = {**picture, "before": picture["panels"], "law": pages(p1="free"), "broken": [broken]}
    story = [{"call": "take()", "changed": "page 1: free → held", "wrong": "", "picture": picture}]
    story += [{"call": "keep()", "changed": "nothing", "wrong": "x", "picture": last}]
    start, first, end = steps_of(story)
    assert (start.call, the_item(start.panels, "page 1")["facts"][0]["value"]) == ("", "free")
    assert (first.changed, first.law, end.changed) == (["page 1: free → held"], None, [])
    assert the_item(end.panels, "page 1")["facts"][0]["law"] == "free"
    assert end.law is not None
    assert the_item(end.law.panels, "page 1")["facts"][0] == {
        "name": "place", "value": "free", "was": None, "law": "held", "wrong": False
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["promise", "choice", "answer"])
def test_a_law_that_stopped_before_the_call_is_no_expectation(kind: str) -> None:
    broken = {"law": "f", "kind": kind, "sentence": "", "detail": "page 1", "latent": False, "words": ""}
    picture = {"does": "", "before": pages(p1="free"), "panels": pages(p1="held"), "law": pages(p1="free")}
    story = [{"call": "f()", "changed": "", "wrong": "", "picture": {**picture, "broken": [broken]}}]
    step = steps_of(story)[-1]
    assert the_item(step.panels, "page 1")["facts"][0]["law"] is None
    assert the_item(step.panels, "page 1")["named"]
    assert step.law is not None
    assert step.law.compared is False


# Terms.


def test_a_term_links_once_and_the_longest_form_wins() -> None:
    assert linked("A tombstone, a tombstone & the SWA lock count") == (
        'A <a href="#term-tombstone">tombstone</a>, a tombstone &amp; the <a href="#term-lock-count">SWA lock count</a>'
    )
    assert linked("free_page <held>") == 'free_page &lt;<a href="#term-held">held</a>&gt;'


def test_each_term_is_found_in_a_sentence_that_has_its_name() -> None:
    assert [term.name for term in TERMS if term not in met_in([f"the {term.name} is here"])] == []
    assert len({term.name for term in TERMS}) == len(TERMS)
