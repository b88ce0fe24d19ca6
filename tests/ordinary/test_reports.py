"""`reports.txt`: what users met, and the tests that show that it is right now, and on which runtimes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.sentences import answers_in, fault_of
from tests.ordinary.runtimes_of_tests import runtimes_of

REPORTS = Path(__file__).parent / "reports.txt"
RUNTIMES = {"both": {"local", "spark"}, "local": {"local"}, "spark": {"spark"}, "either": set[str]()}
"""What the first word says: `either` is of what both share, such as what is found before a runtime starts."""


@pytest.mark.parametrize("report", answers_in(REPORTS), ids=lambda report: report.sentence)
def test_each_report_has_tests_that_exist_and_run_on_the_runtimes_that_it_says(report: object) -> None:
    where, *tests = report.lines  # type: ignore[attr-defined]  # an Answer
    kind = where.split(",")[0]
    assert kind in RUNTIMES, f"{where!r}: expected `both`, `either, for …`, or the only one: `local, for …`"
    assert kind == "both" or ", for " in where or where == f"{kind}, as above", f"{where!r}: expected a reason"
    assert tests, "it names no test"
    faults = [f"{one} {fault}" for one in tests if (fault := fault_of(one))]
    assert not faults, "\n".join(faults)
    missed = RUNTIMES[kind] - set[str]().union(*map(runtimes_of, tests))
    assert not missed, f"{where!r}: none of its tests starts a topology on {', '.join(sorted(missed))}"


def test_no_report_is_there_twice() -> None:
    sentences = [report.sentence for report in answers_in(REPORTS)]
    assert len(sentences) == len(set(sentences)) > 50
