"""Topologies in versions: message classes and bolts of generated modules, on one state directory, in this process."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.spark.counting import QUICK
from tupletree import Spout, Topology
from tupletree.config import resolve_options
from tupletree.errors import EndOfInput
from tupletree.ids import MessageId
from tupletree.runtimes import crash_points
from tupletree.runtimes.api import RunHandle, RunRequest, Summary
from tupletree.runtimes.run import stored_state
from tupletree.runtimes.spark.driver.upgrade import preview_upgrade
from tupletree.testing.in_process import start_in_process
from tupletree.topology.changes.upgrades import UpgradePlan, Words
from tupletree.topology.components import Emit
from tupletree.tracking.outcomes import Failure

HANG_S = 30.0
LONG: dict[str, Any] = {
    "backoff_initial_ms": 3_600_000.0,
    "backoff_max_ms": 3_600_000.0,
    "service_backoff_max_ms": 3_600_000.0,
}
"""A failed message waits for its next attempt beyond the end of the test."""


class Crash(BaseException):
    """In the place of the end of the process."""


def module(name: str, source: str) -> ModuleType:
    """A module of this source, importable under a name that begins with `upgraded_`."""
    made = ModuleType(f"upgraded_{name}")
    sys.modules[made.__name__] = made
    exec(compile(source, made.__name__, "exec"), made.__dict__)
    return made


class Feed(Spout[Any]):
    """Gives `make(number)` for numbers from 1 to `end`, with the numbers as ids; then it ends, or waits.

    `heard` counts what it was told: (`acked` or `dead`, id).
    """

    def __init__(
        self, make: Callable[[int], Any], end: int, *, waits: bool = False, heard: Counter[Any] | None = None
    ) -> None:
        self.message_type = type(make(1))
        self._make, self._end, self._waits = make, end, waits
        self._heard = Counter[Any]() if heard is None else heard
        self._given = 0

    def next(self) -> Emit[Any] | None:
        if self._given >= self._end:
            if self._waits:
                return None
            raise EndOfInput
        self._given += 1
        return Emit(self._make(self._given), self._given)

    def ack(self, message_id: MessageId) -> None:
        self._heard["acked", message_id] += 1

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        self._heard["dead", message_id] += failure.permanent

    def __deepcopy__(self, memo: Any) -> Feed:
        copy = Feed(self._make, self._end, waits=self._waits, heard=self._heard)
        copy._given = self._given
        return copy

    def snapshot(self) -> Any:
        return self._given

    def restore(self, position: Any) -> None:
        self._given = position


def begin(
    t: Topology,
    place: Path,
    renames: Mapping[str, str] | None = None,
    drops: Iterable[str] = (),
    *,
    append: bool = False,
    active: bool = True,
    **options: Any,
) -> RunHandle:
    """Start a version on the state directory of this place."""
    settings = resolve_options(code={**QUICK, **t.build().options, **options})
    words = Words(dict(renames or {}), frozenset(drops))
    request = RunRequest(t, settings, None, place / "state", append, master="", redact=None, active=active, words=words)
    return start_in_process(request)


def complete(t: Topology, place: Path, renames: Mapping[str, str] | None = None, **more: Any) -> Summary:
    """Run a version to its end."""
    return begin(t, place, renames, **more).wait(HANG_S)


def crash(t: Topology, place: Path, point: str, patch: pytest.MonkeyPatch, passes: int = 1, **more: Any) -> None:
    """Run a version until it crashes at the given pass of a crash point."""
    left = passes

    def reach(name: str) -> None:
        nonlocal left
        left -= name == point
        if name == point and not left:
            raise Crash(name)

    with patch.context() as patched:
        patched.setattr(crash_points, "on_reached", reach)
        with pytest.raises(BaseException, match=point):
            complete(t, place, **more)


def planned(
    t: Topology, place: Path, renames: Mapping[str, str] | None = None, drops: Iterable[str] = ()
) -> UpgradePlan:
    """What a start would do."""
    options = resolve_options(code={**QUICK, **t.build().options})
    return preview_upgrade(place / "state", t.build(), options, Words(dict(renames or {}), frozenset(drops)))


def decisions(plan: UpgradePlan) -> dict[str, set[str]]:
    """Component → what was decided about it."""
    found: dict[str, set[str]] = {}
    for step in plan.steps:
        found.setdefault(step.component, set()).add(step.decision)
    return found


def state_of(place: Path, component: str) -> dict[Any, Any]:
    """The keys and values of a component's state, as plain data."""
    (found,) = [one for one in stored_state(place / "state")[1] if one.name == component]
    return {entry.key: entry.value for entry in found.entries()}
