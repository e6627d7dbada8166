"""A second group of mamba state slots takes the place of an open one, and the slots of the first group leak.

No caller of this release sends it: the scheduler begins one group at a time. A group stays open, and the next one takes
its place, if an exception is caught between alloc_group_begin and alloc_group_end.
"""

from sglang.srt.mem_cache.allocator.mamba import MambaSlotAllocator

SLOTS = 3
states = MambaSlotAllocator(SLOTS, "cpu")
states.alloc_group_begin(2)  # two slots are set aside for a batch
states.alloc_group_begin(1)  # and one for the next batch
states.alloc_group_end()  # what no request took goes back

lost = SLOTS - states.available_size()
assert not lost, f"{lost} of {SLOTS} state slots are in no list and belong to no request"
