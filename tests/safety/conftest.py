"""A folder that other users can get to, as they can to a host's temporary folder; pytest's own are private."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def shared() -> Iterator[Path]:
    """Everybody may write here, as in /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="safety-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)
