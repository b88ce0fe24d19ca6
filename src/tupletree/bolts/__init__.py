"""Bolts that come with the package: windows and joins, and common work without Python per tuple.

The names here are of the latter; windows and joins are made by decorators (`window_bolt`, `join_bolt`).
"""

from tupletree.bolts.vectorised.aggregates import (
    count_by_key,
    count_distinct_by_key,
    dedupe_by_key,
    max_by_key,
    mean_by_key,
    min_by_key,
    sum_by_key,
    top_by_key,
)
from tupletree.bolts.vectorised.columns import explode, filter_rows, project

__all__ = [
    "count_by_key",
    "count_distinct_by_key",
    "dedupe_by_key",
    "explode",
    "filter_rows",
    "max_by_key",
    "mean_by_key",
    "min_by_key",
    "project",
    "sum_by_key",
    "top_by_key",
]
