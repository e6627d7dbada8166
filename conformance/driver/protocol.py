"""What holds for every engine that is driven beside the law. What a stem asks of an engine is a Protocol in the room of
the stem, in ``conformance/stems/STEM/protocol.py``.

You implement only the Protocols of the stems that you want to check. ``engines/toy.py`` is the smallest example. The
Protocols say what each call must do; they have no code that drives an engine, that is ``conformance.driver.lockstep``.

How an engine is driven: the driver makes a fresh engine for each run, from a configuration (a dict, see the docstring
of each Protocol), reads one snapshot, and sends one call after another. The caller decides what is done: which row
grows by how many tokens, which request ends. The engine decides how: which pages it hands out, what its tree keeps and
evicts. After each call the driver reads one snapshot again. It checks that the engine's choices were lawful, and
compares everything else with the law's state.

All arguments and answers are plain Python numbers, strings and lists:

- A page is a page number of one pool. Page 0 is padding and is never handed out.
- A slot is ``page * page_size + offset``, the place of one token's KV cache. A full slot is a slot of the full pool,
  an SWA slot one of the sliding-window pool.
- A request and a session are small numbers that the caller gives. Sessions count from 1; session 0 means "no session".
- A turn is a request of a streaming session. A session's slot keeps its row between two turns.
- Lengths count tokens, except where a docstring says pages or states. Token ids are positive integers.

An engine that does not have a call names it in ``lacks``; the operation of this name is then never sent. A call that
stands in ``OPTIONAL`` need not be named: an engine without a method of this name lacks it. No engine can
lack a call that other operations need too: ``free_swa`` of a pair of pools, and ``evict``, ``cancel``, ``abort`` and
``close`` of rows. A maker that gets a configuration which the engine does not support raises ``Unsupported``; the
driver then tries another configuration or skips the run.

An engine may refuse a call for lack of memory, and for nothing else. How it refuses (``None``, ``False`` or
``OutOfMemory``) stands at each call; a call without such an answer cannot be refused. A refused call must change
nothing, except that the engine may have evicted unlocked parts of its tree to make room. A call that is refused
although there is room is a finding. Any other exception is a finding too, except from ``bad``. An exception that the
code of Slotproof raised, such as that of an adapter, is no verdict (``conformance.driver.exception_origin``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Json = dict[str, Any]
Key = tuple[int, ...]  # the token ids from the start of a text, or from the root to the end of a node


class EngineError(Exception):
    """An engine cannot be found, downloaded, loaded or built. The message is one line that says why. ``unbuilt``: the
    exception that the engine's own code raises while an engine is built, and where; empty for other reasons.
    """

    def __init__(self, message: str, unbuilt: str = "") -> None:
        super().__init__(message)
        self.unbuilt = unbuilt


class Unsupported(Exception):
    """The engine does not support this configuration, or has no such call in it. The message is one line that says
    why. ``unbuilt``: the assertion of the engine's own code that fails while an engine is built, and where; empty where
    the engine refuses in words.
    """

    def __init__(self, message: str, unbuilt: str = "") -> None:
        super().__init__(message)
        self.unbuilt = unbuilt


class Misuse(Exception):
    """A call that no caller may send in this state. A run that contains it says nothing about the engine.

    ``by_engine``: what the engine has chosen rules it out, such as completing a step where it made none.
    On another engine the run may send it.
    """

    def __init__(self, message: str, by_engine: bool = False) -> None:
        super().__init__(message)
        self.by_engine = by_engine


class OutOfMemory(Exception):
    """A call was refused for lack of memory.

    An engine raises this where the answer of the call has no value for "refused".
    """


class TurnedAway(Exception):
    """The engine did not take a request that it must take. An adapter raises this, with what the engine said."""


OPTIONAL = frozenset({"free_segment", "free_swa_segment", "overwrite"})


class Engine(Protocol):
    """What every engine declares.

    ``lacks``: the names of the calls of the stem's Protocol that the engine does not have in this configuration. A
    lacking call is never sent, so the engine needs no method for it. An engine that does not promise to answer bad
    input with a clear error names ``bad`` here. ``snapshot`` cannot be lacking.

    ``fragile``: true if a call for which there is not enough memory may kill the process. The driver then tries such a
    call in a forked process first.

    An engine may have an attribute ``ran``, a dict from names to values, for what of it ran where that is not clear
    from the command line, for instance ``{"core": "rust"}``. The verdict of a stem shows it.
    """

    lacks: Collection[str]
    fragile: bool


def lacking(engine: Engine) -> frozenset[str]:
    """What the engine lacks: what its ``lacks`` names, and the calls in ``OPTIONAL`` for which it has no method."""
    return frozenset(engine.lacks) | {name for name in OPTIONAL if not callable(getattr(engine, name, None))}


# What an engine says of its cache, beside any stem.


@dataclass(frozen=True)
class PublishedEvents:
    """The KV events that an engine has published since it was last asked, in order, and what it has cached now.

    ``events``: each as msgpack decodes it, see ``conformance.stems.kv_events.wire``. ``pages``: of each cached page the
    token ids from the start of the text to the end of the page. ``keys``: of each cached block its medium, its group of
    layers and its hash, as events name them. ``tiers``: by medium, as events name it, the pages as in ``pages`` that
    are cached there. An engine says one of the three; the others are ``None``.

    ``number``: that of the batch, as its subscribers receive it; ``None`` where the events come in no batch. ``once``:
    the engine has each page once in a medium, so that a reader that keeps a set must be right, too. ``when``: the
    moment at which this is cached, in words; empty where that is clear.
    """

    events: Sequence[Any]
    pages: Collection[Key] | None = None
    keys: Collection[tuple[Any, int | None, int | bytes | str]] | None = None
    tiers: Mapping[str, Collection[Key]] | None = None
    number: int | None = None
    once: bool = False
    when: str = ""


class PublishingEngine(Protocol):
    """An engine that publishes KV events. An engine of any stem may have this call; one without it is not asked."""

    def published(self) -> PublishedEvents | Sequence[PublishedEvents] | None:
        """Takes the events since the last call, the first time since the engine was made. ``None``: in this
        configuration the engine publishes none. Sent once after each call, after the snapshot. An engine that
        publishes several batches within one call, or none, returns a sequence of what was published with each batch
        and was cached then; what is cached between two batches is not judged.
        """
