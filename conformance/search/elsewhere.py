"""A question to a module of this package in a process of its own, since a process can import one release alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from conformance.driver import waiting
from conformance.driver.collector import collect_rarely
from conformance.driver.protocol import EngineError

NOT_LOADED = 3  # the exit code where the engine cannot be loaded


def ask(module: str, arguments: Sequence[str], what: str, limit: float | None = None) -> Any:
    """The answer of ``python -m MODULE ARGUMENT…``, whose last line is JSON (see ``tell``). ``what``: what is done, for
    the message of an error. ``limit``: the seconds that it may take; a long wait is told then. Raises ``EngineError``
    if the engine cannot be loaded, or if the time is over.
    """
    command, waits = [sys.executable, "-m", module, *arguments], waiting.since_now(f"the end of {what}")
    try:
        with nullcontext() if limit is None else waiting.watched(waits):
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        raise EngineError(f"{what} did not end within {limit:g} s: the engine hangs") from None
    if done.returncode not in (0, NOT_LOADED):
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise RuntimeError(f"{what} ended with {done.returncode}: {last}")
    answer = json.loads(done.stdout.splitlines()[-1])  # libraries write to stderr when the process ends
    if done.returncode == NOT_LOADED:
        raise EngineError(answer)
    return answer


def tell(answer: Callable[[], Any]) -> int:
    """Prints an answer to ``ask`` as JSON, or the message of an ``EngineError``. The exit code."""
    collect_rarely()
    try:
        print(json.dumps(answer()))
    except EngineError as error:
        print(json.dumps(str(error)))
        return NOT_LOADED
    return 0
