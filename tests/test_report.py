"""The report shows every law, every fault and every kept trace, and draws what is broken."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from packed_pages import unpacked

from conformance.driver.lockstep import CONFORMS, LATENT, UNSUPPORTED, VIOLATION
from conformance.driver.naming import UsageError
from conformance.driver.protocol import EngineError, Json
from conformance.engines import registry
from conformance.engines.registry import Loaded
from conformance.planted.faults.known_bugs import FAULTS
from conformance.search.replay import row
from conformance.search.stories import Wanted
from conformance.stems.found import law_of
from conformance.telling.picture import frame
from conformance.telling.tell import tell
from conformance.traces import trace_files
from conformance.traces.outcome import outcome
from proofs import obligations
from proofs.draining import claim_names
from proofs.fitting import ANSWERED, FITS
from proofs.obligations import ATOMIC, CALLS, START
from proofs.prover import Verdict
from proofs.registry import STEMS, hints_of
from slotproof import cli
from slotproof.console import remembering
from slotproof.pages import documents, kept_findings, law_pages, proof_part, report, stories, trace_page
from slotproof.pages.finding_pages import KeptFinding
from slotproof.proving.proving import mutants, vacuity_of
from spec import allocator
from spec.finite import Seq
from spec.lengths import Length
from spec.logic import but
from spec.mamba_slots_state import FIRST, LEAVING, RUNNING, SECOND
from spec.mamba_slots_state import initial as no_states
from spec.swa_mapping import alloc_extend, initial

FEW = {fault.stem: fault for fault in FAULTS.values()}  # the last of each stem


def obligations_of(stem: str) -> Iterator[tuple[str, str]]:
    """What there is to prove of a stem, by transition and law."""
    law = hints_of(stem).stem
    yield from ((START, name) for name in law.invariants)
    if drain := hints_of(stem).drain:
        yield from ((START, claim) for claim in claim_names(drain))
    for name in law.transitions:
        yield from ((name, own.name) for own in law_pages.own_laws(law) if not own.theorem)
        yield from ((name, change.name) for change in law.changes.values() if change.binds(name))
        yield from ((name, CALLS + called.split(".")[1]) for called in law_pages.said_by(stem, name).calls)
        yield name, ATOMIC
        if law_pages.said_by(stem, name).can_be_refused:
            yield name, FITS
        if name in hints_of(stem).answers:
            yield name, ANSWERED


@pytest.fixture
def proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prover and the mutants have their own tests: here it is said at once that two obligations are open. One fault
    a stem is shown.
    """
    verdicts = [
        Verdict(stem, name, law, "unknown" if (name, law) in OPEN else "unsat", "unsat", 0.0)
        for stem in STEMS
        for name, law in obligations_of(stem)
    ]

    def of_one_stem(name: str) -> Json:
        if name != "allocator":
            return {"witnesses": [], "mutants": []}
        return {"witnesses": vacuity_of(name), "mutants": mutants(hints_of(name))}

    monkeypatch.setattr(proof_part, "proved", lambda _: verdicts)
    monkeypatch.setattr(proof_part, "law_of_each_stem", lambda _: {name: of_one_stem(name) for name in STEMS})
    monkeypatch.setattr(proof_part, "bugs", lambda _: [proof_part.shown_bug(fault) for fault in FEW.values()])


ROOT = Path(__file__).resolve().parents[1]
OPEN = {("merge_and_sort_free", "places"), ("dedupe", "promises_of_free")}


