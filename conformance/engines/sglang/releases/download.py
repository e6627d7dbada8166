"""The releases of SGLang: which files of a wheel its bookkeeping needs, and where it is in a checkout."""

from __future__ import annotations

from pathlib import Path

from conformance.engines.wheels import Wheels

BOOKKEEPING = Path("srt", "mem_cache")
# Large parts of a wheel that no bookkeeping module imports.
_UNUSED = ("sglang/multimodal_gen/", "sglang/test/", "sglang/benchmark/", "sglang/eval/")
_KERNELS = tuple(f"sglang/{place}/{part}/" for place in ("jit_kernel", "kernels/jit") for part in ("csrc", "include"))


def _is_used(name: str) -> bool:
    """Whether the bookkeeping needs this file of a wheel: Python files, the shared objects of the cache (its tree core
    in Rust), and CUDA sources whose paths are looked up on import.
    """
    shared_object = name.startswith("sglang/srt/mem_cache/") and name.endswith(".so")
    return (
        shared_object
        or name.startswith(_KERNELS)
        or (name.startswith("sglang/") and name.endswith(".py") and not name.startswith(_UNUSED))
    )


def _lacks_nothing(target: Path) -> bool:
    """A folder of rule 1, which left out the shared objects of the tree's Rust core, is as good as one of rule 2 if its
    release has no Rust core.
    """
    cores = (target / "sglang" / BOOKKEEPING).glob("*rust*/__init__.py")
    return all(list(core.parent.glob("*.so")) for core in cores)


WHEELS = Wheels(
    "sglang", "SGLang", BOOKKEEPING, "0.5.12", _is_used, rule="2", unmarked=_lacks_nothing, places=("python", "")
)
release, newest, unpack = WHEELS.release, WHEELS.newest, WHEELS.unpack
from_source, release_of = WHEELS.from_source, WHEELS.release_of
