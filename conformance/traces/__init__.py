"""Traces: kept ones and those of users, what they show on an engine, and how they are made small."""