TOLD, ABSENT = "0.5.10", "0.5.12"  # the release that the fixture can tell about, and one that it cannot load


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One release shows what our implementation with planted bugs shows; the others cannot be loaded."""

    def rows(wanted: Sequence[Wanted], engine: str, release: str) -> Iterator[Json]:
        if release != TOLD:
            raise EngineError("no network")
        faulty = Loaded(engine, release, {stem: fault.make for stem, fault in FEW.items()})
        for name, _ in wanted:
            yield row(trace_files.load(name), faulty, told=True)

    monkeypatch.setattr(stories, "told_elsewhere", rows)
    monkeypatch.setattr(stories, "remembered", lambda _what, _asked, make, _roots: make())


def pages_of(folder: Path) -> list[str]:
    """The pages of a report as a browser shows them, the first page first."""
    first = folder / "index.html"
    others = (path for path in sorted(folder.rglob("*.html")) if path != first)
    return [unpacked(path, folder / "sample.js") for path in (first, *others)]


@pytest.mark.usefixtures("proved", "replayed")
def test_the_page_shows_everything(tmp_path: Path) -> None:
    assert report.run(tmp_path / "deep" / "folder") == 0
    page, *pages = pages_of(tmp_path / "deep" / "folder")
    laws = [law.name for stem in STEMS for law in law_pages.own_laws(hints_of(stem).stem)]
    shown = [fault.name for fault in FEW.values()]
    assert [word for word in (*laws, *shown, *STEMS) if word not in page] == []
    assert [name for name in json.loads(kept_findings.FINDINGS.read_text())["traces"] if name not in page] == []
    assert page.count('<td class="open" title="places: z3 unknown') == 2, "of the allocator and of the two pools"
    assert page.count('title="promises_of_free: z3 unknown') == 1
    assert all("``" not in text for text in (page, *pages))
    told = [text for text in pages if f"sglang {TOLD}, stem" in " ".join(text.split())]
    assert any("✗ broken here" in text and "def test_found_by_slotproof" in text for text in told)
    assert sum(f"No pictures: sglang {ABSENT} could not be loaded here: no network" in text for text in pages) > 1
    assert {path.stem for path in (tmp_path / "deep" / "folder" / "bugs").iterdir()} == set(shown)


@pytest.mark.parametrize("stem", ["allocator", "session_trim"])
def test_the_documents_count_the_obligations_there_are(stem: str) -> None:
    hints = hints_of(stem)
    names = (START, *hints.stem.transitions)
    made = [
        (name, formula.invariant)
        for name in names
        for formula in obligations.all_of(hints, name, hints.stem.transitions.get(name, hints.stem.start))  # type: ignore[arg-type]
    ]
    assert sorted(made) == sorted(obligations_of(stem))
    assert documents.obligations_of(stem).total() == len(made)


def test_every_kept_trace_is_among_the_findings() -> None:
    found = json.loads(kept_findings.FINDINGS.read_text())
    assert sorted(found["traces"]) == trace_files.names(), "run make engines"


def test_findings_keep_verdicts_and_no_pictures() -> None:
    found = kept_findings.kept()
    keys = {"subject", "release", "verdict", "step", "law", "kind", "detail", "harm"}
    assert {frozenset(row) - {"ran"} for rows in found["traces"].values() for row in rows} == {frozenset(keys)}
    columns = kept_findings.labels(kept_findings.with_rows(found))
    released = [f"{p.name} {release}" for p in registry.released() for release in p.releases]
    assert columns == [registry.own().name, *released], "run make engines"


def test_findings_stand_by_severity_then_release_then_harm() -> None:
    def on(name: str, *verdicts: str) -> KeptFinding:
        rows = [{"subject": "e", "release": str(n), "verdict": v, "harm": None} for n, v in enumerate(verdicts)]
        return KeptFinding(replace(trace_files.load(trace_files.names()[0]), name=name), None, rows)

    old, new = on("old", VIOLATION, CONFORMS), on("new", CONFORMS, VIOLATION)
    latent, newer = on("latent", CONFORMS, LATENT), on("a_new", VIOLATION, VIOLATION)
    assert [f.kept.name for f in report.in_order([latent, old, new, newer])] == ["a_new", "new", "old", "latent"]


def test_a_stem_made_of_parts_says_so() -> None:
    whole = kept_findings.FINDINGS.with_name("laws").joinpath("cache.md").read_text()
    for field, part in (("rows", "session_trim"), ("tree", "lock_ref"), ("states", "mamba_slots")):
        assert f"- `{field}` is a state of [{part}]({part}.md)" in whole
    assert "[`lock_ref.acquire`](lock_ref.md#acquire), [`session_trim.admit`](session_trim.md#admit)" in whole
    assert '<a id="full_pairs">' not in whole, "an inherited law is printed where it is made"


def test_a_frame_says_who_owns_what_and_what_maps_where() -> None:
    first = initial(page_size=2, size=2, size_swa=2, rows=2, need_sort=False)
    after = alloc_extend(first, 1, Length(0, 1), Seq([2]), Seq([1])).then
    full, swa, rows, _ = frame(after)["panels"]
    facts = {"place": "held by row 1, page 0 of it", "used": "1 of 2 slots", "slot 4 maps to": "SWA slot 2"}
    assert (full["items"][1]["name"], full["items"][1]["facts"]) == ("full page 2", facts)
    assert swa["items"][0]["facts"]["place"] == "held by row 1, page 0 of it"
    assert rows["items"][0]["facts"]["length"] == "1 tokens"
    assert not any(item["wrong"] for item in (*full["items"], *swa["items"]))


def test_a_page_in_two_tables_names_both_rows() -> None:
    first = allocator.initial(page_size=2, size=2, rows=2, need_sort=False)
    taken = allocator.alloc_extend(first, 1, Length(0, 1), Seq([2])).then
    page = frame(but(taken, now=but(taken.now, table=taken.now.table.put((0, 3), 2))))["panels"][0]["items"][1]
    assert page["facts"]["place"] == "held by row 1, page 0 of it"
    assert page["facts"]["also in the table of"] == "row 0"
    assert page["wrong"] == ["also in the table of"]


@pytest.mark.parametrize(
    ("phase", "track", "says"),
    [
        (RUNNING, 1, "its second track is written next"),
        (RUNNING, 7, "its track 7, which does not exist, is written next"),
        (LEAVING, 7, ""),
    ],
)
def test_a_picture_shows_states_that_no_run_reaches(phase: int, track: int, says: str) -> None:
    """A solver's state may name a track that does not exist; after its donation a leaving request writes no track."""
    first = no_states(size=4, requests=2, sessions=1, nodes=1, kind=(True, True, False))
    buffer = first.table.put((0, FIRST), 1).put((0, SECOND), 2)
    drawn = frame(
        but(first, table=buffer, names=buffer, next=first.next.put(0, track), phase=first.phase.put(0, phase))
    )
    (owner,) = next(panel["items"] for panel in drawn["panels"] if panel["kind"] == "owners")
    assert owner["facts"] == {"has": "first track 1, second track 2"} | ({"next": says} if says else {})


