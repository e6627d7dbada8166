"""The loader of SGLang releases: what it refuses, what its cache promises, and one real release."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import textwrap
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from driven import NEWEST, sampled

from conformance.driver.protocol import EngineError
from conformance.engines import registry, wheels
from conformance.engines.sglang.releases import download
from conformance.search.connection import Subject
from conformance.traces import known, trace_files
from slotproof.checks.unbuilt import must_be_as_before
from slotproof.console import codes

ENGINE = "0.5.12"
FAKE = {
    "sglang/__init__.py": "raise RuntimeError('never run')",
    "sglang/srt/mem_cache/allocator.py": "class TokenToKVPoolAllocator: ...",
    "sglang/srt/mem_cache/notes.md": "not Python",
    "sglang/jit_kernel/csrc/looked_for.cuh": "",
    "sglang/test/test_it.py": "unused",
    "other/top.py": "unused",
}


def make_wheel(path: Path, files: dict[str, str] = FAKE) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def make_package(root: Path) -> Path:
    (root / "sglang" / "srt" / "mem_cache").mkdir(parents=True)
    return root


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a process of its own: a process can hold one release."""
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLOTPROOF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("version", ["", "latest", "0", "0.5.12 --extra", "../0.5.12", "0.5.12; rm", "-r x"])
def test_a_version_that_is_no_version_is_refused_before_pip_runs(
    version: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_a, **_k: pytest.fail("pip was run"))
    with pytest.raises(EngineError, match="not a release number"):
        download.release(version)
    assert not cache.exists()


@pytest.mark.parametrize("below", ["python/sglang", "sglang", "python", "."])
def test_a_checkout_is_found_from_its_root_its_python_folder_or_its_package(tmp_path: Path, below: str) -> None:
    checkout = tmp_path / "sglang"  # a clone is often called like the package
    root = make_package(checkout / "python" if below.startswith(("python", ".")) else checkout)
    assert download.from_source(checkout / below) == root


def test_a_folder_without_bookkeeping_is_no_checkout(tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    expected = "is no SGLang checkout: expected sglang/srt/mem_cache below it"
    with pytest.raises(EngineError, match=expected):
        download.from_source(tmp_path)
    with pytest.raises(EngineError, match=expected):
        download.from_source(tmp_path / "absent")


def test_only_what_the_bookkeeping_needs_is_unpacked(tmp_path: Path) -> None:
    target = tmp_path / "out"
    download.unpack(make_wheel(tmp_path / "a.whl"), target)
    found = {str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()}
    assert found == {
        "sglang/__init__.py",
        "sglang/srt/mem_cache/allocator.py",
        "sglang/jit_kernel/csrc/looked_for.cuh",
        wheels.MARKER,
    }


@pytest.mark.parametrize("damage", ["not a zip", "cut short", "no bookkeeping"])
def test_a_bad_wheel_leaves_nothing_behind(tmp_path: Path, damage: str) -> None:
    wheel = make_wheel(tmp_path / "a.whl", {"sglang/__init__.py": ""} if damage == "no bookkeeping" else FAKE)
    if damage == "not a zip":
        wheel.write_bytes(b"<html>")
    if damage == "cut short":
        wheel.write_bytes(wheel.read_bytes()[:-30])
    with pytest.raises(EngineError, match=r"a\.whl"):
        download.unpack(wheel, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [wheel]


def test_many_who_unpack_the_same_release_agree(tmp_path: Path) -> None:
    wheel, target = make_wheel(tmp_path / "a.whl"), tmp_path / "out"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: download.unpack(wheel, target), range(32)))
    assert sorted(tmp_path.iterdir()) == [wheel, target]
    assert (target / "sglang/srt/mem_cache/allocator.py").is_file()


def test_a_release_is_downloaded_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def pip(version: str, folder: Path, options: tuple[str, ...]) -> str:
        asked.append(options)
        if not options:
            return "No matching distribution found"
        make_wheel(folder / f"sglang-{version}-cp311.whl")
        return ""

    monkeypatch.setattr(wheels, "_pip_download", pip)
    first, second = download.release("9.9.9"), download.release("9.9.9")
    assert first == second == cache / "sglang" / "9.9.9"
    assert len(asked) == 2, "the plain download, then the one for a foreign Python, then the cache"
    assert [p.name for p in (cache / "sglang").iterdir()] == ["9.9.9"]


