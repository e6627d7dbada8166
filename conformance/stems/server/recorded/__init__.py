"""Judges the recording of a whole server: its events are explained as steps of the law ``cache``."""
