"""The room ``host_server``: a whole server with host memory, whose scheduler decides what is copied and when."""

FOLLOWS = "host_tier"
