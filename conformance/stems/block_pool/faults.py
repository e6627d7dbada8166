"""Known kinds of bugs of pools of blocks that many requests share."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from conformance.stems.fault import Fault
from impl.block_pool import BlockPool
from proofs import block_pool as wrong
from proofs.hints import altered, unchosen
from spec import block_pool as law
from spec.block_pool_state import NO_HASH, BlockPoolState, prefix_at, runs
from spec.finite import Seq
from spec.logic import Number, Set, Step, Truth, but, ite, requires

# Wrong transitions that are no mutants of the law.


def joins_another_group(st: BlockPoolState, row: Number, found: Seq) -> Step[BlockPoolState]:
    """The prefix cache finds a block of another group of layers, which has equal tokens."""
    first = st.length(row)

    def has_the_text(b: Number) -> Truth:
        at = first + found.index(b)
        return st.blocks.has(b) & (st.hash(b) != NO_HASH) & (st.hash(b) == prefix_at(st, row, at)) & (st.index(b) == at)

    step = unchosen(law.join(st, row, found), "each block found has the hash of the row's own text at its place")
    return but(step, choice=(*step.choice, requires(found.all(has_the_text), "each block found has the hash")))


def joins_and_cuts_the_queue(st: BlockPoolState, row: Number, found: Seq) -> Step[BlockPoolState]:
    """A block that is found leaves the free queue, and the block behind it is lost."""
    step = law.join(st, row, found)
    return altered(step, available=ite(step.then.available < st.available, step.then.available - 1, st.available))


def releases_twice(st: BlockPoolState, row: Number) -> Step[BlockPoolState]:
    """A block of a row that ends comes back to the free queue twice."""
    step = law.release(st, row)
    return altered(step, available=ite(step.then.available > st.available, step.then.available + 1, st.available))


def evicts_with_its_twin(st: BlockPoolState, gone: Set) -> Step[BlockPoolState]:
    """A block that is evicted from the prefix cache takes every block with its hash along."""
    lost = st.blocks.such(lambda b: st.blocks.any(lambda g: gone.has(g) & (st.hash(g) == st.hash(b))), st.blocks.items)
    return altered(law.evict(st, gone), hash=st.hash.where(lost.has, NO_HASH, st.blocks.items))


def any_block(st: BlockPoolState) -> Iterator[tuple[int, Seq]]:
    """Calls to try: a row in use goes on with any block."""
    yield from ((row, Seq([b])) for row in st.rows.items() if runs(st, row) for b in st.blocks.items())


def two_groups() -> tuple[BlockPoolState, ...]:
    """Three blocks and two rows of different groups."""
    return (law.initial(blocks=3, rows=2, indices=3, groups=2),)


FINDS_ANY = {"moves": {**wrong.MOVES, "join": any_block}, "routes": {"join": f"{wrong.CACHED} begin"}}
TWICE_CACHED = {"routes": {"evict": f"{wrong.CACHED} {wrong.CACHED}"}}


# Faulty parts of our implementation.


class CountsFirstHit(BlockPool):
    """A hit on a block that somebody holds does not count the new holder."""

    def touch(self, blocks: Sequence[int]) -> None:
        """Counts the holder of a block that was free."""
        super().touch([block for block in blocks if not self.refs[block]])


class LeavesHitsInQueue(BlockPool):
    """A hit on a free block counts its holder, and leaves the block in the free queue."""

    def touch(self, blocks: Sequence[int]) -> None:
        """Counts the holders alone."""
        for block in blocks:
            self.refs[block] += 1


class KeepsHashOfTaken(BlockPool):
    """A block that is handed out is still found under its old text."""

    def alloc(self, count: int) -> list[int] | None:
        """Gives the blocks their old hashes again."""
        old = {block: self.hash_of[block] for block in self.queue()}
        taken = super().alloc(count)
        for block in taken or ():
            if (known := old[block]) is not None:
                self.hash_of[block] = known
                self.known.setdefault(known, {})[block] = None
        return taken


class FreesForAll(BlockPool):
    """A request that ends frees its blocks for all who hold them."""

    def free(self, blocks: Sequence[int], *, kept: bool = False) -> None:
        """Frees each block, however many holders it has."""
        super().free([block for block in blocks for _ in range(self.refs[block])], kept=kept)


class FreesTwice(BlockPool):
    """The block that a request gives back first is put into the free queue again when the request has ended."""

    def free(self, blocks: Sequence[int], *, kept: bool = False) -> None:
        """Frees the blocks, and puts the first one of several into the queue once more."""
        super().free(blocks, kept=kept)
        if len(blocks) > 1 and blocks[0] and not self.refs[blocks[0]]:
            self._link(blocks[0])


class KeepsWhatHasNoHash(BlockPool):
    """Blocks without a hash, such as those of drafts, never come back to the free queue."""

    def free(self, blocks: Sequence[int], *, kept: bool = False) -> None:
        """Frees the blocks that have a hash, and forgets the others."""
        super().free([block for block in blocks if self.hash_of[block] is not None], kept=kept)
        for block in blocks:
            if self.hash_of[block] is None and block:
                self.refs[block] -= 1


class ForgetsTwins(BlockPool):
    """Where a block is evicted from the prefix cache, all blocks with its hash are."""

    def evict(self, blocks: Sequence[int]) -> None:
        """Evicts every block that has the hash of one of ``blocks``."""
        lost = {self.hash_of[block] for block in blocks} - {None}
        super().evict([twin for known in lost for twin in self.known[known]])


class ResetsInUse(BlockPool):
    """The prefix cache is reset although requests hold blocks."""

    def reset(self) -> bool:
        """Takes the hash of every block, and says that it is done."""
        self.evict(range(1, self.size + 1))
        return True


class CutsQueue(BlockPool):
    """A block that leaves the free queue from its middle takes the blocks behind it along."""

    def _unlink(self, block: int) -> None:
        """Links the block before it to the end of the queue, as if it were the last."""
        before, after = self._before[block], self._next[block]
        if before:
            after = 0
        self._next[before], self._before[after] = after, before
        self._free -= 1


def of_tokens_alone(group: int, text: tuple[int, ...]) -> Hashable:
    """The hash of a block covers the tokens of the block, and not what comes before them."""
    return group, text[-1]


def of_text_alone(group: int, text: tuple[int, ...]) -> Hashable:
    """The hash of a block does not say to which group of layers the block belongs."""
    del group
    return text


def one_too_far(first: int, last: int, length: int) -> Sequence[int]:
    """The block after the last one that is computed whole gets a hash, too."""
    return range(first, min(last + 1, length))


FAULTS = (
    Fault(
        name="hit_is_not_counted",
        stem="block_pool",
        sentence="A hit on a block that somebody holds does not count the new holder.",
        spec={"join": wrong.joins_uncounted},
        parts={"kind": CountsFirstHit},
    ),
    Fault(
        name="hit_stays_in_queue",
        stem="block_pool",
        sentence="A hit on a free block leaves the block in the free queue, so that it is handed out again.",
        spec={"join": wrong.joins_held_blocks_alone},
        parts={"kind": LeavesHitsInQueue},
    ),
    Fault(
        name="taken_block_is_found",
        stem="block_pool",
        sentence="A block that is handed out for new tokens is still found under its old hash.",
        spec={"take": wrong.takes_with_hash},
        parts={"kind": KeepsHashOfTaken},
    ),
    Fault(
        name="freed_for_all",
        stem="block_pool",
        sentence="A request that ends frees its blocks for everybody, though others still hold them.",
        spec={"release": wrong.releases_all},
        parts={"kind": FreesForAll},
    ),
    Fault(
        name="freed_twice",
        stem="block_pool",
        sentence="A block of a request that ends comes back to the free queue twice.",
        spec={"release": releases_twice},
        parts={"kind": FreesTwice},
    ),
    Fault(
        name="draft_blocks_leak",
        stem="block_pool",
        sentence="Blocks of refused drafts, which have no hash, never become free again.",
        spec={"cut": wrong.cuts_uncounted},
        parts={"kind": KeepsWhatHasNoHash},
    ),
    Fault(
        name="hash_before_computed",
        stem="block_pool",
        sentence="A block that is computed in part is found already: the count of whole blocks is one too many.",
        spec={"cache": wrong.caches_too_early},
        parts={"places": one_too_far},
    ),
    Fault(
        name="hash_of_block_alone",
        stem="block_pool",
        sentence="The hash of a block covers its own tokens and not those before: it is found for another text.",
        spec={"join": wrong.joins_another_text},
        parts={"hashes": of_tokens_alone},
        search=FINDS_ANY,
    ),
    Fault(
        name="hash_without_group",
        stem="block_pool",
        sentence="A block of another group of layers is found, since its hash does not say the group.",
        spec={"join": joins_another_group},
        parts={"hashes": of_text_alone},
        search={**FINDS_ANY, "small": two_groups},
    ),
    Fault(
        name="evicted_with_twin",
        stem="block_pool",
        sentence="Of two blocks with one hash one is evicted from the prefix cache, and the other is lost with it.",
        spec={"evict": evicts_with_its_twin},
        parts={"kind": ForgetsTwins},
        search=TWICE_CACHED,
    ),
    Fault(
        name="reset_in_use",
        stem="block_pool",
        sentence="The prefix cache is reset for new weights while requests hold blocks of the old ones.",
        spec={"reset": wrong.resets_in_use},
        parts={"kind": ResetsInUse},
    ),
    Fault(
        name="queue_is_cut",
        stem="block_pool",
        sentence="A block that leaves the middle of the free queue cuts off the blocks behind it.",
        spec={"join": joins_and_cuts_the_queue},
        parts={"kind": CutsQueue},
    ),
)