def test_pips_own_words_reach_the_user_in_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = "WARNING: retrying\nERROR: Could not find it (from versions: none)\nERROR: No such thing\n"
    failed = subprocess.CompletedProcess([], 1, "", stderr)
    monkeypatch.setattr(subprocess, "run", lambda *_a, **_k: failed)
    with pytest.raises(EngineError) as caught:
        download.release("9.9.9")
    assert str(caught.value) == (
        "sglang 9.9.9: no such release can be downloaded (pip said: No such thing; is the package index reachable?)"
    )
    assert list((cache / "sglang").iterdir()) == []


def test_a_cache_entry_that_is_no_release_is_named(cache: Path) -> None:
    (cache / "sglang" / "9.9.9").mkdir(parents=True)
    (cache / "sglang" / "9.9.9" / wheels.MARKER).write_text(download.WHEELS.rule)
    with pytest.raises(EngineError, match=r"9\.9\.9 is no unpacked SGLang release: remove it"):
        download.release("9.9.9")


LOAD = """
    import sys
    from pathlib import Path
    from conformance.driver.protocol import EngineError
    from conformance.engines.sglang.releases import release
    def attempt(root, label):
        try:
            return release.load(Path(root), label)
        except EngineError as error:
            print(error)
"""


@pytest.mark.soak
def test_what_is_missing_is_named(tmp_path: Path) -> None:
    files = {"sglang/srt/mem_cache/allocator.py": "from sglang.srt.gone import x"}
    download.unpack(make_wheel(tmp_path / "a.whl", files), tmp_path / "broken")
    download.unpack(make_wheel(tmp_path / "b.whl"), tmp_path / "old")
    code = LOAD + (
        "\n    attempt(sys.argv[1], 'broken'); attempt(sys.argv[2], 'old'); attempt('nowhere', 'none')"
        "\n    print([m for m in sys.modules if m.startswith('sglang')])"
    )
    ran = run_python(code, str(tmp_path / "broken"), str(tmp_path / "old"))
    broken, old, none, left = ran.stdout.splitlines()
    assert broken.endswith("ModuleNotFoundError: No module named 'sglang.srt.gone'"), ran.stderr
    assert old == "sglang old: no class PagedTokenToKVPoolAllocator in sglang.srt.mem_cache.allocator"
    assert none.startswith("sglang none: no sglang/srt/mem_cache below ")
    assert left == "[]"


# Stubs.


BASE = """
import absent_pkg
import absent_pkg.deep as deep
from absent_pkg.deep import thing, Base, decorate
from typing import Optional

LOGGER = absent_pkg.logger(__name__)
DEFAULT = deep.Config(size=3)[0]

class PagedTokenToKVPoolAllocator(Base):
    KIND = 3

class Generic(Base["key"], metaclass=__import__("abc").ABCMeta): ...

class Error(deep.Oops): ...

def annotated(x: Optional[thing], y: "thing | None" = None, z: thing | None = None) -> list[thing]: ...

@decorate
def plainly(): return 1

@decorate(level=2)
def with_options(): return 1

def guarded():
    try:
        import absent_pkg
    except ImportError:
        return "absent"
    return absent_pkg

try:
    import absent_pkg as again
except ImportError:
    again = None

def hard():
    import absent_other
    return absent_other

def swallowed():
    try:
        return thing.size > 3
    except Exception:
        return False

from importlib.util import find_spec
FOUND = find_spec("absent_pkg")
"""
SWA = "class SWATokenToKVPoolAllocator: ..."
AFTER = {  # what is done with a stub after the import: the part of the message before "but"
    "module.PagedTokenToKVPoolAllocator()": "sglang.srt.mem_cache.allocator.PagedTokenToKVPoolAllocator was built",
    "module.PagedTokenToKVPoolAllocator.KIND": "PagedTokenToKVPoolAllocator.KIND was looked up",
    "module.Generic()": "sglang.srt.mem_cache.allocator.Generic was built",
    "module.Error()": "sglang.srt.mem_cache.allocator.Error was built",
    "module.thing()": "absent_pkg.deep.thing was called",
    "module.thing.size": "absent_pkg.deep.thing.size was looked up",
    "module.absent_pkg.new": "absent_pkg.new was looked up",
    "module.LOGGER.info('x')": "absent_pkg.logger().info was looked up",
    "bool(module.thing)": "absent_pkg.deep.thing was tested for truth",
    "bool(module.absent_pkg)": "absent_pkg was tested for truth",
    "not module.DEFAULT": "absent_pkg.deep.Config()[] was tested for truth",
    "module.thing < 3": "absent_pkg.deep.thing was compared",
    "3 in module.thing": "absent_pkg.deep.thing was asked for an item",
    "len(module.thing)": "absent_pkg.deep.thing was asked for its length",
    "list(module.thing)": "absent_pkg.deep.thing was iterated",
    "module.thing[0]": "absent_pkg.deep.thing was asked for an item",
    "1 + module.thing": "absent_pkg.deep.thing was used as a number",
    "int(module.thing)": "absent_pkg.deep.thing was used as a number",
    "range(module.thing)": "absent_pkg.deep.thing was used as a number",
    "torch.zeros(2)[module.thing]": "absent_pkg.deep.thing was asked for its length",
    "module.thing.__enter__()": "absent_pkg.deep.thing was entered",
    "module.plainly()": "sglang.srt.mem_cache.allocator.plainly was called",
    "module.with_options()": "sglang.srt.mem_cache.allocator.with_options was called",
    "module.hard().new()": "absent_other.new was looked up",
}


