"""Links lead somewhere: those between documents, with their anchors, and the documents that messages name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")})
SOURCES = [
    file for folder in ("slotproof", "conformance", "proofs", "spec", "impl") for file in (ROOT / folder).rglob("*")
]
NAMED = re.compile(r"\b(docs/[\w/.-]+\.md)(?:#([\w-]+))?")
IDENTIFIER = re.compile(r'<\w+ [^>]*\b(?:id|name)="([^"]+)"')


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a page, also those within a line."""
    for block in MarkdownIt("commonmark").enable("table").parse(text):
        yield block
        yield from block.children or ()


def links(text: str) -> list[str]:
    """Where the links and images of a page lead; what stands in code is no link."""
    every = (token.attrGet("href") or token.attrGet("src") for token in tokens(text))
    return [str(target) for target in every if target]


def anchors(text: str) -> list[str]:
    """The anchors of a page, as GitHub makes them: those of its headings, a number behind each that repeats an earlier
    one, and those that stand in its HTML.
    """
    found: list[str] = []
    met: dict[str, int] = {}
    several = [*tokens(text)]
    for opening, inline in pairwise(several):
        if opening.type == "heading_open":
            words = "".join(child.content for child in inline.children or () if child.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            found.append(f"{slug}-{met[slug]}" if slug in met else slug)
            met[slug] = met.get(slug, 0) + 1
    html = (token.content for token in several if token.type in ("html_inline", "html_block"))
    return [*found, *(name for part in html for name in IDENTIFIER.findall(part))]


@cache
def anchors_of(page: Path) -> frozenset[str]:
    return frozenset(anchors(page.read_text(encoding="utf-8")))


def lost(page: Path, target: str) -> bool:
    """The link of a page leads nowhere in the repository. Links to elsewhere are not asked."""
    path, _, part = unquote(target).partition("#")
    if re.match(r"[a-z]+:", path):
        return False
    place = (page.parent / path).resolve() if path else page
    return not place.exists() or bool(part and part not in anchors_of(place))


@pytest.mark.parametrize("folder", sorted({page.parent.relative_to(ROOT).as_posix() for page in PAGES}))
def test_links_between_pages_lead_somewhere(folder: str) -> None:
    own = [page for page in PAGES if page.parent == ROOT / folder]
    several = [(page, target) for page in own for target in links(page.read_text(encoding="utf-8"))]
    assert [f"{page.name}: {target}" for page, target in several if lost(page, target)] == []


def test_documents_that_messages_name_are_there() -> None:
    named = [
        (file, *found)
        for file in SOURCES
        if file.suffix in (".py", ".j2", ".js", ".toml")
        for found in NAMED.findall(file.read_text(encoding="utf-8"))
        if not Path(found[0]).stem.isupper()  # docs/laws/STEM.md stands for several
    ]
    assert len(named) > 20
    gone = [(file.name, path, part) for file, path, part in named if lost(ROOT / "README.md", f"{path}#{part}")]
    assert gone == []


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('# A word, `or_two`\n\n## Twice\n\n## Twice\n\n- <a id="law"></a>**law**\n\n`[no](link.md)`\n')
    text = page.read_text()
    assert links(text) == []
    assert anchors(text) == ["a-word-or_two", "twice", "twice-1", "law"]
    for target in ("page.md", "#twice-1", "page.md#law", "#a-word-or_two", "https://example.org/gone.md#x"):
        assert not lost(page, target), target
    for target in ("gone.md", "#gone", "page.md#twice-2", "page.md#Law"):
        assert lost(page, target), target


def test_a_link_in_a_table_and_a_picture_are_links() -> None:
    assert links("| a |\n|---|\n| [b](c.md#d) |\n\n![e](f.png)\n") == ["c.md#d", "f.png"]
