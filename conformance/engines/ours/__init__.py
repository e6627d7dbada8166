"""Our own implementation (``impl/``) as an engine."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from conformance.engines.protocol import EngineError, Json
from conformance.engines.registry import Loaded

# For each stem the module of this folder with its maker, and the name of the maker.
MAKERS = {
    "allocator": ("pools", "allocator"),
    "swa_mapping": ("pools", "swa_mapping"),
    "lock_ref": ("tree", "lock_ref"),
    "session_trim": ("cache", "cache"),
    "mamba_slots": ("states", "mamba_slots"),
    "cache": ("cache", "cache"),
}


def make(stem: str, config: Json, device: str = "cpu", **parts: Any) -> Any:
    """An engine for a stem. ``parts``: other classes or functions of which it is made, see the stem's maker."""
    module, name = MAKERS[stem]
    return getattr(import_module(f"{__name__}.{module}"), name)(config, device, **parts)


class Ours:
    """Our own implementation. It has no releases, and a latent finding in it is a failure."""

    name = "ours"
    releases: tuple[str, ...] = ()
    folder: Path | None = None
    own = True

    def load(self, release: str | None, source: Path | None, device: str) -> Loaded:
        """An engine for each stem, with its tensors on ``device``. Raises ``EngineError`` for a release or a source
        folder.
        """
        if release or source:
            raise EngineError(f"--release and --source: the engine {self.name} has neither releases nor sources")
        makers = {stem: partial(make, stem, device=device) for stem in MAKERS}
        return Loaded(self.name, None, makers, own=True, roots=tuple(map(Path, import_module("impl").__path__)))


PLUGIN = Ours()
