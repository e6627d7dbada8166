"""Which questions a solver has answered with ``unsat``: kept in files, so that no solver is asked a question twice.

A question is all that a solver gets: its name and version, every option, limit and seed, and the text of the formulas.
Only ``unsat`` is kept: it stays true whatever changes, while a later version or a longer search may still answer what
was ``unknown``. An entry counts only if it is whole, names this very question and was written by ``keep``; anything
else is as if it were not there, and the question is asked again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

FORMAT = 1  # of the entries; raised where the meaning of an entry changes
LONGEST_UNUSED = 60 * 24 * 3600  # seconds after which an entry that no proof used is removed
USED_AGAIN = 24 * 3600  # seconds after which the use of an entry is written down anew
ANSWER = "unsat"


@dataclass(frozen=True)
class Question:
    """All that one solver gets for one formula.

    ``solver``: its name and full version. ``asked``: the options, limits and seeds of each look, in order, as plain
    data. ``text``: the formulas as SMT-LIB.
    """

    solver: str
    asked: Sequence[Mapping[str, Any]]
    text: str

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the whole question: another question has another digest."""
        return _sum_of([FORMAT, self.solver, [dict(look) for look in self.asked], self.text])


@dataclass(frozen=True)
class AnswerMemory:
    """The questions with the answer ``unsat`` in a folder. Several processes may use one folder at a time.

    ``folder``: made where it is missing; ``None`` for a memory that keeps nothing. ``believed``: whether kept entries
    are read; if not, every question is asked anew, and what is proved is still kept. Of questions that are equal to the
    last letter, limits included, one process asks a solver once in a run (``asking.ONCE``).
    """

    folder: Path | None
    believed: bool = True

    def holds(self, question: Question) -> bool:
        """Whether this very question has been answered with ``unsat``."""
        if self.folder is None or not self.believed:
            return False
        place = self._place(question)
        try:
            text = place.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return False
        if text != _entry(question):
            return False
        _touch(place)
        return True

    def keep(self, question: Question, answer: str) -> None:
        """Keeps that the question was answered with ``unsat``; any other answer is not kept. Where the file cannot be
        written, nothing is kept: the question is asked again.
        """
        if self.folder is None or answer != ANSWER:
            return
        place = self._place(question)
        with contextlib.suppress(OSError):
            if not place.parent.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
            number, beside = tempfile.mkstemp(dir=place.parent, prefix=".", suffix=".part")  # no other writer has it
            try:
                with open(number, "w", encoding="utf-8") as file:
                    file.write(_entry(question))
                os.replace(beside, place)  # a reader sees the whole entry or none
            finally:
                Path(beside).unlink(missing_ok=True)

    def forget_unused(self) -> None:
        """Removes entries, and parts of entries, that no proof has used for two months."""
        oldest = time.time() - LONGEST_UNUSED
        for place in self.folder.glob("??/*") if self.folder is not None else ():
            with contextlib.suppress(OSError):
                if place.stat().st_mtime < oldest:
                    place.unlink()

    def _place(self, question: Question) -> Path:
        assert self.folder is not None
        digest = question.digest
        return self.folder / digest[:2] / digest[2:]


NOTHING = AnswerMemory(None)


def _entry(question: Question) -> str:
    """The text of an entry: the question's digest, what was asked of whom, and the sum of all this."""
    asked = [dict(look) for look in question.asked]
    said = {"answer": ANSWER, "asked": asked, "question": question.digest, "solver": question.solver}
    return json.dumps({**said, "sum": _sum_of(said)}, sort_keys=True) + "\n"


def _sum_of(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _touch(place: Path) -> None:
    """Writes down that the entry is used, at most once a day."""
    with contextlib.suppress(OSError):
        if time.time() - place.stat().st_mtime > USED_AGAIN:
            os.utime(place)
