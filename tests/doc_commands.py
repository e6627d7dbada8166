"""The command lines in README.md and docs/, and how each of them is executed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
FENCE = re.compile(r"^(?P<fence>```+)[^\n]*\n(?P<body>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)
PROMPT = re.compile(r"^\s*(?:- run: )?(?:\$ )?(?:\.venv/bin/)?(?=(?:slotproof|make|pytest) )")
INLINE = re.compile(r"(?<!`)`((?:slotproof|make) [^`]+)`(?!`)")
COMMENT = re.compile(r"\s+#\s.*$")


class DocCommand(NamedTuple):
    """A command line of a page. ``made``: its block is played or generated, so that ``slotproof docs --check`` executes
    it as it is.
    """

    page: str
    line: str
    made: bool


def in_blocks() -> list[DocCommand]:
    """Every command line in a block of code, without its comment."""
    return [found for page in PAGES for found in of_page(page.name, page.read_text(encoding="utf-8"))]


def of_page(name: str, text: str) -> list[DocCommand]:
    """The command lines in the blocks of one page."""
    found = []
    for block in FENCE.finditer(text):
        before = text[: block.start()].rstrip("\n").rpartition("\n")[2]
        made = before.startswith(("<!-- run", "<!-- generated: "))
        for line in block["body"].replace("\\\n", " ").splitlines():
            if PROMPT.match(line):
                found.append(DocCommand(name, COMMENT.sub("", PROMPT.sub("", line)).strip(), made))
    return found


def in_sentences() -> list[DocCommand]:
    """The command lines within sentences; a command alone, such as `slotproof check`, is a name."""
    return [
        DocCommand(page.name, " ".join(line.split()), False)
        for page in PAGES
        for piped in INLINE.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
        for line in piped.split(" | ")
        if (len(line.split()) > 2 and line.startswith("slotproof ")) or line.startswith("make ")
    ]


class Small(NamedTuple):
    """How a command line is executed in `make test`: with other words, in a folder that `tests/test_doc_commands.py`
    lays out. An engine of the test stands for a release, and less is drawn.
    """

    words: str
    code: int = 0


class Nightly(NamedTuple):
    """How a command line is executed by `make soak`: as it is, or with ``instead`` where it takes hours. ``codes``: the
    exit codes that it may have: SGLang breaks laws. ``release``: it drives a release, which must be downloaded.
    """

    codes: tuple[int, ...] = (0,)
    instead: str = ""
    release: bool = False


class InCI(NamedTuple):
    """A target of make that `.ci/run` executes as it is."""

    target: str


OWN, SGLANG = "my_engine:make", "~/sglang"
EXECUTED: dict[str, tuple[Small | Nightly | InCI, ...]] = {
    "make verify": (InCI("verify"),),
    "make test": (InCI("test"),),
    "slotproof list": (Small("list"),),
    "slotproof replay insert_under_reader": (Small("replay insert_under_reader ours"), Nightly((1,), release=True)),
    "slotproof replay nights/findings/no_leak-4b539a0d27fc.json sglang": (
        Small(f"replay nights/findings/no_leak-4b539a0d27fc.json {OWN}"),
        Nightly(release=True),
    ),
    "slotproof check my_package.my_module:make": (
        Small("check my_package.my_module:make --examples 5"),
        Nightly(),
    ),
    f"slotproof check sglang --source {SGLANG} --base": (
        Small(f"check {OWN} --source {SGLANG} --base --examples 5"),
        Nightly(release=True),
    ),
    f"slotproof check sglang --source {SGLANG} --base 0.5.23": (
        Small(f"check {OWN} --source {SGLANG} --base main --examples 5"),
        Nightly(release=True),
    ),
    "slotproof check sglang --source ./sglang --base 0.5.23": (
        Small(f"check {OWN} --source ./sglang --base sglang --examples 5"),
        Nightly(release=True),
    ),
    "slotproof check sglang --release 0.5.23": (Nightly((0, 1), release=True),),
    "slotproof check sglang server --release 0.5.23": (Nightly((0, 1), release=True),),
    "slotproof check sglang server --release 0.5.23 --repaired": (Nightly((0, 1), release=True),),
    "slotproof campaign sglang cache --release 0.5.23 --for 8h -o nights": (
        Nightly((0, 1, 4), "slotproof campaign sglang cache --release 0.5.23 --for 20s -o nights", release=True),
    ),
    "slotproof campaign my_package.cache:make --source . --for 10m --workers 4": (
        Nightly((0, 4), "slotproof campaign my_package.cache:make --source . --for 20s --workers 4"),
    ),
    "slotproof campaign my_package.cache:make --source . --for 2h -o campaign --json campaign.json": (
        Small("campaign my_package.cache:make --source . --for 5s -o campaign --json campaign.json"),
    ),
    "slotproof events stream.msgpack": (Small("events stream.msgpack"),),
    "slotproof events stream.msgpack --reader set": (Small("events stream.msgpack --reader set"),),
    "slotproof events stream.msgpack --late": (Small("events stream.msgpack --late"),),
    "slotproof events stream.msgpack --format json": (Small("events stream.msgpack --format json"),),
    "slotproof record --demo vllm --release 0.33.0 --steps 500 -o cache.rec": (Nightly(release=True),),
    "slotproof record --demo vllm --release 0.33.0 --server parts --steps 3000 -o cache.rec": (Nightly(release=True),),
    "slotproof record --demo sglang --release 0.5.23 --steps 500 -o cache.rec": (Nightly(release=True),),
    "slotproof judge cache.rec": (Small("judge cache.rec"),),
    "slotproof watch cache.rec": (Small("watch cache.rec --for 5s"),),
    "slotproof judge cache.rec --laws 100": (Small("judge cache.rec --laws 1"),),
    "slotproof judge cache.rec --shrink 60s --release 0.33.0": (
        Small("judge cache.rec --shrink 60s --release 0.33.0"),  # nothing is broken, so that nothing is searched for
    ),
    "slotproof judge cache.rec --format json": (Small("judge cache.rec --format json"),),
    "slotproof report -o page": (Nightly(),),
    "slotproof report -o page --trace insert_under_reader": (
        Small("report -o page --trace insert_under_reader --engine ours"),
        Nightly(release=True),
    ),
    f"slotproof report -o page --trace run.json --engine sglang --source {SGLANG}": (
        Small(f"report -o page --trace run.json --engine {OWN} --source {SGLANG}"),
        Nightly(release=True),
    ),
    "slotproof prove --certificates certificates": (Nightly(),),
    'slotproof diff "origin/$GITHUB_BASE_REF" --format github': (Small("diff HEAD --format github"),),
    "pytest --slotproof my_engine:make": (
        Nightly(instead="pytest -m slotproof --slotproof my_engine:make --slotproof-examples 5"),
    ),
    "pytest --slotproof sglang --slotproof-source . --slotproof-base origin/main --slotproof-examples 50": (
        Nightly(
            instead="pytest -m slotproof --slotproof sglang --slotproof-source sglang "
            "--slotproof-base main --slotproof-examples 5 -k allocator --ignore sglang",
            release=True,
        ),
    ),
}
