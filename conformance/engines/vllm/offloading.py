"""Everything that differs between vLLM's releases in the manager of host memory.

Three generations have one set of calls: a manager for each policy over a backend (``LRUOffloadingManager``, to 0.18),
one manager with a policy inside (``CPUOffloadingManager``), and one that is told for which request it does something
(from 0.22). What a release has is probed, as in ``release``: no version number is looked at.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from conformance.driver.protocol import Json, Unsupported

if TYPE_CHECKING:
    from conformance.engines.vllm.release import VLLMRelease

FOLDER = "v1.kv_offload"
MANAGER, REUSED = f"{FOLDER}.cpu.manager", f"{FOLDER}.reuse_manager"
OLD = {
    "lru": (f"{FOLDER}.lru_manager", "LRUOffloadingManager"),
    "arc": (f"{FOLDER}.arc_manager", "ARCOffloadingManager"),
}
TOKENS = 16  # of a key; only the order of the positions matters


class Offloading:
    """The managers of host memory of one release. Raises ``Unsupported`` where the release has none."""

    def __init__(self, release: VLLMRelease) -> None:
        self._imported = release.imported
        if not self.is_one and not self._imported.has(OLD["lru"][0]):
            raise Unsupported("the release has no manager of host memory")

    @cached_property
    def is_one(self) -> bool:
        """One manager has the policy inside."""
        return self._imported.has(MANAGER)

    @cached_property
    def _base(self) -> Any:
        """The module that declares what a manager is."""
        newer = f"{FOLDER}.base"
        return self._imported.module(newer if self._imported.has(newer) else f"{FOLDER}.abstract")

    # Managers.

    def manager(self, config: Json) -> Any:
        """A manager of a configuration (``HostTierEngine``). ``Unsupported`` where the release has none like it."""
        made = self._with_policy(config)
        if config["threshold"] > 1 and not self._counts_itself:
            return self._counting(made, config["threshold"])
        return made

    def _with_policy(self, config: Json) -> Any:
        slots, policy, events, threshold = (config[name] for name in ("slots", "policy", "events", "threshold"))
        if not self.is_one:
            module, name = OLD[policy]
            backend = self._imported.module(f"{FOLDER}.backends.cpu").CPUBackend(block_size=TOKENS, num_blocks=slots)
            return getattr(self._imported.module(module), name)(backend, enable_events=events)
        more = {"store_threshold": threshold} if self._counts_itself else {}
        return self._class(slots, cache_policy=policy, enable_events=events, **more)

    def _counting(self, manager: Any, threshold: int) -> Any:
        """The manager behind one that lets a key pass which was looked up often enough."""
        if not self._imported.has(REUSED):
            raise Unsupported("the release stores each key that is offered")
        return self._imported.module(REUSED).FilterReusedOffloadingManager(manager, threshold)

    @cached_property
    def _class(self) -> Any:
        return self._imported.module(MANAGER).CPUOffloadingManager

    @cached_property
    def _counts_itself(self) -> bool:
        return self.is_one and "store_threshold" in inspect.signature(self._class.__init__).parameters

    @cached_property
    def has_reset(self) -> bool:
        """The manager can forget every key."""
        return self.is_one and hasattr(self._class, "reset_cache")

    # Requests and keys.

    def key(self, number: int) -> bytes:
        """A key as the release names it: the hash of a block, in later releases with the group of layers."""
        digest = number.to_bytes(32, "big")
        make = getattr(self._base, "make_offload_key", None)
        return digest if make is None else bytes(make(digest, 0))

    def context(self, request: int, keys: Sequence[bytes]) -> Any:
        """What the release keeps of a request with these keys; ``None`` where it keeps nothing."""
        made = getattr(self._base, "ReqContext", None)
        if made is None:
            return None
        named = {"req_id": str(request)} if "req_id" in inspect.signature(made).parameters else {}
        context = made(**named)
        if hasattr(context, "set_offload_key_position"):
            for place, key in enumerate(keys, start=1):
                context.set_offload_key_position(key, place * TOKENS)
        return context

    # Calls.

    @staticmethod
    def begins(manager: Any, context: Any) -> None:
        """``on_new_request``, where the manager has it."""
        if hasattr(manager, "on_new_request"):
            manager.on_new_request(context)

    @staticmethod
    def finishes(manager: Any, context: Any) -> None:
        """``on_request_finished``, where the manager has it."""
        if hasattr(manager, "on_request_finished"):
            manager.on_request_finished(context)

    @staticmethod
    def send(call: Any, keys: Any, context: Any, **more: Any) -> Any:
        """A call about keys, for a request where the call takes one."""
        takes = "req_context" in inspect.signature(call).parameters
        return call(keys, context, **more) if takes else call(keys, **more)

    def look_up(self, manager: Any, key: bytes, context: Any) -> bool | None:
        """Whether a key is found; ``None`` where it is being written."""
        if not self.is_one:
            return bool(manager.lookup([key]))
        answer = self.send(manager.lookup, key, context)
        return {"HIT": True, "HIT_PENDING": None, "MISS": False}[answer.name] if hasattr(answer, "name") else answer

    @staticmethod
    def offered(answer: Any) -> tuple[list[bytes], list[int], list[bytes]]:
        """The keys that an offer stores, their slots from 1 on, and the keys that it has evicted."""
        old = hasattr(answer, "block_hashes_to_store")
        stored = answer.block_hashes_to_store if old else answer.keys_to_store
        evicted = answer.block_hashes_evicted if old else answer.evicted_keys
        return list(stored), slots_of(answer.store_spec), list(evicted)

    # KV events.

    @staticmethod
    def event(event: Any) -> Json | None:
        """An event of a manager as the connector publishes it, without the tokens; ``None`` where it publishes none."""
        if getattr(event, "metadata_only", False):
            return None
        hashes = list(event.keys if hasattr(event, "keys") else event.block_hashes)
        if event.removed:
            return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "CPU"}
        return {"type": "BlockStored", "block_hashes": hashes, "token_ids": [], "block_size": 1, "medium": "CPU"}


def slots_of(spec: Any) -> list[int]:
    """The slots that a LoadStoreSpec names, from 1 on."""
    return [int(slot) + 1 for slot in spec.block_ids]
