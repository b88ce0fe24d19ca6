"""Adapters that hold messages, as bolts: `BatchAdapter` and `StatefulAdapter` between the chains of a route.

Owns which messages a batch is made of, what becomes of its members, and that every member ends. A batch that fails is
tried member by member; what fails then fails its attempt, never the tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tupletree.errors import PermanentError, is_outage
from tupletree.routes.adapters.contract import AdapterResult, BatchAdapter, StatefulAdapter
from tupletree.routes.ids import batch_id
from tupletree.routes.messages import Child, Settlement, Work
from tupletree.routes.payloads import encode
from tupletree.routes.running.holding import AdapterBolt, HeldMessage, chosen_queue, is_failure
from tupletree.routes.running.outcomes import published, routed
from tupletree.texts import counted
from tupletree.topology.components import Held, Release


class BatchBolt(AdapterBolt):
    """The bolt of a `BatchAdapter`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._members: list[HeldMessage] = []
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
        released += self._work_while(self._is_full, released)
        if self._members:
            self._hold([one for member in self._members for one in member.ids])
        return released

    def due_s(self) -> float | None:
        """When the oldest member has waited for long enough; at once if there are enough."""
        if not self._members:
            return None
        since_s = min(member.held.since_s for member in self._members)
        return since_s if self._is_full() else since_s + self._setting("max_age_s")

    def check(self, time_s: float) -> Iterable[Release]:
        return self._work_while(lambda: (self.due_s() or 0.0) <= time_s)

    def flush(self, time_s: float) -> Iterable[Release]:  # noqa: ARG002 - the contract's
        return self._work_while(lambda: True)

    def forget(self, tuples: Sequence[Held[Work]]) -> None:
        gone = {id(one) for one in tuples}
        self._keep([member for member in self._members if id(member.held) not in gone])

    def _keep(self, members: list[HeldMessage]) -> None:
        self._members = members
        self._bytes = sum(len(member.work.body) for member in members)

    def _is_full(self) -> bool:
        max_bytes = self._setting("max_bytes")
        return len(self._members) >= self._spec.batch_size or bool(max_bytes and self._bytes >= max_bytes)

    def _full(self) -> list[HeldMessage]:
        """The members of the next full batch, at least one."""
        max_bytes = self._setting("max_bytes")
        count, size = 0, 0
        for member in self._members[: self._spec.batch_size]:
            if count and max_bytes and size + len(member.work.body) > max_bytes:
                break
            count, size = count + 1, size + len(member.work.body)
        return self._members[:count]

    def _work_while(self, is_due: Callable[[], bool], before: Sequence[Release] = ()) -> list[Release]:
        """Work batches as long as one is due. An outage ends it, and is raised only if nothing is released by then.

        What was released would be lost with it; the batch that met it is worked when `check` is called again.
        """
        released: list[Release] = []
        while self._members and is_due():
            live, ended = self._without_cancelled(self._members)
            if ended:
                self._keep(live)
                released += ended
                continue
            try:
                released += self._work_batch(self._full() if self._is_full() else self._members)
            except Exception as error:
                if not is_outage(error) or not (released or before):
                    raise
                break
        return released

    def _work_batch(self, members: list[HeldMessage]) -> list[Release]:
        """Work these, the first of the members; an outage leaves them where they are."""
        batch = batch_id([one for member in members for one in member.ids], self._route.name, self._position)
        now_s = self._surroundings.now_s()
        for member in members:
            member.started_s = now_s
        try:
            released = self._call(members, batch)
        except BaseException as error:
            if not is_failure(error):
                raise
            released = self._one_by_one(members, error, batch)
        self._keep(self._members[len(members) :])
        return released

    def _call(self, members: Sequence[HeldMessage], batch: str) -> list[Release]:
        contexts = [member.context for member in members]
        result = self._limited(members, batch, self._batches.process_batch, contexts)
        if isinstance(result, AdapterResult):
            return [self._released(members, result, batch)]
        results = [*result] if result is not None else []
        if len(results) == len(members):
            return [self._released([member], one, batch) for member, one in zip(members, results)]
        return [self._together(members, results, batch)]

    def _together(self, members: Sequence[HeldMessage], results: Sequence[object], batch: str) -> Release:
        """Several results that are not one per member: each becomes messages that have all members as parents."""
        if not self._is_last:
            raise PermanentError(
                "a batch gave several results that are not one per member, and another adapter follows",
                where=f"route {self._route.name}, adapter {self._spec.name}",
                got=f"{counted(len(results), 'result')} of {counted(len(members), 'member')}",
                expected="one result, one per member, or a batch adapter that is the last of its route",
            )
        standings = [standing for member in members for standing in member.work.messages]
        ids = [one.id for one in standings]
        headers = members[0].context.message.headers
        children: list[Child] = [child for member in members for child in member.work.emitted]
        emitted = [one for result in results if isinstance(result, AdapterResult) for one in result.emitted]
        only = chosen_queue([member.work for member in members])
        children += routed(self._route, self._position, ids, emitted, headers, only=only)
        for index, result in enumerate(results):
            message = result.message if isinstance(result, AdapterResult) else None
            if message is not None and isinstance(result, AdapterResult):
                chosen = result.queue or only
                queues = [chosen] if chosen else self._route.outbound
                children += published(self._route, ids, message, encode(message.payload), queues, index)
        settlement = Settlement(messages=standings, outcome="done", children=children)
        payloads = [
            one.message.payload for one in results if isinstance(one, AdapterResult) and one.message is not None
        ]
        records = self._records(members, "completed", output=payloads, batch=batch)
        return Release([member.held for member in members], [*records, settlement])

    def _one_by_one(self, members: Sequence[HeldMessage], error: BaseException, batch: str) -> list[Release]:
        if len(members) == 1:
            return [self._failed(members[0], error, batch)]
        released: list[Release] = []
        for member in members:
            try:
                released += self._call([member], batch)
            except BaseException as failure:
                if not is_failure(failure):
                    raise
                released.append(self._failed(member, failure, batch))
        return released


