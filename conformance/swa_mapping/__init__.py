"""The stem ``swa_mapping`` beside an engine: a full and a sliding-window (SWA) pool, and the mapping between them."""
