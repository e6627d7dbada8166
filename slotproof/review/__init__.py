"""``slotproof diff``: how the law differs between two revisions, for who reviews it."""
