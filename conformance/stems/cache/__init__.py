"""The stem ``cache`` beside an engine: requests and sessions over one tree, with mamba states or without."""
