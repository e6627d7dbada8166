"""Find the sources of an SGLang release: downloaded once into an ignored cache, or a checkout on disk.

Nothing of a release is ever part of this repository. ``release`` and ``from_source`` return a folder that has
``sglang/`` below it; where there is none they raise ``EngineError`` with a message of one line. What is on the package
index is asked of pip, so pip's settings hold: its index, its proxy, its certificates.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

from packaging.version import Version

from conformance.cache_folder import cache_folder
from conformance.engines.protocol import EngineError

BOOKKEEPING = Path("srt", "mem_cache")
_VERSION = re.compile(r"\d+(\.\d+){1,3}((a|b|rc|\.post|\.dev)\d+)?")
# Large parts of a wheel that no bookkeeping module imports.
_UNUSED = ("sglang/multimodal_gen/", "sglang/test/", "sglang/benchmark/", "sglang/eval/")
_KERNELS = tuple(f"sglang/{place}/{part}/" for place in ("jit_kernel", "kernels/jit") for part in ("csrc", "include"))
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--no-color")
_DOWNLOAD = ("download", "--quiet", "--no-deps", "--only-binary=:all:")
_VERSIONS = ("index", "versions", "--only-binary=:all:")
# From 0.5.11 on a wheel is tagged for one Python version and one platform, but the files that we read are pure Python.
# Where pip finds no wheel for this interpreter, it is asked for a wheel with that tag.
_FOREIGN = (
    *("--python-version", "3.11", "--implementation", "cp"),
    *("--abi", "cp311", "--abi", "abi3", "--abi", "none"),
    *(f for n in (34, 35, 31, 28, 17) for f in ("--platform", f"manylinux_2_{n}_x86_64")),
    *("--platform", "manylinux2014_x86_64", "--platform", "any"),
)
_PIP_TIMEOUT_S, _INDEX_TIMEOUT_S = 900, 120
# Which files of a wheel are unpacked. A folder of the cache that was unpacked by another rule is fetched again, since
# it may lack files: by rule 1 the shared objects of the tree's Rust core.
_RULE, _MARKER = "2", ".unpacked_by_rule"


def release(version: str) -> Path:
    """Return the folder that holds `sglang/` of this release, downloading it the first time.

    Raises EngineError if `version` is no version number or no such release can be had.
    """
    if not _VERSION.fullmatch(version):
        raise EngineError(f"sglang {version!r}: not a release number such as 0.5.12")
    target = cache_folder() / "sglang" / version
    if not _is_current(target):
        _download_into(target, version)
    if not (target / "sglang" / BOOKKEEPING).is_dir():
        raise EngineError(f"{target} is no unpacked SGLang release: remove it and try again")
    return target


def newest() -> str:
    """The newest release of SGLang on the package index. Raises ``EngineError`` if the index cannot be asked."""
    told, reasons = "", []
    for options in ((), _FOREIGN):
        out, reason = _pip((*_VERSIONS, *options, "sglang"), _INDEX_TIMEOUT_S)
        told += out
        reasons.append(reason)
    found = re.findall(r"^Available versions: (.*)$", told, re.MULTILINE)
    versions = [version for line in found for version in line.split(", ") if _VERSION.fullmatch(version)]
    if not versions:
        raise EngineError(f"the package index names no release of sglang (pip said: {reasons[0] or 'nothing'})")
    best: str = max(versions, key=Version)
    return best


def from_source(folder: Path) -> Path:
    """Return the folder that holds `sglang/`, given an SGLang checkout, the folder `python` in it, or the package
    itself.

    Raises EngineError if `folder` is none of the three.
    """
    # The checkout comes first: its own folder is often named `sglang` too.
    for root in (folder / "python", folder):
        if (root / "sglang" / BOOKKEEPING).is_dir():
            return root.resolve()
    package = folder.resolve()
    if package.name == "sglang" and (package / BOOKKEEPING).is_dir():
        return package.parent
    raise EngineError(f"{folder} is no SGLang checkout: expected sglang/srt/mem_cache below it")


def release_of(folder: Path) -> str | None:
    """The release that a checkout or an unpacked wheel says it is, ``None`` if it says none or an unreleased version.

    The build writes the number to ``sglang/_version.py``.
    """
    try:
        text = (from_source(folder) / "sglang" / "_version.py").read_text(encoding="utf-8")
    except (EngineError, OSError):
        return None
    found = re.search(r"^__version__\s*=.*?['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found[1] if found and _VERSION.fullmatch(found[1]) and "dev" not in found[1] else None


def unpack(wheel: Path, target: Path) -> None:
    """Unpack the needed files of `wheel` to `target`; `target` appears with all of them or not at all.

    Several processes may do this at the same time: the first one creates `target`, and the others use it. A `target`
    that was unpacked by another rule is replaced.
    Raises EngineError if the wheel is damaged or has no `sglang/srt/mem_cache`.
    """
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpack-") as scratch:
        staged = Path(scratch, "release")
        _extract(wheel, staged)
        (staged / _MARKER).write_text(_RULE, encoding="utf-8")
        if target.exists() and not _is_current(target):
            with suppress(OSError):  # another process has put it away
                target.rename(Path(scratch, "older"))
        try:
            staged.rename(target)
        except OSError as error:
            if not _is_current(target):
                raise EngineError(f"{wheel.name} cannot be unpacked to {target}: {error}") from error


def _is_current(target: Path) -> bool:
    """The folder was unpacked by the rule of this version of Slotproof. Folders of rule 1 have no marker; those that
    lack nothing of rule 2, since their release has no Rust core, are as good.
    """
    try:
        return (target / _MARKER).read_text(encoding="utf-8") == _RULE
    except OSError:
        bookkeeping = target / "sglang" / BOOKKEEPING
        cores = list(bookkeeping.glob("*rust*/__init__.py"))
        return bookkeeping.is_dir() and all(list(core.parent.glob("*.so")) for core in cores)


def _extract(wheel: Path, staged: Path) -> None:
    """Write the needed files of `wheel` below `staged`; EngineError if it is not an SGLang wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(staged, [name for name in archive.namelist() if _is_used(name)])
    except (zipfile.BadZipFile, OSError) as error:
        raise EngineError(f"{wheel.name} cannot be unpacked: {error}") from error
    if not (staged / "sglang" / BOOKKEEPING).is_dir():
        raise EngineError(f"{wheel.name} holds no sglang/srt/mem_cache")


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


