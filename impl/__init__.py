"""KV-cache bookkeeping an engine can put in place of its own: device-resident torch tensors, no host wait when it
allocates."""
