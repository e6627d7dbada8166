"""What counts as a function that mends a finding, on two releases of an allocator that are written here."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from driven import have

from conformance.driver.lockstep import CONFORMS, VIOLATION
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.engines.registry import Loaded
from conformance.search.mends import Attempts, Mend, ShownTrace, found, mends_elsewhere, shown, why_not
from conformance.search.replacing import FunctionPlace, OtherRelease, add_needed, definitions, differs, new_names
from conformance.traces.trace_files import Kept
from slotproof.pages import kept_findings, mend_pages
from slotproof.pages.mend_pages import MendedFinding

POOL = """
from conformance.stems.allocator.protocol import AllocatorSnapshot

def whole(slots):
    return list(dict.fromkeys(slots))

class Base:
    fragile = False
    lacks = ("alloc", "begin_group", "end_group", "backup", "restore", "bad", "free_segment")

    def put(self, pages):
        self.free_pages += pages

class Pool(Base):
    def __init__(self, pages):
        self.free_pages = list(range(1, pages + 1))
        self.pages = pages

    def extend(self, before, after, last):
        wanted = sum(after) - sum(before)
        return None if wanted > len(self.free_pages) else [self.free_pages.pop(0) for _ in range(wanted)]

    def decode(self, after, last):
        return self.extend([n - 1 for n in after], after, last)

    def free(self, slots):
        self.put(whole(slots){FREED})

    def clear(self):
        self.free_pages = list(range(1, self.pages + 1))

    def snapshot(self):
        return AllocatorSnapshot(list(self.free_pages), [], len(self.free_pages))
