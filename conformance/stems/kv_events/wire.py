"""KV events as engines publish them, made into plain records.

An event is a msgpack array ``[tag, field, field, ...]`` or a map ``{"type": tag, field: value, ...}``; both have been
used by both engines that publish such events (vLLM to 0.22 and SGLang to 0.5.19 arrays, later releases maps). Only the
fields that the law speaks of are read. Fields that are missing at the end, and fields that are not known, are no error.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

Hash = int | bytes | str
Medium = Hashable  # the name of a medium; with the tier and the owner, where an event names them

# The kinds of groups of layers whose cached blocks are whole prefixes. Where an event numbers its group and does not
# say the kind, this is not known. An event that does not number its group is of an engine with one group.
# Whole prefixes are on the device; other memory gets copies of single blocks.
WHOLE = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
DEVICE = (None, "GPU")
HASHES = frozenset({int, bytes, str})


class Malformed(ValueError):
    """What was read is no event. The message says why, in a few words."""


class Stored(NamedTuple):
    """Blocks were stored, one after the other in a text.

    ``parent``: the hash of the block before the first one; ``None``: the first one begins a text. ``tokens``: the token
    ids of all blocks. ``size``: the tokens of a block; 0 where the event does not say which text the blocks stand for,
    as those of vLLM's ``OffloadingConnector``. ``chained``: the group keeps whole prefixes in the medium.
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
        return _listed(raw)
    if type(raw) is dict:
        return _mapped(raw)
    raise Malformed("an event is an array or a map")


def _listed(raw: list[Any]) -> Event:
    """The event of an array. A field that the array ends before is ``None``."""
    tag = raw[0] if raw else None
    if tag == "BlockStored":
        _, hashes, parent, tokens, size, _, medium, _, _, group, kind = (raw + _ABSENT)[:11]
        return _stored(hashes, parent, tokens, size, kind, medium, group)
    if tag == "BlockRemoved":
        _, hashes, medium, group = (raw + _ABSENT)[:4]
        return Removed(_hashes_of(hashes), _medium(medium), _group(group))
    return _without_fields(tag)


_ABSENT = [None] * 11  # a ``BlockStored`` has 11 places, up to the last one that is read


def _mapped(raw: dict[str, Any]) -> Event:
    """The event of a map. A field that it does not have is ``None``."""
    get = raw.get
    tag = get("type")
    if tag == "BlockStored":
        return _stored(
            get("block_hashes"),
            get("parent_block_hash"),
            get("token_ids"),
            get("block_size"),
            get("kv_cache_spec_kind"),
            get("medium"),
            get("group_idx"),
            get("locality"),
            get("ownership"),
        )
    if tag == "BlockRemoved":
        blocks = _hashes_of(get("block_hashes"))
        return Removed(blocks, _medium(get("medium"), get("locality"), get("ownership")), _group(get("group_idx")))
    return _without_fields(tag)


def _without_fields(tag: Any) -> Event:
    if tag == "AllBlocksCleared":
        return Cleared()
    raise Malformed(f"no event is called {tag!r}")


def _stored(
    hashes: Any,
    parent: Any,
    tokens: Any,
    size: Any,
    kind: Any,
    medium: Any,
    group: Any,
    locality: Any = None,
    ownership: Any = None,
) -> Stored:
    """The event of these fields, as they were read. Raises ``Malformed`` where one is not what it should be."""
    blocks = _hashes_of(hashes)
    if parent is not None and type(parent) not in HASHES:
        raise Malformed("parent_block_hash is no hash")
    if type(tokens) is not list or type(size) is not int or size < 0 or (size == 0 and tokens):
        raise Malformed("token_ids or block_size is missing")
    if kind is not None and type(kind) is not str:
        raise Malformed("kv_cache_spec_kind is no name")
    place, number = _medium(medium, locality, ownership), _group(group)
    chained = number is None if kind is None else kind in WHOLE and medium in DEVICE
    return Stored(blocks, parent, tokens, size, place, number, chained)


def _hashes_of(value: Any) -> list[Hash]:
    if type(value) is list:
        for one in value:
            if type(one) not in HASHES:
                break
        else:
            return value
    raise Malformed("block_hashes is no list of hashes")


def _medium(medium: Any, locality: Any = None, ownership: Any = None) -> Medium:
    if locality is None and ownership is None:
        return _name(medium)
    return _name(medium), _name(locality), _name(ownership)


def _name(value: Any) -> str | None:
    if value is not None and type(value) is not str:
        raise Malformed("medium is no name")
    return value


def _group(value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise Malformed("group_idx is no number")
    return value
