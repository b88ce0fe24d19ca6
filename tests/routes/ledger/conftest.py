"""A ledger beside its queues, in each place that it can be in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.routes.ledger.ledgers import Bench, bench


@pytest.fixture(params=["database", "queue file"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A ledger and its queues."""
    made = bench(request.param, tmp_path)
    yield made
    made.close()
