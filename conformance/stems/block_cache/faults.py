"""Known kinds of bugs of schedulers with block tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from conformance.stems.fault import Fault
from impl.block_cache import BlockTable, Pass, Request, Scheduler, block_hash
from proofs import block_cache as wrong
from proofs.hints import altered, unchosen
from spec import block_cache as law
from spec.block_cache import IDLE, BlockCacheState
from spec.block_pool_state import holds
from spec.finite import Seq
from spec.finite import Set as FiniteSet
from spec.lengths import Length
from spec.logic import Number, Set, Step, but, requires

# Wrong transitions that are no mutants of the law.


def names_too_early(st: BlockCacheState, row: Number, to: Length, named: Set) -> Step[BlockCacheState]:
    """A block gets its hash, and is not computed whole."""
    step = unchosen(law.compute(st, row, to, named), "a block that gets a hash is held by the row and computed whole")
    return but(step, choice=(requires(named.all(lambda b: holds(st.pool, row, b)), "the row holds the blocks"),))


def admits_another_text(
    st: BlockCacheState, row: Number, story: Number, skipped: Number, found: Seq
) -> Step[BlockCacheState]:
    """The prefix cache finds blocks of another text for a request."""
    own = "each block found has the hash of the request's own text at its place"
    step = unchosen(law.admit(st, row, story, skipped, found), own)
    return but(step, choice=(*step.choice, requires(found.all(st.pool.blocks.has), "the blocks found are blocks")))


def finishes_with_its_count(st: BlockCacheState, row: Number) -> Step[BlockCacheState]:
    """A row gives up its blocks, and still counts its tokens as computed."""
    return altered(law.finish(st, row), whole=st.whole, rest=st.rest)


def any_block(st: BlockCacheState) -> Iterator[tuple[int, int, int, Seq]]:
    """Calls to try: a row that is not in use is admitted with any block."""
    idle = [row for row in st.pool.rows.items() if st.phase(row) == IDLE][:1]
    yield from ((row, 0, 0, Seq(found)) for row in idle for found in ([], *([b] for b in st.pool.blocks.items())))


def any_named(st: BlockCacheState) -> Iterator[tuple[Any, ...]]:
    """Calls to try: a pass after which any block of the row has its hash."""
    lawful: Any = wrong.MOVES["compute"]
    for row, to, named in lawful(st):
        yield row, to, named
        yield from ((row, to, FiniteSet([b])) for b in st.pool.blocks.items() if holds(st.pool, row, b))


CACHED = "admit allocate compute"  # the calls after which a block is found
NAMES_ANY = {"moves": {**wrong.MOVES, "compute": any_named}, "routes": {"compute": "admit allocate"}}
FINDS_ANY = {"moves": {**wrong.MOVES, "admit": any_block}, "routes": {"admit": CACHED}}
UNDER_A_PASS = {"routes": {"load": "admit allocate launch finish admit allocate"}}
UNDER_A_SEND = {"routes": {"finish": "admit allocate compute send"}}


# Faulty parts of our implementation.


class SlidesByDrafts(Scheduler):
    """A window moves on by drafts in flight, as if they were accepted."""

    def _slide(self, request: Request) -> None:
        for table in request.tables:
            table.slide(self._first(table.group, request.hoped))


class SlidesOneFurther(Scheduler):
    """A window gives up one block too many: the first one of which it still reads a part."""

    def _slide(self, request: Request) -> None:
        super()._slide(request)
        for table in request.tables:
            if table.first:
                table.slide(table.first + 1)


class HashesThenPreempts(Scheduler):
    """Running requests are served in the order in which they came to run, and their blocks get hashes at once. So a
    request that lacks blocks may preempt a less urgent one that has its pass and its hashes in this step already.
    """

    def _insert(self, queue: list[Request], request: Request) -> None:
        if queue is self.running:
            queue.append(request)
        else:
            super()._insert(queue, request)

    def _launch(self, request: Request, count: int, drafts: int) -> None:
        super()._launch(request, count, drafts)
        if self.caching:
            self._offer(request)

    def _victim(self, request: Request) -> Request | None:
        behind = [one for one in self.running if one.urgency > request.urgency]
        idle = [one for one in behind if len(one.flying) == int(one in self._made)]
        return max(idle, key=lambda one: one.urgency, default=None)

    def _preempt(self, request: Request) -> None:
        if self._made.pop(request, None):
            request.flying.pop()
        super()._preempt(request)


class OffersWholePrompt(BlockTable):
    """The whole blocks of a prompt get their hashes with its first chunk, those of later chunks among them."""

    def offer(self, hashes: Sequence[bytes], count: int) -> None:
        """Offers every block that there is a hash for."""
        del count
        super().offer(hashes, min(len(hashes), len(self.blocks)))


class SlotsForTextAlone(Scheduler):
    """A pass gets slots for its text, and none for its drafts."""

    def _reach(self, request: Request, count: int) -> int:
        return min(request.hoped + count, request.length)


class CountsRefusedDrafts(Scheduler):
    """Drafts that were refused count as computed."""

    def _keep(self, request: Request, done: Pass, tokens: list[int]) -> list[int]:
        request.computed += done.drafts - (len(tokens) - 1)
        return super()._keep(request, done, tokens)


class KeepsCountOfPreempted(Scheduler):
    """A request that was preempted goes on where it was, though its blocks are gone."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.counts: dict[Request, int] = {}

    def _preempt(self, request: Request) -> None:
        self.counts[request] = request.computed // self.whole * self.whole
        super()._preempt(request)

    def _hit(self, request: Request) -> int:
        return max(super()._hit(request), min(self.counts.get(request, 0), self._reusable(request)))


