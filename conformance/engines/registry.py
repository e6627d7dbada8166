"""Finds and loads the engines: those in the folder ``engines/``, those that other packages register, and those that a
user names by their place.

A module or package of this folder that has a ``PLUGIN`` is an engine, and its file name is the engine's name. Another
package registers an engine under the entry point group ``slotproof.engines`` (``name = "package.module:PLUGIN"``).
A name with a colon is a place, ``package.module:attribute``: see ``conformance.engines.named``.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol

from conformance.driver import extras
from conformance.driver.naming import unknown
from conformance.driver.options import EngineOption, Given, chosen, words
from conformance.driver.protocol import EngineError, Json
from conformance.engines import named
from conformance.stems.kinds import Kinds, together
from conformance.stems.vetting import told_where_it_fails, vetted

GROUP = "slotproof.engines"
SHARED = (
    "adapters",
    "array_tl",
    "importing",
    "named",
    "peer_tests",
    "registry",
    "scripts_alone",
    "side_by_side",
    "source_tests",
    "standins",
    "wheels",
)  # the modules of this folder that are no engines
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Loaded:
    """An engine that is ready to be driven.

    ``makers``: for each stem that it implements, a function from a configuration to a fresh engine
    (``conformance.driver.protocol``). ``own``: it is our own implementation, so that a latent finding is a failure
    too. ``source``: the folder that it was loaded from, as an absolute path, where that was asked for; ``release`` is
    ``None`` then. ``roots``: the folders and files whose code is the engine's own, for who tells in which of its
    functions something went wrong. ``device``: where its tensors are. ``options``: the options that the user has set.
    ``notes``: sentences that the user must read beside the verdict, such as what of the engine is not judged.
    ``kinds``: the kinds of trees that it declares; ``None``: see ``every_kind``. ``unbuilt``: folders of its source
    that must be built before they run, and whose build is missing: nothing that was edited there is judged.
    """

    name: str
    release: str | None
    makers: Mapping[str, Callable[[Json], Any]]
    own: bool = False
    source: Path | None = None
    roots: tuple[Path, ...] = ()
    device: str = "cpu"
    options: Given = ()
    notes: tuple[str, ...] = ()
    kinds: Kinds | None = None
    unbuilt: tuple[Path, ...] = ()

    @property
    def label(self) -> str:
        """Name and release, or name and folder; with the options that the user has set."""
        named = f"{self.name} {self.release or self.source or ''}".strip()
        return f"{named} ({words(self.options)})" if self.options else named


class Plugin(Protocol):
    """An engine as it is registered.

    ``releases``: those that ``slotproof engines`` judges, oldest first. ``folder``: where its kept traces
    (``traces/NAME.json``) and its known differences (``known/RELEASE.json``) are; ``None`` if it has none.

    It may have ``options``, a tuple of ``EngineOption``: then ``load`` has a parameter ``options``, a dict that has a
    value for each of them.

    It may have ``bookkeeping``, the files and folders of its memory and its scheduler, below the first of
    ``Loaded.roots``, with ``/``: these ``slotproof mutate engine`` edits.

    It may have ``entrances``, where the calls of its server begin (``conformance.driver.entrances``), for ``slotproof
    reach``.

    It may have ``kinds``, the kinds of trees between which configurations choose by name, where it has several
    (``conformance.stems.kinds``). What is drawn for it is what ``Loaded.kinds`` has.

    An engine of this folder may have ``extra``, the extra of our installation that has the packages that it needs
    (``conformance.driver.extras``).

    It may have ``under_load``, for ``slotproof record --demo``: a function of a release, a seed, how many requests run
    at a time, and the folder ``source`` of a checkout; without a release and a folder it is the newest release that is
    known. It returns an object whose ``scheduler`` is the engine's own, and whose ``step()`` makes a step under random
    load. Where it has ``under_loads``, the names of several kinds of servers, it takes one of them as ``server``.

    It may have ``newest``, a function that returns the newest release on the package index, for ``slotproof engines
    --newest``. Then ``stems`` are the stems that the engine has in some release; without ``stems`` it has all.
    """

    name: str
    releases: tuple[str, ...]
    folder: Path | None
    own: bool

    def load(self, release: str | None, source: Path | None, device: str, **options: Any) -> Loaded:
        """Loads a release, or the source in a folder, with its tensors on ``device``. Raises ``EngineError`` with one
        line that says why it could not.
        """


@dataclass(frozen=True)
class SimplePlugin:
    """An engine without releases and without a source folder: it consists of its makers, and runs on the CPU.

    ``folder``, ``kinds``: see ``Plugin``. ``roots``: see ``Loaded``; by default where the makers are defined.
    """

    name: str
    makers: Mapping[str, Callable[[Json], Any]]
    own: bool = False
    folder: Path | None = None
    roots: tuple[Path, ...] = ()
    kinds: Kinds | None = None
    releases: tuple[str, ...] = field(default=(), init=False)
    options: tuple[EngineOption, ...] = field(default=(), init=False)

    def load(self, release: str | None, source: Path | None, device: str) -> Loaded:
        """Its makers. Raises ``EngineError`` for a release, a source folder or another device than ``cpu``."""
        if source is None and release and named.is_place(self.name):
            raise EngineError(f"--release {release}: {self.name} has no releases; --source names a checkout")
        if release or source:
            raise EngineError(f"--release and --source: the engine {self.name} has neither releases nor sources")
        if device != "cpu":
            raise EngineError(f"--device {device}: the engine {self.name} runs on cpu alone")
        roots = self.roots or roots_of(self.makers.values())
        return Loaded(self.name, None, self.makers, self.own, roots=roots, kinds=self.kinds)


def roots_of(makers: Iterable[Callable[..., Any]]) -> tuple[Path, ...]:
    """Where makers are defined: the folder of their package, or the file of a module that is in no package. Of an
    engine within this package it is the module's file, since the package is the driver's.
    """
    found: dict[Path, None] = {}
    for maker in makers:
        function = inspect.unwrap(maker)
        while isinstance(function, partial):
            function = inspect.unwrap(function.func)
        name = getattr(function, "__module__", None) or type(function).__module__
        package = sys.modules.get(name.partition(".")[0])
        module = sys.modules.get(name)
        if package is not None and hasattr(package, "__path__") and package.__name__ != __name__.partition(".")[0]:
            found.update(dict.fromkeys(map(Path, package.__path__)))
        elif module is not None and getattr(module, "__file__", None):
            found[Path(str(module.__file__))] = None
    return tuple(found)


@cache
def _built_in() -> tuple[str, ...]:
    """The modules of this folder that have a ``PLUGIN``."""
    modules = [m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name not in SHARED]
    return tuple(name for name in modules if hasattr(import_module(f"{__package__}.{name}"), "PLUGIN"))


def _points() -> tuple[EntryPoint, ...]:
    """The entry points of engines that are installed."""
    return _points_on(entry_points, tuple(sys.path))


# To read them takes 10 ms, and a list of the kept traces asks for them. The path, from which they are, is a key alone.
@lru_cache(maxsize=8)
def _points_on(find: Callable[..., Iterable[EntryPoint]], _path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    return tuple(find(group=GROUP))


def names() -> list[str]:
    """The names of all engines, our own implementation first. A registered engine cannot take the name of one in this
    folder.
    """
    first = own().name
    registered = (point.name for point in _points())
    return [first, *sorted({*_built_in(), *registered} - {first})]


def plugin(name: str) -> Plugin:
    """The engine of this name. Raises ``EngineError`` if there is none or if it cannot be imported.

    An engine that is named by its place is imported when it is loaded.
    """
    if name in _built_in():
        return _plugin_of(import_module(f"{__package__}.{name}").PLUGIN, f"engines/{name}")
    if named.is_place(name):
        return _plugin_of(SimplePlugin(name, {}), name)
    point = _registered(name)
    where = f"the entry point {GROUP} {name}"
    try:
        found = point.load()
    except Exception as error:
        raise EngineError(f"{where} cannot be imported: {error}") from error
    return _plugin_of(SimplePlugin(name, found) if isinstance(found, Mapping) else found, where)


def _registered(name: str) -> EntryPoint:
    """The entry point of this name. Raises ``EngineError`` if there is none."""
    for point in _points():
        if point.name == name:
            return point
    raise EngineError(unknown("engine", name, names()) + named.hint(name))


def plugins() -> Iterator[Plugin]:
    """The engines that can be imported. One that cannot is an error only where it is asked for by name."""
    for name in names():
        with contextlib.suppress(EngineError):
            yield plugin(name)


def _is_plugin(found: Any) -> bool:
    return all(hasattr(found, attribute) for attribute in ("name", "releases", "folder", "own", "load"))


def _plugin_of(found: Any, where: str) -> Plugin:
    if not _is_plugin(found):
        raise EngineError(f"{where} is no engine: expected an object like {__name__}.Plugin")
    known: Plugin = found
    return known


def must_be_installed(found: Plugin) -> None:
    """Raises ``EngineError`` with what ``lacking`` says, if it says something."""
    if said := lacking(found):
        raise EngineError(said)


def lacking(found: Plugin) -> str:
    """One line that names the extra of our installation that an engine needs, if it is not installed; else empty."""
    return extras.lacking(f"the engine {found.name}", *extras_of([found]))


def extras_of(engines: Iterable[Plugin]) -> tuple[str, ...]:
    """The extras of our installation that engines need. An engine of another package has its own way to be complete."""
    return tuple(found.extra for found in engines if found.name in _built_in() and hasattr(found, "extra"))


def load(
    name: str,
    release: str | None = None,
    source: Path | None = None,
    device: str = "cpu",
    stems: Collection[str] = (),
    options: Given = (),
) -> Loaded:
    """Loads an engine. ``stems``: those that the user has named, for an engine whose stem is not clear. ``options``:
    those that the user has set.

    Raises ``EngineError``, which says in one line what is wrong with the name, release, folder or device, or which
    extra of our installation is missing, and ``UsageError`` for an option or a value that the engine does not have.
    """
    if device not in DEVICES:
        plugin(name)  # a name that is wrong is told first
        raise EngineError(f"no device {device!r}: there are {' and '.join(DEVICES)}")
    if name in _built_in():
        found = plugin(name)
    elif named.is_place(name):
        found = _named(name, name, source, stems)
    elif source is not None:
        found = _named(_registered(name).value, name, source, stems)
    else:
        found = plugin(name)
    must_be_installed(found)
    if device == "cuda":
        _must_have_cuda()
    declared = options_of(found)
    given = {"options": chosen(name, declared, options)} if declared or options else {}
    if name in _built_in():
        built = found.load(release, source, device, **given)
        safe = {stem: told_where_it_fails(make, f"{built.label}, {stem}") for stem, make in built.makers.items()}
        return replace(built, makers=safe, device=device, options=options)
    simple = isinstance(found, SimplePlugin)  # its code is imported from the folder, and it has no other use for it
    loaded = found.load(release, None if simple else source, device, **given)
    makers = {stem: _checked(stem, make, source if simple else None, name) for stem, make in loaded.makers.items()}
    loaded = replace(loaded, makers=makers, device=device, options=options)
    if source is None:
        return loaded
    return replace(loaded, source=source.absolute(), roots=(*loaded.roots, source.resolve()))


def options_of(found: Plugin) -> tuple[EngineOption, ...]:
    """The options that an engine declares."""
    declared: tuple[EngineOption, ...] = tuple(getattr(found, "options", ()))
    return declared


def every_kind() -> Kinds:
    """The kinds of trees that the engines of this folder declare: those of our own implementation, and of an engine
    that declares none. Such an engine builds the tree that it has, or refuses the kind.
    """
    return together(filter(None, (_declared_by(plugin(name)) for name in _built_in())))


@cache
def known_kinds() -> Kinds:
    """The kinds of trees that registered engines declare: those that a trace can name."""
    others = (found for found in plugins() if found.name not in _built_in())
    return together([every_kind(), *filter(None, map(_declared_by, others))])


def _declared_by(found: Plugin) -> Kinds | None:
    declared: Kinds | None = getattr(found, "kinds", None)
    return declared


def must_have(name: str, options: Given) -> None:
    """Raises ``UsageError`` if the engine has no such options. One that is named by its place is asked when it is
    loaded.
    """
    if options and not named.is_place(name):
        chosen(name, options_of(plugin(name)), options)


def _named(place: str, name: str, source: Path | None, stems: Collection[str]) -> Plugin:
    """The engine at ``package.module:attribute``, imported with the folder ``source`` first on ``sys.path``."""
    found = named.imported(place, source)
    made = found if _is_plugin(found) else SimplePlugin(name, named.makers(found, place, stems))
    return _plugin_of(made, place)


def _checked(stem: str, make: Callable[[Json], Any], source: Path | None, name: str) -> Callable[[Json], Any]:
    """The maker of an engine from elsewhere, which checks what it builds."""
    return vetted(stem, make if source is None else named.from_source(make, source, name), name)


def _must_have_cuda() -> None:
    # The driver is asked, not the CUDA runtime: a process that has asked the runtime cannot fork children that use it.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch  # takes seconds, and many engines do without

    if not torch.cuda.is_available():
        raise EngineError("device cuda: this machine has no CUDA device")


def fetch(name: str, release: str | None) -> None:
    """Downloads what ``load`` will need, so that an engine can be loaded without a network. An engine that has
    something to download has a function ``fetch(release)``. Raises ``EngineError`` before the download if its packages
    are not installed.
    """
    if release is None:
        return  # nothing may be imported before the folder of ``--source`` is on ``sys.path``
    found = plugin(name)
    must_be_installed(found)
    download: Any = getattr(found, "fetch", None)
    if download is not None:
        download(release)


def release_of(name: str, source: Path) -> str | None:
    """The release that a checkout says it is. An engine that can tell has a function ``release_of(source)``."""
    found: Any = getattr(plugin(name), "release_of", lambda _: None)
    says: str | None = found(source)
    return says


def own() -> Plugin:
    """Our own implementation: it is in this folder."""
    return next(found for found in map(plugin, _built_in()) if found.own)


def released() -> list[Plugin]:
    """The engines that have releases to judge."""
    return [found for found in plugins() if found.releases]
