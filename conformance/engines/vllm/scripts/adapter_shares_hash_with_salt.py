"""The prefix cache gives a request of the base model the KV cache that a LoRA adapter has computed.

The hash of a block covers the name of the request's adapter, or its cache salt, and does not say which of them it is.
"""

from types import SimpleNamespace
from typing import Any

from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.request import Request

BLOCK, NAME = 4, "tenant"  # tokens of a block; the name of the adapter, and the cache salt of another client


class Values(SimpleNamespace):
    """A part of a request. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def hashes(name: str, **more: Any) -> list[bytes]:
    """What the prefix cache is asked for when a request with one prompt comes."""
    sampling = Values(max_tokens=1, min_tokens=0, ignore_eos=True, stop_token_ids=[])
    hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
    given = {"eos_token_id": None} if "eos_token_id" in Request.__init__.__annotations__ else {}
    request = Request(name, list(range(BLOCK)), sampling, None, arrival_time=0.0, block_hasher=hasher, **given, **more)
    return list(request.block_hashes)


kv_cache_utils.init_none_hash(sha256)
adapter = Values(lora_name=NAME, name=NAME, lora_int_id=1, adapter_id=1, lora_path="/tenant")
of_adapter = hashes("adapter", lora_request=adapter)
of_salt = hashes("salt", cache_salt=NAME)
assert of_adapter != of_salt, f"adapter {NAME!r} and cache salt {NAME!r} have the hashes {of_salt}"
