"""Drives a radix tree on after a law was broken: strangers insert, old keys are matched, and those who hold a node read
what they found when they took hold.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from conformance.driver.onward import Move, send
from conformance.stems.lock_ref.contents import POOL
from conformance.stems.lock_ref.run import LockRefRun, handle_name

STRANGER = 5_000_000  # the first token id that no other key has


class OnwardTree:
    """The keys and handles of a run of ``lock_ref``, driven without the law.

    ``texts``: the key of the node that each handle locks. ``numbers``: the engine's number of each handle. ``known``:
    the keys that were in the tree.
    """

    def __init__(self, run: LockRefRun) -> None:
        self.run, self.engine, self.contents, self.shadow = run, run.engine, run.contents, run.shadow
        self.size = run.page_size
        self.texts = {h: list(run.keys[int(run.state.node(h))]) for h in run.held if h not in run.pins}
        self.known = [list(key) for key in sorted(run.numbers)]
        self.numbers, self.holders, self.strangers = dict(run.held), 0, 0
        self.moves: dict[str, Callable[[], Move]] = {
            "begin": self.begin,
            "hold": self.hold,
            "guest": self.guest,
            "stranger": self.stranger,
            "decode": self.decode,
            "finish": self.finish,
            "again": self.again,
            "evict": self.evict,
        }

    def begin(self) -> Move:
        """Nothing has to end first."""
        yield from ()

    def stranger(self) -> Move:
        """A request inserts a key that shares nothing with any other, as long as there are pages for it."""
        free = self.run.seen.tree.free
        yield from self._inserts(min(len(free[part]) for part in self.run.components if part != "mamba"))

    def guest(self) -> Move:
        """A request inserts a key of one page that shares nothing with any other."""
        yield from self._inserts(1)

    def _inserts(self, pages: int) -> Move:
        self.strangers += 1
        first = STRANGER + 1000 * self.strangers
        tokens = list(range(first, first + max(1, pages) * self.size))
        before = self.run.seen.nodes
        answer = send(self.run, lambda: self.engine.insert(tokens, 0, 0))
        if answer is not None:
            who = f"stranger {self.strangers}"
            self.contents.inserted(who, tokens, 0, answer.fresh, before, self.run.seen.nodes)
            yield f"{who} inserts {len(tokens)} tokens", None

    def decode(self) -> Move:
        """Each request that holds a node reads its prefix."""
        for handle, key in self.texts.items():
            who = handle_name(handle)
            texts = self.shadow.texts.prefixes(key)
            self.shadow.begin(self.shadow.step + 1)
            for (part, at), slot in self.contents.found.get(who, {}).items():
                if at < len(texts):
                    self.shadow.note(self.shadow.read(POOL[part], [slot], [texts[at]], who, at))
            yield f"{who} reads its prefix of {len(key)} tokens", self.shadow.wrong

    def hold(self) -> Move:
        """A request matches a key that was in the tree, and locks what it finds. Three do that."""
        for tokens in self.known[: 3 - self.holders]:
            found = send(self.run, partial(self.engine.match, tokens))
            if found.length:
                self.holders += 1
                handle, key = 1000 + self.holders, tuple(tokens[: found.length])
                self.numbers[handle] = send(self.run, partial(self.engine.acquire, found.node))
                self.texts[handle] = list(key)
                window = [(max(0, len(key) - self.run.window), len(key))]
                self.contents.held(handle_name(handle), key, window, self.run.stateful, self.run.seen.nodes)
                yield f"{handle_name(handle)} locks {list(key)}", self.shadow.wrong

    def finish(self) -> Move:
        """The first request that holds a node releases it."""
        for handle in list(self.texts)[:1]:
            del self.texts[handle]
            send(self.run, partial(self.engine.release, self.numbers[handle], "request"))
            yield f"{handle_name(handle)} is released", None

    def again(self) -> Move:
        """Each key that was in the tree is matched."""
        for tokens in self.known:
            found = send(self.run, partial(self.engine.match, tokens))
            self.contents.matched("the request that matches", found, tokens, self.run.seen.nodes)
            yield f"match {tokens}", self.shadow.wrong

    def evict(self) -> Move:
        """The tree gives back what nobody has locked."""
        most = self.run.most_nodes * self.size
        send(self.run, lambda: self.engine.evict(most, most, most))
        yield "evict everything", None
