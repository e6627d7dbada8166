"""What an engine's code touches of its allocators: on a made-up engine and on releases."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from driven import NEWEST, have

from conformance.driver.protocol import EngineError
from conformance.engines.sglang import PLUGIN
from conformance.engines.sglang.replacing import compat, refused
from conformance.engines.sglang.replacing.hooks import HOOKS
from conformance.engines.sglang.replacing.source.classes import Classes, files
from conformance.engines.sglang.replacing.subjects import stand_ins
from slotproof import cli
from slotproof.console import codes

BASE = "BaseTokenToKVPoolAllocator"
ALLOCATORS = f"""
    class {BASE}:
        def __init__(self, size): self.size = size; self.free_pages = None
        def alloc(self, need_size): ...
        def free(self, free_index): ...
        def plan(self, tree): return Budget(self, tree)
        def resize(self, config): self.inner()
        def inner(self): ...
        @property
        def spare_room(self): ...

    class TokenToKVPoolAllocator({BASE}): ...

    class SWATokenToKVPoolAllocator({BASE}):
        def __init__(self, size):
            self.swa_attn_allocator = TokenToKVPoolAllocator(size)
        def free_swa(self, free_index, *, start=0): ...

    class OtherAllocator:
        def alloc(self): ...
        def spare_room(self): ...
