"""The pages about the law: each law, transition and promise of the spec stands once, on the page of its stem."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from proofs.draining import sentences
from proofs.registry import STEMS, hints_of
from slotproof.pages import law_pages, templating
from slotproof.proving.headlines import assumptions, theorems

DOCS = Path("docs")


@cache
def texts() -> dict[str, str]:
    """Each page by the name of its file."""
    return {path.stem: text for path, text in law_pages.pages(templating.environment(), DOCS).items()}


def line(text: str | None) -> str:
    return " ".join((text or "").split())


def section(page: str, heading: str) -> str:
    """The text under a heading, up to the next heading of any level."""
    found = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page, re.DOTALL | re.MULTILINE)
    assert len(found) == 1, f"{heading} stands {len(found)} times"
    return str(found[0])


def bullets(text: str, title: str) -> list[str]:
    """The list after a line that ends with a colon."""
    found = re.search(rf"^{title}:\n\n((?:- .*\n)+)", text, re.MULTILINE)
    return re.findall(r"^- (.*)$", found[1], re.MULTILINE) if found else []


@pytest.mark.parametrize("name", STEMS)
def test_each_law_stands_once_on_the_page_of_its_stem(name: str) -> None:
    hints, laws = hints_of(name), section(texts()[name], "Laws")
    own = {law.name: law.sentence for law in law_pages.own_laws(hints.stem)}
    every = {**own, **{law.name: law.sentence for law in hints.stem.changes.values()}}
    every |= law_pages.of_each_call(hints.stem)
    if hints.drain:
        every |= sentences(hints.drain)
    said = re.findall(r'^- <a id="(\w+)"></a>\*\*`(\w+)`\*\*[^:]*: (.*)$', laws, re.MULTILINE)
    assert [(anchor, sentence) for anchor, _, sentence in said] == [*every.items()]
    assert all(anchor == shown for anchor, shown, _ in said)
    for sentence in filter(None, every.values()):
        among = sum(law_sentence.count(sentence) for law_sentence in every.values())
        assert texts()[name].count(sentence) == among, sentence


@pytest.mark.parametrize("name", STEMS)
def test_each_transition_stands_once_with_all_that_callers_promise(name: str) -> None:
    stem, page = hints_of(name).stem, texts()[name]
    for transition, function in stem.transitions.items():
        text, duties = section(page, transition), law_pages.said_by(name, transition)
        assert page.count(f"\n{line(function.__doc__)}\n") == 1, transition
        assert line(function.__doc__) in text.splitlines()
        assert bullets(text, "The caller promises") == duties.promises
        assert bullets(text, "Of what the engine decides must be true") == duties.choices
        assert ("refused where memory is short" in text) == duties.can_be_refused
        assert [call for call in duties.calls if f"[`{call}`](" not in text] == []


@pytest.mark.parametrize("name", STEMS)
def test_what_binds_a_call_links_to_it_and_back(name: str) -> None:
    stem, laws = hints_of(name).stem, section(texts()[name], "Laws")
    for law in stem.changes.values():
        scope = re.search(rf"\*\*`{law.name}`\*\*, (of .*?): ", laws)
        assert scope, law.name
        named = re.findall(r"\(#(\w+)\)", scope[1])
        bound = {transition for transition in stem.transitions if law.binds(transition)}
        assert bound == ({*stem.transitions} - {*named} if scope[1].startswith("of every call") else {*named})
        for transition in law.only:
            assert f"(#{law.name})" in section(texts()[name], transition)


@pytest.mark.parametrize("name", STEMS)
def test_the_names_of_a_page_are_different_anchors(name: str) -> None:
    page = texts()[name]
    anchors = [*re.findall(r'<a id="(\w+)">', page), *re.findall(r"^#+ (.*)$", page, re.MULTILINE)]
    assert len(anchors) == len({*anchors})


@pytest.mark.parametrize("name", STEMS)
def test_what_arguments_mean_and_what_is_assumed_stands_on_the_page(name: str) -> None:
    hints, page = hints_of(name), texts()[name]
    for _, means in law_pages.arguments_of_stem(hints.stem):
        assert means in section(page, "Arguments")
    for reason in hints.unanswered.values():
        assert reason in section(page, "Assumed")


def test_the_index_says_each_theorem_and_leads_to_its_laws() -> None:
    index = texts()["laws"]
    for theorem in theorems(STEMS):
        text = section(index, theorem["name"].replace("_", " "))
        assert text.count(theorem["sentence"]) == 1
        for law in theorem["laws"]:
            stem, name = law_pages.stated(law["stem"], law["name"])
            assert f"(laws/{stem}.md#{name})" in text
            assert f'<a id="{name}"></a>' in texts()[stem]
        promises = {
            promise
            for stem, transition in re.findall(r"\(laws/(\w+)\.md#(\w+)\)", text.partition("Callers keep")[2])
            if transition in hints_of(stem).stem.transitions
            for promise in law_pages.said_by(stem, transition).promises
        }
        assert promises == {*theorem["promises"]}


def test_every_assumption_stands_once_on_one_of_the_pages() -> None:
    every = "".join(texts().values())
    for assumption in assumptions(STEMS):
        assert every.count(f"- `{assumption['name']}`: {assumption['reason']}") == 1


def test_an_inherited_law_leads_to_the_page_where_it_is_made() -> None:
    assert law_pages.stated("cache", "full_pairs") == ("lock_ref", "full_pairs")
    assert law_pages.stated("cache", "states.available_counts") == ("mamba_slots", "available_counts")
    assert law_pages.stated("cache", "every_count_is_zero") == ("cache", "every_count_is_zero")
    assert all("full_pairs`**" not in text for stem, text in texts().items() if stem != "lock_ref")
    assert "[lock_ref](lock_ref.md)" in texts()["cache"]


def test_no_page_joins_promises_to_a_sentence() -> None:
    promises = {said for stem in STEMS for name in hints_of(stem).stem.transitions for said in _promised(stem, name)}
    joined = re.compile(r"; (" + "|".join(map(re.escape, promises)) + ")")
    assert [name for name, text in texts().items() if joined.search(text)] == []


def _promised(stem: str, transition: str) -> list[str]:
    return law_pages.said_by(stem, transition).promises
