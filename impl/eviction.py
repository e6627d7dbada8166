"""Which nodes of a prefix cache are evicted first: the policies, by the names that engines give them.

A policy is an *order*: a function from a node to what the node is compared by. The smallest goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

__all__ = ["Order", "Usage", "least_recently_used", "order_of"]


@dataclass(slots=True)
class Usage:
    """What policies ask about a node beside when it was used last.

    ``hits``: how many requests have cached it. ``born``: when it came into the tree; the parts of a node that was cut
    have the time of the whole. ``priority``: the highest of the requests that have cached it. ``longest``: how many
    tokens there were, at most, up to the end of a node on a path through this one, those that have left included.
    """

    hits: int = 0
    born: int = 0
    priority: int = 0
    longest: int = 0

    def copy(self) -> Usage:
        """The usage of a part that is cut off."""
        return replace(self)

    def joined(self, other: Usage) -> Usage:
        """The usage of two nodes that become one."""
        return Usage(
            max(self.hits, other.hits),
            min(self.born, other.born),
            max(self.priority, other.priority),
            max(self.longest, other.longest),
        )


class Node(Protocol):
    """What an order reads of a node. ``start``, ``stop``: how many tokens there are up to the two ends of its key."""

    usage: Usage
    used: int
    start: int

    @property
    def stop(self) -> int:
        """How many tokens there are up to the end of its key."""


Order = Callable[[Any], Any]


def least_recently_used(node: Node) -> int:
    """The node that was used last stays longest."""
    return node.used


def _most_recently_used(node: Node) -> int:
    return -node.used


def _least_frequently_used(node: Node) -> tuple[int, int]:
    return node.usage.hits, node.used


def _oldest(node: Node) -> int:
    return node.usage.born


def _youngest(node: Node) -> int:
    return -node.usage.born


def _lowest_priority(node: Node) -> tuple[int, int]:
    return node.usage.priority, node.used


def _segmented(node: Node, protected_threshold: int = 2) -> tuple[bool, int]:
    """Nodes with fewer hits than the threshold go first."""
    return node.usage.hits >= protected_threshold, node.used


def _tail_optimized(node: Node, threshold: int = 0, next_prompt_estimate: int = 0) -> tuple[bool, int]:
    """A text of which so many tokens stay that its next prompt has at most ``threshold`` tokens to compute needs no
    more: nodes past that go first. ``next_prompt_estimate``: how many tokens a next prompt is expected to add.
    """
    needed = max(node.usage.longest + next_prompt_estimate - threshold, 0)
    return node.start < needed, node.used


_ORDERS: Mapping[str, Callable[..., Any]] = {
    "lru": least_recently_used,
    "lfu": _least_frequently_used,
    "fifo": _oldest,
    "mru": _most_recently_used,
    "filo": _youngest,
    "priority": _lowest_priority,
    "slru": _segmented,
    "tlru": _tail_optimized,
}


def order_of(policy: str, config: Mapping[str, int] | None = None) -> Order:
    """The order of the policy of this name. ``config``: values for its parameters, by their names.

    ValueError for a name that no policy has, and for a parameter that this policy does not have.
    """
    order = _ORDERS.get(policy.lower())
    if order is None:
        raise ValueError(f"eviction_policy must be one of {', '.join(_ORDERS)}, got {policy!r}")
    if not config:
        return order
    known = order.__code__.co_varnames[1 : order.__code__.co_argcount]
    for name in config:
        if name not in known:
            raise ValueError(f"eviction_policy_config: the policy {policy!r} has no parameter {name!r}")
    return partial(order, **config)
