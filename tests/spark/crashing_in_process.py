"""Crashes of runs in this process: an exception at a crash point, in the place of a kill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tupletree.errors import TupletreeError
from tupletree.runtimes import crash_points

__all__ = ["Crash", "crashing_at"]


class Crash(BaseException):
    """In the place of the end of the process: what was begun is not undone."""


@contextmanager
def crashing_at(point: str, passes: int) -> Iterator[None]:
    """Within, a run crashes when it passes a point for so many times, if it does; no other error ends it."""
    met = 0

    def reach(name: str) -> None:
        nonlocal met
        met += name == point
        if name == point and met == passes:
            raise Crash(name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(crash_points, "on_reached", reach)
        try:
            yield
        except (TupletreeError, Crash):
            assert met == passes
