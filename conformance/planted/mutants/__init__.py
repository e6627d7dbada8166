"""Mutants of our implementation: one place of ``impl/`` is changed, and ``slotproof check ours`` must notice it."""
