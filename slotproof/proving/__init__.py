"""``slotproof prove``: the obligations, their headlines, and what is trusted."""
