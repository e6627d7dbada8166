"""A block is marked as used while it is copied to host memory with the policy arc, and KeyError ends the engine.

ARCOffloadingManager.touch takes the block out of the list t1, and then tells t1 to move the block to its end.
OffloadingConnectorScheduler calls touch right after prepare_store: the first copy to host memory ends the engine.
"""

from vllm.v1.kv_offload.arc_manager import ARCOffloadingManager
from vllm.v1.kv_offload.backends.cpu import CPUBackend

manager = ARCOffloadingManager(CPUBackend(block_size=16, num_blocks=2))
block = bytes(32)  # the hash of a block

manager.prepare_store([block])  # the copy is under way until complete_store
failed = False
try:
    manager.touch([block])
except KeyError:
    failed = True
assert not failed, "touch raises KeyError for a block whose copy to host memory is under way"
