"""What came of a broken law, as a finding says it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from conformance.driver.protocol import Json
from conformance.driver.shadow import WrongSlot

ENDED = "the engine has ended, and with it every request that it had"
NO_HARM = 2  # the rank of a broken law of which nothing came that was found
_SINCE = re.compile(r"since step (\d+)")


@dataclass(frozen=True)
class Harm:
    """What came of a broken law.

    ``request``: who reads wrong contents; empty where nobody was found to do so. ``reads``: what it reads, such as
    ``request 0's tokens``. ``of_another``: somebody else wrote what it reads. ``step``: the number of the operation in
    which it reads, counted from the first of the trace. ``where``: the slot, in words. ``onward``: the calls that were
    sent after the trace, in words. ``beside``: how many tokens another request had that was there from the first
    operation on, in pools that were larger by its pages; 0 where there was none. ``operations``: how many calls all
    plans sent. ``stops``: the first exception that the engine raised meanwhile. ``world``: how large the world was in
    which harm was looked for, in words. ``drawn``: the run before it was shrunk, if harm was found on that alone.
    ``cut_short``: the time was over before all plans were tried. ``ended``: the broken law is the end of the engine.
    """

    request: str = ""
    reads: str = ""
    of_another: bool = False
    step: int | None = None
    where: str = ""
    onward: tuple[str, ...] = ()
    beside: int = 0
    operations: int = 0
    stops: str = ""
    world: str = ""
    drawn: Json | None = None
    cut_short: bool = False
    ended: bool = False

    @classmethod
    def of(cls, wrong: WrongSlot, onward: Sequence[str] = (), operations: int = 0, beside: int = 0) -> Harm:
        """The harm that a forward pass shows. The other request that is there from the beginning comes in step 0."""
        if beside:
            reader, writer = a_step_less(wrong.reader), a_step_less(wrong.writer)
            wrong = wrong._replace(reader=reader, writer=writer, step=wrong.step - 1, written=wrong.written - 1)
        return cls(
            wrong.reader, wrong.reads, wrong.of_another, wrong.step, str(wrong), tuple(onward), beside, operations
        )

    @property
    def rank(self) -> int:
        """How grave it is: 0 where a request reads another's tokens, 1 where it reads other wrong contents or the
        engine has ended, 2 where no harm was found.
        """
        return rank_of(self.as_json())

    @property
    def sentence(self) -> str:
        """The harm in one sentence."""
        if self.request:
            where = f", of the run before it was shrunk ({self.world})" if self.drawn else ""
            return f"{self.request} reads {self.reads} in step {self.step}{where}"
        if self.ended:
            return ENDED
        if self.cut_short:
            looked = f"none found in {self.operations} operations" if self.operations else "not looked for"
            return f"{looked}, since the time was over"
        return f"none found in {self.operations} operations"

    def as_json(self) -> Json:
        """The harm as plain data, as ``docs/json.md`` says it."""
        return {"sentence": self.sentence, **asdict(self), "request": self.request or None, "reads": self.reads or None}


def a_step_less(name: str) -> str:
    """The name of a request, where the number of the step since which it is there is one less."""
    return _SINCE.sub(lambda found: f"since step {int(found[1]) - 1}", name)


def rank_of(harm: Json | None) -> int:
    """``Harm.rank`` of a harm as plain data; ``NO_HARM`` for ``None``."""
    if not harm or not (harm["request"] or harm.get("ended")):
        return NO_HARM
    return 0 if harm["of_another"] else 1


def lines_of(harm: Json | None) -> list[str]:
    """A harm as plain data in lines; none where nobody looked for one."""
    if harm is None:
        return []
    where = [harm["where"]] if harm["where"] else []
    looked = f" (looked with {harm['world']})" if harm["world"] and not harm["request"] else ""
    return [f"harm: {harm['sentence']}{looked}", *where, *(f"after the trace: {line}" for line in harm["onward"])]
