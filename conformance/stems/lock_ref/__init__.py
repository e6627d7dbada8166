"""The stem ``lock_ref`` beside an engine: a radix tree whose nodes are locked by lock handles."""
