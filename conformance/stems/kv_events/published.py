"""The KV events of an engine in a run, judged after each call beside what the engine has cached then."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from conformance.driver.protocol import PublishedEvents
from conformance.stems.kv_events.reader import READABLE, Key, Reader, WrongEvent, difference
from conformance.stems.kv_events.texts import EMPTY, extended
from conformance.stems.kv_events.wire import Malformed, parsed, shown


def differs(reader: Reader, events: Sequence[Any], keys: Collection[Key]) -> WrongEvent | None:
    """What breaks the law: one of these events, which the engine has published since the last call, or what the reader
    believes after them. ``keys``: every block that the engine's pool holds now. ``None``: the law is kept.

    After an answer that is not ``None`` the reader is of no more use.
    """
    return heard(reader, events) or reader.differs(keys)


def heard(reader: Reader, events: Sequence[Any]) -> WrongEvent | None:
    """The first of these events that breaks the law; the reader reads them all, or up to that one."""
    for raw in events:
        try:
            event = parsed(raw)
            wrong = reader.event(event)
        except Malformed as error:
            return WrongEvent(READABLE, f"{error}: {raw!r}")
        if wrong is not None:
            return WrongEvent(wrong.law, f"{event}: {wrong.detail}")
    return None


def publishing_call(engine: Any) -> Any:
    """The engine's call ``PublishingEngine.published``; ``None`` where it has none. It was called ``told`` before."""
    return getattr(engine, "published", None) or getattr(engine, "told", None)


class Listener:
    """A reader of the events of one engine from its start. ``ask``: see ``PublishingEngine.published``; ``None``: the
    engine has no such call.
    """

    def __init__(self, ask: Callable[[], PublishedEvents | None] | None) -> None:
        self._ask, self._reader = ask, Reader()

    def judge(self) -> WrongEvent | None:
        """What breaks the law since the last time. After an answer that is not ``None`` nothing more is judged."""
        published = None if self._ask is None else self._ask()
        if published is None:
            return None
        wrong = heard(self._reader, published.events) or self._differs(published)
        if wrong is not None:
            self._ask = None
        return wrong

    def _differs(self, published: PublishedEvents) -> WrongEvent | None:
        if published.keys is not None:
            return self._reader.differs(published.keys)
        held = {extended(EMPTY, page): page for page in published.pages or ()}
        believed = dict(self._reader.texts())
        stale = [f"block {shown(believed[text])}" for text in believed.keys() - held.keys()]
        missing = [f"the page at the end of {list(held[text])}" for text in held.keys() - believed.keys()]
        return difference(stale, missing)
