"""``slotproof mends``: which functions of the next release mend a finding that the next release does not show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

from conformance.driver.naming import UsageError
from conformance.engines import registry
from conformance.traces import trace_files
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.console.needs import needed_checkout, needed_for_documents
from slotproof.console.screen import choose, say, show, table, write_json
from slotproof.pages import kept_findings, mend_pages
from slotproof.pages.mend_pages import Ended, MendedFinding


def run(names: Sequence[str], engine: str | None, release: str | None, keep: bool) -> int:
    """Looks for what mends findings, and prints it. ``names``: only these findings. ``engine``, ``release``: only those
    that this engine, or this release of it, was the last to show. ``keep``: writes ``docs/mends.json``, after each
    release, and the pages made from it. The exit code tells whether what was kept was found again; with ``keep`` it is
    0.
    """
    if keep:
        needed_for_documents("mends --keep")
        needed_checkout("mends --keep")
    findings = kept_findings.with_rows(kept_findings.kept())
    asked = _asked(mend_pages.ended(findings), names, engine, release)
    for used in dict.fromkeys(one.engine for one in asked):
        registry.must_be_installed(registry.plugin(used))
    for one in asked:
        if not one.kept_there:
            say(f"{one.finding}: {one.engine} {one.after} cannot be sent this trace, so nothing there can mend it")
    known, same = {one.key: one for one in mend_pages.kept_mends()}, True
    for (name, last, after), several in groupby(
        [one for one in asked if one.kept_there], lambda one: (one.engine, one.release, one.after)
    ):
        lawful = mend_pages.lawful(findings, name, last, after)
        found = _mended([*several], lawful)
        columns = ("finding", "functions that mend it", "each alone, too")
        rows = [(one.finding, _lines(one.functions), _lines(one.others)) for one in found]
        show(table(f"Last seen in {name} {last}, mended by text of {after}", columns, rows))
        same &= all(known.get(one.key, one) == one for one in found)
        known |= {one.key: one for one in found}
        if keep:
            order = [MendedFinding(o.engine, o.finding, o.release, "").key for o in mend_pages.ended(findings)]
            write_json(mend_pages.KEPT, [asdict(known[key]) for key in order if key in known])
    if keep:
        from slotproof.pages.documents import write

        write(check_only=False)
        return HOLDS
    if not same:
        say("docs/mends.json says something else: `slotproof mends --keep` writes what was found")
    return HOLDS if same else BROKEN


def _asked(ended: list[Ended], names: Sequence[str], engine: str | None, release: str | None) -> list[Ended]:
    """The ends that are asked for. Raises ``UsageError`` where there are none."""
    if engine is not None and engine not in (known := [one.name for one in registry.released()]):
        raise UsageError(f"--engine {engine}: expected one that has releases: {', '.join(known)}")
    if release is not None:
        releases = [r for one in registry.released() if engine in (None, one.name) for r in one.releases]
        if release not in releases:
            raise UsageError(f"--release {release}: expected one of {', '.join(releases)}")
    choose(names, trace_files.names(), "trace")
    found = [
        one
        for one in ended
        if (not names or one.finding in names)
        and (engine is None or one.engine == engine)
        and (release is None or one.release == release)
    ]
    if not found:
        last = " ".join(filter(None, (engine, release))) or "an older release"
        raise UsageError(f"{', '.join(names) or 'no trace'}: no finding that {last} is the last to show")
    return found


def _mended(several: Sequence[Ended], lawful: Sequence[str]) -> list[MendedFinding]:
    from conformance.search.mends import mends_elsewhere

    one = several[0]
    found = mends_elsewhere(one.engine, one.release, one.after, [one.finding for one in several], lawful)
    rows = [found[one.finding] for one in several]
    return [
        MendedFinding(one.engine, one.finding, one.release, one.after, **row)
        for one, row in zip(several, rows, strict=True)
    ]


def _lines(functions: Sequence[dict[str, object]]) -> str:
    return "\n".join(f"{one['file']}:{one['line']} {one['function']}" for one in functions) or "-"
