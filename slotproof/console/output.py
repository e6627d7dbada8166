"""Where a command writes: files are checked before the work, and standard output may be closed by its reader."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, TextIO

from conformance.driver.naming import UsageError

STDOUT = Path("-")  # where a file is asked for: standard output


def file_to_write(path: Path | None, option: str) -> Path | None:
    """The path, if a file can be written there; ``-`` is standard output. Raises ``UsageError`` with a line that names
    the option.
    """
    if path is None or path == STDOUT:
        return path
    if path.is_dir():
        raise UsageError(f"{option} {path}: this is a folder, a file is wanted")
    if path.exists() and not path.is_file():
        return path  # a pipe or a device
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: the folder {path.parent} does not exist")
    if path.exists() and not os.access(path, os.W_OK):
        raise UsageError(f"{option} {path}: the file cannot be written")
    _try(path.resolve().parent, f"{option} {path}")
    return path


def folder_to_write(path: Path, option: str) -> Path:
    """The path, if it is a folder that can be written to, or can be made. Raises ``UsageError`` with a line that names
    the option. The folder is made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"{option} {path}: this is a file, a folder is wanted") from None
    except OSError as error:
        raise UsageError(f"{option} {path}: the folder cannot be made ({error.strerror})") from error
    _try(path, f"{option} {path}")
    return path


def _try(folder: Path, what: str) -> None:
    """Writes a file without a name to the folder. The permissions alone do not say whether this works."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"{what}: the folder {folder} cannot be written to ({error.strerror})") from error


def write_text(path: Path, text: str) -> None:
    """Writes a file so that a reader sees the old text or the new one, never a part: a file beside it is renamed.

    ``-`` is standard output. Raises ``UsageError`` if it cannot be written, for example because the disk is full.
    """
    if path == STDOUT:
        print(text, end="", flush=True)
        return
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        target = path.resolve()
        beside = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def write_json(path: Path | None, data: Any) -> None:
    """Writes ``data`` as JSON, if a file is given. Raises ``UsageError`` if the file cannot be written."""
    if path is not None:
        write_text(path, _visible(json.dumps(data, indent=1, ensure_ascii=False)) + "\n")


def _visible(text: str) -> str:
    """The JSON with half characters (surrogates), which no file can hold and many readers refuse, written as text, such
    as ``\\ud800``. They stand in strings alone, where a backslash is written twice.
    """
    return re.sub("[\ud800-\udfff]", lambda found: f"\\\\u{ord(found[0]):04x}", text)


class Outlet:
    """Standard output that may be closed by its reader, as by ``| head``: what is written after that is dropped.

    The command goes on, so that its files are written and its exit code is its verdict.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Writes the text, unless the reader has gone."""
        try:
            return self.stream.write(text)
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        """Hands on what was written, unless the reader has gone."""
        try:
            self.stream.flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        """From now on all goes to nowhere; also what the stream still holds, which Python writes when it ends."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
