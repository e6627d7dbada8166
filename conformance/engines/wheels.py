"""The releases of an engine that is on the package index: downloaded once into an ignored cache, or a checkout on disk.

Nothing of a release is ever part of this repository. ``Wheels.release`` and ``Wheels.from_source`` return a folder that
has the engine's package below it; where there is none they raise ``EngineError`` with a message of one line. What is on
the package index is asked of pip, so pip's settings hold: its index, its proxy, its certificates.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from conformance.driver.cache_folder import cache_folder
from conformance.driver.naming import close
from conformance.driver.protocol import EngineError

MARKER = ".unpacked_by_rule"
_VERSION = re.compile(r"\d+(\.\d+){1,3}((a|b|rc|\.post|\.dev)\d+)?")
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--no-color")
_DOWNLOAD = ("download", "--quiet", "--no-deps", "--only-binary=:all:")
_VERSIONS = ("index", "versions", "--only-binary=:all:")
# A wheel may be tagged for one Python version and one platform, though the files that we read are pure Python. Where
# pip finds no wheel for this interpreter, it is asked for a wheel with that tag.
_FOREIGN = (
    *("--python-version", "3.11", "--implementation", "cp"),
    *("--abi", "cp311", "--abi", "abi3", "--abi", "none"),
    *(f for n in (34, 35, 31, 28, 17) for f in ("--platform", f"manylinux_2_{n}_x86_64")),
    *("--platform", "manylinux2014_x86_64", "--platform", "any"),
)
_PIP_TIMEOUT_S, _INDEX_TIMEOUT_S = 900, 120


@dataclass(frozen=True)
class Wheels:
    """The releases of one engine.

    ``package``: its name on the package index, which is the name of its Python package too. ``title``: how sentences
    name it. ``bookkeeping``: a folder that each release has below its package. ``example``: a release number.
    ``is_used``: whether a file of a wheel is unpacked, by its name there. ``rule``: the number of this choice; a folder
    of the cache that was unpacked by another rule is fetched again, since it may lack files. ``unmarked``: whether a
    folder of rule 1, which has no marker, lacks nothing. ``places``: where the package is in a checkout.
    """

    package: str
    title: str
    bookkeeping: Path
    example: str
    is_used: Callable[[str], bool]
    rule: str = "1"
    unmarked: Callable[[Path], bool] = lambda _: True
    places: tuple[str, ...] = ("",)

    def release(self, version: str) -> Path:
        """Return the folder that holds the package of this release, downloading it the first time.

        Raises EngineError if `version` is no version number or no such release can be had.
        """
        if not _VERSION.fullmatch(version):
            raise EngineError(f"{self.package} {version!r}: not a release number such as {self.example}")
        target = cache_folder() / self.package / version
        if not self._is_current(target):
            self._download_into(target, version)
        if not self._is_in(target):
            raise EngineError(f"{target} is no unpacked {self.title} release: remove it and try again")
        return target

    def chosen(self, release: str | None, source: Path | None, releases: tuple[str, ...]) -> tuple[Path, str]:
        """The folder that holds the package of a release, or of a checkout in the folder ``source``; and its label.

        Raises EngineError where not one of the two is given, and as ``known`` and ``from_source`` do.
        """
        if release is not None and source is None:
            return self.known(release, releases), release
        if source is not None and release is None:
            return self.from_source(source), str(source)
        raise EngineError(f"{self.package} needs either --release VERSION or --source FOLDER")

    def known(self, release: str, releases: tuple[str, ...]) -> Path:
        """As ``release``. Where it cannot be had, the error names those of ``releases`` that are close to it."""
        try:
            return self.release(release)
        except EngineError as error:
            near = "" if release in releases else close(release, releases)
            raise EngineError(f"{error}; did you mean {near}?" if near else str(error)) from error

    def newest(self) -> str:
        """The newest release on the package index. Raises ``EngineError`` if the index cannot be asked."""
        told, reasons = "", []
        for options in ((), _FOREIGN):
            out, reason = _pip((*_VERSIONS, *options, self.package), _INDEX_TIMEOUT_S)
            told += out
            reasons.append(reason)
        found = re.findall(r"^Available versions: (.*)$", told, re.MULTILINE)
        versions = [version for line in found for version in line.split(", ") if _VERSION.fullmatch(version)]
        if not versions:
            said = reasons[0] or "nothing"
            raise EngineError(f"the package index names no release of {self.package} (pip said: {said})")
        best: str = max(versions, key=Version)
        return best

    def from_source(self, folder: Path) -> Path:
        """Return the folder that holds the package, given a checkout, one of its ``places``, or the package itself.

        Raises EngineError if `folder` is none of them.
        """
        # The checkout comes first: its own folder often has the name of the package.
        for place in self.places:
            if self._is_in(folder / place):
                return (folder / place).resolve()
        package = folder.resolve()
        if package.name == self.package and (package / self.bookkeeping).is_dir():
            return package.parent
        raise EngineError(f"{folder} is no {self.title} checkout: expected {self._expected} below it")

    def release_of(self, folder: Path) -> str | None:
        """The release that a checkout or an unpacked wheel says it is, ``None`` if it says none or an unreleased
        version.

        The build writes the number to ``_version.py`` in the package.
        """
        try:
            text = (self.from_source(folder) / self.package / "_version.py").read_text(encoding="utf-8")
        except (EngineError, OSError):
            return None
        found = re.search(r"^__version__\s*=.*?['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        return found[1] if found and _VERSION.fullmatch(found[1]) and "dev" not in found[1] else None

    def unpack(self, wheel: Path, target: Path) -> None:
        """Unpack the needed files of `wheel` to `target`; `target` appears with all of them or not at all.

        Several processes may do this at the same time: the first one creates `target`, and the others use it. A
        `target` that was unpacked by another rule is replaced.
        Raises EngineError if the wheel is damaged or has no bookkeeping.
        """
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpack-") as scratch:
            staged = Path(scratch, "release")
            self._extract(wheel, staged)
            (staged / MARKER).write_text(self.rule, encoding="utf-8")
            if target.exists() and not self._is_current(target):
                with suppress(OSError):  # another process has put it away
                    target.rename(Path(scratch, "older"))
            try:
                staged.rename(target)
            except OSError as error:
                if not self._is_current(target):
                    raise EngineError(f"{wheel.name} cannot be unpacked to {target}: {error}") from error

    @property
    def _expected(self) -> str:
        return (self.package / self.bookkeeping).as_posix()

    def _is_in(self, folder: Path) -> bool:
        """The package, with its bookkeeping, lies in the folder."""
        return (folder / self.package / self.bookkeeping).is_dir()

    def _is_current(self, target: Path) -> bool:
        """The folder was unpacked by the rule of this version of Slotproof, or lacks nothing of it."""
        try:
            return (target / MARKER).read_text(encoding="utf-8") == self.rule
        except OSError:
            return self._is_in(target) and self.unmarked(target)

    def _extract(self, wheel: Path, staged: Path) -> None:
        """Write the needed files of `wheel` below `staged`; EngineError if it is no wheel of this engine."""
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(staged, [name for name in archive.namelist() if self.is_used(name)])
        except (zipfile.BadZipFile, OSError) as error:
            raise EngineError(f"{wheel.name} cannot be unpacked: {error}") from error
        if not self._is_in(staged):
            raise EngineError(f"{wheel.name} holds no {self._expected}")

    def _download_into(self, target: Path, version: str) -> None:
        """Download the wheel of `version` and unpack it to `target`; EngineError if either fails."""
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EngineError(f"{self.package} {version}: the cache cannot be written: {error}") from error
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as scratch:
            self.unpack(self._download(version, Path(scratch)), target)

    def _download(self, version: str, folder: Path) -> Path:
        """Return the wheel of `version`, downloaded to `folder`; EngineError with pip's message if there is none."""
        reasons = []
        for options in ((), _FOREIGN):
            reasons.append(_pip_download(f"{self.package}=={version}", folder, options))
            if wheels := sorted(folder.glob("*.whl")):
                return wheels[0]
        told = f"no such release can be downloaded (pip said: {reasons[0]})"
        raise EngineError(f"{self.package} {version}: {told}")


def _pip_download(what: str, folder: Path, options: tuple[str, ...]) -> str:
    """Run one `pip download`; return why it failed, in one line, or an empty string."""
    return _pip((*_DOWNLOAD, *options, what, "-d", str(folder)), _PIP_TIMEOUT_S)[1]


def _pip(words: tuple[str, ...], seconds: float) -> tuple[str, str]:
    """Run pip; return what it printed, and why it failed, in one line, or an empty string."""
    try:
        ended = subprocess.run([*_PIP, *words], capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return "", f"nothing for {seconds:.0f} s; is the package index reachable?"
    except OSError as error:
        return "", str(error)
    return ended.stdout, "" if ended.returncode == 0 else reason_of(ended.stderr)


def reason_of(stderr: str) -> str:
    """Return the last error line of pip, with a hint if the package index offered no version at all."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    hint = "; is the package index reachable?" if "(from versions: none)" in stderr else ""
    return (errors or lines or ["nothing"])[-1] + hint
