"""A release's own scheduler, rows and sessions on our prefix cache: lawful, and as on the release's own tree but for
page numbers. And its own trees under the calls of requests, with every policy of eviction.

``make soak`` drives 10,000 steps of each; here it is some hundred.
"""

from __future__ import annotations

import pytest
from driven import NEWEST, SOAK, driven, have

RELEASES = ("0.5.14", NEWEST)
STEPS = 10_000 if SOAK else 40
POLICIES = ("lru", "lfu", "mru", "priority", "slru", "fifo", "filo", "tlru")
# In the older tree of 0.5.14 the upper part of a node that is cut counts as new; the law leaves the order open.
LEFT_OUT = {("0.5.14", "radix"): ("fifo", "filo", "tlru"), ("0.5.14", "unified"): ("tlru",)}
START = """
    import json, sys
    from pathlib import Path
    from conformance.stems.exclusions import exclusions
    from conformance.traces import known
    from conformance.search.check import Search, check
    from conformance.engines.sglang import PLUGIN
    from conformance.engines.sglang.releases import release
    from conformance.engines.sglang.driving.makers import makers

    label, root, *more = sys.argv[1:]
    loaded = release.load(Path(root), label)
    listed = [one.exclude for one in known.of_release(PLUGIN.folder, label) if one.exclude]

    def drawn(tree, stem, parts, seed, examples=2):
        make = makers(loaded, "cpu", {"tree": tree})[stem]
        return check(stem, make, Search(examples=examples, seed=seed, exclude=exclusions(listed), parts=parts))
"""
# Without sliding-window layers the two trees choose alike, and are compared. With such layers the law judges ours.
# The law ends a run where the release breaks it; then the release on its own tree must break it so, too.
DRIVE = """
    def drive(tree, stem, parts, steps):
        done, seeds, broken = 0, 0, []
        while done < steps:
            seeds += 1
            found = drawn(tree, stem, parts, seeds)
            done += found.steps
            if found.law is not None:
                own = drawn("own", stem, parts, seeds)
                same = (own.law, own.detail, own.steps) == (found.law, found.detail, found.steps)
                broken.append([found.law, found.detail, same])
        return {"stem": stem, "tree": tree, "steps": done, "broken": broken}

    full, windowed = ("full",), ("full", "swa")
    runs = [(tree, stem, parts) for tree, parts in (("both", full), ("slotproof", windowed)) for stem in more[1:]]
    print(json.dumps([drive(*run, int(more[0])) for run in runs]))
"""
# Inserts, matches, locks and evictions on a tree of ours and on one of the release, with each policy of eviction.
PAIR = """
    import random
    import torch
    from conformance.engines.sglang.replacing import droptree
    from conformance.engines.sglang.driving.memory import SGLangMemory
    from conformance.engines.sglang.driving.renaming import shape
    from conformance.stems.requests.request import MARK

    kind, steps, page_size = more[0], int(more[1]), 2
    params = loaded.tree_params

    class One:
        '''One of the two trees, over its pool.'''

        def __init__(self, over):
            self.over = over
            self.memory = SGLangMemory(
                over, kind, ("full",), page_size, size=40 * page_size, size_swa=0, window=1)
            self.tree, self.pools = self.memory.tree, self.memory.pools
            self.locks, self.held = over.locks(self.tree), []

        def insert(self, tokens, priority):
            slots = self.pools.engine.alloc(len(tokens))
            if slots is None:
                return None
            had = self.over.insert(self.tree, tokens, 0, value=slots, priority=priority).prefix_len
            if not self.over.insert_frees(kind):
                self.pools.free(slots[:had].tolist())
            return int(had)

        def match(self, tokens):
            self.found = self.over.match(self.tree, tokens)
            return self.memory.reader.number(self.found.last_device_node)

        def lock(self):
            self.held.append(self.locks.acquire(self.found.last_device_node))

        def unlock(self, at):
            self.locks.release(self.held.pop(at % len(self.held)), "request")

        def evict(self, tokens):
            return self.tree.evict(self.over.tree_base.EvictParams(num_tokens=tokens)).num_tokens_evicted

        def seen(self):
            return [shape(self.memory.reader.read(self.pools.snapshot()), page_size), self.said()]

        def said(self):
            told = self.memory.published()
            One.events += len(told.events)
            return shape(told, page_size)

    def drive(policy, draws):
        def with_policy(*arguments):
            made = params(*arguments)
            made.eviction_policy = policy
            if policy == "tlru":
                made.eviction_policy_config = {"threshold": 4 * page_size, "next_prompt_estimate": page_size}
            return made
        loaded.tree_params = with_policy
        One.events = 0
        both = [One(droptree.with_our_tree(loaded)), One(loaded)]
        evicted = 0
        for step in range(steps):
            mark = MARK * draws.choice((0, 0, 0, 1, 2))
            pages = [draws.randrange(3) for _ in range(draws.randint(1, 7))]
            tokens = [mark + page * page_size + at for page in pages for at in range(page_size)]
            call = draws.choice(("insert", "insert", "match", "lock", "unlock", "evict"))
            drawn = draws.randrange(1 << 20)
            if call == "unlock" and not both[0].held or call == "lock" and len(both[0].held) > 3:
                call = "evict"
            arguments = {"insert": (tokens, drawn % 3), "match": (tokens,), "lock": (), "unlock": (drawn,),
                         "evict": (drawn % (8 * page_size),)}[call]
            if call == "lock":
                for one in both:
                    one.match(tokens)
            told = [getattr(one, call)(*arguments) for one in both]
            if told == [None, None] and call == "insert":
                call, told = "evict", [one.evict(9 * page_size) for one in both]
            seen = [one.seen() for one in both]
            if told[0] != told[1] or seen[0] != seen[1]:
                return {"policy": policy, "steps": step, "call": call, "told": told, "seen": [str(x) for x in seen]}
            evicted += told[0] if call == "evict" else 0
        return {"policy": policy, "steps": steps, "evicted": evicted, "events": One.events, "call": None}
"""
EACH = """
    said = []
    for page_size in (1, 4):
        said += [drive(policy, random.Random(7)) for policy in more[2:]]
    print(json.dumps(said))
"""
# Wrong caches of ours, each of which the comparison of trees or of KV events must tell.
FAULTS = """
    from impl.kv_events import Publisher
    from impl.prefix_cache import PrefixCache as Cache
    from impl.radix import RadixTree as Tree

    whole, cut, end, stored = Cache._whole, Tree.cut, Cache._end, Publisher.stored
    def announces(self, spans):
        before = set(self.tree.entries)
        node = end(self, spans)
        if node not in before:
            self._announce(node, None)
        return node

    def steals(self, child, at):
        above = cut(self, child, at)
        self.entries[above].usage.hits = 0
        return above

    wrong = {
        "frees no duplicates": ("lru", Cache, "_free", lambda self, slots: None),
        "evicts the newest": ("lru", Tree, "_age", lambda self, n: (-self.entries[n].used, self.entries[n].start, n)),
        "takes all texts for one space": (
            "lru", Cache, "_whole", lambda self, raw, extra_key, salt: whole(self, raw, None, None)),
        "gives no lock back": (
            "lru", Cache, "dec_lock_ref", lambda self, node, params=None: self._make.unlock(delta=0)),
        "does not cut": ("lru", Cache, "_end", lambda self, spans: next(
            (s.node for s in reversed(spans) if self.tree.entries[s.node].stop == s.stop), 0)),
        "a cut is no use of the rest": ("lru", Tree, "touch_only", lambda self, node: None),
        "a cut forgets the hits": ("lfu", Tree, "cut", steals),
        "says no removals": ("lru", Publisher, "removed", lambda self, nodes: None),
        "announces what it cuts": ("lru", Cache, "_end", announces),
        "says no parents": (
            "lru", Publisher, "stored", lambda self, tokens, after, origin: stored(self, tokens, None, origin)),
        "hashes the space": (
            "lru", Publisher, "_begin", lambda self, origin: (origin.extra_key or "").encode()),
    }
    said = []
    for name, (policy, kind_of, attribute, replaced) in wrong.items():
        right = getattr(kind_of, attribute)
        setattr(kind_of, attribute, replaced)
        try:
            said.append([name, drive(policy, random.Random(7))["call"]])
        except (RuntimeError, AssertionError, IndexError) as error:
            said.append([name, str(error)])
        setattr(kind_of, attribute, right)
    print(json.dumps([dict(said)]))
"""
# Wrong streams of KV events in runs of requests: first beside the release's own stream, then judged by the law alone.
STREAMS = """
    from conformance.search import check as checks
    from impl.kv_events import Block, Publisher
    from impl.radix import RadixTree as Tree

    stored, take_swa = Publisher.stored, Tree._take_swa
    def buries(self, node, gone):
        take_swa(self, node, gone)
        gone.names.append(self.entries[node].names)

    removals = (Publisher, "removed", lambda self, nodes: None)
    parents = (Publisher, "stored", lambda self, tokens, after, origin: stored(
        self, tokens, after and Block(after.digest, 7), origin))
    tombstones = (Tree, "_take_swa", buries)
    full, windowed = ("both", "cache", ("full",), 1), ("slotproof", "cache", ("full", "swa"), 3)
    wrong = [(full, removals), (full, parents), (windowed, removals), (windowed, parents), (windowed, tombstones)]
    checks.shrink = lambda found, trace, *_, **__: (found, trace)  # the law that is broken is enough here
    said = []
    for run, (kind_of, attribute, replaced) in wrong:
        right = getattr(kind_of, attribute)
        setattr(kind_of, attribute, replaced)
        found = drawn(*run, examples=6)
        said.append({"tree": run[0], "law": found.law, "detail": found.detail})
        setattr(kind_of, attribute, right)
    print(json.dumps(said))
"""


