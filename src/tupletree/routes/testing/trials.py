"""Unit tests of a document: each is run, and says how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tupletree.errors import TupletreeError
from tupletree.escaping import escape
from tupletree.routes.document.cases import TestModel
from tupletree.routes.document.loading import Document
from tupletree.routes.document.nodes import Place, node_at
from tupletree.routes.document.whole import tested_route
from tupletree.routes.testing.expectations import differences
from tupletree.routes.testing.mocks import with_mocks
from tupletree.routes.testing.playing import play


@dataclass(frozen=True)
class Trial:
    """How a test ended.

    Attributes:
        name: the test's.
        place: where it stands.
        problems: what was not as expected; empty: it passed.
        took_s: virtual seconds that it took.
    """

    name: str
    place: Place
    problems: tuple[str, ...]
    took_s: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether all was as expected."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name,
            "file": self.place.file,
            "line": self.place.line,
            "passed": self.passed,
            "problems": list(self.problems),
            "virtual_s": round(self.took_s, 3),
        }


def run_tests(document: Document, pattern: str = "") -> Sequence[Trial]:
    """Run the tests whose names hold this text, in the document's order; all of them by default."""
    return [run_test(document, number) for number, test in enumerate(document.model.tests) if pattern in test.name]


def run_test(document: Document, number: int) -> Trial:
    """Run a test: on virtual time, with fresh adapters.

    Args:
        document: the pipeline's.
        number: of the test in it, from 0.
    """
    test = document.model.tests[number]
    place = node_at(document.root, ("tests", number))[0].place
    try:
        problems, took_s = _played(document, test)
    except TupletreeError as error:
        return Trial(test.name, place, (str(error),))
    except Exception as error:  # noqa: BLE001 - an adapter that cannot be opened, of its user's making
        return Trial(test.name, place, (escape(f"{type(error).__name__}: {error}"),))
    return Trial(test.name, place, tuple(problems), took_s)


def _played(document: Document, test: TestModel) -> tuple[Sequence[str], float]:
    spec = document.spec
    mocked = replace(spec, routes={name: with_mocks(route, test.mocks) for name, route in spec.routes.items()})
    came = play(
        mocked,
        tested_route(test, spec),
        [(one.payload, one.headers) for one in test.input],
        settings={**spec.settings, **test.settings},
        follow=test.follow,
    )
    return differences(test.expect, came), came.took_s
