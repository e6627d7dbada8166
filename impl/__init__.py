"""KV-cache bookkeeping that an engine can use in place of its own, with SGLang's names and signatures.

All state is torch tensors on the device of the KV cache. What must be counted before a call can go on is counted on the
host, from host copies of the lengths, so allocating, growing, freeing rows of known lengths, and locking do not wait
for the GPU. The calls that do are named in the docstrings of ``allocator``, ``swa_mapping`` and ``lock_ref``. An engine
calls ``warm_up`` of its allocator once, so that no later call waits until a kernel is compiled. The two modules of
blocks are plain Python on the host, and have names of their own.

===================  ==================================================================================================
``allocator``        one pool of pages: ``TokenToKVPoolAllocator``, ``PagedTokenToKVPoolAllocator``
``swa_mapping``      a full and an SWA pool with the mapping between them: ``SWATokenToKVPoolAllocator``
``lock_ref``         locks on the nodes of a radix tree: ``LockTree``, ``LockHandle``
``session_trim``     request rows (``req_to_token``) and the slots of streaming sessions: ``RequestRows``
``mamba_slots``      recurrent states of requests and sessions: ``MambaStates``
``cache``            all of these together: ``SessionCache``
``prefix_cache``     a radix tree that an engine's scheduler calls as its own: ``PrefixCache``
``block_pool``       blocks that many requests share, and the prefix cache that finds them: ``BlockPool``
``block_cache``      a scheduler with block tables over such a pool: ``Scheduler``
===================  ==================================================================================================

Of these the allocators and the prefix cache can replace an engine's own: ``slotproof compat ENGINE --release V`` says
what an engine's code touches of its allocators and ours lack, with the reason. The other modules of the table have an
interface of their own: a scheduler that is written for another cache cannot call them.

The other modules are parts of these. ``kernels`` (plain torch and Triton): slots and mapping of an allocation.
``paths``: the paths and lock counts of ``LockTree``. ``rows``: the table of token slots. ``states``: the pool of state
slots. ``radix``: the texts and slots of tree nodes. ``eviction``: which of them are evicted first. ``tree_insert``: how
a row's pages go to the tree. ``kv_events``: what the prefix cache says of its pages to routers.
``mamba_in_cache``: the states of the cache's rows. ``checks`` and ``host``: what callers pass in.
"""
