"""Traces told step by step on one release of an engine, in a process of its own. Each is handed on when it is ready.

The processes are forked from a server that has imported what all of them need, but no engine: to import torch takes
longer than to import a release.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from conformance.driver import waiting
from conformance.driver.collector import collect_rarely
from conformance.driver.naming import UsageError
from conformance.driver.options import Given
from conformance.driver.protocol import EngineError, Json
from conformance.engines import registry
from conformance.traces import trace_files

Wanted = tuple[str, Json | None]  # a kept trace by name, or a file; and a row that was made of it before, see ``row``
Subject = tuple[str, str | None, Path | None, Given]  # an engine, its release or its checkout, and its options
_ROOM = str(__package__).rpartition(".")[0]  # the name of the package conformance, which an installation has elsewhere
SHARED = ["torch", f"{_ROOM}.search.replay", f"{_ROOM}.telling.tell", __name__]


def told_elsewhere(
    wanted: Sequence[Wanted],
    engine: str,
    release: str | None,
    source: Path | None = None,
    options: Given = (),
    limit: float | None = None,
) -> Iterator[Json]:
    """The rows of the traces with their stories, in order, each as soon as it is there. Beside the ``roots`` of the
    engine a row has the ``files`` that the process imported from elsewhere, without installed packages. ``source``: a
    checkout of the engine, in the place of a release. ``options``: the engine's options that the user has set.
    ``limit``: the seconds that a row may take.

    Raises ``EngineError`` if the engine cannot be loaded or takes longer, ``UsageError`` for a trace that cannot be
    used, and ``RuntimeError`` where the process ends before its last row.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(SHARED)
    mine, other = context.Pipe(duplex=False)
    with tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace") as said:
        subject = (engine, release, source, options)
        child = context.Process(target=_tell, args=(other, said.name, subject, list(wanted)), daemon=True)
        child.start()
        other.close()
        try:
            yield from _received(mine, f"replaying on {engine} {release or source or ''}".rstrip(), limit)
            child.join()
            if child.exitcode:
                last = (said.read().strip() or "no message").splitlines()[-1]
                raise RuntimeError(
                    f"replaying on {engine} {release or source or ''} ended with {child.exitcode}: {last}"
                )
        finally:
            child.kill()
            child.join()
            mine.close()


def _received(pipe: Connection[Any, Any], what: str, limit: float | None) -> Iterator[Json]:
    while True:
        with nullcontext() if limit is None else waiting.watched(waiting.since_now(f"the end of {what}")):
            if limit is not None and not pipe.poll(limit):
                raise EngineError(f"{what} did not end within {limit:g} s: the engine hangs")
        try:
            told = pipe.recv()
        except EOFError:
            return
        if isinstance(told, Exception):
            raise told
        yield told


def _tell(pipe: Connection[Any, Any], said: str, subject: Subject, wanted: Sequence[Wanted]) -> None:
    """What the process does. ``said``: the file for what engines print."""
    from conformance.search.replay import row  # here, so that who only asks does not import an engine's needs

    with open(said, "wb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno() if sys.stdout else 1)
        os.dup2(file.fileno(), 2)
    collect_rarely()
    name, release, source, options = subject
    try:
        loaded = registry.load(name, release=release, source=source, options=options)
        for trace, known in wanted:
            told = row(trace_files.load(trace), loaded, told=True, known=known)
            pipe.send({**told, "files": _imported_files(told["roots"])})
    except (EngineError, UsageError) as error:
        pipe.send(type(error)(str(error)))


def _imported_files(roots: Sequence[str]) -> list[str]:
    """The files of modules that are below no root, in no installed package, and not ours."""
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    root = Path(__file__).parents[2]
    packages = [str(root / name) for name in ("conformance", "impl", "proofs", "slotproof", "spec")]
    known = tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in (*installed, *packages, *roots))
    modules = (module for module in list(sys.modules.values()) if type(module) is ModuleType)
    named = {os.path.realpath(file) for module in modules if isinstance(file := vars(module).get("__file__"), str)}
    return sorted(file for file in named if not file.startswith(known) and os.path.isfile(file))
