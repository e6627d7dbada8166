"""What a run of rows keeps beside its subject: requests, session texts, whose page is whose; and what is compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from conformance.asked import Asked, token
from conformance.machine import Finding, Json, Misuse
from conformance.pair_seen import observed_pair, pair_differences, stale_entries
from conformance.pools import PoolRun, lists_released
from conformance.row_seen import ROW_OWNED, ROW_SENTENCE, judge_rows, judge_tree, lengths_of, row_differences, with_row
from conformance.subjects.rowview import RowSeen, RowSubject, Seen
from conformance.tree_pages import TreePages
from spec import rows as noun
from spec import session_trim as law
from spec import swa_mapping
from spec.finite import Map, Seq
from spec.lengths import in_pages, touched
from spec.logic import but
from spec.pool import Pool
from spec.rows import IDLE, SAVED, Rows, full_pool, swa_pool


class RowRun(PoolRun):
    """Request rows and session slots beside the spec; the operations are ``conformance.session_trim``'s."""

    stem = law.stem
    subject: RowSubject

    def __init__(self, subject: Any, config: Json, strict: bool = True, avoid: Iterable[str] = ()) -> None:
        super().__init__(subject, config, strict, tuple(avoid))
        self.limit: int = config["rows"]
        self.state = self.first()
        self.asked: dict[int, Asked] = {}
        self.row_of: dict[int, int] = {}  # the row of each request that runs
        self.texts: dict[int, list[int]] = {}  # what the next turn's input begins with
        self.label: dict[int, int] = {}  # row -> the engine's number for it
        self.tree: Any = self.followed()
        self.seen: Seen | None = None
        self.retracted: set[int] = set()  # the requests that gave their row up once

    # The law's state, and what of it is about rows and pools.

    def first(self) -> Any:
        """Before the first call."""
        return self.first_rows(self.config["size"])

    def first_rows(self, others: int) -> Rows:
        """Idle rows over full pools, beside ``others`` that are somebody else's."""
        config, rows = self.config, self.limit + others
        pools = swa_mapping.initial(self.page_size, config["size"], config["size_swa"], rows, config["need_sort"])
        return noun.initial(pools, self.limit, config["sessions"], in_pages(config["window"], self.page_size))

    @property
    def life(self) -> Rows:
        """Rows and pools."""
        found: Rows = self.state
        return found

    def with_life(self, life: Rows) -> Any:
        """The state with these rows and pools."""
        return life

    def followed(self) -> TreePages:
        """What follows the tree."""
        return TreePages(lambda: self.life, self.must)

    def pool_of(self, state: Any) -> Pool:
        """Rows are measured in the full pool."""
        return full_pool(state)

    def offers(self, name: str) -> bool:
        """The engine has the operation."""
        return bool(self.subject.offers(name))

    def must(self, name: str, *arguments: Any) -> None:
        """The subject did what the transition ``name`` says; the law must allow it."""
        step = self.stem.transitions[name](self.state, *arguments)
        self.judge_grant(name, step.fits)
        if wrong := step.broken():
            raise Finding(name, self.sentence(name), f"not so: {'; '.join(wrong)}")
        self.step(name, *arguments)

    def look(self) -> Seen:
        """What the engine shows now."""
        self.seen = self.subject.observe()
        return self.seen

    def read(self) -> Seen:
        """The same; and what the tree has given back since, it has given back."""
        seen = self.look()
        self.tree.follow(seen)
        return seen

    # Who is where.

    def view(self, request: int) -> RowSeen:
        """The row of a request that runs, as the engine shows it."""
        assert self.seen is not None, "an operation reads before it looks"
        if request not in self.seen.requests:
            raise Finding(ROW_OWNED, ROW_SENTENCE, f"request {request} runs and has no row")
        return self.seen.requests[request]

    def used(self) -> dict[int, RowSeen]:
        """The rows that requests and session slots have, as the engine shows them."""
        assert self.seen is not None, "an operation reads before it looks"
        found = {row: self.view(request) for request, row in self.row_of.items()}
        for session in self.life.sessions.items():
            row = self.life.slot(session) - 1
            if row >= 0 and self.life.phase(row) == SAVED:
                if session not in self.seen.sessions:
                    raise Finding(ROW_OWNED, ROW_SENTENCE, f"the slot of session {session} has lost its row")
                found[row] = self.seen.sessions[session]
        return found

    def running(self, request: int) -> Asked:
        """A request that runs."""
        if request not in self.row_of:
            raise Misuse(f"request {request} does not run")
        return self.asked[request]

    def computed(self, request: int) -> int:
        """How many tokens of a request that runs are computed."""
        return lengths_of(self.life, self.row_of[request]).committed

    def prefilling(self, request: int) -> bool:
        """The prompt of a request that runs is not computed to its end."""
        return self.computed(request) < len(self.asked[request].tokens)

    def decoding(self, request: int) -> bool:
        """The request can decode a token: nothing is allocated ahead, and the row has room."""
        self.running(request)
        now = self.computed(request)
        room = now < self.config["size"] * self.page_size
        return room and not self.prefilling(request) and self.tokens(self.row_of[request]) == now

    # Requests.

    def arrive(self, request: int, more: int, session: int, fork: int) -> Asked:
        """The request that waits; a new one adds ``more`` tokens to its session's text."""
        waits = self.asked.get(request)
        if request in self.row_of or (waits and more):
            raise Misuse("a request asks once, and then waits")
        if waits:
            return waits
        if session and any(asked.session == session for asked in self.asked.values()):
            raise Misuse("a session has one request at a time")
        text = list(self.texts.get(session, []))
        asked = Asked(session, text + [token(n, fork) for n in range(len(text), len(text) + more)], fork)
        self._may_ask(asked)
        self.asked[request] = asked
        return asked

    def _may_ask(self, asked: Asked) -> None:
        row = self.life.slot(asked.session) - 1
        tree = lengths_of(self.life, row).protected if asked.session and row >= 0 else 0
        if not tree < len(asked.tokens) <= self.config["size"] * self.page_size:
            raise Misuse("an input has a token beyond what its session has from the tree, and room in the pool")

    def row_for(self, asked: Asked) -> bool:
        """The request has its session's row, or one is idle."""
        slot = asked.session and self.life.slot(asked.session)
        return bool(slot) or any(self.life.phase(r) == IDLE for r in range(self.limit))

    def room_for(self, request: int, prefix: int, upto: int) -> bool:
        """There is all that a request needs to come."""
        return self.row_for(self.asked[request]) and self.fits([(prefix, upto)])

    def fits(self, growth: Sequence[tuple[int, int]]) -> bool:
        """Both pools have the pages for rows that grow from so many tokens to so many."""
        need = sum(touched(in_pages(b, self.page_size)) - touched(in_pages(a, self.page_size)) for a, b in growth)
        return bool(need <= full_pool(self.life).available and need <= swa_pool(self.life).available)

    def grow(self, name: str, request: int, upto: int) -> None:
        """The row takes the pages that the engine chose."""
        row, view = self.row_of[request], self.view(request)
        chosen = self.new_pages(row, before := self.tokens(row), view.slots[before:upto])
        assert self.seen is not None
        pages = Seq(chosen), Seq(self.seen.mapping[p * self.page_size] // self.page_size for p in chosen)
        self.must(name, row, *([] if name == "decode" else [in_pages(upto, self.page_size)]), *pages)

    # Where a row meets the tree.

    def begin_row(self, request: int, row: int, asked: Asked, pages: int) -> None:
        """A row begins with so many of the tree's pages."""
        del request
        self.must("admit", row, asked.session, pages)

    def resume_row(self, request: int, row: int, asked: Asked) -> None:
        """A session's row goes on."""
        del request, row
        self.must("resume", asked.session, in_pages(len(asked.tokens), self.page_size))

    def forward(self, request: int) -> None:
        """What has slots is computed: of that rows show nothing."""

    def pass_on(self, request: int, row: int) -> None:
        """What of a prompt the tree has now, the row reads there."""
        self.read()
        view = self.view(request)
        now = {slot // self.page_size for slot in view.slots}
        between = self.prefilling(request)
        if between:  # a chunk's pages pass on as those of a request that leaves, and the request comes back
            self.must("finish", row)
        self.tree.take(row, view.lengths.protected // self.page_size, lambda page: page in now)
        if between:
            self.must("come_back", row)

    def save_row(self, row: int, session: int, text: list[int]) -> None:
        """A session's slot has the row."""
        del session
        self.must("save", row, in_pages(len(text), self.page_size))

    def give_row_up(self, row: int, text: list[int]) -> None:
        """What the tree did not take of a row is given back."""
        del text
        seen = self.read()
        self.must("finish", row)
        table = full_pool(self.life).table
        own = {i: table(row, i) for i in range(self.life.protected(row), self.life.committed(row))}
        last = max((i + 1 for i, page in own.items() if page in seen.tree), default=self.life.protected(row))
        self.tree.take(row, last, lambda page: page in seen.tree)
        self.must("release", row)

    def close_slot(self, session: int) -> None:
        """The slot's row is given back."""
        self.must("close", session)

    # What can be observed.

    def compare(self, op: str) -> None:
        """The laws, the lengths and the pages; then who has which row, and what the tree has."""
        seen = self.read()
        for of_swa, pool, lists in ((False, full_pool(self.life), seen.full), (True, swa_pool(self.life), seen.swa)):
            if lists_released(pool) and not lists.released:
                merged = swa_mapping.merge_and_sort_free(self.life.pools, of_swa).then
                self.state = self.with_life(but(self.life, pools=merged))
        super().compare(op)
        judge_rows(seen, self.used(), self.limit)
        self.judge_readers(seen)

    def judge_readers(self, seen: Seen) -> None:
        """What the tree has, and what rows read of it."""
        judge_tree(self.life, seen, self.used(), self.tree.owner)

    def observed(self) -> Any:
        """The rows, the session slots and both pools as the engine shows them."""
        return self.observed_rows()

    def observed_rows(self) -> Rows:
        """The same, of whatever state they are part of."""
        seen = self.seen = self.seen or self.subject.observe()
        st, lists = self.life, (seen.full, seen.swa, seen.mapping)
        st = but(st, pools=but(st.pools, now=observed_pair(st.pools.now, *lists)))
        for row, view in self.used().items():
            st = with_row(st, row, view, seen.mapping)
        inverse = {label: row for row, label in self.label.items()}
        saved = {session: inverse.get(view.row, -1) + 1 for session, view in seen.sessions.items()}
        running = {a.session: inverse.get(self.view(r).row, -1) + 1 for r, a in self.asked.items() if r in self.row_of}
        slots = {**running, **saved}
        return but(st, slot=Map(1).where(lambda s: s in slots, lambda s: slots[s], lambda: [s for s in slots if s]))

    def differences(self, seen: Any) -> str:
        """Pools, mapping, and each row that is in use."""
        return "; ".join(self.rows_differ(seen))

    def rows_differ(self, seen: Rows) -> list[str]:
        """How these rows and pools differ from the law's."""
        assert self.seen is not None, "an operation reads before it looks"
        lists = self.seen.full, self.seen.swa
        found = pair_differences(self.life.pools.now, seen.pools.now, *lists)
        for row in self.used():
            found += row_differences(self.life, seen, row)
        for session in self.life.sessions.items():
            was, now = self.life.slot(session), seen.slot(session)
            found += [f"the slot of session {session} has row {now - 1}, not {was - 1}"] if was != now else []
        return found

    def details(self, seen: Any) -> str:
        """The mapping of the slots that nobody may read."""
        return stale_entries(self.life.pools.now, seen.pools.now) or super().details(seen)
