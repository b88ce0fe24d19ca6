"""The chain: one message through the adapters of a route, up to its end or to an adapter that holds messages.

Owns what an attempt comes to: order, conditions, timeouts, results, children, and the record of each call. Refuses to
settle anything: it gives a `Settlement`, or the `Work` for what follows. It knows no topology.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tupletree.errors import PermanentError, is_outage
from tupletree.routes.adapters.contract import (
    Adapter,
    AdapterContext,
    AdapterResult,
    PipelineContext,
    RouteMessage,
)
from tupletree.routes.document.spec import AdapterSpec, RouteSpec
from tupletree.routes.messages import CallRecord, CallStatus, Child, Outcome, Settlement, Work
from tupletree.routes.payloads import decode, encode
from tupletree.routes.running.daemon_threads import DaemonThreads
from tupletree.routes.running.outcomes import (
    call_records,
    delivered,
    failed,
    no_outbound,
    payload_hash,
    published,
    routed,
)

__all__ = ["Chain", "Surroundings", "adapter_logger"]

LOOK_S = 1.0
"""How often a call that takes long is looked at: whether it has taken too long, or is not needed any more."""

GRACE_S = 5.0
"""How long a cancelled call may take to end before it is left behind."""

logger = logging.getLogger("tupletree.routes")


@dataclass(frozen=True)
class Surroundings:
    """What adapters see beside messages.

    Attributes:
        settings, resources: see `PipelineContext`.
        now_s: Unix time.
        is_cancelled: whether an execution was cancelled.
        records: whether calls are recorded.
        grace_s: how long a cancelled call may take to end before it is left behind.
        threads: name → where plain functions run. Tests have their own.
        new_loop: makes the event loop of an adapter that holds messages. Tests have loops on virtual time.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    now_s: Callable[[], float] = float
    is_cancelled: Callable[[str], bool] = lambda _: False
    records: bool = True
    grace_s: float = GRACE_S
    threads: Callable[[str], DaemonThreads] = DaemonThreads
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop


class Chain:
    """Consecutive adapters of a route that each take a message by itself. Used on one event loop.

    Args:
        route: the route.
        start, stop: positions of its adapters: from the first up to before the second.
        surroundings: what they see.
    """

    def __init__(self, route: RouteSpec, start: int, stop: int, surroundings: Surroundings) -> None:
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
        self._walks: dict[_Walk, None] = {}
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
            walk = _Walk(self.route, work, self._surroundings, self._loop)
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
            for step in walk.called:
                step.ended(walk, "cancelled")
            raise
        finally:
            del self._walks[walk]
        if ended:
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
        """Let walks end whose call takes too long, or whose execution was cancelled. One timer serves all of them."""
        now_s = loop.time()
        for walk in self._walks:
            is_late = walk.deadline_s is not None and walk.deadline_s <= now_s
            if (is_late or walk.is_cancelled) and not walk.over.done():
                walk.over.set_result(False)
        self._looking = None
        if self._walks:
            self._look_later(loop)

    async def _give_up(self, walk: _Walk, task: asyncio.Task[Any]) -> None:
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
        elif not task.cancelled():
            task.exception()  # it was heard

    async def _walk(self, walk: _Walk) -> Settlement | Work:
        outcome = await self._through(walk)
        name = outcome.outcome if isinstance(outcome, Settlement) else "done"
        for step in walk.called:
            step.ended(walk, name)
        return outcome

    async def _through(self, walk: _Walk) -> Settlement | Work:
        for step in self._steps:
            try:
                if not await step.call(walk):
                    return walk.ended(step)
            except BaseException as error:
                if is_outage(error) or (isinstance(error, asyncio.CancelledError) and _is_cancelled()):
                    raise
                walk.record(step, "failed", error=f"{type(error).__name__}: {error}")
                return failed(walk.work, error, step.spec.name)
        return walk.arrived() if self._is_last else walk.passed(self._stop)


