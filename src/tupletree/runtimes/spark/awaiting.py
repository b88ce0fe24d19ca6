"""Async bolts in a stage: a frame's calls run side by side on an event loop of the task, then the frame is worked.

A stage must know what came of a frame when it has worked it, so calls never outlive their frame here. What they came to
is handed to the same loops that plain bolts run in: anchoring, failing and settling are theirs. Calls of which only one
may have its state, collector or context in hand run one after the other.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tupletree.dispatch import BoltTask
from tupletree.effects import StateCell, TaskPlace, Worked
from tupletree.frames import Frame
from tupletree.topology.components import Bolt
from tupletree.topology.model import BoltSpec, ComponentSpec

__all__ = ["AwaitingBoltTask"]

IN_HAND = frozenset({"state", "collector", "context"})


@dataclass(frozen=True)
class _Outcome:
    result: Any = None
    error: BaseException | None = None

    def give(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class AwaitingBoltTask(BoltTask):
    """A `BoltTask` whose bolt is async: functions, generators, and classes with any async method.

    Args:
        component, place, state, key_functions: as for `BoltTask`.
    """

    def __init__(
        self,
        component: ComponentSpec,
        place: TaskPlace,
        state: StateCell | None = None,
        key_functions: Mapping[tuple[str, str], Callable[[list[Any]], list[Any]]] | None = None,
    ) -> None:
        spec: BoltSpec = component.body
        self._asked: Callable[..., Any] = spec.target
        self._concurrency = spec.concurrency
        self._resources = {
            name: component.resources[what.removeprefix("resource:")]
            for name, what in spec.inject.items()
            if what not in IN_HAND
        }
        self._side_by_side = (
            spec.style == "function"
            and spec.concurrency > 1
            and spec.auto_ack
            and spec.auto_fail
            and not IN_HAND.intersection(spec.inject.values())
            and not place.wants_roots  # of calls side by side nobody could say which one killed the worker
        )
        self._parameter = spec.value_parameter
        self._ahead: dict[int, deque[_Outcome]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        twin = self._call_now if spec.style == "function" else self._make_sync
        super().__init__(
            replace(component, body=replace(spec, target=twin, is_async=False, concurrency=1, origin=None)),
            place,
            state,
            key_functions,
        )

    def open(self) -> None:
        """See `BoltTask.open`."""
        self._loop = asyncio.new_event_loop()
        super().open()

    def close(self) -> None:
        """See `BoltTask.close`; what calls have left on the loop is cancelled."""
        loop = self._loop
        if loop is None:
            return
        try:
            super().close()
        finally:
            self._loop = None
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def work(self, frame: Frame) -> Worked:
        """See `BoltTask.work`."""
        if not self._side_by_side:
            return super().work(frame)
        outcomes = self._await(self._all(frame.values))
        for value, outcome in zip(frame.values, outcomes, strict=True):
            self._ahead.setdefault(id(value), deque()).append(outcome)
        try:
            return super().work(frame)
        finally:
            self._ahead.clear()  # of a root that failed not every tuple is asked for

    async def _all(self, values: Sequence[Any]) -> list[_Outcome]:
        """What each call came to, `concurrency` of them at a time."""
        outcomes = [_Outcome()] * len(values)
        left = iter(enumerate(values))

        async def take_turns() -> None:
            for index, value in left:
                outcomes[index] = await _outcome_of(self._asked, value, self._resources)

        await asyncio.gather(*(take_turns() for _ in range(min(self._concurrency, len(values)))))
        return outcomes

    def _await(self, awaitable: Any) -> Any:
        assert self._loop is not None, "a task is opened before it works"
        return self._loop.run_until_complete(awaitable)

    def _call_now(self, *arguments: Any, **named: Any) -> Any:
        """Stands for the user's function: gives what its call came to, or makes the call."""
        outcomes = self._ahead.get(id(arguments[0] if arguments else named[self._parameter]))
        if outcomes:
            return outcomes.popleft().give()
        return self._await(_gathered(self._asked(*arguments, **named)))

    def _make_sync(self) -> Bolt[Any]:
        """Stands for the user's class: makes an object whose async methods wait for their end."""
        bolt: Bolt[Any] = self._asked()
        for name in ("open", "process", "tick", "close"):
            method = getattr(bolt, name)
            if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
                setattr(bolt, name, self._waiting(method))
        return bolt

    def _waiting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: self._await(_gathered(method(*arguments)))


async def _gathered(called: Any) -> Any:
    """What awaiting a call gives; an async generator's values as a list."""
    return [one async for one in called] if inspect.isasyncgen(called) else await called


async def _outcome_of(function: Callable[..., Any], value: Any, resources: Mapping[str, Any]) -> _Outcome:
    try:
        return _Outcome(await _gathered(function(value, **resources)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - it fails this tuple, when the frame is worked
        return _Outcome(error=error)
