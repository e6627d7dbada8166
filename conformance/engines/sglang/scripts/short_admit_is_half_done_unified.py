"""A request for which the pool of mamba states is too small is refused, and yet keeps a state slot and a row.

The admission of a batch sends it, where the scheduler has counted too many free slots. The refusal is an assertion, and
the server stops by it.
"""

from array import array
from types import SimpleNamespace

import torch
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams

get_context().override_server_args(page_size=2, attention_backend="torch_native").install()
STATES = 2  # a request needs one slot for its state and two to track it
rows = HybridReqToTokenPool(
    size=2,
    max_context_len=8,
    device="cpu",
    enable_memory_saver=False,
    mamba_size=STATES,
    mamba_spec_state_size=1,
    mamba_layer_ids=[0],
    enable_mamba_extra_buffer=True,
    cache_params=SimpleNamespace(
        shape=SimpleNamespace(conv=[(1, 1)], temporal=(1, 1, 1)),
        dtype=SimpleNamespace(conv=torch.float32, temporal=torch.float32),
    ),
)
request = Req("r", None, array("q", [1, 2, 3]), SamplingParams())
refused = ""
try:
    rows.alloc([request])
except AssertionError as error:
    refused = str(error).partition(",")[0]
lost = STATES - rows.mamba_allocator.available_size()
assert not (refused and lost), f"refused by '{refused}', and {lost} of {STATES} state slots and a row are still taken"
