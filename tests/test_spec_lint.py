"""The spec lint catches each thing that Python would ask the truth of a symbol for, and the spec says none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_backend.wheel_layout import moved
from slotproof.spec_lint import files, lint, main

SPEC = Path(__file__).resolve().parents[1] / "spec"

FORBIDDEN = {
    "if": "if a:\n        return b",
    "elif": "if a:\n        pass\n    elif b:\n        return a",
    "ternary": "return a if b else c",
    "while": "while a:\n        pass",
    "for": "for x in a:\n        pass",
    "assert": "assert a",
    "match": "match a:\n        case 1:\n            return b",
    "not": "return not a",
    "and": "return a and b",
    "or": "return a or b",
    "in": "return a in b",
    "not in": "return a not in b",
    "chained": "return a < b < c",
    "is": "return a is b",
    "is not": "return a is not b",
    "is none": "return ite(a is None, b, c)",
    "a tuple that is compared": "return (a,) == (b,)",
    "a method that is compared": "return a.put == b.put",
    "a method that is kept": "d = a.put\n    return d(b, c)",
    "nothing": "return a.put(b, None)",
    "a number that is not whole": "return a < 0.5",
    "arguments of any name": "def law(**more) -> None:\n        return more\n    return law",
    "list comprehension": "return [x for x in a]",
    "set comprehension": "return {x for x in a}",
    "dict comprehension": "return {x: x for x in a}",
    "generator": "return tuple(x for x in a)",
    "filter": "return a.all(x for x in b if x)",
    **{
        name: f"return {name}(a)" for name in ("bool", "int", "min", "max", "abs", "sorted", "any", "all", "sum", "len")
    },
    "in a lambda": "return a.all(lambda x: x and b)",
    "in a nested function": "def law(x):\n        return x or b\n    return a.all(law)",
    "in a condition": "return a.where(lambda k: k in b, 1, b.items)",
    "in a value": "return a.where(b.has, lambda k: 1 if k else 2, b.items)",
    "in a law": "return a.such(lambda k: not k, b.items)",
    "in a listing that is no function": "return a.where(b.has, 1, [x for x in b])",
    "in a listing that is used elsewhere": "def keys():\n        return [x for x in b]\n"
    "    return a.where(b.has, keys(), keys)",
    **{
        name: f"return {name}(a)"
        for name in (
            "getattr",
            "hasattr",
            "type",
            "callable",
            "isinstance",
            "hash",
            "id",
            "repr",
            "str",
            "next",
            "eval",
            "vars",
        )
    },
    "a look-up": "return {3: 7}.get(a, b)",
    "a look-up in something": "return a.get(b)",
    "a look-up by index": "return a[b]",
    "a dictionary": "return {3: 7}",
    "a set": "return {a, b}",
    "try": "try:\n        return a\n    except TypeError:\n        return b",
    "raise": "raise TypeError(a)",
    "with": "with a:\n        return b",
    "walrus": "return (d := a) & d",
    "assigned twice": "d = a\n    law = lambda k: k == d\n    d = b\n    return c.all(law)",
    "assigned twice, an argument": "law = lambda k: k == a\n    a = b\n    return c.all(law)",
    "assigned twice, augmented": "d = a\n    d += b\n    return d",
    "assigned twice, in a function": "def law(k):\n        d = k\n        d = b\n        return d\n    return law",
    "a list that changes": "d = [a]\n    law = lambda k: k == d[0]\n    d.append(b)\n    return c.all(law)",
    "an item that changes": "d = [a]\n    law = lambda k: k == d[0]\n    d[0] = b\n    return c.all(law)",
    "an attribute that changes": "law = lambda k: k == a.b\n    a.b = c\n    return c.all(law)",
    "a function defined twice": "def d(k):\n        return a\n    def d(k):\n        return b\n    return c.all(d)",
    "global": "global d\n    d = a\n    return d",
    "del": "d = a\n    del d\n    return a",
    "an import": "import functools\n    return a",
    "an import of a name": "from functools import cache\n    return cache(a)",
    "a private attribute": "return a.__class__",
    "yield": "yield a",
    "a class": "class D:\n        d = a\n    return D",
    "a decorator": "@c\n    def law(k):\n        return k\n    return a.all(law)",
    "in a default": "def law(x=a and b):\n        return x\n    return law",
}

ALLOWED = {
    "the words of spec.logic": "return ite(a & b | no(c), implies(a, b), (a < b) & (b < c))",
    "names that are assigned once": "d = a + b\n    e = d + c\n    return a.all(lambda k: k == e)",
    "one name in two functions": "d = a + b\n    return a.all(lambda d: d == b)",
    "a constant index": "return a[0] & a[1]",
    "a function of the file": "return law(a, b, c)",
    "a name that was given": "return a(b)",
    "methods": "return a.all(lambda k: b.any(lambda j: c(j) == k)) & (a.count(b.has) == 0)",
    "a listing": "return a.where(b.has, 1, lambda: [x for x in b.items() if x])",
    "a listing by keyword": "return a.where(b.has, 1, among=lambda: [x for x in b.items() if x])",
    "a listing of a set": "return a.such(b.has, lambda: [x for x in b.items() if x and not c])",
    "a named listing": "def keys():\n        return [x for x in b if x]\n    return a.where(b.has, 1, keys)",
}


def _function(body: str) -> str:
    return f'"""Spec."""\nfrom spec.logic import implies, ite, no\n\ndef law(a, b, c):\n    """A law."""\n    {body}\n'


@pytest.mark.parametrize("body", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_forbidden(body: str) -> None:
    complaints = lint(_function(body))
    assert complaints
    assert all(c.line >= 6 and c.message for c in complaints)


@pytest.mark.parametrize("body", ALLOWED.values(), ids=ALLOWED.keys())
def test_allowed(body: str) -> None:
    assert lint(_function(body)) == []


def test_a_module_imports_the_spec_alone() -> None:
    assert lint("from functools import singledispatch\n")
    assert lint("import z3\n")
    assert lint("from proofs.symbols import Term\n")
    assert lint("from spec.logic import ite\nfrom dataclasses import dataclass\n") == []


def test_a_method_and_a_lambda_of_a_module_are_looked_at() -> None:
    assert lint("class Pool:\n    def size(self):\n        return self.a or self.b\n")
    assert lint("law = lambda a: not a\n")


def test_what_is_not_read_on_symbols_is_left_alone() -> None:
    assert lint("from spec.logic import Stem\nstem = Stem('a')\nfor law in (1, 2):\n    stem.invariant()(law)\n") == []
    assert lint('def new(a):\n    """A pool\n    (finite reading)."""\n    return [x for x in a if x]\n') == []


def test_plain_integers_only_below_the_border_of_lengths() -> None:
    plain = "# Plain integers at the border.\n\n\ndef aligned(a):\n    return a if a else 0\n"
    assert lint(plain, "spec/lengths.py") == []
    assert lint(plain, "spec/pool.py")
    assert lint("def early(a):\n    return not a\n\n\n" + plain, "lengths.py")[0].line == 2


def test_the_spec_says_nothing_forbidden(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SPEC)]) == 0
    assert capsys.readouterr().out.endswith(" 0 complaints\n")


def test_the_spec_of_an_installed_package_says_none_of_them(tmp_path: Path) -> None:
    """There it is `slotproof.spec`, and imports from there."""
    for path in SPEC.glob("*.py"):
        (tmp_path / path.name).write_text(moved(path.read_text(encoding="utf-8")), encoding="utf-8")
    assert "from slotproof.spec." in (tmp_path / "allocator.py").read_text(encoding="utf-8")
    assert main([str(tmp_path)]) == 0


def test_the_files_of_the_law_are_looked_at() -> None:
    assert {"allocator.py", "swa_mapping.py", "pool.py", "pair.py", "lengths.py"} <= {
        p.name for p in files([str(SPEC)])
    }


def test_a_complaint_names_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(_function("return a and b"), encoding="utf-8")
    assert main([str(tmp_path)]) == 1
    assert f"{bad}:6: `and` asks for the truth of a value" in capsys.readouterr().out


def test_nothing_to_look_at_is_bad_usage(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 3
    assert main([]) == 3


@pytest.mark.parametrize("name", ["allocator.py", "swa_mapping.py", "pool.py", "pair.py"])
def test_a_branch_planted_in_the_spec_is_found(name: str) -> None:
    source = (SPEC / name).read_text(encoding="utf-8")
    planted = source.replace(" & ", " and ", 1)
    assert planted != source
    assert lint(source, name) == []
    assert len(lint(planted, name)) == 1
