"""What a topology says about the failures of a bolt."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tests.tasks.streams import Line
from tupletree import PermanentError, Retry, Topology, TopologyError, bolt
from tupletree.errors import ConnectorError, RetryAfter
from tupletree.sources import items

PATIENT = Retry(
    attempts=8, backoff_s=1, max_s=60, on={ValueError: Retry.NEVER, OSError: Retry(factor=4), KeyError: Retry.OUTAGE}
)


@bolt
def work(line: Line) -> None: ...


def test_the_nearest_class_counts_and_the_rest_is_as_for_any_exception() -> None:
    assert PATIENT.settings_for(ZeroDivisionError()) == Retry(attempts=8, backoff_s=1, max_s=60)
    assert PATIENT.settings_for(None) == Retry(attempts=8, backoff_s=1, max_s=60)
    assert PATIENT.settings_for(UnicodeError()) == Retry(attempts=1, backoff_s=1, max_s=60)
    assert PATIENT.settings_for(TimeoutError()) == Retry(attempts=8, backoff_s=1, factor=4, max_s=60)


def test_what_counts_as_an_outage_can_be_chosen() -> None:
    assert PATIENT.takes_as_outage(KeyError())
    assert not PATIENT.takes_as_outage(ValueError())
    assert PATIENT.takes_as_outage(ConnectorError("away"))
    assert not Retry(on={ConnectorError: Retry(attempts=3)}).takes_as_outage(ConnectorError("away"))


@pytest.mark.parametrize(
    ("retry", "words"),
    [
        (Retry(attempts=0), "attempts"),
        (Retry(attempts=True), "attempts"),
        (Retry(attempts=2.5), "attempts"),  # type: ignore[arg-type]  # not every topology is type-checked
        (Retry(backoff_s=-1), "backoff_s"),
        (Retry(backoff_s=float("nan")), "backoff_s"),
        (Retry(factor=0.5), "factor"),
        (Retry(max_s=1e12), "max_s"),
        (Retry(on={"ValueError": Retry.NEVER}), "no exception class"),  # type: ignore[dict-item]  # the same
        (Retry(on={PermanentError: Retry.NEVER}), "always is the last"),
        (Retry(on={ValueError: 3}), "wrong settings"),  # type: ignore[dict-item]  # the same
        (Retry(on={ValueError: Retry(on={KeyError: Retry.NEVER})}), "wrong settings"),
        (Retry(on={ValueError: Retry(attempts=0)}), "attempts"),
        (5, "no Retry"),
    ],
)
def test_what_is_wrong_with_it_is_said_when_the_topology_is_built(retry: Any, words: str) -> None:
    t = Topology("wrong")
    t.bolt("work", work, retry=retry).shuffle(t.spout("lines", items([Line("")])))
    with pytest.raises(TopologyError) as caught:
        t.build()
    (finding,) = caught.value.findings
    assert words in finding.what
    assert "bolt 'work'" in finding.where


def test_it_goes_to_workers_as_it_is() -> None:
    assert pickle.loads(pickle.dumps(PATIENT)) == PATIENT
    again = pickle.loads(pickle.dumps(RetryAfter(3, "busy")))
    assert (again.seconds, again.what) == (3.0, "busy")


@pytest.mark.parametrize(("seconds", "kept"), [(-5, 0.0), (2, 2.0), (1e12, 31_536_000.0)])
def test_a_pause_out_of_range_is_the_nearest_one(seconds: float, kept: float) -> None:
    assert RetryAfter(seconds).seconds == kept
    with pytest.raises(ValueError, match="number"):
        RetryAfter(float("nan"))
