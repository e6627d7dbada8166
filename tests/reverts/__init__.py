"""Ten fixes that SGLang made (``fixes.json``), each with the edits that take it out of a copy of a release again."""
