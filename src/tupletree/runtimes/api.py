"""The interface of a runtime: the handle of a run, its progress and its summary, and what a runtime is asked for.

Owns the run handle's contract, progress and summary. A runtime is imported only when it is asked for, so that
`import tupletree` starts no JVM.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tupletree.config import Options
from tupletree.runtimes.open_messages import NOTHING_OPEN, OpenMessages
from tupletree.runtimes.progress import Listener, ProgressRecord, Reporter
from tupletree.topology.changes.upgrades import Words
from tupletree.tracking.facts import Fact
from tupletree.tracking.holds import Hold
from tupletree.tracking.outages import ShownOutage
from tupletree.tracking.outcomes import DeadLetter
from tupletree.tracking.work_done import WorkDone

if TYPE_CHECKING:
    from tupletree.topology.builder import Topology
    from tupletree.topology.model import TargetRef

OWN_THREADS = "tupletree-"
"""What the names of a run's threads begin with."""

Redact = Callable[[DeadLetter], DeadLetter]
"""Called for each dead letter before it is stored: removes what must not be stored.

Dead letters only: epoch logs, state, history and kept frames hold payloads as they are, and logs what errors say.
"""


@dataclass(frozen=True)
class Progress:
    """The numbers of a run so far. Totals are over the life of the state directory; the rest is about this process.

    Attributes:
        emitted, acked, dead, open: distinct messages.
        replayed: dead letters that went out again, each time: these messages are in `dead` no longer.
        failed, retried: attempts.
        untracked: messages without an id, and all messages where there are no ackers: they are in none of the numbers
            above.
        untracked_failed: tuples whose errors fail no message, because they belong to none; of this process.
        joined: deliveries of a message that was open already; it goes on as the message it is.
        epoch: the last settled epoch (Spark), -1 before the first.
        rate_per_s: messages acked per second, over the last seconds.
        latency_p50_ms, latency_p95_ms: emit to ack of recent messages; None before the first.
        outputs: published rows per sink.
        state: created, activated, processing, paused, waiting, draining, stopping, restarting, stopped or failed. It is
            waiting while a component waits for the end of an outage; others may go on meanwhile.
        outages: what waits for something outside that is not available, the longest wait first.
        outage_counts: component → outages in this process.
        holds: what open messages and their tuples wait for, by kind and component.
        late: component → tuples that came too late for its windows or joins, in this process.
        work: bolt → the tuples that its calls took, and how long, in this process; on Spark in runs that counted.
        reason: why the run was paused, or is being stopped, by itself: too many dead letters (`max_dead`); else empty.
    """

    emitted: int = 0
    acked: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    open: int = 0
    epoch: int = -1
    rate_per_s: float = 0.0
    latency_p50_ms: float | None = None
    latency_p95_ms: float | None = None
    seconds: float = 0.0
    outputs: Mapping[str, int] = field(default_factory=dict)
    state: str = "created"
    outages: Sequence[ShownOutage] = ()
    outage_counts: Mapping[str, int] = field(default_factory=dict)
    untracked: int = 0
    untracked_failed: int = 0
    joined: int = 0
    reason: str = ""
    holds: Sequence[Hold] = ()
    late: Mapping[str, int] = field(default_factory=dict)
    work: Mapping[str, WorkDone] = field(default_factory=dict)
    replayed: int = 0


@dataclass(frozen=True)
class Summary:
    """How a run ended. `emitted == acked + dead + open`; the other numbers are those of `Progress`.

    Attributes:
        left: what the open messages wait for.
        late: see `Progress.late`: of this start, not of the whole state directory.
        reason: see `Progress.reason`; of a paused run that was stopped, too.
        resumes: a start with its state directory goes on with what is open.
    """

    topology: str
    runtime: str
    emitted: int
    acked: int
    failed: int
    retried: int
    dead: int
    open: int
    seconds: float
    state_dir: Path
    outputs: Mapping[str, int] = field(default_factory=dict)
    untracked: int = 0
    untracked_failed: int = 0
    joined: int = 0
    left: OpenMessages = NOTHING_OPEN
    reason: str = ""
    resumes: bool = True
    late: Mapping[str, int] = field(default_factory=dict)


def is_own_thread() -> bool:
    """Whether a thread of a run calls: it must not wait for the run."""
    name = threading.current_thread().name
    return name.startswith(OWN_THREADS) and name != "tupletree-testing"


class RunHandle(ABC):
    """A running topology. Its methods may be called from any thread.

    Args:
        reports: carries its progress records.

    Attributes:
        resumes: see `Summary`.
    """

    resumes = True

    def __init__(self, reports: Reporter) -> None:
        self.reports = reports

    def on_progress(self, listener: Listener) -> None:
        """Have a listener called with each `ProgressRecord` from now on: one per epoch (Spark), one per second (local).

        It is called from a thread of its own: it may take long, and what it raises is logged and changes nothing.
        """
        self.reports.add(listener)

    def recent_progress(self) -> list[ProgressRecord]:
        """The last 100 records of this process, oldest first."""
        return self.reports.recent()

    @property
    @abstractmethod
    def state_dir(self) -> Path:
        """Its state directory, an absolute path."""

    @abstractmethod
    def progress(self) -> Progress:
        """Its numbers now."""

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> Summary:
        """Wait for the end.

        Raises:
            TimeoutError: it has not ended after `timeout_s`.
            TupletreeError: the run failed (infrastructure, never a message).
        """

    @abstractmethod
    def stop(self, drain_timeout_s: float | None = None) -> None:
        """Stop pulling, settle what is in flight, then end; calling it again is harmless.

        Args:
            drain_timeout_s: how long to wait for what is in flight; None takes the option. Returns as soon as it is
                settled. Called by the run itself (a callback of a source, a sink, a progress listener) it returns at
                once: the run cannot end before its caller has returned. What windows, joins and batches hold stays open
                on Spark, for the next start.
        """

    def drain(self, drain_timeout_s: float | None = None) -> None:
        """As `stop`, and end windows, joins and batches with what they hold, so that no message is left open.

        Retries go on meanwhile. What is open when the time is up stays open, as with `stop`. A local run keeps nothing
        for a next start, so that its `stop` does the same.
        """
        self.stop(drain_timeout_s)

    def whereabouts(self, message: str) -> list[Fact]:  # noqa: ARG002 - for those whose files do not say it
        """Where an open message is now, and what holds it; empty if none that is open is called so.

        Args:
            message: an id as `dead list` shows it, `SPOUT/ID`, or the root id of an attempt.
        """
        return []

    @abstractmethod
    def pause(self) -> None:
        """Pull nothing more from the spouts and start no retry; what is in flight is settled. Ends with the process."""

    @abstractmethod
    def resume(self) -> None:
        """Undo `pause`, or activate what was started inactive; does nothing after a stop was requested."""


@dataclass(frozen=True)
class RunRequest:
    """Everything a runtime needs to start a run. See `run` for the fields."""

    topology: Topology
    options: Options
    target: TargetRef | None
    state_dir: Path | None
    append: bool
    master: str
    redact: Redact | None
    active: bool = True
    state_snapshot: Path | None = None
    on_dead: Callable[[DeadLetter], None] | None = None
    words: Words = field(default_factory=Words)
