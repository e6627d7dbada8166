"""Whole servers, with their own schedulers, beside the law of the stem ``cache``."""

FOLLOWS = "cache"  # the stem whose law a server is held against
