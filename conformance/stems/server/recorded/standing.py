"""The law's state in which a recording begins: what a server shows that works already.

A snapshot shows which pages are free, which rows and nodes have the others, and what is locked. What it does not show
is taken as it must be: what a row has computed is the text of its request, a node's pages hold the node's own text, and
each node was put into the tree by an insert of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import immutables

from conformance.driver.lockstep import INVARIANT, Finding, LockStep, breaks
from conformance.driver.protocol import Key
from conformance.driver.shadow import FULL, SWA
from conformance.recording.server_records import STANDS, RecordedEvent
from conformance.stems.allocator.protocol import AllocatorSnapshot
from conformance.stems.cache.projection import NOTHING, RowHold
from conformance.stems.pools.calls import whole_pages
from conformance.stems.requests.request import RunRequest
from conformance.stems.server.protocol import ServedRequest
from conformance.stems.server.recorded.player import PlayedServer
from conformance.stems.server.recorded.sizes import sized
from conformance.stems.server.recorded.texts import RecordedTexts
from conformance.stems.server.run import ServerRun
from conformance.stems.session_trim.projection import ROW_OWNED, ROW_SENTENCE, owned_pages
from spec import lock_ref_state
from spec.cache_state import CacheState, home
from spec.contents import Contents
from spec.finite import Domain, Map
from spec.lengths import Length, in_pages
from spec.lock_ref_state import COUNTED, HELD, ROOT, SKIPPED, LockRefState, above_goes_on, paths_do_not_fork
from spec.logic import but
from spec.pair import Pair
from spec.pool import HELD as OWNED
from spec.pool import RELEASED, Pool
from spec.session_trim_state import RUNNING, SessionTrimState, has_gaps

BEFORE = "who computed it before the recording began"
# Laws of three nodes each. They are true of the paths of any tree, and so of the state that is read from one.
OF_PATHS = frozenset({above_goes_on.__name__, paths_do_not_fork.__name__})


class UnclearStart(Exception):
    """What a server shows leaves open what the law has to know: no judge can begin with it. The message says why."""


def stand(run: ServerRun, engine: PlayedServer, standing: RecordedEvent, texts: RecordedTexts) -> None:
    """Puts a run that has done nothing to where the server stood. ``engine`` shows what stood there. ``texts``: all
    that the recording tells.

    Raises ``Finding`` where a row has no owner, or a row or a node has a page that is not whole, and ``UnclearStart``
    where it is not told which lock holds the window of a node.
    """
    cache, seen = run.cache, run.cache.seen.rows
    cache.engine_rows = frozenset([*seen.free_rows, *(view.row for view in seen.requests.values())])
    if (lost := run.config["rows"] - len(cache.engine_rows)) > 0:
        raise Finding(ROW_OWNED, ROW_SENTENCE, f"{lost} of the engine's rows have no owner")
    cache.tree.at = {key: number for number, key in enumerate(cache.tree.seen, start=1)}
    for one in standing.requests:
        _comes(run, one.request, engine.known(one), texts)
    shown = _StandingState(run)
    run.law.state = shown.read(run.law.state)
    for pool, slots, prefixes, writer in shown.written:
        run.shadow.write(pool, slots, prefixes, writer)


def judge_standing(run: ServerRun) -> None:
    """Raises ``Finding`` if what stood there, to which ``stand`` has put the run, breaks a law."""
    whole = run.law.state
    run.law.state = _in_use(whole)
    LockStep(run, run.config, 0).judge(STANDS)
    for law in run.law.stem.invariants.values():
        if law.name not in OF_PATHS and breaks(law, run.law.state):
            run.law.report(Finding(law.name, law.sentence, "so the server stood", law.latent, INVARIANT))
    run.law.state = whole


def _in_use(st: CacheState) -> CacheState:
    """The state without the nodes, handles and places that nobody uses: every law says of them what it says of
    nothing.
    """
    pair, tree = st.rows.pools.now, st.tree
    nodes = max((n for n in tree.nodes.items() if tree.alive(n)), default=1)
    handles = max((h for h in tree.handles.items() if tree.active(h)), default=1)
    longest = max((i for pool in (pair.full, pair.swa) for (_, i), _ in pool.table.items()), default=0)
    small = sized(st, nodes, longest + 1)
    return but(small, tree=but(small.tree, handles=Domain(1, handles)))


def _comes(run: ServerRun, request: int, known: ServedRequest, texts: RecordedTexts) -> None:
    """The run has a request from now on, and the row that it has."""
    calls, text = run.calls, [*known.tokens, *known.sampled]
    run.here.add(request)
    run.forks[request] = request
    view = run.cache.rows_seen.requests.get(request)
    done = len(text) if view is None else view.lengths.committed
    if view is None or done < len(text) - 1:  # it waits, or computes again what it had computed in another row
        calls.requests[request] = RunRequest(0, text, request)
    else:  # what passes in flight sample is known later
        answer = [*known.sampled, *(texts.token(at, request) for at in range(len(text), done + 1))]
        calls.requests[request] = RunRequest(0, list(known.tokens), request, answer)
    if view is None:
        if known.sampled:
            calls.retracted.add(request)
            run.cut.add(request)
        if known.turned_away:
            calls.turned_away[request] = known.session
        return
    row = calls.row_of[request] = len(calls.row_of)
    calls.label[row] = view.row
    calls.passes.computed[request] = done


@dataclass
class _Owner:
    """A row of the law's pools: that of a request, or that of a node. ``full``, ``swa``: its pages by their index.
    ``done``: so many of its tokens are computed. ``text``: at least these tokens. ``name``: who wrote them.
    """

    row: int
    full: Mapping[int, int]
    swa: Mapping[int, int]
    length: Length
    done: int
    text: list[int]
    name: str


@dataclass
class _StandingState:
    """Reads the law's state from what is shown. ``written``: what slots hold, as arguments of ``Shadow.write``."""

    run: ServerRun
    written: list[tuple[str, list[int], list[int], str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        cache = self.run.cache
        self.size, self.numbers, self.nodes = cache.tree.page_size, cache.tree.at, cache.tree.seen
        self.seen, self.rows = cache.seen, cache.calls.used()
        self.requests = {row: request for request, row in cache.calls.row_of.items()}
        self.mapping = self.seen.rows.pools.mapping

    def read(self, st: CacheState) -> CacheState:
        """The state that is shown. ``st``: the law's state before the first call."""
        owners = [*self._owners_of_nodes(st), *self._owners_of_rows(st)]
        pair = self._pair(st.rows.pools.now, owners)
        held = {row: self.run.cache.held("request", request) for row, request in self.requests.items()}
        held = {row: one for row, one in held.items() if one != NOTHING and one.node in self.numbers.values()}
        handle = {row: number for number, row in enumerate(held, start=1)}
        tree = self._tree(st.tree, {handle[row]: one for row, one in held.items()})
        reads = {
            (row, i): page
            for row, view in self.rows.items()
            for i, page in enumerate(whole_pages(view.slots, self.size, f"row {row}"))
        }
        return but(
            st,
            rows=self._rows(but(st.rows, pools=but(st.rows.pools, now=pair))),
            tree=tree,
            contents=self._contents(st.contents, owners),
            handle=_put(st.handle, handle),
            holder=_put(st.holder, {number: row + 1 for row, number in handle.items()}),
            reads=_put(st.reads, reads),
            cover=_put(st.cover, {(n, i): a for key, n in self.numbers.items() for i, a in self._path(key)}),
            inserts=len(self.numbers),
        )

    # Who has which pages.

    def _owners_of_nodes(self, st: CacheState) -> Iterator[_Owner]:
        for key, number in self.numbers.items():
            full, swa = self._pages_of(key, "full"), self._pages_of(key, "swa")
            yield _Owner(home(st, number), full, swa, in_pages(len(key), self.size), len(key), list(key), BEFORE)

    def _pages_of(self, key: Key, side: str) -> dict[int, int]:
        """The pages of a part of a node, by their index; none where the tree has no such parts."""
        part = self.nodes[key].parts.get(side)
        slots = [] if part is None else part.slots or []
        return dict(enumerate(whole_pages(slots, self.size, f"node {list(key)}"), start=self._first(key)))

    def _owners_of_rows(self, st: CacheState) -> Iterator[_Owner]:
        for row, view in self.rows.items():
            full, swa = owned_pages(st.rows.pools.now, view, self.mapping, has_gaps(st.rows))
            request, long = self.requests[row], in_pages(view.lengths.allocated, self.size)
            text, name = self.run.calls.requests[request].text, self.run.calls.passes.name(request)
            yield _Owner(row, full, swa, long, view.lengths.committed, text, name)

    def _pair(self, pair: Pair, owners: Iterable[_Owner]) -> Pair:
        owners, size, lists = list(owners), self.size, self.seen.rows.pools
        to = {divmod(slot, size): divmod(entry, size) for slot, entry in enumerate(self.mapping) if entry}
        anchor = {
            page: next((o for o in range(size) if to.get((one.full.get(i, 0), o), (0, 0))[0] == page), 0)
            for one in owners
            for i, page in one.swa.items()
        }
        lengths = {one.row: one.length for one in owners}
        full = {(one.row, i): page for one in owners for i, page in one.full.items()}
        swa = {(one.row, i): page for one in owners for i, page in one.swa.items()}
        return but(
            pair,
            full=_pool(pair.full, lists.full, full, lengths),
            swa=_pool(pair.swa, lists.swa, swa, lengths),
            to_page=_put(pair.to_page, {slot: page for slot, (page, _) in to.items()}),
            to_offset=_put(pair.to_offset, {slot: offset for slot, (_, offset) in to.items()}),
            anchor=_put(pair.anchor, anchor),
        )

    def _rows(self, rows: SessionTrimState) -> SessionTrimState:
        lengths = {row: view.lengths for row, view in self.rows.items()}
        return but(
            rows,
            phase=_put(rows.phase, dict.fromkeys(lengths, RUNNING)),
            protected=_put(rows.protected, {row: one.protected // self.size for row, one in lengths.items()}),
            cursor=_put(rows.cursor, {row: one.cursor // self.size for row, one in lengths.items()}),
            cursor_rest=_put(rows.cursor_rest, {row: one.cursor % self.size for row, one in lengths.items()}),
            committed=_put(rows.committed, {row: one.committed // self.size for row, one in lengths.items()}),
            committed_rest=_put(rows.committed_rest, {row: one.committed % self.size for row, one in lengths.items()}),
        )

    def _contents(self, contents: Contents, owners: Iterable[_Owner]) -> Contents:
        """What the slots hold. Notes it in ``written``, too."""
        maps: dict[str, dict[tuple[int, int], int]] = {FULL: {}, SWA: {}}
        for one in owners:
            prefixes = self.run.shadow.texts.prefixes(one.text[: one.done])
            for pool, pages in ((FULL, one.full), (SWA, one.swa)):
                places = [(page, o, i * self.size + o) for i, page in pages.items() for o in range(self.size)]
                held = {(page, o): prefixes[at] for page, o, at in places if page and at < len(prefixes)}
                maps[pool].update(held)
                self.written.append((pool, [p * self.size + o for p, o in held], list(held.values()), one.name))
        story = {row: self.run.cache.stories.of(self.run.calls.requests[r]) for row, r in self.requests.items()}
        full, swa = _put(contents.full, maps[FULL]), _put(contents.swa, maps[SWA])
        return but(contents, story=_put(contents.story, story), full=full, swa=swa)

    # The tree.

    def _first(self, key: Key) -> int:
        """The page index at which a node's own key begins."""
        return (len(key) - len(self.nodes[key].key)) // self.size

    def _above(self, key: Key) -> list[int]:
        """The numbers of the nodes on the path to a node, this one first."""
        found = []
        while key:
            found.append(self.numbers[key])
            key = key[: len(key) - len(self.nodes[key].key)]
        return found

    def _path(self, key: Key) -> Iterator[tuple[int, int]]:
        """Each page index of the path to a node, and the node that has it in its key."""
        while key:
            yield from ((i, self.numbers[key]) for i in range(self._first(key), len(key) // self.size))
            key = key[: len(key) - len(self.nodes[key].key)]

    def _tree(self, tree: LockRefState, held: Mapping[int, RowHold]) -> LockRefState:
        """The tree, with these handles."""
        numbers, nodes = self.numbers, self.nodes
        parents = {number: numbers.get(key[: len(key) - len(nodes[key].key)], ROOT) for key, number in numbers.items()}
        sides = ("full", "swa") if tree.windowed else ("full",)
        counts = {side: {n: nodes[key].parts[side].lock or 0 for key, n in numbers.items()} for side in sides}
        sizes = {
            f"{side}_{name}": shown[side] // self.size
            for name, shown in (("evictable", self.seen.tree.evictable), ("protected", self.seen.tree.protected))
            for side in sides
        }
        live = {n: 1 for key, n in numbers.items() if tree.windowed and nodes[key].parts["swa"].slots is not None}
        above = {number: self._above(key) for key, number in numbers.items()}
        tree = but(
            tree,
            alive=_put(tree.alive, dict.fromkeys(numbers.values(), 1)),
            parent=_put(tree.parent, parents),
            above=_put(tree.above, {(a, n): 1 for n, path in above.items() for a in path}),
            stop=_put(tree.stop, {n: len(key) // self.size for key, n in numbers.items()}),
            source=_put(tree.source, {n: n for n in numbers.values()}),
            swa=_put(tree.swa, live),
            active=_put(tree.active, dict.fromkeys(held, 1)),
            node=_put(tree.node, {handle: one.node for handle, one in held.items()}),
            top=_put(tree.top, {handle: one.top for handle, one in held.items()}),
            reads=_put(tree.reads, {(handle, n): n for handle, one in held.items() for n in above[one.node]}),
            **{f"{side}_ref": _put(getattr(tree, f"{side}_ref"), shown) for side, shown in counts.items()},
            **sizes,
        )
        return but(tree, grip=_put(tree.grip, self._grips(tree, above))) if tree.windowed else tree

    def _grips(self, tree: LockRefState, above: Mapping[int, list[int]]) -> dict[tuple[int, int], int]:
        """How each lock holds the windows of the nodes on its path, as the lock counts tell it."""
        found = {}
        active = [handle for handle in tree.handles.items() if tree.active(handle)]
        for n in above:
            over = [handle for handle in active if lock_ref_state.over(tree, n, tree.node(handle))]
            mine = [h for h in over if lock_ref_state.between(tree, tree.top(h), n, tree.node(h))]
            live, count = tree.swa(n) == 1, tree.swa_ref(n)
            if 0 < count < len(mine):
                key = next(key for key, number in self.numbers.items() if number == n)
                raise UnclearStart(
                    f"where the recording begins, {count} of {len(mine)} locks hold the window of a node of {len(key)} "
                    "tokens, and it is not told which"
                )
            grip = SKIPPED if mine and not count else HELD if live else COUNTED if mine else SKIPPED
            found.update({(h, n): grip for h in over})
        return found


def _put(before: Map, items: Mapping[Any, int]) -> Map:
    """A map with these values, and as before at every other key."""
    return Map(before.arity, before.default, immutables.Map(items))


def _pool(
    pool: Pool, lists: AllocatorSnapshot, pages: Mapping[tuple[int, int], int], lengths: Mapping[int, Length]
) -> Pool:
    """A pool whose rows have these pages, each by its row and index."""
    owned = {page: place for place, page in pages.items() if page}
    return but(
        pool,
        place=_put(pool.place, dict.fromkeys(lists.released, RELEASED) | dict.fromkeys(owned, OWNED)),
        owner=_put(pool.owner, {page: row for page, (row, _) in owned.items()}),
        index=_put(pool.index, {page: index for page, (_, index) in owned.items()}),
        table=_put(pool.table, {place: page for place, page in pages.items() if page}),
        whole=_put(pool.whole, {row: length.pages for row, length in lengths.items()}),
        rest=_put(pool.rest, {row: length.rest for row, length in lengths.items()}),
        owed=_put(pool.owed, dict.fromkeys(owned, 1)),
        available=len(lists.free) + len(lists.released),
    )