"""
LEAKS = "[:-1] if len(slots) > 1 else slots"  # of several pages the last one is forgotten
CONFIG = {"need_sort": False, "rows": 2, "page_size": 1, "size": 4, "size_swa": 1}


def of(*steps: tuple[str, Json], name: str = "broken") -> Kept:
    return Kept(name, "", "", "", Trace("allocator", dict(CONFIG), [{"op": op, **given} for op, given in steps]))


EXTEND, FINISH = ("extend", {"rows": [0], "more": [2]}), ("finish", {"row": 0, "committed": 2})
BROKEN = of(EXTEND, FINISH)
LAWFUL = of(("extend", {"rows": [0], "more": [1]}), ("finish", {"row": 0, "committed": 1}), name="lawful")


class Releases:
    """Two releases in folders; the first one is loaded."""

    def __init__(self, folder: Path, first: str, second: str) -> None:
        self.folder, self.name = folder, f"pool_of_{folder.name}"
        for release, text in (("one", first), ("two", second)):
            (folder / release).mkdir()
            (folder / release / "pool.py").write_text(textwrap.dedent(text), encoding="utf-8")
        module = self._imported("one", self.name)
        self.loaded = self._loaded(module, "one")
        self.later = self._loaded(self._imported("two", f"{self.name}_later"), "two")

    def _imported(self, release: str, name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, self.folder / release / "pool.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    def _loaded(self, module: ModuleType, release: str) -> Loaded:
        makers = {"allocator": lambda config: module.Pool(config["size"])}
        return Loaded("pool", release, makers, roots=(self.folder / release,))

    def mended(self, *kept: Kept, lawful: tuple[Kept, ...] = (LAWFUL,)) -> dict[str, Mend]:
        """What mends these traces."""
        later = {one.name: shown(one, self.later) for one in kept}
        other = OtherRelease(self.folder / "two", self.folder / "one")
        return found(Attempts(self.loaded, other, kept, later), lawful)

    def close(self) -> None:
        for name in (self.name, f"{self.name}_later"):
            sys.modules.pop(name, None)


@pytest.fixture
def made() -> Iterator[list[Releases]]:
    several: list[Releases] = []
    yield several
    for one in several:
        one.close()


def releases(made: list[Releases], folder: Path, second: str, first: str = POOL.replace("{FREED}", LEAKS)) -> Releases:
    made.append(Releases(folder, first, second))
    return made[-1]


GOOD = POOL.replace("{FREED}", "")


def test_the_function_that_the_next_release_has_changed_mends(tmp_path: Path, made: list[Releases]) -> None:
    assert releases(made, tmp_path, GOOD).mended(BROKEN) == {"broken": Mend((FunctionPlace("pool.py", "Pool.free"),))}


def test_the_loaded_release_is_as_it_was_afterwards(tmp_path: Path, made: list[Releases]) -> None:
    several = releases(made, tmp_path, GOOD)
    several.mended(BROKEN)
    assert shown(BROKEN, several.loaded).verdict == VIOLATION


@pytest.mark.parametrize(
    ("freed", "why"),
    [
        ("self.put(whole(slots)); raise RuntimeError('not now')", "the call raises"),
        ("pass", "nothing is freed"),
        ("self.put(whole(slots) * (1 if len(slots) > 1 else 2))", "a lawful trace is broken"),
        ("self.put(new_helper(slots))", "the text asks for what this release lacks"),
    ],
)
def test_a_wrong_text_mends_nothing(tmp_path: Path, made: list[Releases], freed: str, why: str) -> None:
    wrong = GOOD.replace("self.put(whole(slots))", freed)
    several = releases(made, tmp_path, wrong)
    right = {"broken": ShownTrace(CONFORMS, took=shown(BROKEN, Releases(_other(tmp_path), GOOD, GOOD).loaded).took)}
    attempts = Attempts(several.loaded, OtherRelease(tmp_path / "two"), [BROKEN], right)
    assert found(attempts, [LAWFUL]) == {}, why


def _other(folder: Path) -> Path:
    (folder / "lawful").mkdir()
    return folder / "lawful"


def test_a_text_that_makes_the_engine_refuse_on_the_way_mends_nothing(tmp_path: Path, made: list[Releases]) -> None:
    """The broken step is never reached: the row has no pages to give back."""
    kept = of(EXTEND, ("extend", {"rows": [1], "more": [3]}), FINISH)
    before = shown(kept, releases(made, tmp_path, GOOD).loaded)
    assert (before.step, [*before.took[1]]) == (3, ["alloc_extend refused"])
    later = ShownTrace(CONFORMS, took=[*before.took[:2], {"free done": 1}])
    assert why_not(before, ShownTrace(CONFORMS, took=later.took), later, 3) == ""
    refuses = ShownTrace(CONFORMS, took=[{"alloc_extend refused": 1}, *later.took[1:]])
    assert why_not(before, refuses, later, 3) == "operation 1 does something else than on either release"
    nothing = ShownTrace(CONFORMS, took=[*later.took[:2], {}])
    assert why_not(before, nothing, later, 3) == "operation 3 does something else than on either release"
    assert why_not(before, ShownTrace(CONFORMS, took=later.took[:2]), later, 3) == "2 of 3 operations were sent"
    assert (
        why_not(before, ShownTrace(VIOLATION, 3, "no_leak", "invariant", later.took), later, 3) == "it breaks no_leak"
    )
    assert why_not(before, ShownTrace("unsupported", 1), later, 3) == "an operation cannot be sent"


def test_after_the_broken_step_a_mended_run_may_go_its_own_way() -> None:
    before = ShownTrace(VIOLATION, 1, "no_leak", "invariant", [{"free done": 1}])
    later = ShownTrace(CONFORMS, took=[{"free done": 1}, {"evict done": 2}])
    assert why_not(before, ShownTrace(CONFORMS, took=[{"free done": 1}, {}]), later, 2) == ""


def test_a_comment_is_no_change(tmp_path: Path, made: list[Releases]) -> None:
    first = POOL.replace("{FREED}", LEAKS)
    assert releases(made, tmp_path, first.replace("    def free", "    # freed\n    def free")).mended(BROKEN) == {}


def test_a_helper_that_only_the_next_release_has_is_added(tmp_path: Path, made: list[Releases]) -> None:
    second = (
        GOOD.replace("whole(slots))", "self.every(slots))") + "\n    def every(self, slots):\n        return [*slots]\n"
    )
    assert releases(made, tmp_path, second).mended(BROKEN)["broken"].places == (FunctionPlace("pool.py", "Pool.free"),)


def test_only_names_that_a_function_needs_are_added(tmp_path: Path, made: list[Releases]) -> None:
    """A property of the next release would take the place of an attribute that this release assigns."""
    second = GOOD.replace("        self.pages = pages\n", "").replace("put(whole(slots))", "put(self.all(slots))")
    second += "\n    all = whole_as_method\n    most = 4\n\n    @property\n    def pages(self):\n        return 4\n"
    helper = "def whole_as_method(self, slots):\n    return whole(slots)\n\nclass Pool("
    several = releases(made, tmp_path, second.replace("class Pool(", helper))
    assert several.mended(BROKEN)["broken"].places == (FunctionPlace("pool.py", "Pool.free"),)
    module = sys.modules[several.name]
    one, two = tmp_path / "one", tmp_path / "two"
    known = new_names(["pool.py"], one, OtherRelease(two))
    assert {name for one in known for name in one.names} == {"whole_as_method", "all", "most"}
    add_needed([("pool.py", definitions(two / "pool.py")["Pool.free"])], known, one, two)
    pool = vars(module)["Pool"]
    assert [hasattr(pool, name) for name in ("all", "most", "pages")] == [True, False, False]
    assert hasattr(module, "whole_as_method")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("\ndef biggest():\n    return 100\n\nmost = biggest()\n", "the name is made by a function that is new, too"),
        ("\nmost = biggest()\n\nclass Later:\n    pass\n\ndef biggest():\n    return 100\n", "and stands behind it"),
        ("\nmost: int = 100\n", "the name has an annotation"),
        ("\nfrom sys import nowhere, maxsize as most\n", "a name that this release lacks is imported beside it"),
    ],
)
def test_a_new_name_is_added_however_it_is_made(tmp_path: Path, made: list[Releases], more: str, why: str) -> None:
    second = GOOD.replace("self.put(whole(slots))", "self.put(whole(slots)[:most])")
    several = releases(made, tmp_path, second)
    (tmp_path / "two" / "pool.py").write_text(textwrap.dedent(second) + more, encoding="utf-8")
    places = (FunctionPlace("pool.py", "Pool.free"),)
    later = {BROKEN.name: ShownTrace(CONFORMS, took=shown(BROKEN, Releases(_other(tmp_path), GOOD, GOOD).loaded).took)}
    attempts = Attempts(several.loaded, OtherRelease(tmp_path / "two"), [BROKEN], later)
    assert found(attempts, [LAWFUL])[BROKEN.name].places == places, why


def test_what_describes_a_field_is_not_added(tmp_path: Path, made: list[Releases]) -> None:
    second = GOOD.replace(
        "class Pool(Base):", "class Pool(Base):\n    most: list = field(default_factory=list)\n    least: int = 1"
    )
    several = releases(made, tmp_path, GOOD)
    (tmp_path / "two" / "pool.py").write_text(textwrap.dedent(second), encoding="utf-8")
    assert "least: int" in second
    known = new_names(["pool.py"], several.loaded.roots[0], OtherRelease(tmp_path / "two"))
    assert {name for one in known for name in one.names} == {"least"}


def test_a_class_is_not_asked_for_its_names(tmp_path: Path, made: list[Releases]) -> None:
    """What stands in for another package refuses to answer."""
    refuses = "class Refuses(type):\n    def __getattr__(cls, name):\n        raise RuntimeError(name)\n\n"
    first = refuses + textwrap.dedent(GOOD).replace("class Base:", "class Base(metaclass=Refuses):")
    several = releases(made, tmp_path, first + "\n    def every(self):\n        pass\n", first)
    known = new_names(["pool.py"], several.loaded.roots[0], OtherRelease(tmp_path / "two"))
    assert {name for one in known for name in one.names} == {"every"}


@pytest.mark.parametrize("how", ["absolute", "relative", "in the function"])
def test_new_names_that_are_imported_are_added_where_they_come_from(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what they need there, and nothing else; a name that stands nowhere is left out alone."""
    package = f"tools_of_{tmp_path.name}"
    newer = "def fresh():\n    return _seven()\n\ndef _seven():\n    return 7\n\ndef unused():\n    pass\n"
    line = f"from {'.tools' if how == 'relative' else package + '.tools'} import lost, fresh, unused\n"
    free = f"{line}def free():\n    return fresh(), lost()\n"
    if how == "in the function":
        free = f"def free():\n    from {package}.tools import fresh\n    return fresh()\n"
    for release, texts in (("one", ("", "def free():\n    pass\n")), ("two", (newer, free))):
        (tmp_path / release / package).mkdir(parents=True)
        for name, text in zip(("__init__", "tools", "pool"), ("", *texts), strict=True):
            (tmp_path / release / package / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "one"))
    tools, pool = (importlib.import_module(f"{package}.{name}") for name in ("tools", "pool"))
    try:
        root, other = tmp_path / "one" / package, OtherRelease(tmp_path / "two" / package)
        function = definitions(other.root / "pool.py")["free"]
        files = ["pool.py"] if how != "in the function" else ["pool.py", "tools.py"]
        add_needed([("pool.py", function)], new_names(files, root, other), root, other.root)
        assert [name for name in ("fresh", "_seven", "unused", "lost") if hasattr(tools, name)] == ["fresh", "_seven"]
        assert tools.fresh() == 7
        assert [hasattr(pool, name) for name in ("fresh", "unused", "lost")] == [how != "in the function", False, False]
    finally:
        for name in (package, tools.__name__, pool.__name__):
            sys.modules.pop(name, None)