@pytest.mark.parametrize("name", ["tail_inside_page", "nested_group_forgets"])
def test_a_picture_marks_what_is_wrong(name: str) -> None:
    fault = {"tail_inside_page": "tail_inside_page", "nested_group_forgets": "nested_group"}
    last = tell(trace_files.load(name).trace, FAULTS[fault[name]].make)[-1]
    assert last.wrong
    assert any(item["wrong"] for panel in last.picture["panels"] for item in panel["items"])


def test_a_lawful_story_has_nothing_wrong() -> None:
    makers = registry.load(registry.own().name).makers
    of_ours = (kept for kept in trace_files.every() if kept.trace.stem in makers)  # ours has no scheduler, so no server
    for name, trace in ((kept.name, kept.trace) for kept in of_ours):
        if outcome(trace, makers[trace.stem]).verdict == UNSUPPORTED:
            continue  # calls that our implementation does not have
        for step in tell(trace, makers[trace.stem]):
            assert not step.wrong, (name, step)
            wrong = [item["name"] for panel in step.picture["panels"] for item in panel["items"] if item["wrong"]]
            assert not wrong, (name, step)


def test_an_engine_without_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--release is for one trace: name it with --trace"):
        cli.app(["report", "-o", str(tmp_path), "--release", "1"], standalone_mode=False)


def test_the_page_of_one_trace_is_written(tmp_path: Path) -> None:
    """On our implementation where no engine is asked for and no release shows the trace; from a file, too."""
    kept = trace_files.load("tail_inside_page")
    path = tmp_path / "run.json"
    path.write_text(json.dumps(kept.trace.as_json()), encoding="utf-8")
    assert trace_page.run(tmp_path / "page", str(path), None, None, None) == 0
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert page.count('class="step"') == len(kept.trace.steps) + 1
    assert "✗ broken here" not in page.partition('id="legend"')[0], "our implementation keeps the law"
    assert {file.name for file in (tmp_path / "page").iterdir()} == {"index.html", "style.css", "explorer.js"}


# A page is written when it is ready.


