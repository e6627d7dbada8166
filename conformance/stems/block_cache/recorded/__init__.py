"""Judges the recording of a scheduler: its calls are explained as steps of the law ``block_cache``."""
