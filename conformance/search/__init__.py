"""Searches: an engine in a process of its own, drawn runs, what is new beside a base, harm, campaigns."""
