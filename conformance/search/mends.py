"""Which functions of the next release mend a finding that the next release no longer shows.

``python -m conformance.search.mends mends ENGINE RELEASE NEXT BROKEN LAWFUL`` prints JSON. BROKEN are kept traces that
break the law on the release and keep it on the next one, LAWFUL are those that keep it on both.

The release is loaded, and functions that a broken trace calls, and whose text differs in the next release, are replaced
by their text there: each function alone, then all changed methods of one class, all changed functions of one file, all
changed methods of classes of which one needs what is new in another, and everything that differs in the files that the
trace calls. Of several functions as many as possible are taken back. Each attempt is made in a forked process.
Functions mend a trace where all of this holds:

- with them the trace keeps every law, and each of its operations was sent to the engine;
- each operation before the one that broke the law, and that operation too, took the transitions of the law that it
  takes on one of the two releases, the operation that broke the law those that it takes on the next one. So a function
  does not mend a trace where it makes the engine refuse a call, or do nothing, on the way to the broken step;
- with the text of this release in the place of that of the next one the trace still breaks the law as before;
- without any one of them the trace does not keep the law;
- each lawful trace that keeps the law before keeps it with these functions, too, or else with these and all others that
  it calls and that differ: what the next release has changed in step in several places breaks where it is mixed.

Names that only the next release defines in these files, or in a file from which they import them, are added where a
replaced function needs them, so that it finds what it calls, and for the control too.

This is run, not judged.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from conformance.driver.forking import forked
from conformance.driver.lockstep import CONFORMS, Law
from conformance.driver.protocol import EngineError, Json, Unsupported
from conformance.engines import registry
from conformance.engines.registry import Loaded
from conformance.search.elsewhere import ask, tell
from conformance.search.replacing import (
    Function,
    FunctionPlace,
    NewName,
    OtherRelease,
    add_needed,
    definitions,
    differs,
    kept_in_objects,
    needed,
    new_names,
    replace,
    stored_in,
    words_of,
)
from conformance.telling.tell import tell as told
from conformance.telling.where import CallRecorder, Roots
from conformance.traces import trace_files
from conformance.traces.outcome import outcome
from conformance.traces.trace_files import Kept

Places = tuple[FunctionPlace, ...]
SECONDS = 600  # that an attempt may take: an engine that was changed can hang


@dataclass(frozen=True)
class ShownTrace:
    """What a trace shows on a release. ``verdict``, ``step``, ``law``, ``kind``: see ``conformance.search.replay.row``;
    ``step`` is where an operation could not be sent, too. ``took``: for each operation that was tried how often it took
    each transition of the law, done and refused.
    """

    verdict: str
    step: int | None = None
    law: str | None = None
    kind: str | None = None
    took: Sequence[Mapping[str, int]] = ()

    @property
    def broken(self) -> tuple[str, int | None, str | None, str | None]:
        """What is broken, and where."""
        return self.verdict, self.step, self.law, self.kind


def shown(kept: Kept, loaded: Loaded) -> ShownTrace:
    """What a trace shows on the engine as it is in this process now."""
    took: list[dict[str, int]] = []
    before: Counter[str] = Counter()

    def stepped(law: Law) -> None:
        nonlocal before
        now = Counter({f"{name} {how}": times for (name, how), times in law.counts.items()})
        took.append({**(now - before)})
        before = now

    found = outcome(kept.trace, loaded.makers[kept.trace.stem], stepped=stepped)
    first = found.first
    step = found.stopped_at if first is None else first.step
    law, kind = (None, None) if first is None else (first.law, first.kind)
    return ShownTrace(found.verdict, step, law, kind, took)


def why_not(before: ShownTrace, now: ShownTrace, later: ShownTrace, steps: int) -> str:
    """Why a trace of so many steps is not mended; empty where it is. ``before``: what it shows on the release as it is;
    ``now``: with replaced functions; ``later``: on the next release.
    """
    if now.verdict != CONFORMS:
        return f"it breaks {now.law}" if now.law else "an operation cannot be sent"
    if len(now.took) != steps:
        return f"{len(now.took)} of {steps} operations were sent"
    last = before.step or 0
    for number in range(last):
        lawful = [later.took[number], *([before.took[number]] if number + 1 < last else [])]
        if now.took[number] not in lawful:
            return f"operation {number + 1} does something else than on either release"
    return ""


@dataclass
class Attempts:
    """Attempts to mend ``broken`` traces on a loaded release with functions of the next one.

    ``later``: what each trace shows on the next release, by name. ``before``: what it shows on this release, and
    ``calls``: the functions that it calls there.
    """

    loaded: Loaded
    other: OtherRelease
    broken: Sequence[Kept]
    later: Mapping[str, ShownTrace]
    before: dict[str, ShownTrace] = field(default_factory=dict)
    calls: dict[str, Places] = field(default_factory=dict)
    _names: list[NewName] | None = None
    _differing: dict[FunctionPlace, Function | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kept in self.broken:
            # In this process: what an engine imports when it is driven is loaded then, for all forked processes.
            self.before[kept.name] = shown(kept, self.loaded)
            self.calls[kept.name] = tuple(sorted(self._called(kept)))

    def _called(self, kept: Kept) -> set[FunctionPlace]:
        """The functions that are called when the engine is built and driven."""
        steps = told(kept.trace, self.loaded.makers[kept.trace.stem], self.loaded.roots)
        built = CallRecorder(Roots(self.loaded.roots))
        with built.watched():
            self.loaded.makers[kept.trace.stem](kept.trace.config)
        first, _, below = built.frames()
        frames = [*first, *below, *(frame for step in steps for frame in step.functions)]
        return {FunctionPlace(frame.file, frame.function) for frame in frames}

    @property
    def root(self) -> Path:
        """The folder of the engine's package."""
        return self.loaded.roots[0]

    def files(self, kept: Kept) -> list[str]:
        """The files of the functions that the trace calls."""
        return sorted({place.file for place in self.calls[kept.name]})

    def differing(self, place: FunctionPlace) -> Function | None:
        """The text of a function in the next release, where it differs."""
        if place not in self._differing:
            here, there = definitions(self.root / place.file).get(place.name), self.other.text(place)
            changed = here is not None and there is not None and differs(here, there)
            self._differing[place] = there if changed else None
        return self._differing[place]

    def words(self, place: FunctionPlace) -> set[str]:
        """The names that a function has in the next release, and those that the new names have which it needs."""
        node = self.differing(place)
        if node is None:
            return set()
        more = needed([(place.file, node)], self._new_names(), self.other.root)
        return words_of(node).union(*(one.words for one in more))

    def new_in(self, methods: Places) -> set[str]:
        """What the next release adds to the class of these methods: names in its body, and attributes that they set."""
        of_class = {(place.file, place.owner) for place in methods}
        found = {name for one in self._new_names() if (one.file, one.owner) in of_class for name in one.names}
        for place in methods:
            node = self.differing(place)
            found |= set() if node is None else stored_in(node) - kept_in_objects(self.root / place.file)
        return found

    def called(self, kept: Kept) -> Places:
        """The functions that the trace calls and that differ in the next release."""
        if kept.name not in self.calls:
            self.calls[kept.name] = tuple(sorted(self._called(kept)))
        return tuple(place for place in self.calls[kept.name] if self.differing(place))

    def _new_names(self) -> list[NewName]:
        """What the next release adds to the files that the broken traces call, and to what these import from."""
        if self._names is None:
            files = sorted({file for kept in self.broken for file in self.files(kept)})
            self._names = new_names(files, self.root, self.other)
        return self._names

    def with_text(self, places: Places, kept: Sequence[Kept], own: bool = False) -> dict[str, ShownTrace]:
        """What these traces show with these functions of the next release, and with the names that only these need;
        nothing where they cannot be replaced. ``own``: with the release's own text in their place, after it was
        compiled in the same way.
        """
        later = [self.other.text(place) for place in places]
        nodes = [definitions(self.root / place.file).get(place.name) for place in places] if own else later
        texts = [(place.file, node) for place, node in zip(places, later, strict=True) if node is not None]
        names = self._new_names()

        def look() -> dict[str, Json]:
            add_needed(texts, names, self.root, self.other.root)
            for place, node in zip(places, nodes, strict=True):
                if not isinstance(node, Function):
                    raise LookupError(place)
                replace(place, self.root, node)
            return {one.name: asdict(shown(one, self.loaded)) for one in kept}

        try:
            found: dict[str, Json] = forked(look, SECONDS) or {}
        except EngineError:
            return {}
        return {name: ShownTrace(**told) for name, told in found.items()}

    def mends(self, places: Places, kept: Sequence[Kept]) -> list[str]:
        """The names of those of these traces that the functions mend, by the first two rules of this module."""
        found = self.with_text(places, kept)
        return [one.name for one in kept if one.name in found and not self.why_not(one, found[one.name])]

    def why_not(self, kept: Kept, now: ShownTrace) -> str:
        """See ``why_not`` of this module."""
        return why_not(self.before[kept.name], now, self.later[kept.name], len(kept.trace.steps))

    def still_broken(self, places: Places, kept: Kept) -> bool:
        """The control: with the release's own text the trace breaks the law as before."""
        now = self.with_text(places, [kept], own=True).get(kept.name)
        return now is not None and now.broken == self.before[kept.name].broken

    def warm(self, kept: Sequence[Kept]) -> None:
        """Builds an engine for a trace of each stem, so that what it imports is loaded for all forked processes."""
        for one in {kept.trace.stem: kept for kept in kept}.values():
            with suppress(Unsupported):
                self.loaded.makers[one.trace.stem](one.trace.config)

    def lawful(self, kept: Sequence[Kept], places: Places = ()) -> list[Kept]:
        """Those of these traces that keep the law with these functions."""
        found = self.with_text(places, kept)
        return [one for one in kept if one.name in found and found[one.name].verdict == CONFORMS]


