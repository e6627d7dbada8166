"""What stands in the place of a part of SGLang when its real ``Scheduler`` runs on a CPU, name by name.

``Scheduler.__init__`` of the release runs, with all of its ``init_*``, its own ``ServerArgs`` and its own builder of
pools and tree, and so do its event loops. A release that has not one of the names below cannot be loaded as a server:
the error names it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock
from zlib import crc32

import torch
from torch.testing._internal.distributed.fake_pg import FakeStore

from conformance.driver.exception_origin import StandIn
from conformance.driver.protocol import EngineError
from conformance.engines.importing import Imported
from conformance.engines.sglang.releases.server_parts import (
    ALL,
    COPIES,
    Releases,
    attention_fields,
    has_name,
    modules_with,
)
from conformance.engines.sglang.server.clock import ServerClock
from conformance.engines.sglang.server.copying import CopyDevice
from conformance.engines.sglang.server.drafting import Drafts, worker_class
from conformance.engines.sglang.server.event_socket import (
    EVENTS_ATEXIT,
    EVENTS_THREADING,
    EventQueue,
    Frames,
    events_zmq,
)
from conformance.engines.sglang.server.network import FUTURES, HOST, Network, TransferEngine, beside_of, clock_of
from conformance.engines.sglang.server.sending import ChunkQueue
from conformance.engines.sglang.server.sockets import CHANNELS_ZMQ, RECEIVER_ZMQ, Socket
from conformance.engines.sglang.server.storing import PageHashes, StorageQueue, threading_of
from conformance.engines.sglang.server.streams import PassDevice
from conformance.engines.sglang.server.watching import DECODE, DECODES

IMPORTED = ("managers.scheduler", "managers.tp_worker", "model_executor.model_runner", "server_args")
# The manager, the receivers and the senders of transfers between servers, in releases of which such a server is driven.
TRANSFERS, MOONCAKE = "disaggregation.common.conn", "disaggregation.mooncake.conn"
PREFILL = "disaggregation.prefill"
TRANSFER_ENGINE = "distributed.device_communicators.mooncake_transfer_engine"
MOONCAKE_PARTS = (TRANSFERS, MOONCAKE, TRANSFER_ENGINE)
LOGGER = "logging.Logger"  # the name is a method of a logger
RECEIVERS = f"{TRANSFERS}.CommonKVReceiver"  # the name is one of this class
ALONE = "fake"  # the backend of torch for groups that talk to nobody
EVERYWHERE = "*"  # the name is set in each module of the release that has it
TENSOR = "torch.Tensor"  # the name is a method of a tensor
CPU = "torch.cpu"  # the device of each server
PLATFORMS = "platforms.device_mixin"
PLATFORM = f"{PLATFORMS}.DeviceMixin"  # the name is one of this class
REQUEST = "managers.schedule_batch.Req"  # the name is a method of a request
SCHEDULER, RUNNER = "managers.scheduler", "model_executor.model_runner"
DRAFT_FLAGS = "arg_groups.speculative_hook"
DRAFTING = (
    ("speculative.eagle_worker_v2", "EAGLEWorkerV2"),
    ("speculative.standalone_worker_v2", "StandaloneWorkerV2"),
)
CONTROLLER, HOST_POOLS = "managers.cache_controller", "mem_cache.pool_host.common"
SIM_STORAGE = "mem_cache.storage.sim_storage"  # a storage behind host memory that keeps keys alone
HASHES = "mem_cache.cpp_utils.native_hash"
EVENTS = "disaggregation.kv_events"
POLICY = "managers.schedule_policy"
SHARED = 4  # tokens: requests that wait and share so many wait for each other, where the tree has no more of them
BOOTSTRAP = "distributed.bootstrap"  # it makes the parallel groups
RECEIVER, CHANNELS = "managers.scheduler_components.request_receiver", "managers.scheduler_components.ipc_channels"


@dataclass
class Place:
    """What the stand-ins of one process refer to.

    ``sockets`` is called with the name of a socket. ``runner`` makes the class that stands for ``ModelRunner`` of that
    class. ``clock``: the time of the server that runs. ``drafts``: the server that runs. ``device``: streams and events
    where the release copies to and from host memory. ``streams``: all others. ``network``: of decode servers.
    ``hears`` is called with each message to the subscribers of the server that runs. ``groups``: the parallel groups of
    this process, or the names of the calls that have made them; empty before the first server.
    """

    imported: Imported
    sockets: Callable[[str], Socket]
    runner: Callable[[Any], type]
    clock: ServerClock
    drafts: Callable[[], Drafts]
    device: CopyDevice
    streams: PassDevice
    network: Network
    hears: Callable[[Frames], None]
    groups: dict[str, Any] = field(default_factory=dict)


class StandInRow(NamedTuple):
    """One name of the release that is set. ``module``: where the release reads it. ``value`` makes what stands there.
    ``reason``: why it cannot be the release's own. ``differs``: in what way what stands there is easier or harder.
    ``only``: the releases that must have the name; the others are as if the row were not there.
    """

    module: str
    name: str
    value: Callable[[Place], Any]
    reason: str
    differs: str
    only: Releases = ALL


class ModelFiles(SimpleNamespace):
    """The ``PretrainedConfig`` of a model: the fields that stand in its file.

    The release asks for fields that a model may have with a default, so a field that is missing here is missing there.
    """

    def get_text_config(self) -> ModelFiles:
        """The configuration of its language model: itself."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """The fields."""
        return dict(vars(self))

    @property
    def full_attention_layer_ids(self) -> list[int]:
        """The layers with full attention of a model that has recurrent ones, too. Other models have no such field."""
        recurrent = self.recurrent_layers
        return [layer for layer in range(self.num_hidden_layers) if layer not in recurrent]


class EmptyModel(torch.nn.Module):
    """A model without layers: nothing computes with it."""

    def forward(self, *_: Any, pp_proxy_tensors: Any = None) -> Any:
        """Not called: ``ModelRunner.forward`` is stood in for."""
        raise EngineError(f"the empty model was asked to compute ({pp_proxy_tensors})")


class CpuTorch:
    """The module ``torch`` on a machine without a GPU, where a release asks for the streams of a GPU by name."""

    def __init__(self, streams: PassDevice) -> None:
        self.cuda = SimpleNamespace(Event=streams.event_of, current_stream=streams.current_stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        """``torch.empty``."""
        del pin_memory
        return torch.empty(*args, **kwargs)


class UnpinnedTorch:
    """The module ``torch`` on a machine without a device: a tensor that is to be pinned is an ordinary one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def tensor(self, *args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        """``torch.tensor``."""
        del pin_memory
        return torch.tensor(*args, **kwargs)


def _files(_: Place) -> Callable[..., ModelFiles]:
    def get_config(path: Any, *_: Any, **__: Any) -> ModelFiles:
        return ModelFiles(**json.loads((Path(path) / "config.json").read_text(encoding="utf-8")))

    return get_config


def _loaded(_: Place) -> Callable[..., Any]:
    loader = StandIn(preloaded_weights_bytes=0)
    return lambda **_: StandIn(
        loader=loader, model=EmptyModel(), startup_weight_load=None, remote_instance_weight_info=None
    )


def _backends(place: Place) -> Callable[..., Any]:
    base = place.imported.module("layers.attention.base_attn_backend").AttentionBackend

    class Backend(base):  # type: ignore[misc, valid-type]
        """A backend of attention that computes nothing."""

        def __init__(self, runner: Any) -> None:
            self.__dict__.update(attention_fields(place.imported, runner))

    def build(*, model_runner: Any) -> Any:
        one, other = Backend(model_runner), Backend(model_runner)
        # Older releases keep the names of the backends beside them.
        kept = ("prefill_attention_backend_str", "decode_attention_backend_str")
        names = dict.fromkeys(kept, model_runner.server_args.attention_backend)
        return StandIn(attn_backend=one, decode_attn_backend=other, decode_attn_backend_group=None, **names)

    return build


def _updater(place: Place) -> type:
    base = place.imported.module(RUNNER).WeightUpdater

    class Updater(base):  # type: ignore[misc, valid-type]
        """Its model has no weights."""

        def update_weights_from_disk(self, *_: Any, **__: Any) -> tuple[bool, str]:
            """Nothing is read."""
            return True, "the model has no weights"

    return Updater


def _states(place: Place) -> Callable[[Any], Any]:
    """The recurrent layers of a model, where its configuration has them: the content of a state is one number."""
    kinds = place.imported.module("configs.mamba_utils")

    def states(model: Any) -> Any:
        layers = model.hf_config.to_dict().get("recurrent_layers")
        if layers is None:
            return None
        sizes = dict.fromkeys(("intermediate_size", "n_groups", "num_heads", "head_dim", "state_size"), 1)
        shape = kinds.Mamba2StateShape.create(tp_world_size=1, conv_kernel=2, **sizes)
        params = kinds.Mamba2CacheParams(shape=shape, layers=layers)
        return StandIn(full_attention_layer_ids=model.hf_config.full_attention_layer_ids, mamba2_cache_params=params)

    return states


def _platform(_: Place) -> Callable[[], Any]:
    """A platform whose kernels write the states that are tracked."""
    return lambda: StandIn(is_cuda=True, is_xpu=False)


def _itself(_: Place) -> Callable[..., torch.Tensor]:
    return lambda tensor, *_, **__: tensor


def _none(_: Place) -> Callable[..., None]:
    return lambda *_, **__: None


def _of_name(_: Place) -> Callable[[Any], int]:
    """A hash of a request that is the same in each process, whatever its address is."""
    return lambda request: crc32(request.rid.encode())


def _groups(place: Place) -> Callable[..., None]:
    """The release's own ``init_parallel_runtime`` where the groups of this process are not there yet. The groups of one
    process have no network.
    """
    runtime = place.imported.module("runtime_context")
    real = place.imported.module(BOOTSTRAP).init_parallel_runtime

    def init(**given: Any) -> None:
        stamps = runtime.get_parallel()._stamp
        if not place.groups:
            before = dict(stamps)
            _first_groups(real, given)
            place.groups.update({name: each for name, each in stamps.items() if before.get(name) is not each})
        stamps.update(place.groups)

    return init


def _of_runner(name: str) -> Callable[[Place], Callable[..., None]]:
    """As ``_groups``, for a release whose model runner makes the groups by a function of this name."""

    def value(place: Place) -> Callable[..., None]:
        real = getattr(place.imported.module(BOOTSTRAP), name)

        def init(**given: Any) -> None:
            if name not in place.groups:
                _first_groups(real, given)
                place.groups[name] = True

        return init

    return value


def _first_groups(real: Callable[..., None], given: dict[str, Any]) -> None:
    """A call of the release that makes groups, where there is no network."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(ALONE, store=FakeStore(), rank=0, world_size=1)
    with mock.patch.object(torch.distributed, "new_group", _group_alone):
        real(**given)


def _group_alone(ranks: Any = None, *_: Any, backend: str = "", **__: Any) -> Any:
    """A group of this process alone, for any backend."""
    del backend
    return _NEW_GROUP(ranks, backend=ALONE)


_NEW_GROUP = torch.distributed.new_group
_CPU_OF = torch.Tensor.cpu
TWICE = "a second server of a process finds the groups of the first"
ONCE = "the first server's call is the release's; its one process talks to nobody"
IN_RUNNER = Releases(BOOTSTRAP, "init_torch_distributed")
IN_SCHEDULER = IN_RUNNER._replace(lacking=True)
NO_CLASSES, NO_MODEL = "it asks for classes of transformers", "the code of a model needs transformers"
OTHER_STATES = ("qwen3_next_config", "hybrid_lightning_config", "mamba2_config", "kimi_linear_config")
NO_STREAMS = "a CPU has no streams"
AS_LONG = "a forward pass of a decode server is in flight until the server waits for it"
NO_PINNING = "without a device no memory is pinned"
NO_PACKAGE = "it needs a package that is not installed"
NO_NETWORK = "a message of a decode server is there at once, and none is lost"
TURNS = "a turn takes 1/8 s"
ONE_ORDER, BETWEEN_TURNS = "a run must be the same each time", "messages to a decode server come between turns"
ONE_VALUE = "a process reads it once, when it imports the module"
ROWS: tuple[StandInRow, ...] = (
    StandInRow(EVERYWHERE, "get_config", _files, NO_PACKAGE, "the fields of the file of a small model"),
    StandInRow(
        EVERYWHERE,
        "resolve_hf_gguf_reference",
        _none,
        "it asks a hub for the model",
        "the model is on no hub",
        Releases("model_loader.gguf_name_maps"),
    ),
    StandInRow(EVERYWHERE, "get_generation_config", _none, NO_PACKAGE, "a model without one"),
    StandInRow(EVERYWHERE, "get_hf_text_config", lambda _: lambda files: files, NO_PACKAGE, "a model of text alone"),
    StandInRow(
        EVERYWHERE,
        "get_model_architecture",
        lambda _: lambda model: (EmptyModel, model.hf_config.architectures[0]),
        NO_MODEL,
        "the name is a real model's, the class empty",
    ),
    StandInRow(
        EVERYWHERE,
        "get_resolved_model_impl",
        _none,
        NO_MODEL,
        "a model of SGLang's own",
    ),
    StandInRow(EVERYWHERE, "hybrid_gdn_config", _states, NO_CLASSES, "the small model's states"),
    *(StandInRow(EVERYWHERE, name, _none, NO_CLASSES, "no model of this kind") for name in OTHER_STATES),
    StandInRow(
        EVERYWHERE, "glm5_next_config", _none, NO_CLASSES, "no model of this kind", Releases("configs.glm5_next")
    ),
    StandInRow(
        "arg_groups.mamba_hook",
        "get_platform",
        _platform,
        "no kernel of a CPU writes a tracked state",
        "states are tracked in shadow memory",
        Releases("arg_groups.mamba_hook"),
    ),
    StandInRow(TENSOR, "pin_memory", _itself, NO_PINNING, "the tensor itself"),
    StandInRow(TENSOR, "record_stream", _none, NO_STREAMS, "calls are made in their order"),
    *(
        StandInRow(CPU, name, value, NO_STREAMS, AS_LONG)
        for name, value in (
            ("Stream", lambda place: place.streams.stream_of),
            ("Event", lambda place: place.streams.event_of),
            ("current_stream", lambda place: place.streams.current_stream),
            ("stream", lambda place: place.streams.block_of),
            ("StreamContext", lambda place: place.streams.block_of),
            ("synchronize", lambda place: place.streams.synchronize),
        )
    ),
    StandInRow(
        PLATFORM,
        "synchronize",
        lambda place: lambda _: place.streams.synchronize(),
        NO_STREAMS,
        "as on CUDA, the server waits for the device",
    ),
    StandInRow(
        TENSOR,
        "cpu",
        lambda place: place.streams.reads(_CPU_OF),
        NO_STREAMS,
        "who reads a tensor waits for the passes before it on its stream; not where it is read by other calls",
    ),
    StandInRow(
        REQUEST,
        "__hash__",
        _of_name,
        "requests that are preempted together are queued again in the order of a set, which is that of their addresses",
        "the hash is that of the request's name, so that a run is the same each time",
    ),
    StandInRow(
        "managers.schedule_batch", "torch", lambda _: UnpinnedTorch(), NO_PINNING, "a new tensor is an ordinary one"
    ),
    StandInRow(
        "configs.load_config",
        "orjson",
        lambda _: SimpleNamespace(loads=json.loads),
        NO_PACKAGE,
        "Python's json reads what it reads",
    ),
    StandInRow(RUNNER, "load_model_with_memory_saver", _loaded, "there are no weights", "a model without layers"),
    StandInRow(RUNNER, "build_attention_backends", _backends, "attention needs a device", "computes nothing"),
    StandInRow(RUNNER, "WeightUpdater", _updater, "there are no weights", "an update from disk reads nothing"),
    StandInRow(
        RUNNER, "dist_barrier_after_load", _none, "it waits for other processes by gloo", "there is one process"
    ),
    StandInRow(
        RUNNER, "configure_aux_hidden_state_capture", _none, "the model has no hidden states", "nothing is captured"
    ),
    StandInRow(
        RUNNER,
        "ModelRunner",
        lambda place: place.runner(place.imported.module(RUNNER).ModelRunner),
        "a forward pass needs a device",
        "the release's class; forward reads and writes shadow memory, sample takes the tokens of the run, no graph is "
        "captured",
    ),
    StandInRow(
        DRAFT_FLAGS,
        "_disable_overlap_schedule_for_cpu",
        _none,
        "the release overlaps steps of drafts on devices alone",
        "steps overlap as on a device",
        Releases(DRAFT_FLAGS),
    ),
    *(
        StandInRow(
            module,
            name,
            lambda place: worker_class(place.imported, place.drafts),
            "a draft model needs a device",
            "the run says how much of each draft is accepted; a draft is a chain of tokens",
            Releases(module),
        )
        for module, name in DRAFTING
    ),
    StandInRow(BOOTSTRAP, "init_parallel_runtime", _groups, TWICE, ONCE, IN_SCHEDULER),
    *(
        StandInRow(BOOTSTRAP, name, _of_runner(name), TWICE, ONCE, IN_RUNNER)
        for name in ("init_distributed_environment", "initialize_model_parallel")
    ),
    StandInRow(RECEIVER, "zmq", lambda _: RECEIVER_ZMQ, NO_PACKAGE, "an empty queue hands control back to the run"),
    StandInRow(CHANNELS, "zmq", lambda _: CHANNELS_ZMQ, NO_PACKAGE, "as of the receiver"),
    StandInRow(
        CHANNELS,
        "get_zmq_socket",
        lambda place: lambda _context, _kind, name, _bind: place.sockets(name),
        NO_PACKAGE,
        "a message is copied, and there at the next poll",
    ),
    *(
        StandInRow(module, "time", lambda place: place.clock, ONE_ORDER, TURNS)
        for module in (SCHEDULER, "session.session_controller", "observability.req_time_stats")
    ),
    *(
        StandInRow(
            module,
            "device_module",
            lambda place: place.device,
            NO_STREAMS,
            "a copy to or from host memory is done when the run says so, or when the server waits for it; a forward "
            "pass waits for the layers that it reads",
            Releases(COPIES),
        )
        for module in (COPIES, CONTROLLER)
    ),
    StandInRow(
        CONTROLLER,
        "threading",
        lambda _: threading_of(threading),
        "a run must be the same each time",
        "a thread goes on when the run says so, and stops at its queue and before each call of the storage",
        Releases(SIM_STORAGE),
    ),
    StandInRow(
        CONTROLLER,
        "Queue",
        lambda _: StorageQueue,
        "a run must be the same each time",
        "nobody waits for time to pass",
        Releases(SIM_STORAGE),
    ),
    StandInRow(
        HASHES,
        "_load_native_hash_module",
        lambda _: PageHashes,
        "it compiles C++ when it is called first",
        "the hashes are those of the release",
        Releases(HASHES),
    ),
    StandInRow(
        HOST_POOLS, "_cuda_host_register", _none, NO_PINNING, "host memory is ordinary memory", Releases(COPIES)
    ),
    StandInRow(
        EVERYWHERE,
        "host_memory_budget_bytes",
        lambda _: lambda *_, **__: 1 << 40,
        "a release leaves 10 GiB of this machine's memory free",
        "the pools of a run always fit",
        Releases("mem_cache.pool_host.base", "host_memory_budget_bytes"),
    ),
    *(
        StandInRow(module, name, value, reason, differs, DECODES)
        for module, name, value, reason, differs in (
            (TRANSFERS, "zmq", lambda place: place.network.sockets, NO_PACKAGE, NO_NETWORK),
            (RECEIVERS, "_ctx", lambda place: place.network.context, NO_PACKAGE, NO_NETWORK),
            (
                TRANSFERS,
                "get_zmq_socket_on_host",
                lambda place: place.network.listens,
                NO_PACKAGE,
                "the run says when the prefill server sends a message",
            ),
            (TRANSFERS, "requests", lambda place: place.network.requests, NO_PACKAGE, "a call is answered at once"),
            *(
                (module, "get_local_ip_auto", lambda _: lambda: HOST, "it asks the network", "one address")
                for module in (TRANSFERS, TRANSFER_ENGINE)
            ),
            (
                TRANSFERS,
                "threading",
                lambda _: beside_of(threading),
                ONE_ORDER,
                "the prefill server is never found dead",
            ),
            (MOONCAKE, "threading", lambda place: place.network.threading_of(threading), ONE_ORDER, BETWEEN_TURNS),
            (TRANSFERS, "concurrent", lambda _: FUTURES, ONE_ORDER, "what a pool of threads is given is done at once"),
            (TRANSFERS, "time", lambda place: clock_of(place.clock), ONE_ORDER, TURNS),
            *((name, "time", lambda place: place.clock, ONE_ORDER, TURNS) for name in (MOONCAKE, DECODE)),
            (
                PREFILL,
                "torch",
                lambda place: CpuTorch(place.streams),
                NO_STREAMS,
                "streams and events of a GPU are those that stand for a device",
            ),
            (
                MOONCAKE,
                "FastQueue",
                lambda _: ChunkQueue,
                ONE_ORDER,
                "a worker takes a chunk when the run says so",
            ),
            (
                MOONCAKE,
                "get_mooncake_transfer_engine",
                lambda place: lambda: TransferEngine(other=place.network.other),
                "it is made with the groups of the first server of a process, if that is a decode server",
                "as of the engine",
            ),
            (
                TRANSFER_ENGINE,
                "MooncakeTransferEngine",
                lambda _: TransferEngine,
                NO_PACKAGE,
                "the run says when the prefill server writes, and whether it goes on after it was told to stop",
            ),
        )
    ),
    *(
        StandInRow(LOGGER, name, _none, "transformers gives it to loggers", "nothing is logged")
        for name in ("warning_once", "info_once")
    ),
    StandInRow(
        PREFILL,
        "time",
        lambda place: place.clock,
        ONE_ORDER,
        TURNS,
        Releases(PREFILL, "SchedulerDisaggregationPrefillMixin._yield_gil_if_needed"),
    ),
    StandInRow(MOONCAKE, "zmq", lambda place: place.network.sockets, NO_PACKAGE, NO_NETWORK, Releases(MOONCAKE, "zmq")),
    StandInRow(
        EVENTS,
        "zmq",
        lambda place: events_zmq(place.hears),
        NO_PACKAGE,
        "a batch of KV events is with its one subscriber at once; nobody asks for older ones",
    ),
    StandInRow(EVENTS, "threading", lambda _: EVENTS_THREADING, ONE_ORDER, "a batch is sent when it is published"),
    StandInRow(EVENTS, "Queue", lambda _: EventQueue, ONE_ORDER, "nobody waits for time to pass"),
    StandInRow(
        EVENTS, "atexit", lambda _: EVENTS_ATEXIT, "a server of a run is not shut down", "its thread ends with it"
    ),
    StandInRow(
        EVERYWHERE,
        "RECORD_STEP_TIME",
        lambda _: True,
        ONE_VALUE,
        "each server keeps the times of its steps, as with SGLANG_RECORD_STEP_TIME=1",
    ),
    *(
        StandInRow(POLICY, name, lambda _: SHARED, ONE_VALUE, f"{SHARED}, since texts are short here")
        for name in ("IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD", "IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD")
    ),
    StandInRow(
        SCHEDULER, "create_load_snapshot_writer", _none, "no balancer reads the load", "the load is not published"
    ),
    StandInRow(
        SCHEDULER, "create_scheduler_watchdog", _none, "its thread would end a server that waits for the run", "none"
    ),
)


def put_in_place(place: Place, rows: Sequence[StandInRow] = ROWS) -> None:
    """Sets every name of the table, once in a process. ``EngineError`` where the release has not one of them."""
    for name in [*IMPORTED, *(MOONCAKE_PARTS if DECODES.include(place.imported) else ())]:
        place.imported.module(name)
    for row in [row for row in rows if row.only.include(place.imported)]:
        found = _modules(place, row)
        if not found:
            where = "no module" if row.module == EVERYWHERE else row.module
            raise EngineError(
                f"sglang {place.imported.label}: {row.name} is to be stood in for; {where} has no such name"
            )
        value = row.value(place)
        for module in found:
            setattr(module, row.name, value)


def _modules(place: Place, row: StandInRow) -> list[Any]:
    if row.module == EVERYWHERE:
        return modules_with(row.name)
    if row.module == TENSOR:
        return [torch.Tensor]
    if row.module == PLATFORM:
        return [place.imported.module(PLATFORMS).DeviceMixin]
    if row.module == CPU:
        return [torch.cpu]
    if row.module == REQUEST:
        return [place.imported.module("managers.schedule_batch").Req]
    if row.module == LOGGER:
        return [logging.Logger]
    if row.module == RECEIVERS:
        return [place.imported.module(TRANSFERS).CommonKVReceiver]
    module = place.imported.module(row.module)
    return [module] if has_name(module, row.name) else []
