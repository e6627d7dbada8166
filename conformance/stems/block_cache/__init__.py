"""Driving a scheduler with its whole cache of blocks: the stem ``block_cache``."""
