"""The reader of KV events beside the law, event by event; recorded streams; and what the command says of them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import msgpack
import pytest
from driven import Variant
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.driver.lockstep import Finding, LockStep
from conformance.driver.naming import UsageError
from conformance.driver.protocol import PublishedEvents
from conformance.engines import registry
from conformance.stems.kv_events import reader as fast
from conformance.stems.kv_events import recording
from conformance.stems.kv_events.reader import Key, Reader, WrongEvent
from conformance.stems.kv_events.texts import EMPTY, NoTokens, extended
from conformance.stems.kv_events.wire import Cleared, Event, Hash, Malformed, Removed, Stored, parsed
from conformance.stems.lock_ref.run import LockRefRun
from slotproof import cli
from slotproof.console import codes
from spec import kv_events as law
from spec.finite import Map
from spec.logic import Step

MEDIA = ("GPU", ("CPU", "LOCAL", None))
GROUPS = (None, 1)  # group 1 has a window: it is in no chain
HASHES = (5, b"\x07", 9)
BLOCKS: list[tuple[Hash, int | None]] = [(block, group) for group in GROUPS for block in HASHES]


# Beside the law.


class Oracle:
    """The law on the same events: blocks, media and texts are numbered, and texts are compared as they are."""

    def __init__(self, counting: bool, late: bool) -> None:
        chained = Map(2)
        for (number, (_, group)), medium in product(enumerate(BLOCKS, start=1), range(1, len(MEDIA) + 1)):
            chained = chained.put((number, medium), int(group is None))
        self.state = law.initial(len(BLOCKS), len(MEDIA), counting, chained)
        self.texts: dict[tuple[int, ...], int] = {}
        self.broken: str | None = None
        if late:
            self.take(law.joins(self.state, 0))

    def take(self, step: Step[law.KvEventsState], *laws: str) -> None:
        """Takes the step, or keeps the first law whose promise is false. ``laws``: one for each promise."""
        if self.broken is None:
            false = [name for name, promise in zip(laws, step.promises, strict=False) if not promise.holds]
            self.broken = false[0] if false else None
            assert step.kept is not bool(false), step.broken()
            self.state = step.then

    def event(self, event: Event) -> None:
        if isinstance(event, Cleared):
            self.take(law.cleared(self.state))
        elif isinstance(event, Removed):
            for block in event.hashes:
                self.take(law.removed(self.state, *at((event.medium, event.group, block))), "", fast.REMOVED)
        else:
            self.stored(event)

    def stored(self, event: Stored) -> None:
        before, size = event.parent, event.size
        whole = len(event.tokens) == len(event.hashes) * size
        said: tuple[int, ...] | None = () if whole else None
        if before is not None:
            number = at((event.medium, event.group, before))[0]
            stands = law.stands(self.state, number) and whole
            said = {n: text for text, n in self.texts.items()}[self.state.text(number)] if stands else None
        for k, block in enumerate(event.hashes):
            said = None if said is None else (*said, *event.tokens[k * size : k * size + size])
            text = law.UNSAID if said is None else self.texts.setdefault(said, len(self.texts) + 1)
            parent = law.NOBODY if before is None else at((event.medium, event.group, before))[0]
            step = law.stored(self.state, *at((event.medium, event.group, block)), parent, text)
            self.take(step, "", fast.PARENT, fast.TEXT)
            before = block

    def begins(self, number: int) -> None:
        self.take(law.begins(self.state, number), fast.NUMBERED)

    def ends(self) -> None:
        self.take(law.ends(self.state), fast.EXACT)

    def held(self) -> set[Key]:
        return {key for key in KEYS if self.state.copies(*at(key)) > 0}

    def believed(self) -> set[Key]:
        return {key for key in KEYS if law.believed(self.state, *at(key))}


KEYS: list[Key] = [(medium, group, block) for medium in MEDIA for block, group in BLOCKS]


def at(key: Key) -> tuple[int, int]:
    medium, group, block = key
    return BLOCKS.index((block, group)) + 1, MEDIA.index(medium) + 1


# What is drawn. A block mostly has the tokens of its hash, and mostly what is announced is what the pool does.
Drawn = tuple[str, int, int, int, int]
OPERATIONS = (
    "cache",
    "cache",
    "cache",
    "evict",
    "evict",
    "say",
    "unsay",
    "clear",
    "end",
    "end",
    "skip",
    "more",
    "pool",
)
DRAWN = st.tuples(
    st.sampled_from(OPERATIONS), st.integers(0, 11), st.integers(0, 5), st.integers(0, 19), st.integers(0, 19)
)


def tokens_of(key: Key, odd: int) -> list[int]:
    """The two tokens of a block, which its hash names; one time in twenty others, and one time too few."""
    other = [77, 78] if odd == 0 else [HASHES.index(key[2]), 3]
    return other[:1] if odd == 1 else other


def stored(key: Key, parent: int, odd: int, more: bool = False) -> Stored:
    medium, group, block = key
    before = (None, None, None, *HASHES)[parent] if odd > 2 or group == 1 else None
    hashes, tokens = [block], tokens_of(key, odd)
    if more:
        hashes.append(HASHES[parent % 3])
        tokens = [*tokens, *tokens_of((medium, group, hashes[1]), odd)]
    return Stored(hashes, before, tokens, 2, medium, group, group is None)


class Both:
    """The reader and the law, which read the same stream."""

    def __init__(self, counting: bool, late: bool) -> None:
        self.reader, self.oracle = Reader(counting, late), Oracle(counting, late)
        self.number = 0
        self.wrong: WrongEvent | None = None
        self.begin(0)

    def begin(self, gap: int) -> None:
        self.number += gap
        self.wrong = self.wrong or self.reader.begins(self.number)
        self.oracle.begins(self.number)
        self.number += 1

    def say(self, event: Event) -> None:
        self.wrong = self.wrong or self.reader.event(event)
        self.oracle.event(event)

    def pool(self, step: Step[law.KvEventsState]) -> None:
        if step.kept:
            self.oracle.state = step.then

    def do(self, drawn: Drawn) -> None:
        what, place, parent, odd, silent = drawn
        key, state = KEYS[place], self.oracle.state
        medium, group, block = key
        if what in ("cache", "more"):
            event = stored(key, parent, odd, what == "more")
            for one in event.hashes:
                self.pool(law.caches(self.oracle.state, *at((medium, group, one))))
            if silent > 1:
                self.say(event)
        elif what == "evict" and state.copies(*at(key)):
            self.pool(law.evicts(state, *at(key)))
            if silent and (state.counting or state.copies(*at(key)) == 1):
                self.say(Removed([block], medium, group))
        elif what == "say" and silent < 4:
            self.say(stored(key, parent, odd))
        elif what == "unsay" and silent < 4:
            self.say(Removed([block, block][: 1 + odd % 2], medium, group))
        elif what == "clear" and silent < 6:
            self.pool(law.resets(state))
            self.say(Cleared())
        elif what == "pool" and silent < 3:
            self.pool(law.caches(state, *at(key)))
        elif what == "end":
            self.wrong = self.wrong or self.reader.differs(self.oracle.held())
            self.oracle.ends()
            self.begin(0)
        elif what == "skip" and silent < 2:
            self.begin(1)


seen: Counter[str | None] = Counter()


@settings(max_examples=settings().max_examples * 5, report_multiple_bugs=False)
@given(st.booleans(), st.sampled_from((False, False, True)), st.lists(DRAWN, max_size=40))
def drive(counting: bool, late: bool, operations: list[Drawn]) -> None:
    both = Both(counting, late)
    for drawn in operations:
        both.do(drawn)
        found = None if both.wrong is None else both.wrong.law
        assert found == both.oracle.broken
        if found:
            break
        assert set(both.reader.believed()) == both.oracle.believed()
        assert both.reader.missed == (both.oracle.state.missed == 1)
    seen[both.oracle.broken] += 1


def test_the_reader_finds_what_the_law_finds_and_nothing_else() -> None:
    seen.clear()
    drive()
    assert set(seen) == {None, fast.PARENT, fast.TEXT, fast.REMOVED, fast.NUMBERED, fast.EXACT}, seen


@pytest.mark.soak(but=1)
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_text_before", lambda _, event, known: known.get(event.parent, (0, EMPTY))[1]),
        ("_removed", lambda *_: None),
        ("begins", lambda *_: None),
        ("differs", lambda *_: None),
    ],
)
def test_a_reader_that_overlooks_a_law_is_seen(name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reader, name, wrong)
    with pytest.raises(AssertionError):
        drive()


def test_every_law_that_the_reader_names_is_one_of_the_spec() -> None:
    for name in (fast.PARENT, fast.TEXT, fast.REMOVED, fast.NUMBERED, fast.EXACT):
        assert WrongEvent(name, "").sentence.endswith(".")


# Copies: what vLLM says, for both readers.


def block(one: int, *tokens: int, parent: int | None = None) -> Stored:
    return Stored([one], parent, list(tokens), len(tokens), "GPU", None, True)


def gone(one: int) -> Removed:
    return Removed([one], "GPU", None)


def test_a_reader_that_counts_believes_the_second_copy() -> None:
    one = Reader()
    assert [one.event(event) for event in (block(1, 5), block(1, 5), gone(1))] == [None] * 3
    assert one.differs([("GPU", None, 1)]) is None
    assert one.event(gone(1)) is None
    assert one.differs([]) is None
    wrong = one.event(gone(1))
    assert wrong is not None
    assert wrong.law == fast.REMOVED


def test_a_reader_that_keeps_a_set_misses_the_second_copy() -> None:
    one = Reader(counting=False)
    assert [one.event(event) for event in (block(1, 5), block(1, 5), gone(1))] == [None] * 3
    wrong = one.differs([("GPU", None, 1)])
    assert wrong is not None
    assert (wrong.law, wrong.detail) == (fast.EXACT, "held and not believed: 1 (GPU)")


def test_a_removal_that_is_said_for_the_last_copy_alone_is_stale_where_copies_are_counted() -> None:
    for counting, detail in ((True, "believed and gone: 1 (GPU)"), (False, None)):
        one = Reader(counting)
        assert [one.event(event) for event in (block(1, 5), block(1, 5), gone(1))] == [None] * 3
        wrong = one.differs([])
        assert (wrong and wrong.detail) == detail


# Texts.


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=12), st.integers(0, 12))
def test_how_a_text_is_divided_does_not_matter(tokens: list[int], cut: int) -> None:
    assert extended(extended(EMPTY, tokens[:cut]), tokens[cut:]) == extended(EMPTY, tokens)


@given(st.lists(st.integers(-3, 3), max_size=4), st.lists(st.integers(-3, 3), max_size=4))
def test_different_texts_have_different_numbers(one: list[int], other: list[int]) -> None:
    assert (extended(EMPTY, one) == extended(EMPTY, other)) == (one == other)


def test_pairs_of_tokens_are_a_text() -> None:
    assert extended(EMPTY, [(1, 2), (2, 3)]) == extended(EMPTY, [1, 2, 2, 3])
    for bad in (["a"], [1.5], [None], [[1, "b"]], [1 << 64]):
        with pytest.raises(NoTokens):
            extended(EMPTY, bad)


# The wire.

ARRAY = ["BlockStored", [1, 2], None, [1, 2, 3, 4], 2, None, "GPU", None, None, 3, "sliding_window", 8, "new"]
MAPPED = {
    **{"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": None, "token_ids": [1, 2, 3, 4]},
    **{"block_size": 2, "medium": "GPU", "group_idx": 3, "kv_cache_spec_kind": "sliding_window", "new": 1},
}


def test_arrays_and_maps_are_one_event() -> None:
    assert parsed(ARRAY) == parsed(MAPPED) == Stored([1, 2], None, [1, 2, 3, 4], 2, "GPU", 3, False)
    assert parsed(ARRAY[:5]) == Stored([1, 2], None, [1, 2, 3, 4], 2, None, None, True)
    for group, kind, chained in ((0, None, False), (0, "mla_attention", True), (None, None, True)):
        whole = parsed([*ARRAY[:9], group, kind])
        assert isinstance(whole, Stored)
        assert whole.chained is chained
    for medium, chained in (("GPU", True), (None, True), ("CPU", False), ("STORAGE", False)):
        copied = parsed({**MAPPED, "kv_cache_spec_kind": "full_attention", "medium": medium})
        assert isinstance(copied, Stored)
        assert copied.chained is chained
    assert parsed({**MAPPED, "token_ids": [], "block_size": 0}) == Stored([1, 2], None, [], 0, "GPU", 3, False)
    assert parsed(["BlockRemoved", [b"x"]]) == Removed([b"x"], None, None)
    assert parsed({"type": "BlockRemoved", "block_hashes": [7], "medium": "CPU", "ownership": "disk"}) == Removed(
        [7], ("CPU", None, "disk"), None
    )
    assert parsed(["AllBlocksCleared"]) == parsed({"type": "AllBlocksCleared"}) == Cleared()


@pytest.mark.parametrize(
    "raw",
    [
        *(None, 3, "AllBlocksCleared", [], {}, ["BlockMoved", [1]], ["BlockRemoved"], ["BlockRemoved", [[1]]]),
        *(["BlockRemoved", [1.5]], ["BlockRemoved", [1], 3], ["BlockRemoved", [1], "GPU", "x"], ["BlockStored", [1]]),
        *(["BlockStored", [1], 0.5, [1], 1], ["BlockStored", [1], None, [1], 0], ["BlockStored", [1], None, "ab", 1]),
        [*ARRAY[:10], 5],
    ],
)
def test_what_is_no_event_is_malformed(raw: Any) -> None:
    with pytest.raises(Malformed):
        parsed(raw)


# Recorded streams.


def packed(*objects: Any) -> bytes:
    return b"".join(map(msgpack.packb, objects))


def frame(number: int, *events: Any, rank: int | None = 0, topic: str = "kv") -> list[Any]:
    return [topic, number.to_bytes(8, "big", signed=True), msgpack.packb([1.5, [*events], rank])]


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    return tmp_path / "stream.msgpack"


def judged(path: Path, *objects: Any, **how: bool) -> recording.Judged:
    path.write_bytes(packed(*objects))
    return recording.judge(path, **how)


STORE, REMOVE, CLEAR = ["BlockStored", [1], None, [7], 1], ["BlockRemoved", [1]], ["AllBlocksCleared"]


def test_the_first_wrong_event_is_named(stream: Path) -> None:
    done = judged(stream, [1, [STORE]], [2, [REMOVE, REMOVE, STORE], 0])
    assert (done.batches, done.events) == (2, 2)  # rank 0 is another reader than none
    assert done.found is not None
    assert (done.found.batch, done.found.event, done.found.said) == (2, 2, "BlockRemoved 1")
    done = judged(stream, [1, [STORE], 0], [2, [REMOVE, REMOVE, STORE], 0])
    assert done.found is not None
    assert (done.found.batch, done.found.event, done.found.wrong.law) == (2, 3, fast.REMOVED)


def test_a_lost_batch_is_found_and_ranks_are_numbered_apart(stream: Path) -> None:
    kept = [frame(0, STORE), frame(0, STORE, rank=1), frame(1, rank=1), frame(1), frame(0, topic="other"), frame(-1)]
    assert judged(stream, *kept).found is None
    done = judged(stream, *kept, frame(3))
    assert done.found is not None
    assert (done.found.batch, done.found.event, done.found.wrong.law) == (6, None, fast.NUMBERED)


def test_a_reader_that_joins_late_judges_what_it_can(stream: Path) -> None:
    child = ["BlockStored", [4], 3, [7], 1]
    assert judged(stream, [1, [child]]).found is not None
    assert judged(stream, [1, [child, REMOVE, STORE]], late=True).found is None
    joined = judged(stream, frame(5, child, REMOVE))
    assert (joined.found, joined.late) == (None, 1)
    for after in (child, REMOVE):
        assert judged(stream, frame(5, CLEAR), frame(6, after)).found is not None
    assert judged(stream, frame(5, STORE, ["BlockStored", [1], None, [8], 1])).found is not None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file is empty"),
        (packed([1, [STORE]])[:-1], "the file ends within object 1"),
        (b"hello", "object 1 is no batch"),
        (b"\xc1", "object 1 is no msgpack"),
        (packed([1, [STORE]], [1, [["BlockMoved"]]]), "event 2, in batch 2: no event is called 'BlockMoved'"),
        (packed([1, [["BlockStored", [1], None, ["x"], 1]]]), "event 1, in batch 1: token ids are integers"),
        (packed(["kv", 0, b"\xc1"]), "object 1: its payload is no msgpack"),
        (packed(["kv", 0, msgpack.packb(["kv", 0, msgpack.packb([1, []])])]), "a number of its own"),
        (packed(["kv", 0, msgpack.packb({})]), "its payload is no batch"),
    ],
)
def test_what_is_no_stream_is_bad_usage(
    data: bytes, said: str, stream: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    stream.write_bytes(data)
    with pytest.raises(UsageError, match=str(stream)):
        recording.judge(stream)
    monkeypatch.setattr(sys, "argv", ["slotproof", "events", str(stream)])
    assert cli.run() == codes.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_file_that_cannot_be_read_is_bad_usage(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError, match="cannot be read"):
            recording.judge(path)


STREAMS = sorted((Path(__file__).parent / "kv_streams").glob("*.msgpack"))


def test_both_engines_and_both_formats_are_recorded() -> None:
    kinds = {(path.name.split("-")[0], type(batch.events[0])) for path in STREAMS for batch in recording.batches(path)}
    assert len(kinds) == 4


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_a_recorded_stream_keeps_the_law_for_a_reader_that_counts(path: Path, tmp_path: Path) -> None:
    """Two blocks of one hash in vLLM are two stored and two removed events, so a reader of a set loses one of them."""
    done = recording.judge(path)
    assert (done.found, done.late) == (None, 0)
    assert done.events > 40
    assert done.believed > 5
    of_set = recording.judge(path, counting=False).found
    assert (of_set and of_set.wrong.law) == (fast.REMOVED if path.name.startswith("vllm") else None)
    objects = list(msgpack.Unpacker(path.open("rb")))
    for at in range(1, len(objects) - 1):
        lost = judged(tmp_path / "lost", *objects[:at], *objects[at + 1 :])
        assert lost.found is not None
        assert lost.found.wrong.law == fast.NUMBERED


# In a run.


def begun(published: Any) -> LockStep:
    engine = Variant(registry.load("ours").makers["lock_ref"](CONFIG), published=published)
    return LockStep(LockRefRun(engine, CONFIG), CONFIG)


CONFIG = {
    "page_size": 1,
    "size": 8,
    "size_swa": 8,
    "size_mamba": 2,
    "window": 2,
    "components": ["full"],
    "kind": "unified",
}


@pytest.mark.parametrize(
    ("published", "law_broken", "detail"),
    [
        (PublishedEvents([], pages=[(1, 2)]), fast.EXACT, "held and not believed: the page at the end of [1, 2]"),
        (
            PublishedEvents([STORE], pages=[(7,), (7, 8)]),
            fast.EXACT,
            "held and not believed: the page at the end of [7, 8]",
        ),
        (PublishedEvents([STORE], pages=[]), fast.EXACT, "believed and gone: block 1"),
        (PublishedEvents([STORE], keys=[]), fast.EXACT, "believed and gone: 1"),
        (PublishedEvents([], keys=[("GPU", 0, b"\x0f")]), fast.EXACT, "held and not believed: 0f (GPU, group 0)"),
        (PublishedEvents([REMOVE], keys=[]), fast.REMOVED, "BlockRemoved 1: 1 is not believed"),
        (
            PublishedEvents([["BlockStored", [1], 2, [7], 1]], keys=[]),
            fast.PARENT,
            "BlockStored 1, parent 2: its parent 2",
        ),
        (PublishedEvents([["BlockGone"]], keys=[]), fast.READABLE, "no event is called 'BlockGone': ['BlockGone']"),
    ],
)
def test_what_an_engine_says_wrong_is_a_finding_of_its_run(
    published: PublishedEvents, law_broken: str, detail: str
) -> None:
    lock = begun(lambda: published)
    with pytest.raises(Finding) as caught:
        lock.do("match", tokens=[1])
    assert (caught.value.law, caught.value.latent) == (law_broken, False)
    assert caught.value.sentence == WrongEvent(law_broken, "").sentence
    assert detail in caught.value.detail
    lock.do("match", tokens=[1])  # once a law is broken, nothing more is judged


def test_an_engine_that_says_what_it_has_keeps_the_law() -> None:
    waiting: list[Any] = [[STORE, ["BlockStored", [2], 1, [8], 1]], [REMOVE, ["BlockRemoved", [2]]]]
    cached: list[Any] = [[(7,), (7, 8)], []]
    lock = begun(lambda: PublishedEvents(waiting.pop(0), pages=cached.pop(0)))
    lock.do("match", tokens=[1])
    lock.do("match", tokens=[1])
    assert waiting == []
    begun(lambda: None).do("match", tokens=[1])


# The command.


def run(*words: str) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["slotproof", "events", *words])
        yield cli.run()


def test_the_command_names_the_first_wrong_event(stream: Path, tmp_path: Path, capsys: Any) -> None:
    stream.write_bytes(packed([1, [STORE, REMOVE]], [1, [REMOVE]]))
    out = tmp_path / "found.json"
    assert [*run(str(stream), "--json", str(out))] == [codes.BROKEN]
    said = capsys.readouterr().out
    assert "event 3, in batch 2: law removes_what_is_believed is broken" in said
    assert WrongEvent(fast.REMOVED, "").sentence in " ".join(said.split())
    found = json.loads(out.read_text())
    assert found["finding"]["event"] == 3
    assert [*run(str(stream), "--format", "json")] == [codes.BROKEN]
    assert json.loads(capsys.readouterr().out) == found
    assert [*run(str(stream), "--late")] == [codes.HOLDS]
    assert "joined late" in capsys.readouterr().out


def test_the_command_judges_for_either_reader(stream: Path, capsys: Any) -> None:
    stream.write_bytes(packed([1, [STORE, STORE, REMOVE, REMOVE]]))
    assert [*run(str(stream))] == [codes.HOLDS]
    assert "counts copies" in capsys.readouterr().out
    assert [*run(str(stream), "--reader", "set")] == [codes.BROKEN]
