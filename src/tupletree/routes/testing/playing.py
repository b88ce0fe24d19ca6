"""Messages through routes on virtual time: attempts, pauses, batches, and where each message ended.

Owns what ledger, gates and brokers do in a run, as far as a unit test sees it: attempts are counted and retried after
their pauses, dead letters go where the route says. The adapters are worked by the same code as in a run.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tupletree.errors import is_outage
from tupletree.routes.adapters.contract import BatchAdapter
from tupletree.routes.document.spec import PipelineSpec, RouteSpec
from tupletree.routes.messages import CallRecord, CallRecords, Child, Settlement, Standing, Work
from tupletree.routes.payloads import decode, encode
from tupletree.routes.running.chain import AdapterSurroundings, Chain
from tupletree.routes.running.compile import segments_of
from tupletree.routes.running.stateful import BatchBolt, StatefulBolt
from tupletree.routes.testing.virtual_loop import RESOLUTION_S, InlineThreads, VirtualLoop, VirtualTime

EXECUTION = "test"
LONGEST_S = 7200.0
"""Virtual seconds after which a test is over; what is open then is held."""

MOST_STEPS = 100_000
OUTAGE_PAUSE_S = 1.0


@dataclass
class PlayedMessage:
    """A message and what became of it.

    Attributes:
        id: its id.
        route: that worked it.
        outcome: `done`, `filtered`, `unrouted`, `dead`; `held` as long as it is open.
        attempts: that were made.
        reason: why it was filtered, unrouted or failed.
        error: class of what its last attempt raised.
        called: adapters that were called for it, in order.
    """

    id: str
    route: str
    outcome: str = "held"
    attempts: int = 0
    reason: str = ""
    error: str = ""
    called: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PlayedOutput:
    """A message that was published: its payload and headers."""

    payload: Any
    headers: Mapping[str, str]


@dataclass
class Play:
    """What came of a test.

    Attributes:
        inputs: the messages that the test gave, in order.
        outputs: queue → what was published to it, in order.
        children: number of messages that routes published, without dead letters.
        took_s: virtual seconds.
    """

    inputs: list[PlayedMessage]
    outputs: dict[str, list[PlayedOutput]]
    children: int = 0
    took_s: float = 0.0


def play(
    pipeline: PipelineSpec,
    route: str,
    inputs: Sequence[tuple[Any, Mapping[str, str]]],
    *,
    settings: Mapping[str, Any] | None = None,
    follow: bool = False,
) -> Play:
    """Give messages to a route, one after the other, and let time pass until nothing more happens.

    Args:
        pipeline: its routes have their mocks already.
        route: that gets the messages.
        inputs: payloads and headers.
        settings: for adapters.
        follow: what is published goes on through the routes that read it.

    Raises:
        Exception: what an adapter raises when it is opened.
    """
    time = VirtualTime()
    surroundings = AdapterSurroundings(
        settings=settings or {},
        now_s=time,
        records=True,
        threads=InlineThreads,
        new_loop=lambda: VirtualLoop(time),
    )
    loop = VirtualLoop(time)
    player = _Player(pipeline, loop, time, surroundings, follow=follow)
    try:
        return player.play(route, inputs)
    finally:
        player.close()
        loop.close()


@dataclass(frozen=True)
class _Held:
    """See `tupletree.topology.components.Held`."""

    value: Work
    since_s: float


class _Line:
    """A route's adapters, in segments as a run has them."""

    def __init__(self, route: RouteSpec, loop: VirtualLoop, surroundings: AdapterSurroundings) -> None:
        self.route = route
        self._loop = loop
        self._surroundings = surroundings
        self.segments: dict[int, Chain | BatchBolt | StatefulBolt] = {}
        for start, stop, holds in segments_of(route):
            self.segments[start] = self._segment(start, stop, holds=holds)

    def _segment(self, start: int, stop: int, *, holds: bool) -> Chain | BatchBolt | StatefulBolt:
        if not holds:
            return Chain(self.route, start, stop, self._surroundings)
        kind = BatchBolt if issubclass(self.route.adapters[start].adapter, BatchAdapter) else StatefulBolt
        return kind(self.route, start, self._surroundings)

    def open(self) -> None:
        for segment in self.segments.values():
            if isinstance(segment, Chain):
                self._loop.run_until_complete(segment.open())
            else:
                segment.open(None)  # type: ignore[arg-type]  # no adapter sees it

    def close(self) -> None:
        for segment in self.segments.values():
            if isinstance(segment, Chain):
                self._loop.run_until_complete(segment.close())
            else:
                segment.close()

    def due_s(self) -> float | None:
        """When a segment that holds messages wants to be called."""
        times = [one.due_s() for one in self.segments.values() if not isinstance(one, Chain)]
        return min((one for one in times if one is not None), default=None)


