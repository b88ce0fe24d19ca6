"""Durable local runs: what is stored of one, when, and how the next start continues from it."""
