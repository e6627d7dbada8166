"""How fast the law runs, and our implementation beside SGLang's: ``python -m benchmarks``."""
