"""How the law differs between two revisions of the spec: read beside each other, and judged by both solvers."""
