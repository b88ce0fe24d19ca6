"""What holds for every test: none leaves a module, or a place to find modules, to the tests after it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def forget_written_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Target files are imported by their stem, so a `words.py` left loaded would hide the next test's own."""
    path_before = list(sys.path)
    yield
    sys.path[:] = path_before
    written = tmp_path_factory.getbasetemp()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and Path(file).is_relative_to(written):
            del sys.modules[name]
