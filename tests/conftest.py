"""Settings of every test: the same examples in every run, unless ``HYPOTHESIS_PROFILE=soak`` asks for many new ones."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import _lru_cache_wrapper
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from conformance.driver.collector import collect_rarely
from conformance.driver.draws import by_seed_alone
from conformance.engines import registry
from proofs.mutation.right import right

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # triton reads it once, when it is first imported
collect_rarely()
torch.set_num_threads(1)  # the suite runs in parallel processes
settings.register_profile(
    "steady", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "soak", max_examples=5_000, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "steady")
SOAK = PROFILE == "soak"
settings.load_profile(PROFILE)

# Each release costs a process that imports it, and a download: `make test` drives the newest one of each engine and an
# older one, whose trees and schedulers are read by other code of ours. `make engines` checks all of them.
RELEASED = frozenset(release for plugin in registry.released() for release in plugin.releases)
DRIVEN = frozenset({"0.5.14", "0.22.1", *(plugin.releases[-1] for plugin in registry.released())})

# Modules that keep what they have read of the law, and of other revisions of it.
KEEPS = [*(f"proofs.difference.{name}" for name in ("beside", "compare", "loaded", "texts"))]
KEEPS += ["proofs.symbols", "slotproof.spec_lint"]


@pytest.fixture(autouse=True, scope="module")
def drawn_alike() -> Iterator[None]:
    """What is drawn does not depend on which tests have run before, and have loaded modules, in this process."""
    with by_seed_alone():
        yield


@pytest.fixture(autouse=True, scope="module")
def memory_is_given_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a file of tests has kept of solvers, formulas and other revisions of the law, up to 600 MB, goes when its
    tests are done.
    """
    yield
    kept = [*vars(request.module).values(), right]
    kept += [value for name in KEEPS if name in sys.modules for value in vars(sys.modules[name]).values()]
    for value in kept:
        if isinstance(value, _lru_cache_wrapper):
            value.cache_clear()
    gc.collect()
    gc.freeze()  # what is left, such as the modules of an engine, stays: no later look goes through it again


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes long is left to ``make soak``, unless it is asked for by its name or mark: a test with the mark
    ``soak``, with ``soak(but=N)`` all its cases but the first N, and tests on a release that is not in ``DRIVEN``.
    """
    if SOAK or config.option.markexpr or any("::" in word for word in config.args):
        return
    cases: Counter[str] = Counter()
    later = []
    for item in items:
        but = min((mark.kwargs.get("but", 0) for mark in item.iter_markers("soak")), default=None)
        if _release(item) in RELEASED - DRIVEN:
            later.append(item)
            continue
        if but is None:
            continue
        test = item.nodeid.partition("[")[0]
        if cases[test] < but:
            cases[test] += 1
        else:
            later.append(item)
    config.hook.pytest_deselected(items=later)
    left = {*later}
    items[:] = [item for item in items if item not in left]


def _release(item: pytest.Item) -> str | None:
    """The release of an engine that a test drives, where the test has the parameter ``release``."""
    parameters: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    return parameters.get("release") if item.get_closest_marker("engine") else None


def pytest_collection_finish() -> None:
    """What is imported stays until the end: no later look for unused objects goes through it again."""
    gc.collect()
    gc.freeze()


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Where tensors are; what needs a CUDA device is skipped where there is none."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return str(request.param)
