"""The terms of a picture: what each means, and where each stands in a sentence, which links to the meaning there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from markupsafe import Markup, escape


class GlossaryTerm(NamedTuple):
    """A term: its ``name``, the ``pattern`` of its forms in a sentence, and what it ``means`` in the picture."""

    name: str
    pattern: str
    means: str


TERMS = (
    GlossaryTerm(
        "tombstone",
        "tombstones?",
        "A node of the tree whose SWA part was evicted; its full part is still there.",
    ),
    GlossaryTerm(
        "state slot",
        "state slots?|mamba states?",
        "The memory of one whole recurrent state of a model with mamba layers.",
    ),
    GlossaryTerm(
        "free group",
        "free groups?",
        "Between its begin and its end, frees are collected; the pages go free at the end.",
    ),
    GlossaryTerm(
        "release list",
        "release list",
        "Pages that were freed and are sorted into the free list later. They count as available.",
    ),
    GlossaryTerm(
        "lock count",
        "(?:full |SWA |state )?lock counts?|locks?",
        "How many lock handles hold this part of a node. What is locked is never evicted.",
    ),
    GlossaryTerm(
        "lock handle",
        "(?:lock )?handles?",
        "What a request holds while it reads the tree: it locks a node and all nodes above it.",
    ),
    GlossaryTerm(
        "window",
        "(?:sliding )?windows?",
        "The last tokens that a sliding-window layer reads. Only they need SWA slots.",
    ),
    GlossaryTerm(
        "evictable size",
        "evictable (?:full |SWA |state )?sizes?",
        "How much of the tree nobody has locked, so that it can be evicted.",
    ),
    GlossaryTerm(
        "protected size",
        "protected (?:full |SWA |state )?sizes?",
        "How much of the tree is locked.",
    ),
    GlossaryTerm(
        "available size",
        "available(?: full| SWA)? sizes?|available",
        "How much the engine says that it can still hand out.",
    ),
    GlossaryTerm(
        "mapping",
        "mapping|maps|mapped",
        "For each slot of the full pool the slot of the SWA pool where the sliding-window layers keep its token.",
    ),
    GlossaryTerm(
        "committed length",
        "committed(?: length)?",
        "How many tokens of the row are computed.",
    ),
    GlossaryTerm(
        "allocated length",
        "allocated(?: full| SWA)?(?: length)?",
        "How many tokens of the row have slots; drafts of speculative decoding are allocated before they are computed.",
    ),
    GlossaryTerm(
        "protected length",
        "protected length",
        "How many tokens at the beginning of the row the tree owns: the row reads them, and never frees them.",
    ),
    GlossaryTerm(
        "cursor",
        "(?:SWA )?cursor",
        "How many tokens of the row have left the window and lost their SWA slots.",
    ),
    GlossaryTerm(
        "held",
        "held|holds?|holder[s']*",
        "In use: a row, a tree node or a request has it, and nobody else may write it. A page or a state slot that is "
        "held by nobody and is not free has leaked.",
    ),
    GlossaryTerm(
        "free",
        "freed?|frees",
        "It can be handed out, and its old content is overwritten then.",
    ),
    GlossaryTerm(
        "slot",
        "(?:full |SWA )?slots?",
        "The memory of one token. Slot n is in page n / (page size), rounded down. Slot 0 stands for nothing.",
    ),
    GlossaryTerm(
        "page",
        "(?:full |SWA )?pages?",
        "Slots that are handed out together. A model with a sliding window has a full pool and an SWA pool of pages.",
    ),
    GlossaryTerm(
        "block",
        "blocks?",
        "A page that several rows may hold, each at the beginning of its text. It counts its holders.",
    ),
    GlossaryTerm(
        "prefix cache",
        "prefix cache",
        "Finds blocks that were computed for the beginning of a text.",
    ),
    GlossaryTerm(
        "row",
        "rows?",
        "Who holds pages in the order of the tokens: a request, or a node of the tree.",
    ),
    GlossaryTerm(
        "node",
        "nodes?",
        "A piece of cached text in the prefix tree, with the tokens of its path from the root in brackets.",
    ),
    GlossaryTerm(
        "session",
        "sessions?",
        "A conversation of several turns. Between two turns its slot keeps the row of the last request.",
    ),
    GlossaryTerm(
        "request",
        "requests?",
        "What a user has sent: it reads cached pages and writes new ones.",
    ),
)
_FORMS = re.compile(
    r"(?<![\w-])(?:" + "|".join(f"(?P<t{n}>{term.pattern})" for n, term in enumerate(TERMS)) + r")(?![\w-])"
)


def anchor(name: str) -> str:
    """The identifier of the meaning of a term on the page."""
    return f"term-{name.replace(' ', '-')}"


def linked(text: str) -> Markup:
    """The text, with the first occurrence of each term as a link to its meaning."""
    met: set[str] = set()

    def link(match: re.Match[str]) -> str:
        term = _of(match)
        if term.name in met:
            return match[0]
        met.add(term.name)
        return f'<a href="#{anchor(term.name)}">{match[0]}</a>'

    return Markup(_FORMS.sub(link, str(escape(" ".join(text.split())))))


def met_in(texts: Iterable[str]) -> list[GlossaryTerm]:
    """The terms that stand in the texts, in the order of their names."""
    found = {_of(match) for text in texts for match in _FORMS.finditer(text)}
    return sorted(found)


def _of(match: re.Match[str]) -> GlossaryTerm:
    return TERMS[int((match.lastgroup or "t0")[1:])]
