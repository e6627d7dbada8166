"""Pages whose larger part is packed: it is deflated (RFC 1951), and ``explorer.js`` unpacks it. Pages of a report say
much that other pages say, so each is deflated as if a sample of them stood before it. A report becomes a fourth as
large.
"""

from __future__ import annotations

import re
import zlib
from base64 import b64encode
from collections.abc import Mapping

SAMPLE_FILE = "sample.js"  # the deflated sample, which each page loads
PART = re.compile(r"<!-- packed, else: (?P<command>.+?) -->\n(?P<html>.*)<!-- end of the packed part -->\n", re.DOTALL)
WINDOW = 1 << 15  # how far back deflate looks, in bytes
END_OF_SAMPLE = "\0"


def packed(pages: Mapping[str, str]) -> dict[str, str]:
    """The pages by their names, and the sample. In each page the part between its two comments, if it has them, is
    packed. The first comment names what shows this part to a reader without a script.
    """
    parts = [part["html"] for text in pages.values() if (part := PART.search(text))]
    if not parts:
        return dict(pages)
    sample = zlib.compressobj(level=9, wbits=-zlib.MAX_WBITS)
    begun = sample.compress(_sample(parts).encode()) + sample.flush(zlib.Z_SYNC_FLUSH)
    files = {SAMPLE_FILE: f'const SAMPLE = "{b64encode(begun).decode()}";\n'}
    for name, text in pages.items():
        files[name] = text
        if part := PART.search(text):
            up = "../" * name.count("/")
            files[name] = text[: part.start()] + _packed(part, sample.copy(), up) + text[part.end() :]
    return files


def _packed(part: re.Match[str], going: zlib._Compress, up: str) -> str:
    data = going.compress(part["html"].encode()) + going.flush()
    return (
        f'<p id="plain" class="rest">A script unpacks the rest of this page. Without one, see {part["command"]}.</p>\n'
        f'<script src="{up}{SAMPLE_FILE}"></script>\n'
        f'<script id="packed" type="text/plain">{b64encode(data).decode()}</script>\n'
    )


def _sample(parts: list[str]) -> str:
    """The parts of middle length, as much of them as deflate still sees from the first pages behind them."""
    middle, around = sorted(parts, key=len), len(parts) // 2
    return "".join(middle[max(0, around - 2) : around + 3])[-WINDOW * 3 // 4 :] + END_OF_SAMPLE
