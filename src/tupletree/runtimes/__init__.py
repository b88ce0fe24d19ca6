"""The runtimes: what carries a topology out, what both share, and the one way in (`run`)."""