@dataclass(frozen=True)
class Mend:
    """Functions that mend a trace. ``others``: functions each of which mends it alone, too."""

    places: Places
    others: Places = ()


def found(attempts: Attempts, lawful: Sequence[Kept]) -> dict[str, Mend]:
    """What mends each trace, by name: the function that mends most of the traces where one function does it alone, else
    a few functions of which none can be left out. Traces that nothing mends are left out.
    """
    broken = attempts.broken
    called = {kept.name: attempts.called(kept) for kept in broken}
    judge = _Judge(attempts, lawful)
    alone: dict[FunctionPlace, list[Kept]] = {}
    for place in sorted({place for places in called.values() for place in places}):
        waiting = [kept for kept in broken if place in called[kept.name]]
        names = attempts.mends((place,), waiting)
        alone[place] = [kept for kept in waiting if kept.name in names and judge((place,), kept)]
    mended: dict[str, Mend] = {}
    for kept in broken:
        able = sorted((p for p in alone if kept in alone[p]), key=lambda p: (-len(alone[p]), p))
        if able:
            mended[kept.name] = Mend((able[0],), tuple(able[1:]))
    for kept in [kept for kept in broken if kept.name not in mended]:
        known = [mend.places for mend in mended.values() if len(mend.places) > 1]
        tried = [*known, *_sets(attempts, called[kept.name], attempts.files(kept))]
        if several := next((fewest for places in tried if (fewest := judge.fewest(places, kept))), None):
            mended[kept.name] = Mend(several)
    return mended


