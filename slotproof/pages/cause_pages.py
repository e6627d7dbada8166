"""The pages of the causes: ``docs/causes.md`` with one table of all, and ``docs/causes/NAME.md`` with one each, to be
read by the maintainers of the engine.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment

from conformance.driver.lockstep import CONFORMS, UNSUPPORTED
from conformance.driver.protocol import Json
from conformance.traces import cause_files
from conformance.traces.cause_files import Cause
from conformance.traces.harm_found import ENDED
from conformance.traces.trace_files import Kept
from slotproof.pages.finding_pages import KeptFinding
from slotproof.pages.kept_findings import FINDINGS

KEEPS = (CONFORMS, UNSUPPORTED)
KEPT = FINDINGS.with_name("causes.json")


class CausePage(NamedTuple):
    """What a page shows. ``found``: the row of ``docs/causes.json``. ``finding``: the trace of the cause on the
    engine's own scheduler, with its rows.
    """

    cause: Cause
    found: Json
    finding: KeptFinding

    @property
    def launch(self) -> str:
        """The command that starts the server."""
        return str(self.cause.room.launch(self.cause.config))

    @property
    def spare(self) -> list[str]:
        """The launch flags without which the messages show the cause, too. See ``conformance.search.causes``."""
        return [*self.found["spare_flags"]]

    @property
    def needed(self) -> list[str]:
        """See ``needed_flags``."""
        return needed_flags(self.cause, self.found)

    @property
    def messages(self) -> list[str]:
        """What a client sends."""
        return [self.cause.room.call(step) for step in self.cause.steps]

    @property
    def script(self) -> str:
        """The program that shows the cause on the release's own scheduler."""
        return self.cause.program(self.found["release"]).rstrip()

    @property
    def program(self) -> str:
        """The error with which the program ended when it was run last, in one line."""
        return str(self.found["program"])

    @property
    def told(self) -> list[str]:
        """What the program prints before its error, without the traceback: what led there."""
        return [*self.found["told"]]

    @property
    def repair(self) -> str:
        """The function that repairs the release at run time."""
        return inspect.getsource(self.cause.module.repair).rstrip()

    @property
    def reached(self) -> bool:
        """The engine's own scheduler has shown it."""
        return self.found["traces"][self.cause.server]["before"]["verdict"] not in KEEPS

    @property
    def mended(self) -> int:
        """How many traces keep the law after the repair."""
        return sum(one["after"]["verdict"] in KEEPS for one in self.found["traces"].values())

    @property
    def harm(self) -> str:
        """What came of it."""
        return str(self.found["traces"][self.cause.server]["before"]["harm"])

    @property
    def stops(self) -> bool:
        """The server ends by an exception."""
        return self.harm == ENDED


def needed_flags(cause: Cause, found: Json) -> list[str]:
    """The launch flags without which the messages do not show a cause, without those that only make a server small.
    ``found``: the row of the cause in ``docs/causes.json``.
    """
    return [flag for flag in cause.room.flags(cause.config) if flag not in found["spare_flags"]]


def kept_rows() -> dict[str, Json]:
    """What ``slotproof causes --keep`` found, by the name of the cause; empty where there is no such file, as in an
    installed package.
    """
    return {one["cause"]: one for one in json.loads(KEPT.read_text("utf-8"))} if KEPT.exists() else {}


def pages(templates: Environment, docs: Path, findings: Iterable[tuple[Kept, list[Json]]]) -> dict[Path, str]:
    """Each page by its path. A cause that was never tried has none."""
    if not (found := kept_rows()):
        return {}
    kept = {kept.name: (kept, rows) for kept, rows in findings}
    made = [_page(cause, found[cause.name], kept) for cause in cause_files.every() if cause.name in found]
    table, page = templates.get_template("causes.md.j2"), templates.get_template("cause.md.j2")
    texts = {docs / "causes" / f"{one.cause.name}.md": page.render(page=one) for one in made}
    return {
        path: text.rstrip() + "\n" for path, text in {docs / "causes.md": table.render(pages=made), **texts}.items()
    }


def _page(cause: Cause, found: Json, kept: Mapping[str, tuple[Kept, list[Json]]]) -> CausePage:
    trace, rows = kept[cause.server]
    mine = [row for row in rows if row["subject"] == cause.engine]
    return CausePage(cause, found, KeptFinding(trace, None, mine))
