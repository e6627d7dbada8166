"""Parts of a release's block pool that are read from outside, as views of our own tables: its blocks, its free queue
and its map of hashes.

The release's managers read them, and its tests also write to them. What is written past the calls of the pool goes to
our tables as it is, and is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from impl.block_pool import NULL, BlockPool


class BlockView:
    """A block, which keeps its number, and reads all else from the tables of its pool."""

    pool: Any

    def __init__(self, number: int, pool: Any) -> None:
        me: Any = self
        me.block_id, me.pool, me.is_null = number, pool, False
        self.tokens_of_hash: int | None = None

    @property
    def _impl(self) -> BlockPool:
        me: Any = self
        found: BlockPool = me.pool.impl
        return found

    @property
    def _number(self) -> int:
        me: Any = self
        return int(me.block_id)

    @property
    def ref_cnt(self) -> int:
        """Its holders."""
        return self._impl.refs[self._number]

    @ref_cnt.setter
    def ref_cnt(self, count: int) -> None:
        if count == self.ref_cnt + 1:
            self._impl.touch([self._number])
        else:
            self._impl.refs[self._number] = count

    @property
    def _block_hash(self) -> Any:
        return self._impl.hash_of[self._number]

    @_block_hash.setter
    def _block_hash(self, block_hash: Any) -> None:
        self._impl.hash_of[self._number] = block_hash

    @property
    def _block_hash_num_tokens(self) -> int | None:
        return self.tokens_of_hash

    @_block_hash_num_tokens.setter
    def _block_hash_num_tokens(self, tokens: int | None) -> None:
        self.tokens_of_hash = tokens

    @property
    def next_free_block(self) -> Any:
        """The block that is taken after it; ``None`` where it is not free."""
        me: Any = self
        return None if self.ref_cnt or me.is_null else me.pool.free_block_queue.after(self._number)

    @property
    def prev_free_block(self) -> Any:
        """The block that is taken before it; ``None`` where it is not free."""
        me: Any = self
        return None if self.ref_cnt or me.is_null else me.pool.free_block_queue.before(self._number)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def block_class(theirs: type[Any]) -> type[Any]:
    """The class of the blocks: a view of ours, and an instance of the release's class."""
    return type(theirs.__name__, (BlockView, theirs), {"__doc__": BlockView.__doc__})


class _End:
    """One end of the free queue, which is no block."""

    block_id = -1

    def __init__(self, queue: FreeQueue) -> None:
        self._queue = queue

    @property
    def next_free_block(self) -> Any:
        return self._queue.after(NULL)

    @property
    def prev_free_block(self) -> Any:
        return self._queue.before(NULL)


class FreeQueue:
    """The free queue of our pool, as the release's own shows it."""

    def __init__(self, impl: BlockPool, blocks: list[Any]) -> None:
        self._impl, self._blocks = impl, blocks
        self.fake_free_list_head, self.fake_free_list_tail = _End(self), _End(self)

    @property
    def num_free_blocks(self) -> int:
        """How many blocks are free."""
        return self._impl.available_size() if len(self._blocks) > 1 else 0

    def get_all_free_blocks(self) -> list[Any]:
        """The free blocks, from the one that is taken next on."""
        return [self._blocks[number] for number in self._impl.queue()]

    def after(self, number: int) -> Any:
        """The block behind this one, or the end of the queue."""
        return self._at(pairwise([NULL, *self._impl.queue(), NULL]), number, self.fake_free_list_tail)

    def before(self, number: int) -> Any:
        """The block before this one, or the end of the queue."""
        return self._at(pairwise([NULL, *self._impl.queue_backward(), NULL]), number, self.fake_free_list_head)

    def _at(self, pairs: Iterator[tuple[int, int]], number: int, end: _End) -> Any:
        found = next((then for first, then in pairs if first == number), NULL)
        return end if found == NULL else self._blocks[found]


class _Shown(dict[Any, Any]):
    """What the map shows. What a test changes here is changed in the map."""

    def __init__(self, shown: Mapping[Any, Any], of: HashMap) -> None:
        super().__init__(shown)
        self._of = of

    def clear(self) -> None:
        """Nothing is found any more."""
        self._of.clear()
        super().clear()

    def __setitem__(self, key: Any, found: Any) -> None:
        for block in found.values() if isinstance(found, dict) else (found,):
            self._of.insert(key, block)
        super().__setitem__(key, found)

    def pop(self, key: Any, *default: Any) -> Any:
        """Nothing is found by this hash any more."""
        self._of.forget(key)
        return super().pop(key, *default)


class HashMap:
    """By hash the blocks, as the release's own map shows it. A test may put blocks in that are in no pool."""

    def __init__(self, impl: BlockPool, blocks: list[Any]) -> None:
        self._impl, self._blocks = impl, blocks
        self._strangers: dict[Any, dict[int, Any]] = {}

    @property
    def _cache(self) -> Mapping[Any, Any]:
        """By hash its block, or a dict of its blocks where it has several."""
        known = {key: self._under(key) for key in [*self._impl.known, *self._strangers]}
        shown = {key: next(iter(found.values())) if len(found) == 1 else found for key, found in known.items()}
        return _Shown(shown, self)

    def _under(self, key: Any) -> dict[int, Any]:
        mine = {number: self._blocks[number] for number in self._impl.known.get(key, ())}
        return {**mine, **self._strangers.get(key, {})}

    def get_one_block(self, key: Any) -> Any:
        """``find``."""
        if key not in self._strangers:
            found = self._impl.find(key)
            return None if found is None else self._blocks[found]
        return next(iter(self._under(key).values()))

    def contain(self, key: Any, block_id: int) -> bool:
        """The block is found by this hash."""
        return block_id in self._under(key)

    def insert(self, key: Any, block: Any) -> None:
        """Puts a block into the table."""
        if self._is_mine(block):
            self._impl.known.setdefault(key, {})[block.block_id] = None
        else:
            self._strangers.setdefault(key, {})[block.block_id] = block

    def pop(self, key: Any, block_id: int) -> Any:
        """Takes a block out of the table; ``None`` if it is not there under this hash."""
        found = self._under(key).get(block_id)
        for table in (self._strangers, self._impl.known):
            alike: dict[int, Any] = table.get(key, {})
            if alike.pop(block_id, alike) is not alike and not alike:
                del table[key]
        return found

    def forget(self, key: Any) -> None:
        """Takes all blocks of this hash out of the table."""
        self._impl.known.pop(key, None)
        self._strangers.pop(key, None)

    def clear(self) -> None:
        """Takes all blocks out of the table."""
        self._impl.known.clear()
        self._strangers.clear()

    def __len__(self) -> int:
        return len(self._cache)

    def _is_mine(self, block: Any) -> bool:
        return block.block_id < len(self._blocks) and self._blocks[block.block_id] is block


class Further(Mapping[int, set[Any]]):
    """By block its further hashes."""

    def __init__(self, impl: BlockPool) -> None:
        self._impl = impl

    def __getitem__(self, block_id: int) -> set[Any]:
        return set(self._impl.more[block_id])

    def __iter__(self) -> Iterator[int]:
        return iter(self._impl.more)

    def __len__(self) -> int:
        return len(self._impl.more)
