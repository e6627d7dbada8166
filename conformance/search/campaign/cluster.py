"""Trials as tasks of Ray, on this machine or on a cluster.

Each process of Ray that does trials loads the engine in a process of its own, and keeps it for the trials to come. Ray
is imported only here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from conformance.driver.extras import must_have
from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json
from conformance.search.campaign.workers import EngineWorker, Finished, Runs, in_turn
from conformance.search.connection import Subject

LOCAL = "local"  # the address of Ray on this machine alone
MEMORY = 100 << 20  # bytes of Ray's object store on this machine: trials and their results are small
MOST_OF_A_PATH = 40  # characters of a folder in which Ray's sockets still have a path that the system takes

_loaded: dict[Subject, EngineWorker] = {}  # in a process of Ray: the engine that it has loaded


def _engine(subject: Subject) -> EngineWorker:
    if subject not in _loaded:
        _loaded[subject] = EngineWorker(subject)
    return _loaded[subject]


def _hello(subject: Subject) -> Json:
    return _engine(subject).hello


def _trial(subject: Subject, asked: Json) -> Json:
    return _engine(subject).trial(asked)


@contextmanager
def tasks(subject: Subject, workers: int | None, address: str) -> Iterator[tuple[Json, int, Runs]]:
    """Trials as tasks of the Ray cluster at ``address``, so many at a time; ``None``: one for each of its processors.
    Yields what was loaded, how many trials are done at a time, and the function that does trials.

    Raises ``UsageError`` if Ray is not installed or does not answer at this address.
    """
    ray = _ray()
    _begin(ray, address, workers)
    try:
        at_a_time = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        hello: Json = _value(ray, ray.remote(max_retries=0)(_hello).remote(subject))
        does = ray.remote(max_retries=0)(_trial)
        deaths = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError)

        def runs(trials: Iterator[Json]) -> Iterator[Finished]:
            return in_turn(trials, at_a_time, lambda asked: does.remote(subject, asked).future(), deaths)

        yield hello, at_a_time, runs
    finally:
        ray.shutdown()


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    must_have("--ray", "ray")
    return import_module("ray")


def _begin(ray: Any, address: str, workers: int | None) -> None:
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    if address == LOCAL:
        scratch = tempfile.gettempdir()
        place = {"_temp_dir": f"{scratch}/ray"} if len(scratch) <= MOST_OF_A_PATH else {}
        ray.init(LOCAL, num_cpus=workers, object_store_memory=MEMORY, **quiet, **place)
        return
    try:
        ray.init(address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UsageError(f"--ray {address}: no Ray cluster answers there ({error})") from error


def _value(ray: Any, task: Any) -> Any:
    """The value of a task. An error of the task is raised as it was raised there."""
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
