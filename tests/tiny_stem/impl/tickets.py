"""A desk that hands out tickets."""

from __future__ import annotations


class Desk:
    """``size`` tickets, of which ``out`` are out."""

    def __init__(self, size: int) -> None:
        self.size, self.out = size, 0

    def take(self, count: int) -> None:
        """Hands out ``count`` tickets. Raises ``ValueError`` where fewer are left."""
        if not 0 < count <= self.size - self.out:
            raise ValueError(f"{count} tickets were asked for, and {self.size - self.out} are left")
        self.out += count
