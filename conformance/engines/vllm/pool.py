"""The block pool of a release, ``BlockPool``, as an engine of the stem ``block_pool``.

A number of a text becomes a block of tokens, all of which are this number. The requests that the pool asks for their
hashes are the release's own, and hash with the release's own function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformance.driver.protocol import Json, Unsupported
from conformance.engines.vllm import reading
from conformance.engines.vllm.names import DigestTexts
from conformance.engines.vllm.recording.block_hooks import number, numbers
from conformance.engines.vllm.release import VLLMRelease
from conformance.stems.block_pool.protocol import NULL, BlockPoolSnapshot, Name

SIZE = 2  # tokens of a block


class VLLMBlockPool:
    """One ``BlockPool``. See ``BlockPoolEngine`` for what each call does."""

    fragile = False
    lacks: frozenset[str] = frozenset()

    def __init__(self, release: VLLMRelease, config: Json) -> None:
        if config["groups"] < 1:
            raise Unsupported("layers are in at least one group")
        self._release = release
        self._names = DigestTexts()
        self._requests: dict[tuple[int, ...], Any] = {}
        self._pool = release.pool(config["blocks"] + 1, config["caching"], SIZE)

    def get(self, count: int) -> list[int] | None:
        """``get_new_blocks``; its callers ask first whether there are enough."""
        if count > self._pool.get_num_free_blocks():
            return None
        return numbers(self._pool.get_new_blocks(count))

    def find(self, group: int, text: Sequence[int]) -> int | None:
        """``get_cached_block``."""
        digests = self._request(text).block_hashes
        found = self._pool.get_cached_block(digests[len(text) - 1], [group])
        return number(found[0]) if found else None

    def touch(self, blocks: Sequence[int]) -> None:
        """``touch``."""
        self._release.touch(self._pool, self._blocks(blocks))

    def free(self, blocks: Sequence[int]) -> None:
        """``free_blocks``."""
        self._pool.free_blocks(self._blocks(blocks))

    def cache(self, group: int, text: Sequence[int], blocks: Sequence[int], first: int, last: int) -> None:
        """``cache_full_blocks``."""
        self._pool.cache_full_blocks(
            request=self._request(text),
            blocks=self._blocks(blocks),
            num_cached_blocks=first,
            num_full_blocks=last,
            block_size=SIZE,
            kv_cache_group_id=group,
        )

    def evict(self, blocks: Sequence[int]) -> None:
        """``evict_blocks``."""
        self._pool.evict_blocks(set(blocks))

    def reset(self) -> bool:
        """``reset_prefix_cache``."""
        return bool(self._pool.reset_prefix_cache())

    def snapshot(self) -> BlockPoolSnapshot:
        """The fields of the pool, its queue and its blocks."""
        return reading.pool(self._release, self._pool, self._named)

    def _named(self, key: bytes) -> Name | None:
        group, digest = self._release.split(key)
        known = self._names.text(digest)
        return None if known is None else Name(group, known[1][::SIZE])

    def _request(self, text: Sequence[int]) -> Any:
        """A request whose prompt is ``text``."""
        key = tuple(text)
        if key not in self._requests:
            tokens = [kind for kind in text for _ in range(SIZE)]
            self._requests[key] = self._release.request(len(self._requests), tokens, 1, 0, 0, SIZE, self._names)
        return self._requests[key]

    def _blocks(self, blocks: Sequence[int]) -> list[Any]:
        known = self._pool.blocks
        return [self._pool.null_block if block == NULL else known[block] for block in blocks]
