"""Results that are kept in the cache folder, so that what takes long is made again only where something changed.

A result is used again only if all that it depends on is as it was: every file of our own packages, the versions of
Python and of every installed package, the environment variables that engines and solvers look at, the machine's kind,
and the code of the engine, wherever it is. Each result names the files that it was made from; all are read again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import conformance
import impl
import proofs
import slotproof
import spec
from conformance.driver.cache_folder import cache_folder
from conformance.engines import registry
from slotproof.console.output import write_text

PACKAGES = (conformance, impl, proofs, slotproof, spec)
READ = (".py", ".json", ".toml", ".so", ".pyd")  # the kinds of files that a result can depend on
VARIABLES = ("SLOTPROOF", "HYPOTHESIS", "TRITON", "TORCH", "CUDA", "PYTHONHASHSEED")


def remembered(
    what: str,
    asked: Any,
    make: Callable[[], Any],
    roots: Callable[[Any], Sequence[str] | None],
    packages: Sequence[ModuleType] | None = None,
    believed: bool = True,
) -> Any:
    """The result of ``make``, as plain data; from the cache folder where nothing changed since it was made.

    ``what``: the folder and the name of the file. ``asked``: plain data that the result depends on. ``roots``: the
    folders and files of other code that a result depends on; ``None`` for a result that must not be kept. ``packages``:
    of our own packages those that it depends on; ``PACKAGES`` if it is ``None``. ``believed``: whether a kept result is
    used.
    """

    def current() -> str:
        return digest_of([asked, surroundings(PACKAGES if packages is None else packages)])

    place, key = cache_folder() / f"{what}.json", current()
    kept = _kept(place) if believed else None
    if kept is not None and kept["key"] == key and all(of_files(r) == d for r, d in kept["roots"].items()):
        return kept["value"]
    value = make()
    used = roots(value)
    if used is not None and current() == key:  # else something changed while it was made
        place.parent.mkdir(parents=True, exist_ok=True)
        body = {"key": key, "roots": {root: of_files(root) for root in used}, "value": value}
        write_text(place, json.dumps({**body, "sum": digest_of(body)}))
    return value


def _kept(place: Path) -> Any:
    """What a file of the cache holds; ``None`` where there is none, or where it is not as it was written."""
    try:
        kept = json.loads(place.read_text("utf-8"))
        return kept if kept.pop("sum") == digest_of(kept) else None
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return None


def digest_of(data: Any) -> str:
    """The SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def surroundings(packages: Sequence[ModuleType]) -> list[Any]:
    """What every result depends on that these packages make."""
    variables = (*VARIABLES, *(name.upper() for name in registry.names() if name.isidentifier()))
    return [
        sys.version,
        platform.platform(),
        sorted(f"{d.name}=={d.version}" for d in distributions()),
        sorted((name, value) for name, value in os.environ.items() if name.startswith(variables)),
        [of_files(place) for package in packages for place in package.__path__],
    ]


def of_files(root: str) -> str:
    """The SHA-256 of the names and contents of the files in a folder, or of one file; empty where there is none."""
    place, found = Path(root), hashlib.sha256()
    for path in [place] if place.is_file() else _files(place):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        found.update(f"{path.relative_to(place).as_posix()} {content}\n".encode())
    return found.hexdigest() if place.exists() else ""


def _files(folder: Path) -> Iterable[Path]:
    return sorted(_inside(folder))


def _inside(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (Path(place, name) for name in names if name.endswith(READ))
