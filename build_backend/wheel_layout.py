"""Builds Slotproof with setuptools. In a wheel ``spec``, ``proofs``, ``impl`` and ``conformance`` are in ``slotproof``.

The four names are too common for site-packages: a package of this name in a user's repository would take the place of
ours, or ours of his. ``docs/adr/0011-names-in-site-packages.md`` has the reasons. A wheel is built from a copy of the
sources, in which the four folders have been moved and every import of them has been changed; the checkout itself and
an editable install are as they are written. The copy has no history: its version is that of the sources
(``setuptools_scm``, as ``pyproject.toml`` sets it).
"""

from __future__ import annotations

import ast
import os
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import setuptools_scm
from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

HOME = "slotproof"
MOVED = ("spec", "proofs", "impl", "conformance")
BESIDE = ("pyproject.toml", "README.md", "LICENSE")
VERSION = "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_SLOTPROOF"  # where setuptools_scm is told the version
FINDINGS = Path("docs", "findings.json")  # `slotproof report` draws them

Settings = Mapping[str, Any] | None


def build_wheel(folder: str, settings: Settings = None, metadata: str | None = None) -> str:
    """Builds the wheel in ``folder``; its file name."""
    return _built(lambda: build_meta.build_wheel(os.path.abspath(folder), settings, metadata))


def prepare_metadata_for_build_wheel(folder: str, settings: Settings = None) -> str:
    """Writes the metadata of the wheel to ``folder``; the name of their folder."""
    return _built(lambda: build_meta.prepare_metadata_for_build_wheel(os.path.abspath(folder), settings))


def _built(build: Callable[[], str]) -> str:
    """What ``build`` returns in a copy of the sources, laid out as in a wheel."""
    here = Path.cwd()
    version = version_of(here)
    with tempfile.TemporaryDirectory(prefix="slotproof-wheel-") as scratch, _inside(Path(scratch)), _told(version):
        lay_out(here, Path(scratch))
        return build()


def version_of(source: Path) -> str:
    """The version of the sources: of their git history, of an unpacked source distribution, or of an archive of git."""
    settings = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools_scm"]
    version: str = setuptools_scm.get_version(str(source), dist_name=HOME, **settings)
    return version


@contextmanager
def _told(version: str) -> Iterator[None]:
    before = os.environ.get(VERSION)
    os.environ[VERSION] = version
    try:
        yield
    finally:
        del os.environ[VERSION]
        if before is not None:
            os.environ[VERSION] = before


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def lay_out(source: Path, target: Path) -> None:
    """Copies the sources to ``target``, with the four folders below ``slotproof`` and every import changed."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source / HOME, target / HOME, ignore=ignored)
    for name in MOVED:
        shutil.copytree(source / name, target / HOME / name, ignore=ignored)
    for name in BESIDE:
        shutil.copy(source / name, target / name)
    shutil.copy(source / FINDINGS, target / HOME / FINDINGS.name)
    for path in sorted((target / HOME).rglob("*.py")):
        path.write_text(moved(path.read_text(encoding="utf-8"), str(path)), encoding="utf-8")


def moved(text: str, file: str = "<text>") -> str:
    """The text of a module with each import of one of the four packages changed to its place below ``slotproof``.

    ``import spec`` becomes ``from slotproof import spec``. Raises ``ValueError`` for an import that cannot be changed.
    """
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text, file)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _is_moved(node.module or ""):
            _replace(lines, node.lineno, f"from {node.module}", f"from {HOME}.{node.module}", file)
        elif isinstance(node, ast.Import) and any(_is_moved(alias.name) for alias in node.names):
            (alias, *others) = node.names
            if others or "." in alias.name:
                raise ValueError(f"{file}:{node.lineno}: write `from package import module`, which a wheel can change")
            _replace(lines, node.lineno, f"import {alias.name}", f"from {HOME} import {alias.name}", file)
    return "".join(lines)


def _is_moved(module: str) -> bool:
    return module.split(".")[0] in MOVED


def _replace(lines: list[str], number: int, old: str, new: str, file: str) -> None:
    """Replaces the beginning of a statement in the line ``number``, counted from 1."""
    line = lines[number - 1]
    if line.count(old) != 1:
        raise ValueError(f"{file}:{number}: expected {old!r} once in this line")
    lines[number - 1] = line.replace(old, new)
