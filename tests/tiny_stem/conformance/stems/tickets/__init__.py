"""The stem ``tickets`` beside an engine: a desk that hands out tickets."""
