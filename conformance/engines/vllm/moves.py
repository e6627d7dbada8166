"""Writes down what a scheduler of vLLM does to blocks, and for whom."""

from __future__ import annotations

from typing import Any

from conformance.engines.vllm.recording.block_hooks import BlockHooks, Noted, numbers
from conformance.stems.block_cache.protocol import Move


class Moves:
    """``moves``: what was done to blocks since ``begin``. ``manager``: the KVCacheManager that is watched."""

    def __init__(self, manager: Any) -> None:
        self.moves: list[Move] = []
        BlockHooks(manager, self._note)

    def begin(self) -> None:
        """A call begins."""
        self.moves = []

    def _note(self, noted: Noted) -> None:
        request = noted.request
        name = request if request is None or isinstance(request, str) else request.request_id
        number = None if name is None else int(name)
        self.moves.append(Move(noted.kind, tuple(numbers(noted.blocks)), number, noted.group, noted.first))
