"""Async bolts in a stage: a frame's calls run side by side on an event loop of the task, then the frame is worked.

A stage must know what came of a frame when it has worked it, so calls never outlive their frame here. What they came to
is handed to the same loops that plain bolts run in: anchoring, failing and settling are theirs. Calls of which only one
may have its state, collector or context in hand run one after the other. A call that raises is made again here, if the
place says so, so that others go on meanwhile.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tupletree.dispatch import BoltTask
from tupletree.effects import IN_HAND, Outlet, StateCell, TaskPlace, Worked
from tupletree.frames import Frame, Root, all_failed, roots_of
from tupletree.repeating import may_pass
from tupletree.topology.model import BoltSpec, ComponentSpec

__all__ = ["AwaitingBoltTask"]

ONE_AT_A_TIME = frozenset({"state", "collector", "context"})
"""What only one call may have in hand."""


@dataclass
class _Outcome:
    """What a call came to."""

    result: Any = None
    error: BaseException | None = None

    async def come(self, function: Callable[..., Any], value: Any, resources: Mapping[str, Any]) -> bool:
        """Make the call; False if another one could come to something else."""
        try:
            self.result, self.error = await _gathered(function(value, **resources)), None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - it fails this tuple, when the frame is worked
            self.error = error
            return not may_pass(error)
        return True

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
            if what not in ONE_AT_A_TIME
        }
        self._side_by_side = (
            spec.style == "function"
            and spec.concurrency > 1
            and spec.auto_ack
            and spec.auto_fail
            and not ONE_AT_A_TIME.intersection(spec.inject.values())
            and not place.wants_roots  # of calls side by side nobody could say which one killed the worker
        )
        self._parameter = spec.value_parameter
        self._ahead: dict[tuple[int, Root | None], deque[_Outcome]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        twin = self._call_now if spec.style == "function" else spec.target
        super().__init__(
            replace(component, body=replace(spec, target=twin, is_async=False, concurrency=1, origin=None)),
            place,
            state,
            key_functions,
        )
        self._insists = not self._side_by_side

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
        self._await(self._call_ahead(frame))
        try:
            return super().work(frame)
        finally:
            self._ahead.clear()  # of a root that failed not every tuple is asked for

    def parts(self, frame: Frame, outlet: Outlet) -> Iterator[Worked]:
        """See `BoltTask.parts`; what was called ahead is held as a whole."""
        if self._side_by_side:
            yield self.work(frame)
        else:
            yield from super().parts(frame, outlet)

    async def _call_ahead(self, frame: Frame) -> None:
        """Call for each tuple, `concurrency` of them at a time, but for those of roots that have failed by then."""
        failed: set[int] = set()
        left = iter([(root, value) for root, values in frame.segments() for value in values])

        async def take_turns() -> None:
            for root, value in left:
                if all_failed(root, failed):
                    continue
                outcomes = self._ahead.setdefault((id(value), root), deque())
                outcomes.append(outcome := _Outcome())
                IN_HAND.set(replace(self._place, root=root))
                await self._come(outcome, value, root)
                if outcome.error is not None:
                    failed.update(roots_of(root))

        await asyncio.gather(*(take_turns() for _ in range(min(self._concurrency, frame.size))))

    async def _come(self, outcome: _Outcome, value: Any, root: Root) -> None:
        """Make a call, again as often as that may be if it raises."""
        for _ in range(self._place.calls if roots_of(root) else 1):
            if await outcome.come(self._asked, value, self._resources):
                return

    def _await(self, awaitable: Any) -> Any:
        assert self._loop is not None, "a task is opened before it works"
        return self._loop.run_until_complete(awaitable)

    def _call_now(self, *arguments: Any, **named: Any) -> Any:
        """Stands for the user's function: gives what its call came to, or makes the call."""
        value = arguments[0] if arguments else named[self._parameter]
        outcomes = self._ahead.get((id(value), self._place.root))
        if outcomes:
            return outcomes.popleft().give()
        return self._await(_gathered(self._asked(*arguments, **named)))

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """See `BoltTask`: one that is async is waited for."""
        if not (inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)):
            return method
        return lambda *arguments: self._await(_gathered(method(*arguments)))


async def _gathered(called: Any) -> Any:
    """What awaiting a call gives; an async generator's values as a list."""
    return [one async for one in called] if inspect.isasyncgen(called) else await called
