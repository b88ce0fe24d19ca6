"""Commands about a run of another process: what is seen of it, and what it is asked to do."""
