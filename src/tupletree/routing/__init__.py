"""Which task gets which tuple: a topology becomes tasks, stages and executors, and groupings choose tasks for tuples."""
