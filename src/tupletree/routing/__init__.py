"""Who gets what: a topology becomes tasks, stages and executors, and tuples find theirs."""
