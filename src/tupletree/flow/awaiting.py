"""The task of an async bolt: up to `concurrency` calls at a time, each tuple settled as its call ends.

Owns which tuples wait and which are being worked on. It refuses to run anything: it asks for calls in the outbox, and
hears how they ended by mail. A call sees a context of its own, because others run beside it.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tupletree.effects import Output, Worked
from tupletree.errors import InternalError
from tupletree.failing import FailureMaker, wrong_type
from tupletree.flow.bolts import EmittingMachine
from tupletree.flow.mail import Finished, Mail, Now
from tupletree.flow.outbox import AsyncCall, Outbox
from tupletree.frames import Frame, Root, join_segments, roots_of
from tupletree.ids import RandomBits
from tupletree.plan import Plan, Task
from tupletree.topology.model import BoltSpec

__all__ = ["AsyncBoltMachine"]


@dataclass(slots=True, eq=False)
class _Waiting:
    """One tuple. `unsettled` counts, per root, the open tuples of the frame it came in."""

    value: Any
    root: Root
    frame_id: int
    unsettled: dict[int, int]


class AsyncBoltMachine(EmittingMachine):
    """See `Machine` and `EmittingMachine`. Only functions without state and collector: those have one tuple in hand."""

    def __init__(self, plan: Plan, task: Task, *, random_bits: RandomBits, attempts: dict[int, int]) -> None:
        super().__init__(plan, task, random_bits=random_bits, attempts=attempts)
        component = plan.spec.components[task.component]
        self._spec: BoltSpec = component.body
        self._resources = component.resources
        self._streams = {stream.schema.cls: name for name, stream in component.outputs.items()}
        self._fail = FailureMaker(task.component, task.task_id)
        self._waiting: deque[_Waiting] = deque()
        self._running: dict[int, _Waiting] = {}
        self._calls = 0

    @property
    def running(self) -> int:
        """Calls that have not ended."""
        return len(self._running)

    @property
    def held(self) -> int:
        """Tuples that wait for a call or for its end."""
        return len(self._waiting) + len(self._running)

    @property
    def is_busy(self) -> bool:
        """Whether a call is to end or to be made."""
        return self.held > 0

    def work(self, frame: Frame, now: Now, out: Outbox) -> None:
        """Line the tuples up, and start as many as may run."""
        self.place.epoch_time_s = now.wall_s
        self.worked += len(frame.values)
        unsettled: dict[int, int] = {}
        for root, values in frame.segments():
            for one in roots_of(root):
                unsettled[one] = unsettled.get(one, 0) + len(values)
            self._waiting += [_Waiting(value, root, frame.id, unsettled) for value in values]
        self._start_calls(out)

    def receive(self, mail: Sequence[Mail], now: Now, out: Outbox) -> None:
        """Settle the tuples of calls that ended, and start others."""
        self.place.epoch_time_s = now.wall_s
        for one in mail:
            if not isinstance(one, Finished):
                raise InternalError("an async bolt got mail that is not for it", got=type(one).__name__)
            waiting = self._running.pop(one.call, None)
            if waiting is not None:
                self.carry_out(self._ended(waiting, one), out)
        self._start_calls(out)

    def _start_calls(self, out: Outbox) -> None:
        while self._waiting and len(self._running) < self._spec.concurrency:
            self._calls += 1
            waiting = self._running[self._calls] = self._waiting.popleft()
            out.calls.append((self.task.task_id, self._calls, self._call_of(waiting)))

    def _call_of(self, waiting: _Waiting) -> AsyncCall:
        place = replace(self.place, root=waiting.root)
        injected = {
            name: place if what == "context" else self._resources[what.removeprefix("resource:")]
            for name, what in self._spec.inject.items()
        }
        arguments = {self._spec.value_parameter: waiting.value, **injected}
        return lambda: _results(self._spec, arguments)

    def _ended(self, waiting: _Waiting, finished: Finished) -> Worked:
        worked = Worked()
        error: BaseException | None = finished.error
        pieces: dict[str, list[tuple[Root, list[Any]]]] = {}
        for value in finished.results:
            stream = self._streams.get(type(value))
            if stream is None:
                error = error or wrong_type(value, " or ".join(cls.__name__ for cls in self._streams) or "nothing")
            else:
                pieces.setdefault(stream, []).append((waiting.root, [value]))
        if error is not None:
            self._fail.blame(worked, waiting.root, waiting.value, error)
        else:
            worked.outputs += [Output(stream, *join_segments(emitted)) for stream, emitted in pieces.items()]
        done: list[Root] = []
        for root in roots_of(waiting.root):
            waiting.unsettled[root] -= 1
            if not waiting.unsettled[root] and root not in worked.failures:
                done.append(root)
        if done:
            worked.done.append((waiting.frame_id, done))
        return worked


async def _results(spec: BoltSpec, arguments: dict[str, object]) -> list[Any]:
    """Call the function and gather what it gives."""
    called = spec.target(**arguments)
    if inspect.isasyncgen(called):
        return [value async for value in called if value is not None]
    answer = await called
    if answer is None:
        return []
    return [value for value in answer if value is not None] if spec.returns == "many" else [answer]
