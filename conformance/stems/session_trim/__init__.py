"""The stem ``session_trim`` beside an engine: request rows, streaming sessions' slots, and the pages of the tree."""