def test_a_class_that_was_moved_and_got_another_name_mends(tmp_path: Path, made: list[Releases]) -> None:
    second = GOOD.replace("class Pool(", "class Slots(").replace("whole(slots))", "self.every(slots))")
    second += "\n    def every(self, slots):\n        return [*slots]\n"
    several = releases(made, tmp_path, GOOD)
    (tmp_path / "two" / "pool.py").unlink()
    (tmp_path / "two" / "slots.py").write_text(textwrap.dedent(second), encoding="utf-8")
    assert several.mended(BROKEN)["broken"].places == (FunctionPlace("pool.py", "Pool.free"),)


@pytest.mark.parametrize(
    ("text", "file", "name"),
    [
        ("def a(): pass\nclass New:\n    def f(self): pass\n    def g(self): pass\n", "new.py", "New"),
        ("def a(): pass\nclass New:\n    def f(self): pass\n", "new.py", "New"),
        ("def a(): pass\nclass New:\n    def h(self): pass\n", "new.py", ""),
        ("def a(): pass\nclass New:\n    def f(self): pass\nclass Newer:\n    def g(self): pass\n", "new.py", ""),
        ("class New:\n    def f(self): pass\n    def g(self): pass\n", "", ""),
    ],
)
def test_a_file_and_a_class_are_found_by_what_they_define(tmp_path: Path, text: str, file: str, name: str) -> None:
    for release, where in (("one", "old.py"), ("two", "new.py")):
        (tmp_path / release).mkdir()
        was = "def a(): pass\nclass Old:\n    def f(self): pass\n    def g(self): pass\n"
        (tmp_path / release / where).write_text(text if release == "two" else was, encoding="utf-8")
    other = OtherRelease(tmp_path / "two", tmp_path / "one")
    assert other.file_for("old.py") == file
    assert other.class_for("old.py", "Old") == name
    assert (other.text(FunctionPlace("old.py", "Old.f")) is not None) == bool(name)


