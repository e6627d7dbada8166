"""``slotproof reach``: whether a chain of calls leads from a server to what a finding of a part calls last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from conformance.driver.naming import UsageError
from conformance.engines import registry
from conformance.traces import trace_files
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.console.needs import needed_checkout, needed_for_documents
from slotproof.console.screen import choose, say, show, table, write_json
from slotproof.pages import chain_pages, kept_findings
from slotproof.pages.chain_pages import NO_CALLER, FoundChain


def run(names: Sequence[str], keep: bool) -> int:
    """Looks for chains of calls, and prints them. ``names``: only these findings. ``keep``: writes
    ``docs/chains.json``, after each release, and the pages made from it. The exit code tells whether what was kept was
    found again; with ``keep`` it is 0.
    """
    if keep:
        needed_for_documents("reach --keep")
        needed_checkout("reach --keep")
    every = chain_pages.asked(kept_findings.with_rows(kept_findings.kept()))
    choose(names, trace_files.names(), "trace")
    listed = {one.finding for one in every}
    if strange := [name for name in names if name not in listed]:
        raise UsageError(f"{strange[0]} is no finding of a part of an engine: it is shown on a scheduler, or nowhere")
    asked = [one for one in every if not names or one.finding in names]
    for engine in dict.fromkeys(one.engine for one in asked):
        registry.must_be_installed(registry.plugin(engine))
    known, same = {one.key: one for one in chain_pages.kept_chains()}, True
    for engine, release in dict.fromkeys((one.engine, one.release) for one in asked):
        found = _found([one for one in asked if (one.engine, one.release) == (engine, release)])
        columns = ("finding", "function", "chain of calls", "by name")
        show(table(f"Last seen in {engine} {release}", columns, [_row(one) for one in found]))
        same &= all(known.get(one.key, one) == one for one in found)
        known |= {one.key: one for one in found}
        if keep:
            write_json(chain_pages.KEPT, [asdict(known[one.key]) for one in every if one.key in known])
    if keep:
        from slotproof.pages.documents import write

        write(check_only=False)
        return HOLDS
    if not same:
        say("docs/chains.json says something else: `slotproof reach --keep` writes what was found")
    return HOLDS if same else BROKEN


def _found(asked: Sequence[FoundChain]) -> list[FoundChain]:
    from conformance.search.chains import reach_elsewhere

    first = asked[0]
    found = reach_elsewhere(first.engine, first.release, [one.finding for one in asked])
    return [FoundChain(one.engine, one.finding, one.release, **found[one.finding]) for one in asked]


def _row(one: FoundChain) -> tuple[object, ...]:
    if not one.function:
        return one.finding, "no Python function of the engine", "-", "-"
    if one.no_caller:
        return one.finding, one.function, NO_CALLER, "-"
    names = [call["name"].rpartition(":")[2] for call in one.chain]
    return one.finding, one.function, f"{one.begins}: " + "\n".join(names), one.guesses
