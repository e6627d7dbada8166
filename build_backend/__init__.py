"""How the package is built; it is no part of what is installed."""
