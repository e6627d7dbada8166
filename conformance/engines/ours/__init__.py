"""Our own implementation (``impl/``) as an engine."""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from conformance.driver.protocol import EngineError, Json
from conformance.engines.registry import Loaded
from conformance.stems.vetting import told
from proofs.registry import STEMS

# The package with our implementation; in a wheel it is below the package ``slotproof``, as this one is.
IMPL = __name__.rpartition("conformance")[0] + "impl"

# The stems of which we have an engine: each has a file of its name here, with a maker of its name.
MAKERS = tuple(stem for stem in STEMS if Path(__file__).with_name(f"{stem}.py").is_file())


def make(stem: str, config: Json, device: str = "cpu", **parts: Any) -> Any:
    """An engine for a stem. ``parts``: other classes or functions of which it is made, see the stem's maker."""
    return getattr(import_module(f"{__name__}.{stem}"), stem)(config, device, **parts)


class Ours:
    """Our own implementation. It has no releases, and a latent finding in it is a failure."""

    name = "ours"
    releases: tuple[str, ...] = ()
    folder: Path | None = None
    own = True
    extra = "impl"

    def load(self, release: str | None, source: Path | None, device: str) -> Loaded:
        """An engine for each stem, with its tensors on ``device``. ``source``: a folder with ``impl/``, from which our
        implementation is imported; by default it is the one beside this package.

        Raises ``EngineError`` for a release, and where ``impl`` cannot be imported from the folder.
        """
        if release:
            raise EngineError(f"--release {release}: the engine {self.name} has no releases; --source names a checkout")
        if source is not None:
            _import_from(source)
        makers = {stem: partial(make, stem, device=device) for stem in MAKERS}
        return Loaded(self.name, None, makers, own=True, roots=tuple(map(Path, import_module(IMPL).__path__)))


def _import_from(source: Path) -> None:
    """Makes the package ``impl`` below a folder the one that this process has, and imports our makers with it."""
    if "." in IMPL:
        raise EngineError(f"--source {source}: the engine ours has a source in a checkout of Slotproof alone")
    folder = source.resolve() / IMPL
    loaded = sys.modules.get(IMPL)
    if loaded is not None and Path(loaded.__file__ or "").parent == folder:
        return
    if loaded is not None:
        raise EngineError(f"--source {source}: this process has {IMPL} from {loaded.__file__} loaded already")
    found = spec_from_file_location(IMPL, folder / "__init__.py", submodule_search_locations=[str(folder)])
    if found is None or found.loader is None or not (folder / "__init__.py").is_file():
        raise EngineError(f"--source {source}: expected our implementation in a package {IMPL}/ below this folder")
    sys.modules[IMPL] = module_from_spec(found)
    try:
        found.loader.exec_module(sys.modules[IMPL])
        for stem in MAKERS:
            import_module(f"{__name__}.{stem}")
    except Exception as error:
        raise EngineError(f"--source {source}: {IMPL} cannot be driven from here: {told(error)}") from error


PLUGIN = Ours()
