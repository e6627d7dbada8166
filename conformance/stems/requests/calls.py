"""What a scheduler does with requests and streaming sessions: the operations of ``session_trim`` and ``cache``.

Operations name requests, sessions and numbers of tokens. What the engine chooses (the prefix, the pages, how far the
window moves, what its tree takes) is read from the snapshot and explained as steps of the law. Where rows and the tree
exchange pages, the run that uses these operations explains it (``RowRun``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from conformance.driver.lockstep import (
    QUIESCENT,
    QUIET,
    REFUSAL,
    REFUSED,
    REFUSED_SENTENCE,
    Calls,
    EngineCall,
    Finding,
    Law,
    refusing,
)
from conformance.driver.operations import Tokens, operation, operations_of
from conformance.driver.protocol import Json, Misuse, Unsupported
from conformance.driver.shadow import Shadow
from conformance.stems.configs import is_all_sliding, is_prefill_aware, is_windowed, swa_size
from conformance.stems.pools.calls import row_pages
from conformance.stems.requests.contents import RequestPasses
from conformance.stems.requests.request import RunRequest, token
from conformance.stems.session_trim.projection import ROW_OWNED, ROW_SENTENCE, lengths_of
from conformance.stems.session_trim.protocol import RowSnapshot, SessionTrimSnapshot
from conformance.stems.swa_mapping.projection import swa_slot, waits_in_group
from spec import session_trim_state as noun
from spec.finite import Seq
from spec.lengths import Length, in_pages, in_tokens, touched
from spec.pool import length
from spec.session_trim_state import IDLE, SAVED, SessionTrimState, full_pool, swa_pool

BadCall = Literal[
    "row_outside",
    "row_twice",
    "longer_than_a_row",
    "shrinks",
    "nobodys_slot",
    "not_finished",
    "empty_prompt",
    "tracks_what_is_not_computed",
]
MOST_REQUESTS = 1 << 16  # where the law has no state slots of requests
OVERLAPPING = 900  # the first token of a request that does not wait for its session's turn


class Tail(NamedTuple):
    """What a row has behind its cached prefix whose tokens are computed elsewhere.

    ``start``: the page index from which on it has SWA pages. ``to``: the row's length. ``full``, ``swa``: its pages.
    """

    start: int
    to: Length
    full: Seq
    swa: Seq


class RowRun(Protocol):
    """A run of rows: its rows in the law and in the snapshot, and how it explains what rows and the tree exchange.

    ``most_requests``: requests have smaller numbers.
    """

    law: Law
    shadow: Shadow
    engine: Any
    lacks: Collection[str]
    most_requests: int

    @property
    def rows(self) -> SessionTrimState:
        """Rows and pools of the law's state."""

    @property
    def rows_seen(self) -> SessionTrimSnapshot:
        """Rows and pools of the last snapshot."""

    def follow_tree(self) -> None:
        """Explains what the tree has freed without being asked."""

    def has_bare(self, page: int) -> bool:
        """The engine's tree has this full page, and not its SWA page."""

    def begin_row(self, request: int, row: int, session: int, pages: int) -> None:
        """Explains that a request got a row whose first ``pages`` pages are its cached prefix."""

    def begin_tail(self, request: int, row: int, session: int, pages: int, tail: Tail) -> None:
        """Explains that a request got a row with slots for an input that is computed elsewhere."""

    def has_come(self, row: int) -> None:
        """Explains that a row has at once what is computed elsewhere."""

    def resume_row(self, request: int, session: int) -> None:
        """Explains that a session's next turn runs on the row in its slot."""

    def share(self, request: int, row: int) -> None:
        """Explains what the tree took of a request's prompt in ``cache``: the tree owns these pages now, and the row
        reads them.
        """

    def save_row(self, row: int, session: int, text: list[int]) -> None:
        """Explains that a turn saved its row in its session's slot. ``text``: the beginning of the next
        turn's input.
        """

    def free_row(self, row: int, text: list[int]) -> None:
        """Explains that a row has left: the tree took a part of it, and the rest was freed. ``text``: its token ids."""

    def close_slot(self, session: int) -> None:
        """Explains that a session ended: the row in its slot was freed."""

    def undone(self) -> None:
        """Explains that pages were handed out and given back in one call, so that they are on the release list."""

    def waits(self, request: int) -> None:
        """Explains what a request has that was matched and not admitted."""

    def withdrawn(self, request: int) -> None:
        """Explains that a request that waited was aborted."""

    def least_checkpoint(self, request: int) -> int:
        """How many tokens of a request that runs a checkpoint has at least: all up to its newest state."""

    def fits_beside(self, request: int, prefix: int) -> bool:
        """There is enough of what a request needs beside pages and a row. ``prefix``: its matched tokens."""

    @property
    def overlaps(self) -> bool:
        """The pass of a step may be in flight while its requests leave and others come: the engine's requests have
        mamba states and track buffers, as where steps overlap.
        """

    @property
    def flies(self) -> bool:
        """A pass is in flight."""

    def launched(self, requests: Collection[int], flies: bool) -> None:
        """Explains that one forward pass over these requests was launched. ``flies``: it is in flight from now on;
        otherwise it is done, and so is every pass before it.
        """

    def landed(self, request: int | None = None) -> None:
        """Explains that the passes in flight are done, where one of them is of this request (``None``: any)."""

    def tracks(self, request: int) -> bool:
        """Whether the request's state must be tracked after this forward pass. If so, the law has taken the step."""

    def evict_everything(self) -> None:
        """Asks the engine's tree to free more than it can have."""

    def tree_pages(self) -> list[int]:
        """The full pages that the engine's tree has."""