def fake(folder: Path, allocator: str, **more: str) -> str:
    """A release whose allocator module has this text."""
    files = {"sglang/srt/mem_cache/allocator.py": allocator, "sglang/srt/mem_cache/swa_memory_pool.py": SWA}
    files |= {f"sglang/srt/mem_cache/{name}.py": text for name, text in more.items()}
    download.unpack(make_wheel(folder / "a.whl", files), folder / "fake")
    return str(folder / "fake")


def test_after_the_import_every_use_of_a_stub_is_an_error_that_names_its_package(tmp_path: Path) -> None:
    code = """
    import json, torch
    engine = attempt(sys.argv[1], "fake")
    module = engine.imported.module("mem_cache.allocator")
    for use in json.loads(sys.argv[2]):
        try:
            print("no error:", eval(use))
        except EngineError as error:
            print(error)
    """
    ran = run_python(LOAD + code, fake(tmp_path, BASE), json.dumps(list(AFTER)))
    told = dict(zip(AFTER, ran.stdout.splitlines(), strict=True))
    for use, said in AFTER.items():
        package = "absent_other" if "other" in said else "absent_pkg"
        assert said in told[use], f"{use}: {told[use]} {ran.stderr}"
        assert f"the package {package} is not installed here" in told[use], use


@pytest.mark.soak
def test_what_the_release_guards_stays_absent_and_its_annotations_work(tmp_path: Path) -> None:
    code = """
    import inspect
    from conformance.driver import no_verdict
    module = attempt(sys.argv[1], "fake").imported.module("mem_cache.allocator")
    print(module.again, module.FOUND, module.guarded(), "absent_pkg" in sys.modules)
    print(list(inspect.signature(module.annotated).parameters))
    print(isinstance(3, module.thing), module.thing == module.thing)
    try:
        with no_verdict.watched():
            print(module.swallowed())
    except EngineError as error:
        print(error)
    """
    ran = run_python(LOAD + code, fake(tmp_path, BASE))
    assert ran.stdout.splitlines() == [
        "None None absent False",
        "['x', 'y', 'z']",
        "False True",
        "False",
        "absent_pkg.deep.thing.size was looked up (in sglang.srt.mem_cache.allocator, line 43), but it is a stub: "
        "the package absent_pkg is not installed here",
    ], ran.stderr


