"""The settings of the server that SGLang's bookkeeping reads: the page size, the buffers of mamba states, drafts.

Releases that keep their settings in a runtime context get their own ``ServerArgs`` with these values, installed by
their own ``override_server_args``: every other setting has the release's default. Older releases read the object that
a stub of ``server_args`` returns; it has the fields that their bookkeeping reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conformance.driver.exception_origin import StandIn
from conformance.driver.protocol import EngineError
from conformance.engines.importing import Imported

SERVER_ARGS = "sglang.srt.server_args"  # the command line, which imports half of the engine in older releases
ATTENTION = "torch_native"  # rows are then written by plain torch
# What a runtime context keeps of its settings, and what its part for parallel groups keeps.
_CONTEXT, _PARALLEL = ("_server_args", "_config_bags"), ("_config", "_derived", "_overrides")
# Ranks of parallel groups, which a launcher sets. Only rank 0 writes log messages.
RANKS = {"tp_rank": 1, "attn_dcp_rank": 0}


def has_context(root: Path) -> bool:
    """The release below ``root`` has a runtime context that takes settings."""
    file = root / "sglang" / "srt" / "runtime_context.py"
    return file.is_file() and "def override_server_args" in file.read_text()


class Settings:
    """The settings of one imported release; ``set_for_server`` changes them."""

    def __init__(self, imported: Imported) -> None:
        self._imported = imported
        self.in_context = has_context(imported.root)
        self._installed: dict[Any, dict[str, Any]] = {}
        self._server: StandIn | None = None
        self._now: tuple[int, bool, bool] | None = None
        self._algorithm, self._decodes = "", False
        if not self.in_context:
            imported.answer(SERVER_ARGS, "get_global_server_args", self._server_arguments)

    def set_for_server(self, page_size: int, buffered: bool, lazy: bool) -> None:
        """From now on SGLang reads the settings of a server with this page size and these buffers."""
        self._now = (page_size, buffered, lazy)
        if self.in_context:
            self._install("")
        else:
            self._server = self._stand_in(page_size, buffered, lazy)

    def drafts(self, wanted: bool) -> None:
        """From now on the server has a draft model, or none."""
        algorithm = "EAGLE" if wanted else None
        if self.in_context:
            self._install(algorithm or "")
        elif self._server is not None:
            self._server.speculative_algorithm = algorithm

    @contextmanager
    def decode_server(self) -> Iterator[None]:
        """While this lasts, the server gets prompts from a prefill server, and keeps a tree. Only releases that keep
        their settings in a runtime context have such a server.
        """
        self._decodes = True
        try:
            self._install(self._algorithm)
            yield
        finally:
            self._decodes = False
            self._install(self._algorithm)

    @staticmethod
    def _stand_in(page_size: int, buffered: bool, lazy: bool) -> StandIn:
        return StandIn(
            attention_backend=ATTENTION,
            page_size=page_size,
            mamba_cache_chunk_size=page_size,
            mamba_track_interval=page_size,
            enable_int8_mamba_checkpoint=False,
            enable_mamba_extra_buffer=lambda: buffered,
            enable_mamba_extra_buffer_lazy=lambda: lazy,
            speculative_algorithm=None,
            strip_thinking_cache=False,
            chunked_prefill_size=-1,
            disaggregation_mode="null",
        )

    def _server_arguments(self) -> StandIn:
        if self._server is None:
            raise EngineError("SGLang reads the arguments of its server, and there is none yet")
        return self._server

    def _install(self, algorithm: str) -> None:
        """Puts settings into the release's context; the same settings are built once, since that is slow."""
        assert self._now is not None, "drafts need a server"
        self._algorithm = algorithm
        key = (*self._now, algorithm, self._decodes)
        context = self._imported.module("runtime_context").get_context()
        parts = ((context, _CONTEXT), (context.parallel, _PARALLEL))
        if key not in self._installed:
            self._build(context, *key)
            kept = {name: getattr(part, name) for part, names in parts for name in names if hasattr(part, name)}
            self._installed[key] = kept
        for part, names in parts:
            for name in names:
                if name in self._installed[key]:
                    setattr(part, name, self._installed[key][name])

    def _build(self, context: Any, page_size: int, buffered: bool, lazy: bool, algorithm: str, decodes: bool) -> None:
        strategy = "extra_buffer_lazy" if lazy else "extra_buffer" if buffered else "no_buffer"
        fields = {
            "page_size": page_size,
            "attention_backend": ATTENTION,
            "mamba_track_interval": page_size,
            "mamba_radix_cache_strategy": strategy,
            "speculative_algorithm": algorithm or None,
            "_mamba_cache_chunk_size": page_size,  # the release's own way to do without a model's configuration
        }
        if decodes:
            fields |= {"disaggregation_mode": "decode", "disaggregation_decode_enable_radix_cache": True}
        context.override_server_args(**fields).install()
        context.parallel._overrides = dict(RANKS)