class HitsOneMore(Scheduler):
    """A hit counts one block more than the prefix cache has found."""

    def _hit(self, request: Request) -> int:
        hit = super()._hit(request)
        return min(hit + self.whole, self._reusable(request)) if hit else 0


class HitsWithoutWindow(Scheduler):
    """Of a hit, a group with a window takes the last block alone."""

    def _skipped(self, group: int, hit: int) -> int:
        return super()._skipped(group, hit) if self.windows[group] is None else max(hit // self.sizes[group] - 1, 0)


class ForgetsAborted(Scheduler):
    """The blocks of a request that is aborted while a step with it is in flight are never given back."""

    def abort(self, name: int) -> None:
        """Aborts the request, and forgets the tables that wait for its step."""
        request = self.known()[name]
        super().abort(name)
        request.tables = []


class FreesWhileLoading(Scheduler):
    """The blocks of a request that is aborted while a transfer writes into them are given back at once."""

    def abort(self, name: int) -> None:
        """Aborts the request, and gives back blocks that are still written."""
        request = self.known()[name]
        super().abort(name)
        self._give_back(request)


class FreesUnderAStep(Scheduler):
    """The blocks of a request that is aborted are given back at once, also while a step computes it."""

    def abort(self, name: int) -> None:
        """Aborts the request, and gives back blocks that a step in flight still writes."""
        request = self.known()[name]
        super().abort(name)
        if request in self.leaving and not request.transfers:
            self._give_back(request)


class FreesUnderASend(Scheduler):
    """The blocks of a request that ends are given back at once, also where another server reads them from then on."""

    def _leave(self, request: Request) -> None:
        if not request.flying:
            self._give_back(request)
        super()._leave(request)


def without_mark(before: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a block covers all tokens, and not the mark of the text, such as an adapter or a salt."""
    return block_hash(before, tokens if before else (0,))


def of_block_alone(before: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a block covers the tokens of the block, and not what comes before them."""
    return block_hash(b"block" if before else b"", tokens)


FAULTS = (
    Fault(
        name="window_moves_by_drafts",
        stem="block_cache",
        sentence="A window moves on by drafts in flight; they are refused, and the next token reads what was given up.",
        spec={"slide": wrong.slides_by_drafts},
        parts={"kind": SlidesByDrafts},
    ),
    Fault(
        name="window_loses_a_block",
        stem="block_cache",
        sentence="A group with a window gives up one block too many.",
        spec={"slide": wrong.slides_too_much},
        parts={"kind": SlidesOneFurther},
    ),
    Fault(
        name="hashed_then_preempted",
        stem="block_cache",
        sentence="Blocks get their hashes for a step in which their request is preempted before they are computed.",
        spec={"compute": names_too_early},
        parts={"kind": HashesThenPreempts},
        search=NAMES_ANY,
    ),
    Fault(
        name="chunk_offers_whole_prompt",
        stem="block_cache",
        sentence="The first chunk of a prompt gives hashes to blocks that later chunks compute.",
        spec={"compute": names_too_early},
        parts={"table": OffersWholePrompt},
        search=NAMES_ANY,
    ),
    Fault(
        name="drafts_without_slots",
        stem="block_cache",
        sentence="A pass gets no slots for its drafts.",
        spec={"compute": wrong.computes_without_slots},
        parts={"kind": SlotsForTextAlone},
        search=wrong.GOES_ON,
    ),
    Fault(
        name="refused_drafts_count",
        stem="block_cache",
        sentence="Drafts that were refused count as computed tokens.",
        spec={"compute": wrong.counts_drafts},
        parts={"kind": CountsRefusedDrafts},
    ),
    Fault(
        name="preempted_keeps_its_count",
        stem="block_cache",
        sentence="A request that was preempted goes on after the tokens that it had computed, without their blocks.",
        spec={"finish": finishes_with_its_count},
        parts={"kind": KeepsCountOfPreempted},
    ),
    Fault(
        name="hit_counts_one_more",
        stem="block_cache",
        sentence="A request counts one block more as computed than the prefix cache has found for it.",
        spec={"admit": wrong.admits_one_more},
        parts={"kind": HitsOneMore},
    ),
    Fault(
        name="hit_without_its_window",
        stem="block_cache",
        sentence="A hit is taken where a group with a window has not all that the next token reads.",
        spec={"admit": wrong.admits_too_little},
        parts={"kind": HitsWithoutWindow},
    ),
    Fault(
        name="mark_is_not_hashed",
        stem="block_cache",
        sentence="The hash of a block leaves out the adapter or salt of its text: another one's block is found.",
        spec={"admit": admits_another_text},
        parts={"hasher": without_mark},
        search=FINDS_ANY,
    ),
    Fault(
        name="scheduler_hashes_block_alone",
        stem="block_cache",
        sentence="The hash of a block covers its tokens and not those before, so that it is found after another text.",
        spec={"admit": admits_another_text},
        parts={"hasher": of_block_alone},
        search=FINDS_ANY,
    ),
    Fault(
        name="aborted_load_is_freed",
        stem="block_cache",
        sentence="A request is aborted while a transfer writes into its blocks, which are given back at once.",
        spec={"keep": wrong.frees_while_loading},
        parts={"kind": FreesWhileLoading},
    ),
    Fault(
        name="step_writes_into_load",
        stem="block_cache",
        sentence="A request is aborted, its blocks get a transfer, and a step that computed it still writes them.",
        spec={"load": wrong.loads_under_a_pass},
        parts={"kind": FreesUnderAStep},
        search=UNDER_A_PASS,
    ),
    Fault(
        name="sent_blocks_are_given_back",
        stem="block_cache",
        sentence="A request ends, and its blocks are given back while another server still reads them.",
        spec={"finish": wrong.finishes_under_a_transfer},
        parts={"kind": FreesUnderASend},
        search=UNDER_A_SEND,
    ),
    Fault(
        name="aborted_in_flight_leaks",
        stem="block_cache",
        sentence="A request that is aborted while a step with it is in flight never gives its blocks back.",
        spec={"finish": wrong.finishes_without_freeing},
        parts={"kind": ForgetsAborted},
    ),
)