DECIDES = {
    "if absent_pkg.is_fast(): pass": "absent_pkg.is_fast() was tested for truth",
    "if absent_pkg: pass": "absent_pkg was tested for truth",
    "FAST = absent_pkg.LEVEL > 3": "absent_pkg.LEVEL was compared",
    "FAST = absent_pkg.LEVEL == 3": "absent_pkg.LEVEL was compared",
    "FAST = absent_pkg.NAME in ('a', 'b')": "absent_pkg.NAME was compared",
    "FAST = 'a' in absent_pkg.NAMES": "absent_pkg.NAMES was asked for an item",
    "FAST = hasattr(absent_pkg, 'fast')": "absent_pkg.fast was looked up",
    "FAST = getattr(absent_pkg, 'fast', None)": "absent_pkg.fast was looked up",
    "SIZE = absent_pkg.SIZE * 2": "absent_pkg.SIZE was used as a number",
    "TEXT = f'{absent_pkg.NAME}'": "absent_pkg.NAME was used as a text",
    "NAMES = [name for name in absent_pkg.NAMES]": "absent_pkg.NAMES was iterated",
    "try:\n    FAST = bool(absent_pkg.LEVEL)\nexcept Exception:\n    FAST = False": "absent_pkg.LEVEL was tested for",
}


@pytest.mark.soak
@pytest.mark.parametrize("line", sampled(DECIDES, 4))
def test_a_stub_that_decides_something_while_modules_are_imported_is_an_error(tmp_path: Path, line: str) -> None:
    root = fake(tmp_path, "class PagedTokenToKVPoolAllocator: ...", decides=f"import absent_pkg\n{line}\n")
    code = """
    try:
        attempt(sys.argv[1], "fake").imported.module("mem_cache.decides")
    except EngineError as error:
        print(error)
    """
    told = run_python(LOAD + code, root).stdout
    assert told.startswith("sglang fake: sglang.srt.mem_cache.decides cannot be imported: "), told
    assert DECIDES[line] in told
    assert "the package absent_pkg is not installed here" in told


@pytest.mark.soak
def test_a_named_answer_is_given_instead_of_a_stub(tmp_path: Path) -> None:
    root = fake(
        tmp_path, "import absent_pkg.log\nclass PagedTokenToKVPoolAllocator: ...\nX = absent_pkg.log.level() > 3"
    )
    code = """
    from conformance.engines.sglang.releases import importing
    answers = {"absent_pkg.log.level": lambda: 5} if sys.argv[2] else {}
    try:
        needed = {"PagedTokenToKVPoolAllocator": ["mem_cache.allocator"]}
        loaded = importing.load(Path(sys.argv[1]), "fake", (), needed, answers)
        print(loaded.module("mem_cache.allocator").X)
    except EngineError as error:
        print(error)
    """
    assert run_python(LOAD + code, root, "yes").stdout == "True\n"
    assert "absent_pkg.log.level() was compared" in run_python(LOAD + code, root, "").stdout


@pytest.mark.soak
def test_a_module_that_slotproof_replaces_is_named_and_what_is_below_it_is_real(tmp_path: Path) -> None:
    files = {
        "sglang/srt/mem_cache/allocator.py": "from sglang.srt.configs import mine, Model\n"
        "class PagedTokenToKVPoolAllocator: ...",
        "sglang/srt/mem_cache/swa_memory_pool.py": SWA,
        "sglang/srt/configs/__init__.py": "raise RuntimeError",
        "sglang/srt/configs/mine.py": "VALUE = 7",
    }
    download.unpack(make_wheel(tmp_path / "a.whl", files), tmp_path / "fake")
    code = """
    module = attempt(sys.argv[1], "fake").imported.module("mem_cache.allocator")
    print(module.mine.VALUE)
    try:
        module.Model()
    except EngineError as error:
        print(error)
    """
    seven, told = run_python(LOAD + code, str(tmp_path / "fake")).stdout.splitlines()
    assert seven == "7"
    assert told.startswith("sglang.srt.configs.Model was called, but it is a stub: Slotproof puts a stub in the place")