@dataclass
class _Judge:
    """The last rules of this module, for functions that mend a trace by the first ones."""

    attempts: Attempts
    lawful: Sequence[Kept]
    known: dict[Places, bool] = field(default_factory=dict)

    def __call__(self, places: Places, kept: Kept) -> bool:
        if places not in self.known:
            self.known[places] = self._spoils_nothing(places)
        return self.known[places] and self.attempts.still_broken(places, kept)

    def _spoils_nothing(self, places: Places) -> bool:
        kept = self.attempts.lawful(self.lawful, places)
        spoiled = [one for one in self.lawful if one not in kept]
        more = {one.name: tuple(dict.fromkeys((*places, *self.attempts.called(one)))) for one in spoiled}
        return all(more[one.name] != places and self.attempts.lawful([one], more[one.name]) for one in spoiled)

    def fewest(self, places: Places, kept: Kept) -> Places:
        """Those of the functions that mend the trace, of which none can be left out; none if they do not mend it."""
        if not self.attempts.mends(places, [kept]):
            return ()
        fewest = _fewest(places, lambda fewer: bool(self.attempts.mends(fewer, [kept])))
        return fewest if self(fewest, kept) else ()


def _sets(attempts: Attempts, called: Places, files: Sequence[str]) -> Iterator[Places]:
    """The functions that are tried together: the changed methods of a class, the changed functions of a file, the
    changed methods of two classes of which one needs the other, and of all that do so in a row, all changed functions
    that are called, and all of all files.
    """
    classes = dict.fromkeys((place.file, place.owner) for place in called if place.owner)
    every = {file: _changed_of(attempts, file) for file in files}
    methods = [tuple(place for place in every[file] if place.owner == owner) for file, owner in classes]
    tried = [*methods, *every.values(), *_in_step(attempts, methods)]
    tried += [called, tuple(place for places in every.values() for place in places)]
    yield from dict.fromkeys(places for places in tried if len(places) > 1)