class RequestCalls:
    """The scheduler's side.

    ``requests``: those that run or wait. ``row_of``: the law's row of each request that runs. ``texts``: the token ids
    with which the next turn's input of a session begins. ``passes``: what requests compute, and what they read.
    """

    def __init__(self, run: RowRun, config: Json) -> None:
        self.run, self.law, self.engine = run, run.law, run.engine
        self.config: Json = config
        self.page_size: int = config["page_size"]
        self.limit: int = config["rows"]
        self.requests: dict[int, RunRequest] = {}
        self.row_of: dict[int, int] = {}
        self.texts: dict[int, list[int]] = {}
        self.label: dict[int, int] = {}  # the engine's number of each of the law's rows
        self.retracted: set[int] = set()  # the requests that gave their row up once
        # The requests that the engine turned away, each with the session that it named. In the place of each the engine
        # runs an input of one token, which it aborts later.
        self.turned_away: dict[int, int] = {}
        self.ended = False  # ``quiesce`` was sent
        window = config["window"] if is_windowed(config) or is_all_sliding(config) else None
        kind = {"alone": is_all_sliding(config), "prompts": is_prefill_aware(config)}
        self.passes = RequestPasses(run.shadow, self.page_size, window, lambda: run.rows_seen, **kind)
        self.operations = operations_of(self)

    # Where requests and sessions are.

    def offers(self, name: str) -> bool:
        """The engine has the call."""
        return name not in self.run.lacks

    def must_offer(self, name: str) -> None:
        """Raises ``Unsupported`` if the engine lacks the call."""
        if not self.offers(name):
            raise Unsupported(f"the engine has no {name} in this configuration")

    def view(self, request: int) -> RowSnapshot:
        """The row of a request that runs, as the engine shows it. Raises ``Finding`` if it shows none."""
        if request not in self.run.rows_seen.requests:
            raise Finding(ROW_OWNED, ROW_SENTENCE, f"request {request} runs and has no row")
        return self.run.rows_seen.requests[request]

    def used(self) -> dict[int, RowSnapshot]:
        """The rows that requests and session slots have, as the engine shows them, by the law's row number."""
        found = {row: self.view(request) for request, row in self.row_of.items()}
        rows, sessions = self.run.rows, self.run.rows_seen.sessions
        for session in rows.sessions.items():
            row = rows.slot(session) - 1
            if row >= 0 and rows.phase(row) == SAVED:
                if session not in sessions:
                    raise Finding(ROW_OWNED, ROW_SENTENCE, f"the slot of session {session} has lost its row")
                found[row] = sessions[session]
        return found

    def slots(self) -> dict[int, int]:
        """For each session that has a row, running or in its slot, as the engine shows it: the law's row number plus
        one.
        """
        inverse = {label: row for row, label in self.label.items()}
        running = {self.requests[r].session: inverse.get(self.view(r).row, -1) + 1 for r in self.row_of}
        saved = {session: inverse.get(view.row, -1) + 1 for session, view in self.run.rows_seen.sessions.items()}
        return {session: row for session, row in {**running, **saved}.items() if session}

    def running(self, request: int) -> RunRequest:
        """The request, which must run and go on. Raises ``Misuse`` if it does not run, or must leave next."""
        known = self._leaving(request)
        if self.has_no_answer(request):
            raise Misuse(f"the answer of request {request} is unknown: it finishes or is retracted next")
        return known

    def _leaving(self, request: int) -> RunRequest:
        """The request, which must run. Raises ``Misuse`` if it does not."""
        if request not in self.row_of:
            raise Misuse(f"request {request} does not run")
        return self.requests[request]

    def has_no_answer(self, request: int) -> bool:
        """The prompt of a request that runs is computed, and the first token of its answer is not known: ``admit`` said
        ``unknown``.
        """
        return not self.prefilling(request) and not self.requests[request].sampled

    def turns(self, session: int) -> list[int]:
        """The requests of a session, those that wait too."""
        return [request for request, known in self.requests.items() if known.session == session]

    def tokens(self, row: int) -> int:
        """How many tokens of a row have slots: its allocated length."""
        return in_tokens(length(full_pool(self.run.rows), row), self.page_size)

    def computed(self, request: int) -> int:
        """How many tokens of a request that runs are computed: its committed length."""
        return lengths_of(self.run.rows, self.row_of[request]).committed

    def prefilling(self, request: int) -> bool:
        """The prompt of a request that runs is not computed to its end."""
        return self.computed(request) < len(self.requests[request].tokens)

    def decoding(self, request: int) -> bool:
        """The request can decode a token: nothing is allocated ahead, and its row is not full."""
        self.running(request)
        now = self.computed(request)
        room = now < self.config["size"] * self.page_size
        return room and not self.prefilling(request) and self.tokens(self.row_of[request]) == now

    def row_for(self, known: RunRequest) -> bool:
        """There is a row for the request: its session's row, or an idle one."""
        slot = known.session and self.run.rows.slot(known.session)
        return bool(slot) or any(self.run.rows.phase(r) == IDLE for r in range(self.limit))

    def room_for(self, request: int, prefix: int, upto: int) -> bool:
        """There is everything that the request needs to be admitted. ``prefix``, ``upto``: its length in tokens before
        and after.
        """
        shared = prefix if self.offers("share_prefix") else 0
        room = self.row_for(self.requests[request]) and self.fits([(shared, upto)])
        return room and self.run.fits_beside(request, prefix)

    def fits(self, growth: Sequence[tuple[int, int]]) -> bool:
        """Each pool has the pages for rows that grow. ``growth``: pairs of lengths in tokens, before and after."""
        need = sum(touched(in_pages(b, self.page_size)) - touched(in_pages(a, self.page_size)) for a, b in growth)
        rows = self.run.rows
        need_swa = need if rows.pools.windowed else 0
        return bool(need <= full_pool(rows).available and need_swa <= swa_pool(rows).available)

    # A request arrives.

    def arrive(self, request: int, more: int, session: int, fork: int, mark: int = 0) -> RunRequest:
        """The request, which is not admitted yet. A new request adds ``more`` tokens to its session's text.

        Raises ``Misuse`` if the request runs, if its session has another request, and for a turn with a mark.
        """
        waits = self.requests.get(request)
        if request in self.row_of or (waits and more):
            raise Misuse("a request arrives once, and then waits")
        if waits:
            return waits
        self._must_have(request, session)
        if session and self.turns(session):
            raise Misuse("a session has one request at a time")
        text = list(self.texts.get(session, []))
        if session and mark:
            raise Misuse("the texts of sessions have no mark")
        asked = [token(n, fork, mark) for n in range(len(text), len(text) + more)]
        new = RunRequest(session, text + asked, fork, mark=mark)
        self._may_arrive(new)
        self.requests[request] = new
        return new

    def _must_have(self, request: int, session: int) -> None:
        """Raises ``Misuse`` for a session that there is not, and for a request that owns no states in the law."""
        if session and not self.run.rows.sessions.has(session):
            raise Misuse(f"there is no session {session}")
        if request >= self.run.most_requests:
            raise Misuse(f"there is no request {request}: a run has {self.run.most_requests}, numbered from 0")

    def _may_arrive(self, new: RunRequest) -> None:
        if not max(1, self.held(new.session)) <= len(new.tokens) <= self.config["size"] * self.page_size:
            raise Misuse("an input has a token, is as long as its session's cached prefix, and fits into a row")

    def held(self, session: int) -> int:
        """How many tokens of the row in a session's slot the tree has; 0 where there is no such row."""
        row = self.run.rows.slot(session) - 1 if session else -1
        return lengths_of(self.run.rows, row).protected if row >= 0 else 0

    @operation
    def look(self, request: int, more: Tokens = 0, session: int = 0, fork: Tokens = 0, mark: int = 0) -> Calls:
        """A request matches its prefix and is not admitted."""
        known = self.arrive(request, more, session, fork, mark)
        prefix = yield EngineCall("look", lambda: self.engine.look(request, known.session, list(known.tokens)))
        self.explain_given_up(known)
        self.run.follow_tree()
        self.explain_match(known, prefix)
        self.run.waits(request)

    @operation
    def admit(
        self,
        request: int,
        more: Tokens = 0,
        session: int = 0,
        fork: Tokens = 0,
        chunk: int = 0,
        mark: int = 0,
        unknown: bool = False,
    ) -> Calls:
        """A request is admitted, and its first ``chunk`` pages are computed (0: all of its input).

        ``unknown``: it leaves before the first token of its answer is known, so its prompt does not go to the tree. It
        is retracted while an overlapping scheduler waits for the token, or wants no answer (``max_new_tokens`` is 0).
        """
        known = self.arrive(request, more, session, fork, mark)
        most = chunk * self.page_size or len(known.tokens)
        answer = yield EngineCall("admit", lambda: self.engine.admit(request, known.session, list(known.tokens), most))
        upto = min(answer.prefix + most, len(known.tokens))
        if answer.granted:
            self.passes.prefix_copied(self.run.rows_seen.copies)
            self.passes.begin(request, known, answer.prefix)
            self.passes.prefill(request, known, upto)
        self.explain_given_up(known)
        self.run.follow_tree()
        self.explain_match(known, answer.prefix)
        if not answer.granted:
            self.law.refused("admit", self.room_for(request, answer.prefix, upto))
            self.run.waits(request)
            return
        self.explain_begin(request, known, answer.prefix)
        if unknown and upto == len(known.tokens):
            self.grow("extend", request, upto)
            self.run.launched([request], False)
        else:
            yield from self._prefilled(request, upto)

    @operation
    def admit_tail(self, request: int, more: Tokens = 0, session: int = 0, fork: Tokens = 0, mark: int = 0) -> Calls:
        """A request is admitted whose input is computed elsewhere, such as on a prefill server."""
        known = self.arrive(request, more, session, fork, mark)
        if known.session and self.run.rows.slot(known.session):
            raise Misuse("a later turn of a session goes on on the row in the session's slot")
        answer = yield EngineCall(
            "admit_tail", lambda: self.engine.admit_tail(request, known.session, list(known.tokens))
        )
        upto = len(known.tokens)
        if answer.granted:
            self.passes.begin(request, known, answer.prefix)
            self.passes.transferred(request, known, upto)
        self.run.follow_tree()
        if not answer.granted:
            self.law.refused("admit_tail", self.room_for(request, answer.prefix, upto))
            self.run.waits(request)
            return
        self.explain_tail(request, known, answer.prefix, upto)
        self.run.has_come(self.row_of[request])
        yield None
        yield from self._cached(request)

    def explain_tail(self, request: int, known: RunRequest, prefix: int, upto: int) -> None:
        """Explains that a request has a row of ``upto`` tokens; those behind its prefix are computed elsewhere."""
        row = self._idle_row()
        pages = self._whole_prefix("admit_tail", prefix)
        view, size = self.view(request), self.page_size
        start = max(view.lengths.cursor // size, pages)
        chosen, mapped = self._chosen(row, pages * size, upto, view)
        tail = Tail(start, in_pages(upto, size), chosen, Seq(mapped.items()[start - pages :]))
        self.run.begin_tail(request, row, known.session, pages, tail)
        self._labels(row, view.row)
        self.row_of[request] = row

    @operation
    def interrupted_admit(
        self, request: int, more: Tokens = 0, session: int = 0, fork: Tokens = 0, chunk: int = 0, mark: int = 0
    ) -> Calls:
        """An admission ends with an exception between the allocation of slots and their use; the request waits.

        ``chunk``: as for ``admit``.
        """
        self._outside_groups()
        known = self.arrive(request, more, session, fork, mark)
        most = chunk * self.page_size or len(known.tokens)
        prefix = yield EngineCall(
            "interrupted_admit",
            lambda: self.engine.interrupted_admit(request, known.session, list(known.tokens), most),
        )
        self.explain_given_up(known)
        self._undone("admit")
        self.explain_match(known, prefix)
        self.run.waits(request)

    def _outside_groups(self) -> None:
        """Raises ``Misuse`` in a free group: what an interrupted step gives back would wait for the group's end."""
        if self.run.rows.pools.group:
            raise Misuse("a step is interrupted outside of free groups")

    def _undone(self, name: str) -> None:
        """Explains that a step was interrupted, and gave back what it had taken. ``name``: the law's transition."""
        self.run.follow_tree()
        self.run.undone()
        self.law.count(name, "interrupted")

    @operation
    def interrupted_chunk(self, request: int, chunk: int = 0) -> Calls:
        """The next chunk of a prompt ends with an exception between the allocation of slots and their use."""
        self._outside_groups()
        known = self.running(request)
        if not self.prefilling(request):
            raise Misuse("the prompt is computed")
        most = chunk * self.page_size or len(known.tokens)
        yield EngineCall("interrupted_chunk", lambda: self.engine.interrupted_chunk(request, most))
        self._undone("extend")

    @operation
    def interrupted_decode(self, requests: list[int]) -> Calls:
        """A decode step of a batch ends with an exception between the allocation of slots and their use."""
        self._outside_groups()
        self._batch(requests)
        yield EngineCall("interrupted_decode", lambda: self.engine.interrupted_decode(list(requests)))
        self._undone("decode")

    def _idle_row(self) -> int:
        """A row of the law for a request that was admitted. Raises ``Finding`` if none is idle."""
        row = next((r for r in range(self.limit) if self.run.rows.phase(r) == IDLE), None)
        if row is None:
            raise Finding(REFUSED, REFUSED_SENTENCE, f"admit was granted, and all {self.limit} rows are in use")
        return row

    def explain_given_up(self, known: RunRequest) -> None:
        """Explains that a turn of a session was matched whose whole input the tree has.

        The last token of an input is always computed, and the row in the session's slot could be cut into a page of the
        tree only. So an engine gives up this row, and the turn begins as a request of a session without a row. That
        comes before what the tree evicts for the turn: the row's lock no longer holds its nodes then.

        A turn that waits may also have given up a row that could be cut to nothing only, or, with states, not at all:
        the state is the one after all tokens of the row. A turn that runs already may have cut the row.
        """
        slot, seen = known.session and self.run.rows.slot(known.session), self.run.rows_seen
        if not slot or known.session in seen.sessions:
            return
        row, tokens = lengths_of(self.run.rows, slot - 1), len(known.tokens)
        waits = not any(self.requests.get(request) is known for request in seen.requests)
        stateful = "mamba" in self.config.get("components", ())
        if row.protected >= tokens or (waits and (tokens == 1 or (stateful and row.committed >= tokens))):
            self.run.close_slot(known.session)

    def explain_match(self, known: RunRequest, prefix: int) -> None:
        """Explains that a turn of a session was matched: the row in the session's slot is cut back to ``prefix``."""
        slot = known.session and self.run.rows.slot(known.session)
        if slot and self.held(known.session) < len(known.tokens):
            self.law.engine_step("restore", known.session, in_pages(prefix, self.page_size))

    def explain_begin(self, request: int, known: RunRequest, prefix: int) -> None:
        sessions = self.run.rows_seen.sessions
        if known.session in sessions:
            law = self.law.stem.invariants["one_row_a_session"]
            row, other = self.view(request).row, sessions[known.session].row
            raise Finding(
                law.name, law.sentence, f"request {request} got row {row}, but the session's slot has row {other}"
            )
        if known.session and self.run.rows.slot(known.session):
            row = self.run.rows.slot(known.session) - 1
            self.run.resume_row(request, known.session)
        else:
            row = self._idle_row()
            self.run.begin_row(request, row, known.session, self._whole_prefix("admit", prefix))
            self._labels(row, self.view(request).row)
        self.row_of[request] = row

    def _whole_prefix(self, name: str, prefix: int) -> int:
        """The cached prefix of a new row, in pages of the tree that it reads; none where the row has a copy of them.

        Raises ``Finding`` if it ends inside a page.
        """
        if not self.offers("share_prefix"):
            return 0
        if prefix % self.page_size:
            what = f"its cached prefix of {prefix} tokens is not a multiple of the page size"
            raise Finding(name, self.law.sentence(name), what)
        return prefix // self.page_size

    def _labels(self, row: int, label: int) -> None:
        """From now on the engine's row ``label`` is the law's ``row``."""
        self.label = {**{r: other for r, other in self.label.items() if other != label}, row: label}

    # A request grows.

    @operation
    def chunk(self, request: int, chunk: int = 0) -> Calls:
        """The next ``chunk`` pages of a prompt are computed (0: the rest)."""
        known, row = self.running(request), self.row_of[request]
        if not self.prefilling(request):
            raise Misuse("the prompt is computed")
        most, now = chunk * self.page_size or len(known.tokens), self.tokens(row)
        upto = min(now + most, len(known.tokens))
        granted = yield EngineCall("chunk", lambda: self.engine.chunk(request, most))
        if granted:
            self.passes.prefill(request, known, upto)
        self.run.follow_tree()
        if not granted:
            self.law.refused("extend", self.fits([(now, upto)]))
            return
        yield from self._prefilled(request, upto)

    def _prefilled(self, request: int, upto: int) -> Calls:
        """The row takes its new slots. Then its prompt goes to the tree."""
        self.grow("extend", request, upto)
        self.run.launched([request], False)
        yield None
        yield from self._cached(request)

    def _cached(self, request: int) -> Calls:
        """The prompt goes to the tree, as far as the engine does that."""
        tracks = self.run.tracks(request)
        known, row = self.requests[request], self.row_of[request]
        sampled = None if self.prefilling(request) else known.next()[0]
        if tracks:
            self.passes.tracked(request, known)

        def send() -> None:
            if tracks:
                self.engine.track(request)
            self.engine.cache(request, sampled)

        yield EngineCall("cache", send)
        if sampled is not None:
            known.sampled.append(sampled)
            known.least = 1
        self.explain_shared(request, row)

    def explain_shared(self, request: int, row: int) -> None:
        """The law's steps for a call that put pages of a row into the tree, and in which the window may have moved.

        The pages that lost their SWA slots tell how far it moved, since a cursor inside the cached prefix means
        nothing. In a free group their mapping may stay until its end (SGLang up to 0.5.18); then the tree tells. Where
        the tree has such a page by now, the window moved over it before the tree took it. The window moved over the
        others afterwards: SGLang does so where a request puts the beginning of its prompt alone into the tree, because
        another prompt goes on from there otherwise.
        """
        view, size = self.view(request), self.page_size
        if not self.run.rows.pools.windowed:
            self.run.share(request, row)
            self.explain_window(request)
            return
        known, mapping = lengths_of(self.run.rows, row), self.run.rows_seen.pools.mapping
        first = max(known.cursor, known.protected) // size
        slots = {i: view.slots[i * size] for i in range(first, view.lengths.cursor // size)}
        bare = [i for i, slot in slots.items() if not swa_slot(mapping, slot) or self.run.has_bare(slot // size)]
        before = [i for i in bare if i < view.lengths.protected // size]
        if before:
            self.law.engine_step("slide", row, before[-1] + 1)
        self.run.share(request, row)
        if len(bare) > len(before):
            self.law.engine_step("slide", row, bare[-1] + 1)

    def grow(self, name: str, request: int, upto: int) -> None:
        """The law's step ``name``: the row grows to ``upto`` tokens by the pages that the engine chose."""
        row = self.row_of[request]
        pages = self._chosen(row, self.tokens(row), upto, self.view(request))
        to = [] if name == "decode" else [in_pages(upto, self.page_size)]
        self.law.engine_step(name, row, *to, *pages)

    def _chosen(self, row: int, before: int, upto: int, view: RowSnapshot) -> tuple[Seq, Seq]:
        """The new full pages of a row that grew from ``before`` to ``upto`` tokens, and the SWA page of each.

        In a model without sliding-window layers there are no SWA pages.
        """
        mapping, size = self.run.rows_seen.pools.mapping, self.page_size
        chosen = row_pages(full_pool(self.run.rows), row, before, view.slots[before:upto])
        if not self.run.rows.pools.windowed:
            return Seq(chosen), Seq()
        return Seq(chosen), Seq(swa_slot(mapping, page * size) // size for page in chosen)

    @operation
    def decode(self, requests: list[int], slide: bool = False, flies: bool = False) -> Calls:
        """One decode step of a batch. ``slide``: the windows move first.

        ``flies``: its pass is in flight from then on, as where steps overlap: the scheduler goes on with the result of
        the step before, by which requests of the batch may end. The pass is done where its result is needed, with the
        next pass, or by ``land``.
        """
        self._batch(requests)
        if flies and not self.run.overlaps:
            raise Misuse("a pass stays in flight where requests have mamba states and track buffers")
        growth = [(n, n + 1) for n in (self.tokens(self.row_of[r]) for r in requests)]
        yield from self._slide(requests if slide and self.fits(growth) else [])
        sampled = [self.requests[r].next()[0] for r in requests]
        granted = yield EngineCall("decode", lambda: self.engine.decode(list(requests), list(sampled)))
        if granted:
            self.passes.decode([(r, self.requests[r]) for r in requests])
        self.run.follow_tree()
        if not granted:
            self.law.refused("decode", self.fits(growth))
            return
        for request, one in zip(requests, sampled, strict=True):
            self.grow("decode", request, self.tokens(self.row_of[request]) + 1)
            known = self.requests[request]
            known.least = len(known.sampled)
            known.sampled.append(one)
        self.run.launched(requests, flies)

    @operation
    def land(self) -> Calls:
        """The pass in flight is done."""
        if not self.run.flies:
            raise Misuse("no pass is in flight")
        self.run.landed()
        yield None

    @operation
    def reserve(self, request: int, more: Tokens, slide: bool = False) -> Calls:
        """A request gets slots for ``more`` draft tokens. ``slide``: its window moves first."""
        known = self.running(request)
        if self.prefilling(request) or more < 1:
            raise Misuse("a draft has a token, and follows a prompt")
        now = self.tokens(self.row_of[request])
        if now + more > self.config["size"] * self.page_size:
            raise Misuse("a draft fits into its row")
        yield from self._slide([request] if slide and self.fits([(now, now + more)]) else [])
        granted = yield EngineCall("reserve", lambda: self.engine.reserve(request, more))
        if granted:
            self.passes.draft(request, known, now + more)
        self.run.follow_tree()
        if not granted:
            self.law.refused("reserve", self.fits([(now, now + more)]))
            return
        self.grow("reserve", request, now + more)
        self.run.launched([request], False)

    def _batch(self, requests: list[int]) -> None:
        """Raises ``Misuse`` unless the requests can decode in one batch."""
        if not requests or len(set(requests)) < len(requests):
            raise Misuse("a batch has a request, and none twice")
        if not all(self.decoding(r) for r in requests):
            raise Misuse("a request decodes when nothing is allocated beyond what is computed")

    @operation
    def roll_back(self, request: int, count: Tokens) -> Calls:
        """A draft is not accepted, or its step failed: its last ``count`` tokens are given back."""
        self.running(request)
        row = self.row_of[request]
        now = self.tokens(row)
        if not 0 < count <= now - self.computed(request):
            raise Misuse("a draft is rolled back by a token at least, and no further than to what is computed")
        self.law.caller_step("roll_back", row, in_pages(now - count, self.page_size))
        yield EngineCall("roll_back", lambda: self.engine.roll_back(request, count))

    @operation
    def checkpoint(self, request: int, upto: Tokens) -> Calls:
        """A request that runs puts its first ``upto`` tokens into the tree, and goes on.

        A turn of a session does that with its input alone: what it answers may not reach the caller.
        """
        known = self.running(request)
        if not 0 < upto <= self.computed(request):
            raise Misuse("a checkpoint has a token, and only tokens that are computed")
        if known.session and upto > len(known.tokens):
            raise Misuse("a turn of a session puts only its input into the tree")
        if upto < self.run.least_checkpoint(request):
            raise Misuse("a checkpoint has every token up to the newest state, which the tree gets with them")
        self.run.landed(request)
        yield EngineCall("checkpoint", lambda: self.engine.checkpoint(request, upto))
        known.cached = max(known.cached, upto)
        self.explain_shared(request, self.row_of[request])

    @operation
    def commit(self, request: int, count: Tokens) -> Calls:
        """A draft is verified: ``count`` of its tokens are accepted."""
        known, row = self.running(request), self.row_of[request]
        if count < 1:
            raise Misuse("a verified draft has one token at least")
        accepted = known.next(count)
        self.law.caller_step("commit", row, in_pages(self.computed(request) + count, self.page_size))
        known.least = len(known.sampled)
        known.sampled += accepted
        self.passes.verified(request, known, count)
        self.run.launched([request], False)
        yield EngineCall("commit", lambda: self.engine.commit(request, list(accepted)))

    def _slide(self, requests: Sequence[int]) -> Calls:
        for request in requests:
            yield EngineCall("slide", partial(self.engine.slide, request))
            known = self.requests[request]
            known.least = len(known.sampled)
            self.run.follow_tree()
            self.explain_window(request)

    def explain_window(self, request: int) -> None:
        """The law's step for a window that the engine has moved. Where every layer has a window, the row's gap says
        from which page on the full pages were given back.
        """
        row, view, rows = self.row_of[request], self.view(request), self.run.rows
        known, at = lengths_of(rows, row), view.lengths.cursor
        if at <= max(known.cursor, known.protected):
            return
        if not noun.has_gaps(rows):
            self.law.engine_step("slide", row, at // self.page_size)
        elif view.gap < at:
            first = (view.gap if noun.is_whole(rows, row) else known.cursor) // self.page_size
            later = waits_in_group(rows.pools.group, full_pool(rows).table(row, first), self.run.rows_seen.pools)
            self.law.engine_step("leave_window", row, first, at // self.page_size, later)

    # A request leaves.

    @operation
    def finish(self, request: int, sent: Tokens | None = None) -> Calls:
        """A request ends. ``sent`` tokens of its answer reached the caller (``None``: all).

        A scheduler looks for the end of an answer with each result: SGLang 0.5.23 in
        ``SchedulerBatchResultProcessor.process_batch_result_prefill`` and ``process_batch_result_decode``
        (``managers/scheduler_components/batch_result_processor.py``), which add the new tokens and then call
        ``Req.update_finish_state`` (``managers/schedule_batch.py``). So the tokens behind a cut are those of one step:
        drafts behind the end, or the step that had begun before the end was known. No checkpoint has put them into the
        tree, and no window has moved by them, since ``ScheduleBatch.maybe_evict_swa`` moves it by ``Req.seqlen``, which
        counts the tokens that are known. An engine that offers ``long_cut`` is sent longer cuts, too.
        """
        known = self._leaving(request)
        out = len(known.sampled) if sent is None else sent
        self._may_end_at(known, request, out)
        if len(known.tokens) + out < known.cached:
            raise Misuse(f"the first {known.cached} tokens of the request are in the tree: sent must not end before")
        if out == len(known.sampled):
            self.run.landed(request)
        yield EngineCall("finish", lambda: self.engine.finish(request, out))
        self.passes.ended(request)
        self.explain_left(request, known.tokens + known.sampled[:out])

    def _may_end_at(self, known: RunRequest, request: int, sent: int) -> None:
        """Raises ``Misuse`` unless the answer of a request may be ``sent`` tokens long when the request leaves."""
        if self.prefilling(request):
            raise Misuse("a prompt that is not computed has no answer")
        least = self.shortest(known)
        if not least <= sent <= len(known.sampled):
            raise Misuse(
                f"sent must be {least} to {len(known.sampled)}: a scheduler puts a prompt into the tree, moves "
                "a window and begins a step only with tokens that it knows, and that have not ended the answer"
            )

    def shortest(self, known: RunRequest) -> int:
        """How long the answer of a request is at least when it leaves. Engines that offer ``long_cut`` promise more
        than schedulers ask for: they cut any part of an answer off.
        """
        return 0 if self.offers("long_cut") else known.least

    @operation
    def abort(self, request: int) -> Calls:
        """A request is aborted while it runs."""
        known = self.running(request)
        if self.prefilling(request):
            self.must_offer("abort_chunked")
        self.run.landed(request)
        yield EngineCall("abort", lambda: self.engine.abort(request))
        self.passes.ended(request)
        self.explain_left(request, known.text)

    @operation
    def retract(self, request: int, sent: Tokens | None = None) -> Calls:
        """A request gives up its row and waits. ``sent`` tokens of its answer are in its input then (``None``: all).

        A scheduler puts a prompt into the tree when it has sampled the first token, and this token stays: SGLang 0.5.23
        in one step, ``SchedulerBatchResultProcessor.process_batch_result_prefill``, which adds the token and then calls
        ``checkpoint_kv_cache``. A request that is retracted before (``Req.is_retracted``) gets neither.
        """
        known = self._leaving(request)
        out = len(known.sampled) if sent is None else sent
        self._may_end_at(known, request, out)
        if out < len(known.sampled) - 1:
            raise Misuse("sent must be the whole answer, or all but its last token")
        again = RunRequest(known.session, known.tokens + known.sampled[:out], known.fork, mark=known.mark)
        self._may_arrive(again)
        if out == len(known.sampled):
            self.run.landed(request)
        yield EngineCall("retract", lambda: self.engine.retract(request, out))
        self.explain_left(request, again.tokens)
        self.requests[request] = again
        self.retracted.add(request)

    def explain_left(self, request: int, text: list[int]) -> None:
        """Explains where the row went: into the session's slot, or to tree and pools."""
        row, known = self.row_of.pop(request), self.requests.pop(request)
        self.turned_away.pop(request, None)
        self.retracted.discard(request)
        session, seen = known.session, self.run.rows_seen
        if session in seen.sessions and seen.sessions[session].row not in seen.free_rows:
            self.run.save_row(row, session, text)
            self.texts[session] = text
        else:
            self.run.free_row(row, known.text)

    @operation
    def cancel(self, request: int) -> Calls:
        """A request that waits is aborted."""
        if request not in self.requests or request in self.row_of:
            raise Misuse("the request does not wait")
        yield EngineCall("cancel", lambda: self.engine.cancel(request))
        self.passes.ended(request)
        del self.requests[request]
        self.turned_away.pop(request, None)
        self.run.follow_tree()
        self.run.withdrawn(request)

    # Sessions.

    @operation
    def close(self, session: int) -> Calls:
        """A session ends, unless the engine puts that off because of a turn."""
        if not self.run.rows.sessions.has(session):
            raise Misuse(f"there is no session {session}")
        turns = self.turns(session)
        if turns:
            self.must_offer("close_running" if set(turns) & set(self.row_of) else "close_waiting")
        closed = yield EngineCall("close", lambda: self.engine.close(session))
        self.run.follow_tree()
        if not closed and not turns:
            what = "the close is put off, though no turn of the session runs or waits"
            raise Finding("close", self.law.sentence("close"), what)
        if closed:
            if self.run.rows.slot(session):
                self.run.close_slot(session)
            self.texts.pop(session, None)

    @operation
    def overlapping_turn(self, request: int, session: int, more: Tokens = 1, unsupported: bool = False) -> Calls:
        """A request of a session arrives while another one of it runs or waits, or one that streaming sessions do not
        serve.
        """
        self._must_have(request, session)
        if request in self.requests or not session or not (unsupported or self.turns(session)):
            raise Misuse("an overlapping request arrives while another one of its session is there")
        new = [OVERLAPPING + n for n in range(more)]
        kind, text = yield EngineCall(
            "overlapping_turn", lambda: self.engine.overlapping_turn(request, session, new, unsupported)
        )
        if kind == "stub":
            self.turned_away[request] = session
        self.requests[request] = RunRequest(session if kind == "turn" else 0, text, 0)

    # Free groups, and bad input.

    @operation
    def begin_group(self) -> Calls:
        """A free group opens, as while an engine processes the results of a batch. Where one is open, the engine may
        decline.
        """
        answer = yield EngineCall("free_group_begin", self.engine.begin_group, declinable=self.run.rows.pools.group > 0)
        self.law.caller_step("free_group_begin", answer is not REFUSAL)

    @operation
    def end_group(self) -> Calls:
        """The free group ends. Where none is open, the engine does nothing, or declines."""
        yield EngineCall("free_group_end", self.engine.end_group, declinable=self.run.rows.pools.group == 0)
        self.law.caller_step("free_group_end")

    @operation
    def bad(self, kind: BadCall) -> Calls:
        """Bad input: the engine must answer with a clear error, and nothing may change."""
        yield refusing(lambda: self.engine.bad(kind), self.law, kind)

    # The end of a run.

    @operation
    def quiesce(
        self, accept_drafts: bool = False, finish_retracted: bool = False, admit_waiting: bool = False
    ) -> Calls:
        """Everything ends: requests, sessions, and what the tree keeps. Then all pages and rows must be free. Sent once
        in a run.

        Three ways of ending are known differences of some engines, and a run can avoid them. ``accept_drafts``: the
        draft of a session's turn is accepted before the turn ends. ``finish_retracted``: the prompt of a session's turn
        that was retracted is computed to its end, instead of an abort between two chunks. ``admit_waiting``: a
        session's turn that waits is admitted and ends, instead of an abort.
        """
        if self.ended:
            raise Misuse("everything has ended already")
        self.ended = True
        if self.run.rows.pools.group:
            yield from self._then(self.end_group())
        for request in self._deepest_first():
            if not (yield from self._let_go(request, accept_drafts, finish_retracted)):
                return
        yield from self._make_room()
        for request in self._turns_first():
            if self.requests[request].session and admit_waiting:
                yield from self._then(self.admit(request))
                if not (request in self.row_of and (yield from self._let_go(request, accept_drafts, finish_retracted))):
                    return
                yield from self._make_room()
            else:
                yield from self._then(self.cancel(request))
        yield from self._make_room()
        self._is_quiet()

    @staticmethod
    def _then(operation: Calls) -> Calls:
        """One operation of ``quiesce``, judged as any other."""
        yield from operation
        yield None

    def _deepest_first(self) -> list[int]:
        """The requests that run, longest cached prefix first: other requests may read what these have donated."""
        protected = self.run.rows.protected
        return sorted(self.row_of, key=lambda request: (-protected(self.row_of[request]), request))

    def _turns_first(self) -> list[int]:
        """The requests that wait, those of a session whose slot has a row first."""
        slot = self.run.rows.slot
        return sorted(self.requests, key=lambda request: (not slot(self.requests[request].session), request))

    def _let_go(self, request: int, accept_drafts: bool, finish_retracted: bool) -> Any:
        """A request that runs ends. Returns false if it could not.

        In an engine that cannot abort between two chunks, the prompt is computed to its end first.
        """
        finish = finish_retracted and self.requests[request].session and request in self.retracted
        before = -1
        while self.prefilling(request) and (finish or not self.offers("abort_chunked")):
            if before == self.computed(request):
                return False
            before = self.computed(request)
            yield from self._then(self.chunk(request))
        if self.prefilling(request) or request in self.turned_away:
            yield from self._then(self.abort(request))
            return True
        ahead = self.tokens(self.row_of[request]) - self.computed(request)
        if accept_drafts and self.requests[request].session and ahead:
            yield from self._then(self.commit(request, ahead))
        yield from self._then(self.finish(request, len(self.requests[request].sampled)))
        return True

    def _make_room(self) -> Calls:
        """Sessions without a turn end, and the tree frees all that it has."""
        for session in self.run.rows.sessions.items():
            if not self.turns(session):
                yield from self._then(self.close(session))
        yield EngineCall("evict", self.run.evict_everything)
        self.law.counts["evict", "done"] += 1
        yield None

    def _is_quiet(self) -> None:
        seen, tree = self.run.rows_seen, self.run.tree_pages()
        sides = (("full", seen.pools.full, self.config["size"]), ("SWA", seen.pools.swa, swa_size(self.config)))
        found = [
            f"{size - len({*lists.free, *lists.released})} {name} pages are leaked"
            for name, lists, size in sides
            if len({*lists.free, *lists.released}) != size
        ]
        found += [f"the tree keeps pages {tree}"] if tree else []
        found += (
            [f"{self.limit - len(seen.free_rows)} rows are still in use"] if len(seen.free_rows) != self.limit else []
        )
        if found:
            raise Finding(QUIESCENT, QUIET, "; ".join(found))
