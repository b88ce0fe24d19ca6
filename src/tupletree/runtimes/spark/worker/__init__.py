"""What runs inside a Spark task: one partition's part of one run of an epoch."""
