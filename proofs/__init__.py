"""Proofs that every transition of every stem keeps every invariant, for any number of pages and rows."""
