"""Engines that are named by their place: ``package.module:attribute``, as in ``slotproof check my_engine:make``.

The module is imported with the current folder on ``sys.path``, and with the folder of ``--source`` before it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from conformance.driver.naming import close
from conformance.driver.printable import first_line, message_of
from conformance.driver.protocol import EngineError, Json, Unsupported
from conformance.stems.allocator.protocol import AllocatorSnapshot
from conformance.stems.block_cache.protocol import BlockCacheSnapshot
from conformance.stems.block_pool.protocol import BlockPoolSnapshot
from conformance.stems.found import rooms
from conformance.stems.lock_ref.protocol import LockRefSnapshot
from conformance.stems.mamba_slots.protocol import MambaSlotsSnapshot
from conformance.stems.session_trim.protocol import SessionTrimSnapshot
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot
from conformance.stems.vetting import told

STEM_OF = {
    AllocatorSnapshot: "allocator",
    SwaMappingSnapshot: "swa_mapping",
    LockRefSnapshot: "lock_ref",
    SessionTrimSnapshot: "session_trim",
    MambaSlotsSnapshot: "mamba_slots",
    BlockPoolSnapshot: "block_pool",
    BlockCacheSnapshot: "block_cache",
}
# A configuration that has what every stem's configuration has, to build the engine of which the stem is asked.
SAMPLE: Json = {
    **{"page_size": 2, "size": 4, "size_swa": 4, "size_mamba": 4, "rows": 2, "requests": 2, "sessions": 1},
    **{"need_sort": False, "window": 2, "kind": "unified", "tree": "unified", "components": ["full", "swa"]},
    **{"buffered": False, "doubled": False, "lazy": False},
    **{"blocks": 4, "indices": 4, "groups": 1, "caching": True},
    **{"slots": 4, "keys": 4, "parts": 1},
    **{"block_size": 2, "layers": [{"kind": "full"}], "batch": 8, "drafts": 0, "eagle": False, "steps_in_flight": 1},
    **{"threshold": 0, "policy": "fcfs", "max_length": 8, "events": False},
}
SHOWN = 160  # characters of a maker's reason that a message shows
EXAMPLE = "slotproof check {} allocator"


def is_place(name: str) -> bool:
    """The name of an engine is a place, and no registered name."""
    return ":" in name


def hint(name: str) -> str:
    """What is added to the message that there is no engine ``name``, where it looks like the name of a module or of its
    file in the current folder: how an engine of one's own is named.
    """
    module = name.removesuffix(".py").replace("/", ".")
    try:
        there = Path(module.replace(".", "/") + ".py").is_file()
    except (OSError, ValueError):  # a name that no system takes for a file
        there = False
    if not there:
        return ""
    return f"; an engine of your own is named with its maker: {module}:NAME"


def imported(place: str, source: Path | None) -> Any:
    """The object at ``package.module:attribute``. Raises ``EngineError``, which says in one line what was tried."""
    module, _, attribute = place.partition(":")
    _must_be_names(place, module, attribute)
    folders = _put_first(source)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise EngineError(f"{place}: {module} cannot be imported: {told(error)}") from error
        raise EngineError(_no_module(place, error.name, folders)) from error
    except SyntaxError as error:
        where = f"{error.filename}:{error.lineno}"
        raise EngineError(f"{place}: {module} cannot be imported: SyntaxError: {error.msg} ({where})") from error
    except (Exception, SystemExit) as error:
        raise EngineError(f"{place}: {module} cannot be imported: {told(error)}") from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            near = close(name, [known for known in dir(found) if not known.startswith("_")])
            hint = f": did you mean {near}?" if near else ""
            raise EngineError(f"{place}: {module} ({getattr(found, '__file__', None)}) has no {name!r}{hint}")
        found = getattr(found, name)
    return found


def _must_be_names(place: str, module: str, attribute: str) -> None:
    if module.endswith(".py"):
        path = Path(module)
        near = f"did you mean {path.stem}:{attribute}"
        raise EngineError(f"{place}: name the module, not its file: {near}" + _folder_of(path))
    if not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        raise EngineError(f"{place}: expected package.module:attribute, such as my_engine:make")


def _folder_of(path: Path) -> str:
    return "?" if path.parent == Path(".") else f" --source {path.parent}?"


def _put_first(source: Path | None) -> list[Path]:
    """Puts the folders in which an engine is looked for on ``sys.path``, and returns them."""
    folders = [Path.cwd()]
    if source is not None:
        below = source.resolve() / "src"
        folders = [source.resolve(), *([below] if below.is_dir() else []), *folders]
    for folder in map(str, reversed(folders)):
        sys.path[:] = [folder, *(place for place in sys.path if place != folder)]
    importlib.invalidate_caches()
    return folders


def _no_module(place: str, missing: str, folders: list[Path]) -> str:
    *parents, name = missing.split(".")
    known = {entry for folder in folders for entry in _modules(folder.joinpath(*parents))}
    near = close(name, known)
    looked = ", ".join(map(str, folders))
    hint = f": did you mean {'.'.join([*parents, near])}?" if near else ""
    return f"{place}: there is no module {missing!r} in {looked}, and none is installed{hint}"


def _modules(folder: Path) -> Iterator[str]:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix == ".py" or (path.is_dir() and path.name.isidentifier()):
            yield path.stem


# What was imported.


def makers(found: Any, place: str, stems: Collection[str]) -> dict[str, Callable[[Json], Any]]:
    """The makers of an object that a user has named: a dict from stems to makers, or one maker.

    ``stems``: those that the user has named. One maker is taken for the stem whose snapshot its engine has;
    where that is not clear, for the named ones. Raises ``EngineError`` if the object is something else, or if its stem
    is not clear.
    """
    if isinstance(found, Mapping):
        return _of_dict(found, place)
    if not callable(found):
        expected = "a function that takes a configuration and returns an engine, a dict from stems to such functions"
        raise EngineError(f"{place} is of type {type(found).__name__}: expected {expected}, or an object like Plugin")
    try:
        told_stems = _stems_of(found, place)
    except EngineError:
        told_stems = [stem for stem in stems if stem in rooms()]
        if not told_stems:
            raise
    return dict.fromkeys(told_stems, found)


def _of_dict(found: Mapping[Any, Any], place: str) -> dict[str, Callable[[Json], Any]]:
    for stem, make in found.items():
        if stem not in rooms():
            near = close(str(stem), rooms())
            hint = f"did you mean {near}?" if near else f"stems are {', '.join(rooms())}"
            raise EngineError(f"{place} has an entry for {stem!r}, which is no stem: {hint}")
        if not callable(make):
            raise EngineError(f"{place}[{stem!r}] is of type {type(make).__name__}: expected a maker, a function")
    if not found:
        raise EngineError(f"{place} is an empty dict: expected a maker for each stem that the engine has")
    return dict(found)


def _stems_of(make: Callable[[Json], Any], place: str) -> list[str]:
    """The stems of the engine that a maker builds, told by what its ``snapshot`` returns."""
    try:
        engine = make(dict(SAMPLE))
    except Exception as error:
        by_annotation = _stem_by_annotation(make)
        if by_annotation is not None:
            return by_annotation
        if isinstance(error, Unsupported):
            declined = first_line(message_of(error)) or "no reason given"
            why = f"its maker declines the sample configuration that would tell it: {declined[:SHOWN]}"
            raise EngineError(f"{place}: name its stem, for example `{EXAMPLE.format(place)}`: {why}") from error
        raise EngineError(
            f"{_which(place)}; asked with a sample configuration, the maker raised {told(error)}"
        ) from error
    both = hasattr(engine, "cache_snapshot")
    if both and not hasattr(engine, "snapshot"):
        return ["cache"]
    if not hasattr(engine, "snapshot"):
        name = type(engine).__name__
        raise EngineError(f"{place}: {name} has no method `snapshot`, which every engine must have")
    try:
        seen = engine.snapshot()
    except Exception as error:
        raise EngineError(f"{place}: {type(engine).__name__}.snapshot raised {told(error)} on a new engine") from error
    stem = STEM_OF.get(type(seen))
    if stem is None:
        name = type(engine).__name__
        raise EngineError(f"{_which(place)}; {name}.snapshot answered {type(seen).__name__}, which tells no stem")
    return [stem, "cache"] if both else [stem]


def _stem_by_annotation(make: Callable[[Json], Any]) -> list[str] | None:
    try:
        made = make if isinstance(make, type) else get_type_hints(make).get("return")
        seen = get_type_hints(getattr(made, "snapshot", None)).get("return")
    except (NameError, TypeError):
        return None
    return [STEM_OF[seen]] if seen in STEM_OF else None


def _which(place: str) -> str:
    example = EXAMPLE.format(place)
    return f"{place}: which stem is it for? Name it, for example `{example}`; stems: {', '.join(rooms())}"


def from_source(make: Callable[[Json], Any], source: Path, name: str) -> Callable[[Json], Any]:
    """The maker, which raises ``EngineError`` if no module of what it builds was imported from the folder."""
    folder = source.resolve()

    def made(config: Json) -> Any:
        engine = make(config)
        if not any(_is_below(folder, getattr(module, "__file__", None)) for module in _loaded()):
            what = sys.modules[type(engine).__module__]
            place = getattr(what, "__file__", None) or what.__name__
            raise EngineError(f"--source {source}: {name} imported nothing from there; its engine is from {place}")
        return engine

    return made


def _loaded() -> list[Any]:
    return list(sys.modules.values())


def _is_below(folder: Path, file: str | None) -> bool:
    if file is None or not file.startswith(str(folder)):
        return False
    path = Path(file).resolve()
    return path.is_relative_to(folder) and "site-packages" not in path.relative_to(folder).parts
