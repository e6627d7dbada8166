"""Asks a release whether an allocation would be granted: the release's own code, on a copy of its allocator.

A scheduler that allocates too much ends with an error, so the driver must know before it asks. The copy answers as the
allocator would; what the tree frees to make room, it frees for good.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from conformance.engines.sglang.releases import allocators


class Answered(Exception):
    """The copy of the allocator has answered, so the code that asked must not go on."""

    def __init__(self, room: bool) -> None:
        super().__init__("there is room" if room else "there is no room")
        self.room = room


def granted(allocator: Any, call: Callable[[], object], fragile: bool) -> bool:
    """Whether ``call``, code of the release that allocates from this allocator, would get what it asks for.

    A kernel that reads an empty free list may fail, also where no page is needed: that is no room. ``fragile``: such a
    kernel may kill the process, and is not called.
    """
    empty = False

    def rehearse(name: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal empty
        twin = copy.deepcopy(allocator)
        empty = twin.page_size > 1 and name != "alloc" and _has_empty_list(twin)
        if empty and fragile:
            raise Answered(room=False)
        raise Answered(room=getattr(twin, name)(*args, **kwargs) is not None)

    try:
        with _replaced(allocator, rehearse):
            call()
    except Answered as answer:
        return answer.room
    except (IndexError, RuntimeError, ValueError):
        if not empty:
            raise
        return False
    return True


@contextmanager
def _replaced(allocator: Any, rehearse: Callable[..., Any]) -> Iterator[None]:
    """While this lasts, the calls that allocate are rehearsed."""
    names = allocators.calls(allocator)

    def stand_in(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            for each in names:
                vars(allocator).pop(each, None)  # so that the copy has its own calls
            try:
                return rehearse(name, *args, **kwargs)
            finally:
                put()

        return call

    def put() -> None:
        vars(allocator).update({name: stand_in(name) for name in names})

    put()
    try:
        yield
    finally:
        for name in names:
            vars(allocator).pop(name, None)


def _has_empty_list(allocator: Any) -> bool:
    return any(len(side.free_pages) == 0 for side in allocators.sides(allocator))
