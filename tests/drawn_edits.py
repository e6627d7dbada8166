"""Edits of SGLang's classes under drawn runs: which law the runs find broken, and after how many seconds."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any

from host_memory_edits import Edit, made

from conformance.driver.lockstep import Finding
from conformance.engines import registry
from conformance.search.check import Search, draw
from conformance.search.judge import excluded, listed_of
from conformance.stems.kinds import Kinds
from conformance.stems.machine import Sink

EXAMPLES = 60


def broken(stem: str, make: Any, exclude: Collection[StrEnum], seed: int, kinds: Kinds) -> str | None:
    """The law of the stem that drawn runs find broken; ``None`` where they find none. ``kinds``: what is drawn."""
    sink = Sink()
    with suppress(Finding):
        draw(stem, make, sink, Search(examples=EXAMPLES, seed=seed, exclude=exclude, kinds=kinds))
    return None if sink.failure is None else sink.failure[0].law


def report(stem: str, release: str, edits: Mapping[str, Edit], kinds: Kinds, seeds: Collection[int]) -> None:
    """Prints as JSON what runs of the stem find of each edit with each seed. What is known of the release is left
    out.
    """
    logging.disable()
    make = registry.load("sglang", release=release).makers[stem]
    exclude = excluded(stem, listed_of({"engine": "sglang", "listed": release}))
    found: dict[str, dict[int, tuple[str | None, float]]] = {}
    for name, edit in edits.items():
        with made(edit):
            for seed in seeds:
                begun = time.monotonic()
                law = broken(stem, make, exclude, seed, kinds)
                found.setdefault(name, {})[seed] = (law, round(time.monotonic() - begun, 1))
        print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    print(json.dumps(found))
