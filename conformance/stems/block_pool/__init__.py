"""Driving a pool of blocks that many requests share, and its prefix cache: the stem ``block_pool``."""
