"""vLLM's released block pool, scheduler and manager of host memory as engines, one release a process.

``registry.load("vllm", release="0.33.0")`` downloads the release once, imports its own classes and drives them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.driver.entrances import Entrances
from conformance.driver.protocol import EngineError, Json

if TYPE_CHECKING:
    from conformance.engines.registry import Loaded
    from conformance.engines.vllm.load import LoadedScheduler
    from conformance.engines.vllm.release import VLLMRelease
    from conformance.engines.wheels import Wheels

RELEASES = (
    *("0.13.0", "0.15.1", "0.16.0", "0.18.1", "0.20.2", "0.22.1"),
    *("0.24.0", "0.27.1", "0.30.0", "0.31.0", "0.32.0", "0.33.0"),
)
# The block pool, its caches of each kind of layer, the scheduler, and what the scheduler keeps of a request.
BOOKKEEPING = ("v1/core", "v1/request.py", "v1/kv_cache_interface.py", "v1/kv_cache_spec_registry.py")
# What is kept of blocks in host memory: no edit is drawn here, but a finding may call it.
HOST_BOOKKEEPING = ("v1/kv_offload", "distributed/kv_transfer/kv_connector/v1/offloading")
# The core runs a loop; a client's message may call each of its methods, which it looks up by their names.
ENTRANCES = Entrances(
    loops=(r"v1/engine/core\.py:\w+\.run_busy_loop",),
    handlers=(r"v1/engine/core\.py:\w*EngineCore\w*\.(?!__init__)\w+",),
    start=(r"v1/engine/core\.py:\w*EngineCore\w*\.(__init__|run_engine_core)",),
)


def _wheels() -> Wheels:
    """The releases. They are imported late: a server that is recorded imports this module, and may have the standard
    library and msgpack alone.
    """
    from conformance.engines.vllm.download import WHEELS

    return WHEELS


@dataclass(frozen=True)
class VLLMPlugin:
    """vLLM in the registry of engines."""

    name: str = "vllm"
    releases: tuple[str, ...] = RELEASES
    stems: tuple[str, ...] = ("block_pool", "block_cache", "host_tier")
    folder: Path | None = Path(__file__).parent
    own: bool = False
    bookkeeping: tuple[str, ...] = BOOKKEEPING
    host_bookkeeping: tuple[str, ...] = HOST_BOOKKEEPING
    entrances: Entrances = ENTRANCES
    extra: str = "vllm"
    under_loads: tuple[str, ...] = ("plain", "window", "states", "parts", "drafted_states", "drafts", "sizes")

    def load(self, release: str | None, source: Path | None, device: str) -> Loaded:
        """The engines of a release, or of a checkout in the folder ``source``. ``EngineError`` says what is wrong."""
        from conformance.engines.registry import Loaded
        from conformance.engines.vllm.makers import makers

        if device != "cpu":
            raise EngineError(f"--device {device}: the bookkeeping of vllm runs on cpu alone")
        found = self._import(release, source)
        folder = None if source is None else source.resolve()
        roots = (found.imported.root / "vllm",)
        return Loaded(self.name, release, makers(found), self.own, source=folder, roots=roots, notes=found.notes)

    def under_load(
        self, release: str | None, seed: int, requests: int = 16, source: Path | None = None, server: str = "plain"
    ) -> LoadedScheduler:
        """The real scheduler of a release, or of a checkout, with so many random clients. Without both it is the newest
        release that is known. ``server``: one of ``under_loads``.
        """
        from conformance.engines.vllm.load import SERVERS, LoadedScheduler, ServerLoad

        load = ServerLoad(requests=requests, blocks=max(600, 48 * requests), **SERVERS[server])
        newest = self.releases[-1] if release is None and source is None else release
        return LoadedScheduler(self._import(newest, source), load, seed)

    def fetch(self, release: str) -> None:
        """Downloads a release, unless it is there."""
        _wheels().known(release, self.releases)

    def peer_tests(self, release: str | None, source: Path | None) -> Json:
        """The release's own tests of its block pool, run on its own and on ours."""
        from conformance.engines.vllm.replacing import peers

        return peers.peer(release, source).compared(peers.NAMED)

    @staticmethod
    def newest() -> str:
        """The newest release on the package index."""
        return _wheels().newest()

    @staticmethod
    def release_of(source: Path) -> str | None:
        """The release that a checkout says it is."""
        return _wheels().release_of(source)

    def _import(self, release: str | None, source: Path | None) -> VLLMRelease:
        from conformance.engines.vllm.release import load

        return load(*_wheels().chosen(release, source, self.releases))


PLUGIN = VLLMPlugin()
