"""Where in the engine: which of its functions an operation called, and where it raised an exception or died.

The engine says in which files and folders its code is (``roots``, see ``conformance.engines.registry.Loaded``).
Functions of other code, such as torch, are left out. A place is named by its file relative to its root, as in
``mem_cache/tree.py:512 Tree.insert``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from conformance.driver.lockstep import Finding
from conformance.driver.printable import message_of
from conformance.telling.changed import Changed

SHOWN = 24  # lines of functions for one operation; functions that the driver itself calls are all shown
MESSAGE_LINES = 5
_NAMELESS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>", "<module>")
_DUMPED = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


@dataclass(frozen=True)
class Frame:
    """A function of the engine, and a line in it: where it begins if it was called, and where it was if it raised.

    ``file``: relative to the engine's root. ``depth``: 1 if the driver called it, 2 if such a function called it, and
    so on. ``times``: how often it was called in a row, each time with the same calls below it. ``changed``: whether its
    text differs from the base's; ``None`` without a base, or where the text cannot be read.
    """

    file: str
    line: int
    function: str
    depth: int = 1
    times: int = 1
    changed: bool | None = None

    def __str__(self) -> str:
        often = f" ({self.times} times)" if self.times > 1 else ""
        return f"{'  ' * (self.depth - 1)}{self.file}:{self.line} {self.function}{often}"


@dataclass(frozen=True)
class Raised:
    """An exception, or the death of the process. ``what``: its type and the first lines of its message. ``frames``: the
    engine's functions that it went through, the innermost last.
    """

    what: str
    frames: list[Frame] = field(default_factory=list)


class Roots:
    """Tells which files are the engine's. ``base``: compares its functions with the base's, where there is one."""

    def __init__(self, roots: Sequence[Path], base: Changed | None = None) -> None:
        self._roots = [root.resolve() for root in roots]
        self._known: dict[str, str | None] = {}
        self._base = base

    def relative(self, file: str) -> str | None:
        """The file relative to its root, with ``/``; ``None`` if it is not the engine's."""
        if file not in self._known:
            self._known[file] = self._relative(file)
        return self._known[file]

    def _relative(self, file: str) -> str | None:
        if file.startswith("<"):  # code that was made from a string
            return None
        path = Path(file).resolve()
        for root in self._roots:
            if path == root:
                return path.name
            if path.is_relative_to(root):
                return path.relative_to(root).as_posix()
        return None

    def frame(self, file: str, line: int, name: str, depth: int, times: int = 1) -> Frame:
        """The function of this name at this line of one of the engine's files."""
        own = self.relative(file) or ""
        changed = None if self._base is None else self._base.has(file, own, line, name)
        return Frame(own, line, name, depth, times, changed)


_Tree = tuple[tuple[int, int], ...]  # the functions that were called in turn: the number of each, and how often


