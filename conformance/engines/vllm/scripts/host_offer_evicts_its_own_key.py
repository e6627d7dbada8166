"""A request offers two blocks to host memory, which has the first, and the first is evicted to store the second.

LRUOffloadingManager.prepare_store evicts the least recently used block, and does not spare the blocks of the offer,
although the docstring of OffloadingManager.prepare_store calls them protected. ARCOffloadingManager has this bug, too.
"""

from vllm.v1.kv_offload.backends.cpu import CPUBackend
from vllm.v1.kv_offload.lru_manager import LRUOffloadingManager

manager = LRUOffloadingManager(CPUBackend(block_size=16, num_blocks=2))
first, second, third = (bytes([number]) * 32 for number in (1, 2, 3))  # the hashes of three blocks

manager.prepare_store([first, second])
manager.complete_store([first, second])  # host memory is full, and nobody loads from it
manager.prepare_store([first, third])
assert manager.lookup([first]) == 1, "an offered block that host memory has is evicted to store another offered block"
