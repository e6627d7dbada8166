"""Our own classes in the place of a release's, and the release's own tests run on both."""