def _download_into(target: Path, version: str) -> None:
    """Download the wheel of `version` and unpack it to `target`; EngineError if either fails."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EngineError(f"sglang {version}: the cache cannot be written: {error}") from error
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as scratch:
        unpack(_download(version, Path(scratch)), target)


def _download(version: str, folder: Path) -> Path:
    """Return the wheel of `version`, downloaded to `folder`; EngineError with pip's message if there is none."""
    reasons = []
    for options in ((), _FOREIGN):
        reasons.append(_pip_download(version, folder, options))
        if wheels := sorted(folder.glob("*.whl")):
            return wheels[0]
    raise EngineError(f"sglang {version}: no such release can be downloaded (pip said: {reasons[0]})")


def _pip_download(version: str, folder: Path, options: tuple[str, ...]) -> str:
    """Run one `pip download`; return why it failed, in one line, or an empty string."""
    return _pip((*_DOWNLOAD, *options, f"sglang=={version}", "-d", str(folder)), _PIP_TIMEOUT_S)[1]


def _pip(words: tuple[str, ...], seconds: float) -> tuple[str, str]:
    """Run pip; return what it printed, and why it failed, in one line, or an empty string."""
    try:
        ran = subprocess.run([*_PIP, *words], capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return "", f"nothing for {seconds:.0f} s; is the package index reachable?"
    except OSError as error:
        return "", str(error)
    return ran.stdout, "" if ran.returncode == 0 else _reason(ran.stderr)


def _reason(stderr: str) -> str:
    """Return the last error line of pip, with a hint if the package index offered no version at all."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    hint = "; is the package index reachable?" if "(from versions: none)" in stderr else ""
    return (errors or lines or ["nothing"])[-1] + hint
