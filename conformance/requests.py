"""What a run knows of a request: texts are numbers that count on, so that prompts share prefixes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Request:
    """A request: its session (0: none), its input, the tokens sampled for it, and the position where its text forks off."""

    session: int
    tokens: list[int]
    fork: int
    sampled: list[int] = field(default_factory=list)

    @property
    def text(self) -> list[int]:
        """The input and the answer so far."""
        return self.tokens + self.sampled

    def next(self, count: int = 1) -> list[int]:
        """The tokens that are sampled next: the text counts on."""
        known = len(self.tokens) + len(self.sampled)
        return [token(n, self.fork) for n in range(known, known + count)]


def token(position: int, fork: int) -> int:
    """Texts count 1, 2, 3 …; from their fork on they are texts of their own."""
    return position + 1 if position < fork else 1000 * (fork + 1) + position
