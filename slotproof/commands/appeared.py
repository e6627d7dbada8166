"""Whether an engine has a release on the package index that is newer than those that Slotproof judges.

The index is asked beside the work of a command. Without a network this is said in one line, and nothing fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from threading import Thread

from packaging.version import InvalidVersion, Version

from conformance.driver.protocol import EngineError, Json
from conformance.engines import registry

PATIENCE = 10.0  # seconds that a command waits for the index when its own work is done
NO_ANSWER = "the package index has not answered"


@dataclass(frozen=True)
class Appeared:
    """What the package index says of an engine.

    ``judged``: the newest release that ``slotproof engines`` judges. ``newest``: the newest on the index; ``None``
    where that is not known, and ``why`` says why. ``newer``: whether ``newest`` is newer than all that are judged.
    """

    engine: str
    judged: str
    newest: str | None = None
    newer: bool = False
    why: str = ""

    def line(self) -> str:
        """The news in one line; empty where the newest release is judged."""
        if self.newest is None:
            return f"whether {self.engine} has a release after {self.judged} is not known: {self.why}"
        if not self.newer:
            return ""
        tries = f"`slotproof check {self.engine} --release {self.newest}`"
        return (
            f"new on the package index: {self.engine} {self.newest}; Slotproof judges releases up to {self.judged}, "
            f"{tries} tries the new one"
        )


class Looking:
    """Asks the package index for the newest release of engines, while something else is done."""

    def __init__(self, plugins: Sequence[registry.Plugin]) -> None:
        self.plugins = [plugin for plugin in plugins if plugin.releases and hasattr(plugin, "newest")]
        self.found: dict[str, Appeared] = {}
        self.thread = Thread(target=self._look, daemon=True)
        self.thread.start()

    def _look(self) -> None:
        for plugin in self.plugins:
            self.found[plugin.name] = look(plugin)

    def news(self, patience: float = PATIENCE) -> list[Appeared]:
        """What was found, for each engine that has an index; waits for the answers, but not for long."""
        self.thread.join(patience)
        return [self.found.get(p.name) or Appeared(p.name, p.releases[-1], why=NO_ANSWER) for p in self.plugins]


def look(plugin: registry.Plugin) -> Appeared:
    """What the index says of one engine."""
    judged = plugin.releases[-1]
    try:
        newest: str = getattr(plugin, "newest")()  # noqa: B009
        newer = is_newer(plugin, newest)
    except (EngineError, InvalidVersion) as error:
        return Appeared(plugin.name, judged, why=" ".join(str(error).split()))
    return Appeared(plugin.name, judged, newest, newer)


def is_newer(plugin: registry.Plugin, release: str) -> bool:
    """The release is newer than all that are judged. Raises ``InvalidVersion`` for what is no version."""
    return all(Version(release) > Version(judged) for judged in plugin.releases)


def of_engine(name: str) -> list[registry.Plugin]:
    """The engine of this name, if it has releases; empty for an engine of a user."""
    return [plugin for plugin in registry.released() if plugin.name == name]


def as_json(news: Sequence[Appeared]) -> list[Json]:
    """The news as plain data."""
    return [asdict(one) for one in news]
