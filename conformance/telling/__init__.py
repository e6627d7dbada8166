"""Traces told to a person: operations as calls, what they changed, where in the engine, and pictures."""
