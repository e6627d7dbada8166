"""The calls of an engine by its syntax trees: what has a caller, and what has none."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from conformance.driver.entrances import Entrances
from conformance.search.call_graph import HANDLER, LOOP, START, CallChain, CallGraph
from conformance.search.replacing import FunctionPlace

ENTRANCES = Entrances(
    loops=(r"server\.py:Server\.loop",),
    tables=(r"server\.py:Server\.make_table",),
    start=(r"server\.py:Server\.__init__",),
)
SERVER = """
from package.pool import Pool

class Server:
    def __init__(self):
        self.make_table()
        {start}

    def make_table(self):
        self.table = [("flush", self.flush)]

    def flush(self):
        {handler}

    def loop(self):
        {loop}
"""
POOL = """
class Pool:
    def wanted(self):
        pass
"""


def chain(tmp_path: Path, pool: str = POOL, target: str = "Pool.wanted", **lines: str) -> CallChain | None:
    """The chain to a function of the pool. ``lines``: what stands in the server's functions."""
    filled = {name: lines.get(name, "pass") for name in ("start", "handler", "loop")}
    (tmp_path / "server.py").write_text(textwrap.dedent(SERVER).format(**filled), encoding="utf-8")
    (tmp_path / "pool.py").write_text(textwrap.dedent(pool), encoding="utf-8")
    return CallGraph(tmp_path).chain(FunctionPlace("pool.py", target), ENTRANCES)


def steps(found: CallChain | None) -> list[str]:
    assert found is not None
    return [found.first.name, *(call.callee.name for call in found.calls)]


def test_what_nobody_names_has_no_caller(tmp_path: Path) -> None:
    assert chain(tmp_path) is None
    assert chain(tmp_path, loop="self.pool.wante()") is None  # another name
    assert chain(tmp_path, loop="'It is wanted.'") is None  # a text that only contains the name


def test_a_function_that_only_the_unreached_call_has_no_caller(tmp_path: Path) -> None:
    dead = POOL + "\n    def other(self):\n        self.wanted()\n        self.other()\n"
    assert chain(tmp_path, dead) is None
    found = chain(tmp_path, dead, loop="self.pool.other()")
    assert steps(found) == ["Server.loop", "Pool.other", "Pool.wanted"]
    assert found is not None
    assert (found.begins, found.guesses) == (LOOP, 0)


def test_a_handler_of_the_table_is_a_beginning(tmp_path: Path) -> None:
    found = chain(tmp_path, handler="self.pool.wanted()")
    assert steps(found) == ["Server.flush", "Pool.wanted"]
    assert found is not None
    assert found.begins == HANDLER


LOOKED_UP = {
    "getattr with a constant": "getattr(self.pool, 'wanted')()",
    "getattr with a default": "getattr(self.pool, 'wanted', None)",
    "a dict of functions": "{'x': self.pool.wanted}[name]()",
    "a dict of names": "call(self.pool, {'x': 'wanted'}[name])",
    "a composed name": "getattr(self.pool, f'want{suffix}')()",
    "a name in a variable that is a text elsewhere": "name = 'wanted'; getattr(self.pool, name)()",
    "handed to a thread": "Thread(target=self.pool.wanted).start()",
    "a function within a function": "run(lambda: [self.pool.wanted() for _ in range(2)])",
    "methodcaller": "methodcaller('wanted')(self.pool)",
    "an attribute that is read": "self.pool.wanted",
    "with a decorator around": "with guard(self.pool.wanted): pass",
    "a dotted text": "load('package.pool.Pool.wanted')",
}


@pytest.mark.parametrize("line", LOOKED_UP.values(), ids=LOOKED_UP)
def test_a_function_that_is_looked_up_has_a_caller(tmp_path: Path, line: str) -> None:
    assert steps(chain(tmp_path, loop=line))[-1] == "Pool.wanted"


