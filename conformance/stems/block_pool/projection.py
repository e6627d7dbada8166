"""Projects the snapshot of a pool of blocks onto the law's state of it.

``number`` is in every function the number that the law has for a prefix of a text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from conformance.stems.block_pool.protocol import NULL, BlockPoolSnapshot, Name
from spec.block_pool_state import NO_HASH, BlockPoolState
from spec.logic import but

GONE = -1  # the count of a block that is not shown
UNKNOWN = -1  # the prefix of a hash that no text has
Numbers = Callable[[tuple[int, ...]], int]


def project_blocks(st: BlockPoolState, seen: BlockPoolSnapshot, number: Numbers) -> BlockPoolState:
    """The law's blocks with the counts, the hashes and the number of free blocks that the snapshot shows; ``st`` itself
    if nothing differs. A hash is the one under which the prefix cache finds the block.
    """
    found = found_under(seen, number)
    refs, hashes, shown = st.refs, st.hash, seen.refs
    for block in st.blocks.items():
        if (count := shown.get(block, GONE)) != st.refs(block):
            refs = refs.put(block, count)
        if (prefix := found.get(block, NO_HASH)) != st.hash(block):
            hashes = hashes.put(block, prefix)
    if refs is st.refs and hashes is st.hash and seen.available == st.available:
        return st
    return but(st, refs=refs, hash=hashes, available=seen.available)


def found_under(seen: BlockPoolSnapshot, number: Numbers) -> dict[int, int]:
    """For each block that the prefix cache finds, the prefix under which it finds it; of several the first."""
    found: dict[int, int] = {}
    for name, blocks in seen.found.items():
        prefix = UNKNOWN if name is None else number(name.text)
        for block in blocks:
            found.setdefault(block, prefix)
    return found


def block_problems(
    st: BlockPoolState, seen: BlockPoolSnapshot, displaced: Mapping[int, Name] = MappingProxyType({})
) -> list[str]:
    """What the snapshot shows and the law's state has no field for, in words.

    ``displaced``: hashes that blocks may say they have although they are not found under them, by block.
    """
    return [*_queue_problems(st, seen), *_name_problems(st, seen, displaced)]


# The free queue.


def _queue_problems(st: BlockPoolState, seen: BlockPoolSnapshot) -> list[str]:
    free = seen.free
    listed = set(free)
    found = [] if seen.null == NULL else [f"the null block is block {seen.null}, and not block {NULL}"]
    if len(listed) < len(free):
        found += [f"block {b} is in the free queue {n} times" for b, n in sorted(Counter(free).items()) if n > 1]
    if seen.backward != free[::-1]:
        found.append(f"the free queue is {free} from its head, and {seen.backward} from its tail")
    if seen.available != len(free):
        found.append(f"the pool reports {_blocks(seen.available)} free, and {_blocks(len(free))} in its free queue")
    found += [f"the free queue has block {b}, {_no_block(b)}" for b in sorted(listed) if not st.blocks.has(b)]
    for block in st.blocks.items():
        count = seen.refs.get(block, GONE)
        if count == GONE:
            found.append(f"the holders of block {block} are not shown")
        elif (count == 0) != (block in listed):
            where = "in" if block in listed else "not in"
            found.append(f"block {block} has {_holders(count)} and is {where} the free queue")
    return found


def _blocks(count: int) -> str:
    return f"{count} block" + ("" if count == 1 else "s")


def _holders(count: int) -> str:
    return "no holder" if count == 0 else f"{count} holder" + ("" if count == 1 else "s")


def _no_block(block: int) -> str:
    return "which is the null block" if block == NULL else "which is no block of the pool"


# The prefix cache.


def _name_problems(st: BlockPoolState, seen: BlockPoolSnapshot, displaced: Mapping[int, Name]) -> list[str]:
    found = ["the null block has a hash"] if seen.null_named else []
    for name, blocks in seen.found.items():
        found += [f"the prefix cache finds block {b} {n} times under {said(name)}" for b, n in _twice(blocks)]
        for block in blocks:
            if not st.blocks.has(block):
                found.append(f"the prefix cache finds block {block}, {_no_block(block)}")
            elif name not in seen.named.get(block, ()):
                found.append(f"the prefix cache finds block {block} under {said(name)}, which is not its hash")
            elif name is not None and name.group != st.home(block):
                found.append(f"block {block} of group {st.home(block)} has the hash of {said(name)}")
    for block, names in seen.named.items():
        if len(names) > 1:
            found.append(f"block {block} has {len(names)} hashes: {', '.join(map(said, names))}")
        found += [
            f"block {block} has the hash of {said(name)}, and the prefix cache does not find it there"
            for name in names
            if block not in seen.found.get(name, ()) and (name is None or displaced.get(block) != name)
        ]
    return found


def _twice(blocks: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """The blocks that stand there several times, and how often."""
    if len(set(blocks)) < len(blocks):
        yield from ((b, n) for b, n in sorted(Counter(blocks).items()) if n > 1)


def said(name: Name | None) -> str:
    """A hash in words."""
    return "a text that no row has" if name is None else f"{list(name.text)} in group {name.group}"


def prefix_names(texts: Mapping[int, tuple[int, ...]]) -> Callable[[int], str]:
    """A function that says the prefix with a number. ``texts`` may grow later: it is read when words are needed."""

    def name(prefix: int) -> str:
        if prefix == NO_HASH:
            return "nothing"
        return str(list(texts[prefix])) if prefix in texts else "a text that no row has"

    return name
