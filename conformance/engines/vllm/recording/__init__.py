"""Watches a scheduler of vLLM from inside its process. This folder imports the standard library and msgpack alone."""