def test_a_composed_name_that_does_not_fit_is_no_call(tmp_path: Path) -> None:
    assert chain(tmp_path, loop="getattr(self.pool, f'handle_{suffix}')()") is None


def test_what_the_server_hands_on_while_it_starts_has_a_caller(tmp_path: Path) -> None:
    found = chain(tmp_path, start="self.later = self.pool.wanted", loop="self.later()")
    assert found is not None
    assert found.begins == START


OUTSIDE = {
    "a table of the module": "TABLE = {'x': lambda pool: pool.wanted()}",
    "a decorator that registers": "class Other:\n    @register('x')\n    def wanted(self):\n        pass",
    "a name in a list of a class": "class Names:\n    every = ['wanted']",
}


@pytest.mark.parametrize("text", OUTSIDE.values(), ids=OUTSIDE)
def test_what_stands_in_a_table_or_is_registered_has_a_caller(tmp_path: Path, text: str) -> None:
    target = "Other.wanted" if "Other" in text else "Pool.wanted"
    found = chain(tmp_path, POOL + "\n" + text + "\n", target)
    assert found is not None
    assert found.begins == START


def test_what_all_lists_or_a_harmless_decorator_has_is_no_call(tmp_path: Path) -> None:
    text = "__all__ = ['wanted']\nclass Pool:\n    @staticmethod\n    def wanted():\n        pass\n"
    assert chain(tmp_path, text) is None


def test_an_annotation_and_a_docstring_are_no_calls(tmp_path: Path) -> None:
    text = POOL.replace("pass", "'''wanted'''\n        x: wanted = 1")
    assert chain(tmp_path, text, loop="'''wanted'''") is None


def test_python_calls_what_has_a_special_name(tmp_path: Path) -> None:
    text = POOL + "\n    def __len__(self):\n        return self.wanted()\n"
    assert chain(tmp_path, text) is None
    assert steps(chain(tmp_path, text, start="self.pool = Pool()"))[-2:] == ["Pool.__len__", "Pool.wanted"]


def test_a_class_from_elsewhere_calls_what_overrides_it(tmp_path: Path) -> None:
    text = POOL.replace("class Pool", "from threading import Thread\n\nclass Pool(Thread)")
    assert steps(chain(tmp_path, text, loop="Pool()"))[-1] == "Pool.wanted"
    assert chain(tmp_path, POOL.replace("Pool", "Pool(object)", 1), loop="Pool()") is None


def test_a_call_on_self_may_be_one_of_a_derived_class(tmp_path: Path) -> None:
    text = """
    class Base:
        def begin(self):
            self.wanted()

        def wanted(self):
            pass

    class Pool(Base):
        def wanted(self):
            pass

    class Stranger:
        def wanted(self):
            pass
    """
    found = chain(tmp_path, text, loop="self.pool.begin()")
    assert steps(found) == ["Server.loop", "Base.begin", "Pool.wanted"]
    assert found is not None
    assert found.guesses == 0
    far = chain(tmp_path, text, "Stranger.wanted", loop="self.pool.begin()")
    assert far is not None
    assert far.guesses == 1  # by its name alone


def test_a_surer_chain_is_taken_before_a_shorter_one(tmp_path: Path) -> None:
    text = """
    def helper(pool: object) -> None:
        inner()

    def inner() -> None:
        get_wanted()

    def get_wanted() -> None:
        pass

    class A:
        def get_wanted(self):
            pass

    class B:
        def get_wanted(self):
            pass
    """
    found = chain(tmp_path, text, "get_wanted", loop="self.helper(); self.x.get_wanted()")
    assert steps(found) == ["Server.loop", "helper", "inner", "get_wanted"]


def test_a_function_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match=r"pool\.py:Pool\.missing"):
        chain(tmp_path, target="Pool.missing")


def test_a_file_that_is_no_python_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (", encoding="utf-8")
    assert steps(chain(tmp_path, loop="self.pool.wanted()")) == ["Server.loop", "Pool.wanted"]
