"""Known causes that a subject and its base have in common, and whose repair mends both (ADR 72)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from conformance.driver.protocol import EngineError
from conformance.driver.trace import Trace
from conformance.search.connection import Connection, ToolError
from conformance.traces import cause_files, trace_files
from conformance.traces.cause_files import Cause


@dataclass(frozen=True)
class CommonCauses:
    """Of one engine the causes that both sources have, as far as their text says. ``shown``: for each cause a kept
    trace that shows it on the base. ``sockets``: of the process that serves the subject, and of that of the base.
    ``limit``: seconds after which a call hangs, ``None`` without a limit.
    """

    shown: dict[str, str]
    sockets: Sequence[str]
    limit: float | None

    def mended(self, without: Collection[str], tick: Callable[[str, Trace], None]) -> list[str]:
        """The causes, with those that must be repaired beside them, whose repair mends both the subject and the base:
        repaired, they make all calls of the trace of each cause, and break no law. ``without``: the traces that the
        subject no longer shows; their causes are left as they are. ``tick``: called with each trace before it is sent.
        """
        shown = {
            name: trace
            for name, trace in self.shown.items()
            if not {*cause_files.load(name).names_of_traces} & {*without}
        }
        together = _with_needed(shown)
        if self._is_lawful(together, shown.values(), tick):
            return together
        alone = {name: trace for name, trace in shown.items() if self._is_lawful(_with_needed([name]), [trace], tick)}
        together = _with_needed(alone)
        return together if self._is_lawful(together, alone.values(), tick) else []

    def _is_lawful(self, causes: Sequence[str], names: Iterable[str], tick: Callable[[str, Trace], None]) -> bool:
        """With these causes repaired, both sources make all calls of these traces, and break no law."""
        traces = [(name, trace_files.load(name).trace) for name in dict.fromkeys(names)]
        try:
            with ExitStack() as stack:
                for socket in self.sockets:
                    connection = stack.enter_context(Connection(socket, self.limit, causes))
                    for name, trace in traces:
                        tick(name, trace)
                        told = connection.outcome(trace)
                        if told.breaks or told.stopped:
                            return False
        except (EngineError, ToolError):
            return False
        return True


def common_causes(
    engine: str, known: Collection[str], roots: Sequence[Sequence[Path]], sockets: Sequence[str], limit: float | None
) -> CommonCauses:
    """The causes of an engine that have one of the ``known`` traces, and whose line each source has. ``roots``: by
    source, the folders of its packages.
    """

    def are_in(causes: Iterable[Cause]) -> bool:
        return all(cause.is_in(of_source) for cause in causes for of_source in roots)

    shown: dict[str, str] = {}
    for cause in (cause for cause in cause_files.every() if cause.engine == engine):
        trace = next((name for name in cause.names_of_traces if name in known), None)
        if trace is not None and are_in(map(cause_files.load, _with_needed([cause.name]))):
            shown[cause.name] = trace
    return CommonCauses(shown, sockets, limit)


def _with_needed(names: Iterable[str]) -> list[str]:
    """These causes, each behind those that are repaired beside it."""
    both = ((*cause_files.load(name).also_repaired, name) for name in names)
    return list(dict.fromkeys(name for each in both for name in each))
