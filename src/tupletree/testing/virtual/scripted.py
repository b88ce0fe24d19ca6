"""Scripts: the messages of one spout, given out and given back as a broker would.

Owns which messages wait, and which were given out and not settled. A `ScriptedSpout` is one consumer of a script; the
script outlives it, as a queue outlives its consumers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tupletree.errors import ConfigError, EndOfInput
from tupletree.ids import MessageId
from tupletree.topology.components import AsyncSpout, Emit, Spout, TaskContext
from tupletree.topology.model import TopologySpec
from tupletree.tracking.message_ids import message_key
from tupletree.tracking.outcomes import Failure


class ScriptedMessages:
    """The messages of one spout, shared out among its tasks.

    Args:
        emits: the messages in order; message i goes to task i modulo the number of tasks.
        tasks: how many there are.
        by_source: a failed attempt is to be given out again (`replay="source"`).
    """

    def __init__(self, emits: Sequence[Emit[Any]], tasks: int, *, by_source: bool) -> None:
        self.emits = tuple(emits)
        self._waiting = [deque(self.emits[index::tasks]) for index in range(tasks)]
        self._given: list[dict[Hashable, Emit[Any]]] = [{} for _ in range(tasks)]
        self._by_source = by_source
        self._incarnations = [0] * tasks

    def life(self, index: int) -> int:
        """How often a task was lost without closing."""
        return self._incarnations[index]

    def give(self, index: int, most: int) -> list[Emit[Any]] | None:
        """Up to `most` messages for a task; None if there are none now but may be later. Raises EndOfInput."""
        waiting, given = self._waiting[index], self._given[index]
        if not waiting:
            if self._by_source and given:
                return None
            raise EndOfInput
        taken = [waiting.popleft() for _ in range(min(most, len(waiting)))]
        given.update((message_key(one.message_id), one) for one in taken if one.message_id is not None)
        return taken

    def hear(self, index: int, message_id: MessageId, failure: Failure | None) -> None:
        """A message was acked (no failure), is dead, or is to be given out again."""
        emit = self._given[index].pop(message_key(message_id), None)
        if emit is not None and failure is not None and self._by_source and not failure.permanent:
            self._waiting[index].append(emit)

    def redeliver(self, index: int) -> None:
        """The task was lost without closing: what it had not settled comes again."""
        self._incarnations[index] += 1
        given, self._given[index] = self._given[index], {}
        self._waiting[index].extendleft(reversed(given.values()))


class ScriptedSpout(Spout[Any]):
    """Gives out a script.

    Args:
        script: the messages.
        batch: how many to give at a time; asked before each batch.
    """

    def __init__(self, script: ScriptedMessages, batch: Callable[[], int]) -> None:
        self._script = script
        self._batch = batch
        self._index = 0

    def open(self, context: TaskContext) -> None:
        """Take this task's share."""
        self._index = context.task_index

    def next(self) -> Sequence[Emit[Any]] | None:
        """Return the next messages."""
        return self._script.give(self._index, self._batch())

    def ack(self, message_id: MessageId) -> None:
        """Remove the message."""
        self._script.hear(self._index, message_id, None)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        """Remove the message, or give it out again."""
        self._script.hear(self._index, message_id, failure)


PAUSE_S = 0.01


class AsyncScriptedSpout(AsyncSpout[Any]):
    """Gives out a script, and takes its time for everything: as many hundredths of a second as `batch` says."""

    def __init__(self, script: ScriptedMessages, batch: Callable[[], int]) -> None:
        self._script = script
        self._batch = batch
        self._index = self._life = 0

    async def open(self, context: TaskContext) -> None:
        """Take this task's share."""
        self._index = context.task_index
        self._life = self._script.life(self._index)
        await self._pause()

    async def next(self) -> Sequence[Emit[Any]] | None:
        """Return the next messages."""
        await self._pause()
        return self._script.give(self._index, self._batch())

    async def ack(self, message_id: MessageId) -> None:
        """Remove the message."""
        await self._pause()
        self._script.hear(self._index, message_id, None)

    async def fail(self, message_id: MessageId, failure: Failure) -> None:
        """Remove the message, or give it out again."""
        await self._pause()
        self._script.hear(self._index, message_id, failure)

    async def _pause(self) -> None:
        await asyncio.sleep(min(self._batch(), 10) * PAUSE_S)
        if self._life != self._script.life(self._index):
            raise asyncio.CancelledError  # its process has ended


def scripts_of(
    spec: TopologySpec, inputs: Mapping[str, Iterable[Any]], tasks_of: Callable[[str], int]
) -> dict[str, ScriptedMessages]:
    """Make a script of each input: values get their position as message id, an `Emit` says its own.

    Raises:
        ConfigError: an input names no spout of the topology.
    """
    scripts = {}
    for name, values in inputs.items():
        component = spec.components.get(name)
        if component is None or component.kind != "spout":
            raise ConfigError(
                "an input names no spout of this topology",
                where=spec.name,
                got=repr(name),
                expected=" or ".join(repr(one.name) for one in spec.components.values() if one.kind == "spout"),
            )
        emits = [one if isinstance(one, Emit) else Emit(one, index) for index, one in enumerate(values)]
        scripts[name] = ScriptedMessages(emits, tasks_of(name), by_source=component.replay == "source")
    return scripts


def with_scripts(
    spec: TopologySpec, scripts: Mapping[str, ScriptedMessages], batch: Callable[[], int], *, may_wait: bool = False
) -> TopologySpec:
    """The topology with scripts for sources; every instance of a spout reads the same script.

    With `may_wait` what stands for an async spout is one, and takes its time; else it gives at once, as all others do.
    """
    components = dict(spec.components)
    for name, script in scripts.items():
        waits = may_wait and isinstance(components[name].body, AsyncSpout)
        cls = AsyncScriptedSpout if waits else ScriptedSpout
        components[name] = replace(components[name], body=cls(script, batch))
    return replace(spec, components=components)
