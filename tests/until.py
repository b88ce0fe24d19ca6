"""Waiting for threads and processes of real runs, which nobody can be told of, and whose clocks are not ours to set."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["PATIENCE_S", "until"]

PATIENCE_S = 60.0
"""Enough on a busy machine. What is tested never depends on it."""

T = TypeVar("T")


def until(look: Callable[[], T], *, patience_s: float = PATIENCE_S, what: Callable[[], object] | None = None) -> T:
    """What `look` gives as soon as that is true. Raises AssertionError, with what `what` gives, after `patience_s`."""
    ends_s = time.monotonic() + patience_s
    while not (found := look()):
        if time.monotonic() > ends_s:
            raise AssertionError(f"it did not come within {patience_s:g} s: {what() if what else found}")
        time.sleep(0.01)  # this is the one place that looks again and again
    return found