class _Player:
    def __init__(
        self,
        pipeline: PipelineSpec,
        loop: VirtualLoop,
        time: VirtualTime,
        surroundings: AdapterSurroundings,
        *,
        follow: bool,
    ) -> None:
        self._pipeline = pipeline
        self._loop = loop
        self._time = time
        self._surroundings = surroundings
        self._follow = follow
        self._lines: dict[str, _Line] = {}
        self._due: list[tuple[float, int, Work]] = []
        self._numbers = itertools.count()
        self._given: dict[str, Work] = {}
        self._messages: dict[str, PlayedMessage] = {}
        self._play = Play([], {})

    def play(self, route: str, inputs: Sequence[tuple[Any, Mapping[str, str]]]) -> Play:
        started_s = self._time.now_s
        for number, (payload, headers) in enumerate(inputs, 1):
            message = self._give(f"input-{number}", route, encode(payload), headers, started_s)
            self._play.inputs.append(message)
        for _ in range(MOST_STEPS):
            due_s = self._next_s()
            if due_s is None or max(due_s, self._time.now_s) > started_s + LONGEST_S:
                break
            self._time.move_to(due_s)
            if self._due and self._due[0][0] <= due_s:
                self._work(heapq.heappop(self._due)[2])
            else:
                self._check()
        self._play.took_s = self._time.now_s - started_s
        return self._play

    def close(self) -> None:
        for line in self._lines.values():
            line.close()

    def _give(
        self,
        name: str,
        route: str,
        body: bytes,
        headers: Mapping[str, str],
        due_s: float,
        parents: tuple[str, ...] = (),
    ) -> PlayedMessage:
        queue = self._pipeline.routes[route].inbound.queue
        standing = Standing(id=name, route=route, queue=queue, handle=name, executions=(EXECUTION,), attempt=1)
        work = Work(messages=[standing], body=body, headers=dict(headers), parents=parents)
        self._given[name] = work
        message = self._messages[name] = PlayedMessage(name, route)
        heapq.heappush(self._due, (due_s, next(self._numbers), work))
        return message

    def _line(self, route: str) -> _Line:
        if route not in self._lines:
            line = _Line(self._pipeline.routes[route], self._loop, self._surroundings)
            self._lines[route] = line
            line.open()
        return self._lines[route]

    def _next_s(self) -> float | None:
        times = [line.due_s() for line in self._lines.values()]
        times += [self._due[0][0]] if self._due else []
        return min((one for one in times if one is not None), default=None)

    def _work(self, work: Work) -> None:
        route = work.messages[0].route
        line = self._line(route)
        segment = line.segments[work.position]
        try:
            if isinstance(segment, Chain):
                self._take(self._loop.run_until_complete(segment.work(work)))
            else:
                self._release(segment.take([_Held(work, self._time.now_s)]))
        except Exception as error:
            if not is_outage(error):
                raise
            heapq.heappush(self._due, (self._time.now_s + OUTAGE_PAUSE_S, next(self._numbers), work))

    def _check(self) -> None:
        """Call the segments whose time has come."""
        now_s = self._time.now_s
        for line in [*self._lines.values()]:
            for segment in line.segments.values():
                if isinstance(segment, Chain):
                    continue
                due_s = segment.due_s()
                if due_s is not None and due_s <= now_s + RESOLUTION_S:
                    try:
                        self._release(segment.check(now_s))
                    except Exception as error:
                        if not is_outage(error):
                            raise
                        self._time.passed_s += OUTAGE_PAUSE_S

    def _release(self, releases: Any) -> None:
        for release in releases:
            self._take(release.values)

    def _take(self, values: Sequence[Any]) -> None:
        for value in values:
            if isinstance(value, CallRecords):
                self._take(value.calls)
            elif isinstance(value, CallRecord):
                if value.status != "skipped" and value.message in self._messages:
                    self._messages[value.message].called.append(value.adapter)
            elif isinstance(value, Work):
                heapq.heappush(self._due, (self._time.now_s, next(self._numbers), value))
            elif isinstance(value, Settlement):
                self._settle(value)

    def _settle(self, settlement: Settlement) -> None:
        for standing in settlement.messages:
            message = self._messages[standing.id]
            message.attempts = standing.attempt
            message.reason, message.error = settlement.reason, settlement.error
            if settlement.outcome == "failed":
                self._failed(standing, settlement)
            else:
                message.outcome = settlement.outcome
        for child in settlement.children:
            self._publish(child, [standing.id for standing in settlement.messages])

    def _failed(self, standing: Standing, settlement: Settlement) -> None:
        """Again after its pause, or dead."""
        handling = self._pipeline.routes[standing.route].error_handling
        given = self._given[standing.id]
        if not settlement.permanent and standing.attempt <= handling.max_retries:
            pause_s = max(handling.delay_s(standing.attempt), settlement.retry_after_s)
            again = _next_attempt(given)
            self._given[standing.id] = again
            heapq.heappush(self._due, (self._time.now_s + pause_s, next(self._numbers), again))
            return
        self._messages[standing.id].outcome = "dead"
        if handling.dead_letter_queue:
            self._note(handling.dead_letter_queue, given.body, given.headers)

    def _publish(self, child: Child, parents: Sequence[str]) -> None:
        self._play.children += 1
        self._note(child.queue, child.body, child.headers)
        reader = self._pipeline.reader_of(child.queue) if self._follow else None
        if reader is not None:
            self._give(
                child.id, reader.name, child.body, child.headers, self._time.now_s + child.delay_s, tuple(parents)
            )

    def _note(self, queue: str, body: bytes, headers: Mapping[str, str]) -> None:
        self._play.outputs.setdefault(queue, []).append(PlayedOutput(decode(body), dict(headers)))


def _next_attempt(work: Work) -> Work:
    [standing] = work.messages
    again = Standing(
        id=standing.id,
        route=standing.route,
        queue=standing.queue,
        handle=standing.handle,
        executions=standing.executions,
        attempt=standing.attempt + 1,
    )
    return Work(messages=[again], body=work.body, headers=work.headers, parents=work.parents)
