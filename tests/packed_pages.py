"""Pages of a report as a browser shows them (``slotproof.pages.packing`` packs them)."""

import re
import zlib
from base64 import b64decode
from pathlib import Path


def unpacked(page: Path, sample: Path) -> str:
    """The text of the file ``page`` with its packed part unpacked. ``sample`` is the file sample.js of its report."""
    begun = b64decode(re.findall('"(.*)"', sample.read_text())[0])
    before, data, after = re.split('<script id="packed".*>(.*)</script>', page.read_text())
    whole = zlib.decompressobj(wbits=-zlib.MAX_WBITS).decompress(begun + b64decode(data)).decode()
    return before + whole.partition("\0")[2] + after
