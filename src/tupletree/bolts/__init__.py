"""Bolts that come with the package: windows and joins."""
