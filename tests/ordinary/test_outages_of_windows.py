"""Windows and joins whose service is away: no attempt counts, nothing dies, each window and pair is called once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.local.running import run as run_locally
from tests.ordinary.conftest import InProcess
from tupletree import PermanentError, SinkBatch, Topology, Window, bolt, join_bolt, testing, window_bolt
from tupletree.errors import ConnectorError
from tupletree.sinks import foreach
from tupletree.sources import items


class Left(msgspec.Struct, frozen=True):
    key: str
    at: float


class Right(msgspec.Struct, frozen=True):
    key: str
    at: float


class Row(msgspec.Struct, frozen=True):
    what: str


LEFT = [Left("ab"[n % 2], float(n)) for n in range(60)]
RIGHT = [Right("ab"[n % 2], float(n)) for n in range(0, 60, 3)]

_refusals: list[int] = [0, 0]  # calls to go until the service is away, and calls that it then refuses


def ask() -> None:
    """A service that is away for a few calls after a first few."""
    if _refusals[0] > 0:
        _refusals[0] -= 1
    elif _refusals[1] > 0:
        _refusals[1] -= 1
        raise ConnectorError("the service is away")


@window_bolt(length_s=10, slide_s=5, per_key=True, timestamp="at", extend_timeout=True)
def sliding(window: Window[Left]) -> Row:
    ask()
    return Row(f"{window.key} {window.start_s} {len(window)} {len(window.new)} {len(window.expiring)}")


@window_bolt(count=7, slide_count=3, per_key=True)
def counted(window: Window[Left]) -> Row:
    ask()
    return Row(f"{window.key} {[one.at for one in window]} {len(window.new)} {len(window.expiring)}")


@join_bolt(within_s=1.5, timestamp="at", extend_timeout=True)
def inner(left: Left, right: Right) -> Row:
    ask()
    return Row(f"{left.at} {right.at}")


@join_bolt(within_s=1.5, timestamp="at", extend_timeout=True)
def outer(left: Left, right: Right | None) -> Row:
    ask()
    return Row(f"{left.at} {right and right.at}")


def topology_of(work: Any, write: Callable[[SinkBatch[Row]], None]) -> Topology:
    t = Topology("away")
    left = t.spout("left", items(LEFT))
    made = t.bolt("work", work).fields(left, "key")
    if work in (inner, outer):
        made = made.fields(t.spout("right", items(RIGHT)), "key")
    t.sink("out", foreach(write)).shuffle(made)
    return t


def rows_without_outage(work: Any) -> list[str]:
    _refusals[:] = 0, 0
    return sorted(row.what for row in testing.run(topology_of(work, print)).outputs["out"])


WORK = [sliding, counted, inner, outer]


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("after", [0, 1, 5, 11])
def test_on_virtual_time_each_is_called_once(work: Any, after: int) -> None:
    expected = rows_without_outage(work)
    _refusals[:] = after, 6
    result = testing.run(topology_of(work, print), options={"max_attempts": 1, "message_timeout_s": 5.0})
    assert sorted(row.what for row in result.outputs["out"]) == expected
    assert result.dead == []
    assert {message.attempts for messages in result.messages.values() for message in messages} == {1}
    assert _refusals == [0, 0]


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_on_both_runtimes_no_attempt_counts(tmp_path: Path, in_process: InProcess, work: Any, runtime: str) -> None:
    expected = rows_without_outage(work)
    _refusals[:] = 5, 2
    written: list[str] = []
    topology = topology_of(work, lambda batch: written.extend(row.what for row in batch))
    start: Any = run_locally if runtime == "local" else in_process
    summary = start(topology, tmp_path / "state", max_attempts=1)
    assert (summary.failed, summary.dead, summary.open) == (0, 0, 0)
    assert sorted(written) == expected


@bolt
def refuses_all(row: Row) -> Row:
    raise PermanentError("never")


@pytest.mark.parametrize("work", WORK)
def test_a_result_that_is_made_after_the_outage_is_anchored_to_all_that_it_is_made_of(work: Any) -> None:
    def dead(refusals: int) -> set[tuple[str, Any]]:
        _refusals[:] = 0, refusals
        t = Topology("behind")
        made = t.bolt("work", work).fields(t.spout("left", items(LEFT)), "key")
        if work in (inner, outer):
            made = made.fields(t.spout("right", items(RIGHT)), "key")
        t.sink("out", foreach(print)).shuffle(t.bolt("refuses_all", refuses_all).shuffle(made))
        ended = testing.run(t)
        return {(spout, one.message_id) for spout, them in ended.messages.items() for one in them if one.dead}

    expected = dead(0)
    assert {spout for spout, _ in expected} == ({"left", "right"} if work in (inner, outer) else {"left"})
    assert dead(6) == expected
