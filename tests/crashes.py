"""The end of a process, as an exception at a crash point: what is on disk then is all that the next run has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tupletree.errors import TupletreeError
from tupletree.runtimes import crash_points


class Crash(BaseException):
    """In the place of the end of the process."""


@contextmanager
def crashing(point: str) -> Iterator[None]:
    """A run that is waited for within this crashes at the point; the test fails if it does not."""

    def crash(name: str) -> None:
        if name == point:
            raise Crash(name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(crash_points, "on_reached", crash)
        with pytest.raises((TupletreeError, Crash)):
            yield
