"""Our implementation in the place of a release's own classes, and what a release asks of such a class."""
