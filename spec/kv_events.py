"""KV events: what the reader of an engine's event stream believes to be cached, beside what the engine's pool holds.

An engine publishes batches of events: blocks were stored, blocks were removed, all blocks were cleared. A router reads
them, and sends a request to the engine that it believes to have the request's prefix. A *block* is a hash and a group
of layers; a *medium* is where its content is, such as ``GPU`` or ``CPU``. ``copies(b, m)`` is how many copies of the
block the pool holds there. ``said(b, m)`` is what the reader has counted: a block is *believed* where it is above 0.

Two kinds of readers are known, and an engine may rely on neither alone:

- A reader that counts (``counting``) adds one for each stored event and takes one off for each removed event. Dynamo
  does so since its PR 8012, llm-d since PR 680 of its KV cache library. vLLM does not merge equal blocks: it says
  ``BlockStored`` for each copy and ``BlockRemoved`` for each copy that goes, so only a reader that counts is right
  about it.
- A reader that keeps a set forgets a block with the first removed event. It is right about engines that have each
  block once, such as SGLang's trees.

The law is one for both: the reader is right after each batch. An engine may announce a second copy or be silent about
it, as long as what it says later fits. In ``text`` the reader keeps which text a block's hash stands for, ``UNSAID``
where no event has said it. ``missed`` is 1 for a reader that joined late: it cannot tell a wrong event from one about
a block that it has not heard of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spec.finite import Domain as Range
from spec.finite import Map as FiniteMap
from spec.logic import (
    Domain,
    Map,
    Number,
    Requirement,
    Stem,
    Step,
    Truth,
    but,
    constant,
    constant_map,
    implies,
    ite,
    no,
    number,
    requires,
    total,
    zeroed,
)

NOBODY = 0  # the parent of a block that begins a text
UNSAID = 0  # the text of a block of which no event has said the text


@dataclass(frozen=True)
class KvEventsState:
    """What the pool holds, and what the reader has made of the events so far.

    ``counting``: the reader counts copies; else it keeps a set. ``chained(b, m)``: 1 where the block's group keeps
    whole prefixes in the medium, so that the block before a stored one is cached, too. Groups with a window or with
    states do not, and neither does memory that gets copies of single blocks, as vLLM's connectors make them in host
    memory.
    ``ended``: 1 where a batch has just ended. ``next``: the number of the next batch.
    """

    counting: Truth = constant("truth", shared="counting")
    blocks: Domain = constant("pages", shared="blocks")
    media: Domain = constant("pages", shared="media")
    chained: Map = constant_map(2)
    copies: Map = total(2)
    said: Map = total(2)
    text: Map = total(1)
    missed: Number = number()
    ended: Number = number()
    next: Number = number()


def initial(blocks: int, media: int, counting: bool, chained: FiniteMap) -> KvEventsState:
    """An empty pool, and a reader from the first batch on (finite reading)."""
    maps = {"copies": FiniteMap(2), "said": FiniteMap(2), "text": FiniteMap(1)}
    return start(KvEventsState(counting, Range(1, blocks), Range(1, media), chained, **maps, missed=0, ended=0, next=0))


def start(st: KvEventsState) -> KvEventsState:
    """Before the first event: the pool is empty, and the reader believes nothing and has missed nothing."""
    return zeroed(st, ("copies", "said", "text"), ("missed", "ended", "next"))


stem = Stem("kv_events", state=KvEventsState, start=start)


def believed(st: KvEventsState, block: Number, medium: Number) -> Truth:
    """The reader believes that the block is cached in the medium."""
    return st.said(block, medium) > 0


def somewhere(st: KvEventsState, block: Number) -> Truth:
    """The reader believes that the block is cached in some medium."""
    return st.blocks.has(block) & st.media.any(lambda m: believed(st, block, m))


def stands(st: KvEventsState, block: Number) -> Truth:
    """The block is believed somewhere, and its hash stands for a text that an event has said."""
    return somewhere(st, block) & (st.text(block) != UNSAID)


def everywhere(st: KvEventsState, law: Callable[[Number, Number], Truth]) -> Truth:
    """``law`` holds for each block in each medium."""
    return st.blocks.all(lambda b: st.media.all(lambda m: law(b, m)))


def exist(st: KvEventsState, block: Number, medium: Number) -> Requirement:
    """The numbers are those of a block and of a medium."""
    return requires(st.blocks.has(block) & st.media.has(medium), "the block and the medium exist")


def goes_on(st: KvEventsState) -> KvEventsState:
    """The state in which a batch is open."""
    return but(st, ended=0)


# What the pool does.


@stem.transition
def caches(st: KvEventsState, block: Number, medium: Number) -> Step[KvEventsState]:
    """The pool holds one more copy of a block."""
    copies = st.copies.put((block, medium), st.copies(block, medium) + 1)
    return Step(promises=(exist(st, block, medium),), then=but(goes_on(st), copies=copies))


@stem.transition
def evicts(st: KvEventsState, block: Number, medium: Number) -> Step[KvEventsState]:
    """The pool loses one copy of a block."""
    held = requires(st.copies(block, medium) > 0, "the pool holds a copy of the block")
    copies = st.copies.put((block, medium), st.copies(block, medium) - 1)
    return Step(promises=(exist(st, block, medium), held), then=but(goes_on(st), copies=copies))


@stem.transition
def resets(st: KvEventsState) -> Step[KvEventsState]:
    """The pool loses all blocks in all media."""
    return Step(then=but(goes_on(st), copies=st.copies.all_to(0)))


# What the engine says. Its promises are what a router relies on.


@stem.transition
def stored(st: KvEventsState, block: Number, medium: Number, parent: Number, text: Number) -> Step[KvEventsState]:
    """The engine says that a block was stored: where a group keeps whole prefixes, its parent is believed.

    A hash that is believed stands for one text. ``parent``: the block before it in the text.
    """
    asked = (st.missed == 0) & (st.chained(block, medium) == 1) & (parent != NOBODY)
    known = implies(asked, somewhere(st, parent))
    one_text = implies(stands(st, block) & (text != UNSAID), st.text(block) == text)
    texts = st.text.where(lambda b: b == block, lambda b: ite(stands(st, b), st.text(b), text), lambda: [block])
    return Step(
        promises=(
            exist(st, block, medium),
            requires(known, "the parent of the stored block is believed, or it has none"),
            requires(one_text, "the hash stands for the text that it stood for before"),
        ),
        then=but(
            goes_on(st),
            said=st.said.put((block, medium), ite(st.counting, st.said(block, medium) + 1, 1)),
            text=texts,
        ),
    )


@stem.transition
def removed(st: KvEventsState, block: Number, medium: Number) -> Step[KvEventsState]:
    """The engine says that a block was removed: the reader believed it."""
    held = believed(st, block, medium)
    left = ite(st.counting & held, st.said(block, medium) - 1, 0)
    return Step(
        promises=(
            exist(st, block, medium),
            requires(implies(st.missed == 0, held), "the removed block is believed"),
        ),
        then=but(goes_on(st), said=st.said.put((block, medium), left)),
    )


@stem.transition
def cleared(st: KvEventsState) -> Step[KvEventsState]:
    """The engine says that all blocks were cleared, in all media: the reader believes nothing, and has missed
    nothing that counts.
    """
    return Step(then=but(goes_on(st), said=st.said.all_to(0), missed=0))


@stem.transition
def begins(st: KvEventsState, batch: Number) -> Step[KvEventsState]:
    """A batch begins, whose number follows that of the batch before."""
    follows = requires(batch == st.next, "the number of the batch is one more than that of the batch before")
    return Step(promises=(follows,), then=but(goes_on(st), next=st.next + 1))


@stem.transition
def ends(st: KvEventsState) -> Step[KvEventsState]:
    """A batch ends: the reader believes exactly what the pool holds.

    No block is believed that is gone, and none is missing.
    """
    exact = everywhere(st, lambda b, m: believed(st, b, m) == (st.copies(b, m) > 0))
    return Step(
        promises=(requires(implies(st.missed == 0, exact), "the reader believes exactly what the pool holds"),),
        then=but(st, ended=1),
    )


@stem.transition
def joins(st: KvEventsState, batch: Number) -> Step[KvEventsState]:
    """A reader joins late, or after it has missed batches: it knows nothing of what was said before this batch."""
    return Step(
        promises=(requires(batch >= 0, "batches are numbered from 0"),),
        then=but(goes_on(st), said=st.said.all_to(0), missed=1, next=batch),
    )


# The laws of a state.


@stem.invariant()
def believes_what_is_held(st: KvEventsState) -> Truth:
    """When a batch has ended, a reader that has missed nothing believes a block if and only if the pool holds it."""
    exact = everywhere(st, lambda b, m: believed(st, b, m) == (st.copies(b, m) > 0))
    return implies((st.ended == 1) & (st.missed == 0), exact)


@stem.invariant()
def counts_are_counts(st: KvEventsState) -> Truth:
    """No count of copies is negative, neither the pool's nor the reader's."""
    return everywhere(st, lambda b, m: (st.copies(b, m) >= 0) & (st.said(b, m) >= 0))


@stem.invariant()
def a_set_has_each_once(st: KvEventsState) -> Truth:
    """A reader that keeps a set has each block once, or not at all."""
    return implies(no(st.counting), everywhere(st, lambda b, m: st.said(b, m) <= 1))


@stem.invariant()
def yes_or_no(st: KvEventsState) -> Truth:
    """A reader has missed something or not, a batch has ended or not, and batches are numbered from 0."""
    missed, ended = (st.missed == 0) | (st.missed == 1), (st.ended == 0) | (st.ended == 1)
    return missed & ended & (st.next >= 0)


# The laws of two states: what a router relies on.


@stem.change(only=("stored",))
def parent_is_believed(was: KvEventsState, now: KvEventsState, block: Number, medium: Number, parent: Number) -> Truth:
    """The parent of a stored block is believed at that moment, where its group keeps whole prefixes in the medium."""
    asked = (was.missed == 0) & (now.chained(block, medium) == 1) & (parent != NOBODY)
    return implies(asked, somewhere(was, parent))


@stem.change()
def one_text_for_a_hash(was: KvEventsState, now: KvEventsState) -> Truth:
    """While a block is believed, its hash stands for one text."""

    def kept(b: Number) -> Truth:
        return implies(stands(was, b) & somewhere(now, b), was.text(b) == now.text(b))

    return was.blocks.all(kept)


@stem.change(only=("removed",))
def removes_what_is_believed(was: KvEventsState, now: KvEventsState, block: Number, medium: Number) -> Truth:
    """A removed block was believed; a reader that counts takes one copy off, another one forgets the block."""
    left = ite(now.counting & believed(was, block, medium), was.said(block, medium) - 1, 0)
    return _says(was, now, block, medium, left) & implies(was.missed == 0, believed(was, block, medium))


@stem.change(only=("stored",))
def stores_one(was: KvEventsState, now: KvEventsState, block: Number, medium: Number, text: Number) -> Truth:
    """A stored block is believed, and a reader that counts adds one copy; its hash stands for the text that is said."""
    others = was.blocks.all(lambda b: implies(b != block, was.text(b) == now.text(b)))
    counted = ite(now.counting, was.said(block, medium) + 1, 1)
    says = implies(no(stands(was, block)) | (text != UNSAID), now.text(block) == text)
    return _says(was, now, block, medium, counted) & others & says


def _says(was: KvEventsState, now: KvEventsState, block: Number, medium: Number, count: Number) -> Truth:
    """The reader has this count of this block in this medium, and all other counts as before."""

    def right(b: Number, m: Number) -> Truth:
        return now.said(b, m) == ite((b == block) & (m == medium), count, was.said(b, m))

    return was.blocks.has(block) & was.media.has(medium) & everywhere(was, right)


@stem.change(besides=("stored", "removed", "cleared", "joins"))
def only_events_are_believed(was: KvEventsState, now: KvEventsState) -> Truth:
    """What the reader believes changes by events alone."""
    return everywhere(was, lambda b, m: was.said(b, m) == now.said(b, m))


@stem.change(besides=("stored",))
def texts_are_said_once(was: KvEventsState, now: KvEventsState) -> Truth:
    """What a hash stands for changes by stored events alone."""
    return was.blocks.all(lambda b: was.text(b) == now.text(b))


@stem.change(only=("cleared", "joins"))
def nothing_is_believed(was: KvEventsState, now: KvEventsState) -> Truth:
    """After clearing, the reader believes nothing; nor does a reader that joins."""
    return everywhere(was, lambda b, m: now.said(b, m) == 0)


@stem.change(only=("cleared",))
def clearing_makes_good(was: KvEventsState, now: KvEventsState) -> Truth:  # noqa: ARG001
    """After clearing, the reader knows of every block, whatever it has missed before."""
    return now.missed == 0


@stem.change(besides=("cleared",))
def nothing_else_makes_good(was: KvEventsState, now: KvEventsState) -> Truth:
    """A reader that has missed something does not know every block until all blocks are cleared."""
    return now.missed >= was.missed


@stem.change(only=("joins",))
def joins_late(was: KvEventsState, now: KvEventsState, batch: Number) -> Truth:  # noqa: ARG001
    """A reader that joins has missed something, and reads the batch that it joins with next."""
    return (now.missed == 1) & (now.next == batch)


@stem.change(besides=("joins",))
def nobody_else_misses(was: KvEventsState, now: KvEventsState) -> Truth:
    """A reader that has missed nothing goes on missing nothing."""
    return now.missed <= was.missed


@stem.change(only=("begins",))
def batches_are_numbered(was: KvEventsState, now: KvEventsState, batch: Number) -> Truth:
    """The batches are numbered one by one: none is lost."""
    return (batch == was.next) & (now.next == was.next + 1)


@stem.change(only=("ends",))
def a_batch_ends(was: KvEventsState, now: KvEventsState) -> Truth:  # noqa: ARG001
    """A batch that has ended is not open."""
    return now.ended == 1


@stem.change(besides=("begins", "joins"))
def only_batches_count(was: KvEventsState, now: KvEventsState) -> Truth:
    """The number of the next batch changes only where a batch begins, or where a reader joins."""
    return now.next == was.next


# The laws of two states: the pool.


@stem.change(only=("caches",))
def holds_one_more(was: KvEventsState, now: KvEventsState, block: Number, medium: Number) -> Truth:
    """The pool holds one more copy of this block, and all others as before."""
    return _moved(was, now, block, medium, 1)


@stem.change(only=("evicts",))
def holds_one_less(was: KvEventsState, now: KvEventsState, block: Number, medium: Number) -> Truth:
    """The pool holds one copy less of this block, and all others as before."""
    return _moved(was, now, block, medium, -1)


def _moved(was: KvEventsState, now: KvEventsState, block: Number, medium: Number, by: int) -> Truth:
    def right(b: Number, m: Number) -> Truth:
        return now.copies(b, m) == was.copies(b, m) + ite((b == block) & (m == medium), by, 0)

    return was.blocks.has(block) & was.media.has(medium) & everywhere(was, right)


@stem.change(only=("resets",))
def holds_nothing(was: KvEventsState, now: KvEventsState) -> Truth:
    """The pool holds no block."""
    return everywhere(was, lambda b, m: now.copies(b, m) == 0)


@stem.change(besides=("caches", "evicts", "resets"))
def events_move_no_block(was: KvEventsState, now: KvEventsState) -> Truth:
    """No event changes what the pool holds."""
    return everywhere(was, lambda b, m: now.copies(b, m) == was.copies(b, m))
