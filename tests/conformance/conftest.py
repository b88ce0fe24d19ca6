"""One Spark session for the whole suite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tupletree.runtimes.spark.session import open_session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session; every run in this process uses it as it is."""
    session, owned = open_session("tests", "local[2]")
    yield session
    if owned:
        session.stop()
