"""What moves between tasks: frames of tuples, columns, and messages as Arrow or as plain data."""
