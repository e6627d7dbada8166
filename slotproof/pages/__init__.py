"""The generated documents, and the pages of a report."""
