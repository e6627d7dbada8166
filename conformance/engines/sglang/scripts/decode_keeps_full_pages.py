"""A decode that the SWA pool refuses keeps the full pages that it took: they leak.

The decode of a running batch sends it, when eviction could not make room in the SWA pool.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # only where there is no GPU

import torch
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

PAGE, FULL, SWA = 2, 4, 3  # tokens of a page; pages of the full pool and of the SWA pool
pool = object.__new__(SWAKVPool)  # the allocator reads the mapping alone, so the pool needs no buffers
pool.full_kv_pool = pool.swa_kv_pool = pool.full_to_swa_index_mapping = None
allocator = SWATokenToKVPoolAllocator(FULL * PAGE, SWA * PAGE, PAGE, torch.bfloat16, "cpu", pool, False)

# Two requests of one page each: the full pool has two pages left, the SWA pool one.
slots = allocator.alloc_extend(
    *(torch.tensor([0, 0]), torch.tensor([0, 0]), torch.tensor([PAGE, PAGE]), torch.tensor([PAGE, PAGE])),
    *(torch.tensor([-1, -1]), 2 * PAGE),
)
before = allocator.full_available_size()
# Each of them decodes one token, for which it needs a page of both pools. The SWA pool refuses.
lengths = torch.tensor([PAGE + 1, PAGE + 1])
refused = allocator.alloc_decode(lengths, lengths, slots[[PAGE - 1, 2 * PAGE - 1]])
after = allocator.full_available_size()
assert refused is not None or after == before, f"alloc_decode refused, and {before - after} full slots are gone"
