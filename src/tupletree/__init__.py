"""Guaranteed message processing for Python, on Spark."""
