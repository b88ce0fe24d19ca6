"""The chain: one message through the adapters of a route, up to its end or to an adapter that holds messages.

Owns what an attempt comes to: order, conditions, timeouts, results, children, and the record of each call. Refuses to
settle anything: it gives a `Settlement`, or the `Work` for what follows. It knows no topology.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any

from tupletree.errors import PermanentError, is_outage
from tupletree.routes.adapters.contract import Adapter
from tupletree.routes.document.spec import AdapterSpec, RouteSpec
from tupletree.routes.messages import CallRecord, Settlement, Work
from tupletree.routes.running.daemon_threads import DaemonThreads
from tupletree.routes.running.outcomes import failed, named
from tupletree.routes.running.walks import AdapterSurroundings, Walk

__all__ = ["AdapterSurroundings", "Chain", "adapter_logger", "leave_behind"]

LOOK_S = 1.0
"""How often a call that takes long is looked at: whether it has taken too long, or is not needed any more."""

logger = logging.getLogger("tupletree.routes")


class Chain:
    """Consecutive adapters of a route that each take a message by itself. Used on one event loop.

    Args:
        route: the route.
        start, stop: positions of its adapters: from the first up to before the second.
        surroundings: what they see.
    """

    def __init__(self, route: RouteSpec, start: int, stop: int, surroundings: AdapterSurroundings) -> None:
        self.route = route
        self._surroundings = surroundings
        self._stop = stop
        self._threads = surroundings.threads(f"tupletree-route-{route.name}")
        self._steps = [
            _Step(route, position, route.adapters[position], surroundings, self._threads)
            for position in range(start, stop)
        ]
        self._is_last = stop == len(route.adapters)
        self._opened: list[_Step] = []
        self._walks: dict[Walk, None] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop

    async def open(self) -> None:
        """Open the adapters, in order. If one raises, those that were opened are closed."""
        self._loop = asyncio.get_running_loop()  # asked once: the answer costs a system call
        try:
            for step in self._steps:
                await step.open()
                self._opened.append(step)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the adapters, the last one first. One that raises does not keep the others open."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        opened, self._opened = self._opened, []
        for step in reversed(opened):
            try:
                await step.close()
            except Exception:
                logger.exception("route %s: adapter %s could not be closed", self.route.name, step.spec.name)
        self._threads.close()

    async def work(self, work: Work) -> list[Settlement | Work | CallRecord]:
        """Walk the adapters with one message.

        Returns:
            Records of calls, and last the settlement of the attempt or the work for what follows.

        Raises:
            ConnectorError: an adapter met an outage: the work is to be given again.
            CancelledError: it was cancelled: the attempt does not count.
        """
        try:
            walk = Walk(self.route, work, self._surroundings, self._loop)
        except PermanentError as error:
            return [failed(work, error, "")]  # its body is no payload
        loop = self._loop
        task = loop.create_task(self._walk(walk))
        over = walk.over = loop.create_future()
        task.add_done_callback(walk.end)
        self._walks[walk] = None
        if self._looking is None:
            self._look_later(loop)
        try:
            ended = await over
        except asyncio.CancelledError:
            await self._give_up(walk, task)
            walk.note_end("it was stopped")
            for step in walk.called:
                step.ended(walk, "cancelled")
            raise
        finally:
            del self._walks[walk]
        if ended:
            if raised := task.exception():
                walk.note_end(named(raised))
            outcome = task.result()
        else:
            await self._give_up(walk, task)
            outcome = walk.cancelled() if walk.is_cancelled else walk.timed_out()
            for step in walk.called:
                step.ended(walk, outcome.outcome)
        return [*walk.records, outcome]

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._looking = loop.call_later(min(LOOK_S, self.route.timeout_seconds / 4), self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let walks end whose call takes too long, or whose execution was cancelled; note calls that are in hand.

        One timer serves all of them, so that a call that is short costs nothing for it.
        """
        now_s = loop.time()
        for walk in self._walks:
            is_late = walk.deadline_s is not None and walk.deadline_s <= now_s
            if (is_late or walk.is_cancelled) and not walk.over.done():
                walk.over.set_result(False)
            elif walk.deadline_s is not None and now_s - walk.began_s >= LOOK_S:
                walk.note()
        self._looking = None
        if self._walks:
            self._look_later(loop)

    async def _give_up(self, walk: Walk, task: asyncio.Task[Any]) -> None:
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=self._surroundings.grace_s)
        if not done:
            logger.error(
                "route %s: adapter %s has not ended %g s after it was cancelled, and is left behind (message %s)",
                self.route.name,
                walk.adapter,
                self._surroundings.grace_s,
                walk.message.id,
            )
            leave_behind(task)
        elif not task.cancelled():
            task.exception()  # it was heard

    async def _walk(self, walk: Walk) -> Settlement | Work:
        outcome = await self._through(walk)
        name = outcome.outcome if isinstance(outcome, Settlement) else "done"
        for step in walk.called:
            step.ended(walk, name)
        return outcome

    async def _through(self, walk: Walk) -> Settlement | Work:
        for step in self._steps:
            try:
                if not await step.call(walk):
                    return walk.ended(step)
            except BaseException as error:
                if is_outage(error) or (isinstance(error, asyncio.CancelledError) and _is_cancelled()):
                    raise
                walk.record(step, "failed", error=named(error))
                return failed(walk.work, error, step.spec.name)
        return walk.arrived() if self._is_last else walk.passed(self._stop)