def test_a_function_that_the_class_inherits_in_the_next_release_mends(tmp_path: Path, made: list[Releases]) -> None:
    free = "    def free(self, slots):\n        self.put(whole(slots))\n"
    second = GOOD.replace(free, "").replace("class Base:\n", f"class Base:\n{free}")
    assert releases(made, tmp_path, second).mended(BROKEN)["broken"].places == (FunctionPlace("pool.py", "Pool.free"),)


def test_names_alone_are_no_mend(tmp_path: Path, made: list[Releases]) -> None:
    """The release asks whether a name is there that the text of the next one needs: then its own text keeps the law,
    too, so that nobody can say that this function was the cause.
    """
    first = POOL.replace("{FREED}", "[: None if hasattr(self, 'mended') else -1] if len(slots) > 1 else slots")
    free = "self.mended()\n        self.put(whole(slots))"
    second = GOOD.replace("self.put(whole(slots))", free) + "\n    def mended(self):\n        pass\n"
    assert releases(made, tmp_path, second, first).mended(BROKEN) == {}


TWO = GOOD.replace("self.put(whole(slots))", "self.put(whole(slots), True)").replace(
    "def put(self, pages):", "def put(self, pages, every):\n        assert every"
)


def test_of_several_functions_none_can_be_left_out(tmp_path: Path, made: list[Releases]) -> None:
    second = TWO.replace("def clear(self):", "def clear(self):\n        self.cleared = True")
    several = releases(made, tmp_path, second)
    places = (FunctionPlace("pool.py", "Base.put"), FunctionPlace("pool.py", "Pool.free"))
    clear = of(EXTEND, FINISH, name="broken")
    assert {*several.mended(clear)["broken"].places} == {*places}


