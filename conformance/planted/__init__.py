"""What is planted to be found: known bugs, and mutants of our implementation and of engines."""
