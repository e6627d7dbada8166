"""Wrong transitions, made by small edits of the spec's text; a law must refute each of them."""