"""


class Ours:
    """Has ``alloc`` and ``size``, and ``free_pages`` that cannot be set."""

    swa_attn_allocator: Any = None

    def __init__(self) -> None:
        self.size = 1

    def alloc(self, need_size: int) -> None:
        """The call."""

    @property
    def free_pages(self) -> int:
        """Read only."""
        return 0


OURS = {"TokenToKVPoolAllocator": Ours(), "SWATokenToKVPoolAllocator": Ours()}


def missing(tmp_path: Path, code: str, hooks: tuple[str, ...] = ()) -> set[tuple[str, str, str]]:
    """Class, member and what is missing, of an engine with ALLOCATORS and this code."""
    return {(row["class"][:3], row["member"], row["what"]) for row in rows(tmp_path, code, hooks)["missing"]}


def rows(tmp_path: Path, code: str, hooks: tuple[str, ...] = ()) -> dict[str, Any]:
    (tmp_path / "allocators.py").write_text(textwrap.dedent(ALLOCATORS))
    (tmp_path / "user.py").write_text(textwrap.dedent(code))
    return compat.compared(tmp_path, OURS, hooks)


BOTH = {("Tok", "spare_room", "absent"), ("SWA", "spare_room", "absent")}
WAYS = {
    "an annotation": "def f(x: BaseTokenToKVPoolAllocator): x.spare_room",
    "an annotation as text": "def f(x: 'Optional[BaseTokenToKVPoolAllocator]'): x.spare_room",
    "an attribute of self": """
        class A:
            def __init__(self, x: BaseTokenToKVPoolAllocator): self.it = x
            def f(self): self.it.spare_room
        """,
    "an attribute that a parent class sets": """
        class A:
            def __init__(self, x: BaseTokenToKVPoolAllocator): self.it = x
        class B(A):
            def f(self): self.it.spare_room
        """,
    "the name elsewhere": """
        class A:
            def __init__(self, kv_allocator: BaseTokenToKVPoolAllocator): ...
        def f(batch): batch.cache.kv_allocator.spare_room
        """,
    "an alias": "def f(x: BaseTokenToKVPoolAllocator):\n    y = z = x or None\n    z.spare_room",
    "a walrus": "def f(x: BaseTokenToKVPoolAllocator):\n    if (y := x): y.spare_room",
    "an argument": "def f(x): x.spare_room\ndef g(a: BaseTokenToKVPoolAllocator): f(a)",
    "an argument by name": "def f(*, x): x.spare_room\ndef g(a: BaseTokenToKVPoolAllocator): f(x=a)",
    "an argument of a method": """
        class A:
            def f(self, x): x.spare_room
            def g(self, a: BaseTokenToKVPoolAllocator): self.f(a)
        """,
    "a field": """
        @dataclass
        class P:
            x: BaseTokenToKVPoolAllocator
        def f(p): ...
        class A(P):
            def g(self): self.x.spare_room
        """,
    "a constructor of a data class": """
        @dataclass
        class P:
            it: Any
            def g(self): self.it.spare_room
        def f(a: BaseTokenToKVPoolAllocator): P(a)
        """,
    "a result": "def f() -> BaseTokenToKVPoolAllocator: ...\ndef g():\n    f().spare_room",
    "a result that is not annotated": "def f(a: BaseTokenToKVPoolAllocator): return a\ndef g(): f(1).spare_room",
    "a property": """
        class A:
            def __init__(self, x: BaseTokenToKVPoolAllocator): self.it = x
            @property
            def that(self): return self.it
            def f(self): self.that.spare_room
        """,
    "getattr": "def f(x: BaseTokenToKVPoolAllocator): getattr(x, 'spare_room', None)",
    "getattr of a part": """
        class A:
            def __init__(self, kv_allocator: BaseTokenToKVPoolAllocator): ...
        def f(batch): getattr(batch, 'kv_allocator', None).spare_room
        """,
    "hasattr": "def f(x: BaseTokenToKVPoolAllocator): hasattr(x, 'spare_room')",
    "a nested function": "def f(x: BaseTokenToKVPoolAllocator):\n    def g(): x.spare_room",
}


@pytest.mark.parametrize("way", WAYS)
def test_an_allocator_is_recognised(way: str, tmp_path: Path) -> None:
    assert missing(tmp_path, WAYS[way]) == BOTH


def test_a_subclass_counts_with_what_it_inherits(tmp_path: Path) -> None:
    code = """
        class Mine(TokenToKVPoolAllocator):
            def free(self, free_index): self.spare_room; self.own
            def own(self): super().inner()
        def f(x: Mine): x.free(1); x.own()
    """
    assert missing(tmp_path, code) == {("Tok", "spare_room", "absent"), ("Tok", "inner", "absent")}


def test_the_class_of_a_part_is_known(tmp_path: Path) -> None:
    code = "def f(x: SWATokenToKVPoolAllocator): x.swa_attn_allocator.spare_room"
    assert missing(tmp_path, code) == {("Tok", "spare_room", "absent")}


def test_what_is_set_must_be_settable(tmp_path: Path) -> None:
    code = "def f(x: TokenToKVPoolAllocator):\n    x.free_pages = x.free_pages[1:]\n    x.size = 3"
    assert missing(tmp_path, code) == {("Tok", "free_pages", "cannot be set")}
    assert missing(tmp_path, "def f(x: TokenToKVPoolAllocator): setattr(x, 'free_pages', 1)") == {
        ("Tok", "free_pages", "cannot be set")
    }


def test_the_arguments_of_a_call_must_fit(tmp_path: Path) -> None:
    assert missing(tmp_path, "def f(x: TokenToKVPoolAllocator): x.alloc(need_size=1)") == set()
    assert missing(tmp_path, "def f(x: TokenToKVPoolAllocator): x.alloc(*a, **k)") == set()
    ours = {**OURS, "TokenToKVPoolAllocator": type("Less", (Ours,), {"alloc": lambda _: None})()}
    (found,) = compat.compared(tmp_path, ours, ())["missing"] or [{}]
    assert not found
    rows(tmp_path, "def f(x: TokenToKVPoolAllocator): x.alloc(3)")
    (found,) = compat.compared(tmp_path, ours, ())["missing"]
    assert (found["member"], found["what"]) == ("alloc", "does not take the arguments")


def test_a_call_that_the_engines_class_cannot_take_is_of_another_class(tmp_path: Path) -> None:
    code = "def f(x: BaseTokenToKVPoolAllocator): x.free_swa(1, start=2); x.free_swa(1, other=2)"
    (found,) = rows(tmp_path, code)["used"]
    assert (found["class"][:3], found["used_in"]) == ("SWA", ["user.py:1"])
    assert missing(tmp_path, "def f(x: BaseTokenToKVPoolAllocator): x.free_swa(1, other=2)") == set()


@pytest.mark.parametrize(
    "code",
    [
        "def f(x): x.spare_room",
        "def f(x: OtherAllocator): x.spare_room",
        "def f():\n    x = OtherAllocator()\n    x.spare_room()",
        "def f(batch): batch.allocator.spare_room",
        "def f(x: BaseTokenToKVPoolAllocator): x.no_member_of_the_engine",
        "def f(x: BaseTokenToKVPoolAllocator): x.alloc(1)",
    ],
)
def test_what_is_no_use_of_a_member_that_ours_lack(code: str, tmp_path: Path) -> None:
    assert missing(tmp_path, code) == set()


def test_the_code_of_a_replaced_class_goes_with_it_but_for_its_hooks(tmp_path: Path) -> None:
    code = """
        class Budget:
            def __init__(self, it, tree): self.it = it
            def left(self): return self.it.spare_room
        def f(x: BaseTokenToKVPoolAllocator): x.resize(1)
    """
    assert missing(tmp_path, code) == BOTH | {("Tok", "resize", "absent"), ("SWA", "resize", "absent")}
    found = rows(tmp_path, code, ("resize",))
    assert {row["member"] for row in found["inherited"]} == {"resize"}
    assert {row["member"] for row in found["missing"]} == {"spare_room", "inner"}, "what a hook touches counts"


def test_a_reason_is_of_the_member_or_of_every_class_that_touches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        class A(TokenToKVPoolAllocator):
            def f(self): self.spare_room
        class B(TokenToKVPoolAllocator):
            def f(self): self.spare_room
    """
    monkeypatch.setitem(refused.SUBCLASSES, "A", "because of A")
    (row,) = rows(tmp_path, code)["missing"]
    assert (row["reason"], row["used_in"]) == ("", ["user.py:3", "user.py:5"])
    monkeypatch.setitem(refused.SUBCLASSES, "B", "because of B")
    (row,) = rows(tmp_path, code)["missing"]
    assert row["reason"] == "because of A; because of B"
    monkeypatch.setitem(refused.REFUSED, ("TokenToKVPoolAllocator", "spare_room"), "on purpose")
    (row,) = rows(tmp_path, code)["missing"]
    assert row["reason"] == "on purpose"


