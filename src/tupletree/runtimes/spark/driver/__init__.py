"""Who feeds epochs and tells spouts: the loop of a run, what it starts from, and what it keeps."""
