"""The stem ``swa_mapping`` beside an engine: a full pool, an SWA pool, and the mapping between them."""
