"""The terms of a picture: what each means, and where each stands in a sentence, which links to the meaning there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from markupsafe import Markup, escape


class Term(NamedTuple):
    """A term: its ``name``, the ``pattern`` of its forms in a sentence, and what it ``means`` in the picture."""

    name: str
    pattern: str
    means: str


TERMS = (
    Term(
        "tombstone",
        "tombstones?",
        "A node of the tree whose SWA part was evicted; its full part is still there.",
    ),
    Term(
        "state slot",
        "state slots?|mamba states?",
        "The memory of one whole recurrent state of a model with mamba layers.",
    ),
    Term(
        "free group",
        "free groups?",
        "Between its begin and its end, frees are collected; the pages go free at the end.",
    ),
    Term(
        "release list",
        "release list",
        "Pages that were freed and are sorted into the free list later. They count as available.",
    ),
    Term(
        "lock count",
        "(?:full |SWA |state )?lock counts?|locks?",
        "How many lock handles hold this part of a node. What is locked is never evicted.",
    ),
    Term(
        "lock handle",
        "(?:lock )?handles?",
        "What a request holds while it reads the tree: it locks a node and all nodes above it.",
    ),
    Term(
        "window",
        "(?:sliding )?windows?",
        "The last tokens that a sliding-window layer reads. Only they need SWA slots.",
    ),
    Term(
        "evictable size",
        "evictable (?:full |SWA |state )?sizes?",
        "How much of the tree nobody has locked, so that it can be evicted.",
    ),
    Term(
        "protected size",
        "protected (?:full |SWA |state )?sizes?",
        "How much of the tree is locked.",
    ),
    Term(
        "available size",
        "available(?: full| SWA)? sizes?|available",
        "How much the engine says that it can still hand out.",
    ),
    Term(
        "mapping",
        "mapping|maps|mapped",
        "For each slot of the full pool the slot of the SWA pool where the sliding-window layers keep its token.",
    ),
    Term(
        "committed length",
        "committed(?: length)?",
        "How many tokens of the row are computed.",
    ),
    Term(
        "allocated length",
        "allocated(?: full| SWA)?(?: length)?",
        "How many tokens of the row have slots; drafts of speculative decoding are allocated before they are computed.",
    ),
    Term(
        "protected length",
        "protected length",
        "How many tokens at the beginning of the row the tree owns: the row reads them, and never frees them.",
    ),
    Term(
        "cursor",
        "(?:SWA )?cursor",
        "How many tokens of the row have left the window and lost their SWA slots.",
    ),
    Term(
        "held",
        "held|holds?|holder[s']*",
        "In use: a row, a tree node or a request has it, and nobody else may write it. A page or a state slot that is "
        "held by nobody and is not free has leaked.",
    ),
    Term(
        "free",
        "freed?|frees",
        "It can be handed out, and its old content is overwritten then.",
    ),
    Term(
        "slot",
        "(?:full |SWA )?slots?",
        "The memory of one token. Slot n is in page n / (page size), rounded down. Slot 0 stands for nothing.",
    ),
    Term(
        "page",
        "(?:full |SWA )?pages?",
        "Slots that are handed out together. A model with a sliding window has a full pool and an SWA pool of pages.",
    ),
    Term(
        "block",
        "blocks?",
        "A page that several rows may hold, each at the beginning of its text. It counts its holders.",
    ),
    Term(
        "prefix cache",
        "prefix cache",
        "Finds blocks that were computed for the beginning of a text.",
    ),
    Term(
        "row",
        "rows?",
        "Who holds pages in the order of the tokens: a request, or a node of the tree.",
    ),
    Term(
        "node",
        "nodes?",
        "A piece of cached text in the prefix tree, with the tokens of its path from the root in brackets.",
    ),
    Term(
        "session",
        "sessions?",
        "A conversation of several turns. Between two turns its slot keeps the row of the last request.",
    ),
    Term(
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


def met_in(texts: Iterable[str]) -> list[Term]:
    """The terms that stand in the texts, in the order of their names."""
    found = {_of(match) for text in texts for match in _FORMS.finditer(text)}
    return sorted(found)


def _of(match: re.Match[str]) -> Term:
    return TERMS[int((match.lastgroup or "t0")[1:])]
