"""Async bolts in a stage: a frame's calls run side by side on an event loop of the task, then the frame is worked.

A stage must know the outcome of a frame when it has worked it, so calls end with their frame here. Their results
go through the same loops that plain bolts run in: these anchor, fail and settle. Calls of which only one
may use the state, collector or context at a time run one after the other. A call that raises is made again here, if the
place says so, while others go on. One that waits for too long is cancelled; one that blocks the event loop
for too long is interrupted by `call_timeout`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tupletree.bolts.call_retry import may_pass
from tupletree.bolts.effects import IN_HAND, Outlet, StateCell, TaskPlace, Worked
from tupletree.bolts.plain import BoltTask
from tupletree.data.frames import Frame, Root, all_failed, roots_of
from tupletree.errors import InternalError, ProcessingTimeoutError
from tupletree.runtimes.spark.worker.pacing import Pacing
from tupletree.runtimes.threads import run_until_complete
from tupletree.topology.model import BoltSpec, ComponentSpec

ONE_AT_A_TIME = frozenset({"state", "collector", "context"})
"""What only one call may use at a time."""

PATIENCE_S = 5.0
"""How long cancelled calls may take to end."""

HELD_UP = 0.1
"""Part of the limit: a call whose timeout comes later by more was delayed by others, and gets that time back."""

logger = logging.getLogger("tupletree.spark.stage")


@dataclass
class _Outcome:
    """The result of a call: a value or an error."""

    result: Any = None
    error: BaseException | None = None

    async def come(self, call: Callable[[], Any]) -> None:
        """Make the call."""
        try:
            self.result = await _gathered(call())
        except BaseException as error:  # noqa: BLE001 - it fails this tuple, when the frame is worked
            self.error = error

    def give(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class AsyncBoltTask(BoltTask):
    """A `BoltTask` whose bolt is async: functions, generators, and classes with any async method.

    Args:
        component, place, state, key_functions: as for `BoltTask`.
        limit_s: how long one call may take; None: without limit.
        pacing: makes calls wait for each other; None: they need not.
    """

    def __init__(
        self,
        component: ComponentSpec,
        place: TaskPlace,
        state: StateCell | None = None,
        key_functions: Mapping[tuple[str, str], Callable[[list[Any]], list[Any]]] | None = None,
        *,
        limit_s: float | None = None,
        pacing: Pacing | None = None,
    ) -> None:
        self._limit_s = limit_s
        self._pacing = pacing
        spec: BoltSpec = component.body
        self._name = component.name
        self._asked: Callable[..., Any] = spec.target
        self._concurrency = spec.concurrency
        self._resources = {
            name: component.resources[what.removeprefix("resource:")]
            for name, what in spec.inject.items()
            if what not in ONE_AT_A_TIME and spec.style == "function"  # a class has them as attributes
        }
        self._side_by_side = (
            (spec.style == "function" or (spec.style == "class" and not spec.takes_collector))
            and spec.concurrency > 1
            and spec.auto_ack
            and spec.auto_fail
            and not ONE_AT_A_TIME.intersection(spec.inject.values())
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
        self._retries_calls = not self._side_by_side

    def open(self) -> None:
        self._loop = asyncio.new_event_loop()
        super().open()
        if self._bolt is not None and self._side_by_side:
            self._asked, self._call = self._bolt.process, self._call_now

    def close(self) -> None:
        """See `BoltTask.close`; what calls have started on the loop is cancelled."""
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
            endings = {*left, loop.create_task(loop.shutdown_asyncgens())}
            ending = asyncio.wait(endings, timeout=PATIENCE_S)
            _, stuck = run_until_complete(loop, ending, self._tell_of_task)
            if stuck:
                logger.warning("%s: calls have not ended after they were cancelled: %s", self._name, stuck)
            loop.close()

    def parts(self, frame: Frame, outlet: Outlet | None) -> Iterator[Worked]:
        """See `BoltTask.parts`; what was called ahead is in memory as a whole."""
        if not self._side_by_side:
            yield from super().parts(frame, outlet)
            return
        self._await(self._call_ahead(frame))
        try:
            yield from super().parts(frame, None)
        finally:
            self._ahead.clear()  # not every tuple of a failed root is used

    async def _call_ahead(self, frame: Frame) -> None:
        """Call for each tuple, `concurrency` of them at a time, except for tuples of roots that have failed by then.

        Where a crash marker is to be written, it names all of them; those that must be alone are called later.
        """
        failed: set[int] = set()
        place = self._place
        is_marked = place.wants_roots
        pairs = [(root, value) for root, values in frame.segments() for value in values]
        if is_marked:
            pairs = [one for one in pairs if not place.must_be_alone(one[0])]
        left = iter(pairs)
        in_hand: list[Root] = []

        def name_all() -> None:
            place.root = tuple({one for root in in_hand for one in roots_of(root)}) or None

        async def take_turns() -> None:
            for root, value in left:
                if all_failed(root, failed):
                    continue
                outcomes = self._ahead.setdefault((id(value), root), deque())
                outcomes.append(outcome := _Outcome())
                IN_HAND.set(place.with_root(root))  # a call's logs name its own message only
                if is_marked:
                    in_hand.append(root)
                    name_all()
                came = await self._come(value, root)
                outcome.result, outcome.error = came.result, came.error
                if is_marked:
                    in_hand.remove(root)
                    name_all()
                if outcome.error is not None:
                    failed.update(roots_of(root))

        await asyncio.gather(*(take_turns() for _ in range(min(self._concurrency, frame.size))))

    async def _come(self, value: Any, root: Root) -> _Outcome:
        """Make a call, and again while it raises, as often as allowed."""
        if self._pacing is not None:
            await self._pacing.come()
        calls = self._place.calls if roots_of(root) else 1
        for number in range(1, calls + 1):
            outcome = await self._limited(lambda: self._asked(value, **self._resources))
            if outcome.error is None or number == calls or not may_pass(outcome.error, self._place):
                if number > 1:
                    self._place.calls_again.note(passed=outcome.error is None)
                return outcome
        raise InternalError("a call must be made at least once", got=str(calls))

    async def _limited(self, call: Callable[[], Any]) -> _Outcome:
        """Make a call, and cancel it if it takes too long, without time in which others blocked the event loop."""
        limit_s = self._limit_s
        outcome = _Outcome()
        if limit_s is None:
            await outcome.come(call)
            return outcome
        loop = self._loop
        assert loop is not None, "calls are made on the loop of the task"
        task = loop.create_task(outcome.come(call))
        until_s = loop.time() + limit_s
        while not await _ends_by(task, until_s, loop):
            late_s = loop.time() - until_s
            if late_s < HELD_UP * limit_s:
                break
            until_s = loop.time() + late_s
        else:
            return outcome
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE_S)
        error = ProcessingTimeoutError(
            f"the call took longer than processing_timeout_s ({limit_s:g} s) and was cancelled"
        )
        return _Outcome(error=error.with_traceback(outcome.error.__traceback__ if outcome.error is not None else None))

    def _call_and_wait(self, call: Callable[[], Any]) -> Any:
        return self._await(self._limited(call)).give()

    def _await(self, awaitable: Any) -> Any:
        assert self._loop is not None, "a task is opened before it works"
        return run_until_complete(self._loop, awaitable, self._tell_of_task)

    def _tell_of_task(self, error: BaseException) -> None:
        logger.error(
            "%s: a task that an async call started raised an exception that would end the program; the run goes on",
            self._name,
            exc_info=error,
        )

    def _call_now(self, *arguments: Any, **named: Any) -> Any:
        """In the place of the user's function: returns the result of its call, or makes the call."""
        value = arguments[0] if arguments else named[self._parameter]
        outcomes = self._ahead.get((id(value), self._place.root))
        if outcomes:
            return outcomes.popleft().give()
        self._wait_for_turn()
        return self._call_and_wait(lambda: self._asked(*arguments, **named))

    def _wait_for_turn(self) -> None:
        if self._pacing is not None:
            self._pacing.wait()

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """See `BoltTask`; an async method is awaited."""
        if not (inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)):
            return method
        if method.__name__ != "process":
            return lambda *arguments: self._call_and_wait(lambda: method(*arguments))

        def process(*arguments: Any) -> Any:
            self._wait_for_turn()
            return self._call_and_wait(lambda: method(*arguments))

        return process


async def _ends_by(task: asyncio.Task[Any], until_s: float, loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a task ends until this time of the loop. As `asyncio.wait` with one task, in a third of its time."""
    over = loop.create_future()

    def note(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    task.add_done_callback(note)
    timer = loop.call_at(until_s, note)
    try:
        await over
    finally:
        timer.cancel()
        task.remove_done_callback(note)
    return task.done()


async def _gathered(called: Any) -> Any:
    """The result of a call; an async generator's values as a list."""
    return [one async for one in called] if inspect.isasyncgen(called) else await called
