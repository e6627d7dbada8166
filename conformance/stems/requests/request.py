"""What a run knows of a request, and the token ids of its text. Texts count on, so that prompts share prefixes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

MARK = 1 << 40  # a token id is below it, but for its mark


@dataclass
class RunRequest:
    """A request that runs or waits.

    ``session``: 0 if it has none. ``tokens``: its input, as token ids. ``fork``: the position from which on its text
    differs from that of other forks. ``sampled``: its answer so far. ``mark``: what else its computation depends on,
    such as a LoRA adapter or a salt; 0 for nothing. Each token id of its text has the mark in its high part (``MARK``).
    ``cached``: as many tokens of its text are in the tree by a checkpoint. ``least``: its answer is at least so long.
    With so many tokens of it a scheduler has put the prompt into the tree, moved the window or begun a step, and the
    answer had not ended before.
    """

    session: int
    tokens: list[int]
    fork: int
    sampled: list[int] = field(default_factory=list)
    mark: int = 0
    cached: int = 0
    least: int = 0

    @property
    def text(self) -> list[int]:
        """The input and the answer so far."""
        return self.tokens + self.sampled

    def next(self, count: int = 1) -> list[int]:
        """The ``count`` token ids that are sampled next."""
        known = len(self.tokens) + len(self.sampled)
        return [token(n, self.fork, self.mark) for n in range(known, known + count)]


def token(position: int, fork: int, mark: int = 0) -> int:
    """The token id at a position: 1, 2, 3 and so on before the fork, and ids of this fork alone after it; the mark in
    its high part.
    """
    return MARK * mark + (position + 1 if position < fork else 1000 * (fork + 1) + position)


class Sampled(Protocol):
    """Says which token is sampled, as ``token`` does."""

    def __call__(self, position: int, fork: int, mark: int = 0) -> int:
        """The token id at a position of the text of a fork."""
