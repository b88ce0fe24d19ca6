"""One message on its way through the adapters of a route, and what adapters see of what is around them.

Owns what results come to: the message as it is, children, records of calls, the settlement or the work that follows.
Refuses to call adapters: that is `chain`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from tupletree.routes.adapters.contract import AdapterContext, AdapterResult, Logger, PipelineContext, RouteMessage
from tupletree.routes.document.spec import AdapterSpec, RouteSpec
from tupletree.routes.messages import CallRecord, CallStatus, Child, Outcome, Settlement, Work
from tupletree.routes.payloads import canonical_hash, decode, encode
from tupletree.routes.running.daemon_threads import DaemonThreads
from tupletree.routes.running.outcomes import (
    call_records,
    delivered,
    failed,
    no_outbound,
    no_result,
    published,
    routed,
)

GRACE_S = 5.0
"""How long a cancelled call may take to end before it is left behind."""


@dataclass(frozen=True)
class AdapterSurroundings:
    """What adapters see beside messages.

    Attributes:
        settings, resources: see `PipelineContext`.
        now_s: Unix time.
        is_cancelled: whether an execution was cancelled.
        records: whether calls are recorded.
        note: is told, in any thread, of calls that are longer than LOOK_S while they go on, and never waits.
        enter: is called in the context of each call before it begins: with the work, the adapter's position, when the
            call begins (Unix time), and the id of its batch, if any.
        grace_s: how long a cancelled call may take to end before it is left behind.
        threads: name → where plain functions run. Tests have their own.
        new_loop: makes the event loop of an adapter that holds messages. Tests have loops on virtual time.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    now_s: Callable[[], float] = float
    is_cancelled: Callable[[str], bool] = lambda _: False
    records: bool = True
    note: Callable[[Sequence[CallRecord]], None] = lambda _: None
    enter: Callable[[Work, int, float, str], None] | None = None
    grace_s: float = GRACE_S
    threads: Callable[[str], DaemonThreads] = DaemonThreads
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop

    def of_adapter(self, route: RouteSpec, position: int, log: Logger) -> AdapterContext:
        """What an adapter sees when it is opened."""
        name = route.adapters[position].name
        return AdapterContext(route.name, name, position, self.settings, self.resources, log)

    def of_message(
        self, message: RouteMessage, attempt: int, route: RouteSpec, adapter: str, log: Logger, queue: str
    ) -> PipelineContext:
        """What an adapter sees when it is called with a message."""
        execution, is_cancelled = message.execution, self.is_cancelled
        return PipelineContext(
            message=message,
            attempt=attempt,
            route=route.name,
            adapter=adapter,
            settings=self.settings,
            resources=self.resources,
            logger=log,
            is_cancelled=lambda: is_cancelled(execution),
            now_s=self.now_s,
            queue=queue,
        )


class AdapterStep(Protocol):
    """One adapter in its place.

    Attributes:
        spec: the adapter.
        position: of it in its route, from 0.
    """

    spec: AdapterSpec
    position: int

    def ended(self, walk: Walk, outcome: str) -> None:
        """Tell the adapter how the attempt ended."""


# More than 12 attributes: one message on its way through a chain: what is done of it is one state.
class Walk:
    """One message on its way through a chain.

    Attributes:
        work: as it came.
        message: as it is now.
        step: the one in hand.
        began_s, deadline_s: when the call in hand began, and until when it may take, by the event loop's clock.
        over: whether it has ended, or is to be given up.
        records: of calls that ended.
        ids: of the messages.
        called: adapters that want to hear how the attempt ends.
    """

    def __init__(
        self, route: RouteSpec, work: Work, surroundings: AdapterSurroundings, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.work = work
        self.route = route
        self._loop = loop
        self.step: AdapterStep | None = None
        self.began_s = 0.0
        self.deadline_s: float | None = None
        self._is_noted = False  # the call in hand
        self.records: list[CallRecord] = []
        self._surroundings = surroundings
        self._emitted: list[Child] = list(work.emitted)
        self._first = work.messages[0]
        is_single = len(work.messages) == 1
        self.ids = (self._first.id,) if is_single else tuple([one.id for one in work.messages])
        self.called: list[AdapterStep] = []
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

    def context(self, step: AdapterStep, log: Logger) -> PipelineContext:
        """What the adapter in this place sees."""
        name, attempt = step.spec.name, self._first.attempt
        return self._surroundings.of_message(self.message, attempt, self.route, name, log, self._queue)

    def begin(self, step: AdapterStep, timeout_s: float) -> None:
        """A call begins."""
        self.step = step
        self.began_s = self._loop.time()
        self.deadline_s = self.began_s + timeout_s
        if self._surroundings.records:
            self._started_s = self._surroundings.now_s()
            self._input = canonical_hash(self.message.payload) if self._output is None else self._output
            self._output = None
            if self._surroundings.enter is not None:
                self._surroundings.enter(self.work, step.position, self._started_s, self.work.batch)

    def take(self, step: AdapterStep, result: object) -> bool:
        """What a call gave; whether the walk goes on.

        Raises:
            PermanentError: it is no result, or names a queue that is not outbound.
        """
        if result is None:
            self._filtered = f"{step.spec.name} gave nothing"
            self.record(step, "filtered", error=self._filtered)
            return False
        if not isinstance(result, AdapterResult):
            raise no_result(self.route, step.spec.name, result)
        if result.emitted:
            self._emitted += routed(
                self.route, step.position, self.ids, result.emitted, self.message.headers, only=self._queue
            )
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

    def record(self, step: AdapterStep, status: CallStatus, *, error: str = "") -> None:
        """Note a call that ended."""
        if not self._surroundings.records:
            return
        self._is_noted = False
        now_s = self._surroundings.now_s()
        skipped = status == "skipped"
        if status == "completed":
            self._output = canonical_hash(self.message.payload)
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

    def note(self) -> None:
        """Tell of the call in hand, once: what it comes to replaces that."""
        if self._surroundings.records and not self._is_noted:
            self._tell("pending", 0.0)
            self._is_noted = True

    def note_end(self, why: str) -> None:
        """The call in hand comes to nothing: if it was told of, it does not go on any more."""
        if self._is_noted:
            self._is_noted = False
            self._tell("cancelled", self._surroundings.now_s(), why)

    def _tell(self, status: CallStatus, ended_s: float, error: str = "") -> None:
        step = self.step
        assert step is not None, "a call is in hand"
        self._surroundings.note(
            call_records(
                self.work, self.route, step.position, status,
                input_hash=self._input, error=error, started_s=self._started_s, ended_s=ended_s,
            )
        )  # fmt: skip

    def ended(self, step: AdapterStep) -> Settlement:
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
            children = published(self.route, self.ids, message, body, queues)
        except Exception as error:  # noqa: BLE001 - what cannot be published fails the attempt
            return failed(self.work, error, self.adapter)
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
