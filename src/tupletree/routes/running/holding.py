"""What the bolts of adapters that hold messages have in common: one adapter, its life, its calls, and its records.

Owns what a result, a failure and a cancelled execution mean for the messages that it is of. Which messages are held,
and when the adapter is called with them, is that of the kinds in `stateful`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tupletree.errors import PermanentError, ProcessingTimeoutError, is_outage
from tupletree.routes.adapters.contract import Adapter, AdapterResult, PipelineContext, RouteMessage
from tupletree.routes.document.spec import AdapterSpec, RouteSpec
from tupletree.routes.messages import CallRecord, CallStatus, Child, Settlement, Work
from tupletree.routes.payloads import canonical_hash, decode, encode
from tupletree.routes.running import chain
from tupletree.routes.running.chain import AdapterSurroundings, adapter_logger
from tupletree.routes.running.outcomes import (
    call_records,
    delivered,
    failed,
    named,
    no_outbound,
    no_result,
    published,
    routed,
)
from tupletree.runtimes.threads import run_until_complete
from tupletree.topology.components import Held, HoldingBolt, Release, TaskContext


@dataclass(eq=False, slots=True)
class HeldMessage:
    """A message that the adapter has.

    Attributes:
        held: the held tuple.
        context: what the adapter sees of it.
        started_s: when the adapter was called with it, Unix time.
    """

    held: Held[Work]
    context: PipelineContext
    started_s: float

    @property
    def work(self) -> Work:
        """What the route works."""
        return self.held.value

    @property
    def ids(self) -> list[str]:
        """Of its messages; several where a batch before made it."""
        return [one.id for one in self.held.value.messages]


class AdapterBolt(HoldingBolt[Work]):
    """The bolt of one adapter, with an event loop for its async methods.

    Args:
        route: the route.
        position: of the adapter.
        surroundings: what it sees.
        hold: is told which messages are held, so that their slots are free.
    """

    blocking = True
    input_types = (Work,)

    def __init__(
        self,
        route: RouteSpec,
        position: int,
        surroundings: AdapterSurroundings,
        hold: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        self._route = route
        self._position = position
        self._surroundings = surroundings
        self._hold = hold
        self._spec: AdapterSpec = route.adapters[position]
        self._is_last = position + 1 == len(route.adapters)
        self._logger = adapter_logger(route.name, self._spec.name)
        self._adapter: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = surroundings.threads(f"tupletree-route-{route.name}")
        # Work goes on where an adapter follows.
        outputs: tuple[type, ...] = (Settlement,) if self._is_last else (Settlement, Work)
        self.output_types = (*outputs, CallRecord) if surroundings.records else outputs

    def open(self, context: TaskContext) -> None:  # noqa: ARG002 - the contract's
        self._loop = self._surroundings.new_loop()
        adapter: Adapter[Any] = self._spec.adapter(self._spec.config)
        self._finished(adapter.open, self._surroundings.of_adapter(self._route, self._position, self._logger))
        self._adapter = adapter

    def close(self) -> None:
        adapter, self._adapter = self._adapter, None
        loop = self._loop
        if loop is None:
            return
        try:
            if adapter is not None:
                self._finished(adapter.close)
        finally:
            self._loop = None
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            self._threads.close()

    def _finished(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a method that may be async."""
        result = function(*arguments)
        return self._await(result) if inspect.isawaitable(result) else result

    def _await(self, awaitable: Any) -> Any:
        assert self._loop is not None, "a task is opened before it works"
        return run_until_complete(self._loop, awaitable, self._tell_of_task)

    def _tell_of_task(self, error: BaseException) -> None:
        self._logger.error(
            "route %s: a task that adapter %s started raised an exception that would end the program; the run goes on",
            self._route.name,
            self._spec.name,
            exc_info=error,
        )

    def _limited(
        self, members: Sequence[HeldMessage], batch: str, function: Callable[..., Any], *arguments: Any
    ) -> Any:
        """A call of the adapter with these messages, that may take as long as the route allows.

        Raises:
            TimeoutError: it took longer; it was cancelled, and is left behind if it has not ended then.
        """
        limit_s = self._route.timeout_seconds
        is_async = inspect.iscoroutinefunction(function)

        async def limited() -> Any:
            if self._surroundings.enter is not None:
                work = members[0].work
                self._surroundings.enter(work, self._position, members[0].started_s, batch or work.batch)
            call = function(*arguments) if is_async else self._threads.run(function, *arguments)
            task = asyncio.ensure_future(_heard(call))
            done, _ = await asyncio.wait({task}, timeout=min(chain.LOOK_S, limit_s))
            if not done:
                self._note(members, "pending")
                done, _ = await asyncio.wait({task}, timeout=limit_s - min(chain.LOOK_S, limit_s))
                if done and (error := task.result()[1]) and is_outage(error):
                    self._note(members, "cancelled", named(error))
            if not done:
                task.cancel()
                ended, _ = await asyncio.wait({task}, timeout=self._surroundings.grace_s)
                if not ended:
                    self._logger.error(
                        "route %s: adapter %s has not ended %g s after its call was cancelled, and is left behind",
                        self._route.name,
                        self._spec.name,
                        self._surroundings.grace_s,
                    )
                    chain.leave_behind(task)
                raise TimeoutError(f"the call took longer than timeout_seconds ({limit_s:g}) of its route")
            result, error = task.result()
            if error is not None:
                raise error
            return result

        return self._await(limited())

    def _note(self, members: Sequence[HeldMessage], status: CallStatus, error: str = "") -> None:
        """Tell of a call that goes on, or that came to nothing; what it comes to replaces that."""
        if self._surroundings.records:
            self._surroundings.note(self._records(members, status, error=error))

    def _member(self, held: Held[Work]) -> HeldMessage:
        work = held.value
        first = work.messages[0]
        executions = tuple(dict.fromkeys(one for standing in work.messages for one in standing.executions))
        message = RouteMessage(decode(work.body), work.headers, first.id, tuple(work.parents), executions)
        surroundings = self._surroundings
        name, log = self._spec.name, self._logger
        context = surroundings.of_message(message, first.attempt, self._route, name, log, work.only)
        return HeldMessage(held, context, surroundings.now_s())

    def _admit(
        self, tuples: Sequence[Held[Work]], known: Iterable[HeldMessage]
    ) -> tuple[list[HeldMessage], list[Release]]:
        """Those of the tuples that are for the adapter, and what is released at once because they are not."""
        there = {id(member.held) for member in known}
        members, released = [], []
        for held in tuples:
            if id(held) in there:
                continue  # an outage was met when it was given before
            try:
                member = self._member(held)
            except PermanentError as error:  # its body is no payload
                released.append(Release([held], [failed(held.value, error, self._spec.name)]))
                continue
            condition = self._spec.condition
            if condition is not None and not condition.holds(member.context.message):
                skipped = self._records([member], "skipped")
                released.append(Release([held], [*skipped, self._onward([member], member.context.message, "")]))
            else:
                members.append(member)
        return members, released

    def _records(
        self, members: Sequence[HeldMessage], status: Any, *, output: Any = None, error: str = "", batch: str = ""
    ) -> list[CallRecord]:
        if not self._surroundings.records:
            return []
        now_s = self._surroundings.now_s()
        skipped = status == "skipped"
        return [
            record
            for member in members
            for record in call_records(
                member.work,
                self._route,
                self._position,
                status,
                input_hash="" if skipped else canonical_hash(member.context.message.payload),
                output_hash=canonical_hash(output) if status == "completed" else "",
                error=error,
                started_s=member.started_s,
                ended_s=0.0 if status == "pending" else now_s,
                batch=batch,
            )
        ]

    def _onward(
        self,
        members: Sequence[HeldMessage],
        message: RouteMessage,
        batch: str,
        emitted: Sequence[Child] = (),
        queue: str = "",
    ) -> Settlement | Work:
        """What is made of these messages: work for the next adapter, or children for the outbound queues."""
        works = [member.work for member in members]
        standings = [standing for work in works for standing in delivered(work)]
        queue = queue or chosen_queue(works)
        merged = Work(
            messages=standings,
            body=encode(message.payload),
            headers=dict(message.headers),
            parents=message.parents,
            position=self._position + 1,
            emitted=[*(child for work in works for child in work.emitted), *emitted],
            only=queue,
            batch=batch or works[0].batch,
            trace=works[0].trace,
        )
        if not self._is_last:
            return merged
        queues = [queue] if queue else self._route.outbound
        children = published(self._route, [one.id for one in standings], message, merged.body, queues)
        return Settlement(messages=standings, outcome="done", children=[*merged.emitted, *children])

    def _released(self, members: Sequence[HeldMessage], result: object, batch: str) -> Release:
        """What one result of these messages together comes to."""
        held = [member.held for member in members]
        if result is not None and not isinstance(result, AdapterResult):
            raise no_result(self._route, self._spec.name, result)
        ids = [one for member in members for one in member.ids]
        headers = members[0].context.message.headers
        chosen = chosen_queue([member.work for member in members])
        given = result.emitted if result is not None else ()
        emitted = routed(self._route, self._position, ids, given, headers, only=chosen)
        if result is not None and result.message is not None and result.continue_pipeline:
            if result.queue and result.queue not in self._route.outbound:
                raise no_outbound(self._route, result.queue)
            onward = self._onward(members, result.message, batch, emitted, result.queue)
            return Release(
                held, [*self._records(members, "completed", output=result.message.payload, batch=batch), onward]
            )
        before = [child for member in members for child in member.work.emitted]
        is_done = result is not None and result.message is None and emitted and result.continue_pipeline
        reason = (
            "" if is_done else (result.reason if result is not None else "") or f"{self._spec.name} ended the chain"
        )
        settlement = Settlement(
            messages=[standing for member in members for standing in member.work.messages],
            outcome="done" if is_done else "unrouted" if result is not None and result.unrouted else "filtered",
            children=[*before, *emitted],
            reason=reason,
            adapter="" if is_done else self._spec.name,
        )
        return Release(
            held,
            [*self._records(members, "completed" if is_done else "filtered", error=reason, batch=batch), settlement],
        )

    def _without_cancelled(self, members: Sequence[HeldMessage]) -> tuple[list[HeldMessage], list[Release]]:
        """Those whose executions go on, and the ends of the others, which the adapter is not called for."""
        live, ended = [], []
        for member in members:
            executions = member.context.message.executions
            if executions and all(map(self._surroundings.is_cancelled, executions)):
                ended.append(self._given_back(member, "the execution was cancelled"))
            else:
                live.append(member)
        return live, ended

    def _given_back(self, member: HeldMessage, reason: str) -> Release:
        """An attempt that does not count: its message is delivered again, or ends with its execution."""
        records = self._records([member], "cancelled", error=reason)
        settlement = Settlement(messages=member.work.messages, outcome="cancelled", reason=reason)
        return Release([member.held], [*records, settlement])

    def _failed(self, member: HeldMessage, error: BaseException, batch: str = "") -> Release:
        records = self._records([member], "failed", error=named(error), batch=batch)
        return Release([member.held], [*records, failed(member.work, error, self._spec.name)])


def is_failure(error: BaseException) -> bool:
    """Whether what a call raised fails its messages: all but outages, and the end of its time on Spark, do."""
    return not is_outage(error) and not isinstance(error, ProcessingTimeoutError)


async def _heard(awaitable: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """What it gives, or what it raises, as a value: a loop ends in the middle of a task that raises SystemExit."""
    try:
        return await awaitable, None
    except BaseException as error:  # noqa: BLE001 - the adapter may raise anything
        return None, error


def chosen_queue(works: Sequence[Work]) -> str:
    """The outbound queue that an adapter before chose for all of these; empty: none, or they differ."""
    chosen = {work.only for work in works}
    return chosen.pop() if len(chosen) == 1 else ""
