"""The stem ``allocator`` beside an engine: one paged pool."""
