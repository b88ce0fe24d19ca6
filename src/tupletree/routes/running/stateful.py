"""Adapters that hold messages, as bolts: `BatchAdapter` and `StatefulAdapter` between the chains of a route.

Owns which messages a batch is made of, what becomes of its members, and that every member ends. A batch that fails is
tried member by member; what fails then fails its attempt, never the tuple.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tupletree.errors import PermanentError, is_outage
from tupletree.routes.adapters.contract import (
    Adapter,
    AdapterContext,
    AdapterResult,
    BatchAdapter,
    PipelineContext,
    RouteMessage,
    StatefulAdapter,
)
from tupletree.routes.document.spec import AdapterSpec, RouteSpec
from tupletree.routes.ids import batch_id
from tupletree.routes.messages import CallRecord, Child, Settlement, Work
from tupletree.routes.payloads import decode, encode
from tupletree.routes.running.chain import Surroundings, adapter_logger
from tupletree.routes.running.outcomes import call_records, delivered, failed, payload_hash, published, routed
from tupletree.topology.components import Held, HoldingBolt, Release, TaskContext

__all__ = ["BatchBolt", "StatefulBolt"]


@dataclass(eq=False, slots=True)
class _Member:
    """A message that the adapter has: the held tuple, and what the adapter sees of it."""

    held: Held[Work]
    context: PipelineContext
    started_s: float

    @property
    def work(self) -> Work:
        return self.held.value

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.held.value.messages]


class _AdapterBolt(HoldingBolt[Work]):
    """What both kinds have in common: one adapter, its life, its records, and an event loop for its async methods.

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
        surroundings: Surroundings,
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
        """Make the adapter, and open it."""
        self._loop = self._surroundings.new_loop()
        adapter: Adapter[Any] = self._spec.adapter(self._spec.config)
        surroundings = self._surroundings
        where = AdapterContext(
            self._route.name,
            self._spec.name,
            self._position,
            surroundings.settings,
            surroundings.resources,
            self._logger,
        )
        self._finished(adapter.open, where)
        self._adapter = adapter

    def close(self) -> None:
        """Close the adapter."""
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
        return self._loop.run_until_complete(awaitable)

    def _limited(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A call of the adapter that may take as long as the route allows.

        Raises:
            TimeoutError: it took longer; it was cancelled, and is left behind if it has not ended then.
        """
        limit_s = self._route.timeout_seconds
        is_async = inspect.iscoroutinefunction(function)

        async def limited() -> Any:
            call = function(*arguments) if is_async else self._threads.run(function, *arguments)
            task = asyncio.ensure_future(call)
            done, _ = await asyncio.wait({task}, timeout=limit_s)
            if not done:
                task.cancel()
                await asyncio.wait({task}, timeout=self._surroundings.grace_s)
                raise TimeoutError(f"the call took longer than timeout_seconds ({limit_s:g}) of its route")
            return task.result()

        return self._await(limited())

    def _member(self, held: Held[Work]) -> _Member:
        work = held.value
        first = work.messages[0]
        surroundings = self._surroundings
        executions = tuple(dict.fromkeys(one for standing in work.messages for one in standing.executions))
        message = RouteMessage(decode(work.body), work.headers, first.id, tuple(work.parents), executions)
        context = PipelineContext(
            message=message,
            attempt=first.attempt,
            route=self._route.name,
            adapter=self._spec.name,
            settings=surroundings.settings,
            resources=surroundings.resources,
            logger=self._logger,
            is_cancelled=lambda: surroundings.is_cancelled(message.execution),
            now_s=surroundings.now_s,
        )
        return _Member(held, context, surroundings.now_s())

    def _admit(self, tuples: Sequence[Held[Work]], known: Iterable[_Member]) -> tuple[list[_Member], list[Release]]:
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
        self, members: Sequence[_Member], status: Any, *, output: Any = None, error: str = "", batch: str = ""
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
                input_hash="" if skipped else payload_hash(member.context.message.payload),
                output_hash=payload_hash(output) if status == "completed" else "",
                error=error,
                started_s=member.started_s,
                ended_s=now_s,
                batch=batch,
            )
        ]

    def _onward(
        self,
        members: Sequence[_Member],
        message: RouteMessage,
        batch: str,
        emitted: Sequence[Child] = (),
        queue: str = "",
    ) -> Settlement | Work:
        """What is made of these messages: work for the next adapter, or children for the outbound queues."""
        works = [member.work for member in members]
        standings = [standing for work in works for standing in delivered(work)]
        queue = queue or _chosen(works)
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

    def _released(self, members: Sequence[_Member], result: object, batch: str) -> Release:
        """What one result of these messages together comes to."""
        held = [member.held for member in members]
        if result is not None and not isinstance(result, AdapterResult):
            raise PermanentError(
                "an adapter gave what is no result",
                where=f"route {self._route.name}, adapter {self._spec.name}",
                got=f"{type(result).__name__} {result!r:.80}",
                expected="an AdapterResult, or None",
            )
        ids = [one for member in members for one in member.ids]
        headers = members[0].context.message.headers
        emitted = routed(self._route, self._position, ids, result.emitted if result is not None else (), headers)
        if result is not None and result.message is not None and result.continue_pipeline:
            if result.queue and result.queue not in self._route.outbound:
                raise PermanentError(
                    "an adapter names a queue that is not outbound",
                    where=f"route {self._route.name}, adapter {self._spec.name}",
                    got=repr(result.queue),
                )
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

    def _failed(self, member: _Member, error: BaseException, batch: str = "") -> Release:
        records = self._records([member], "failed", error=f"{type(error).__name__}: {error}", batch=batch)
        return Release([member.held], [*records, failed(member.work, error, self._spec.name)])


def _chosen(works: Sequence[Work]) -> str:
    """The outbound queue that an adapter before chose for all of these; empty: none, or they differ."""
    chosen = {work.only for work in works}
    return chosen.pop() if len(chosen) == 1 else ""


class BatchBolt(_AdapterBolt):
    """The bolt of a `BatchAdapter`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._members: list[_Member] = []
        self._bytes = 0

    @property
    def _batches(self) -> BatchAdapter[Any]:
        adapter: BatchAdapter[Any] = self._adapter
        return adapter

    def _setting(self, name: str) -> Any:
        """What the document says of batches, or else the adapter."""
        return getattr(self._spec.config, name, getattr(self._batches, name))

    def take(self, tuples: Sequence[Held[Work]]) -> Iterable[Release]:
        """Add to the batch; work those that are full."""
        members, released = self._admit(tuples, self._members)
        self._members += members
        self._bytes += sum(len(member.work.body) for member in members)
        while self._members and self._is_full():
            released += self._work_batch(self._full())
        if self._members:
            self._hold([one for member in self._members for one in member.ids])
        return released

    def due_s(self) -> float | None:
        """When the oldest member has waited for long enough."""
        return (
            min(member.held.since_s for member in self._members) + self._setting("max_age_s") if self._members else None
        )

    def check(self, time_s: float) -> Iterable[Release]:
        """Work what is old enough."""
        due_s = self.due_s()
        return self._work_batch(self._members) if due_s is not None and due_s <= time_s else ()

    def flush(self, time_s: float) -> Iterable[Release]:  # noqa: ARG002 - the contract's
        """Work what there is."""
        return self._work_batch(self._members) if self._members else ()

    def forget(self, tuples: Sequence[Held[Work]]) -> None:
        """Drop what is over."""
        gone = {id(one) for one in tuples}
        self._keep([member for member in self._members if id(member.held) not in gone])

    def _keep(self, members: list[_Member]) -> None:
        self._members = members
        self._bytes = sum(len(member.work.body) for member in members)

    def _is_full(self) -> bool:
        max_bytes = self._setting("max_bytes")
        return len(self._members) >= self._spec.batch_size or bool(max_bytes and self._bytes >= max_bytes)

    def _full(self) -> list[_Member]:
        """The members of the next full batch, at least one."""
        max_bytes = self._setting("max_bytes")
        count, size = 0, 0
        for member in self._members[: self._spec.batch_size]:
            if count and max_bytes and size + len(member.work.body) > max_bytes:
                break
            count, size = count + 1, size + len(member.work.body)
        return self._members[:count]

    def _work_batch(self, members: list[_Member]) -> list[Release]:
        """Work these, the first of the members; an outage leaves them where they are."""
        batch = batch_id([one for member in members for one in member.ids], self._route.name, self._position)
        now_s = self._surroundings.now_s()
        for member in members:
            member.started_s = now_s
        try:
            released = self._call(members, batch)
        except Exception as error:
            if is_outage(error):
                raise
            released = self._one_by_one(members, error, batch)
        self._keep(self._members[len(members) :])
        return released

    def _call(self, members: Sequence[_Member], batch: str) -> list[Release]:
        contexts = [member.context for member in members]
        result = self._limited(self._batches.process_batch, contexts)
        if isinstance(result, AdapterResult):
            return [self._released(members, result, batch)]
        results = [*result] if result is not None else []
        if len(results) == len(members):
            return [self._released([member], one, batch) for member, one in zip(members, results)]
        return [self._together(members, results, batch)]

    def _together(self, members: Sequence[_Member], results: Sequence[object], batch: str) -> Release:
        """Several results that are not one per member: each becomes messages that have all members as parents."""
        if not self._is_last:
            raise PermanentError(
                "a batch gave several results that are not one per member, and another adapter follows",
                where=f"route {self._route.name}, adapter {self._spec.name}",
                got=f"{len(results)} results of {len(members)} members",
                expected="one result, one per member, or a batch adapter that is the last of its route",
            )
        standings = [standing for member in members for standing in member.work.messages]
        ids = [one.id for one in standings]
        headers = members[0].context.message.headers
        children: list[Child] = [child for member in members for child in member.work.emitted]
        emitted = [one for result in results if isinstance(result, AdapterResult) for one in result.emitted]
        children += routed(self._route, self._position, ids, emitted, headers)
        for index, result in enumerate(results):
            message = result.message if isinstance(result, AdapterResult) else None
            if message is not None and isinstance(result, AdapterResult):
                chosen = result.queue or _chosen([member.work for member in members])
                queues = [chosen] if chosen else self._route.outbound
                children += published(self._route, ids, message, encode(message.payload), queues, index)
        settlement = Settlement(messages=standings, outcome="done", children=children)
        payloads = [
            one.message.payload for one in results if isinstance(one, AdapterResult) and one.message is not None
        ]
        records = self._records(members, "completed", output=payloads, batch=batch)
        return Release([member.held for member in members], [*records, settlement])

    def _one_by_one(self, members: Sequence[_Member], error: BaseException, batch: str) -> list[Release]:
        if len(members) == 1:
            return [self._failed(members[0], error, batch)]
        released: list[Release] = []
        for member in members:
            try:
                released += self._call([member], batch)
            except Exception as failure:
                if is_outage(failure):
                    raise
                released.append(self._failed(member, failure, batch))
        return released


class StatefulBolt(_AdapterBolt):
    """The bolt of a `StatefulAdapter`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._members: dict[str, _Member] = {}
        self._checked_s: float | None = None

    @property
    def _stateful(self) -> StatefulAdapter[Any]:
        adapter: StatefulAdapter[Any] = self._adapter
        return adapter

    def take(self, tuples: Sequence[Held[Work]]) -> Iterable[Release]:
        """Call `process` for each message; what it holds is kept."""
        members, released = self._admit(tuples, self._members.values())
        for member in members:
            try:
                result = self._limited(self._stateful.process, member.context)
                if isinstance(result, AdapterResult) and not result.continue_pipeline:
                    self._members[member.ids[0]] = member
                else:
                    released.append(self._released([member], result, ""))
            except Exception as error:
                if is_outage(error):
                    raise
                released.append(self._failed(member, error))
        released += self._let_go(self._stateful.check(self._surroundings.now_s()))
        self._hold([*self._members])
        return released

    def due_s(self) -> float | None:
        """The next check."""
        if not self._members:
            return None
        since_s = min(member.held.since_s for member in self._members.values())
        return max(since_s, self._checked_s or since_s) + self._stateful.check_interval_s

    def check(self, time_s: float) -> Iterable[Release]:
        """Let the adapter release what is due."""
        self._checked_s = time_s
        return self._let_go(self._stateful.check(time_s))

    def flush(self, time_s: float) -> Iterable[Release]:
        """Let the adapter release what it can."""
        return self._let_go(self._stateful.flush(time_s))

    def forget(self, tuples: Sequence[Held[Work]]) -> None:
        """Drop what is over; what the adapter still releases of it is ignored."""
        gone = {id(one) for one in tuples}
        self._members = {name: one for name, one in self._members.items() if id(one.held) not in gone}

    def _let_go(self, releases: Iterable[Any]) -> list[Release]:
        released = []
        for one in releases:
            members = [self._members.pop(name) for name in one.messages if name in self._members]
            if not members:
                continue
            try:
                if one.dropped:
                    ended = AdapterResult(continue_pipeline=False, reason=one.dropped)
                    released += [self._released([member], ended, "") for member in members]
                elif len(one.results) == len(members):
                    released += [self._released([member], own, "") for member, own in zip(members, one.results)]
                elif len(one.results) == 1:
                    batch = batch_id([*one.messages], self._route.name, self._position)
                    released.append(self._released(members, one.results[0], batch))
                else:
                    raise PermanentError(  # noqa: TRY301 - it fails the members, as what `_released` raises
                        "a release has neither one result nor one per message",
                        where=f"route {self._route.name}, adapter {self._spec.name}",
                        got=f"{len(one.results)} results of {len(members)} messages",
                    )
            except Exception as error:  # noqa: BLE001 - a result that cannot be published
                released += [self._failed(member, error) for member in members]
        return released
