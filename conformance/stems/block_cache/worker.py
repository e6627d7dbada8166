"""Stand-in workers: they keep tables as an engine's workers do, and compute what a step tells them to.

A step is computed when it is completed, since only then the run says what was sampled. Nothing is lost by that: workers
compute the steps in the order in which they were sent, and nobody else writes into the blocks.

Attention layers write the slots of all tokens of a step first and then read: a group with full attention all tokens up
to the last one, a group with a window the last ``window`` tokens of each. Mamba layers do the reverse: first each pass
of a step copies the state from which it goes on to its block, then each pass reads it, and only then passes write new
states, that of a checkpoint among them. So no pass can go on from a state that the same step computes. Copies of states
to block boundaries come last. Drafts that are refused are nobody's text. The layers of an EAGLE head are left out.

Several workers compute a step together, each its own part of all blocks. What is copied into or out of blocks, each
copies by itself, and at its own moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from conformance.driver.protocol import Json
from conformance.stems.block_cache.memory import BlockMemory, Misread, WrongToken
from conformance.stems.block_cache.protocol import (
    MAMBA,
    RUNNING,
    WINDOW,
    Copies,
    Launched,
    RequestLoad,
    RequestPass,
    Tables,
    sizes_of,
)
from conformance.stems.block_pool.protocol import NULL


class Astray(Exception):
    """A step computes tokens that nobody has given to the request."""


@dataclass
class WorkerRequest:
    """What the workers know of a request.

    ``tables``: by group its blocks. ``text``, ``prefixes``: its tokens, and the number of each prefix. ``column``: the
    place of its running mamba state in the table, -1 if it has none. ``accepted``: how many tokens its last pass has
    kept, of a token and its drafts.
    """

    root: int
    tables: list[list[int]]
    text: list[int] = field(default_factory=list)
    prefixes: list[int] = field(default_factory=list)
    column: int = -1
    accepted: int = 1


@dataclass
class Job:
    """A pass that waits to be computed, with the tables that it was sent with.

    ``refused``: drafts of passes before it that were refused after it was sent. The scheduler counted them as accepted.
    """

    request: int
    request_pass: RequestPass
    tables: list[list[int]]
    refused: int = 0


class Work(NamedTuple):
    """A pass with what is known when it is computed.

    ``start``, ``known``, ``end``: it computes the tokens from ``start`` on; those up to ``known`` are the request's,
    the drafts from there on up to ``end`` were accepted. ``refused``: drafts that were not.
    """

    job: Job
    here: WorkerRequest
    start: int
    known: int
    end: int
    refused: int


class StatePlaces(NamedTuple):
    """Where the mamba states of a pass are, as places in a table of its request.

    ``source``: the state there is copied to ``target`` before the step is computed; ``None`` where the running state
    stays in its block. ``reads``: the pass goes on from the state there. ``target``: the pass leaves its state there,
    and the states after its drafts in the places that follow.
    """

    source: int | None
    reads: int
    target: int


class Workers:
    """The workers of a run. ``config``: see ``BlockCacheEngine``."""

    def __init__(self, config: Json) -> None:
        self._sizes = sizes_of(config)
        self._groups: list[Json] = config["layers"]
        self._mamba = [at for at, group in enumerate(self._groups) if group["kind"] == MAMBA]
        self._state_size = next((self._sizes[at] for at in self._mamba), 0)  # tokens of a block of states
        self._aligned = bool(config["caching"])
        self._transfers = bool(config.get("transfers", False))
        self.count: int = config.get("workers", 1)
        self._memory = BlockMemory(self._sizes, self.count)
        self._flying: deque[tuple[Launched, list[Job]]] = deque()
        self.here: dict[int, WorkerRequest] = {}
        self.marks: dict[int, int] = {}
        self.step = 0

    def comes(self, request: int, mark: int) -> None:
        """A request comes, whose text has a mark."""
        self.marks[request] = mark

    def launched(self, step: Launched) -> None:
        """A step is sent to the workers."""
        jobs = []
        for request, request_pass in step.passes.items():
            here = self._table(request, request_pass)
            jobs.append(Job(request, request_pass, [list(table) for table in here.tables]))
        if step.passes or self._transfers:
            self._flying.append((step, jobs))

    def completed(self, sampled: Mapping[int, Sequence[int]], here: Collection[int]) -> Misread | None:
        """The oldest step is computed. Returns the first slot that does not hold what a pass reads.

        ``here``: the requests that have not ended. What a pass of another request computes is thrown away, so that
        nobody minds what it reads; it writes all the more. Raises Astray if a pass computes tokens that the request
        does not have.
        """
        step, jobs = self._flying.popleft()
        self.step += 1
        loaded = {block for load in step.loads.values() for table in load.tables for block in table}
        self._memory.clear(block for block in step.zeroed if block not in loaded)  # a load may come before or after
        self._memory.copy_all(step.copies)
        works = [self._work(job, sampled.get(job.request)) for job in jobs]
        found = [each for each in self._computed(works) if each is not None and each.request in here]
        return found[0] if found else None

    def lacks(self, group: int, mark: int, text: Sequence[int], block: int) -> int | None:
        """The first token of the last block of a text that a block of a group does not hold; of a group with states the
        length of the text, where the block does not hold the state after it. ``None`` where nothing is missing.
        """
        prefixes = self._memory.prefixes(text, self._memory.root(mark))
        if group in self._mamba:
            return len(text) if self._memory.wrong_state(group, block, prefixes[-1]) is not None else None
        size = self._sizes[group]
        place = (len(text) - 1) // size
        wrong = self._memory.wrong(group, [*[NULL] * place, block], prefixes, place * size)
        return None if wrong is None else wrong.at

    # Transfers. ``worker``: the only one that copies or reads; without it all of them do.

    def received(
        self, request: int, load: RequestLoad, text: Sequence[int], end: int, worker: int | None = None
    ) -> None:
        """A transfer has written the tokens of ``text`` from its first one up to ``end`` into a request's blocks, and
        the state of the other server if all of it has come. One from host memory has copied what is there.
        """
        if load.copies:
            self.copied_from_host(load.copies, worker)
            return
        prefixes = self._prefixes(request, text)
        has = load.has or end
        for group, table in enumerate(load.tables):
            if group not in self._mamba:
                self._memory.write(group, table, load.first, prefixes[load.first : min(end, has)], worker)
            elif end == load.end:
                self._memory.write_state(group, _at(table, (has - 1) // self._sizes[group]), prefixes[has - 1], worker)

    def copied_from_host(self, copies: Copies, worker: int | None = None) -> None:
        """What is at places of host memory is in these blocks now; other tiers have the numbers below 0."""
        for place, block in copies:
            self._memory.copy(-place, block, worker)

    def copied_to_host(self, copies: Copies, worker: int | None = None) -> None:
        """What is in these blocks is at places of host memory now."""
        for block, place in copies:
            self._memory.copy(block, -place, worker)

    def forget_host(self) -> None:
        """Host memory was reset: nobody may read what it holds."""
        self._memory.forget(self._memory.below(NULL))

    def forget_places(self, places: Iterable[int], worker: int | None = None) -> None:
        """What a copy has written to these places of host memory is of before a reset."""
        self._memory.forget((-place for place in places), worker)

    def sent(self, request: int, tables: Tables, text: Sequence[int], worker: int | None = None) -> Misread | None:
        """Another server reads what the token behind ``text`` needs in these blocks. Returns the first slot that does
        not hold its token.
        """
        prefixes = self._prefixes(request, text)
        for group, table in enumerate(tables):
            is_state = group in self._mamba
            wrong = self._wrong_state if is_state else self._wrong
            if (found := wrong(group, table, prefixes, worker)) is not None:
                return self._misread(request, group, found, is_state)
        return None

    def _wrong(
        self, group: int, table: Sequence[int], prefixes: Sequence[int], worker: int | None
    ) -> WrongToken | None:
        """The first token that the token behind a text reads and that its block does not hold."""
        return self._memory.wrong(group, table, prefixes, self._first_read(group, len(prefixes)), worker)

    def _wrong_state(
        self, group: int, table: Sequence[int], prefixes: Sequence[int], worker: int | None
    ) -> WrongToken | None:
        """The length of a text, where its block does not hold the state after it."""
        count = len(prefixes)
        block = _at(table, (count - 1) // self._sizes[group])
        part = self._memory.wrong_state(group, block, prefixes[-1], worker) if count else None
        return None if part is None else WrongToken(count, block, part)

    def _first_read(self, group: int, position: int) -> int:
        """The first token that the token at a position reads in a group with attention."""
        layers = self._groups[group]
        return max(0, position - layers["window"] + 1) if layers["kind"] == WINDOW else 0

    def _prefixes(self, request: int, text: Sequence[int]) -> list[int]:
        prefixes = self._memory.prefixes(text, self._memory.root(self.marks[request]))
        for at, prefix in enumerate(prefixes):
            self._memory.named(prefix, request, at)
        return prefixes

    # Tables.

    def _table(self, request: int, request_pass: RequestPass) -> WorkerRequest:
        """What is known of a request, with its tables as the pass has them."""
        if request_pass.kind == RUNNING:
            here = self.here[request]
            for table, more in zip(here.tables, request_pass.blocks, strict=True):
                table.extend(more)
            return here
        if request not in self.here:
            self.here[request] = WorkerRequest(self._memory.root(self.marks[request]), [])
        here = self.here[request]  # an engine may call a request new again after a preemption
        here.tables = [list(table) for table in request_pass.blocks]
        return here

    # What a pass computes.

    def _work(self, job: Job, sampled: Sequence[int] | None) -> Work:
        """The pass with the tokens that were sampled after it."""
        request_pass, here = job.request_pass, self.here[job.request]
        if request_pass.kind == RUNNING:
            start = request_pass.start - job.refused
        else:
            start = request_pass.start
            here.column, here.accepted = -1, 1
            self._know(job.request, here, request_pass.text)
        known = start + request_pass.count - request_pass.drafts
        if len(here.text) < known:
            raise Astray(f"request {job.request} computes its tokens up to {known}, and has {len(here.text)}")
        if request_pass.drafts and known < len(here.text):
            raise Astray(f"drafts of request {job.request} follow {known} tokens, and it has {len(here.text)}")
        kept = 0
        if sampled is not None and request_pass.samples:
            kept = len(sampled) - 1
            self._know(job.request, here, (*here.text[:known], *sampled))
        self._refuse(job.request, request_pass.drafts - kept)
        return Work(job, here, start, known, known + kept, request_pass.drafts - kept)

    def _computed(self, works: Sequence[Work]) -> list[Misread | None]:
        """All passes of a step are computed together. Returns what each reads that is not its own: tokens, then states.

        Each phase is done for all passes before the next one begins, as workers compute them in one batch.
        """
        states = [(work, self._places(work)) for work in works] if self._mamba else []
        for work, places in states:
            self._copy_before(work, places)
        for work in works:
            self._write(work)
        misread = [self._read_states(work, places) for work, places in states]
        for work, places in states:
            self._write_states(work, places)
        found = [*(self._read(work) for work in works), *misread]
        for work, places in states:
            self._copy_after(work, places)
        return found

    def _refuse(self, request: int, drafts: int) -> None:
        """Drafts of a request are refused. The passes of the request that are in flight begin earlier by them."""
        for _, jobs in self._flying:
            for job in jobs:
                if job.request == request and job.request_pass.kind != RUNNING:
                    return
                job.refused += drafts if job.request == request else 0

    def _know(self, request: int, here: WorkerRequest, text: Sequence[int]) -> None:
        """A request has this text."""
        same = 0
        for one, other in zip(here.text, text, strict=False):
            if one != other:
                break
            same += 1
        before = here.prefixes[same - 1] if same else here.root
        more = self._memory.prefixes(text[same:], before)
        for at, prefix in enumerate(more, start=same):
            self._memory.named(prefix, request, at)
        here.text[same:] = text[same:]
        here.prefixes[same:] = more

    def _write(self, work: Work) -> None:
        """The slots of the pass's tokens get their prefixes; those of refused drafts get nobody's."""
        prefixes = [*work.here.prefixes[work.start : work.end], *self._memory.refused(work.refused, work.job.request)]
        for group, table in enumerate(work.job.tables):
            if self._groups[group]["kind"] != MAMBA:
                self._memory.write(group, table, work.start, prefixes)

    def _read(self, work: Work) -> Misread | None:
        """The first slot of attention layers that does not hold what the pass reads."""
        prefixes = work.here.prefixes[: work.end]
        for group, table in enumerate(work.job.tables):
            if group in self._mamba:
                continue
            wrong = self._memory.wrong(group, table, prefixes, self._first_read(group, work.start))
            if wrong is not None:
                return self._misread(work.job.request, group, wrong, is_state=False)
        return None

    def _misread(self, request: int, group: int, wrong: WrongToken, is_state: bool) -> Misread:
        holds, writer = self._memory.holds(wrong.block, wrong.part), self._memory.writer(wrong.block, wrong.part)
        offset = 0 if is_state else wrong.at % self._sizes[group]
        worker = self._memory.worker(wrong.part)
        return Misread(request, wrong.at, group, wrong.block, offset, is_state, holds, writer, self.step, worker)

    # Mamba states.

    def _places(self, work: Work) -> StatePlaces:
        here, old = work.here, work.here.column
        target = (work.start + work.job.request_pass.count - 1) // self._state_size if self._aligned else 0
        if old < 0:
            old = (work.start - 1) // self._state_size if self._aligned else 0
        if self._aligned and old not in (-1, target):
            return StatePlaces(old + here.accepted - 1, target, target)
        return StatePlaces(None, target + here.accepted - 1, target)

    def _copy_before(self, work: Work, places: StatePlaces) -> None:
        """The running state moves to the block in which the pass ends."""
        if places.source is not None:
            for group in self._mamba:
                table = work.job.tables[group]
                self._memory.copy(_at(table, places.source), _at(table, places.target))

    def _read_states(self, work: Work, places: StatePlaces) -> Misread | None:
        """The first state from which the pass goes on that is not the one after the request's own tokens."""
        for group in self._mamba:
            block = _at(work.job.tables[group], places.reads)
            if not work.start:
                continue
            part = self._memory.wrong_state(group, block, work.here.prefixes[work.start - 1])
            if part is not None:
                return self._misread(work.job.request, group, WrongToken(work.start, block, part), is_state=True)
        return None

    def _write_states(self, work: Work, places: StatePlaces) -> None:
        """A pass with drafts leaves the state after each of its tokens in a block of its own; one with a checkpoint
        also that state.
        """
        ends, checkpoint = range(work.known, work.end + 1), work.job.request_pass.checkpoint
        for group in self._mamba:
            if checkpoint is not None:
                tokens, place = checkpoint
                self._memory.write_state(group, _at(work.job.tables[group], place), work.here.prefixes[tokens - 1])
            refused = self._memory.refused(work.refused, work.job.request)
            after = [*(work.here.prefixes[end - 1] for end in ends), *refused]
            for place, prefix in enumerate(after, start=places.target):
                self._memory.write_state(group, _at(work.job.tables[group], place), prefix)

    def _copy_after(self, work: Work, places: StatePlaces) -> None:
        """The state at the last block boundary that the pass has reached is kept in the block that ends there."""
        here, size = work.here, self._state_size
        aligned = work.end // size * size
        here.column, here.accepted = places.target, work.end - work.known + 1
        if not self._aligned or aligned < work.known:
            return
        source, boundary = places.target + aligned - work.known, aligned // size - 1
        for group in self._mamba:
            table = work.job.tables[group]
            self._memory.copy(_at(table, source), _at(table, boundary))
        if boundary == places.target:
            here.accepted = 1


def _at(table: Sequence[int], place: int) -> int:
    return table[place] if 0 <= place < len(table) else NULL
