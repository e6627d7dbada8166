"""What differs between the releases of SGLang: every probe of a release is in this room."""
