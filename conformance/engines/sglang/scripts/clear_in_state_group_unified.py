"""The pool of mamba states is cleared while slots are set aside for a batch: two requests get one slot.

No caller of this release sends it: flush_cache clears the pool between two batches, when no slots are set aside.
"""

from sglang.srt.mem_cache.allocator.mamba import MambaSlotAllocator

states = MambaSlotAllocator(3, "cpu")
states.alloc_group_begin(2)  # two slots are set aside for the requests of a batch
states.clear()  # all three slots are in the free list again

handed_out = [int(states.alloc(1)) for _ in range(3)]
twice = sorted({slot for slot in handed_out if handed_out.count(slot) > 1})
assert not twice, f"requests overwrite each other's states: these slots were handed out twice: {twice}"