def _in_step(attempts: Attempts, classes: Sequence[Places]) -> Iterator[Places]:
    """The methods of two classes of which one needs what is new in the other, then those of all that are so related."""
    needs = [frozenset(word for place in one for word in attempts.words(place)) for one in classes]
    gives = [attempts.new_in(one) for one in classes]
    every = range(len(classes))
    near = {n: {m for m in every if m != n and (needs[n] & gives[m] or needs[m] & gives[n])} for n in every}
    yield from (classes[n] + classes[m] for n in every for m in sorted(near[n]) if n < m)
    for n in every:
        related = [n]
        for one in related:
            related += sorted(near[one] - {*related})
        yield tuple(place for one in sorted(related) for place in classes[one])


def _changed_of(attempts: Attempts, file: str) -> Places:
    return tuple(
        place for name in definitions(attempts.root / file) if attempts.differing(place := FunctionPlace(file, name))
    )


def _fewest(places: Places, enough: Callable[[Places], bool]) -> Places:
    """Those of the functions that are enough, and of which none can be left out; halves are left out first."""
    size = len(places) // 2
    while size:
        parts = (places[:start] + places[start + size :] for start in range(0, len(places), size))
        fewer = next((part for part in parts if part and enough(part)), None)
        if fewer is None:
            size //= 2
        else:
            places, size = fewer, min(size, len(fewer) // 2)
    return places


def mends(
    loaded: Loaded, root: Path, later: Mapping[str, ShownTrace], broken: Sequence[str], lawful: Sequence[str]
) -> Json:
    """For each broken trace the ``functions`` that mend it, and the ``others`` each of which does so alone, with the
    line in which each begins in this release; and how many ``lawful`` traces were replayed with them.

    ``root``: the folder of the engine's package in the next release. ``later``: what the traces show there.
    """
    if gone := [folder for folder in (loaded.roots[0], root) if not folder.is_dir()]:
        raise EngineError(f"{gone[0]} is no folder: the source of a release is gone")
    if strange := [name for name in broken if later[name].verdict != CONFORMS]:
        raise EngineError(f"{strange[0]} breaks a law on the next release, too: docs/findings.json is out of date")
    traces = {name: trace_files.load(name) for name in (*broken, *lawful)}
    attempts = Attempts(loaded, OtherRelease(root, loaded.roots[0]), [traces[name] for name in broken], later)
    others = [traces[name] for name in lawful]
    attempts.warm(others)
    kept = attempts.lawful(others)
    by_name = found(attempts, kept)
    return {name: {**_row(attempts, by_name.get(name)), "lawful": len(kept)} for name in broken}


def _row(attempts: Attempts, mend: Mend | None) -> Json:
    def told(places: Places) -> list[Json]:
        return [
            {"file": p.file, "line": definitions(attempts.root / p.file)[p.name].lineno, "function": p.name}
            for p in places
        ]

    return {"functions": told(mend.places), "others": told(mend.others)} if mend else {"functions": [], "others": []}


def shown_by(loaded: Loaded, names: Sequence[str]) -> Json:
    """What these traces show on a release, by name, and the ``root`` of its package."""
    rows = {name: asdict(shown(trace_files.load(name), loaded)) for name in names}
    return {"root": str(loaded.roots[0]), "shown": rows}


def mends_elsewhere(engine: str, release: str, following: str, broken: Sequence[str], lawful: Sequence[str]) -> Json:
    """As ``mends``, in processes of its own. Raises ``EngineError`` if a release cannot be loaded."""
    module, what = f"{__package__}.mends", f"the mends of {engine} {release}"
    found: Json = ask(module, ["mends", engine, release, following, ",".join(broken), ",".join(lawful)], what)
    return found


def main() -> int:
    """``shown ENGINE RELEASE TRACES`` prints what traces show; ``mends ENGINE RELEASE NEXT BROKEN LAWFUL`` what mends
    them. Names of traces are separated by commas.
    """
    logging.disable()
    do, engine, release, *more = sys.argv[1:]
    if do == "shown":
        return tell(lambda: shown_by(registry.load(engine, release=release), more[0].split(",")))
    following, broken, lawful = more[0], more[1].split(","), [*filter(None, more[2].split(","))]

    def answer() -> Json:
        asked = ["shown", engine, following, ",".join(broken)]
        later = ask(f"{__package__}.mends", asked, f"replaying on {engine} {following}")
        by_name = {name: ShownTrace(**told) for name, told in later["shown"].items()}
        return mends(registry.load(engine, release=release), Path(later["root"]), by_name, broken, lawful)

    return tell(answer)


if __name__ == "__main__":
    sys.exit(main())
