"""Unit tests that stand in documents: run on virtual time, on the command line and by pytest."""

from tupletree.routes.testing.trials import Trial, run_test, run_tests

__all__ = ["Trial", "run_test", "run_tests"]
