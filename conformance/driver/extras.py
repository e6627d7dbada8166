"""The extras of the installation, and what is said where one is needed and is not installed.

``pip install slotproof`` brings what drives an engine in plain Python. What proves the law, and what the engines of
this package are made of, are extras: ``pip install 'slotproof[prove]'``. ``pyproject.toml`` says what each has;
``docs/adr/0046-a-light-install.md`` says why.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from conformance.driver.cache_folder import checkout
from conformance.driver.naming import UsageError

if TYPE_CHECKING:
    from packaging.requirements import Requirement  # takes 20 ms to import, and only who needs an extra asks

NAME = "slotproof"
MODULES = {"z3-solver": "z3"}  # packages whose module has another name


def must_have(who: str, *extras: str) -> None:
    """Raises ``UsageError`` with what ``lacking`` says, if it says something."""
    if said := lacking(who, *extras):
        raise UsageError(said)


def lacking(who: str, *extras: str) -> str:
    """One line that names those of the extras that are not installed, and says how to install them; empty if all are.
    Nothing is imported.

    ``who``: what needs them, the first words of the line, for example "prove" or "the engine ours".
    """
    missing = {extra: packages for extra in extras if (packages := missing_packages(extra))}
    if not missing:
        return ""
    absent = ", ".join(dict.fromkeys(package for packages in missing.values() for package in packages))
    named = " and ".join(f"'{extra}'" for extra in missing)
    what = f"the extra{'s' if len(missing) > 1 else ''} {named}"
    return f"{who} needs {what}: pip install '{NAME}[{','.join(missing)}]' (not installed: {absent})"


def missing_packages(extra: str) -> list[str]:
    """The packages of an extra whose modules cannot be found, by their names on the package index.

    A module counts and not the package's metadata, since another package may bring it: nightly builds of torch have a
    triton of their own. Raises ``KeyError`` if there is no such extra.
    """
    return [package for package in packages_of(extra) if not _is_found(module_of(package))]


def packages_of(extra: str) -> list[str]:
    """The packages that an extra brings on this machine. Raises ``KeyError`` if there is no such extra."""
    found: dict[str, None] = {}
    for needed in _requirements()[extra]:
        if _normalized(needed.name) == NAME:  # an extra that has all of another one
            found.update(dict.fromkeys(package for other in sorted(needed.extras) for package in packages_of(other)))
        else:
            found[needed.name] = None
    return list(found)


def module_of(package: str) -> str:
    """The module that a package is imported by."""
    return MODULES.get(_normalized(package), package.replace("-", "_"))


def _normalized(package: str) -> str:
    """The name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _is_found(module: str) -> bool:
    return sys.modules[module] is not None if module in sys.modules else find_spec(module) is not None


@cache
def _requirements() -> dict[str, list[Requirement]]:
    """What each extra requires on this machine: in a checkout by its ``pyproject.toml``, since what was installed may
    be older, else by the metadata of the installed package.
    """
    from packaging.requirements import Requirement

    found: dict[str, list[Requirement]] = {}
    for extra, text in _written():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            found.setdefault(extra, []).append(needed)
    return found


def _written() -> Iterator[tuple[str, str]]:
    """Each extra with each requirement that may belong to it."""
    import tomllib
    from importlib.metadata import PackageNotFoundError, metadata

    root = checkout()
    if root is not None:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        yield from ((extra, text) for extra, texts in project["optional-dependencies"].items() for text in texts)
        return
    try:
        says = metadata(NAME)
    except PackageNotFoundError as error:
        raise UsageError(f"{NAME} is not installed, and this is no checkout of it") from error
    lines = [line for line in says.get_all("Requires-Dist") or [] if "extra ==" in line]
    yield from ((extra, line) for extra in says.get_all("Provides-Extra") or [] for line in lines)
