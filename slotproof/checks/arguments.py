"""What the arguments of transitions mean: one sentence each, for the pages about the law and for messages.

``ARGUMENTS`` has the words of an argument by its name; ``OTHERWISE`` by ``transition.name``, or
``stem.transition.name``, where an argument means something else there.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

LENGTH = "how many tokens the row has slots for after the call"
PLACE = "the place in the row, counted in blocks from 0"
ARGUMENTS = {
    "above": "the parent, which is merged into the node",
    "agreed": "how many tokens the session keeps: the input and the answer that was sent",
    "at": "the page index at which the node is cut, counted from the root",
    "at_once": "whether the copy is made at once, beside the passes in flight, and not in the order of the passes",
    "available": "whether these pages can be handed out again before the free group ends",
    "batch": "the number of the batch of events",
    "block": "the number of the block",
    "blocks": "the device blocks, one for each part, in order",
    "child": "the node that is cut; it keeps the lower part of its key",
    "chosen": "what the engine hands out, in its order",
    "count": "how many are asked for",
    "arrives": "whether the request's tokens and its state were computed elsewhere, and the state is sent here",
    "counting": "whether the lock counts also those SWA parts and states that are missing now",
    "done": "the SWA pages whose wait for the end of the free group is over",
    "first": "the page index from which on pages are given, counted from 0",
    "found": "the blocks that the prefix cache has answered with, in the order of the text",
    "full_pages": "the pages of the full pool that the engine hands out, in its order",
    "given": "how many tokens the input of the turn has, with the text so far",
    "handle": "the lock handle, by its number; 0 where there is none",
    "job": "the number of the pass or the transfer while it is in flight",
    "key": "the key, which stands for a run of tokens that is copied as one",
    "last": "the page index before which the given pages end",
    "later": "whether the pages wait for the end of the open free group",
    "leaf": "the new leaf of the tree",
    "lent": "the blocks that the other row holds too from now on",
    "live": "whether the leaf keeps SWA pages; without them it is a tombstone",
    "medium": "where the copy is, such as the memory of the GPU",
    "named": "the blocks that get the hash of their text, so that the prefix cache finds them",
    "need": "how many slots are set aside",
    "new": "the new node above the cut; it gets the upper part of the key",
    "node": "the tree node",
    "of_swa": "whether the SWA pool is meant, else the full pool",
    "old": "the lock handle that the row has had so far; 0 where it has none",
    "opens": "whether the engine opens a group within the open group; if not, nothing changes",
    "other": "the row that holds the blocks too",
    "own": "the slot for the request's own state; 0 where it needs none",
    "pages": "the page index up to which the row's pages are meant, counted from 0",
    "parent": "the block before it in the text",
    "prefix": "how many tokens of the saved row the next turn keeps",
    "request": "the request",
    "row": "the row: the pages of one request, or of one tree node, in the order of the tokens",
    "second": "the second slot of the track buffer; 0 where none is needed",
    "session": "the session; 0 where the request belongs to none",
    "skipped": "how many places before these stay empty, since nobody reads them",
    "slot": "the state slot that the engine hands out; 0 where it has none",
    "slots": "the token slots that are named in the call, as (page, offset)",
    "source": "the insert that brought the slots",
    "spare": "a node number without a state, which the law uses to make an exchange in three calls",
    "start": "how many tokens come before the tail; they get no SWA slots",
    "stop": "how many tokens the path from the root to the new leaf has",
    "story": "the number of the request's text",
    "swa_pages": "the pages of the SWA pool that the engine hands out, in its order",
    "text": "the text that the hash of the block stands for",
    "to": LENGTH,
    "top": "the node at which the lock's SWA part ends: the first one, going up, where the window is full",
    "track": "the role of the slot of the track buffer: 1 for the first, 2 for the second",
    "under": "the parent of the new leaf",
    "upto": LENGTH,
    "well": "whether the copy has brought what it should",
    "what": "the text that the block holds from now on",
    "with_mamba": "whether the leaf has a state",
    "with_swa": "whether the leaf has SWA slots",
}
OTHERWISE = {
    "lock_ref.split.at": "where the node is cut, in tokens from the root",
    "adopt.pages": "how many whole pages of a cached prefix the row reads and does not own",
    "alloc.first": "the first slot of the track buffer; 0 where none is needed",
    "state_take_back.source": "the slot with the earlier state: one of the session's track buffer, or of a tree node",
    "launch.track": "the role of the slot of the track buffer that the pass writes: 1 or 2; 0 where it writes none",
    "state_admit.first": "the first slot of the track buffer; 0 where none is needed",
    "session_trim.admit.pages": "how many whole pages the cached prefix has, which the tree owns",
    "session_trim.admit_tail.pages": "how many whole pages the cached prefix has, which the tree owns",
    "session_trim.donate.to": "the row of the tree node that gets the pages",
    "session_trim.donate_swa.to": "the row of the tree node that gets the SWA pages",
    "cache.admit.pages": "the pages of the cached prefix, in the order of the text",
    "cache.admit_tail.pages": "the pages of the cached prefix, in the order of the text",
    "cache.continue_prefill.pages": "the pages of the tree that the row reads from now on, in the order of the text",
    "insert_leaf.pages": "the page index at which the new leaf ends, counted from 0",
    "admit_tail.start": "the page index from which on the row owns SWA pages",
    "commit.to": "how many tokens are committed after the call",
    "slide.to": "the page index before which the row has no SWA pages any more: the new cursor, in pages",
    "leave_window.to": "the page index before which the row has no pages of its own any more: the new cursor, in pages",
    "hand_over.to": "the row that gets the pages",
    "hand_over_swa.to": "the row that gets the SWA pages",
    "pass_on.to": "the row that gets the pages",
    "block_pool.skip.to": "how many places the row has after the call",
    "block_pool.fill.to": "how many places of the row are computed whole after the call",
    "block_pool.cut.to": "how many places the row keeps",
    "block_pool.move.to": f"{PLACE}, at which the block stands from now on",
    "block_cache.compute.to": "how many tokens of the row are computed after the call",
    "block_cache.loaded.to": "how many tokens of the row are there after the transfer",
    "block_cache.slide.to": f"{PLACE}, at which the window of the next token begins",
    "block_cache.shift.to": f"{PLACE}, at which the block stands from now on",
    "block_pool.leave.gone": "the blocks that the row gives up",
    "block_cache.launch.since": f"{PLACE}, from which on the pass reads",
    "block_cache.admit_and_load.to": "for how many tokens the row has slots after the call",
    "block_cache.slide.gone": "the blocks that the row gives up, because nobody reads them for it any more",
    "block_pool.evict.gone": "the blocks that the prefix cache forgets",
    "block_pool.displace.gone": "the blocks that are not found any more, since another block has their hash",
    "block_cache.evict.gone": "the blocks that the prefix cache forgets",
    "allocator.free.gone": "the pages that are given back",
    "swa_mapping.free.gone": "the full pages that are given back, with their SWA pages",
    "free_full.gone": "the full pages that are given back",
    "free_swa.gone": "the full pages whose SWA pages are given back",
    "host_tier.find.found": "whether the engine says that the host has the key",
    "host_tier.reserve.slot": "the slot of the host that the engine hands out",
    "host_tier.discard.slot": "the slot of the key, which is free from now on",
    "host_tier.evict.slot": "the slot of the key, which is free from now on",
    "host_tier.store.job": "the number of the copy while it is in flight",
    "host_tier.load.job": "the number of the copy while it is in flight",
    "host_tier.end.job": "the number of the copy that has ended",
    "host_tier.load.first": "the part of the key that the first block gets, counted from 0",
    "reset.done": "whether the prefix cache was reset",
}


def meaning(stem: str, transition: str, argument: str) -> str:
    """What an argument of a transition means. Raises ``KeyError`` if no sentence says it."""
    for key in (f"{stem}.{transition}.{argument}", f"{transition}.{argument}"):
        if key in OTHERWISE:
            return OTHERWISE[key]
    return ARGUMENTS[argument]


def arguments_of(transition: Callable[..., Any]) -> list[str]:
    """The names of a transition's arguments, without the state."""
    return list(signature(transition).parameters)[1:]
