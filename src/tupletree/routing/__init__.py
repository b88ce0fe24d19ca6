"""Which task gets which tuple: tasks, stages and executors of a topology, and its groupings."""