class StatefulBolt(AdapterBolt):
    """The bolt of a `StatefulAdapter`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._members: dict[str, HeldMessage] = {}
        self._unprocessed: list[HeldMessage] = []  # an outage was met before, or by, their calls of `process`
        self._checked_s: float | None = None
        self._must_check = False  # an outage was met: there is something to go on with

    @property
    def _stateful(self) -> StatefulAdapter[Any]:
        adapter: StatefulAdapter[Any] = self._adapter
        return adapter

    def take(self, tuples: Sequence[Held[Work]]) -> Iterable[Release]:
        """Call `process` for each message; what it holds is kept. After an outage `check` goes on with the rest.

        Raises:
            ConnectorError: nothing came of the call, and none of these tuples is kept.
        """
        members, released = self._admit(tuples, [*self._members.values(), *self._unprocessed])
        before, self._unprocessed = self._unprocessed, [*self._unprocessed, *members]
        count = len(self._unprocessed)
        try:
            self._process(released)
            released += self._asked(self._stateful.check, self._surroundings.now_s())
        except Exception as error:
            if not is_outage(error):
                raise
            if not released and members and len(self._unprocessed) == count:
                self._unprocessed = before
                raise
            self._must_check = True  # raised there: here, what the messages came to would be lost with it
        self._hold_members()
        return released

    def due_s(self) -> float | None:
        """The next check; at once after an outage."""
        kept = [*self._members.values(), *self._unprocessed]
        if not kept:
            return None
        since_s = min(member.held.since_s for member in kept)
        if self._must_check:
            return since_s
        return max(since_s, self._checked_s or since_s) + self._stateful.check_interval_s

    def check(self, time_s: float) -> Iterable[Release]:
        """Process what an outage left, and let the adapter release what is due.

        Raises:
            ConnectorError: an outage was met before anything was released.
        """
        self._checked_s = time_s
        released: list[Release] = []
        try:
            if self._unprocessed:
                try:
                    self._process(released)
                finally:
                    self._hold_members()
            released += self._asked(self._stateful.check, time_s)
        except Exception as error:
            if not is_outage(error):
                raise
            self._must_check = True
            if not released:
                raise
        else:
            self._must_check = False
        return released

    def flush(self, time_s: float) -> Iterable[Release]:
        """Let the adapter release what it can. The rest is given back: the run would wait for it, and no more comes.

        So is what an outage left unprocessed.
        """
        released = self._asked(self._stateful.flush, time_s)
        left = [*self._members.values(), *self._unprocessed]
        self._members, self._unprocessed = {}, []
        reason = f"{self._spec.name} held it at the stop, and is given it again"
        return [*released, *(self._given_back(member, reason) for member in left)]

    def forget(self, tuples: Sequence[Held[Work]]) -> None:
        """Drop what is over; what the adapter still releases of it is ignored."""
        gone = {id(one) for one in tuples}
        self._members = {name: one for name, one in self._members.items() if id(one.held) not in gone}
        self._unprocessed = [one for one in self._unprocessed if id(one.held) not in gone]

    def _hold_members(self) -> None:
        self._hold([one for member in self._members.values() for one in member.ids])

    def _process(self, released: list[Release]) -> None:
        """Call `process` for what is unprocessed, in order. What comes of each is added to `released` at once.

        Raises:
            ConnectorError: it met an outage; its member and those behind it are unprocessed as before.
        """
        self._unprocessed, ended = self._without_cancelled(self._unprocessed)
        released += ended
        while self._unprocessed:
            member = self._unprocessed[0]
            member.started_s = self._surroundings.now_s()
            try:
                result = self._limited([member], "", self._stateful.process, member.context)
                if isinstance(result, AdapterResult) and not result.continue_pipeline:
                    self._members[member.ids[0]] = member
                else:
                    released.append(self._released([member], result, ""))
            except BaseException as error:
                if is_outage(error):
                    raise
                released.append(self._failed(member, error))
            del self._unprocessed[0]

    def _asked(self, function: Callable[[float], Sequence[Any]], now_s: float) -> list[Release]:
        """What a call of the adapter releases; what it raises fails an attempt of all that it holds.

        Raises:
            ConnectorError: it met an outage.
        """
        _, ended = self._without_cancelled([*self._members.values()])
        try:
            released = [*function(now_s)]
        except BaseException as error:
            if not is_failure(error):
                raise
            failing, self._members = self._members, {}
            return [self._failed(member, error) for member in failing.values()]
        gone = {id(held) for one in ended for held in one.tuples}
        self._members = {name: one for name, one in self._members.items() if id(one.held) not in gone}
        return [*ended, *(release for one in released for release in self._let_go(one))]

    def _let_go(self, one: Any) -> list[Release]:
        """What one release of the adapter comes to, for those of its messages that it still holds."""
        there = [(position, name) for position, name in enumerate(one.messages) if name in self._members]
        members = [self._members.pop(name) for _, name in there]
        if not members:
            return []
        try:
            if one.dropped:
                ended = AdapterResult(continue_pipeline=False, reason=one.dropped)
                return [self._released([member], ended, "") for member in members]
            if len(one.results) == len(one.messages):
                return [
                    self._released([member], one.results[position], "")
                    for member, (position, _) in zip(members, there, strict=True)
                ]
            if len(one.results) == 1:
                batch = batch_id([*one.messages], self._route.name, self._position)
                return [self._released(members, one.results[0], batch)]
            raise PermanentError(  # noqa: TRY301 - it fails the members, as what `_released` raises
                "a release has neither one result nor one per message",
                where=f"route {self._route.name}, adapter {self._spec.name}",
                got=f"{counted(len(one.results), 'result')} of {counted(len(one.messages), 'message')}",
            )
        except Exception as error:  # noqa: BLE001 - a result that cannot be published
            return [self._failed(member, error) for member in members]
