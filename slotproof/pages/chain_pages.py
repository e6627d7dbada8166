"""Chains of calls from a server to what the kept findings call last. ``docs/chains.json`` keeps what ``slotproof reach
--keep`` found by the syntax trees of the releases (``conformance.search.chains``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from conformance.driver.protocol import Json
from conformance.engines import registry
from conformance.search.call_graph import START
from slotproof.pages.kept_findings import FINDINGS, Findings
from slotproof.pages.mend_pages import BROKEN

KEPT = FINDINGS.with_name("chains.json")
SCHEDULERS = ("server", "host_server", "block_cache")  # the stems that drive an engine's own scheduler
NO_CALLER = "no caller"


@dataclass(frozen=True)
class FoundChain:
    """A finding of a part, with the chain of calls to what it calls last: a row of ``docs/chains.json``.

    ``release``: the last release that shows the finding. ``function``, ``begins``, ``chain``: see
    ``conformance.search.chains.reach``.
    """

    engine: str
    finding: str
    release: str
    function: str = ""
    begins: str = ""
    chain: Sequence[Json] = ()

    @property
    def key(self) -> tuple[str, str]:
        """What the row is about."""
        return self.engine, self.finding

    @property
    def no_caller(self) -> bool:
        """No chain of calls leads to the function."""
        return bool(self.function) and not self.begins

    @property
    def guesses(self) -> int:
        """How many calls of the chain are by name alone."""
        return sum(one["by_name"] for one in self.chain)

    @property
    def starts(self) -> bool:
        """The chain begins where the server starts, and no other was found."""
        return self.begins == START


def asked(findings: Findings) -> list[FoundChain]:
    """The findings of parts, without what is to be found of them, in the order of the file."""
    every = []
    for engine in registry.released():
        if not hasattr(engine, "entrances"):
            continue
        for kept, rows in findings:
            shown = [row for row in rows if row["subject"] == engine.name and row["verdict"] in BROKEN]
            if shown and kept.trace.stem not in SCHEDULERS:
                every.append(FoundChain(engine.name, kept.name, shown[-1]["release"]))
    engines = [engine.name for engine in registry.released()]
    return sorted(every, key=lambda one: (engines.index(one.engine), one.finding))


def kept_chains() -> list[FoundChain]:
    """What ``slotproof reach --keep`` found; empty where there is no such file, as in an installed package."""
    rows = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else []
    return [FoundChain(**row) for row in rows]


def by_finding(engine: str, chains: Iterable[FoundChain] | None = None) -> dict[str, FoundChain]:
    """The rows of an engine by the names of the findings."""
    return {one.finding: one for one in (kept_chains() if chains is None else chains) if one.engine == engine}
