"""Standard input where a command takes a file: ``-`` is read once, and kept in a file while the command runs."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance.driver.naming import UsageError

STDIN = ("-", "/dev/stdin")
NAME = "stdin.json"  # the file that has what stood on standard input
MOST = 1 << 28  # bytes that are read of standard input, or of a pipe


@contextmanager
def as_file(name: str) -> Iterator[str]:
    """The name of a file with what ``name`` holds: ``name`` itself, but for ``-`` and for a pipe, which can be read
    only once, a file that is there as long as the block. What follows ``#`` stays behind the name.

    Raises ``UsageError``, which names standard input, where nothing stands there.
    """
    path, wanted, finding = name.partition("#")
    if path not in STDIN and not Path(path).is_fifo():
        yield name
        return
    text = _read() if path in STDIN else _of_pipe(Path(path))
    with tempfile.TemporaryDirectory(prefix="slotproof-") as folder:
        file = Path(folder) / (NAME if path in STDIN else Path(path).name)
        file.write_bytes(text)
        try:
            yield f"{file}{wanted}{finding}"
        except UsageError as error:
            told = str(error).replace(str(file), "standard input" if path in STDIN else path)
            raise UsageError(told) from error


def _read() -> bytes:
    if sys.stdin is None:
        raise UsageError("-: there is no standard input")
    if sys.stdin.isatty():
        print("slotproof: reads standard input; Ctrl-D ends it", file=sys.stderr)
    text = sys.stdin.buffer.read(MOST + 1)
    if not text:
        raise UsageError("-: standard input is empty")
    return text


def _of_pipe(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MOST + 1)