def test_a_file_that_is_no_python_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("alloc = (")
    with pytest.raises(EngineError, match=r"broken\.py line 1 cannot be parsed"):
        files(tmp_path)


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["slotproof", "compat", *words])
    return cli.run()


def test_the_exit_code_is_1_where_a_reason_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package, out = tmp_path / "sglang", tmp_path / "out.json"
    (package / "srt" / "mem_cache").mkdir(parents=True)
    code = textwrap.dedent(ALLOCATORS) + "\ndef f(x: TokenToKVPoolAllocator): x.spare_room\n"
    (package / "srt" / "mem_cache" / "allocators.py").write_text(code)
    words = ("sglang", "--source", str(tmp_path), "--json", str(out))
    assert run(monkeypatch, *words) == codes.BROKEN
    (row,) = json.loads(out.read_text())["missing"]
    assert {key: row[key] for key in ("class", "member", "reason")} == {
        "class": "TokenToKVPoolAllocator",
        "member": "spare_room",
        "reason": "",
    }
    assert row["used_in"][0].startswith("srt/mem_cache/allocators.py:")
    assert "spare_room" in capsys.readouterr().out
    monkeypatch.setitem(refused.REFUSED, ("TokenToKVPoolAllocator", "spare_room"), "on purpose")
    assert run(monkeypatch, *words) == codes.HOLDS
    assert "on purpose" in capsys.readouterr().out


def test_an_engine_without_classes_that_ours_stand_in_for_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "toy") == codes.USAGE
    assert "no class that our allocators can replace" in capsys.readouterr().err
    assert run(monkeypatch, "sglang") == codes.USAGE


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize("release", [NEWEST, "0.5.14"])
def test_ours_lack_nothing_of_a_release_without_a_reason(release: str) -> None:
    found = compat.compared(have(release) / "sglang", stand_ins(), HOOKS)
    assert [row for row in found["missing"] if not row["reason"]] == []
    used = {(row["class"], row["member"]) for row in found["used"]}
    # What every server calls, and what was missing once: the walk must see them.
    for name in ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator", "SWATokenToKVPoolAllocator"):
        for member in ("alloc", "free", "available_size", "free_group_begin", "get_cpu_copy", "load_cpu_copy"):
            assert (name, member) in used
    assert ("MambaSlotAllocator", "alloc") in used
    assert all(row["used_in"] for row in found["used"])


@pytest.mark.soak
@pytest.mark.engine
def test_every_reason_is_of_a_class_of_the_newest_release() -> None:
    """A reason that nothing needs any more is taken off the list."""
    known = Classes.of(files(have(PLUGIN.releases[-1]) / "sglang"))
    assert [name for name in refused.SUBCLASSES if name not in known.known] == []
    for name in refused.SUBCLASSES:
        assert len(set(stand_ins()) & {parent.name for parent in known.line(name)}) == 1
