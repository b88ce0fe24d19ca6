"""Keyed state in a worker: a task's committed version in, a candidate file out."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tupletree.errors import ProcessingError
from tupletree.frames import Frame
from tupletree.plan import Plan, Task
from tupletree.runtimes.spark.program import Control
from tupletree.runtimes.spark.wire import FailRoot, StateReport
from tupletree.state.cells import ValueCell
from tupletree.state.files import StateCodec, StateFile, VersionCache, fold, needs_base
from tupletree.state.keys import key_functions
from tupletree.topology.model import ComponentSpec

__all__ = ["StatefulTask"]

logger = logging.getLogger("tupletree.spark.state")

_cache = VersionCache()
"""Committed versions that this worker process has read; validated at each use."""


class StatefulTask:
    """The state of one task during one run."""

    def __init__(self, component: ComponentSpec, task: Task, plan: Plan, control: Control, attempt: int) -> None:
        spec = component.body.state
        self._component = component
        self._task = task
        self._directory = Path(control.state_directory) / component.name
        self._files: list[StateFile] = list(control.state.get(component.name, {}).get(task.index, ()))
        version = f"{control.generation:06d}-{control.epoch:08d}-{control.run:03d}"
        # The run's own name keeps a worker's cache from taking another run's files in the same folder for these.
        self._name = f"{task.index:04d}-{control.run_id[:8]}-{version}-{attempt}"
        self.key_functions = key_functions(plan.spec, component)
        key_types = [
            plan.spec.components[source.component].outputs[source.stream].schema.fields[field]
            for source in component.inputs
            for field in source.grouping.fields
        ]
        self._codec = StateCodec(component.name, key_types, spec.value_type)
        self._committed = _cache.load(self._directory, task.index, self._files, self._codec)
        self.cell: ValueCell[Any] = ValueCell(self._committed, spec.default)

    @classmethod
    def of(
        cls, component: ComponentSpec, task: Task, plan: Plan, control: Control, attempt: int
    ) -> StatefulTask | None:
        """The task's state, or None for a bolt that declares none."""
        return cls(component, task, plan, control, attempt) if component.body.state is not None else None

    def write(self, frames: list[Frame], fail: FailRoot) -> StateReport | None:
        """Write what changed. A value that cannot be stored fails every root that touched its key in this run."""
        changed = self.cell.delta()
        try:
            changed = self._codec.as_stored(changed)
        except ProcessingError:
            changed = self._codec.as_stored(self._storable(changed, frames, fail))
        if not changed:
            return None
        is_base = needs_base(self._files, len(changed))
        path = self._directory / f"{self._name}.{'base' if is_base else 'delta'}"
        whole: dict[Any, Any] = changed
        if is_base:
            whole = dict(self._committed)
            fold(whole, changed)
        file = self._codec.write(path, self._task.index, whole, is_base=is_base)
        _cache.offer(self._directory, self._task.index, file, changed)
        return StateReport(self._component.name, self._task.index, file.name, file.keys, file.is_base)

    def _storable(self, changed: dict[Any, Any], frames: list[Frame], fail: FailRoot) -> dict[Any, Any]:
        """`changed` without the values that cannot be stored, whose roots fail.

        Those roots touched state, so settle runs the epoch again without them. Untracked tuples have nobody who could
        be told: their change is lost, as their failure would be, and logged.
        """
        bad: dict[Any, ProcessingError] = {}
        for key, value in changed.items():
            try:
                self._codec.as_stored({key: value})
            except ProcessingError as error:
                bad[key] = error
        logger.warning(
            "%s: %d values cannot be stored, the first: %s", self._component.name, len(bad), next(iter(bad.values()))
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
