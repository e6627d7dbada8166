"""Campaigns: many trials of an engine, on all processors or on a cluster, whose results add up in one folder."""
