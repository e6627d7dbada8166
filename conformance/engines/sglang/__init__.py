"""SGLang's released bookkeeping classes as engines, one release a process.

``registry.load("sglang", release="0.5.12")`` downloads the release once, imports its own classes and drives them. This
module imports neither torch nor triton, since Triton's interpreter must be switched on before triton is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.driver.entrances import Entrances
from conformance.driver.options import EngineOption
from conformance.driver.protocol import EngineError
from conformance.engines.sglang.kinds import KINDS
from conformance.stems.kinds import Kinds

if TYPE_CHECKING:
    from conformance.engines.registry import Loaded
    from conformance.engines.sglang.driving.comparison import Comparison
    from conformance.engines.sglang.load import LoadedServer
    from conformance.engines.sglang.releases.release import Release

RELEASES = (
    *("0.5.10", "0.5.11", "0.5.12", "0.5.13", "0.5.14", "0.5.15", "0.5.16", "0.5.17"),
    *("0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
)
# Where memory is given out, cached and given back, requests are scheduled, and their rows and sessions are kept; and
# the kernels that do so on a device.
BOOKKEEPING = (
    *("srt/mem_cache", "srt/session", "srt/managers", "srt/disaggregation", "srt/speculative"),
    *("kernels/ops/memory", "kernels/ops/kvcache", "kernels/ops/speculative"),
)
# A message of a client is given to a function that the table of the scheduler's dispatcher names.
ENTRANCES = Entrances(
    loops=(r"srt/.*:\w+\.(event_loop_\w+|run_event_loop)",),
    tables=(r"srt/managers/scheduler\.py:Scheduler\.init_request_dispatcher",),
    start=(r"srt/managers/scheduler\.py:(Scheduler\.__init__|run_scheduler_process)",),
)
NEITHER = "sglang needs either --release VERSION or --source FOLDER"
OPTIONS = (
    EngineOption(
        "core",
        ("default", "python", "rust", "both"),
        "default",
        "Which core of the unified tree runs: the one that the release takes, the Python one, the Rust one, or both at "
        "once. A core that is asked for and cannot run is an error.",
    ),
    EngineOption(
        "allocators",
        ("own", "slotproof", "both"),
        "own",
        "Whose allocators the release's code runs on: its own, those of Slotproof, or two servers at once, one on "
        "each, which must agree but for page numbers.",
    ),
    EngineOption(
        "tree",
        ("own", "slotproof", "both"),
        "own",
        "Whose prefix cache the release's servers have: the release's own tree, that of Slotproof, or two servers at "
        "once, one on each, which must agree but for page numbers. Configurations with recurrent layers are left out, "
        "and where two servers are compared those with sliding-window layers too.",
    ),
)


@dataclass(frozen=True)
class SGLangPlugin:
    """SGLang in the registry of engines."""

    name: str = "sglang"
    releases: tuple[str, ...] = RELEASES
    stems: tuple[str, ...] = (
        *("allocator", "swa_mapping", "lock_ref", "session_trim", "mamba_slots", "cache"),
        *("server", "host_server"),
    )
    folder: Path | None = Path(__file__).parent
    own: bool = False
    options: tuple[EngineOption, ...] = OPTIONS
    bookkeeping: tuple[str, ...] = BOOKKEEPING
    entrances: Entrances = ENTRANCES
    extra: str = "sglang"
    kinds: Kinds = KINDS
    under_loads: tuple[str, ...] = ("plain", "tokens", "window", "short", "chunks")

    def load(
        self, release: str | None, source: Path | None, device: str, options: Mapping[str, str] | None = None
    ) -> Loaded:
        """The engines of a release, or of a checkout in the folder ``source``. ``options``: a value for each of
        ``OPTIONS``; ``None`` for the defaults. ``EngineError`` says what is wrong.
        """
        from conformance.engines.registry import Loaded
        from conformance.engines.sglang.driving.makers import makers
        from conformance.engines.sglang.releases import rust_core
        from conformance.engines.sglang.releases.cores import PYTHON

        found = self._import(release, source)
        folder = None if source is None else source.resolve()
        roots = (found.imported.root / "sglang",)
        made = makers(found, device, options or {})
        notes = rust_core.prepare(found.imported)
        asked = (options or {}).get("core")
        unbuilt = () if source is None or asked == PYTHON else rust_core.unbuilt(found.imported)
        named: dict[str, Any] = {"source": folder, "roots": roots, "notes": notes, "kinds": KINDS, "unbuilt": unbuilt}
        return Loaded(self.name, release, made, self.own, **named)

    def under_load(
        self, release: str | None, seed: int, requests: int = 8, source: Path | None = None, server: str = "plain"
    ) -> LoadedServer:
        """The real scheduler of a release, or of a checkout, with so many random clients. Without both it is the newest
        release that is known. ``server``: one of ``under_loads``.
        """
        from conformance.engines.sglang.load import SERVERS, LoadedServer, RandomClients

        newest = self.releases[-1] if release is None and source is None else release
        load = RandomClients(**{"requests": requests, "pages": 32 * requests, **SERVERS[server]})
        return LoadedServer(self._import(newest, source), load, seed)

    def fetch(self, release: str) -> None:
        """Downloads a release, unless it is there."""
        from conformance.engines.sglang.releases import download

        download.WHEELS.known(release, self.releases)

    @staticmethod
    def newest() -> str:
        """The newest release on the package index."""
        from conformance.engines.sglang.releases import download

        return download.newest()

    @staticmethod
    def release_of(source: Path) -> str | None:
        """The release that a checkout says it is."""
        from conformance.engines.sglang.releases import download

        return download.release_of(source)

    def comparison(self, release: str, device: str) -> Comparison:
        """SGLang's allocators and its tree at full size, for benchmarks; their tensors are on ``device``."""
        from conformance.engines.sglang.driving.comparison import Comparison

        return Comparison(self._import(release, None), device)

    @staticmethod
    def peer_tests(release: str | None, source: Path | None) -> dict[str, Any]:
        """Its own tests of its allocators and its tree: ``EngineError``, since they are not on the package index."""
        del release, source
        raise EngineError(
            "sglang: its tests of its allocators and its tree are not on the package index: 0.5.23, the newest wheel "
            "that was looked at, and 0.5.9, the newest source archive, leave them out"
        )

    def compat(self, release: str | None, source: Path | None) -> dict[str, Any]:
        """What the code of a release or a checkout touches of its allocators, and what of that ours lack: see
        ``compat``. Its source is read and not executed.
        """
        from conformance.engines.sglang.replacing import compat
        from conformance.engines.sglang.replacing.subjects import stand_ins

        return compat.compared(self._root(release, source) / "sglang", stand_ins())

    def _root(self, release: str | None, source: Path | None) -> Path:
        """The folder that holds ``sglang/``."""
        from conformance.engines.sglang.releases import download

        return download.WHEELS.chosen(release, source, self.releases)[0]

    def _import(self, release: str | None, source: Path | None) -> Release:
        from conformance.engines.sglang.releases import download
        from conformance.engines.sglang.releases.release import load

        return load(*download.WHEELS.chosen(release, source, self.releases))


PLUGIN = SGLangPlugin()
