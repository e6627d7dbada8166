"""Host memory with the policy arc refuses to store a block, although it has another block that it can evict.

ARCCachePolicy.evict looks for a block to evict in its list t2 alone while the list t1 is shorter than its target.
Here the one block of t2 is part of the offer and must stay. Nobody needs the block of t1, and evict leaves it out.
"""

from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

manager = CPUOffloadingManager(2, cache_policy="arc")
request = ReqContext(req_id="request")
first, second, third, fourth = (make_offload_key(bytes([number]) * 32, 0) for number in (1, 2, 3, 4))

for blocks in ([first], [second, third]):  # there are two slots: the first block is evicted for the third
    manager.prepare_store(blocks, request)
    manager.complete_store(blocks, request)
for block in (first, first, second):  # the target of t1 grows from 0 to 2, and the second block moves from t1 to t2
    manager.touch([block], request)
stored = manager.prepare_store([second, fourth], request)
assert stored is not None, "an offer is refused although host memory has a block that could be evicted for the offer"
