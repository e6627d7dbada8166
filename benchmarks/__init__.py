"""How fast the comparison with the law runs, and our implementation beside an engine: ``python -m benchmarks``."""
