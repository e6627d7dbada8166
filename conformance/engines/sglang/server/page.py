"""Writes ``docs/server.md``: what stands in for a part of SGLang when its scheduler is driven, and what is watched.

To write it: ``python -m conformance.engines.sglang.server.page``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from conformance.driver.cache_folder import checkout
from conformance.engines.sglang import RELEASES, options
from conformance.engines.sglang.releases import download
from conformance.engines.sglang.releases.server_parts import ALL, Releases
from conformance.engines.sglang.server.launching import ALWAYS
from conformance.engines.sglang.server.standing_in import EVERYWHERE, ROWS
from conformance.engines.sglang.server.watching import CHANGING, TELLING, WATCHED

_ME = __spec__.name  # this module, also where it is run
HERE = Path(__file__).parent


def page() -> str:
    """The document."""
    rows = [f"| `{r.module}` | `{r.name}`{_only(r.only)} | {r.reason} | {r.differs} |" for r in ROWS]
    calls = [
        (one.kind, " or ".join(f"`{name}` of `{module}`" for module, name in one.places) + _only(one.only))
        for one in WATCHED
    ]
    calls += [
        (kind, f"`{name}` of the scheduler's `{thing}`")
        for thing, kinds in TELLING.items()
        for name, kind in kinds.items()
    ]
    changing = [f"`{thing}`: {', '.join(f'`{name}`' for name in names)}" for thing, names in CHANGING.items()]
    return (
        (HERE / "page.md")
        .read_text(encoding="utf-8")
        .format(
            me=_ME,
            always=" ".join(ALWAYS),
            everywhere=EVERYWHERE,
            rows="\n".join(rows),
            calls="\n".join(f"| {kind} | {words} |" for kind, words in calls),
            changing="; ".join(changing),
            **_options(),
        )
    )


def _options() -> dict[str, object]:
    """The parts of the document that tell which options and variables are drawn."""
    newest = RELEASES[-1]
    read, undrawn = options.read_by(download.WHEELS.release(newest) / "sglang"), options.undrawn()
    has = options.drawn()
    drawn = [name for name in read if name in has]
    reasons: dict[str, list[str]] = {}
    for name in read:
        if name in undrawn:
            reasons.setdefault(undrawn[name], []).append(f"`{name}`")
    return {
        **{"newest": newest, "read": len(read), "drawn": len(drawn)},
        "drawn_names": ", ".join(f"`{name}`" for name in drawn),
        "undrawn": "\n".join(f"| {reason} | {', '.join(names)} |" for reason, names in reasons.items()),
    }


def _only(releases: Releases) -> str:
    return "" if releases == ALL else f" (in releases {releases.text()})"


def main() -> int:
    """Writes the document."""
    root = checkout()
    assert root is not None, "only a checkout has documents"
    (root / "docs" / "server.md").write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
