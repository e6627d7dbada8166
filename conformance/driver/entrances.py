"""Where the calls of a server begin: what a call graph of an engine starts from (``conformance.search.call_graph``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entrances:
    """Regular expressions for functions of an engine. Each has to match the whole of ``module/file.py:Class.function``,
    below the folder of the engine's package.

    ``loops``: functions that run as long as the server does. ``handlers``: functions that are called for a message of a
    client. ``tables``: functions that make the table of the handlers, where it is made at run time: each function that
    they name handles messages. ``start``: functions that build the server: what they call has been called when the
    loops begin, and what they hand on can be called later.
    """

    loops: tuple[str, ...]
    handlers: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
