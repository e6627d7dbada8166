"""Whether a chain of calls leads from a message handler or a loop of the server to what the last call of a kept trace
calls: ``python -m conformance.search.chains ENGINE RELEASE TRACE…`` prints JSON.

The trace is replayed up to the operation that breaks the law. Functions of the engine that the driver itself calls
there are looked for in the release's call graph (``conformance.search.call_graph``). Nobody can send the trace only
where no chain leads to any of them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from conformance.driver.entrances import Entrances
from conformance.driver.protocol import EngineError, Json
from conformance.engines import registry
from conformance.engines.registry import Loaded
from conformance.search.call_graph import CallChain, CallGraph
from conformance.search.elsewhere import ask, tell
from conformance.search.replacing import FunctionPlace
from conformance.telling.tell import tell as told
from conformance.traces import trace_files
from conformance.traces.outcome import outcome
from conformance.traces.trace_files import Kept

NOWHERE: Json = {"function": "", "begins": "", "chain": []}


def entrances_of(engine: str) -> Entrances:
    """Where the calls of an engine's server begin. Raises ``EngineError`` where it does not say so."""
    found: Entrances | None = getattr(registry.plugin(engine), "entrances", None)
    if found is None:
        raise EngineError(f"{engine} does not say where the calls of its server begin (entrances)")
    return found


def bookkeeping(engine: str) -> tuple[str, ...]:
    """Where an engine keeps its memory and its requests, below its package: ``Plugin.bookkeeping``, and for what is in
    host memory ``Plugin.host_bookkeeping``, where it says so.
    """
    plugin = registry.plugin(engine)
    found: tuple[str, ...] = getattr(plugin, "bookkeeping", ("",))
    return found + tuple(getattr(plugin, "host_bookkeeping", ()))


def last_called(kept: Kept, loaded: Loaded) -> list[FunctionPlace]:
    """The functions of the engine's bookkeeping that the driver calls in the operation that breaks the law, the last
    called first; without those that Python calls for an operator or a class.
    """
    first = outcome(kept.trace, loaded.makers[kept.trace.stem]).first
    steps = told(kept.trace, loaded.makers[kept.trace.stem], loaded.roots)
    broken = steps[(first.step if first else len(steps)) - 1]
    called = [FunctionPlace(frame.file, frame.function) for frame in reversed(broken.engine) if frame.depth == 1]
    own = [place for place in dict.fromkeys(called) if place.file.startswith(bookkeeping(loaded.name))]
    return [place for place in own if not place.name.rpartition(".")[2].startswith("__")]


def reach(loaded: Loaded, names: Sequence[str]) -> Json:
    """For each trace, by name: the ``function`` to which a chain of calls leads, as ``module/file.py:Class.function``;
    what the chain ``begins`` with, empty where there is none; and the functions of the ``chain``, each with its
    ``name`` and with ``by_name``, whether the call is by name alone. Where no chain leads to any of several functions
    it is the one that is called last. All is empty where the operation calls no function of the engine's Python code.
    """
    graph, entrances = CallGraph(loaded.roots[0]), entrances_of(loaded.name)
    found: Json = {}
    for kept in map(trace_files.load, names):
        known = [place for place in last_called(kept, loaded) if place in graph]
        chains = [(place, graph.chain(place, entrances)) for place in known]
        place, chain = next((one for one in chains if one[1]), chains[0] if chains else (None, None))
        found[kept.name] = NOWHERE if place is None else {"function": _told(place), **_of_chain(chain)}
    return found


def _told(place: FunctionPlace) -> str:
    return f"{place.file}:{place.name}"


def _of_chain(chain: CallChain | None) -> Json:
    if chain is None:
        return {"begins": "", "chain": []}
    first = {"name": _told(chain.first), "by_name": False}
    more = [{"name": _told(call.callee), "by_name": call.by_name} for call in chain.calls]
    return {"begins": chain.begins, "chain": [first, *more]}


def reach_elsewhere(engine: str, release: str, names: Sequence[str]) -> Json:
    """As ``reach``, in a process of its own. Raises ``EngineError`` if the release cannot be loaded."""
    found: Json = ask(f"{__package__}.chains", [engine, release, *names], f"the calls of {engine} {release}")
    return found


def main() -> int:
    """See the module."""
    logging.disable()
    engine, release, *names = sys.argv[1:]
    return tell(lambda: reach(registry.load(engine, release=release), names))


if __name__ == "__main__":
    sys.exit(main())