@pytest.mark.soak
def test_transformers_is_a_stub_also_where_it_is_installed(tmp_path: Path) -> None:
    root = fake(tmp_path, "import transformers\nclass PagedTokenToKVPoolAllocator: ...")
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "transformers.py").write_text("AutoConfig = 3")
    code = """
    sys.path.insert(0, sys.argv[2])
    module = attempt(sys.argv[1], "fake").imported.module("mem_cache.allocator")
    try:
        module.transformers.AutoConfig.register("name", 3)
    except EngineError as error:
        print(error)
    import transformers
    print(transformers.AutoConfig)
    """
    told, real = run_python(LOAD + code, root, str(tmp_path / "installed")).stdout.splitlines()
    assert told.startswith("transformers.AutoConfig was looked up"), told
    assert told.endswith("Slotproof puts a stub in the place of the package transformers")
    assert real == "3"  # other modules of the process have the package


# The cache folder.


RUST = {**FAKE, "sglang/srt/mem_cache/rust_core/__init__.py": "", "sglang/srt/mem_cache/rust_core/core.so": "elf"}


def test_a_folder_that_an_older_version_unpacked_is_fetched_again_only_if_it_lacks_files(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def pip(version: str, folder: Path, _: tuple[str, ...]) -> str:
        asked.append(version)
        make_wheel(folder / f"sglang-{version}.whl", RUST)
        return ""

    monkeypatch.setattr(wheels, "_pip_download", pip)
    for version, core in (("1.0", True), ("2.0", False)):
        bookkeeping = cache / "sglang" / version / "sglang" / "srt" / "mem_cache"
        bookkeeping.mkdir(parents=True)
        if core:
            (bookkeeping / "rust_core").mkdir()
            (bookkeeping / "rust_core" / "__init__.py").touch()
        download.release(version)
        download.release(version)
    assert asked == ["sglang==1.0"]
    assert (cache / "sglang" / "1.0" / "sglang" / "srt" / "mem_cache" / "rust_core" / "core.so").read_text() == "elf"
    assert sorted(path.name for path in (cache / "sglang").iterdir()) == ["1.0", "2.0"]


def test_a_folder_of_another_rule_is_fetched_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(cache.parent / "a.whl")
    monkeypatch.setattr(wheels, "_pip_download", lambda v, folder, _: str(make_wheel(folder / f"{v}.whl"))[:0])
    (cache / "sglang").mkdir(parents=True)
    download.unpack(wheel, cache / "sglang" / "1.0")
    (cache / "sglang" / "1.0" / wheels.MARKER).write_text("0")
    (cache / "sglang" / "1.0" / "stale").touch()
    target = download.release("1.0")
    assert not (target / "stale").exists()


def test_many_who_replace_an_old_folder_agree(tmp_path: Path) -> None:
    wheel, target = make_wheel(tmp_path / "a.whl", RUST), tmp_path / "out"
    download.unpack(wheel, target)
    (target / wheels.MARKER).write_text("0")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: download.unpack(wheel, target), range(32)))
    assert sorted(tmp_path.iterdir()) == [wheel, target]
    assert (target / wheels.MARKER).read_text() == download.WHEELS.rule


# The Rust core.


LOADER = "from sglang.srt.mem_cache.rust_tree_core import mem_cache"
RANGE = "_MIN_SUPPORTED_TORCH = (2, 0)\n_MAX_SUPPORTED_TORCH = (99, 0)"
CORE = "sglang/srt/mem_cache/rust_tree_core"
HERE = f"{CORE}/mem_cache{EXTENSION_SUFFIXES[0]}"
NOTES = {  # files beside the usual ones: the start of the note
    "not built": (
        {},
        "Rust core not judged: it is not built (no shared object in sglang/srt/mem_cache/rust_tree_core)",
    ),
    "another Python": (
        {f"{CORE}/mem_cache.cpython-27.so": ""},
        "Rust core not judged: mem_cache.cpython-27.so is built",
    ),
    "another torch": (
        {HERE: "", "sglang/srt/rust_extensions/torch_build.py": RANGE.replace("99, 0", "2, 1")},
        "Rust core not judged: it runs with torch 2.0 to 2.1; torch 2",
    ),
    "damaged": ({HERE: "\x7fELF cut short"}, "the Rust core "),
}


