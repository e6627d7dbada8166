"""An engine for tests of the outputs: a paged allocator read from the file ``engine/alloc.py`` of a source folder.

``installed`` writes the package that registers it, ``checkout`` the source folder.
"""

from __future__ import annotations

from pathlib import Path

NAME = "faulty"
# What no reader of an output may take for anything but text: codes of a terminal, commands of GitHub Actions, markup of
# rich, XML, HTML and Markdown, characters that XML forbids, half characters, and line ends of every kind.
EVIL = (
    "\x1b[31mred\x1b[0m\x07 ##[add-mask]secret [bold]loud[/bold] [/nothing] ::stop-commands::x "
    "]]> <b>&amp; <!-- --> %0A%3A, key=value | ``` ` </details>\x00\x08\x1f\x7f\ud800 \udfff \ufffe\uffff\U0001f600"
    "\t\x9b31m\r::add-mask::a\n"
    "::set-output name=a::b\n  ::add-mask::\u00e4\n::stop-commands::x\n::error file=a::b\n"
    "\u034f::add-mask::c\r\n::add-mask::e\x0b::add-mask::f\x85::add-mask::g\u2028::add-mask::h"
)
PLUGIN = f"""
import importlib.util
from functools import partial
from pathlib import Path
from conformance.engines.registry import Loaded

class Plugin:
    name, releases, folder, own = {NAME!r}, (), None, False

    def load(self, release, source, device):
        file = source / "engine" / "alloc.py"
        spec = importlib.util.spec_from_file_location("alloc", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        makers, roots = {{"allocator": module.make}}, (file.parent.resolve(),)
        return Loaded(self.name, None, makers, source=source.resolve(), roots=roots)

PLUGIN = Plugin()
"""
HEAD = """\
from conformance.engines.toy import ToyAllocator

class Allocator(ToyAllocator):
    def free(self, slots):
        pages = list(dict.fromkeys(slot // self.page_size for slot in slots))
        if len(pages) > 1:
            return self.several(pages)
        self.free_pages += pages

    def several(self, pages):
        BODY

def make(config):
    return Allocator(config["size"], config["page_size"])
"""
GOOD, LEAKS, RAISES = "self.free_pages += pages", "self.free_pages += pages[:-1]", f"raise RuntimeError({EVIL!r})"


def installed(folder: Path) -> Path:
    """Writes the package of the engine; the folder must be on the path of Python."""
    facts = folder / f"{NAME}-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[slotproof.engines]\n{NAME} = {NAME}_engine:PLUGIN\n")
    (folder / f"{NAME}_engine.py").write_text(PLUGIN)
    return folder


def checkout(folder: Path, body: str) -> Path:
    """Writes a git checkout with the engine in its folder ``sub``, and returns this folder. ``body``: how several pages
    are freed.
    """
    (folder / ".git").mkdir(parents=True)
    file = folder / "sub" / "engine" / "alloc.py"
    file.parent.mkdir(parents=True)
    file.write_text(HEAD.replace("BODY", body))
    return folder / "sub"
