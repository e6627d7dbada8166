"""What drawn runs avoid because of known differences of an engine's releases (``conformance.traces.known``).

An exclusion is a member of an enumeration, which stands in the room of its stem (``exclusions.py``); the comment beside
it says what is avoided. Runs avoid it to find other bugs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from conformance.driver.lockstep import Finding, Ignores
from conformance.stems.found import with_file


class LookedPast(NamedTuple):
    """A finding that a run with an exclusion looks past: its law. ``where_latent``: only where the finding is
    latent.
    """

    law: str
    where_latent: bool = False


@cache
def known() -> dict[str, StrEnum]:
    """The exclusions of all stems by name."""
    return {member.value: member for module in with_file("exclusions").values() for member in module.EXCLUSIONS}


@cache
def _looked_past() -> dict[StrEnum, LookedPast]:
    modules = with_file("exclusions").values()
    return {member: past for module in modules for member, past in getattr(module, "LOOKED_PAST", {}).items()}


def looks_past(exclude: Collection[StrEnum]) -> Ignores:
    """A function that says whether a finding is known and must not end a run with these exclusions."""
    past = [found for member, found in _looked_past().items() if member in exclude]

    def ignores(finding: Finding) -> bool:
        return any(finding.law == one.law and (finding.latent or not one.where_latent) for one in past)

    return ignores


def exclusions(names: Iterable[str]) -> frozenset[StrEnum]:
    """The exclusions with these names. Raises ``ValueError`` for a name that no enumeration has."""
    asked = frozenset(names)
    unknown = sorted(asked - known().keys())
    if unknown:
        raise ValueError(f"no exclusion {', '.join(unknown)}: there are {', '.join(known())}")
    return frozenset(known()[name] for name in asked)