def rusty(folder: Path, more: dict[str, str]) -> str:
    """A checkout with a Rust core."""
    files = {
        "sglang/srt/mem_cache/allocator.py": "class PagedTokenToKVPoolAllocator: ...",
        "sglang/srt/mem_cache/swa_memory_pool.py": SWA,
        f"{CORE}/__init__.py": "",
        f"{CORE}/extension.py": LOADER,
        "sglang/srt/rust_extensions/__init__.py": "",
        "sglang/srt/rust_extensions/torch_build.py": RANGE,
    }
    for name, text in (files | more).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("case", NOTES)
def test_a_rust_core_that_cannot_run_is_said(tmp_path: Path, case: str) -> None:
    more, said = NOTES[case]
    code = """
    import os, torch
    from conformance.engines import registry
    try:
        print(*registry.load("sglang", source=Path(sys.argv[1])).notes)
        print(os.environ.get("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"), torch.__version__)
    except EngineError as error:
        print(error)
    """
    ran = run_python(LOAD + code, rusty(tmp_path, more))
    first, *rest = ran.stdout.splitlines()
    assert first.startswith(said), ran.stderr
    if case == "damaged":
        assert "is damaged, fetch or build it again" in first
        assert HERE in first
    else:
        core, torch_version = rest[0].split()
        assert core == "python", "the release would try to build its core"
        assert first.endswith(f"; torch {torch_version} ran")


CRATE = "rust/sglang-radix-tree"


