"""The local runtime: a topology in one process, on threads with ring buffers."""
