"""A decode that finds no page in the SWA pool keeps the page that it took from the full pool: that page leaks.

The decode of a running batch sends it, when eviction could not make room in the SWA pool.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # only where there is no GPU

import torch
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

PAGE, FULL, SWA = 2, 2, 1  # tokens of a page; pages of the full pool and of the SWA pool
pool = object.__new__(SWAKVPool)  # the allocator reads the mapping alone, so the pool needs no buffers
pool.full_kv_pool = pool.swa_kv_pool = pool.full_to_swa_index_mapping = None
allocator = SWATokenToKVPoolAllocator(FULL * PAGE, SWA * PAGE, PAGE, torch.bfloat16, "cpu", pool, False)

# A request of one page: the full pool has a page left, the SWA pool has none.
none, prompt = torch.tensor([0]), torch.tensor([PAGE])
slots = allocator.alloc_extend(none, none, prompt, prompt, torch.tensor([-1]), PAGE)
before = allocator.full_available_size()
# The request decodes one token, for which it needs a page of both pools. The SWA pool refuses.
length = torch.tensor([PAGE + 1])
refused = allocator.alloc_decode(length, length, slots[-1:])
after = allocator.full_available_size()
assert refused is not None or after == before, f"alloc_decode refused, and {before - after} full slots are gone"
