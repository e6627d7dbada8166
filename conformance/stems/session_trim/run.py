"""A run of the stem ``session_trim``: request rows and session slots beside the law.

Of the tree it follows only which pages the tree owns. Its nodes and locks belong to the stem ``cache``.
"""

from __future__ import annotations

from collections.abc import Collection

from conformance.driver.diff import FieldDifference
from conformance.driver.lockstep import Calls, EngineCall, Ignores, Law, nothing
from conformance.driver.operations import Tokens, operation, operations_of
from conformance.driver.protocol import Json
from conformance.driver.shadow import Shadow
from conformance.stems.configs import is_all_sliding, is_windowed, swa_size
from conformance.stems.pools.calls import whole_pages
from conformance.stems.requests.calls import MOST_REQUESTS, RequestCalls, Tail
from conformance.stems.session_trim.projection import judge_rows, judge_tree, project_rows, row_problems
from conformance.stems.session_trim.protocol import SessionTrimEngine, SessionTrimSnapshot
from conformance.stems.session_trim.tree_pages import TreePages
from conformance.stems.swa_mapping.projection import is_read, pair_problems, settled_swa, sorted_sides
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot
from spec import session_trim as law
from spec import session_trim_state as noun
from spec import swa_mapping
from spec.lengths import in_pages
from spec.logic import but
from spec.pool import FREE, RELEASED, Pool
from spec.session_trim_state import SessionTrimState, full_pool


def first_rows(config: Json, others: int) -> SessionTrimState:
    """The law's state before the first call: idle rows over full pools, and ``others`` rows for the tree's pages."""
    sizes = (config["page_size"], config["size"], swa_size(config), config["rows"] + others, config["need_sort"])
    window = in_pages(config["window"], config["page_size"])
    pools = swa_mapping.initial(*sizes, windowed=is_windowed(config))
    return noun.initial(pools, config["rows"], config["sessions"], window, is_all_sliding(config))


def with_lists_sorted(rows: SessionTrimState, seen: SwaMappingSnapshot) -> SessionTrimState:
    """The rows after release lists were sorted. An engine may sort at any time; the law follows when the snapshot
    shows it.
    """
    for of_swa in sorted_sides(rows.pools.now, seen):
        rows = but(rows, pools=swa_mapping.merge_and_sort_free(rows.pools, of_swa).then)
    return rows


def with_pages_freed(rows: SessionTrimState, seen: SwaMappingSnapshot) -> SessionTrimState:
    """The rows after free pages were handed out and given back in one call.

    These pages are on the release list, or the free list. An allocation may have sorted the release list before.
    """
    pair, changed = rows.pools.now, {}
    for name, lists in (("full", seen.full), ("swa", seen.swa)):
        pool: Pool = getattr(pair, name)
        for place, other, pages in ((FREE, RELEASED, lists.free), (RELEASED, FREE, lists.released)):
            for page in (page for page in pages if pool.place(page) == other):
                pool = but(pool, place=pool.place.put(page, place))
        changed[name] = pool
    return but(rows, pools=but(rows.pools, now=but(pair, **changed)))


