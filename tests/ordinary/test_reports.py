"""`reports.txt`: what users met, and the tests that show that it is right now, and on which runtimes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.sentences import answers_in, fault_of

REPORTS = Path(__file__).parent / "reports.txt"
RUNTIMES = ("both", "local, ", "spark, ")


@pytest.mark.parametrize("report", answers_in(REPORTS), ids=lambda report: report.sentence)
def test_each_report_has_tests_that_exist_and_says_on_which_runtimes(report: object) -> None:
    where, *tests = report.lines  # type: ignore[attr-defined]  # an Answer
    assert where.startswith(RUNTIMES), f"{where!r}: expected `both`, or the only runtime and why: `local, for …`"
    assert tests, "it names no test"
    faults = [f"{one} {fault}" for one in tests if (fault := fault_of(one))]
    assert not faults, "\n".join(faults)


def test_no_report_is_there_twice() -> None:
    sentences = [report.sentence for report in answers_in(REPORTS)]
    assert len(sentences) == len(set(sentences)) > 50
