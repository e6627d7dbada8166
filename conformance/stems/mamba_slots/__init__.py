"""The stem ``mamba_slots`` beside an engine: state slots of requests, sessions and the nodes of a tree."""
