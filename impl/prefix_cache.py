"""A prefix cache that an engine's scheduler calls as its own: the interface of SGLang's ``BasePrefixCache``.

The engine keeps its requests and the table of their rows. The cache has the tree: it finds the prefix of a text, takes
what a request has computed, holds what requests read, and gives back what nobody holds. What the tree has already of a
request's text the request frees; from then on its row names the slots of the tree.

The engine's own types of parameters are read, and its types of results are made: ``PrefixCache`` is given them, and
imports no engine. Two generations of the interface are served: requests that the cache finishes itself
(``cache_finished_req``, ``cache_unfinished_req``), and requests whose caller frees their rows (``checkpoint``).

The tree is on the host. Slots are freed by the calls of the engine's allocator that are given no lengths of rows: over
an allocator of ours on CUDA, whatever frees slots makes the host wait where ``allocator`` and ``swa_mapping`` say so.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from impl.checks import HOST, knowing
from impl.eviction import order_of
from impl.kv_events import EventTypes, Origin, Publisher
from impl.lock_ref import LockHandle, LockTree
from impl.radix import ROOT, RadixTree, Span, reach

__all__ = ["CacheNode", "PrefixCache", "Types"]

HIGH = 32  # a pair of tokens is one number, whose bits from here on are the first token


@dataclass(frozen=True)
class Types:
    """The engine's types of results. Each is called with the names below that it knows; the others are left out.

    ``match``: ``device_indices``, ``device_prefix_len``, ``last_device_node``, ``last_host_node``,
    ``best_match_node``. ``insert``: ``prefix_len``, ``last_device_node``. ``evict``: ``num_tokens_evicted``,
    ``swa_num_tokens_evicted``. ``lock`` and ``unlock``: ``delta``; ``lock`` also ``node_id``, and ``swa_uuid_for_lock``
    or ``component_lock_uuids`` for the mark of the node where the window of the lock ends. ``held``: the lock of a
    request, called with a node and what a lock's ``to_dec_params`` returns; None where the engine has no such type.
    ``window_part``: what ``component_lock_uuids`` has as the key of the mark. ``events``: the types of KV events; None
    where the engine asks for none.
    """

    match: Callable[..., Any]
    insert: Callable[..., Any]
    evict: Callable[..., Any]
    lock: Callable[..., Any]
    unlock: Callable[..., Any]
    held: Callable[..., Any] | None = None
    window_part: Hashable = None
    events: EventTypes | None = None


class Given(NamedTuple):
    """What an insert is told of the slots. The first ``protected`` are the tree's own. Those before ``cursor`` have no
    SWA slot any more. ``counted``: nodes that end after so many tokens get a hit; None for no hit at all. ``session``:
    that of the request that has computed them.
    """

    protected: int = 0
    cursor: int = 0
    priority: int = 0
    counted: int | None = 0
    session: str | None = None


class Held(NamedTuple):
    """A lock on a node. ``mark``: that of the node where its window ends; None if it reaches up to the root."""

    mark: int | None
    handle: LockHandle


class Text(NamedTuple):
    """The tokens of a key in whole pages, and the space that the key names: texts of two spaces share nothing."""

    tokens: list[int]
    space: Hashable


class CacheNode:
    """A node of the tree, as the engine sees it. It is one object for as long as the node is in the tree.

    ``id``: a number that no other node of any cache has had.
    """

    __slots__ = ("_cache", "_number", "id")
    _count = 0

    def __init__(self, cache: PrefixCache, number: int) -> None:
        self._cache, self._number = cache, number
        self.id = CacheNode._count
        CacheNode._count += 1

    @property
    def parent(self) -> CacheNode | None:
        """The node above; None for the root."""
        return None if self._number == ROOT else self._cache.node(self._cache.tree.entries[self._number].above)

    @property
    def children(self) -> dict[tuple[Hashable, ...], CacheNode]:
        """The nodes below, by their space and the first page of their keys."""
        found = self._cache.tree.entries[self._number].children
        return {first: self._cache.node(number) for first, number in found.items()}

    @property
    def key(self) -> list[int]:
        """The node's own tokens."""
        return list(self._cache.tree.entries[self._number].key)

    @property
    def space(self) -> Hashable:
        """What the key names beside its tokens: its ``extra_key`` and its ``cache_salt``; None for neither."""
        return self._cache.tree.entries[self._number].space

    @property
    def value(self) -> Tensor:
        """``[len(key)]`` int64 on the device: the node's slots."""
        return self._cache.tree.entries[self._number].slots

    @property
    def lock_ref(self) -> int:
        """How many locks hold the node."""
        return int(self._cache.tree.locks.full_ref[self._number])

    @property
    def swa_lock_ref(self) -> int:
        """How many locks hold the node's SWA part."""
        return int(self._cache.tree.locks.swa_ref[self._number])

    @property
    def swa_tombstone(self) -> bool:
        """The node has lost its SWA part."""
        return not self._cache.tree.live(self._number)

    @property
    def swa_uuid(self) -> int:
        """The mark that a lock has whose window ends at this node."""
        return int(self._cache.tree.locks.token[self._number])

    def __repr__(self) -> str:
        return f"CacheNode({self.id})"


