"""An engine beside the law: what is judged, what is told of it, and where the report goes."""