def committed(folder: Path, more: dict[str, str]) -> Path:
    """A git checkout with the source of a Rust core and these files; the Python is below ``python``."""
    rusty(folder / "python", {name: text for name, text in more.items() if name.startswith("sglang/")})
    (folder / CRATE / "src").mkdir(parents=True)
    (folder / CRATE / "src" / "lib.rs").write_text("// first")
    for words in (("init", "-qb", "main"), ("add", "-A"), (*AS_NOBODY, "commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


AS_NOBODY = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")


@pytest.mark.soak
def test_an_edited_rust_core_that_is_not_built_is_no_verdict(tmp_path: Path) -> None:
    root = committed(tmp_path, {})
    words = [sys.executable, "-m", "slotproof", "check", "sglang", "allocator", "--examples", "1"]
    said = [*words, "--source", str(root / "python")]
    (root / CRATE / "src" / "lib.rs").write_text("// second")
    edited = subprocess.run(said, capture_output=True, text=True, check=False)
    assert edited.returncode == codes.FAILED, edited.stderr
    assert f"core not built: {root / CRATE} was edited (src/lib.rs)" in edited.stderr
    chosen = subprocess.run([*said, "--option", "core=python"], capture_output=True, text=True, check=False)
    assert "core not built" not in chosen.stderr


def test_what_is_not_built_is_compared_with_the_base(tmp_path: Path) -> None:
    root, before = committed(tmp_path / "now", {}), committed(tmp_path / "before", {})
    crate, hello = root / CRATE, {"unbuilt": [str(root / CRATE)]}
    subject = Subject("sglang", source=root / "python")
    bases = (None, Subject("sglang", "0.5.23"), Subject("sglang", source=before / "python"))
    for base in bases:
        must_be_as_before(subject, hello, base)
    (crate / "new.rs").touch()
    for base in bases:
        with pytest.raises(codes.NotBuilt, match=r"was edited \(new.rs\)"):
            must_be_as_before(subject, hello, base)
        must_be_as_before(subject, {"unbuilt": []}, base)


@pytest.mark.soak
def test_a_core_that_is_older_than_its_source_is_not_built(tmp_path: Path) -> None:
    root = committed(tmp_path, {HERE: ""})
    crate, built = root / CRATE, root / "python" / HERE
    code = """
    from conformance.engines.sglang.releases import rust_core
    print(*rust_core.unbuilt(attempt(sys.argv[1], "fake").imported))
    """
    for when, said in ((2_000_000_000, ""), (1_000_000_000, str(crate))):
        os.utime(built, (when, when))
        assert run_python(LOAD + code, str(root / "python")).stdout.strip() == said


@pytest.mark.soak
def test_a_release_without_a_rust_core_says_nothing_of_it(tmp_path: Path) -> None:
    code = """
    from conformance.engines import registry
    print(registry.load("sglang", source=Path(sys.argv[1])).notes)
    """
    root = fake(tmp_path, "class PagedTokenToKVPoolAllocator: ...")
    assert run_python(LOAD + code, root).stdout == "()\n"


@pytest.mark.soak
@pytest.mark.engine
def test_the_page_of_cores_is_what_a_release_answers() -> None:
    pytest.importorskip("triton")
    try:
        download.release(NEWEST)
    except EngineError as error:
        pytest.skip(str(error))
    code = f"""
    import runpy, sys
    sys.argv = ["rust_core", "{NEWEST}"]
    runpy.run_module("conformance.engines.sglang.releases.cores_page", run_name="__main__")
    """
    answered = ast.literal_eval(run_python(code).stdout)
    page = (Path(__file__).parents[1] / "docs" / "cores.md").read_text("utf-8")
    table = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    last = [cell.strip() for cell in table[0]].index(NEWEST)
    shown = {row[0].strip(): row[last].strip() for row in table[2:]}
    assert shown == answered
    assert {"python", "rust"} <= set(shown.values())


# The newest release.


def index(monkeypatch: pytest.MonkeyPatch, out: str = "", error: str = "", code: int = 0) -> None:
    answer = subprocess.CompletedProcess([], code, out, error)
    monkeypatch.setattr(subprocess, "run", lambda *_a, **_k: answer)


def test_the_newest_release_is_the_highest_number_on_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    index(monkeypatch, "sglang (0.5.9)\nAvailable versions: 0.5.9, 0.5.10.post1, 0.5.10, 0.5.11rc1, 0.4.0\n")
    assert download.newest() == "0.5.11rc1"
    index(monkeypatch, "sglang (0.5.9)\nAvailable versions: 0.5.9, 0.5.10.post1, 0.5.10\n")
    assert download.newest() == "0.5.10.post1"


def test_an_index_that_cannot_be_asked_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    index(monkeypatch, error="ERROR: No matching distribution found (from versions: none)", code=1)
    with pytest.raises(EngineError, match=r"names no release of sglang \(pip said: .*is the package index reachable"):
        download.newest()

    def slow(*_a: object, **_k: object) -> None:
        raise subprocess.TimeoutExpired("pip", 1)

    monkeypatch.setattr(subprocess, "run", slow)
    with pytest.raises(EngineError, match="nothing for 120 s; is the package index reachable"):
        download.newest()


# Real releases.


@pytest.mark.soak
def test_triton_that_came_first_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    code = (
        """
    import os
    os.environ.pop("TRITON_INTERPRET", None)
    import torch, triton.language
    torch.cuda.is_available = lambda: False
    """
        + LOAD
        + "\n    attempt(sys.argv[1], 'any')"
    )
    ran = run_python(code, str(make_package(tmp_path)))
    assert ran.stdout.startswith("triton was imported before TRITON_INTERPRET was set"), ran.stderr


DRIVE = """
    import torch
    engine = attempt(sys.argv[1], "real")
    utils = engine.imported.module("utils")
    for name in ("get_num_new_pages", "next_power_of_2", "get_bool_env_var"):
        assert getattr(utils, name).__code__.co_filename.startswith(str(engine.imported.root)), name
    bookkeeping = ("sglang.srt.mem_cache", "sglang.srt.utils")
    assert not [name for name in engine.imported.stubbed if name.startswith(bookkeeping)]
    one = lambda n: torch.tensor([n], dtype=torch.int64)
    for page_size in (1, 2, 4):
        pools = engine.swa_allocator(16, 8, page_size, need_sort=False)
        if page_size == 1:
            row = pools.alloc(5)
        else:
            row = pools.alloc_extend(one(0), one(0), one(5), one(5), one(-1), 5)
            row = torch.cat([row, pools.alloc_decode(one(6), one(6), row[-1:])])
        assert (pools.translate_loc_from_full_to_swa(row) > 0).all()
        assert pools.full_available_size() == 16 - -(-len(row) // page_size) * page_size
        pools.free(row)
        print(type(pools).__name__, pools.full_available_size(), pools.swa_available_size())
        print(type(engine.allocator(16, page_size, need_sort=True)).__name__)
    engine.imported.module("mem_cache.unified_radix_cache"), engine.imported.module("mem_cache.swa_radix_cache")
    """


@pytest.fixture(scope="module")
def real() -> Path:
    pytest.importorskip("triton")
    try:
        return download.release(ENGINE)
    except EngineError as error:
        pytest.skip(str(error))


@pytest.mark.engine
def test_a_real_release_allocates_and_frees(real: Path) -> None:
    ran = run_python(LOAD + DRIVE, str(real))
    swa = "SWATokenToKVPoolAllocator 16 8"
    single, paged = "TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator"
    assert ran.stdout.splitlines() == [swa, single, swa, paged, swa, paged], ran.stderr


@pytest.mark.soak
@pytest.mark.engine
def test_trying_again_leaves_no_class_twice(real: Path) -> None:
    """An import that failed for want of a stub is run again: nothing may keep the classes of the first run."""
    code = (
        LOAD
        + """
    engine = attempt(sys.argv[1], "real")
    engine.imported.module("mem_cache.unified_radix_cache")
    for name, module in list(sys.modules.items()):
        for found in list(vars(module).values()) if name.startswith("sglang.srt.") else []:
            home = getattr(found, "__module__", None)
            if type(found) is type and str(home).startswith("sglang.") and found.__qualname__.isidentifier():
                if getattr(sys.modules.get(home), found.__qualname__, None) is not found:
                    print(name, found)
    """
    )
    ran = run_python(code, str(real))
    assert (ran.stdout, ran.returncode) == ("", 0), ran.stderr


@pytest.mark.engine
def test_a_process_holds_one_release(real: Path, tmp_path: Path) -> None:
    code = (
        LOAD
        + """
    first = attempt(sys.argv[1], "first")
    assert attempt(sys.argv[1], "again") is first
    attempt(sys.argv[2], "second")
    """
    )
    ran = run_python(code, str(real), str(make_package(tmp_path)))
    assert ran.stdout == ("sglang second needs a process of its own: this one has sglang first loaded\n"), ran.stderr


COMPILED = """
import torch
@torch.compile(dynamic=True, backend="inductor")
def one(x): return x + 1
@torch.compiler.disable
def two(x): return x + 2
@torch.compiler.disable(recursive=False)
def three(x): return x + 3
class Pool:
    ways = one, two, three, torch.compile(two)
"""


@pytest.mark.soak
def test_torchs_compiler_is_not_loaded(tmp_path: Path) -> None:
    """Functions run as they are written; where the release cannot be loaded, torch has its compiler again."""
    (make_package(tmp_path) / "sglang" / "srt" / "mem_cache" / "compiled.py").write_text(COMPILED)
    code = """
    import sys
    from pathlib import Path
    import torch
    from conformance.driver.protocol import EngineError
    from conformance.engines.sglang.releases import importing
    before = torch.compile, torch.compiler.disable
    for name in ("Missing", "Pool"):
        try:
            found = importing.load(Path(sys.argv[1]), "fake", (), {name: ["mem_cache.compiled"]})
        except EngineError:
            print((torch.compile, torch.compiler.disable) == before)
    print([way(0) for way in found.module("mem_cache.compiled").Pool.ways])
    print([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])
    """
    ran = run_python(code, str(tmp_path))
    assert ran.stdout.splitlines() == ["True", "[1, 2, 3, 2]", "[]"], ran.stderr


def test_sglang_needs_a_release_or_a_folder(tmp_path: Path) -> None:
    for release, source in ((None, None), ("0.5.12", tmp_path)):
        with pytest.raises(EngineError, match="sglang needs either --release VERSION or --source FOLDER"):
            registry.plugin("sglang").load(release, source, "cpu")


def test_the_plug_in_imports_neither_torch_nor_triton() -> None:
    """Triton's interpreter must be switched on before triton is imported, so looking for engines must not import it."""
    code = "import sys, conformance.engines.sglang; print([m for m in ('torch', 'triton') if m in sys.modules])"
    assert run_python(code).stdout == "[]\n"


def test_what_runs_exclude_has_a_name_that_a_rule_knows() -> None:
    """Reading a list of known differences refuses an exclusion that no enumeration has."""
    sglang = registry.plugin("sglang")
    names = {k.trace for release in sglang.releases for k in known.of_release(sglang.folder, release)}
    assert names <= set(trace_files.names())
    assert len(names) > 50
