"""What can be driven: our implementation, and the allocators of SGLang's releases."""
