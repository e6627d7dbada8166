"""What the provers need for KV events: a small world, calls to try, mutants and proof hints."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.hints import COMMON, Hints, Mutant, altered, idlers, unasked
from spec import kv_events as law
from spec.finite import Map
from spec.kv_events import NOBODY, UNSAID, KvEventsState, believed
from spec.logic import Number, Step, but, ite

SIZES = {"blocks": 2, "media": 2}


def small() -> tuple[KvEventsState, ...]:
    """Two blocks and two media, for a reader that counts and for one that keeps a set; block 2 is in no chain."""
    chained = Map(2).put((1, 1), 1)
    return tuple(law.initial(blocks=2, media=2, counting=counting, chained=chained) for counting in (True, False))


def _places(st: KvEventsState) -> Iterator[tuple[int, int]]:
    """Each block in each medium; counts stay small."""
    for block in st.blocks.items():
        yield from ((block, medium) for medium in st.media.items())


def _stored(st: KvEventsState) -> Iterator[tuple[int, int, int, int]]:
    for block, medium in _places(st):
        if st.said(block, medium) < 2:
            yield from ((block, medium, parent, text) for parent in (NOBODY, 3 - block) for text in (UNSAID, 1, 2))


MOVES = {
    "caches": lambda st: ((b, m) for b, m in _places(st) if st.copies(b, m) < 2),
    "evicts": _places,
    "resets": lambda _: [()],
    "stored": _stored,
    "removed": _places,
    "cleared": lambda _: [()],
    "begins": lambda st: [(st.next,), (st.next + 1,)] if st.next < 3 else [],
    "ends": lambda _: [()],
    "joins": lambda _: [(-1,), (0,), (2,)],
}


# Mutants: what each transition would do without one line of the law.


def ends_without_looking(st: KvEventsState) -> Step[KvEventsState]:
    """A batch ends although the reader does not believe what the pool holds."""
    return unasked(law.ends(st), "the reader believes exactly what the pool holds")


def begins_out_of_order(st: KvEventsState, batch: Number) -> Step[KvEventsState]:
    """A batch begins whose number does not follow: one was lost."""
    return unasked(law.begins(st, batch), "the number of the batch is one more than that of the batch before")


def evicts_what_is_gone(st: KvEventsState, block: Number, medium: Number) -> Step[KvEventsState]:
    """The pool loses a copy that it does not hold."""
    return unasked(law.evicts(st, block, medium), "the pool holds a copy of the block")


def counts_in_a_set(
    st: KvEventsState, block: Number, medium: Number, parent: Number, text: Number
) -> Step[KvEventsState]:
    """A reader that keeps a set counts copies."""
    said = st.said.put((block, medium), st.said(block, medium) + 1)
    return altered(law.stored(st, block, medium, parent, text), said=said)


def joins_before_the_first(st: KvEventsState, batch: Number) -> Step[KvEventsState]:
    """A reader joins with a batch that has no number."""
    return unasked(law.joins(st, batch), "batches are numbered from 0")


def stores_an_orphan(
    st: KvEventsState, block: Number, medium: Number, parent: Number, text: Number
) -> Step[KvEventsState]:
    """A stored block has a parent that the reader does not know."""
    step = law.stored(st, block, medium, parent, text)
    return unasked(step, "the parent of the stored block is believed, or it has none")


def one_hash_for_two_texts(
    st: KvEventsState, block: Number, medium: Number, parent: Number, text: Number
) -> Step[KvEventsState]:
    """One hash is stored for two texts, and the reader takes the later one."""
    step = unasked(law.stored(st, block, medium, parent, text), "the hash stands for the text that it stood for before")
    return altered(step, text=st.text.put(block, text))


def removes_the_unknown(st: KvEventsState, block: Number, medium: Number) -> Step[KvEventsState]:
    """A block is removed that the reader does not believe."""
    return unasked(law.removed(st, block, medium), "the removed block is believed")


def forgets_all_copies(st: KvEventsState, block: Number, medium: Number) -> Step[KvEventsState]:
    """A reader that counts forgets a block with the first removed event (before Dynamo PR 8012)."""
    return altered(law.removed(st, block, medium), said=st.said.put((block, medium), 0))


def believes_an_eviction(st: KvEventsState, block: Number, medium: Number) -> Step[KvEventsState]:
    """The reader hears of an eviction without an event."""
    return altered(law.evicts(st, block, medium), said=st.said.put((block, medium), 0))


def clears_the_texts(st: KvEventsState, block: Number, medium: Number) -> Step[KvEventsState]:
    """With a removed copy, the reader forgets what the hash stands for."""
    return altered(law.removed(st, block, medium), text=st.text.put(block, UNSAID))


def clears_one_medium(st: KvEventsState) -> Step[KvEventsState]:
    """Clearing is taken for one medium alone."""
    said = st.said.where(lambda _, m: m == 1, 0, lambda: [(b, 1) for b in st.blocks.items()])
    return altered(law.cleared(st), said=said)


def clears_and_misses(st: KvEventsState) -> Step[KvEventsState]:
    """After clearing, a reader that joined late still takes it that it has missed something."""
    return altered(law.cleared(st), missed=st.missed)


def made_good_by_an_event(
    st: KvEventsState, block: Number, medium: Number, parent: Number, text: Number
) -> Step[KvEventsState]:
    """A reader that joined late takes it after any stored event that it has missed nothing."""
    return altered(law.stored(st, block, medium, parent, text), missed=0)


def joins_as_the_first(st: KvEventsState, batch: Number) -> Step[KvEventsState]:
    """A reader that joins late takes it that nothing was said before."""
    return altered(law.joins(st, batch), missed=st.missed)


def misses_an_eviction(st: KvEventsState, block: Number, medium: Number) -> Step[KvEventsState]:
    """A reader has missed something after any eviction."""
    return altered(law.evicts(st, block, medium), missed=1)


def counts_a_clearing(st: KvEventsState) -> Step[KvEventsState]:
    """Clearing counts as a batch."""
    return altered(law.cleared(st), next=st.next + 1)


def resets_one_medium(st: KvEventsState) -> Step[KvEventsState]:
    """The pool keeps the blocks of one medium in a reset."""
    kept = st.copies.where(lambda _, m: m == 1, 0, lambda: [(b, 1) for b in st.blocks.items()])
    return altered(law.resets(st), copies=kept)


def evicts_in_all_media(st: KvEventsState, block: Number, medium: Number) -> Step[KvEventsState]:
    """The pool loses the block in all media."""
    copies = st.copies.where(lambda b, _: b == block, 0, lambda: [(block, m) for m in st.media.items()])
    return altered(law.evicts(st, block, medium), copies=copies)


def removing_evicts(st: KvEventsState, block: Number, medium: Number) -> Step[KvEventsState]:
    """A removed event takes a copy from the pool."""
    copies = st.copies.put((block, medium), ite(believed(st, block, medium), 0, st.copies(block, medium)))
    return altered(law.removed(st, block, medium), copies=copies)


def caches_nothing(st: KvEventsState, block: Number, medium: Number) -> Step[KvEventsState]:
    """The pool takes a copy and does not hold it."""
    return but(law.caches(st, block, medium), then=law.goes_on(st))


MUTANTS = (
    *idlers(law.stem, stored="stores_one", ends="a_batch_ends"),
    Mutant("ends_without_looking", "ends", "believes_what_is_held", ends_without_looking),
    Mutant("evicts_what_is_gone", "evicts", "counts_are_counts", evicts_what_is_gone),
    Mutant("counts_in_a_set", "stored", "a_set_has_each_once", counts_in_a_set),
    Mutant("joins_before_the_first", "joins", "yes_or_no", joins_before_the_first),
    Mutant("stores_an_orphan", "stored", "parent_is_believed", stores_an_orphan),
    Mutant("one_hash_for_two_texts", "stored", "one_text_for_a_hash", one_hash_for_two_texts),
    Mutant("removes_the_unknown", "removed", "removes_what_is_believed", removes_the_unknown),
    Mutant("forgets_all_copies", "removed", "removes_what_is_believed", forgets_all_copies),
    Mutant("believes_an_eviction", "evicts", "only_events_are_believed", believes_an_eviction),
    Mutant("clears_the_texts", "removed", "texts_are_said_once", clears_the_texts),
    Mutant("clears_one_medium", "cleared", "nothing_is_believed", clears_one_medium),
    Mutant("clears_and_misses", "cleared", "clearing_makes_good", clears_and_misses),
    Mutant("made_good_by_an_event", "stored", "nothing_else_makes_good", made_good_by_an_event),
    Mutant("joins_as_the_first", "joins", "joins_late", joins_as_the_first),
    Mutant("misses_an_eviction", "evicts", "nobody_else_misses", misses_an_eviction),
    Mutant("begins_out_of_order", "begins", "batches_are_numbered", begins_out_of_order),
    Mutant("counts_a_clearing", "cleared", "only_batches_count", counts_a_clearing),
    Mutant("caches_nothing", "caches", "holds_one_more", caches_nothing),
    Mutant("evicts_in_all_media", "evicts", "holds_one_less", evicts_in_all_media),
    Mutant("resets_one_medium", "resets", "holds_nothing", resets_one_medium),
    Mutant("removing_evicts", "removed", "events_move_no_block", removing_evicts),
)

HINTS = Hints(
    stem=law.stem,
    over={},
    sizes=SIZES,
    small=small,
    moves=MOVES,
    mutants=MUTANTS,
    assumptions=COMMON,
)
