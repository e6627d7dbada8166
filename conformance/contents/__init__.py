"""What the memory of an engine contains: a shadow of every slot, kept beside each run."""
