"""The outages of a run on Spark: what waits for something outside that is not available, by component.

Owns what is logged about them, what status and metrics show, and the pause until the next try. Any thread may report
and ask. It refuses to wait: callers do.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import threading
from collections import Counter
from pathlib import Path

from tupletree.clock import Clock
from tupletree.errors import is_outage
from tupletree.runtimes.statefolder import IDENTITY
from tupletree.tracking.outages import OutageWait, ShownOutage, error_text, shown_outages

logger = logging.getLogger("tupletree.spark")

STATE_DIRECTORY = "state directory"
"""The name for an outage that belongs to no component."""

SPARK_DISK = "Spark's local disk"
"""The name for one of the disk where Spark's JVM keeps what it exchanges (`spark.local.dir`, TMPDIR)."""

OF_NO_COMPONENT = (STATE_DIRECTORY, SPARK_DISK)

READING = "reading"
"""What workers do for a spout, beside what it is asked in the driver."""

RESTART = "restart"
"""What the whole run is begun again for, beside what a run of an epoch waits for."""

DISK_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE}
    | {errno.EMFILE, errno.ENFILE, errno.ENOTCONN}  # too many open files, a file system of a process that is gone
)
"""Error numbers of a disk that cannot be written now."""

_IN_WORKER = re.compile(
    r"^(?:tupletree\.errors\.ConnectorError: .+|(?:OSError|PermissionError): \[Errno (?:"
    + "|".join(str(number) for number in sorted(DISK_ERRORS))
    + r")\] .+)$",
    re.MULTILINE,
)
"""The line of a worker's traceback about an outage: it crosses the process boundary as text only."""

_IN_JVM = re.compile(r"java\.io\.IOException: (?:No space left on device|Disk quota exceeded|Read-only file system)")
"""The same of the JVM, within a line."""


class Outages:
    """See the module docstring.

    Args:
        clock: where time comes from.
        limit_s: how long one may last; None: without limit.
    """

    def __init__(self, clock: Clock, limit_s: float | None) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._waits: dict[tuple[str, str], OutageWait] = {}
        self._lock = threading.Lock()

    def met(self, component: str, error: BaseException | str, act: str = "") -> float:
        """Note that a call raised; returns in how many seconds it is to be made again. Raises OutageLimitError.

        `act` says what is done for the component, where others are done for it, too: that these succeed is no end of
        this outage.
        """
        now_s = self._clock.monotonic()
        with self._lock:
            wait = self._waits.setdefault((component, act), OutageWait(component, self._limit_s))
            text = wait.met(error, now_s)
        if text:
            logger.warning("%s: %s", component, text)
        return max(0.0, wait.due_s - now_s)

    def over(self, component: str, act: str = "") -> None:
        """Note a call without an outage."""
        if (component, act) not in self._waits:
            return
        with self._lock:
            text = self._waits[component, act].over(self._clock.monotonic())
        if text:
            logger.warning("%s: %s", component, text)

    def is_due(self, component: str) -> bool:
        """Whether a call may be made now."""
        wait = self._waits.get((component, ""))
        return wait is None or wait.due_s <= self._clock.monotonic()

    @property
    def pause_s(self) -> float:
        """In how many seconds what waits is to be tried again; -infinity: nothing waits."""
        return max((one.next_try_s for one in self.shown()), default=-math.inf)

    @property
    def away(self) -> list[str]:
        """The components that wait."""
        return [wait.component for wait in [*self._waits.values()] if wait.current is not None]

    def shown(self) -> tuple[ShownOutage, ...]:
        """See `Progress.outages`."""
        return shown_outages((wait.current for wait in [*self._waits.values()]), self._clock.monotonic())

    def counts(self) -> dict[str, int]:
        """See `Progress.outage_counts`."""
        counts = Counter[str]()
        for wait in [*self._waits.values()]:
            counts[wait.component] += wait.count
        return dict(counts)


def outage_in(error: BaseException) -> str | None:
    """The line of an error about something outside that is not available; None if it is about something else."""
    step: BaseException | None = error
    while step is not None:
        if is_outage(step) or (isinstance(step, OSError) and step.errno in DISK_ERRORS):
            return error_text(step)
        step = step.__cause__
    found = _IN_WORKER.findall(str(error))
    if found:
        return str(found[-1]).removeprefix("tupletree.errors.")
    of_jvm = _IN_JVM.search(str(error))
    return of_jvm.group() if of_jvm else None


def is_there(state_dir: Path) -> bool:
    """Whether a state directory is where it was: not moved away, deleted or unmounted."""
    return os.path.exists(state_dir / IDENTITY)  # noqa: PTH110 - Path.exists raises where a file server is away


def outage_of(error: BaseException, state_dir: Path) -> str | None:
    """As `outage_in`; and whatever was raised, if the state directory is not there."""
    if is_there(state_dir):
        return outage_in(error)
    return f"{state_dir}: it is not there any more; next: bring it back (mount it, or move it to its place)"


def place_of(outage: str) -> str:
    """Which of `OF_NO_COMPONENT` what `outage_in` has found is about."""
    return SPARK_DISK if _IN_JVM.match(outage) else STATE_DIRECTORY
