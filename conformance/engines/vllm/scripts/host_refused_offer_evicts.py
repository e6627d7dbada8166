"""Host memory with the policy arc evicts a block for an offer that it then refuses, and no KV event says so.

ARCOffloadingManager.prepare_store evicts one block after the other. Where it finds too few, it returns None at once:
the blocks that it has evicted by then stay evicted, and the event that tells of them comes after the return.
"""

from vllm.v1.kv_offload.arc_manager import ARCOffloadingManager
from vllm.v1.kv_offload.backends.cpu import CPUBackend

manager = ARCOffloadingManager(CPUBackend(block_size=16, num_blocks=1), enable_events=True)
first, second, third = (bytes([number]) * 32 for number in (1, 2, 3))  # the hashes of three blocks

manager.prepare_store([first])
manager.complete_store([first])
manager.prepare_store([second, third])  # refused: there is one slot
told: set[bytes] = set()  # the blocks that host memory has, for a reader of its events
for event in manager.take_events():
    told = told - set(event.block_hashes) if event.removed else told | set(event.block_hashes)
gone = [block for block in told if not manager.lookup([block])]
assert not gone, "a refused offer has evicted a block, and no KV event says that the block is gone"
