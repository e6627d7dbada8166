"""Request rows and session slots beside the law. What the tree does is its own: only whose its pages are is followed."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from conformance.diff import Change
from conformance.engines.protocol import Json, PairSnapshot, RowEngine, RowsSnapshot
from conformance.kinds import Tokens
from conformance.lockstep import Call, Calls, Law
from conformance.request_calls import RequestCalls, looks_past
from conformance.session_trim.seen import judge_rows, judge_tree, project_rows
from conformance.session_trim.tree_pages import TreePages
from conformance.swa_mapping.seen import is_read, pair_problems, sorted_sides
from spec import rows as noun
from spec import session_trim as law
from spec import swa_mapping
from spec.lengths import in_pages
from spec.logic import but
from spec.rows import Rows, full_pool


def first_rows(config: Json, others: int) -> Rows:
    """Idle rows over full pools, beside ``others`` that are the tree's; sizes count pages, the window counts tokens."""
    sizes = (config["page_size"], config["size"], config["size_swa"], config["rows"] + others, config["need_sort"])
    window = in_pages(config["window"], config["page_size"])
    return noun.initial(swa_mapping.initial(*sizes), config["rows"], config["sessions"], window)


def with_lists_sorted(rows: Rows, seen: PairSnapshot) -> Rows:
    """An engine sorts a release list into its free list when it likes; the law follows when that is seen."""
    for of_swa in sorted_sides(rows.pools.now, seen):
        rows = but(rows, pools=swa_mapping.merge_and_sort_free(rows.pools, of_swa).then)
    return rows


class SessionTrimRun:
    """The operations of ``RequestCalls`` on rows and pools; the tree's pages are followed by ``TreePages``."""

    def __init__(self, engine: RowEngine, config: Json, strict: bool = True, exclude: Collection[StrEnum] = ()) -> None:
        self.engine, self.lacks, self.exclude, self.config = engine, engine.lacks, exclude, config
        self.law = Law(law.stem, first_rows(config, config["size"]), strict, looks_past(exclude))
        self.calls = RequestCalls(self, config)
        self.tree = TreePages(self.law)
        self.operations = {**self.calls.operations, "evict": self.evict}
        self.seen: RowsSnapshot = engine.snapshot()
        self.used = self.calls.used()  # the rows in use, as the last snapshot shows them

    @property
    def rows(self) -> Rows:
        """The law's rows and pools."""
        found: Rows = self.law.state
        return found

    @property
    def rows_seen(self) -> RowsSnapshot:
        """The last snapshot."""
        return self.seen

    def evict(self, full: Tokens = 0, swa: Tokens = 0) -> Calls:
        """The tree is asked for so many tokens of either side; it chooses them."""
        yield Call("evict", lambda: self.engine.evict(full, swa))
        self.law.counts["evict", "done"] += 1

    # Where a row meets the tree.

    def follow_tree(self) -> None:
        """What the tree has given back."""
        self.tree.follow(self.seen)

    def begin_row(self, request: int, row: int, session: int, pages: int) -> None:
        """A row begins with so many of the tree's pages."""
        del request
        self.law.engine_step("admit", row, session, pages)

    def resume_row(self, request: int, session: int) -> None:
        """A session's row goes on."""
        known = self.calls.requests[request]
        self.law.engine_step("resume", session, in_pages(len(known.tokens), self.calls.page_size))

    def share(self, request: int, row: int) -> None:
        """What of a prompt the tree has now, the row reads there."""
        self.follow_tree()
        view = self.calls.view(request)
        now = {slot // self.calls.page_size for slot in view.slots}
        between = self.calls.prefilling(request)
        if between:  # a chunk's pages go to the tree as those of a request that leaves, and the request comes back
            self.law.engine_step("finish", row)
        self.tree.take(row, view.lengths.protected // self.calls.page_size, lambda page: page in now)
        if between:
            self.law.engine_step("come_back", row)

    def save_row(self, row: int, session: int, text: list[int]) -> None:
        """A session's slot has the row."""
        del session
        self.law.engine_step("save", row, in_pages(len(text), self.calls.page_size))

    def free_row(self, row: int, text: list[int]) -> None:
        """What the tree did not take of a row is given back."""
        del text
        self.follow_tree()
        self.law.engine_step("finish", row)
        table, rows = full_pool(self.rows).table, self.rows
        own = {i: table(row, i) for i in range(rows.protected(row), rows.committed(row))}
        last = max((i + 1 for i, page in own.items() if page in self.seen.tree), default=rows.protected(row))
        self.tree.take(row, last, lambda page: page in self.seen.tree)
        self.law.engine_step("release", row)

    def close_slot(self, session: int) -> None:
        """The slot's row is given back."""
        self.law.engine_step("close", session)

    def waits(self, request: int) -> None:
        """A request that waits has nothing."""

    def withdrawn(self, request: int) -> None:
        """A request that waited had nothing."""

    def fits_beside(self, request: int, prefix: int) -> bool:
        """A request needs pages and a row alone."""
        del request, prefix
        return True

    def tracks(self, request: int) -> bool:
        """There are no states."""
        del request
        return False

    def evict_everything(self) -> None:
        """Asks the tree for both pools."""
        size, size_swa = (self.config[name] * self.calls.page_size for name in ("size", "size_swa"))
        self.engine.evict(size, size_swa)

    def tree_pages(self) -> list[int]:
        """The pages that the tree has."""
        return sorted(self.seen.tree)

    # What the driver asks.

    def snapshot(self) -> RowsSnapshot:
        """Rows, sessions, pools and the pages of the tree."""
        return self.engine.snapshot()

    def follow(self) -> None:
        """Sorted lists, and what the tree has given back."""
        self.follow_tree()
        self.law.state = with_lists_sorted(self.rows, self.seen.pools)

    def project(self) -> Rows:
        """The rows, the session slots and both pools as the engine shows them."""
        self.used = self.calls.used()
        return project_rows(self.rows, self.seen, self.used, self.calls.slots())

    def hidden(self, change: Change) -> bool:
        """The mapping of a slot that no row uses."""
        return change.field == "to_page" and not is_read(self.rows.pools.now, *change.key)

    def beyond_state(self) -> list[str]:
        """Pages that are listed twice, and the available sizes that the engine claims."""
        return pair_problems(self.rows.pools.now, self.seen.pools)

    def judge(self) -> None:
        """Who has which of the engine's rows, what the tree has, and what rows read of it."""
        judge_rows(self.seen, self.used.values(), self.calls.limit)
        judge_tree(self.rows, self.seen, self.used, self.tree.owner)