class PrefixCache:
    """The prefix cache of one server, for a model without recurrent layers.

    ``params``: what the engine gives its own cache (``CacheInitParams``). Read of it are ``req_to_token_pool``,
    ``token_to_kv_pool_allocator``, ``page_size``, ``disable``, ``is_eagle``, ``eviction_policy``,
    ``eviction_policy_config``, ``enable_kv_cache_events``, and for KV events ``kv_event_lora_names`` and
    ``dynamo_kv_event_format``. ``sessions``: is called with this cache, and makes the object that keeps the rows of
    streaming sessions, with SGLang's calls (``try_match_prefix``, ``try_checkpoint``, ``try_cache_finished_req``,
    ``take``, ``borrowed_slot``, ``release_session``, ``slots``); None where the engine wraps its cache for that.
    ``window``: tokens of sliding window attention that stay with a cached prefix; 0 for a model without. ``debug``:
    every call ends with ``sanity_check``.

    A node in the calls is a ``CacheNode``. A node that is not of this cache is refused with ValueError, a lock that was
    given back already too. ValueError also for a cache that is disabled, since the engine has a cache of its own for
    that, and for KV events without their types.

    With ``enable_kv_cache_events`` a page is announced when the tree takes it, and removed when it leaves the tree.
    What happens in between is not said: a node is cut, or its SWA part goes or comes back.
    """

    metrics_collector: Any = None

    def __init__(
        self, params: Any, types: Types, sessions: Callable[[PrefixCache], Any] | None = None, *, window: int = 0,
        debug: bool = False,
    ) -> None:  # fmt: skip
        if params.disable:
            raise ValueError("params.disable: expected a cache that is in use, got a disabled one")
        self.req_to_token_pool, self.token_to_kv_pool_allocator = (
            params.req_to_token_pool,
            params.token_to_kv_pool_allocator,
        )
        self.page_size, self.disable, self.is_eagle = params.page_size, params.disable, params.is_eagle
        self.window = window
        self.sliding_window_size: int | None = params.sliding_window_size if window else None
        self.draft_swa_window: int = getattr(params, "draft_swa_window", 0) if window else 0
        self.eviction_policy, self._debug = params.eviction_policy.lower(), debug
        self._order = order_of(self.eviction_policy, getattr(params, "eviction_policy_config", None))
        self.device = torch.device(self.token_to_kv_pool_allocator.device)
        self._make, self._window_part = _Maker(types), types.window_part
        self.kv_events = _publisher(params, types.events)
        self.session = None if sessions is None else sessions(self)
        self.reset()

    def reset(self) -> None:
        """Forget everything: the tree is empty, and no session has a row. The caller clears the pools."""
        pools = self.token_to_kv_pool_allocator
        nodes = int(getattr(pools, "size_full", pools.size)) // self.page_size
        # A lock counts the tombstones of its window too: so locks on one node whose windows end at one node hold alike.
        locks = LockTree(
            max(nodes, 1), window=self.window, windowed=self.window > 0, counting=True, device=HOST, debug=self._debug
        )
        self.tree = RadixTree(
            max(nodes, 1), self.page_size, self.window, self.device, order=self._order, debug=self._debug, locks=locks
        )
        self.root_node = CacheNode(self, ROOT)
        self._nodes: dict[int, CacheNode] = {ROOT: self.root_node}
        self._held: dict[int, list[Held]] = {}  # the locks on each node
        if self.session is not None:
            self.session.slots.clear()
        if self.kv_events is not None:
            self.kv_events.cleared()

    # Nodes.

    def node(self, number: int) -> CacheNode:
        """The object of a node of the tree."""
        if number not in self._nodes:
            self._nodes[number] = CacheNode(self, number)
        return self._nodes[number]

    def number(self, node: Any) -> int:
        """The number of a node in the tree. ValueError unless it is a node of this cache that is still in the tree."""
        if not isinstance(node, CacheNode) or self._nodes.get(node._number) is not node:
            raise ValueError(f"node: expected a node that is in the tree of this cache, got {node!r}")
        return node._number

    def root_node_handle(self, extra_key: str | None = None) -> CacheNode:
        """The root, in which the texts of all spaces begin."""
        del extra_key
        return self.root_node

    def is_root(self, node: Any) -> bool:
        """The node is the root."""
        return self.number(node) == ROOT

    def path_device_indices(self, node: Any) -> Tensor:
        """``[n]`` int64 on the device: the slots from the root to the end of the node."""
        return self._slots(self.number(node))

    def _slots(self, node: int) -> Tensor:
        entries = self.tree.entries
        return torch.cat([entries[ROOT].slots, *(entries[n].slots for n in self.tree.path(node))])

    # Texts.

    def _text(self, key: Any) -> Text:
        """The text of the engine's ``RadixKey``. With drafts of EAGLE a unit of the tree is a pair of tokens."""
        raw = [int(token) for token in key.raw_token_ids()]
        return self._whole(raw, key.extra_key, getattr(key, "cache_salt", None))

    def _text_of(self, req: Any, tokens: Sequence[int]) -> Text:
        """The text of a request, up to the end of ``tokens``."""
        return self._whole([int(token) for token in tokens], req.extra_key, getattr(req, "cache_salt", None))

    def _whole(self, raw: list[int], extra_key: str | None, salt: str | None) -> Text:
        if self.is_eagle:
            raw = [first << HIGH | second for first, second in pairwise(raw)]
        space = None if extra_key is None and not salt else (extra_key, salt or None)
        return Text(raw[: len(raw) // self.page_size * self.page_size], space)

    # Finding.

    def match_prefix(self, params: Any) -> Any:
        """The longest prefix of ``params.key`` in the tree, in whole pages, that a request can go on from.

        The tree is cut where the text leaves it.
        """
        if self.session is not None and (lent := self.session.try_match_prefix(params)) is not None:
            return lent
        node = self._matched(self._text(params.key))
        slots, at = self._slots(node), self.node(node)
        self._checked()
        return self._make.match(
            device_indices=slots,
            device_prefix_len=slots.numel(),
            last_device_node=at,
            last_host_node=at,
            best_match_node=at,
        )

    def touch_prefix(self, key: Any) -> None:
        """What the tree has of the key is used now."""
        self._matched(self._text(key))
        self._checked()

    def _matched(self, text: Text) -> int:
        spans = self.tree.walk(*text)
        last = self._end(spans)
        spans[-1:] = [span._replace(node=last) for span in spans[-1:]]
        upto = reach(spans, self.window)
        node = next((span.node for span in reversed(spans) if span.stop <= upto), ROOT)
        self.tree.touch(node)
        return node

    def _end(self, spans: Sequence[Span]) -> int:
        """The node in which these spans end; a node that goes on after them is cut, and its rest counts as used."""
        if not spans:
            return ROOT
        node, stop = spans[-1].node, spans[-1].stop
        if self.tree.entries[node].stop == stop:
            return node
        above = self.tree.cut(node, stop)
        self.tree.touch_only(node)
        return above

    # Growing.

    def insert(self, params: Any) -> Any:
        """``params.value`` (``[n]`` int64) are the slots of ``params.key``. The tree takes those that it lacks.

        What the tree has already after ``params.prev_prefix_len`` tokens is freed: these slots are the caller's copies.
        Slots whose SWA side is gone end no match: at the end of the key they are freed too. Returns how many tokens the
        tree had already, and the node in which the key ends. ValueError if there is a token without a slot.
        """
        text, slots = self._text(params.key), params.value
        if len(text.tokens) > slots.numel():
            raise ValueError(f"params.value: expected a slot for each of {len(text.tokens)} tokens, got {slots}")
        counted = None if getattr(params, "chunked", False) else getattr(params, "inserted_len", 0)
        session = getattr(params, "session_id", None)
        given = Given(params.prev_prefix_len, _cursor(params), params.priority or 0, counted, session)
        had, node = self._insert(text, slots, given)
        self._free_full(slots[max(self.tree.entries[node].stop, given.protected) : len(text.tokens)])
        self._checked()
        return self._make.insert(prefix_len=had, last_device_node=self.node(node))

    def _insert(self, text: Text, slots: Tensor, given: Given) -> tuple[int, int]:
        """The tree takes what it lacks of a text, and what it has already is freed; returns how many tokens it had, and
        the node in which the text ends.
        """
        spans = self.tree.walk(*text)
        node, had = self._end(spans), spans[-1].stop if spans else 0
        self.tree.touch(node)
        for n in self.tree.path(node):
            usage = self.tree.entries[n].usage
            usage.priority = max(usage.priority, given.priority)
            self._count(n, given)
            self._meet(n, slots, given)
        for stop in sorted({min(max(had, given.cursor), len(text.tokens)), len(text.tokens)} - {had}):
            if given.cursor < len(text.tokens) or not self.window:
                node = self._add(node, text, slots[:stop], given)
        return had, node

    def _count(self, node: int, given: Given) -> None:
        entry = self.tree.entries[node]
        entry.usage.hits += given.counted is not None and entry.stop > given.counted

    def _add(self, under: int, text: Text, slots: Tensor, given: Given) -> int:
        """A new leaf, up to the end of ``slots``; a tombstone if its slots lie before the cursor. One that is longer
        than the window is cut, so that a lock on it holds no more SWA slots than it needs.
        """
        start, stop = self.tree.entries[under].stop, slots.numel()
        own = slots[start:].to(torch.int64, copy=True)
        leaf = self.tree.add(under, text.tokens[start:stop], own, live=start >= given.cursor, space=text.space)
        self.tree.entries[leaf].usage.priority = given.priority
        self._count(leaf, given)
        self._announce(leaf, given.session)
        tail = -(-self.window // self.page_size) * self.page_size
        if self.tree.live(leaf) and 0 < tail < stop - start:
            self.tree.cut(leaf, stop - tail)
        return leaf

    def _announce(self, leaf: int, session: str | None) -> None:
        """Say that the tree has the pages of a new leaf."""
        if self.kv_events is None:
            return
        entry = self.tree.entries[leaf]
        names = self.tree.entries[entry.above].names
        tokens = [divmod(pair, 1 << HIGH) for pair in entry.key] if self.is_eagle else entry.key
        extra_key, salt = entry.space if isinstance(entry.space, tuple) else (None, None)
        origin = Origin(extra_key, salt, session)
        entry.names = self.kv_events.stored(tokens, names[-1] if names else None, origin)

    def _meet(self, node: int, slots: Tensor, given: Given) -> None:
        """The tree has this node already: it lives again if it is a tombstone and the slots are live; otherwise the
        slots are freed as far as they are not the tree's own.
        """
        entry = self.tree.entries[node]
        start, stop = entry.start, entry.stop
        if stop <= given.protected:
            return
        first = stop if self.tree.live(node) else max(start, given.protected, min(given.cursor, stop))
        self._free_own(slots[max(start, given.protected) : first], max(start, given.protected), given.cursor)
        if first < stop:
            if start < first:
                self.tree.cut(node, first)
            self._revive(node, slots[first:stop])

    def _revive(self, node: int, slots: Tensor) -> None:
        """A tombstone gets live slots. One that somebody reads keeps its full slots and gets the SWA side alone."""
        slots = slots.to(torch.int64, copy=True)
        if self.tree.locks.revivable(node):
            self._free_full(self.tree.revive(node, slots))
            return
        pools = self.token_to_kv_pool_allocator
        swa = pools.full_to_swa_index_mapping[slots]
        pools.full_to_swa_index_mapping[slots] = 0
        pools.set_full_to_swa_mapping(self.tree.entries[node].slots, swa)
        self._free_full(slots)
        self.tree.revive_in_place(node)

    # Freeing.

    def _free(self, slots: Tensor) -> None:
        if slots.numel():
            self.token_to_kv_pool_allocator.free(slots)

    def _free_full(self, slots: Tensor) -> None:
        """Free slots whose SWA side is gone; older allocators find that out by themselves."""
        pools = self.token_to_kv_pool_allocator
        if slots.numel():
            (pools.free_full if self.window and hasattr(pools, "free_full") else pools.free)(slots)

    def _free_own(self, slots: Tensor, start: int, cursor: int) -> None:
        """Free slots of a row from the token ``start`` on; the SWA side of those before ``cursor`` is gone."""
        dead = min(max(cursor - start, 0), slots.numel()) if self.window else 0
        self._free_full(slots[:dead])
        self._free(slots[dead:])

    # Requests whose caller frees their rows.

    def checkpoint(self, req: Any, *, up_to: int, **more: Any) -> None:
        """What a request has computed, up to ``up_to`` tokens, goes to the tree, and the request holds it there.

        From then on its row names the slots of the tree, and ``req.kv.cache_protected_len`` how many. What it computes
        after its prompt becomes a node of its own, so that it can be evicted without the prompt.
        """
        if self.session is None or not self.session.try_checkpoint(req, up_to=up_to, **more):
            self.checkpoint_into_tree(req, up_to=up_to)

    def checkpoint_into_tree(self, req: Any, *, up_to: int, **_: Any) -> None:
        """``checkpoint`` of a request that is no turn of a session, or the first."""
        kv, tokens = req.kv, req.full_untruncated_fill_ids[:up_to]
        if not len(tokens):
            return
        text = self._text_of(req, tokens)
        row = self.req_to_token_pool.req_to_token[kv.req_pool_idx, : len(text.tokens)].to(torch.int64)
        session = getattr(req, "session_id", None)
        given = Given(kv.cache_protected_len, _cursor(kv), req.priority or 0, kv.cache_inserted_len, session)
        _had, node = self._insert(text, row, given)
        kv.cache_inserted_len = max(kv.cache_inserted_len, len(text.tokens))
        prompt = self._text_of(req, req.origin_input_ids)
        if not self.window and 0 < len(prompt.tokens) < len(text.tokens):
            self._insert(prompt, row, Given(len(prompt.tokens), 0, given.priority + 1, None))
        self._rebind(kv, node)
        self.unlock(req.lock)
        at = self.node(node)
        req.last_node, req.lock = at, self.lock(at)
        self._checked()

    def _rebind(self, holder: Any, node: int) -> None:
        """The row of a request names the slots of the tree, up to the end of the node."""
        slots, before = self._slots(node), holder.cache_protected_len
        self.req_to_token_pool.write((holder.req_pool_idx, slice(before, slots.numel())), slots[before:])
        holder.cache_protected_len = slots.numel()

    def maybe_hand_to_session(self, req: Any) -> None:
        """A turn of a session has a row now, which the session keeps."""
        if self.session is not None:
            self.session.take(req)

    def claim_kv_row(self, req: Any) -> bool:
        """The row of an ended turn stays with its session, and the caller releases nothing."""
        return self.session is not None and bool(self.session.try_cache_finished_req(req))

    def release_session(self, session_id: str) -> None:
        """The session ends: its row is freed."""
        if self.session is not None:
            self.session.release_session(session_id)

    def session_records(self) -> dict[str, Any]:
        """The records of rows that sessions keep, by session."""
        return {} if self.session is None else {name: slot.kv for name, slot in self.session.slots.items()}

    # Requests that the cache finishes.

    def cache_unfinished_req(self, req: Any, chunked: bool = False, **_: Any) -> None:
        """What a request that goes on has computed goes to the tree, and the request holds it there.

        From then on its row names the slots of the tree, and ``req.cache_protected_len`` how many. ``chunked``: its
        prompt is not computed to its end, so that its nodes get no hit.
        """
        tokens = req.get_fill_ids()
        text = self._text_of(req, tokens)
        row = self.req_to_token_pool.req_to_token[req.req_pool_idx, : len(tokens)]
        given = Given(req.cache_protected_len, _cursor(req), _priority(req), None if chunked else 0)
        _had, node = self._insert(text, row.to(torch.int64), given)
        self.tree.touch(node)
        self._rebind(req, node)
        req.prefix_indices = row.to(torch.int64, copy=True)
        self._unlock_request(req)
        req.last_node = self.node(node)
        mark = self._acquire(req.last_node)
        if self.window:
            req.swa_uuid_for_lock = mark
        self._checked()

    def cache_finished_req(self, req: Any, is_insert: bool = True, **_: Any) -> None:
        """A request ends: the tree takes what it has computed, in whole pages, and the rest is freed with its lock.

        ``is_insert``: without it the tree takes nothing, and all that is the request's own is freed.
        """
        committed = req.pop_committed_kv_cache()
        tokens = (req.origin_input_ids + req.output_ids)[:committed]
        text = self._text_of(req, tokens)
        row = self.req_to_token_pool.req_to_token[req.req_pool_idx, : len(tokens)]
        kept = protected = req.cache_protected_len
        if is_insert:
            _had, node = self._insert(text, row.to(torch.int64), Given(protected, _cursor(req), _priority(req)))
            kept = max(protected, self.tree.entries[node].stop)
        self._free_own(row[kept:], kept, _cursor(req))
        if req.last_node is not None:
            self._unlock_request(req)
        self._checked()

    def _unlock_request(self, req: Any) -> None:
        early = bool(getattr(req, "swa_prefix_lock_released", False))
        self._release(req.last_node, req.swa_uuid_for_lock if self.window else None, early=early)
        if early:
            req.swa_prefix_lock_released = False

    # Shrinking.

    def evict(self, params: Any) -> Any:
        """Free at least ``params.num_tokens`` tokens and ``params.swa_num_tokens`` SWA tokens of what nobody holds, as
        far as there are so many.
        """
        return self._evicted(self._evict(params.num_tokens, params.swa_num_tokens))

    def evict_for_alloc(self, params: Any, *, allocation_reclaim_satisfied: Callable[[], bool] | None = None) -> Any:
        """Free until so many tokens and SWA tokens more than now can be allocated, as far as nobody holds them.

        While a free group is open, nothing that is freed can be allocated: all that nobody holds is freed then.
        """
        if allocation_reclaim_satisfied is not None:
            raise NotImplementedError("allocation_reclaim_satisfied: this cache has pools of its own")
        asked = params.num_tokens, params.swa_num_tokens
        enough = [have + more for have, more in zip(self._available(), asked, strict=True)]
        freed = self._evict(*asked)
        short = [more > 0 and have < least for have, more, least in zip(self._available(), asked, enough, strict=True)]
        if any(short):
            spare = self.full_evictable_size(), self.swa_evictable_size()
            rest = self._evict(*(size * lacks for size, lacks in zip(spare, short, strict=True)))
            freed = freed[0] + rest[0], freed[1] + rest[1]
        return self._evicted(freed)

    def _available(self) -> tuple[int, int]:
        pools = self.token_to_kv_pool_allocator
        if not self.window:
            return int(pools.available_size()), 0
        return int(pools.full_available_size()), int(pools.swa_available_size())

    def _evict(self, full: int, swa: int) -> tuple[int, int]:
        gone = self.tree.evict(full, swa if self.window else 0)
        if self.kv_events is not None:
            self.kv_events.removed(gone.names)
        for number in [n for n in self._nodes if n not in self.tree.entries]:
            del self._nodes[number]
        if gone.buried:  # before the full sides: a new tombstone may have left the tree afterwards
            self.token_to_kv_pool_allocator.free_swa(torch.cat(gone.buried))
        for free, live in ((self._free, True), (self._free_full, False)):
            found = [slots for slots, has_swa in gone.dropped if has_swa == (live and self.window > 0)]
            if found and (live or self.window):
                free(torch.cat(found))
        return gone.full, gone.swa

    def _evicted(self, tokens: tuple[int, int]) -> Any:
        self._checked()
        return self._make.evict(num_tokens_evicted=tokens[0], swa_num_tokens_evicted=tokens[1])

    # Locks.

    def inc_lock_ref(self, node: Any) -> Any:
        """Hold a node and all above it, and the SWA parts of its window, until ``dec_lock_ref``. ``delta`` of the
        result: minus the tokens that were evictable until now.
        """
        before = self.evictable_size()
        mark = self._acquire(node)
        self._checked()
        marks = {self._window_part: mark} if self.window else {}
        return self._make.lock(
            delta=self.evictable_size() - before, node_id=node.id, swa_uuid_for_lock=mark, component_lock_uuids=marks
        )

    def dec_lock_ref(self, node: Any, params: Any = None, skip_swa: bool = False) -> Any:
        """Give one lock on this node back. ``delta`` of the result: the tokens that are evictable from now on.

        ``params``: what ``to_dec_params`` of the lock returned. ``skip_swa``: the SWA part was given back before.
        ValueError for a node that has no such lock.
        """
        before = self.evictable_size()
        self._release(node, _mark(params), early=skip_swa)
        self._checked()
        return self._make.unlock(delta=self.evictable_size() - before)

    def dec_swa_lock_only(self, node: Any, swa_uuid_for_lock: int | None = None, **_: Any) -> None:
        """Give the SWA part of a lock on this node back. ValueError for a node that has no such lock."""
        number = self.number(node)
        if number != ROOT:
            self.tree.locks.release_swa([self._find(node, swa_uuid_for_lock, early=False).handle])
        self._checked()

    def _acquire(self, node: Any) -> int | None:
        """Lock a node; returns the mark of the node where the lock's window ends, None if it reaches up to the root."""
        number, locks = self.number(node), self.tree.locks
        if number == ROOT:
            return None
        (handle,) = locks.acquire([number], over_tombstones=True)
        mark = None
        if self.window and self.tree.entries[number].stop - self.tree.entries[handle.top].start >= self.window:
            mark = int(locks.token[handle.top])
        self._held.setdefault(number, []).append(Held(mark, handle))
        return mark

    def _find(self, node: Any, mark: int | None, *, early: bool) -> Held:
        """A lock on the node. All locks with one mark hold alike, but for an SWA part that was given back early."""
        asked = self.window > 0 and not early
        for held in self._held.get(self.number(node), ()):
            if held.mark == mark and held.handle.holds_swa == asked:
                return held
        raise ValueError(f"node: expected a node with such a lock, got {node!r} with the mark {mark}")

    def _release(self, node: Any, mark: int | None, *, early: bool) -> None:
        number = self.number(node)
        if number == ROOT:
            return
        held = self._find(node, mark, early=early)
        self.tree.locks.release([held.handle])
        self._held[number].remove(held)
        if not self._held[number]:
            del self._held[number]

    def lock(self, node: Any) -> Any:
        """``inc_lock_ref`` for one request, which keeps what is returned; None for a node that stands for the row of a
        session, since the session has the lock.
        """
        if not isinstance(node, CacheNode):
            return None
        return self._make.held(node, self.inc_lock_ref(node).to_dec_params())

    def unlock(self, lock: Any) -> None:
        """``dec_lock_ref`` of what ``lock`` returned."""
        if lock is not None:
            self.dec_lock_ref(lock.node, lock.receipt, skip_swa=lock.swa_released)

    def release_swa(self, lock: Any) -> None:
        """Give the SWA part of what ``lock`` returned back, once."""
        if self.window and lock is not None and not lock.swa_released:
            self.dec_swa_lock_only(lock.node, _mark(lock.receipt))
            lock.swa_released = self.number(lock.node) != ROOT

    def release_swa_prefix_lock(self, req: Any) -> None:
        """The window of a request has left what it holds of the tree: it gives the SWA part of its lock back."""
        lent = None if self.session is None else self.session.borrowed_slot(req)
        lock = (lent or req).lock
        if lock is not None and _mark(lock.receipt) is not None:
            self.release_swa(lock)

    # Sizes, in tokens.

    def evictable_size(self) -> int:
        """What nobody holds."""
        return self.tree.locks.full_evictable_size()

    def full_evictable_size(self) -> int:
        """What nobody holds."""
        return self.tree.locks.full_evictable_size()

    def protected_size(self) -> int:
        """What somebody holds."""
        return self.tree.locks.full_protected_size()

    def full_protected_size(self) -> int:
        """What somebody holds."""
        return self.tree.locks.full_protected_size()

    def swa_evictable_size(self) -> int:
        """SWA tokens that nobody holds."""
        return self.tree.locks.swa_evictable_size()

    def swa_protected_size(self) -> int:
        """SWA tokens that somebody holds."""
        return self.tree.locks.swa_protected_size()

    def supports_swa(self) -> bool:
        """The model has sliding-window layers."""
        return self.window > 0

    def total_size(self) -> int:
        """What the tree has."""
        return self.evictable_size() + self.protected_size()

    def all_values_flatten(self) -> Tensor:
        """``[total_size]`` int64 on the device: every slot of the tree."""
        return torch.cat([entry.slots for entry in self.tree.entries.values()])

    # KV events.

    def take_events(self) -> list[Any]:
        """The KV events since the last time, oldest first; none without ``enable_kv_cache_events``."""
        return [] if self.kv_events is None else self.kv_events.take()

    # Looking for errors.

    def sanity_check(self) -> None:
        """Check the tree and its locks, and what is kept here beside them. AssertionError says what is wrong."""
        self.tree.check()
        held = {number: handles for number, handles in self._held.items() if handles}
        assert held.keys() <= self.tree.entries.keys(), f"locks on nodes that left the tree: {held}"
        assert self._nodes.keys() <= self.tree.entries.keys(), f"nodes that left the tree: {self._nodes}"

    def pretty_print(self) -> None:
        """Print the tree: a line for each node, with its tokens and how many locks hold it."""
        for number in self.tree.entries:
            node = self.node(number)
            print("  " * len(self.tree.path(number)), len(node.key), node.key[:10], f"locks={node.lock_ref}")
        print(f"tokens: {self.total_size()}")

    def _checked(self) -> None:
        if self._debug:
            self.sanity_check()


def _cursor(holder: Any) -> int:
    """The token before which the SWA slots of a request's row, or of the slots that are inserted, were freed."""
    if hasattr(holder, "component_evicted_seqlens"):
        return next((int(to) for part, to in holder.component_evicted_seqlens.items() if part.name == "SWA"), 0)
    return int(getattr(holder, "swa_evicted_seqlen", 0))


def _priority(req: Any) -> int:
    return getattr(req, "priority", 0) or 0


def _mark(params: Any) -> int | None:
    """The mark in what is given to release a lock."""
    if hasattr(params, "component_lock_uuids"):
        return next((mark for part, mark in params.component_lock_uuids.items() if part.name == "SWA"), None)
    mark: int | None = getattr(params, "swa_uuid_for_lock", None)
    return mark


def _publisher(params: Any, types: EventTypes | None) -> Publisher | None:
    """What publishes the KV events that the parameters of a cache ask for; None if they ask for none."""
    if not getattr(params, "enable_kv_cache_events", False):
        return None
    if types is None:
        raise ValueError("types.events: expected the types of KV events, since the parameters ask for them, got None")
    apart = getattr(params, "dynamo_kv_event_format", False)
    named = getattr(getattr(params, "kv_event_lora_names", None), "resolve" if apart else "get", None)
    return Publisher(types, params.page_size, named, apart=apart)


class _Maker:
    """Makes the engine's results, each from the values that its type has names for."""

    def __init__(self, types: Types) -> None:
        self.match, self.insert, self.evict = knowing(types.match), knowing(types.insert), knowing(types.evict)
        self.lock, self.unlock = knowing(types.lock), knowing(types.unlock)
        self._held = types.held

    def held(self, node: Any, receipt: Any) -> Any:
        if self._held is None:
            raise TypeError("types.held: expected the engine's type of a request's lock, got None")
        return self._held(node, receipt)
