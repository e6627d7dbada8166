"""Records what a running engine does to its KV cache, call by call, into a file that is judged later.

What is in this folder runs inside a server: it imports the standard library and msgpack alone, and nothing of it waits
for a device.
"""
