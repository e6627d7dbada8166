"""KV events as engines publish them, made into plain records.

An event is a msgpack array ``[tag, field, field, ...]`` or a map ``{"type": tag, field: value, ...}``; both have been
used by both engines that publish such events (vLLM to 0.22 and SGLang to 0.5.19 arrays, later releases maps). Only the
fields that the law speaks of are read. Fields that are missing at the end, and fields that are not known, are no error.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

Hash = int | bytes | str
Medium = Hashable  # the name of a medium; with the tier and the owner, where an event names them

# The kinds of groups of layers whose cached blocks are whole prefixes. Where an event numbers its group and does not
# say the kind, this is not known. An event that does not number its group is of an engine with one group.
WHOLE = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
HASHES = (int, bytes, str)


class Malformed(ValueError):
    """What was read is no event. The message says why, in a few words."""


class Stored(NamedTuple):
    """Blocks were stored, one after the other in a text.

    ``parent``: the hash of the block before the first one; ``None``: the first one begins a text. ``tokens``: the token
    ids of all blocks. ``size``: the tokens of a block. ``chained``: the group keeps whole prefixes.
    """

    hashes: Sequence[Hash]
    parent: Hash | None
    tokens: Sequence[Any]
    size: int
    medium: Medium
    group: int | None
    chained: bool

    def __str__(self) -> str:
        parent = "no parent" if self.parent is None else f"parent {shown(self.parent)}"
        return f"BlockStored {_hashes(self.hashes)}, {parent}{_place(self.medium, self.group)}"


class Removed(NamedTuple):
    """Blocks were removed."""

    hashes: Sequence[Hash]
    medium: Medium
    group: int | None

    def __str__(self) -> str:
        return f"BlockRemoved {_hashes(self.hashes)}{_place(self.medium, self.group)}"


class Cleared(NamedTuple):
    """All blocks were cleared."""

    def __str__(self) -> str:
        return "AllBlocksCleared"


Event = Stored | Removed | Cleared


def shown(block: Hash) -> str:
    """A hash as text; bytes as hexadecimal digits."""
    return block.hex() if isinstance(block, bytes) else str(block)


def _hashes(hashes: Sequence[Hash]) -> str:
    more = f" and {len(hashes) - 4} more" if len(hashes) > 4 else ""
    return ", ".join(map(shown, hashes[:4])) + more


def _place(medium: Medium, group: int | None) -> str:
    told = ", ".join(str(part) for part in (medium if isinstance(medium, tuple) else (medium,)) if part is not None)
    return (f" in {told}" if told else "") + ("" if group is None else f", group {group}")


def parsed(raw: Any) -> Event:
    """The event that was published as ``raw``, a list or a dict as msgpack decodes it. Raises ``Malformed``."""
    if type(raw) is list:
        fields: Callable[[str, int], Any] = _Listed(raw).field
        tag = raw[0] if raw else None
    elif type(raw) is dict:
        fields = _Mapped(raw).field
        tag = raw.get("type")
    else:
        raise Malformed("an event is an array or a map")
    if tag == "BlockStored":
        return _stored(fields)
    if tag == "BlockRemoved":
        return Removed(_hashes_of(fields("block_hashes", 1)), _medium(fields, 2), _group(fields("group_idx", 3)))
    if tag == "AllBlocksCleared":
        return Cleared()
    raise Malformed(f"no event is called {tag!r}")


class _Listed(NamedTuple):
    raw: list[Any]

    def field(self, _: str, at: int) -> Any:
        """The field at this place; ``None`` where the event ends before it, or has no such place (0)."""
        return self.raw[at] if 0 < at < len(self.raw) else None


class _Mapped(NamedTuple):
    raw: Mapping[str, Any]

    def field(self, name: str, _: int) -> Any:
        """The field of this name; ``None`` where the event does not have it."""
        return self.raw.get(name)


def _stored(fields: Callable[[str, int], Any]) -> Stored:
    hashes, parent = _hashes_of(fields("block_hashes", 1)), fields("parent_block_hash", 2)
    tokens, size, kind = fields("token_ids", 3), fields("block_size", 4), fields("kv_cache_spec_kind", 10)
    if parent is not None and type(parent) not in HASHES:
        raise Malformed("parent_block_hash is no hash")
    if type(tokens) is not list or type(size) is not int or size < 1:
        raise Malformed("token_ids or block_size is missing")
    if kind is not None and type(kind) is not str:
        raise Malformed("kv_cache_spec_kind is no name")
    medium, group = _medium(fields, 6), _group(fields("group_idx", 9))
    chained = group is None if kind is None else kind in WHOLE
    return Stored(hashes, parent, tokens, size, medium, group, chained)


def _hashes_of(value: Any) -> list[Hash]:
    if type(value) is not list or not all(type(one) in HASHES for one in value):
        raise Malformed("block_hashes is no list of hashes")
    return value


def _medium(fields: Callable[[str, int], Any], at: int) -> Medium:
    medium, locality, ownership = fields("medium", at), fields("locality", 0), fields("ownership", 0)
    if any(type(part) is not str for part in (medium, locality, ownership) if part is not None):
        raise Malformed("medium is no name")
    return medium if locality is None and ownership is None else (medium, locality, ownership)


def _group(value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise Malformed("group_idx is no number")
    return value
