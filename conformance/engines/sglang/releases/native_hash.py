"""Stands in for the compiled extension that hashes pages of tokens: a download of a release has no sources of it.

Hashes name blocks in KV events. The hashes are those of the release's Rust core: SHA-256 of what came before and of the
tokens, each in 32 bits.
"""

from __future__ import annotations

import hashlib
from array import array


def get_hash(
    raw: array[int], length: int, width: int, pairs: bool, prior: bytes | None, page_size: int | None
) -> str | list[str]:
    """The hash of ``length`` units of ``width`` numbers each, or, with a page size, the hash of each page.

    Each page's hash goes on from that of the page before, the first one from ``prior``. ``pairs``: a unit is a number
    and the next one.
    """
    numbers = [raw[at + k] for at in range(length) for k in range(2)] if pairs else list(raw[: length * width])
    step = (page_size or max(length, 1)) * width
    found: list[str] = []
    for start in range(0, len(numbers), step):
        page = b"".join(int(number).to_bytes(4, "little") for number in numbers[start : start + step])
        digest = hashlib.sha256((prior or b"") + page)
        prior = digest.digest()
        found.append(digest.hexdigest())
    return found if page_size is not None else "".join(found[:1]) or hashlib.sha256(prior or b"").hexdigest()