KEEPER = """
class Keeper:
    def keep(self, slots):
        return whole(slots)[:1]

class Other:
    def keep(self, slots):
        return slots

KEEPER, OTHER = Keeper(), Other()

class Pool("""


def test_classes_are_changed_together_of_which_one_needs_what_is_new_in_the_other(
    tmp_path: Path, made: list[Releases]
) -> None:
    """``Pool.free`` needs the attribute that a method of ``Keeper`` sets; neither mends without the other. ``Other``
    needs an attribute that its constructor sets, so that all changed functions together do not mend.
    """
    first = textwrap.dedent(GOOD).replace("put(whole(slots))", "put(KEEPER.keep(slots))")
    first = first.replace("wanted = sum(after)", "OTHER.keep([])\n        wanted = sum(after)")
    second = first.replace("KEEPER.keep(slots)", "KEEPER.keep(slots) or KEEPER.every")
    later = KEEPER.replace("return whole(slots)[:1]", "self.every = whole(slots)")
    later = later.replace("return slots", "return slots[: self.most]\n    def __init__(self):\n        self.most = 9")
    two = [text.replace("class Pool(", more, 1) for text, more in ((second, later), (first, KEEPER))]
    several = releases(made, tmp_path, *two)
    places = (FunctionPlace("pool.py", "Keeper.keep"), FunctionPlace("pool.py", "Pool.free"))
    assert {*several.mended(BROKEN)["broken"].places} == {*places}
    other = OtherRelease(tmp_path / "two", tmp_path / "one")
    attempts = Attempts(several.loaded, other, [BROKEN], {BROKEN.name: shown(BROKEN, several.later)})
    assert attempts.new_in(places[:1]) == {"every"}
    assert "every" in attempts.words(places[1])


ZERO = "[page for page in self.free_pages if page]"


def test_a_lawful_trace_may_need_what_was_changed_in_step(tmp_path: Path, made: list[Releases]) -> None:
    """The next release marks each free by a page 0 on its list: ``free`` and ``snapshot`` mend, and a lawful trace that
    allocates again needs ``extend``, too, which the broken trace does not need.
    """
    second = GOOD.replace("self.put(whole(slots))", "self.put([*whole(slots), 0])")
    second = second.replace("list(self.free_pages), [], len(self.free_pages)", f"{ZERO}, [], len({ZERO})")
    second = second.replace(
        "        wanted = sum(after)", f"        self.free_pages = {ZERO}\n        wanted = sum(after)"
    )
    grown = ("extend", {"rows": [0], "more": [1]}), ("finish", {"row": 0, "committed": 1})
    lawful = of(*grown, *grown, ("extend", {"rows": [0], "more": [4]}), name="lawful")
    mended = releases(made, tmp_path, second).mended(BROKEN, lawful=(lawful,))
    assert {place.name for place in mended["broken"].places} == {"Pool.free", "Pool.snapshot"}


def test_the_function_that_mends_most_traces_stands_first(tmp_path: Path, made: list[Releases]) -> None:
    first = POOL.replace("{FREED}", LEAKS).replace("self.free_pages += pages", "self.free_pages += pages  # as it is")
    second = GOOD.replace(
        "return list(dict.fromkeys(slots))", "return [*dict.fromkeys(slots), *dict.fromkeys(slots[:0])]"
    )
    mended = releases(made, tmp_path, second, first).mended(BROKEN, of(EXTEND, FINISH, EXTEND, name="again"))
    assert mended["broken"] == mended["again"] == Mend((FunctionPlace("pool.py", "Pool.free"),))


