"""The driver: calls an engine, reads one snapshot, explains the answer as steps of the law, and compares."""
