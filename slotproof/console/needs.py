"""What a command needs beside the packages that every installation has: a checkout of Slotproof, or extras."""

from __future__ import annotations

from pathlib import Path

from conformance.driver import cache_folder
from conformance.driver.extras import must_have
from conformance.driver.naming import UsageError
from conformance.engines import registry


def needed_checkout(command: str) -> Path:
    """The root of the checkout, whose documents the command writes. Raises ``UsageError`` in an installed package."""
    root = cache_folder.checkout()
    if root is None:
        raise UsageError(
            f"`slotproof {command}` writes the documents of the repository: it needs a checkout of Slotproof"
        )
    return root


def needed_for_documents(command: str) -> None:
    """Raises ``UsageError`` if there is no checkout, or if an extra is missing of which the documents are made: they
    show proofs, and runs of our own implementation.
    """
    needed_checkout(command)
    must_have(command, "prove", *registry.extras_of([registry.own()]))


def needed_for_releases(command: str) -> None:
    """As ``needed_for_documents``, with the extras of all engines that have releases."""
    needed_for_documents(command)
    must_have(command, *registry.extras_of(registry.released()))
