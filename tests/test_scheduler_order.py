"""Requests leave in the order that a scheduler keeps: what it cannot send is turned away, and the lawful call beside it
is driven, on ours and on a real release.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driven import NEWEST, Variant, have

from conformance.driver.protocol import Json, Misuse
from conformance.engines.ours.cache import cache
from conformance.search.replay import rows_elsewhere
from conformance.stems.stem_registry import start

CONFIG = {"page_size": 1, "size": 8, "size_swa": 8, "window": 1, "need_sort": False, "rows": 3, "sessions": 2}
PAGED = {**CONFIG, "page_size": 2, "window": 2}
FIRST = {"op": "admit", "request": 0, "more": 4, "session": 1}
AGAIN = {"op": "admit", "request": 0}
NEXT = {"op": "admit", "request": 1, "more": 1, "session": 1}
STEP = {"op": "decode", "requests": [0], "slide": True}
FAST = [{"op": "reserve", "request": 0, "more": 3, "slide": True}, {"op": "commit", "request": 0, "count": 3}]
END = {"op": "quiesce"}


def finish(sent: int) -> Json:
    return {"op": "finish", "request": 0, "sent": sent}


def retract(**sent: int) -> Json:
    return {"op": "retract", "request": 0, **sent}


# What no scheduler sends: the configuration, the steps before, and the call.
NEVER: dict[str, tuple[Json, list[Json], Json]] = {
    "an end before tokens with which the window moved": (CONFIG, [FIRST, STEP, STEP], finish(1)),
    "an end before the tokens of the last step": (CONFIG, [FIRST, STEP, *FAST], finish(1)),
    "a retract behind the window": (CONFIG, [FIRST, STEP, {**FAST[0]}], retract(sent=1)),
    "a retract that forgets the token beyond the prompt in the tree": (PAGED, [FIRST], retract(sent=0)),
    "an end that forgets the token beyond the prompt in the tree": (PAGED, [FIRST], finish(0)),
    "a step of a request whose prompt alone is known": (PAGED, [{**FIRST, "unknown": True}], STEP),
}
# What schedulers send, and then the next turn: the configuration and the steps.
LAWFUL: dict[str, tuple[Json, list[Json]]] = {
    "a step that had begun before the end was known": (CONFIG, [FIRST, STEP, STEP, finish(2), NEXT, END]),
    "drafts behind the end": (CONFIG, [FIRST, STEP, *FAST, finish(3), NEXT, END]),
    "a retract whose last token is not known": (CONFIG, [FIRST, STEP, STEP, retract(sent=2), AGAIN, STEP, END]),
    "a retract with one token of the answer": (PAGED, [FIRST, retract(), AGAIN, END]),
    "a retract before the answer begins": (PAGED, [{**FIRST, "unknown": True}, retract(), AGAIN, END]),
    "no answer is wanted": (PAGED, [{**FIRST, "unknown": True}, finish(0), {**NEXT, "more": 0}, END]),
}


def scheduled(config: Json) -> Any:
    """Our cache, of which a scheduler asks no more than it does."""
    engine = cache(config)
    return Variant(engine, lacks={*engine.lacks, "long_cut"})


def sent(config: Json, steps: list[Json], make: Callable[[Json], Any] = scheduled) -> Any:
    lock = start("session_trim", make, {**config, "tree": "unified"})
    for step in steps:
        lock.do(**step)
    return lock


@pytest.mark.parametrize("what", NEVER)
def test_what_no_scheduler_sends_is_turned_away(what: str) -> None:
    config, steps, last = NEVER[what]
    with pytest.raises(Misuse, match=r"sent must be \d to \d: .*|the answer of request 0 is unknown"):
        sent(config, steps).do(**last)


def test_an_engine_that_promises_longer_cuts_is_sent_them() -> None:
    config, steps, last = NEVER["an end before tokens with which the window moved"]
    sent(config, [*steps, last, END], cache)


@pytest.mark.parametrize("what", LAWFUL)
def test_what_schedulers_send_is_lawful_on_ours(what: str) -> None:
    sent(*LAWFUL[what])


@pytest.mark.soak
@pytest.mark.engine
def test_what_schedulers_send_is_lawful_on_the_newest_release(tmp_path: Path) -> None:
    """Two calls that no scheduler sends, much like these, were once called findings of this release."""
    have(NEWEST)
    files = []
    for number, (config, steps) in enumerate(LAWFUL.values()):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps({"stem": "session_trim", "config": config, "steps": steps}), "utf-8")
        files.append(str(file))
    shown = rows_elsewhere(files, "sglang", NEWEST)
    assert [(what, row["verdict"], row["detail"]) for what, row in zip(LAWFUL, shown, strict=True)] == [
        (what, "conforms", "") for what in LAWFUL
    ]
