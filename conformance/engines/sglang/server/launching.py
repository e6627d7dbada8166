"""A server of a release, started as its launcher starts one: from a list of launch flags.

The release parses the flags, resolves them for the model, and publishes its configuration; then ``Scheduler`` is made.
"""

from __future__ import annotations

import copy
import gc
import logging
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from conformance.driver.exception_origin import StandIn, place
from conformance.driver.protocol import EngineError, Unsupported
from conformance.engines.importing import Imported, line_of
from conformance.engines.sglang.releases.server_parts import (
    asks_draft_runners,
    new_scheduler,
    publish,
    published_fields,
    resolve,
)
from conformance.stems.vetting import told

# Flags that every server of a run has: a CPU in place of a device, and token ids in place of text.
ALWAYS = ("--device", "cpu", "--skip-tokenizer-init", "--random-seed", "0", "--log-level", "critical")
DRAFTS = "--speculative-algorithm"  # with this flag a server has a draft model, here one of the same layers
SOCKETS = ("tokenizer", "scheduler_input", "detokenizer", "rpc", "metrics")
MODELS = Path(__file__).parent / "models"


class Published(NamedTuple):
    """What a server has published, by object and name: settings, ranks and groups. ``environment``: its variables."""

    values: Mapping[tuple[int, str], Any]
    environment: Mapping[str, str] = {}


class Resolved(NamedTuple):
    """What the release made of launch flags: its ``ServerArgs``, and the variables of its environment that it set."""

    settings: Any
    environment: Mapping[str, str]


class Launcher:
    """Starts servers of one imported release. One process can have several; each runs in its own published context.

    What the release made of launch flags is kept: the next server of these flags gets a copy. To parse them takes the
    release longer than to make the server, and one finding is shrunk with hundreds of equal servers.
    """

    def __init__(self, imported: Imported) -> None:
        self._imported = imported
        self._runtime = imported.module("runtime_context")
        self._known: dict[tuple[Any, ...], Resolved] = {}

    def launch(self, model: str, flags: Sequence[str], environment: Mapping[str, str]) -> tuple[Any, Published]:
        """A ``Scheduler`` with these flags and variables of its environment, and what it has published.

        Raises ``Unsupported`` where the release refuses the flags, also by a ``ValueError`` of ``Scheduler.__init__``
        that says what one of them requires; and ``EngineError`` where ``Scheduler.__init__`` fails otherwise: it names
        the ``init_`` method.
        """
        with self._apart(), mock.patch.dict(os.environ, environment):
            self._put(self._read(*self._fresh()))
            settings, variables = self._resolved(model, flags, environment)
            os.environ.update(variables)
            publish(self._imported, settings)
            gc.freeze()  # the release collects all objects before it sizes its pools
            try:
                scheduler = new_scheduler(self._imported, settings, _ports())
            except Exception as error:
                if isinstance(error, ValueError) and _is_refused(str(error), flags):
                    raise Unsupported(f"the release refuses these flags: {line_of(error)}") from error
                label, failed = f"sglang {self._imported.label}", "" if place(error) else told(error)
                what = f"{label}: {_method(error)} of its scheduler fails: {line_of(error)}"
                raise EngineError(what, unbuilt=failed) from error
            now = self._now()
        return scheduler, now._replace(environment=variables)

    def _resolved(self, model: str, flags: Sequence[str], environment: Mapping[str, str]) -> Resolved:
        """``ServerArgs`` of these flags, in an environment that has these variables. Nothing is published on the way
        (``tests/test_sglang_server.py``).
        """
        key = (model, *flags, *sorted(environment.items()))
        if key not in self._known:
            before = dict(os.environ)
            settings = self._settings(model, flags)
            changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
            self._known[key] = Resolved(settings, {**environment, **changed})
        settings, variables = self._known[key]
        return Resolved(copy.deepcopy(settings), variables)

    def _settings(self, model: str, flags: Sequence[str]) -> Any:
        """``ServerArgs`` of these flags, resolved."""
        if DRAFTS in flags and asks_draft_runners(self._imported):
            raise Unsupported(f"sglang {self._imported.label} asks a draft model for its pool: there is none")
        try:
            with _quiet():
                arguments = self._imported.module("server_args")
                paths = ["--model-path", str(MODELS / model)]
                paths += ["--speculative-draft-model-path", str(MODELS / model)] if DRAFTS in flags else []
                found = arguments.prepare_server_args([*paths, *ALWAYS, *flags])
            resolve(self._imported, found)
        except (ValueError, AssertionError, NotImplementedError, SystemExit) as error:
            raise Unsupported(f"the release refuses these flags: {line_of(error)}") from error
        return found

    @contextmanager
    def within(self, context: Published) -> Iterator[None]:
        """While this lasts, the release reads what this server has published, and its environment."""
        with self._apart(), environment_with(context.environment):
            self._put(context)
            yield

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """What is published before is published again afterwards."""
        before = self._now()
        try:
            yield
        finally:
            self._put(before)

    def _objects(self) -> tuple[Any, Any]:
        context = self._runtime.get_context()
        return context, context.parallel

    def _fresh(self) -> tuple[Any, Any]:
        """As they are in a process that has published nothing."""
        context, parallel = (type(each) for each in self._objects())
        new = context(parallel=parallel())
        return new, new.parallel

    def _now(self) -> Published:
        return self._read(*self._objects())

    @staticmethod
    def _read(*objects: Any) -> Published:
        read = {(at, name): value for at, each in enumerate(objects) for name, value in published_fields(each).items()}
        return Published({key: value for key, value in read.items() if key[1] != "parallel"})

    def _put(self, context: Published) -> None:
        objects = self._objects()
        for (at, name), value in context.values.items():
            setattr(objects[at], name, value)


def _is_refused(said: str, flags: Sequence[str]) -> bool:
    """Whether what a release says is that one of these flags requires something else."""
    return "requires" in said and any(flag.startswith("--") and flag in said for flag in flags)


def _method(error: Exception) -> str:
    """The method that ``Scheduler.__init__`` called and that failed."""
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    after = names[names.index("__init__") + 1 :] if "__init__" in names else []
    return after[0] if after else "__init__"


@contextmanager
def environment_with(variables: Mapping[str, str]) -> Iterator[None]:
    """The environment has these variables while this lasts, and afterwards what it had before. This is entered at each
    event of a server: ``mock.patch.dict`` would write every variable of the process again.
    """
    kept = vars(os.environ)["_data"]  # its variables, encoded: a copy of these costs a hundredth of one of os.environ
    before = kept.copy()
    os.environ.update({name: value for name, value in variables.items() if os.environ.get(name) != value})
    try:
        yield
    finally:
        if kept != before:
            for name in kept.keys() - before.keys():
                del os.environb[name]
            os.environb.update({name: value for name, value in before.items() if kept.get(name) != value})


@contextmanager
def _quiet() -> Iterator[None]:
    """The release configures logging for its process when it parses its flags; here it is not its process."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def _ports() -> StandIn:
    """The names of its sockets, as ``PortArgs`` has them."""
    return StandIn(nccl_port=1, instance_id="", **{f"{name}_ipc_name": name for name in SOCKETS})
