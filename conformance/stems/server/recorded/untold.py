"""Which tokens of a recording are not told yet: a pass is explained with the token that it samples, which the server
knows a turn or two later.
"""

from __future__ import annotations

from conformance.recording.server_records import STANDS, RecordedEvent
from conformance.stems.server.recorded.texts import RecordedTexts

LEFT = "left"  # the kind of the event in which a request gives up its row


class UntoldTokens:
    """The events whose tokens are not told yet, by their numbers in the recording."""

    def __init__(self) -> None:
        self._waits: dict[int, dict[int, int]] = {}  # by request, and position, the event

    def takes(self, number: int, event: RecordedEvent, texts: RecordedTexts) -> None:
        """The next event. ``texts``: with what it tells."""
        for told in event.texts:
            known, waits = texts.length(told.request), self._waits.get(told.request, {})
            for position in [at for at in waits if at < known]:
                del waits[position]
        for request in (*event.gone, *(one.request for one in event.requests if event.kind == LEFT)):
            self._waits.pop(request, None)
        sampled = [(one.request, one.end) for one in event.passes if one.samples]
        if event.change is not None and event.kind == STANDS:
            sampled += [(row.request, row.committed) for row in event.change.rows]
        for request, position in sampled:
            if position >= texts.length(request):
                self._waits.setdefault(request, {})[position] = number

    def before(self, count: int) -> int:
        """How many of ``count`` events come before the first whose tokens are not told."""
        return min((number for waits in self._waits.values() for number in waits.values()), default=count)
