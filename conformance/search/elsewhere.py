"""A question to a module of this package in a process of its own, since a process can import one release alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from conformance.driver.collector import collect_rarely
from conformance.driver.protocol import EngineError

NOT_LOADED = 3  # the exit code where the engine cannot be loaded


def ask(module: str, arguments: Sequence[str], what: str) -> Any:
    """The answer of ``python -m MODULE ARGUMENT…``, whose last line is JSON (see ``tell``). ``what``: what is done, for
    the message of an error. Raises ``EngineError`` if the engine cannot be loaded.
    """
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    last = (done.stderr.strip() or "no message").splitlines()[-1]
    if done.returncode == NOT_LOADED:
        raise EngineError(last)
    if done.returncode:
        raise RuntimeError(f"{what} ended with {done.returncode}: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def tell(answer: Callable[[], Any]) -> int:
    """Prints an answer to ``ask`` as JSON. The exit code."""
    collect_rarely()
    try:
        print(json.dumps(answer()))
    except EngineError as error:
        print(error, file=sys.stderr)
        return NOT_LOADED
    return 0
