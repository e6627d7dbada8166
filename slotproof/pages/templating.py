"""The templates of the documents and of the HTML pages, with what they call."""

from __future__ import annotations

import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from conformance.driver.lockstep import CONFORMS, LATENT, UNSUPPORTED, VIOLATION
from conformance.driver.protocol import Json
from conformance.telling.where import Frame
from slotproof.checks.replays import merged
from slotproof.console.screen import broken
from slotproof.pages.kept_findings import label
from slotproof.pages.terms import anchor, linked

VERDICTS = {VIOLATION: "**violation**", LATENT: "latent", CONFORMS: "conforms", UNSUPPORTED: "unsupported"}


def environment(html: bool = False) -> Environment:
    """The templates; values are escaped in HTML."""
    made = Environment(loader=PackageLoader(__package__), undefined=StrictUndefined, autoescape=html)
    made.filters["line"] = _html_line if html else _line
    made.filters["verdict"] = lambda verdict: VERDICTS[verdict]
    made.filters["cell"] = lambda text: _line(text).replace("|", "\\|")
    made.filters["merged"] = merged
    made.filters["settings"] = settings
    made.filters["frames"] = lambda frames: "\n".join(str(Frame(**frame)) for frame in frames)
    made.filters["linked"] = linked
    made.filters["begun"] = lambda text: text[:1].upper() + text[1:]
    made.filters["anchor"] = anchor
    made.globals.update(label=label, broken=broken)
    return made


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def _html_line(text: str | None) -> Markup:
    """A docstring on one line, with its ``code`` as HTML."""
    return Markup(re.sub(r"``(.*?)``", r"<code>\1</code>", str(escape(_line(text)))))


def settings(config: Json) -> str:
    """A trace's configuration in words: ``block size 4, caching no, layers full and window 3``."""
    return ", ".join(f"{name.replace('_', ' ')} {_setting(value)}" for name, value in config.items())


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(map(_setting, value.values()))
    return " and ".join(map(_setting, value)) if isinstance(value, list) else str(value)


def tidy(text: str) -> str:
    """The page without the empty lines and the indentation that templates leave."""
    return "\n".join(line for line in text.splitlines() if line.strip()) + "\n"