def _is_cancelled() -> bool:
    """Whether the task in hand was asked to end; user code may raise CancelledError by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Step:
    """One adapter in its place."""

    def __init__(
        self, route: RouteSpec, position: int, spec: AdapterSpec, surroundings: Surroundings, threads: DaemonThreads
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
        surroundings = self._surroundings
        self._adapter = adapter = self.spec.adapter(self.spec.config)
        opening = adapter.open(
            AdapterContext(
                self._route.name,
                self.spec.name,
                self.position,
                surroundings.settings,
                surroundings.resources,
                self._logger,
            )
        )
        if inspect.isawaitable(opening):
            await opening

    async def close(self) -> None:
        adapter, self._adapter = self._adapter, None
        closing = adapter.close() if adapter is not None else None
        if inspect.isawaitable(closing):
            await closing

    async def call(self, walk: _Walk) -> bool:
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

    def ended(self, walk: _Walk, outcome: str) -> None:
        """Tell the adapter how the attempt ended."""
        if self._adapter is None:
            return
        for message in walk.ids:
            try:
                self._adapter.ended(message, outcome)
            except Exception:
                self._logger.exception("%s raised when it was told of an end", self.spec.name)


class _Walk:
    """One message on its way through a chain.

    Attributes:
        work: as it came.
        message: as it is now.
        step: the one in hand.
        deadline_s: until when the call in hand may take, by the event loop's clock.
        over: whether it has ended, or is to be given up.
        records: of calls that ended.
        ids: of the messages.
        called: adapters that want to hear how the attempt ends.
    """

    def __init__(
        self, route: RouteSpec, work: Work, surroundings: Surroundings, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.work = work
        self.route = route
        self._loop = loop
        self.step: _Step | None = None
        self.deadline_s: float | None = None
        self.records: list[CallRecord] = []
        self._surroundings = surroundings
        self._emitted: list[Child] = list(work.emitted)
        self._first = work.messages[0]
        is_single = len(work.messages) == 1
        self.ids = (self._first.id,) if is_single else tuple([one.id for one in work.messages])
        self.called: list[_Step] = []
        self._queue = work.only  # the only one that the message is for
        self._filtered = ""
        self._is_unrouted = False
        self._started_s = 0.0
        self._input = ""
        self._output: str | None = None  # hash of what the last call gave: the next one's input
        self.over: asyncio.Future[bool]
        if is_single:
            executions = tuple(self._first.executions)
        else:
            executions = tuple(dict.fromkeys([one for standing in work.messages for one in standing.executions]))
        self.message = RouteMessage(
            payload=decode(work.body),
            headers=work.headers,
            id=self._first.id,
            parents=tuple(work.parents),
            executions=executions,
        )

    def end(self, _: object) -> None:
        """The walk's task has ended."""
        if not self.over.done():
            self.over.set_result(True)

    @property
    def adapter(self) -> str:
        """The name of the adapter in hand."""
        return self.step.spec.name if self.step is not None else ""

    def context(self, step: _Step, log: logging.LoggerAdapter[logging.Logger]) -> PipelineContext:
        surroundings = self._surroundings
        execution = self.message.execution
        return PipelineContext(
            message=self.message,
            attempt=self._first.attempt,
            route=self.route.name,
            adapter=step.spec.name,
            settings=surroundings.settings,
            resources=surroundings.resources,
            logger=log,
            is_cancelled=lambda: surroundings.is_cancelled(execution),
            now_s=surroundings.now_s,
        )

    def begin(self, step: _Step, timeout_s: float) -> None:
        """A call begins."""
        self.step = step
        self.deadline_s = self._loop.time() + timeout_s
        if self._surroundings.records:
            self._started_s = self._surroundings.now_s()
            self._input = payload_hash(self.message.payload) if self._output is None else self._output
            self._output = None

    def take(self, step: _Step, result: object) -> bool:
        """What a call gave; whether the walk goes on.

        Raises:
            PermanentError: it is no result, or names a queue that is not outbound.
        """
        if result is None:
            self._filtered = f"{step.spec.name} gave nothing"
            self.record(step, "filtered", error=self._filtered)
            return False
        if not isinstance(result, AdapterResult):
            raise PermanentError(
                "an adapter gave what is no result",
                where=f"route {self.route.name}, adapter {step.spec.name}",
                got=f"{type(result).__name__} {result!r:.80}",
                expected="an AdapterResult, or None",
            )
        if result.emitted:
            self._emitted += routed(self.route, step.position, self.ids, result.emitted, self.message.headers)
        if result.queue and result.queue not in self.route.outbound:
            raise no_outbound(self.route, result.queue)
        if result.message is not None and result.continue_pipeline:
            self.message = result.message
            self._queue = result.queue or self._queue
            self.record(step, "completed")
            return True
        if result.message is None and result.emitted and result.continue_pipeline:
            self.record(step, "completed")
        else:
            self._filtered = result.reason or f"{step.spec.name} ended the chain"
            self._is_unrouted = result.unrouted
            self.record(step, "filtered", error=self._filtered)
        return False

    def record(self, step: _Step, status: CallStatus, *, error: str = "") -> None:
        """Note a call that ended."""
        if not self._surroundings.records:
            return
        now_s = self._surroundings.now_s()
        skipped = status == "skipped"
        if status == "completed":
            self._output = payload_hash(self.message.payload)
        self.records += call_records(
            self.work,
            self.route,
            step.position,
            status,
            input_hash="" if skipped else self._input,
            output_hash=self._output or "" if status == "completed" else "",
            error=error,
            started_s=now_s if skipped else self._started_s,
            ended_s=now_s,
        )

    def ended(self, step: _Step) -> Settlement:
        """The chain ended at an adapter."""
        outcome: Outcome = "unrouted" if self._is_unrouted else "filtered" if self._filtered else "done"
        return Settlement(
            messages=self.work.messages,
            outcome=outcome,
            children=self._emitted,
            reason=self._filtered,
            adapter=step.spec.name if self._filtered else "",
        )

    def arrived(self) -> Settlement:
        """All adapters have been called: what there is now goes to the outbound queues."""
        message = self.message
        queues = [self._queue] if self._queue else self.route.outbound
        try:
            body = encode(message.payload) if queues else b""
        except Exception as error:  # noqa: BLE001 - a payload that cannot be published fails the attempt
            return failed(self.work, error, self.adapter)
        children = published(self.route, self.ids, message, body, queues)
        return Settlement(messages=self.work.messages, outcome="done", children=[*self._emitted, *children])

    def passed(self, position: int) -> Settlement | Work:
        """On to an adapter that holds messages."""
        message = self.message
        try:
            body = encode(message.payload)
        except Exception as error:  # noqa: BLE001 - see `arrived`
            return failed(self.work, error, self.adapter)
        return msgspec.structs.replace(
            self.work,
            messages=delivered(self.work),
            body=body,
            headers=dict(message.headers),
            position=position,
            emitted=self._emitted,
            only=self._queue,
        )

    @property
    def is_cancelled(self) -> bool:
        """Whether all executions of the message were cancelled."""
        executions = self.message.executions
        return bool(executions) and all(map(self._surroundings.is_cancelled, executions))

    def cancelled(self) -> Settlement:
        """The execution was cancelled while a call was in hand."""
        if self.step is not None:
            self.record(self.step, "cancelled", error="the execution was cancelled")
        return Settlement(messages=self.work.messages, outcome="cancelled", reason="the execution was cancelled")

    def timed_out(self) -> Settlement:
        """The call in hand took too long."""
        step = self.step
        assert step is not None, "only a call in hand times out"
        error = TimeoutError(f"the call took longer than timeout_seconds ({self.route.timeout_seconds:g}) of its route")
        self.record(step, "failed", error=f"TimeoutError: {error}")
        return failed(self.work, error, step.spec.name)


def adapter_logger(route: str, adapter: str) -> logging.LoggerAdapter[logging.Logger]:
    """What adapters log by: it names route and adapter."""
    return logging.LoggerAdapter(logging.getLogger(f"tupletree.routes.{route}"), {"route": route, "adapter": adapter})
