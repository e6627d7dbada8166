"""``slotproof report --trace``: the page of one trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conformance.driver.protocol import Json
from conformance.engines import named, registry
from conformance.search.stories import told_elsewhere
from conformance.telling.pasted import as_test
from conformance.traces import trace_files
from conformance.traces.trace_files import Kept
from slotproof.console.codes import HOLDS
from slotproof.console.output import write_text
from slotproof.console.remembering import digest_of, remembered
from slotproof.console.screen import say
from slotproof.pages import explorer, kept_findings
from slotproof.pages.finding_pages import of_engine
from slotproof.pages.kept_findings import FINDINGS, Rows
from slotproof.pages.templating import environment, tidy

LIMIT = 180.0  # seconds in which an engine that is named by its place must have replayed a trace


def run(folder: Path, trace: str, engine: str | None, release: str | None, source: Path | None) -> int:
    """Writes the page of one trace: on the engine that was asked for, else on the release that shows it worst, else on
    our own implementation; exit code 0. Raises ``EngineError`` if the engine cannot be loaded.
    """
    kept = trace_files.load(trace)
    known = None
    if engine is None and release is None and source is None:
        known = _worst(kept)
        engine, release = (known["subject"], known["release"]) if known else (None, None)
    row = told(kept, trace, engine or registry.own().name, release, source, known)
    text = explorer.page(environment(html=True), kept, {"missing": row["detail"], **row}, **_alone(kept, row, source))
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {**dict(explorer.files()), "index.html": tidy(text)}.items():
        write_text(folder / name, content)
    say(f"written: {folder / 'index.html'}")
    return HOLDS


def told(kept: Kept, trace: str, engine: str, release: str | None, source: Path | None, known: Json | None) -> Json:
    """The row of the trace with its story; from the cache folder where it was told before and would be told alike now.

    It depends on the trace, on the row ``known``, on every file of ours, and on the files of the engine: its roots, and
    each other file that the run has imported from no installed package, such as a module beside an engine of one's own.
    """

    def make() -> Json:
        say(f"replaying {kept.name} on {engine} {release or source or ''}".rstrip(), style="dim")
        limit = LIMIT if named.is_place(engine) else None  # a release may have to be downloaded
        (row,) = told_elsewhere([(trace, known)], engine, release, source, limit=limit)
        return row

    def roots(row: Json) -> Sequence[str]:
        return [*row["roots"], *row["files"]]

    where = [engine, release, source and str(source.absolute()), str(Path.cwd())]  # places are looked up from here
    asked = [kept.trace.as_json(), known, where]
    found: Json = remembered(f"report/traces/{digest_of([trace, where])[:16]}", asked, make, roots)
    return found


def _worst(kept: Kept) -> Json | None:
    """The row of ``docs/findings.json`` in which a kept trace is shown worst."""
    rows: Rows = kept_findings.kept()["traces"].get(kept.name, []) if FINDINGS.exists() else []
    found = [f for plugin in registry.released() for f in of_engine(plugin.name, [(kept, rows)])]
    return found[0].gravest if found else None


def _alone(kept: Kept, row: Json, source: Path | None) -> Json:
    test = as_test(kept.trace, row["law"], row["kind"], row["engine"], row["release"], source) if row["law"] else ""
    return {"up": "", "home": False, "title": "", "test": test, "rows": []}
