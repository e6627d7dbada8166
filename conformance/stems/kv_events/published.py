"""The KV events of an engine in a run, judged after each call beside what the engine has cached then."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from conformance.driver.protocol import Key as Page
from conformance.driver.protocol import PublishedEvents
from conformance.stems.kv_events.reader import AGREE, READABLE, Key, Reader, WrongEvent, difference
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

    def __init__(self, ask: Callable[[], PublishedEvents | Sequence[PublishedEvents] | None] | None) -> None:
        self._ask, self._reader, self._set = ask, Reader(), Reader(counting=False)
        self._agree = True  # the two readers, so far

    def judge(self) -> WrongEvent | None:
        """What breaks the law since the last time. After an answer that is not ``None`` nothing more is judged, but for
        a reader that counts too much: then the one that keeps a set reads on.
        """
        published = None if self._ask is None else self._ask()
        differ = None
        for batch in [published] if isinstance(published, PublishedEvents) else published or ():
            wrong = self._judge(batch)
            if wrong is not None and wrong.law == AGREE:
                differ = wrong
            elif wrong is not None:
                self._ask = None
                return wrong
        return differ

    def _judge(self, batch: PublishedEvents) -> WrongEvent | None:
        """What breaks the law in one batch."""
        reader = self._set if batch.once else self._reader
        begun = None if batch.number is None else reader.begins(batch.number)
        if wrong := begun or _wrong(reader, batch):
            return wrong
        if batch.once and self._agree and (wrong := _wrong(self._reader, batch)):
            self._agree = False
            return WrongEvent(AGREE, f"the reader that counts is wrong: {wrong.detail}")
        return None


def _wrong(reader: Reader, batch: PublishedEvents) -> WrongEvent | None:
    """The first event of the batch that breaks the law, or what the reader believes after it."""
    found = heard(reader, batch.events)
    if found is not None:
        return found
    wrong = _differs(reader, batch)
    return wrong._replace(detail=f"{batch.when}: {wrong.detail}") if wrong is not None and batch.when else wrong


def _differs(reader: Reader, batch: PublishedEvents) -> WrongEvent | None:
    if batch.keys is not None:
        return reader.differs(batch.keys)
    if batch.tiers is not None:
        return _of_tiers(reader, batch.tiers)
    held = {extended(EMPTY, page): page for page in batch.pages or ()}
    believed = dict(reader.texts())
    stale = [f"block {shown(believed[text])}" for text in believed.keys() - held.keys()]
    missing = [f"the page at the end of {list(held[text])}" for text in held.keys() - believed.keys()]
    return difference(stale, missing)


def _of_tiers(reader: Reader, tiers: Mapping[str, Collection[Page]]) -> WrongEvent | None:
    held = {(medium, extended(EMPTY, page)): page for medium, pages in tiers.items() for page in pages}
    believed = {(medium, text): block for medium, text, block in reader.tiers()}
    # The text of a block that is believed and gone in one medium is that of a page, where it is there in another one.
    known = {text: page for (_, text), page in held.items()}
    stale = [
        f"block {shown(block)} in {medium}" + (f", the page at the end of {list(known[text])}" if text in known else "")
        for (medium, text), block in believed.items()
        if (medium, text) not in held
    ]
    missing = [f"the page at the end of {list(held[at])} in {at[0]}" for at in held.keys() - believed.keys()]
    return difference(stale, missing)
