"""The command line: it proves the law, checks engines against it, and writes the documents."""
