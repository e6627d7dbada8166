"""The front door: the command line over ``proofs`` and ``conformance``."""