def test_a_function_is_replaced_wherever_it_was_imported(tmp_path: Path, made: list[Releases]) -> None:
    first = GOOD.replace(
        "return list(dict.fromkeys(slots))", f"return list(slots){LEAKS}".replace("else slots", "else list(slots)")
    )
    several = releases(made, tmp_path, GOOD, first)
    other = ModuleType(f"{several.name}_other")
    other.whole = vars(sys.modules[several.name])["whole"]  # type: ignore[attr-defined]
    sys.modules[other.__name__] = other
    try:
        assert several.mended(BROKEN)["broken"].places == (FunctionPlace("pool.py", "whole"),)
    finally:
        del sys.modules[other.__name__]


def test_a_moved_function_is_found_where_one_file_has_it(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text("class A:\n    def f(self):\n        return 1\n", encoding="utf-8")
    other = OtherRelease(tmp_path)
    moved = other.text(FunctionPlace("old.py", "A.f"))
    assert moved is not None
    assert moved.name == "f"
    assert other.text(FunctionPlace("old.py", "A.g")) is None
    assert other.text(FunctionPlace("new.py", "A")) is None
    (tmp_path / "newer.py").write_text("class A:\n    def f(self):\n        return 2\n", encoding="utf-8")
    assert OtherRelease(tmp_path).text(FunctionPlace("old.py", "A.f")) is None


def test_docstrings_are_no_difference(tmp_path: Path) -> None:
    for name, text in {
        "a.py": "def f():\n    '''One.'''\n    return 1\n",
        "b.py": "def f():\n    return (1)\n",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "c.py").write_text("def f():\n    return 2\n", encoding="utf-8")
    one, same, other = (definitions(tmp_path / name)["f"] for name in ("a.py", "b.py", "c.py"))
    assert not differs(one, same)
    assert differs(one, other)


# What is kept.

KEPT = mend_pages.kept_mends()
ENDED = {
    (one.engine, one.finding, one.release): one
    for one in mend_pages.ended(kept_findings.with_rows(kept_findings.kept()))
}


def test_each_finding_that_the_next_release_can_be_sent_was_tried_and_no_other() -> None:
    assert {one.key for one in KEPT} == {key for key, one in ENDED.items() if one.kept_there}
    assert all(ENDED[one.key].after == one.repaired_in for one in KEPT)


def test_the_file_is_as_the_command_writes_it() -> None:
    assert json.loads(mend_pages.KEPT.read_text("utf-8"))
    kept = {one.key for one in KEPT}
    assert [one.key for one in KEPT] == [key for key in ENDED if key in kept]


@pytest.mark.soak(but=8)  # a kept line changes by a command alone
@pytest.mark.engine
@pytest.mark.parametrize("one", [one for one in KEPT if one.engine == "sglang"], ids=lambda one: "-".join(one.key))
def test_the_kept_lines_are_those_of_the_functions(one: MendedFinding) -> None:
    root = have(one.release) / "sglang"
    for told in (*one.functions, *one.others):
        assert definitions(root / told["file"])[told["function"]].lineno == told["line"]


@pytest.mark.soak
@pytest.mark.engine
def test_a_kept_mend_is_found_again() -> None:
    """The one function that mends all findings that 0.5.13 was the last to show; one of its traces is tried here."""
    have("0.5.13"), have("0.5.14")
    kept = next(one for one in KEPT if one.key == ("sglang", "partial_free_keeps_mapping", "0.5.13"))
    again = mends_elsewhere("sglang", "0.5.13", "0.5.14", [kept.finding], [])[kept.finding]
    assert again["functions"] == [*kept.functions]
    assert [told["function"] for told in again["functions"]] == ["SWATokenToKVPoolAllocator.free_swa"]


def test_each_engine_with_releases_says_where_its_calls_begin() -> None:
    assert all(hasattr(engine, "entrances") for engine in registry.released())
