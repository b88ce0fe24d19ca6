"""What holds for every test: none leaves a module, or a place to find modules, to the tests after it.

And where tests run side by side (`pytest -n 2`), those that start a JVM run one after another.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def _starts_spark(file: str) -> bool:
    return "mark.spark" in (ROOT / file).read_text(encoding="utf-8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """See to it that `SparkInOneProcess` knows each test that is marked `spark` by its file."""
    files = {item.nodeid.partition("::")[0] for item in items if item.get_closest_marker("spark")}
    unknown = [file for file in files if not _starts_spark(file)]
    assert not unknown, f"write pytest.mark.spark in the files of such tests themselves: {unknown}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal tests out one by one, but those that start Spark to one process: they share a session, and its two cores."""
    from xdist.scheduler import LoadScopeScheduling

    class SparkInOneProcess(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if starts_spark(nodeid.partition("::")[0]) else nodeid

    starts_spark = functools.cache(_starts_spark)
    return SparkInOneProcess(config, log)


def _is_beside_a_target(name: str, file: Path, written: Path) -> bool:
    """Whether a module was imported by its stem: from what a test wrote, or from beside an example's document."""
    return file.is_relative_to(written) or (file.is_relative_to(EXAMPLES) and "." not in name)


@pytest.fixture(autouse=True)
def forget_written_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Target files are imported by their stem, so a `words.py` left loaded would hide the next test's own."""
    path_before = list(sys.path)
    yield
    sys.path[:] = path_before
    written = tmp_path_factory.getbasetemp()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and _is_beside_a_target(name, Path(file), written):
            del sys.modules[name]
