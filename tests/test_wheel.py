"""The installed package: one name in site-packages, and every command works beside packages of the same names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from packed_pages import unpacked

from build_backend.wheel_layout import MOVED, moved

ROOT = Path(__file__).parents[1]
NOT_OURS = 'raise RuntimeError("a package of the user was imported")\n'


class Installed:
    """The wheel in an environment of its own, and a user's folder with packages that have the names of ours."""

    def __init__(self, home: Path, wheel: Path) -> None:
        self.home, self.user = home / "venv", home / "user"
        venv.create(self.home, with_pip=False)
        self.packages = self.home / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        pip("install", "--no-deps", "--no-index", "--target", str(self.packages), str(wheel))
        # A line of a .pth file adds a folder without reading the .pth files in it, so our own checkout is not seen.
        (self.packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
        for name in MOVED:
            package = self.user / name
            package.mkdir(parents=True)
            (package / "__init__.py").write_text(NOT_OURS)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Python of this environment in the user's folder."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SLOTPROOF_CACHE")}
        return subprocess.run(
            [str(self.home / "bin" / "python"), *words],
            cwd=self.user,
            env={**kept, "XDG_CACHE_HOME": str(self.home / "cache"), "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


def pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words], check=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    home = tmp_path_factory.mktemp("installed")
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(home), str(ROOT))
    (wheel,) = home.glob("*.whl")
    return Installed(home, wheel)


@pytest.mark.soak
def test_one_name_is_installed(installed: Installed) -> None:
    found = {path.name.split("-")[0] for path in installed.packages.iterdir()}
    assert found - {"others.pth", "bin", "__pycache__"} == {"slotproof"}
    (listed,) = installed.packages.glob("slotproof-*.dist-info/top_level.txt")
    assert listed.read_text() == "slotproof\n"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--version", 0, "package "),
        ("list", 0, "insert_under_reader"),
        pytest.param("prove allocator", 0, "obligations proved", marks=pytest.mark.soak),
        ("check ours allocator swa_mapping --examples 3", 0, "conforms"),
        ("check toy --examples 3", 0, "conforms"),
        ("replay insert_under_reader ours", 0, "conforms"),
        ("replay insert_under_reader nosuch", 3, "no engine 'nosuch'"),
        pytest.param("faults half_decode", 0, "refuted", marks=pytest.mark.soak),
        ("docs", 3, "needs a checkout of Slotproof"),
        pytest.param("docs --check", 3, "needs a checkout of Slotproof", marks=pytest.mark.soak),
        pytest.param("engines", 3, "needs a checkout of Slotproof", marks=pytest.mark.soak),
    ],
)
def test_every_command_works_or_says_what_it_needs(installed: Installed, words: str, code: int, said: str) -> None:
    done = installed.run("-m", "slotproof", *words.split())
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    assert "Traceback" not in done.stderr


REPORT = """
from slotproof.pages import documents, proof_part, report, stories
proof_part.FAULTS, proof_part.STEMS = {}, ("allocator",)

def absent(*_, **__):
    raise stories.EngineError("there is no network")

stories.told_elsewhere = absent
proof_part.proved = proof_part.bugs = lambda *_: []
proof_part.law_of_each_stem = lambda *_: {"allocator": {"witnesses": [], "mutants": []}}
"""
LOST = "report.FINDINGS = Path('lost'); "


@pytest.mark.soak
def test_the_report_has_the_findings(installed: Installed) -> None:
    """What the page shows of engines comes with the package. (Proofs and faults are left out here: they take long.)"""
    code = REPORT + "from pathlib import Path; report.run(Path('page'))"
    done = installed.run("-c", code)
    assert done.returncode == 0, done.stderr
    folder = installed.user / "page"
    page = unpacked(folder / "index.html", folder / "sample.js")
    assert "there is no network" in unpacked(folder / "findings" / "insert_under_reader.html", folder / "sample.js")
    kept = json.loads((ROOT / "docs" / "findings.json").read_text())["traces"]
    assert all(f'<th scope="row">{name}</th>' in page for name in kept)
    (folder / "index.html").unlink()
    gone = installed.run("-c", code.replace("report.run", LOST + "report.run"))
    assert "docs/findings.json is missing" in gone.stdout
    assert "docs/findings.json is missing" in (folder / "index.html").read_text()


@pytest.mark.soak
def test_a_process_of_a_release_is_started(installed: Installed) -> None:
    code = (
        "from slotproof.conformance.search.replay import rows_elsewhere; "
        "print(rows_elsewhere(['insert_under_reader'], 'sglang', '0'))"
    )
    done = installed.run("-c", code)
    assert "EngineError" in done.stderr
    assert "not a release number" in done.stderr


def contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix != ".pyc"}


@pytest.mark.soak
def test_nothing_is_written_beside_the_package(installed: Installed) -> None:
    code = "from slotproof.conformance.driver.cache_folder import cache_folder; print(cache_folder())"
    assert installed.run("-c", code).stdout.strip() == str(installed.home / "cache" / "slotproof")
    before = contents(installed.packages), contents(installed.user)
    assert installed.run("-m", "slotproof", "check", "ours", "allocator", "--examples", "2").returncode == 0
    assert (contents(installed.packages), contents(installed.user)) == before


@pytest.mark.soak
def test_a_users_tests_may_import_both(installed: Installed) -> None:
    """As under pytest in a user's repository: his package `spec` and ours are used in one process."""
    (installed.user / "spec" / "__init__.py").write_text("MINE = 1\n")
    try:
        code = "import spec; from slotproof.spec import allocator; from slotproof.plugin import SimplePlugin as p; "
        code += "print(spec.MINE, allocator.stem.name)"
        assert installed.run("-c", code).stdout == "1 allocator\n"
    finally:
        (installed.user / "spec" / "__init__.py").write_text(NOT_OURS)


@pytest.mark.soak
def test_a_pasted_test_names_what_is_installed(installed: Installed) -> None:
    code = """
from slotproof.conformance.traces import trace_files as traces
from slotproof.conformance.story.pasted import as_test
print(as_test(traces.load("insert_under_reader").trace, "revive_tombstone", "promise", "ours"))
"""
    (installed.user / "test_pasted.py").write_text(installed.run("-c", code).stdout)
    call = "import test_pasted as t; [getattr(t, n)() for n in dir(t) if n.startswith('test_')]; print('passed')"
    done = installed.run("-c", call)
    assert done.stdout == "passed\n", done.stderr


# The change of imports.


@pytest.mark.parametrize(
    ("written", "installed"),
    [
        ("from spec import rows as r\n", "from slotproof.spec import rows as r\n"),
        ("def f():\n    from proofs.cache import (\n        A,\n    )\n", None),
        ("import spec\n", "from slotproof import spec\n"),
        *[(same, same) for same in ("from spectral import a\n", "import special\n", "from . import spec\n")],
        ('"""from spec import rows"""\n', '"""from spec import rows"""\n'),
    ],
)
def test_imports_are_changed_and_nothing_else(written: str, installed: str | None) -> None:
    assert moved(written) == (installed or written.replace("from proofs", "from slotproof.proofs"))


@pytest.mark.parametrize(
    "written", ["import spec.session_trim_state\n", "import os, spec\n", "import spec.session_trim_state as r\n"]
)
def test_an_import_that_cannot_be_changed_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="write `from package import module`"):
        moved(written, "x.py")
