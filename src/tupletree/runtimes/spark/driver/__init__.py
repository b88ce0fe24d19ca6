"""The driver: the loop that feeds epochs and calls spouts, what a run starts from, and what it keeps."""
