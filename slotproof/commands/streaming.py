"""``slotproof events``: a recorded stream of KV events, judged by the law that a router relies on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import Literal

from conformance.driver.printable import printable
from conformance.driver.protocol import Json
from conformance.stems.kv_events import recording
from conformance.stems.kv_events.recording import FoundInStream, Judged
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.console.screen import say, write_json

COUNTS: Literal["counts"] = "counts"


@dataclass(frozen=True)
class StreamOptions:
    """What was asked for. ``reader``: counts copies, or keeps a set. ``late``: the recording began after the engine.
    ``name``: what the report calls the file, where that is not its path.
    """

    file: Path
    reader: Literal["counts", "set"] = COUNTS
    late: bool = False
    json: Path | None = None
    form: Literal["text", "json"] = "text"
    name: str = ""


def run(options: StreamOptions) -> int:
    """Judges the stream, writes the result, prints it, and returns the exit code."""
    judged = recording.judge(options.file, options.reader == COUNTS, options.late)
    data = _data(judged, options)
    write_json(options.json, data)
    if options.form == "json":
        print(dumps(data, indent=1))
    else:
        _print(judged, options)
    return HOLDS if judged.found is None else BROKEN


def _data(judged: Judged, options: StreamOptions) -> Json:
    return {
        **{"stream": options.name or str(options.file), "reader": options.reader},
        **{"batches": judged.batches, "events": judged.events, "believed": judged.believed},
        **{"readers": len(judged.readers), "late": judged.late},
        "finding": None if judged.found is None else _finding(judged.found),
    }


def _finding(found: FoundInStream) -> Json:
    wrong = found.wrong
    place = {name: value for name, value in asdict(found).items() if name != "wrong"}
    return {**place, "law": wrong.law, "sentence": wrong.sentence, "detail": wrong.detail}


def _print(judged: Judged, options: StreamOptions) -> None:
    if (found := judged.found) is not None:
        where = f"batch {found.batch}" if found.event is None else f"event {found.event}, in batch {found.batch}"
        say((f"{where}: law {found.wrong.law} is broken", "bold red"))
        say(f"  said:   {printable(found.said)}")
        say(f"  law:    {found.wrong.sentence}")
        say(f"  detail: {printable(found.wrong.detail)}")
    else:
        say((f"every event keeps the law for a reader that {_kind(options)}", "green"))
    say(f"events read: {judged.events}, in batches: {judged.batches}; blocks believed in the end: {judged.believed}")
    if judged.late:
        say("the stream was joined late: until all blocks are cleared, parents and removals are not judged")


def _kind(options: StreamOptions) -> str:
    return "counts copies" if options.reader == COUNTS else "keeps a set"