class CallRecorder:
    """Records which functions of the engine are called while ``watched`` is entered.

    A function with the calls below it has a number. Two calls with equal calls below them have one number, so that a
    loop takes no more memory than one turn of it.
    """

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._numbers: dict[tuple[CodeType, _Tree], int] = {}
        self._called: list[tuple[CodeType, _Tree]] = []
        self._open: list[tuple[FrameType | None, list[list[int]]]] = [(None, [])]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Records the calls of this thread until the end of the block."""
        before = sys.getprofile()
        sys.setprofile(self._event)
        try:
            yield
        finally:
            sys.setprofile(before)
            while len(self._open) > 1:
                self._close()

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if code.co_name in _NAMELESS or self._roots.relative(code.co_filename) is None:
            return
        if event == "call":
            self._open.append((frame, []))
        elif any(frame is opened for opened, _ in self._open):  # a generator that is thrown away only returns
            while self._open[-1][0] is not frame:
                self._close()
            self._close()

    def _close(self) -> None:
        frame, below = self._open.pop()
        assert frame is not None
        key = frame.f_code, tuple((number, times) for number, times in below)
        number = self._numbers.setdefault(key, len(self._called))
        if number == len(self._called):
            self._called.append(key)
        beside = self._open[-1][1]
        if beside and beside[-1][0] == number:
            beside[-1][1] += 1
        else:
            beside.append([number, 1])

    def frames(self, shown: int = SHOWN) -> tuple[list[Frame], bool, list[Frame]]:
        """The functions in the order in which they were called, down to the greatest depth at which they are not more
        than ``shown``; whether deeper calls are left out; and the functions that only these call, each once, at its
        least depth.
        """
        level = [number for number, _ in self._open[0][1]]
        depth, lines = 0, 0
        while level and (not depth or lines + len(level) <= shown):
            depth, lines = depth + 1, lines + len(level)
            level = [below for number in level for below, _ in self._called[number][1]]
        listed = list(self._listed(self._open[0][1], 1, depth))
        below = self._deeper({code for code, _, _ in listed}, level, depth + 1)
        return [self._frame(*call) for call in listed], bool(level), below

    def _listed(self, calls: Sequence[Sequence[int]], depth: int, last: int) -> Iterator[tuple[CodeType, int, int]]:
        for number, times in calls:
            code, below = self._called[number]
            yield code, depth, times
            if depth < last:
                yield from self._listed(below, depth + 1, last)

    def _deeper(self, listed: set[CodeType], level: list[int], depth: int) -> list[Frame]:
        """The functions of the calls ``level``, which are at this depth, and of the calls below them, without those
        that are in ``listed``.
        """
        found: dict[CodeType, int] = {}
        seen: set[int] = set()
        while level:
            fresh = [number for number in dict.fromkeys(level) if number not in seen]
            seen.update(fresh)
            for code in (self._called[number][0] for number in fresh):
                if code not in listed:
                    found.setdefault(code, depth)
            level, depth = [below for number in fresh for below, _ in self._called[number][1]], depth + 1
        return [self._frame(code, at, 1) for code, at in found.items()]

    def _frame(self, code: CodeType, depth: int, times: int) -> Frame:
        return self._roots.frame(code.co_filename, code.co_firstlineno, _name(code), depth, times)


def _name(code: CodeType) -> str:
    return code.co_qualname.replace(".<locals>", "")


def raised(finding: Finding, roots: Roots) -> list[Raised]:
    """The exception of the engine that is the reason of a finding, then the exception that caused it, and so on; or how
    the process died. Empty if the engine answered.
    """
    if finding.stack:
        frames = [(file, int(line), name) for file, line, name in reversed(_DUMPED.findall(finding.stack))]
        return [Raised("the process died in", _own(frames, roots))]
    found: list[Raised] = []
    seen: set[int] = set()
    error = finding.__cause__
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        found.append(_of_exception(error, roots))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def _of_exception(error: BaseException, roots: Roots) -> Raised:
    lines = message_of(error).strip().splitlines()
    more = [f"({len(lines) - MESSAGE_LINES} more lines)"] if len(lines) > MESSAGE_LINES else []
    what = f"{type(error).__name__}: " + "\n".join([*lines[:MESSAGE_LINES], *more])
    passed = list(_of_traceback(error.__traceback__))
    frames = _own([(code.co_filename, line, _name(code)) for code, line in passed], roots)
    if passed and not frames:
        code, line = passed[-1]
        what += f" (outside the engine's code, at {Path(code.co_filename).name}:{line} {_name(code)})"
    return Raised(what, frames)


def _of_traceback(traceback: TracebackType | None) -> Iterator[tuple[CodeType, int]]:
    while traceback is not None:
        yield traceback.tb_frame.f_code, traceback.tb_lineno
        traceback = traceback.tb_next


def _own(places: Sequence[tuple[str, int, str]], roots: Roots) -> list[Frame]:
    """Those places that are in the engine's code, the outermost at depth 1."""
    own = [place for place in places if roots.relative(place[0]) is not None]
    return [roots.frame(*place, depth) for depth, place in enumerate(own, start=1)]
