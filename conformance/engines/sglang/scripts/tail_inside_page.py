"""A prompt whose SWA tail starts inside a page decodes into an SWA page of another request.

No caller of this release sends it: disaggregation/decode.py rounds the start of the tail down to a whole page.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # only where there is no GPU

import torch
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

PAGE, PAGES = 4, 4  # tokens of a page; pages of each pool
pool = object.__new__(SWAKVPool)  # the allocator reads the mapping alone, so the pool needs no buffers
pool.full_kv_pool = pool.swa_kv_pool = pool.full_to_swa_index_mapping = None
allocator = SWATokenToKVPoolAllocator(PAGES * PAGE, PAGES * PAGE, PAGE, torch.bfloat16, "cpu", pool, False)
none, nowhere = torch.tensor([0]), torch.tensor([-1])

# The first request: a prompt of 6 tokens, and SWA slots for its last 3 tokens alone. They start inside a page.
length = torch.tensor([6])
first = allocator.alloc_extend_swa_tail(none, none, length, length, nowhere, 6, 3)
# The second request: a prompt of one page.
length = torch.tensor([PAGE])
second = allocator.alloc_extend(none, none, length, length, nowhere, PAGE)
# The first request decodes two tokens. Its full page has room for both.
for length in (torch.tensor([7]), torch.tensor([8])):
    first = torch.cat([first, allocator.alloc_decode(length, length, first[-1:])])

of_first = {slot for slot in allocator.translate_loc_from_full_to_swa(first).tolist() if slot}
of_second = set(allocator.translate_loc_from_full_to_swa(second).tolist())
shared = sorted(of_first & of_second)
assert not shared, f"two requests have one SWA slot, and overwrite each other's keys and values there: {shared}"
