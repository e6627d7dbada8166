"""Reading a release's source without importing it: which of its code touches which member of an allocator."""
