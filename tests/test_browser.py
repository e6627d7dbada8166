"""The explorer and the report in a real browser: headless Chromium of the system, driven by Playwright.

Each test is skipped, with the reason, where there is no browser or no driver.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from conformance.driver.lockstep import VIOLATION
from conformance.driver.trace import Trace
from conformance.engines.registry import Loaded
from conformance.planted.faults.known_bugs import FAULTS
from conformance.search.replay import row
from conformance.telling.tell import tell
from conformance.traces import trace_files
from conformance.traces.trace_files import Kept
from slotproof.pages import explorer, report
from slotproof.pages.packing import packed
from slotproof.pages.templating import environment

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVERS = ("playwright", "axe_playwright_python")
LACKING = [name for name in DRIVERS if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="there is no chromium on this machine"),
    pytest.mark.skipif(bool(LACKING), reason=f"not installed: {', '.join(LACKING)}"),
]
SHOWN = {
    "pools": ("tail_inside_page", "tail_inside_page"),
    "tree": ("copy_on_write_steals_locks", "pr_27038"),
    "cache": ("insert_under_reader", "insert_under_reader"),
    "harm": ("restore_under_reader", "restore_under_lock"),
}
PHONE, DESKTOP = {"width": 390, "height": 800}, {"width": 1440, "height": 900}


def shown_by_a_fault(trace: str, fault: str) -> tuple[Kept, list[Any]]:
    """A kept trace on our implementation with a planted bug."""
    kept = trace_files.load(trace)
    if fault == "restore_under_lock":  # with the steps up to the harm
        return kept, row(kept, Loaded("faulty", "1", {kept.trace.stem: FAULTS[fault].make}), told=True)["story"]
    return kept, [asdict(step) for step in tell(kept.trace, FAULTS[fault].make)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the report writes it, with an explorer of pools and one of a tree."""
    place = tmp_path_factory.mktemp("report")
    pages = {}
    for name, text in explorer.files():
        (place / name).write_text(text, encoding="utf-8")
    for name, (trace, fault) in SHOWN.items():
        kept, story = shown_by_a_fault(trace, fault)
        own = sum(not step.get("driven_on") for step in story)
        shown = {"engine": "ours", "release": "1", "verdict": VIOLATION, "step": own, "harm": None, "story": story}
        more = {"up": "", "home": True, "title": "", "test": "assert False", "rows": []}
        (place / f"{name}.html").write_text(
            explorer.page(environment(html=True), kept, shown, **more), encoding="utf-8"
        )
        more |= {"up": "../", "plain": "slotproof report --trace run.json"}
        pages[f"packed/{name}.html"] = explorer.page(environment(html=True), kept, shown, **more)
    for path, text in packed(pages).items():
        (place / path).parent.mkdir(exist_ok=True)
        (place / path).write_text(text, encoding="utf-8")
    (place / "index.html").write_text(report.index(report.FirstPage([], [])), encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, folder: Path) -> Iterator[Any]:
    """Opens pages. At the end no page has written to the console, raised an error, or asked for anything that does not
    lie beside it.
    """
    said: list[str] = []
    contexts = []

    def open_page(name: str, viewport: dict[str, int] = DESKTOP, **settings: Any) -> Any:
        contexts.append(browser.new_context(viewport=viewport, **settings))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda asked: said.extend([asked.url] * (not asked.url.startswith(("file:", "data:")))))
        page.on("requestfailed", lambda asked: said.append(f"failed: {asked.url}"))
        page.goto((folder / f"{name}.html").as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


def step_of(page: Any) -> list[str]:
    """The steps that are on the screen."""
    found: list[str] = page.eval_on_selector_all(".step", "all => all.filter(e => e.offsetParent).map(e => e.id)")
    return found


def test_steps_by_keyboard_and_by_buttons(opened: Any) -> None:
    page = opened("tree")
    last = page.locator(".step").count() - 1
    assert step_of(page) == [f"step-{last}"], "it opens at the step that breaks the law"
    assert page.locator(f"#step-{last} .flag.bad").count() > 0
    for key, wanted in (("ArrowLeft", last - 1), ("Home", 0), ("ArrowLeft", 0), ("ArrowRight", 1), ("End", last)):
        page.keyboard.press(key)
        assert step_of(page) == [f"step-{wanted}"], key
    for button, wanted in (("Back", last - 1), ("First", 0), ("Next", 1), ("Last", last)):
        page.get_by_role("button", name=button).click()
        assert step_of(page) == [f"step-{wanted}"], button
        assert page.url.endswith(f"#step-{wanted}")
    assert page.get_by_role("status").inner_text().startswith(f"Step {last} of {last}: ")
    page.keyboard.press("Control+ArrowLeft")
    assert step_of(page) == [f"step-{last}"], "keys with a modifier are the browser's"


def test_the_rail_names_the_step_and_a_link_opens_it(opened: Any) -> None:
    page = opened("tree")
    page.locator(".rail a").nth(2).click()
    assert step_of(page) == ["step-2"]
    assert page.locator("[aria-current=step]").inner_text() == "2"
    page.goto(page.url.partition("#")[0] + "#step-1")
    page.reload()
    assert step_of(page) == ["step-1"]


def test_a_panel_that_does_not_change_is_drawn_again_without_marks(opened: Any) -> None:
    page = opened("pools")
    for n in range(page.locator(".step").count()):
        page.keyboard.press("Home")
        for _ in range(n):
            page.keyboard.press("ArrowRight")
        assert page.locator(f"#step-{n} [data-panel] .rest", has_text="unchanged").count() == 0
        assert page.locator(f"#step-{n} .same").count() == 0
        assert page.locator(f"#step-{n} .picture").first.locator("li:not(:has(strong))").count() == 0
    first = page.locator("#step-0")
    assert first.locator(".flag").count() == 0
    assert first.locator(".panel li").count() > 0


def test_a_term_of_the_sentence_leads_to_its_meaning(opened: Any) -> None:
    page = opened("tree")
    links = page.locator(".broken a:visible")
    assert links.count() > 2
    for n in range(links.count()):
        target = links.nth(n).get_attribute("href")
        assert page.locator(target).count() == 1, target
    links.first.click()
    assert page.locator(":target").is_visible()


def test_without_a_script_all_steps_are_there(opened: Any) -> None:
    page = opened("tree", java_script_enabled=False)
    assert page.locator(".step:visible").count() == len(shown_by_a_fault(*SHOWN["tree"])[1]) + 1
    assert not page.locator("#controls").is_visible()


@pytest.mark.parametrize("name", SHOWN)
def test_a_packed_page_shows_what_the_plain_page_shows(name: str, opened: Any) -> None:
    plain, other = (opened(page) for page in (name, f"packed/{name}"))
    other.locator("#controls").wait_for()
    parts = [
        page.eval_on_selector_all("main > section, main > details", "all => all.map(e => e.outerHTML)")
        for page in (plain, other)
    ]
    assert parts[0] == parts[1]
    assert len(parts[0]) > 3
    assert other.locator("#plain").count() == 0
    other.keyboard.press("Home")
    assert step_of(other) == ["step-0"]


def test_a_packed_page_says_how_it_is_read_without_a_script(opened: Any) -> None:
    page = opened("packed/tree", java_script_enabled=False)
    assert page.locator("#plain").inner_text().endswith("Without one, see slotproof report --trace run.json.")


def test_paper_has_all_steps(opened: Any) -> None:
    page = opened("tree")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert len(step_of(page)) == page.locator(".step").count()
    assert not page.locator("#controls").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert len(step_of(page)) == 1


def test_the_bar_of_steps_stays_on_a_phone(opened: Any) -> None:
    page = opened("cache", PHONE)
    for where in (0, 800, 100_000):
        page.evaluate(f"scrollTo(0, {where})")
        box = page.locator("#controls").bounding_box()
        assert box["y"] >= 0, where
        assert box["y"] + box["height"] <= PHONE["height"], where
        buttons = page.get_by_role("button", name="Back").bounding_box()
        assert buttons["height"] >= 40, "a thumb finds it"
    foot = page.locator("#legend li").last.bounding_box()
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    last = page.locator("main").bounding_box()
    assert last["y"] + last["height"] <= page.locator("#controls").bounding_box()["y"] + 1, "it hides nothing"
    assert foot is not None


def test_the_red_cell_is_red_and_its_reader_has_a_red_line(opened: Any) -> None:
    page = opened("cache")
    cells = page.locator(".step:visible .cell.bad")
    assert cells.evaluate_all("all => all.map(e => e.dataset.cell)") == ["full page 1"]
    colours = [page.evaluate("e => getComputedStyle(e).fill", one.element_handle()) for one in (
        cells.first.locator("rect"), page.locator(".step:visible .cell:not(.bad) rect").first
    )]  # fmt: skip
    assert colours[0] == "rgb(168, 32, 26)"
    assert colours[0] != colours[1]
    lanes = page.locator(".step:visible .lane:has(.arrow.bad)")
    assert lanes.evaluate_all("all => all.map(e => e.dataset.lane)") == ["row 0 (request 0)"]
    assert page.locator(".hurts:visible").inner_text() == "✗ full page 1 is free, and row 0 (request 0) still reads it."


def test_an_unchanged_drawing_is_drawn_again(opened: Any) -> None:
    for name in SHOWN:
        page = opened(name)
        assert page.locator("[data-figure]:not(:has(svg))").count() == 0
        assert page.locator("[data-panel].tree:not(:has(li))").count() == 0


def test_the_steps_go_on_to_the_harm(opened: Any) -> None:
    page = opened("harm")
    own = page.locator(".step:not(.driven)").count() - 1
    last = page.locator(".step").count() - 1
    assert step_of(page) == [f"step-{own}"], "it opens where the law breaks"
    page.get_by_role("link", name=f"step {last}", exact=True).click()
    assert step_of(page) == [f"step-{last}"]
    assert (
        page.locator(".harm:visible").inner_text().startswith("✗ The harm: handle 1 reads stranger 2's tokens in step")
    )
    assert page.locator(".rail .driven").count() == last - own > 0
    assert page.locator(".rail a").nth(own + 1).evaluate("e => getComputedStyle(e).borderStyle") == "dashed"
    assert page.locator(".step:visible .cell.bad").evaluate_all("all => all.map(e => e.dataset.cell)") == [
        "full page 1"
    ]


@pytest.mark.parametrize("name", [*SHOWN, "index"])
def test_a_phone_shows_the_page_whole(name: str, opened: Any) -> None:
    page = opened(name, PHONE)
    for _ in range(page.locator(".step").count() or 1):
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        page.keyboard.press("ArrowLeft")


@pytest.mark.soak(but=4)
@pytest.mark.parametrize("name", [*SHOWN, "index"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_it(name: str, scheme: str, opened: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = opened(name, color_scheme=scheme)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    page.eval_on_selector_all("details", "all => all.forEach(e => { e.open = true; })")
    found = Axe().run(page, options={"preload": False}).response["violations"]  # it may load no file by a script
    assert [(v["id"], [node["html"][:200] for node in v["nodes"][:3]]) for v in found] == []


@pytest.mark.soak
def test_a_run_with_a_strange_name_is_text_and_never_markup(folder: Path, opened: Any) -> None:
    """Names, texts and details of a trace come from files: none of them becomes a part of the page."""
    attack = "<img src=x onerror=document.title='taken'>\"'"
    kept, story = shown_by_a_fault(*SHOWN["pools"])
    trace = Trace(kept.trace.stem, {attack: attack}, kept.trace.steps)
    taken = Kept(attack, attack, attack, attack, trace, attack)
    for step in story:
        step["changed"] = step["call"] = step["wrong"] = attack
        for found in step["picture"].get("broken", []):
            found.update(sentence=attack, detail=attack, words=attack)
    shown = {"engine": attack, "release": attack, "verdict": attack, "step": 1, "harm": {"sentence": attack}}
    more = {"up": "", "home": True, "title": attack, "test": attack, "rows": []}
    text = explorer.page(environment(html=True), taken, {**shown, "story": story}, **more)
    (folder / "attack.html").write_text(text, encoding="utf-8")
    page = opened("attack")
    page.keyboard.press("Home")
    page.keyboard.press("End")
    assert page.locator("img").count() == 0
    assert attack in page.title()
