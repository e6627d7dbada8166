"""Makes a failing run small: fewer operations, then smaller numbers and pools, as long as it breaks the same law.

Hypothesis finds the run, and this module shrinks the recorded trace. So shrinking never ends at another law, and costs
a few replays instead of thousands of draws. A replay does not begin with the first operation where another run has done
it before (``conformance.driver.resume``). What an argument means, the operations say
(``conformance.driver.operations``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from conformance.driver.lockstep import Finding, LockStep
from conformance.driver.operations import KEY, TOKENS, kinds_of
from conformance.driver.protocol import EngineError, Json, Misuse, Unsupported
from conformance.driver.resume import Resumed
from conformance.driver.trace import Trace

SIZES = ("size", "blocks", "indices", "groups")  # how the keys of a configuration begin that say how large it is
OF_SCHEDULERS = {"batch": 1, "requests": 1, "steps_in_flight": 1, "drafts": 0, "threshold": 0}  # each with its least
OWNERS = ("request", "row")  # arguments that say whose operation it is
RENUMBERED = ("block_cache", "mamba_slots")  # stems in which the numbers of requests say nothing
PAGES, MOST_PAGES = ("size", "size_swa"), 32  # sizes that count pages, and the largest
SHORT = 16  # operations of a run that is short
Start = Callable[[Json], LockStep]
Found = tuple[Finding, Trace]
Accepts = Callable[[Finding, Trace], bool]
Owner = tuple[str, int]  # one of OWNERS, and its number


def any_run(*_: Any) -> bool:
    """Accepts every smaller run."""
    return True


def nothing() -> None:
    """Stops no search."""


def shrink(
    found: Finding,
    trace: Trace,
    start: Start,
    accepts: Accepts = any_run,
    copies: bool = True,
    before: Callable[[], object] = nothing,
) -> Found:
    """The smallest run that a greedy search finds, with its finding.

    ``start`` makes a fresh run of a configuration. ``accepts`` says of a smaller run that breaks the law whether it
    will do, for example because another engine holds the law on it. ``copies``: a run goes on from a copy of an earlier
    one, where that can be had; the smallest run is equal without. ``before`` is called before each smaller run is
    tried; what it raises ends the search.
    """
    return Shrinker(found, start, trace, accepts, copies, before).smallest(found, trace)


class Shrinker:
    """A greedy search for a smaller run that breaks the law of ``found`` in its way, such as a promise of it."""

    def __init__(
        self,
        found: Finding,
        start: Start,
        trace: Trace,
        accepts: Accepts,
        copies: bool = True,
        before: Callable[[], object] = nothing,
    ) -> None:
        self.wanted, self.resumed, self.accepts = (found.law, found.kind, found.latent), Resumed(start, copies), accepts
        self.before = before
        self.kinds = kinds_of(start(trace.config).run.operations)

    def smallest(self, found: Finding, trace: Trace) -> Found:
        """Leaves out operations and makes numbers smaller, in turn, until neither helps."""
        best: Found = (found, _cut(trace, len(trace.steps)))
        self.resumed.follow(best[1])
        for paged in self._smaller_pages(best[1]):
            best = self._shown(paged) or best
        while True:
            best = self._fewer(self._fewer_owners(best) if len(best[1].steps) > SHORT else best)
            shown = (self._shown(candidate) for candidate in self._smaller(best[1]))
            smaller = next((found for found in shown if found is not None), None)
            if smaller is None:
                return best
            best = smaller

    def _shown(self, trace: Trace) -> Found | None:
        """The finding if the run breaks the law and is accepted, with the run cut after the step that breaks it; else
        ``None``.
        """
        found = self._breaks(trace)
        if found is None or not self.accepts(*found):
            return None
        self.resumed.follow(found[1])
        return found

    def _breaks(self, trace: Trace) -> Found | None:
        self.before()
        try:
            lock = self.resumed.at(trace)
        except (Unsupported, EngineError):
            return None
        left, as_asked = trace.steps[len(lock.trace.steps) :], True
        for step in left:
            latents = len(lock.law.latents)
            try:  # where an operation was left out that this one needs, the run goes on without both
                as_asked = lock.does(step) and as_asked
            except Finding as finding:
                return (finding, _as_sent(lock)) if self._is_wanted(finding) else None
            except (Misuse, Unsupported, EngineError):
                return None  # the operation was done in part, the engine lacks it, or there is no verdict
            for latent in lock.law.latents[latents:]:
                if self._is_wanted(latent):
                    return latent, _as_sent(lock)
            if as_asked:
                self.resumed.keep(lock)
        return None

    def _is_wanted(self, finding: Finding) -> bool:
        return (finding.law, finding.kind, finding.latent) == self.wanted

    # Fewer operations.

    def _fewer_owners(self, best: Found) -> Found:
        """Leaves out all operations of each request, or row, that can be left out: of half of them at once, then of
        fewer and fewer.
        """
        left = _owners(best[1])
        length = max(1, len(left) // 2)
        while length:
            first = 0
            while first < len(left):
                out = left[first : first + length]
                shown = self._shown(_with_steps(best[1], [s for s in best[1].steps if not _is_of(s, out)]))
                if shown is None:
                    first += length
                else:
                    best, left = shown, [one for one in _owners(shown[1]) if one not in out]
            length //= 2
        return best

    def _fewer(self, best: Found) -> Found:
        """Leaves out every stretch of operations that can be left out: long stretches first, from the end of the run
        on.
        """
        count = len(best[1].steps)
        halves = (count >> n for n in range(1, count.bit_length()))
        for length in sorted({*halves, *range(1, min(count, 5))}, reverse=True):
            first = len(best[1].steps) - length
            while first >= 0:
                shown = self._shown(_without(best[1], first, length))
                best = shown or best
                first = min(first, len(best[1].steps) - length + 1) - 1 if shown or length < 5 else first - length // 2
        return best

    def _smaller(self, trace: Trace) -> Iterator[Trace]:
        """Smaller runs to try: first with two operations merged or left out, then with smaller numbers, or pages.

        A long run has so many pairs of operations that these come last.
        """
        yield from self._merged(trace)
        yield from _without_two(trace) if len(trace.steps) <= SHORT else ()
        yield from self._smaller_numbers(trace)
        yield from self._smaller_pages(trace)
        yield from _renumbered(trace) if trace.stem in RENUMBERED else ()
        yield from _without_two(trace) if len(trace.steps) > SHORT else ()

    def _merged(self, trace: Trace) -> Iterator[Trace]:
        """Runs in which two operations have become one.

        Two operations that differ only in a number of tokens become one with the sum. An operation that a later one on
        its request begins with, as a look before an admission, is merged into that one.
        """
        for first, one in enumerate(trace.steps):
            for second, other in enumerate(trace.steps[first + 1 :], start=first + 1):
                if self._begins(one, other):
                    steps = [*trace.steps[:second], {**one, **other}, *trace.steps[second + 1 :]]
                    yield _without(_with_steps(trace, steps), first, 1)
                for key in self._of_kind(other, TOKENS):
                    if isinstance(one.get(key), int) and {**one, key: 0} == {**other, key: 0}:
                        steps = [*trace.steps[:first], {**one, key: one[key] + other[key]}, *trace.steps[first + 1 :]]
                        yield _without(_with_steps(trace, steps), second, 1)

    def _begins(self, one: Json, other: Json) -> bool:
        known = self.kinds.get(other["op"], {})
        same = "request" in one and one["request"] == other.get("request") and one["op"] != other["op"]
        return same and all(name in known for name in one if name != "op")

    # Smaller numbers.

    def _of_kind(self, step: Json, kind: str) -> list[str]:
        known = self.kinds.get(step["op"], {})
        return [name for name in step if known.get(name) == kind]

    def _smaller_pages(self, trace: Trace) -> Iterator[Trace]:
        """The run with smaller and smaller pages, and with fewer tokens in proportion; it replays faster.

        Operations that count no tokens, such as decode, may need as many tokens as before: so the run is tried with
        more pages, too.
        """
        size = trace.config.get("page_size", 1)
        for parts in (2**n for n in range(1, size.bit_length())):
            window = {"window": -(-trace.config["window"] // parts)} if "window" in trace.config else {}
            steps = [{**s, **{k: _part(s[k], parts) for k in self._of_kind(s, TOKENS)}} for s in trace.steps]
            config = {**trace.config, **window, "page_size": size // parts}
            yield Trace(trace.stem, config, steps)
            more = {k: min(MOST_PAGES, v * parts) for k, v in config.items() if k in PAGES}
            yield Trace(trace.stem, {**config, **more}, steps)

    def _smaller_numbers(self, trace: Trace) -> Iterator[Trace]:
        for key, value in trace.config.items():
            if key.startswith(SIZES) and value > 1:
                yield Trace(trace.stem, {**trace.config, key: value - 1}, trace.steps)
            if value is True:
                yield Trace(trace.stem, {**trace.config, key: False}, trace.steps)
        for fewer in _less_tuned(trace.config):
            yield Trace(trace.stem, fewer, trace.steps)
        for more in _of_a_scheduler(trace.config) if "layers" in trace.config else ():
            yield Trace(trace.stem, {**trace.config, **more}, trace.steps)
        for number, step in enumerate(trace.steps):
            keys = self._of_kind(step, KEY)
            for key, value in step.items():
                for less in _shorter(value) if key in keys else _less(value):
                    yield _with_steps(trace, [*trace.steps[:number], {**step, key: less}, *trace.steps[number + 1 :]])


def _of_a_scheduler(config: Json) -> Iterator[Json]:
    """Simpler schedulers: what a smaller configuration has in the place of this one."""
    layers = config["layers"]
    yield from ({"layers": [*layers[:at], *layers[at + 1 :]]} for at in range(len(layers) if len(layers) > 1 else 0))
    if config["policy"] != "fcfs":
        yield {"policy": "fcfs"}
    for key, least in OF_SCHEDULERS.items():
        fewer = sorted({least, config[key] // 2, config[key] - 1})
        yield from ({key: less} for less in fewer if least <= less < config[key])


def _less_tuned(config: Json) -> Iterator[Json]:
    """The configuration of a scheduler without what is tuned, and without one option of that."""
    tuning: Json = config.get("tuning", {})
    if tuning:
        yield {name: value for name, value in config.items() if name != "tuning"}
    if len(tuning) > 1:
        yield from ({**config, "tuning": {k: v for k, v in tuning.items() if k != option}} for option in tuning)


def _renumbered(trace: Trace) -> Iterator[Trace]:
    """The run with its requests numbered from 0 on in the order in which they come, if they are not."""
    come = list(dict.fromkeys(step["request"] for step in trace.steps if "request" in step))
    numbers = {request: number for number, request in enumerate(come)}
    if come != list(numbers.values()):
        steps = [{**s, "request": numbers[s["request"]]} if "request" in s else dict(s) for s in trace.steps]
        yield _with_steps(trace, steps)


def _without_two(trace: Trace) -> Iterator[Trace]:
    """The run without two operations that do not follow each other."""
    count = len(trace.steps)
    for first in range(count):
        for last in range(first + 2, count):
            yield _with_steps(trace, [s for n, s in enumerate(trace.steps) if n not in (first, last)])


def _owners(trace: Trace) -> list[Owner]:
    """Whose operations the run has, in the order of their first ones."""
    return list(dict.fromkeys((key, step[key]) for step in trace.steps for key in OWNERS if key in step))


def _is_of(step: Json, owners: Collection[Owner]) -> bool:
    return any((key, step[key]) in owners for key in OWNERS if key in step)


def _with_steps(trace: Trace, steps: list[Json]) -> Trace:
    return Trace(trace.stem, dict(trace.config), steps)


def _without(trace: Trace, first: int, length: int) -> Trace:
    return _with_steps(trace, trace.steps[:first] + trace.steps[first + length :])


def _as_sent(lock: LockStep) -> Trace:
    """The operations that a run has sent so far."""
    return _cut(lock.trace, len(lock.trace.steps))


def _cut(trace: Trace, length: int) -> Trace:
    return _with_steps(trace, [dict(s) for s in trace.steps[:length]])


def _part(value: Any, parts: int) -> Any:
    return -(-value // parts) if isinstance(value, int) else value


def _less(value: Any) -> Iterator[Any]:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        yield from {0, value // 2, value - 1} - {value}
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from ([*value[:place], less, *value[place + 1 :]] for less in _less(item))


def _shorter(tokens: list[int]) -> Iterator[list[int]]:
    yield from (tokens[:length] for length in sorted({len(tokens) // 2, len(tokens) - 1} - {0, len(tokens)}))
