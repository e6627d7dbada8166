"""Tries mutants of ``impl/``, several at a time: each in a copy of ``impl/`` and in processes of its own.

A mutant is put to ever harder trials until one notices it: a few drawn runs of each stem that uses the changed file,
then as many as ``slotproof check ours`` draws, then the tests of ``impl/``. What the law leaves to an implementation,
such as which node is evicted first, only the tests can say. The Triton kernels run on CUDA alone, so that drawn runs on
a CPU cannot reach them: their mutants are put to the tests, which run the kernels in Triton's interpreter.

A mutant that does not end is noticed: it may take ``FACTOR`` times the processor time of the code as it is.
"""

from __future__ import annotations

import ast
import math
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from conformance.driver.cache_folder import checkout
from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json
from conformance.planted.mutants import trial
from conformance.planted.mutants.places import CodeMutant, Spot
from conformance.planted.mutants.record import NO_END, RUNS, SURVIVES, TESTS
from conformance.stems.stem_registry import STEMS

FEW, MANY = 10, 200  # drawn runs of each stem; 200 is what ``slotproof check`` draws
FACTOR, LEAST_S = 10, 10  # a trial may take FACTOR times the time of the code as it is, and LEAST_S seconds more
STUCK = 20  # a trial that waits is ended after so many times its processor time


@dataclass(frozen=True)
class TriedMutant:
    """What became of a mutant: noticed by drawn runs (``RUNS``) or by the tests (``TESTS``), or it does not end
    (``NO_END``), or it survives. ``by``: the stem and the law, or the test, or the trial that does not end.
    """

    mutant: CodeMutant
    fate: str
    by: str = ""


@dataclass(frozen=True)
class TrialLimits:
    """The processor time in seconds of the code as it is: by stem for ``FEW`` and ``MANY`` runs, and by test file."""

    few: dict[str, float]
    many: dict[str, float]
    tests: dict[str, float]


def root() -> Path:
    """The checkout, whose ``impl/`` and tests are copied. UsageError in an installed package."""
    found = checkout()
    if found is None:
        raise UsageError("mutate impl changes and tests a copy of impl/: it needs a checkout of Slotproof")
    return found


def tried(
    mutants: Sequence[CodeMutant], jobs: int, until: float = math.inf, done: Callable[[], object] = lambda: None
) -> list[TriedMutant]:
    """What became of each mutant, in their order. ``until``: the time, of ``time.monotonic``, at which no other mutant
    is begun. RuntimeError where the code as it is does not pass its own trials.
    """
    return _each(mutants, as_it_is(jobs), jobs, until, done)


def _each(
    mutants: Sequence[CodeMutant], limits: TrialLimits, jobs: int, until: float, done: Callable[[], object]
) -> list[TriedMutant]:
    def one(mutant: CodeMutant) -> TriedMutant | None:
        if time.monotonic() > until:
            return None
        found = judged(mutant, limits)
        done()
        return found

    with ThreadPoolExecutor(jobs) as pool:
        return [found for found in pool.map(one, mutants) if found is not None]


def as_it_is(jobs: int) -> TrialLimits:
    """Puts the code without a mutant to every trial, and takes the times."""
    asked = [("runs", name, n) for n in (FEW, MANY) for name in STEMS] + [("tests", name, 0) for name in test_files()]

    def one(kind: str, name: str, examples: int) -> float:
        with copied() as folder:
            said = _ask(kind, folder, [name], examples, 3_600)
        if said["noticed"]:
            raise RuntimeError(f"impl/ fails without a mutant: {name}: {said['noticed']['by']}")
        return float(said["seconds"])

    with ThreadPoolExecutor(jobs) as pool:
        times = dict(zip(asked, pool.map(lambda each: one(*each), asked), strict=True))
    few, many = ({name: times["runs", name, n] for name in STEMS} for n in (FEW, MANY))
    return TrialLimits(few, many, {name: times["tests", name, 0] for name in test_files()})


