"""The Spark session of other tests, for snippets that run on Spark."""

from __future__ import annotations

from tests.spark.conftest import spark

__all__ = ["spark"]
