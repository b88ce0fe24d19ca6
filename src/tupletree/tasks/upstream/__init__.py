"""What windows and joins must know of what is before them: what is tried again, and what is under way to them."""
