"""Tests of documents as items of pytest: `pytest -p tupletree.routes.testing.pytest_plugin`.

Every `*.yaml` and `*.yml` file that says `pipeline:` and `tests:` is collected. A document with faults is one item that
fails with all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tupletree.routes.document import Document, DocumentError, read
from tupletree.routes.testing.trials import run_test

_SUFFIXES = {".yaml", ".yml"}
_PIPELINE = re.compile(r"^pipeline:", re.MULTILINE)
_TESTS = re.compile(r"^(?:tests|include):", re.MULTILINE)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> DocumentFile | None:
    """Collect documents of pipelines that have tests."""
    if file_path.suffix not in _SUFFIXES:
        return None
    text = file_path.read_text(encoding="utf-8", errors="replace")
    if not _PIPELINE.search(text) or not _TESTS.search(text):
        return None
    return DocumentFile.from_parent(parent, path=file_path)


class _FailedError(Exception):
    """A test that did not pass."""


class DocumentFile(pytest.File):
    """A document."""

    def collect(self) -> Iterator[pytest.Item]:
        """Its tests."""
        try:
            document = read(self.path)
        except DocumentError as error:
            yield FaultyItem.from_parent(self, name="document", error=error)
            return
        for number, test in enumerate(document.model.tests):
            yield DocumentItem.from_parent(self, name=test.name, document=document, number=number)


class FaultyItem(pytest.Item):
    """A document that cannot be read."""

    def __init__(self, *, error: DocumentError, **named: Any) -> None:
        super().__init__(**named)
        self._error = error

    def runtest(self) -> None:
        """Fail with its faults."""
        raise self._error

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: str | None = None) -> str:  # noqa: ARG002 - pytest's own
        """The faults, without a traceback."""
        return str(excinfo.value)


class DocumentItem(pytest.Item):
    """A test of a document."""

    def __init__(self, *, document: Document, number: int, **named: Any) -> None:
        super().__init__(**named)
        self._document = document
        self._number = number

    def runtest(self) -> None:
        """Run it."""
        trial = run_test(self._document, self._number)
        if trial.problems:
            raise _FailedError(f"{trial.place}\n" + "\n".join(trial.problems))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: str | None = None) -> str:  # noqa: ARG002 - pytest's own
        """What was not as expected, without a traceback."""
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where it stands."""
        return self.path, None, self.name
