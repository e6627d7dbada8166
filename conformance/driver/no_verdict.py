"""Reasons why a call to an engine can have no verdict, kept until the driver asks for them.

An engine may use something that is stood in for here, such as a package that is not installed. ``reason`` makes the
``EngineError`` for it. The engine's own code may catch this error, or turn it into an error of its own, and so hide it.
Therefore the reason is also kept, and ``watched`` raises it at the end of the call, whatever the engine made of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from conformance.driver.printable import first_line, message_of
from conformance.driver.protocol import EngineError

_reasons: list[str] = []


def reason(text: str) -> EngineError:
    """The error to raise where an engine uses what is stood in for. ``text``: one line that names it."""
    _reasons.append(text)
    return EngineError(text)


@contextmanager
def watched() -> Iterator[None]:
    """Raises ``EngineError`` at the end of the block if a reason was given in it, also where the engine hid it, and if
    the block imports a package that is not installed.
    """
    known = len(_reasons)
    error: Exception | None = None
    try:
        yield
    except EngineError:
        raise
    except ModuleNotFoundError as missing:
        raise EngineError(f"{first_line(message_of(missing))}: it cannot be imported here") from missing
    except Exception as raised:
        if len(_reasons) == known:
            raise
        error = raised
    if len(_reasons) > known:
        raise EngineError(_reasons[known]) from error
