"""The old place of ``conformance.telling.pasted``, for tests that were pasted before the module moved."""
