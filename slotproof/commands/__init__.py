"""The commands that are made of the others, and those that are one file."""