def judged(mutant: CodeMutant, limits: TrialLimits) -> TriedMutant:
    """What became of a mutant."""
    trials: list[tuple[str, str, Sequence[str], int, dict[str, float]]] = []
    if not only_on_cuda(mutant.spot):
        stems = stems_of(mutant.spot.file)
        trials += [(RUNS, "runs", stems, FEW, limits.few), (RUNS, "runs", stems, MANY, limits.many)]
    trials += [(TESTS, "tests", tests_of(mutant.spot.file), 0, limits.tests)]
    with copied(mutant) as folder:
        for fate, kind, names, examples, times in trials:
            if not names:
                continue
            said = _ask(kind, folder, names, examples, int(LEAST_S + FACTOR * sum(times[name] for name in names)))
            if said["noticed"] is None:
                continue
            by = " ".join(part for part in (said["noticed"]["stem"], said["noticed"]["by"]) if part)
            return TriedMutant(mutant, NO_END if said["seconds"] is None else fate, by)
    return TriedMutant(mutant, SURVIVES)


def only_on_cuda(spot: Spot) -> bool:
    """The spot is in a Triton kernel, or in what launches one."""
    launches = ("_kernel", "_triton", "jit", "pow2")
    return spot.file in ("kernels.py", "lock_kernels.py") and any(part in spot.function for part in launches)


@contextmanager
def copied(mutant: CodeMutant | None = None) -> Iterator[Path]:
    """A folder with copies of ``impl/`` and of what tests it, with the mutant."""
    with tempfile.TemporaryDirectory(prefix="slotproof-mutant-") as made:
        folder = Path(made)
        left_out = shutil.ignore_patterns("__pycache__")
        for name in ("impl", "tests", "benchmarks"):  # a test of impl/ looks at a benchmark
            shutil.copytree(root() / name, folder / name, ignore=left_out)
        shutil.copy(root() / "pyproject.toml", folder)
        if mutant is not None:
            (folder / "impl" / mutant.spot.file).write_text(mutant.text, encoding="utf-8")
        yield folder


@cache
def _context() -> multiprocessing.context.ForkServerContext:
    """Makes processes by forking one that has imported all that a trial needs, but for ``impl``."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload([trial.__name__])
    return made


def _ask(kind: str, folder: Path, names: Sequence[str], examples: int, limit_s: int) -> Json:
    """What a process of its own answers; ``seconds`` is None where it had no end."""
    receive, send = _context().Pipe(duplex=False)
    process = _context().Process(target=trial.answer, args=(send, kind, folder, list(names), examples, limit_s))
    process.start()
    send.close()
    try:
        said: Json = receive.recv() if receive.poll(limit_s * STUCK) else _no_end("waits", names)
    except EOFError:
        process.join()
        said = _no_end(f"ended by signal {-(process.exitcode or 0)}", names)
    finally:
        process.kill()
        process.join()
        receive.close()
    return said


def _no_end(why: str, names: Sequence[str]) -> Json:
    return {"noticed": {"stem": "", "by": f"{why} in {', '.join(names)}"}, "seconds": None}


# Which stems and tests use a file of impl/.


@cache
def stems_of(file: str) -> list[str]:
    """The stems whose implementation, ``impl/STEM.py``, uses a file of ``impl/``."""
    own = (stem for stem in STEMS if (root() / "impl" / f"{stem}.py").is_file())
    return [stem for stem in own if file in _reached(root() / "impl" / f"{stem}.py")]


def test_files() -> list[str]:
    """The tests of ``impl/``, from the checkout's root."""
    found = (root() / "tests").glob("test_*.py")
    return sorted(f"tests/{path.name}" for path in found if path.name.startswith(("test_impl_", "test_kernels")))


@cache
def tests_of(file: str) -> list[str]:
    """The tests of ``impl/`` that use a file of it; those that use few files are first."""
    used = {name: _reached(root() / name) for name in test_files()}
    return sorted((name for name in used if file in used[name]), key=lambda name: (len(used[name]), name))


@cache
def _reached(path: Path) -> frozenset[str]:
    """The files of ``impl/`` that a module imports, also by other files of ``impl/`` and by helpers of the tests."""
    known, waiting = {path}, [path]
    while waiting:
        new = {found for found in _imported(waiting.pop()) if found.exists()} - known
        known |= new
        waiting += new
    return frozenset(found.name for found in known if found.parent.name == "impl")


def _imported(path: Path) -> Iterator[Path]:
    """The files of ``impl/`` and of ``tests/`` that a file may import."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            package, _, module = node.module.partition(".")
            for name in [module] if module else [alias.name for alias in node.names]:
                yield root() / package / f"{name}.py"
            yield root() / "tests" / f"{package}.py"