class SessionTrimRun:
    """The operations of ``RequestCalls`` on rows and pools. ``TreePages`` follows the tree's pages."""

    most_requests = MOST_REQUESTS

    def __init__(
        self, engine: SessionTrimEngine, config: Json, strict: bool = True, ignores: Ignores = nothing
    ) -> None:
        self.engine, self.lacks, self.config = engine, engine.lacks, config
        self.law = Law(law.stem, first_rows(config, config["size"]), strict, ignores)
        self.shadow = Shadow()
        self.calls = RequestCalls(self, config)
        self.tree = TreePages(self.law)
        self.operations = operations_of(self.calls, self)
        self.seen: SessionTrimSnapshot = engine.snapshot()
        self.engine_rows = frozenset(self.seen.free_rows)  # the engine's numbers of its rows: all are idle now
        self.used = self.calls.used()  # the rows in use, as the last snapshot shows them

    @property
    def rows(self) -> SessionTrimState:
        """The law's rows and pools."""
        found: SessionTrimState = self.law.state
        return found

    @property
    def rows_seen(self) -> SessionTrimSnapshot:
        """The last snapshot."""
        return self.seen

    @operation
    def evict(self, full: Tokens = 0, swa: Tokens = 0) -> Calls:
        """The tree is asked to free so many tokens of each pool, and chooses which."""
        swa = swa if self.rows.pools.windowed else 0
        yield EngineCall("evict", lambda: self.engine.evict(full, swa))
        self.law.counts["evict", "done"] += 1

    # What rows and the tree exchange.

    def follow_tree(self) -> None:
        """Explains which pages the tree has freed."""
        self.tree.follow(self.seen)

    def has_bare(self, page: int) -> bool:
        """The engine's tree has this full page, and not its SWA page."""
        return page in self.seen.tree and not self.seen.tree[page].swa

    def begin_row(self, request: int, row: int, session: int, pages: int) -> None:
        """Explains that a row begins with ``pages`` pages of the tree."""
        del request
        self.law.engine_step("admit", row, session, pages)

    def begin_tail(self, request: int, row: int, session: int, pages: int, tail: Tail) -> None:
        """Explains that a row begins with ``pages`` pages of the tree, and has slots for what is computed elsewhere."""
        del request
        self.law.engine_step("admit_tail", row, session, pages, *tail)

    def has_come(self, row: int) -> None:
        """The law of this stem does not say when tokens come that are computed elsewhere."""

    def resume_row(self, request: int, session: int) -> None:
        """Explains that a session's row goes on."""
        known = self.calls.requests[request]
        self.law.engine_step("resume", session, in_pages(len(known.tokens), self.calls.page_size))

    def share(self, request: int, row: int) -> None:
        """Explains which pages of a prompt the tree owns now; the row still reads them."""
        self.follow_tree()
        view = self.calls.view(request)
        now = {slot // self.calls.page_size for slot in view.slots}
        between = self.calls.prefilling(request)
        if between:  # in the law a request that inserts a chunk leaves its row, donates the pages, and comes back
            self.law.engine_step("finish", row)
        last = view.lengths.protected // self.calls.page_size
        self.tree.take(row, last, self.seen, self.tree.revived(self.seen), lambda page: page in now)
        if between:
            self.law.engine_step("come_back", row)

    def save_row(self, row: int, session: int, text: list[int]) -> None:
        """Explains that a row was saved in its session's slot."""
        del session
        self.law.engine_step("save", row, in_pages(len(text), self.calls.page_size))

    def free_row(self, row: int, text: list[int]) -> None:
        """Explains that the tree took pages of a row, and that the rest was freed."""
        del text
        self.follow_tree()
        self.law.engine_step("finish", row)
        table, rows = full_pool(self.rows).table, self.rows
        own = {i: table(row, i) for i in range(rows.protected(row), rows.committed(row))}
        revived = self.tree.revived(self.seen)
        taken = (i + 1 for i, page in own.items() if page in self.seen.tree or i in revived)
        last = max(taken, default=rows.protected(row))
        self.tree.take(row, last, self.seen, revived, lambda page: page in self.seen.tree)
        self.law.engine_step("release", row)

    def close_slot(self, session: int) -> None:
        """Explains that the row of a session's slot was freed."""
        self.law.engine_step("close", session)

    def undone(self) -> None:
        """Explains that pages were handed out and given back in one call."""
        self.law.state = with_pages_freed(self.rows, self.seen.pools)

    def waits(self, request: int) -> None:
        """Nothing to explain: a request that waits has nothing."""

    def withdrawn(self, request: int) -> None:
        """Nothing to explain: a request that waited had nothing."""

    def least_checkpoint(self, request: int) -> int:
        """0: there are no mamba states."""
        del request
        return 0

    def fits_beside(self, request: int, prefix: int) -> bool:
        """True: a request needs only pages and a row."""
        del request, prefix
        return True

    @property
    def overlaps(self) -> bool:
        """False: there are no mamba states."""
        return False

    @property
    def flies(self) -> bool:
        """False: what a pass writes into pages is in the order of the passes, and the law of rows has no passes."""
        return False

    def launched(self, requests: Collection[int], flies: bool) -> None:
        """Nothing to explain."""

    def landed(self, request: int | None = None) -> None:
        """Nothing to explain."""

    def tracks(self, request: int) -> bool:
        """False: there are no mamba states."""
        del request
        return False

    def evict_everything(self) -> None:
        """Asks the tree to free as many tokens as both pools have."""
        size = self.calls.page_size
        self.engine.evict(self.config["size"] * size, swa_size(self.config) * size)

    def tree_pages(self) -> list[int]:
        """The full pages that the tree has."""
        return sorted(self.seen.tree)

    # What the driver needs.

    def snapshot(self) -> SessionTrimSnapshot:
        """Rows, sessions, pools and the pages of the tree."""
        return self.engine.snapshot()

    def follow(self) -> None:
        """Takes the steps for pages that the tree freed, for SWA pages that no longer wait, and for lists that were
        sorted.
        """
        self.follow_tree()
        for ended in settled_swa(self.rows.pools.now, self.seen.pools):
            self.law.engine_step("settle_swa", *ended)
        self.law.state = with_lists_sorted(self.rows, self.seen.pools)

    def project(self) -> SessionTrimState:
        """The law's rows, session slots and pools as the engine shows them."""
        self.used = self.calls.used()
        return project_rows(self.rows, self.seen, self.used, self.calls.slots())

    def hidden(self, change: FieldDifference) -> bool:
        """The mapping of a slot that no row uses is hidden from callers."""
        return change.field == "to_page" and not is_read(self.rows.pools.now, *change.key)

    def beyond_state(self) -> list[str]:
        """Pages that are listed twice, and available sizes that are wrong."""
        return pair_problems(self.rows.pools.now, self.seen.pools) + row_problems(self.calls.page_size, self.used)

    def judge(self) -> None:
        """Raises ``Finding`` if an engine's row has not one owner, or if the tree or a row's reads of it are wrong."""
        for row, view in self.used.items():
            whole_pages(view.slots, self.calls.page_size, f"row {row}")
        judge_rows(self.seen, self.used.values(), self.engine_rows)
        judge_tree(self.rows, self.seen, self.used, self.tree.owner)