@pytest.mark.soak
@pytest.mark.usefixtures("proved", "replayed")
def test_a_page_is_there_before_the_next_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page of a finding lies in the folder when the next one is asked for, and the first page leads to it; the
    proofs begin after the last one.
    """
    told, seen = stories.stories, []
    folder = tmp_path / "page"

    def watched(findings: Sequence[KeptFinding]) -> Iterator[stories.Told]:
        first = (folder / "index.html").read_text(encoding="utf-8")
        assert first.count("(its page is not written yet)") == len(findings), "all findings are listed at once"
        assert "This part is being made" in first
        for one in told(findings):
            yield one
            seen.append((folder / "findings" / f"{one[0].kept.name}.html").is_file())

    def proofs(_: object) -> list[Verdict]:
        assert len(seen) == len(list((folder / "findings").iterdir())) > 1
        first = (folder / "index.html").read_text(encoding="utf-8")
        assert "(its page is not written yet)" not in first.partition('id="theorems"')[0]
        return []

    monkeypatch.setattr(report, "stories", watched)
    monkeypatch.setattr(report, "BETWEEN", 0.0)
    monkeypatch.setattr(proof_part, "proved", proofs)
    assert report.run(folder) == 0
    assert all(seen)
    assert "This part is being made" not in (folder / "index.html").read_text(encoding="utf-8")


def test_the_first_line_comes_before_anything_is_loaded() -> None:
    code = "import sys, slotproof.console.screen as s, slotproof.cli as c\n"
    code += "s.say = lambda what, **_: (print(what), print('slotproof.pages.report' in sys.modules), exit())\n"
    code += "c.app(['report', '-o', sys.argv[1]], standalone_mode=False)"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["   0 s  reading the findings", "False"], done.stderr


# What is remembered.


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An allocator of one's own in two files that leaks a page, and a trace that shows it."""
    monkeypatch.setenv("SLOTPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaking_parts.py").write_text("LEAKS = True\n")
    (tmp_path / "leaking_engine.py").write_text(
        "from conformance.engines.toy import ToyAllocator\nfrom leaking_parts import LEAKS\n"
        "def make(config):\n    return ToyAllocator(config['size'], config['page_size'], leaks=LEAKS)\n"
    )
    steps = [{"op": "extend", "rows": [0], "more": [2]}, {"op": "finish", "row": 0, "committed": 2}]
    config = {"size": 3, "page_size": 1, "rows": 3, "need_sort": False}
    (tmp_path / "run.json").write_text(json.dumps({"stem": "allocator", "config": config, "steps": steps}))
    return tmp_path


def verdict_of(folder: Path) -> tuple[str, bool]:
    """What ``report --trace`` shows of the engine of one's own, and whether it was replayed for that."""
    words = ["report", "-o", "page", "--trace", "run.json", "--engine", "leaking_engine:make"]
    # Python itself takes its compiled file for a source of one size and one time: no such file is written.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]), "PYTHONDONTWRITEBYTECODE": "1"}
    line = [sys.executable, "-m", "slotproof", *words]
    done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (folder / "page" / "index.html").read_text(encoding="utf-8")
    found = "violation" if '<strong class="verdict violation">' in page else "conforms"
    return found, "replaying run" in done.stdout


@pytest.mark.soak
def test_a_page_of_ones_own_engine_is_told_anew_where_a_source_has_changed(engine: Path) -> None:
    """Also where the source is a module that the engine imports, and nothing but its content differs."""
    assert verdict_of(engine) == ("violation", True)
    page = (engine / "page" / "index.html").read_text(encoding="utf-8")
    sentence = law_of("allocator").invariants["no_leak"].sentence
    assert sentence in " ".join(re.sub(r"<.*?>", "", page.partition('id="steps-head"')[0]).split())
    assert verdict_of(engine) == ("violation", False)
    parts = engine / "leaking_parts.py"
    stat = parts.stat()
    parts.write_text("LEAKS = None\n")
    os.utime(parts, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert verdict_of(engine) == ("conforms", True)
    parts.write_text("LEAKS = True\n")
    assert verdict_of(engine) == ("violation", True)
    run = json.loads((engine / "run.json").read_text())
    run["steps"] = run["steps"][:1]
    (engine / "run.json").write_text(json.dumps(run))
    assert verdict_of(engine) == ("conforms", True), "the trace is another"


def test_a_story_is_told_anew_where_our_sources_or_the_release_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTPROOF_CACHE", str(tmp_path / "cache"))
    ours, release = tmp_path / "ours", tmp_path / "release"
    for place in (ours, release):
        place.mkdir()
        (place / "a.py").write_text("1")
    package = ModuleType("ours")
    package.__path__ = [str(ours)]
    monkeypatch.setattr(remembering, "PACKAGES", (package,))
    asked: list[str] = []

    def elsewhere(wanted: Sequence[Wanted], *_: object, **__: object) -> Iterator[Json]:
        asked.append(wanted[0][0])
        yield {"verdict": VIOLATION, "roots": [str(release)], "files": [], "story": []}

    monkeypatch.setattr(trace_page, "told_elsewhere", elsewhere)
    kept = trace_files.load("tail_inside_page")

    def told(number: str = "1") -> int:
        before = len(asked)
        trace_page.told(kept, kept.name, "sglang", number, None, None)
        return len(asked) - before

    assert [told(), told(), told("2"), told()] == [1, 0, 1, 0]
    for place in (ours, release):
        (place / "a.py").write_text("2")
        assert [told(), told()] == [1, 0], place.name
