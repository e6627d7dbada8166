"""The law held against running code: the same calls to the law and to an engine, compared after each of them."""
