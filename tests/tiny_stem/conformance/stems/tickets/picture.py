"""Pictures of the desk."""

from __future__ import annotations

from conformance.driver.diff import Names
from conformance.driver.protocol import Json
from conformance.stems.panels import item, panel
from spec.tickets import TicketsState


def panels(st: TicketsState, names: Names) -> list[Json]:
    """How many tickets are out."""
    del names
    return [panel("counts", "The desk", [item("desk", "the desk", {"out": str(st.out), "of": str(st.size)})])]
