"""Settling an epoch: from the reports of its runs to the commit, and what follows from it."""