@pytest.mark.engine
@pytest.mark.parametrize("release", RELEASES)
def test_a_server_on_our_cache_keeps_the_law_and_does_what_it_does_on_its_own_tree(release: str) -> None:
    said = driven(release, START + DRIVE, str(have(release)), str(STEPS), "cache", "lock_ref")
    assert [one["stem"] for one in said if one["steps"] < STEPS] == []
    broken = [(one["stem"], one["tree"], *found) for one in said for found in one["broken"]]
    assert [found for found in broken if found[2] == "trees_agree" or not found[4]] == []


@pytest.mark.engine
@pytest.mark.parametrize(("release", "kind"), [("0.5.14", "radix"), ("0.5.14", "unified"), (NEWEST, "unified")])
def test_every_policy_evicts_what_the_release_evicts(release: str, kind: str) -> None:
    policies, steps = [policy for policy in POLICIES if policy not in LEFT_OUT.get((release, kind), ())], STEPS
    said = driven(release, START + PAIR + EACH, str(have(release)), kind, str(steps), *policies)
    assert [one["call"] for one in said] == [None] * 2 * len(policies), said
    assert min(one["evicted"] for one in said) > steps // 10
    assert min(one["events"] for one in said) > steps // 2


@pytest.mark.engine
def test_a_wrong_cache_is_told() -> None:
    (said,) = driven("0.5.14", START + PAIR + FAULTS, str(have("0.5.14")), "radix", "120")
    assert [name for name, call in said.items() if call is None] == []


@pytest.mark.engine
@pytest.mark.parametrize("release", RELEASES)
def test_a_wrong_stream_of_events_is_told(release: str) -> None:
    said = driven(release, START + STREAMS, str(have(release)))
    laws = ["trees_agree"] * 2 + ["believes_what_is_held", "parent_is_believed"]
    *others, tombstone = [one["law"] for one in said]
    assert others == laws, said
    # A tombstone is told to be removed, and once more when it is: whichever a run shows first.
    assert tombstone in ("believes_what_is_held", "removes_what_is_believed"), said
    assert all(one["detail"].startswith("published: slotproof has ") for one in said if one["tree"] == "both")
