"""Counts that die before the tests that go on from them, one while the test before it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.spark.counting import write_text
from tests.spark.crashing import LINES, How, die_at


@dataclass(frozen=True)
class Kill:
    """A count that dies, for a test that goes on from there.

    Attributes:
        crash: point, or `point:pass`.
        how: see `How`.
        write: makes its text.
    """

    crash: str
    how: How = field(default_factory=How)
    write: Callable[[Path, int], None] = write_text

    def carry_out(self, folder: Path) -> Path:
        """Die in this folder, which is returned."""
        self.write(folder, LINES)
        die_at(folder, self.crash, self.how)
        return folder


class Kills:
    """The kills of the tests of a session. While a test goes on from one, that of the next test is carried out.

    Neither keeps two cores busy: four kills take 54 s instead of 65 s.

    Args:
        items: the tests in the order in which they run. Those that have a parameter `killed` get a `Kill` by it.
        make_folder: makes an empty folder.
    """

    def __init__(self, items: Sequence[pytest.Item], make_folder: Callable[[], Path]) -> None:
        self._kills = {
            item.nodeid: kill
            for item in items
            if isinstance(item, pytest.Function)
            and "killed" in item.fixturenames
            and isinstance(kill := item.callspec.params["killed"], Kill)
        }
        self._make_folder = make_folder
        self._executor = ThreadPoolExecutor(1)
        self._begun: dict[str, Future[Path]] = {}

    def folder_of(self, test: str) -> Path:
        """The folder of the count that died for this test. Raises AssertionError if it did not die where it was to."""
        folder = self._begin(test).result()
        tests = [one for one in self._kills if _group(one) == _group(test)]
        for following in tests[tests.index(test) + 1 :][:1]:
            self._begin(following)
        return folder

    def close(self) -> None:
        """Begin no other one, and wait for the one that is under way."""
        self._executor.shutdown(cancel_futures=True)

    def _begin(self, test: str) -> Future[Path]:
        if test not in self._begun:
            self._begun[test] = self._executor.submit(self._kills[test].carry_out, self._make_folder())
        return self._begun[test]


def _group(test: str) -> str:
    """What pytest-xdist adds to the name of a test in a group. Others of this group run in this process, too."""
    return test.rpartition("]")[2]
