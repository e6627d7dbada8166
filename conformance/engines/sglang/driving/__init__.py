"""How a release is driven: servers, requests and trees as the callers of its classes drive them."""
