"""Records a server that runs, so that ``slotproof judge`` can name its first wrong call afterwards.

From the code of a server::

    from slotproof import record

    recorder = record.start(scheduler, "cache.rec")
    ...
    recorder.stop()

From outside, without a line of code: set ``SLOTPROOF_RECORD=cache.rec`` and start the server, which loads Slotproof's
plug-in by itself (``conformance.recording.asked`` says which variables there are). This module imports the standard
library and msgpack alone, and a recorder waits for no device.
"""

from __future__ import annotations

from conformance.recording.started import plug_in, start

__all__ = ["plug_in", "start"]
