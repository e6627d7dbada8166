"""The loader of SGLang releases: what it refuses, what its cache promises, and one real release."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conformance import known, traces
from conformance.engines import registry
from conformance.engines.protocol import EngineError
from conformance.engines.sglang import download

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

    monkeypatch.setattr(download, "_pip_download", pip)
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
    with pytest.raises(EngineError, match=r"9\.9\.9 is no unpacked SGLang release: remove it"):
        download.release("9.9.9")


LOAD = """
    import sys
    from pathlib import Path
    from conformance.engines.protocol import EngineError
    from conformance.engines.sglang import release
    def attempt(root, label):
        try:
            return release.load(Path(root), label)
        except EngineError as error:
            print(error)
"""


IMPORTS = """
import absent_hard
from absent_hard.deep import thing
try:
    import absent_guarded
except ImportError:
    absent_guarded = None
class PagedTokenToKVPoolAllocator(absent_hard.Base): ...
"""


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


def test_stubs_serve_imports_only(tmp_path: Path) -> None:
    """A hard import is stubbed, a guarded one stays absent, and calling a stub later is an error."""
    files = {
        "sglang/srt/mem_cache/allocator.py": IMPORTS,
        "sglang/srt/mem_cache/swa_memory_pool.py": "class SWATokenToKVPoolAllocator: ...",
    }
    download.unpack(make_wheel(tmp_path / "a.whl", files), tmp_path / "fake")
    code = """
    engine = attempt(sys.argv[1], "fake")
    module = engine.imported.module("mem_cache.allocator")
    print([name for name in engine.imported.stubbed if "absent" in name], module.absent_guarded)
    print(type(module.PagedTokenToKVPoolAllocator()).__name__, "absent_hard" in sys.modules)
    try:
        module.thing()
    except EngineError as error:
        print(error)
    """
    ran = run_python(LOAD + code, str(tmp_path / "fake"))
    assert ran.stdout.splitlines() == [
        "['absent_hard', 'absent_hard.deep'] None",
        "PagedTokenToKVPoolAllocator False",
        "absent_hard.deep.thing was called, but it is a stub: it is not installed here",
    ], ran.stderr


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
    assert names <= set(traces.names())
    assert len(names) > 50
