"""Keyed state in a worker: a task's committed version in, a candidate file out."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tupletree.data.frames import Frame
from tupletree.errors import ProcessingError
from tupletree.routing.plan import Plan, Task
from tupletree.runtimes.spark.format.program import EpochControl
from tupletree.runtimes.spark.format.wire import FailRoot, StateReport
from tupletree.state.cells import ValueCell, cell_of
from tupletree.state.keys import key_functions, key_types
from tupletree.state.store import OpenSegments, StateCodec, TaskStore
from tupletree.state.versions import STATE_SUFFIX, files_of, groups_of_task
from tupletree.topology.model import ComponentSpec

logger = logging.getLogger("tupletree.spark.state")

_segments = OpenSegments()
"""Segments that this worker process has open; each run names those that count."""


class StatefulTask:
    """The state of one task during one run."""

    def __init__(self, component: ComponentSpec, task: Task, plan: Plan, control: EpochControl, attempt: int) -> None:
        spec = component.body.state
        self._spec = spec
        self.component = component.name
        self._task = task
        folder = Path(control.state_directory) / component.name
        version = control.state.get(component.name, [])
        run = f"{control.generation:06d}-{control.epoch:08d}-{control.run:03d}"
        self._name = f"{task.index:04d}-{control.run_id[:8]}-{run}-{attempt}{STATE_SUFFIX}"
        self.key_functions = key_functions(plan.spec, component, task.index)
        own = range(task.index, task.index + 1)
        groups = groups_of_task(task.index, plan.parallelism(component.name)) if spec.is_keyed else own
        self._store = TaskStore(
            folder,
            files_of(version, groups),
            groups,
            StateCodec(component.name, key_types(plan.spec, component), spec.value_type, is_keyed=spec.is_keyed),
            now_s=control.time_s,
            ttl_s=spec.ttl_s,
            segments=_segments,
        )
        _segments.keep_only(folder, (file.name for file in version))
        self.cell: ValueCell[Any] = cell_of(spec, self._store.load)
        self.is_checked = component.name in control.checked
        if self.is_checked:
            self.cell.check = self._check

    @classmethod
    def of(
        cls, component: ComponentSpec, task: Task, plan: Plan, control: EpochControl, attempt: int
    ) -> StatefulTask | None:
        """The task's state, or None for a bolt that declares none."""
        return cls(component, task, plan, control, attempt) if component.body.state is not None else None

    def write(self, frames: Iterable[Frame], fail: FailRoot) -> StateReport | None:
        """Write what changed.

        Raises:
            ProcessingError: a value cannot be stored, and this run did not check which message did it: it is to run
                again with checks after each tuple. In such a run the value was changed outside of calls, and every
                root that touched its key fails.
        """
        changed = self.cell.delta()
        try:
            encoded = self._store.encode(changed)
        except ProcessingError:
            if not self.is_checked:
                raise
            encoded = self._store.encode(self._storable(changed, frames, fail))
        handed_out = [key for key in self.cell.handed_out if key in encoded]
        if handed_out and self._spec.ttl_s is None:  # what expires is kept longer on disk
            encoded = self._store.without_unchanged(encoded, handed_out)
        if not encoded:
            return None
        written = self._store.write(self._name, encoded)
        store, index = self._store, self._task.index
        return StateReport(self.component, index, written.file, written.merged, store.bytes_read, store.rows_read)

    def _check(self, key: Any, value: Any) -> None:
        self._store.encode({key: value})

    def _storable(self, changed: dict[Any, Any], frames: Iterable[Frame], fail: FailRoot) -> dict[Any, Any]:
        """`changed` without the values that cannot be stored; every root that touched their keys fails."""
        bad: dict[Any, ProcessingError] = {}
        for key, value in changed.items():
            try:
                self._store.encode({key: value})
            except ProcessingError as error:
                bad[key] = error
        logger.warning(
            "%s: %d values cannot be stored, the first: %s", self.component, len(bad), next(iter(bad.values()))
        )
        for frame in frames:
            keys_of = self.key_functions[frame.component, frame.stream]
            for root, values in frame.segments():
                for value in values:
                    try:
                        (key,) = keys_of([value])
                    except Exception:  # noqa: BLE001, S112 - a tuple without a key failed before it touched state
                        continue
                    if key in bad:
                        fail(root, value, bad[key])
        return {key: value for key, value in changed.items() if key not in bad}
