"""What is wrong on purpose: known bugs, and edits of the spec, of our implementation and of engines."""
