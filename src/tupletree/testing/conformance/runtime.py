"""A runtime as the suite sees it: start a topology, wait for its end, say how it ended, and what it cannot do."""

from __future__ import annotations

import enum
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tupletree.config import Options
from tupletree.runtimes import deadletters
from tupletree.runtimes import run as api_run
from tupletree.runtimes.api import RunHandle
from tupletree.topology.builder import Topology
from tupletree.tracking.outcomes import DeadLetter


class NotConformingError(AssertionError):
    """A runtime did not do what every runtime must do."""


class Need(enum.Enum):
    """What a scenario needs beyond what every runtime has."""

    TICKS = "ticks"
    CYCLES = "cycles"
    BATCH_BOLTS = "batch bolts"
    WINDOWS = "windows and joins"
    ASYNC_BOLTS = "async bolts"
    ASYNC_SPOUTS = "async spouts"
    INACTIVE_START = "inactive start"
    LASTING_BOLTS = "bolts that keep tuples by hand for as long as they like"


@dataclass(frozen=True)
class Gap:
    """What a runtime cannot do.

    Attributes:
        reason: why, and until when.
        refused: it refuses such a topology (TopologyError), so that users do not take silence for support. The suite
            checks it. False: there is no way to even ask for it.
    """

    reason: str
    refused: bool = True


@dataclass(frozen=True)
class Ended:
    """How a run ended. `emitted`, `acked`, `dead`: distinct messages; `failed`, `retried`: attempts."""

    emitted: int
    acked: int
    failed: int
    retried: int
    dead: int
    open: int
    letters: Sequence[DeadLetter]


class RuntimeUnderTest(ABC):
    """One runtime.

    Attributes:
        name: in test names and messages.
        timeout_s: the message timeout of scenarios about timeouts: short where time is real.
        slack_s: how much later than its bound a timeout may be noticed: 0 where time is virtual.
        gaps: what it cannot do.
        options: settings of every run, beyond those that a scenario needs.
    """

    name: str
    timeout_s: float = 30.0
    slack_s: float = 0.0
    gaps: Mapping[Need, Gap] = {}
    options: Mapping[str, Any] = {}

    @abstractmethod
    def run(self, topology: Topology, options: Options, state_dir: Path) -> Ended:
        """Run a topology to its end. Raises TopologyError for what the runtime refuses."""

    def run_from_inactive(
        self, topology: Topology, options: Options, state_dir: Path, while_inactive: Callable[[], None]
    ) -> Ended:
        """Start with inactive spouts, call `while_inactive` when everything else is up, activate, and run to the end.

        Needed unless INACTIVE_START is a gap; without either the runtime does not conform.
        """
        del topology, options, state_dir, while_inactive  # for those that override it
        raise NotConformingError(
            f"{self.name}: override run_from_inactive, or name Need.INACTIVE_START among the gaps with a reason"
        )

    def latest_expiry_s(self, options: Options) -> float:
        """After how long an attempt has timed out at the latest: T + T/(buckets - 1), and what the runtime adds."""
        assert options.message_timeout_s is not None
        return options.message_timeout_s * (1 + 1 / (options.timeout_buckets - 1)) + self.slack_s


class HandleRuntime(RuntimeUnderTest):
    """A runtime that `tupletree.run` starts.

    Args:
        name: as for `tupletree.run`.
        hang_s: a run that takes longer hangs.
        gaps: what it cannot do.
        options: settings of every run.
        settings: further arguments of `tupletree.run`.
    """

    timeout_s = 0.4
    slack_s = 5.0

    def __init__(
        self,
        name: str,
        *,
        hang_s: float,
        gaps: Mapping[Need, Gap],
        options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.name = name
        self.gaps = gaps
        self.options = options or {}
        self._hang_s = hang_s
        self._settings = settings

    def run(self, topology: Topology, options: Options, state_dir: Path) -> Ended:
        """See `RuntimeUnderTest.run`."""
        return self.end(self.start(topology, options, state_dir), state_dir)

    def run_from_inactive(
        self, topology: Topology, options: Options, state_dir: Path, while_inactive: Callable[[], None]
    ) -> Ended:
        """See `RuntimeUnderTest.run_from_inactive`."""
        handle = self.start(topology, options, state_dir, active=False)
        until_s = time.monotonic() + self._hang_s
        # It is up, and shown as paused. What starts, starts in real time: the limit is only a hang guard.
        while handle.progress().state not in {"processing", "paused"}:
            if time.monotonic() > until_s:
                handle.stop(0.0)
                raise NotConformingError(f"{self.name}: it did not come up: {handle.progress()}")
            time.sleep(0.001)
        while_inactive()
        handle.resume()
        return self.end(handle, state_dir)

    def start(self, topology: Topology, options: Options, state_dir: Path, **settings: Any) -> RunHandle:
        """Start a run."""
        settings = {**self._settings, **settings}
        return api_run.run(topology, runtime=self.name, options=options, state_dir=state_dir, **settings)

    def end(self, handle: RunHandle, state_dir: Path) -> Ended:
        """Wait for the end of a run."""
        try:
            summary = handle.wait(self._hang_s)
        finally:
            handle.stop(0.0)
        return Ended(
            emitted=summary.emitted,
            acked=summary.acked,
            failed=summary.failed,
            retried=summary.retried,
            dead=summary.dead,
            open=summary.open,
            letters=deadletters.read(state_dir),
        )
