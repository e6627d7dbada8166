"""The stem ``cache`` beside an engine: requests and sessions over one tree, and the mamba states of both."""
