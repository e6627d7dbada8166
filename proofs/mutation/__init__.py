"""Wrong transitions made by small changes of the spec's text, to see whether a law refutes each of them."""
