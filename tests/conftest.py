"""What holds for every test: none leaves a module, or a place to find modules, to the tests after it.

And where tests run side by side, those that share a Spark session run in one process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest
from _pytest.nodeid import NodeId

from tests.java_archive import use_archive

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


# How long an example takes depends on what runs beside it.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")

use_archive(os.environ)

SESSION = {"spark", "start_topology", "run_topology"}
"""Fixtures of tests that share a Spark session, if they are marked `spark`."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group tests that one process is to run, where several run tests side by side (`pytest -n 3 --dist loadgroup`).

    Those that share a Spark session, those whose processes start Spark, one after the other, and those that go on from
    a process that was killed meanwhile. All others are dealt out one by one.
    """
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue
        fixtures = set(getattr(item, "fixturenames", ()))
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("session" if fixtures & SESSION else "spark"))
        elif "killed" in fixtures:
            item.add_marker(pytest.mark.xdist_group("killed"))
    if getattr(config.option, "loadgroup", False):
        for item in items:
            _name_group(item)


def _name_group(item: pytest.Item) -> None:
    """Put the group of a test behind its id, where the scheduler looks for it.

    pytest-xdist does that, too, but up to 3.8.0 in an attribute that pytest no longer reads as of 9.2.
    """
    marker = item.get_closest_marker("xdist_group")
    if marker is None:
        return
    grouped = f"{item.nodeid}@{marker.args[0]}"
    item._id = NodeId.parse(grouped)
    assert item.nodeid == grouped, "tests of a group would not run in one process"


_KEPT: dict[str, ModuleType] = {}
"""Modules that stay: a process has some thousands of them, and looks for others after each test."""


@pytest.fixture(autouse=True)
def forget_written_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Target files are imported by their stem, so a `words.py` left loaded would hide the next test's own.

    What a test wrote is forgotten, and what was imported by its stem from beside an example's document.
    """
    path_before = list(sys.path)
    yield
    sys.path[:] = path_before
    written, examples = f"{tmp_path_factory.getbasetemp()}{os.sep}", f"{EXAMPLES}{os.sep}"
    for name, module in list(sys.modules.items()):
        if _KEPT.get(name) is module:
            continue
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and (file.startswith(written) or ("." not in name and file.startswith(examples))):
            del sys.modules[name]
        else:
            _KEPT[name] = module
