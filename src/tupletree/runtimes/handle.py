"""What the handles of runs on both runtimes are made of: the end of a run, and the threads beside it.

Owns how the summary comes of the last progress. How it is run, and what its numbers are, each runtime says.
"""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from tupletree.clock import Clock
from tupletree.runtimes.api import Progress, RunHandle, RunRequest, Summary
from tupletree.runtimes.control import RunControl
from tupletree.runtimes.letter_delivery import LetterDelivery
from tupletree.runtimes.open_messages import OpenMessages
from tupletree.runtimes.progress import ProgressRecord, Reporter, progress_file
from tupletree.runtimes.rates import Rates
from tupletree.runtimes.statefolder import StateFolder
from tupletree.runtimes.threads import start_thread
from tupletree.topology.model import TopologySpec
from tupletree.tracking.retry import RestartPolicy

_IN_BOTH = {one.name for one in fields(Progress)} & {one.name for one in fields(Summary)}


# More than 12 attributes: one per part that every run has.
class BaseRun(RunHandle):
    """See the module docstring. `sample`: see `Reporter`; `resumes`: see `Summary`."""

    def __init__(
        self,
        runtime: str,
        request: RunRequest,
        spec: TopologySpec,
        directory: StateFolder,
        clock: Clock,
        *,
        resumes: bool,
        sample: Callable[[], ProgressRecord] | None = None,
    ) -> None:
        options = request.options
        super().__init__(Reporter(spec.name, progress_file(options), sample))
        self.resumes = resumes
        self._runtime = runtime
        self._request = request
        self._options = options
        self._spec = spec
        self._path = directory.path
        self._clock = clock
        self._rates = Rates(clock)
        self._policy = RestartPolicy(max_restarts=options.max_restarts)
        self._delivery = LetterDelivery(
            spec, request.on_dead, directory.run_id, directory.dead, options, clock, resumes=resumes
        )
        self._logger = logging.getLogger(f"tupletree.{runtime}")
        self._ended = threading.Event()
        self._fault: BaseException | None = None
        self._started_s = clock.monotonic()
        self._run_control = RunControl(self, spec.name, runtime)
        self._thread = threading.Thread(target=self._main, name=f"tupletree-{spec.name}", daemon=True)

    def begin(self) -> None:
        """Start the run's own thread, and those that tell of it."""
        self._run_control.begin()
        self.reports.begin()
        start_thread(self._thread)

    @property
    def state_dir(self) -> Path:
        return self._path

    def wait(self, timeout_s: float | None = None) -> Summary:
        if not self._ended.wait(timeout_s):
            raise TimeoutError
        if self._fault is not None:
            raise self._fault
        progress = self.progress()
        numbers: dict[str, Any] = {name: getattr(progress, name) for name in _IN_BOTH}
        path, left = self.state_dir, self._left()
        return Summary(self._spec.name, self._runtime, state_dir=path, left=left, resumes=self.resumes, **numbers)

    def pause(self) -> None:
        """See `RunHandle.pause`. A restart leaves the spouts paused."""
        self._set_active(active=False)

    def _restart_in_s(self, fault: BaseException) -> float:
        """After how long the topology is started again, which is logged. Raises the fault if that was too often."""
        delay_s = self._policy.failed(self._clock.monotonic())
        if delay_s is None:
            raise fault
        self._logger.warning("%s: restart %d in %.0f s: %s", self._spec.name, self._policy.restarts, delay_s, fault)
        return delay_s

    # --- what a runtime says ----------------------------------------------------------------------------------

    @abstractmethod
    def _main(self) -> None:
        """The run, on its own thread; at the end `_ended` is set."""

    @abstractmethod
    def _left(self) -> OpenMessages:
        """What is open, and what it waits for."""

    @abstractmethod
    def _set_active(self, *, active: bool) -> None:
        """Let spouts emit, or pause them."""
