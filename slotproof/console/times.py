"""Times on the command line."""

from __future__ import annotations

from conformance.driver.naming import UsageError

UNITS = {"s": 1, "m": 60, "h": 3600}
MINIMUM, MAXIMUM = 5.0, 30 * 86_400.0  # seconds


def seconds(time_: str, option: str) -> float:
    """The seconds in a time such as ``90s``, ``10m`` or ``8h``. Raises ``UsageError``, which names the option."""
    number, unit = time_[:-1], UNITS.get(time_[-1:])
    try:
        asked = float(number) * unit if unit else 0.0
    except ValueError:
        asked = 0.0
    if not MINIMUM <= asked <= MAXIMUM:
        raise UsageError(f"{option} {time_}: expected a time from 5s to 720h, such as 90s, 10m or 8h")
    return asked