def _is_cancelled() -> bool:
    """Whether the task in hand was asked to end; user code may raise CancelledError by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Step:
    """One adapter in its place."""

    def __init__(
        self,
        route: RouteSpec,
        position: int,
        spec: AdapterSpec,
        surroundings: AdapterSurroundings,
        threads: DaemonThreads,
    ) -> None:
        self.spec = spec
        self.position = position
        self._route = route
        self._surroundings = surroundings
        self._threads = threads
        self._adapter: Adapter[Any] | None = None
        self._is_async = inspect.iscoroutinefunction(spec.adapter.process)
        self._one_at_a_time = None if self._is_async or spec.adapter.parallel else asyncio.Lock()
        self._logger = adapter_logger(route.name, spec.name)
        self._hears_ends = spec.adapter.ended is not Adapter.ended

    async def open(self) -> None:
        self._adapter = adapter = self.spec.adapter(self.spec.config)
        opening = adapter.open(self._surroundings.of_adapter(self._route, self.position, self._logger))
        if inspect.isawaitable(opening):
            await opening

    async def close(self) -> None:
        adapter, self._adapter = self._adapter, None
        closing = adapter.close() if adapter is not None else None
        if inspect.isawaitable(closing):
            await closing

    async def call(self, walk: Walk) -> bool:
        """Call the adapter for what the walk has come to; whether the walk goes on."""
        condition = self.spec.condition
        if condition is not None and not condition.holds(walk.message):
            walk.record(self, "skipped")
            return True
        adapter = self._adapter
        assert adapter is not None, "a chain is opened before it works"
        context = walk.context(self, self._logger)
        if self._hears_ends:
            walk.called.append(self)
        if self._is_async:
            walk.begin(self, self._route.timeout_seconds)
            result: Any = await adapter.process(context)  # type: ignore[misc]  # it is async
        elif self._one_at_a_time is None:
            walk.begin(self, self._route.timeout_seconds)
            result = await self._threads.run(adapter.process, context)
        else:
            async with self._one_at_a_time:
                walk.begin(self, self._route.timeout_seconds)
                result = await self._threads.run(adapter.process, context)
        walk.deadline_s = None
        return walk.take(self, result)

    def ended(self, walk: Walk, outcome: str) -> None:
        """Tell the adapter how the attempt ended."""
        if self._adapter is None:
            return
        for message in walk.ids:
            try:
                self._adapter.ended(message, outcome)
            except Exception:
                self._logger.exception("%s raised when it was told of an end", self.spec.name)


def adapter_logger(route: str, adapter: str) -> logging.LoggerAdapter[logging.Logger]:
    """What adapters log by: it names route and adapter."""
    return logging.LoggerAdapter(logging.getLogger(f"tupletree.routes.{route}"), {"route": route, "adapter": adapter})


def leave_behind(task: asyncio.Future[Any]) -> None:
    """A task that ignores its cancellation was told of in the log; asyncio need not tell of it again at the end."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio offers no other way
