"""Keyed state: a task's values in hand, and the versioned files that they come from and go to."""
