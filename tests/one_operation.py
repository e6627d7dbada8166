"""An engine for ``tests/test_enough.py`` that takes one operation a run: each insert is out of memory."""

from __future__ import annotations

from slotproof.plugin import Inserted, Json, LockRefSnapshot, NodePart, NodeSnapshot, PrefixMatch, Unsupported


class OneOperation:
    """A radix tree of one's own that keeps nothing: it accepts few configurations, and never has a node."""

    fragile = False
    lacks = ("pin", "compact", "copy_on_write", "release_swa", "bad")

    def insert(self, tokens: list[int], cursor: int, protected: int) -> Inserted | None:
        del tokens, cursor, protected
        return None

    def match(self, tokens: list[int]) -> PrefixMatch:
        del tokens
        return PrefixMatch(0, 0, [])

    def acquire(self, node: int) -> int:
        return node

    def release(self, handle: int, caller: str) -> None:
        del handle, caller

    def evict(self, full: int, swa: int, mamba: int) -> None:
        del full, swa, mamba

    def snapshot(self) -> LockRefSnapshot:
        root = NodeSnapshot(0, None, [], {"full": NodePart([], 0)})
        return LockRefSnapshot([root], {"full": 0}, {"full": 0}, {"full": list(range(1, 17))})


def make(config: Json) -> OneOperation:
    """Page size 1 and full attention alone."""
    if config["page_size"] != 1 or config["components"] != ["full"]:
        raise Unsupported("pages of one token, full attention alone")
    return OneOperation()
