"""Async spouts in the driver, in an adapter by which the run's loop calls them like plain ones.

All async spouts of a run share one event loop on a thread of its own. The run's loop never waits for a message: `next`
returns what the source has given meanwhile. It does wait for all other calls to a source, for acks together.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

from tupletree.errors import ConnectorError, EndOfInput, is_outage
from tupletree.ids import MessageId
from tupletree.topology.components import AsyncSpout, Emit, Reject, Spout, TaskContext
from tupletree.topology.splits import AsyncLeaseSpout, Lease, LeaseSpout
from tupletree.tracking.outcomes import Failure, FailureKind

logger = logging.getLogger("tupletree.spark")

END_TIMEOUT_S = 5.0
"""How long a cancelled `next` may take to end."""

Given = Emit[Any] | Reject | Sequence[Emit[Any] | Reject] | None
Call = tuple[Callable[..., Any], tuple[Any, ...]]


class SpoutLoop:
    """The event loop of a run's async spouts. Its thread starts with the first call; `close` ends it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Start the thread. Called by one thread."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, args=(self._loop,), name="tupletree-async", daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, call: Call) -> Any:
        """Call this, await it if it is async, and return its result. Raises what it raises."""
        return self.start(_in_order(deque([call]))).result()

    def close(self) -> None:
        """Cancel what the user's code has started on the loop, and end the thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = self._thread = None
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                loop.run_forever()
            except BaseException:  # the loop raises it, if a task of the user's own raised what would end the program
                logger.exception(
                    "a task that an async spout started raised what would end the program; the loop goes on"
                )
            else:
                return


# More than 12 attributes: one spout between two threads: what each has asked and got.
class AsyncSpoutAdapter(Spout[Any]):
    """An `AsyncSpout` as a `Spout`.

    Args:
        spout: the user's.
        loop: of the run.
        idle_wait_s: pause after a `next` that gave None, but for the first one.

    Attributes:
        delivers_again: whether the source says what it could not be told (`AsyncSpout.not_told`).
        is_asked_first: the source has not answered its first call yet.
        has_answered: it had answered when `next` was called last: without that nothing is known of it.
        on_given: called when an answer came.
        calls: how often the source was asked for messages.
        taken: of so many calls the answers came to the caller, who has dealt with them.
    """

    def __init__(self, spout: AsyncSpout[Any], loop: SpoutLoop, idle_wait_s: float) -> None:
        self.on_given: Callable[[], None] = _no_listener
        self.delivers_again = type(spout).not_told is not AsyncSpout.not_told
        self.is_asked_first = True
        self.has_answered = False
        self.calls = self.taken = 0
        self._spout = spout
        self._loop = loop
        self._idle_wait_s = idle_wait_s
        self._component = ""
        self._asked: Future[tuple[Given, Any]] | None = None
        self._asking: asyncio.Task[Any] | None = None
        self._due: deque[Call] = deque()
        self._flushes = type(spout).flush is not AsyncSpout.flush
        self._has_told = False
        self._was_told_to_retry = False  # since the last `next` was started
        self._position: Any = None
        self._has_position = False

    def open(self, context: TaskContext) -> None:
        self._component = context.component
        self._loop.call((self._spout.open, (context,)))

    def next(self) -> Given:
        """What the source has given meanwhile, or None; `on_given` is called when something comes.

        Pending callbacks of the source are made before it is asked again.
        """
        self.has_answered = False
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            given, self._position = asked.result()
            self.is_asked_first = False
            self.has_answered = True
            if given is _END and not self._was_told_to_retry:  # else it is asked again: it may have this to emit
                raise EndOfInput
            if given is not _END and given is not None:
                return given
        if self._asked is None:
            self.flush()
            self.snapshot()
            self._was_told_to_retry = False
            self._count_call()
            self._asked = self._loop.start(self._ask())
            self._asked.add_done_callback(lambda _: self.on_given())
        return None

    def _count_call(self) -> None:
        """Who asks again has dealt with all that was given before."""
        self.taken = self.calls
        self.calls += 1

    def ack(self, message_id: MessageId) -> None:
        """See `AsyncSpout.ack`; `flush` makes the call."""
        self._has_told = True
        self._due.append((self._spout.ack, (message_id,)))

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        """See `AsyncSpout.fail`; the same for this one."""
        self._has_told = True
        self._was_told_to_retry = self._was_told_to_retry or not failure.permanent
        self._due.append((self._spout.fail, (message_id, failure)))

    def flush(self) -> None:
        """Return when all pending callbacks are made, and durable. Raises what one raises.

        Called again after an outage, it makes what is left.
        """
        if self._has_told and self._flushes:
            self._due.append((self._spout.flush, ()))
        self._has_told = False
        if self._due:
            self._loop.start(_in_order(self._due)).result()

    def not_told(self) -> Collection[MessageId]:
        """See `AsyncSpout.not_told`."""
        not_told: Collection[MessageId] = self._loop.call((self._spout.not_told, ()))
        return not_told

    def activate(self) -> None:
        self._due.append((self._spout.activate, ()))
        self.flush()

    def deactivate(self) -> None:
        self._due.append((self._spout.deactivate, ()))
        self.flush()

    def snapshot(self) -> Any:
        """The position after what `next` has returned: what waits here counts as not given."""
        if not self._has_position:
            self._position, self._has_position = self._loop.call((self._spout.snapshot, ())), True
        return self._position

    def restore(self, position: Any) -> None:
        self._loop.call((self._spout.restore, (position,)))
        self._position, self._has_position = position, True

    def close(self) -> None:
        """See `AsyncSpout.close`: a `next` that waits is cancelled before; what it gives all the same is failed."""
        try:
            if self._asked is not None:
                self._give_back(self._loop.start(self._stop_asking(self._asked)).result())
            self.flush()
        finally:
            self._loop.call((self._spout.close, ()))

    async def _ask(self) -> tuple[Any, Any]:
        self._asking = asyncio.current_task()
        try:
            given: Any = await self._spout.next()
        except EndOfInput:
            given = _END
        except (SystemExit, KeyboardInterrupt) as error:  # on the event loop these would end its thread and not the run
            raise RuntimeError(f"`next` raised {type(error).__name__}") from error
        position = self._spout.snapshot()
        if given is None and not self.is_asked_first:
            await asyncio.sleep(self._idle_wait_s)
        return given, position

    async def _stop_asking(self, asked: Future[tuple[Given, Any]]) -> Given:
        if self._asking is not None:
            self._asking.cancel()
            _, late = await asyncio.wait([self._asking], timeout=END_TIMEOUT_S)
            if late:
                logger.error(
                    "spout %s: `next` has not ended %g s after it was cancelled, and is left behind",
                    self._component,
                    END_TIMEOUT_S,
                )
        if self._asking is None or not self._asking.done() or self._asking.cancelled():
            asked.cancel()
            return None
        error = self._asking.exception()
        if error is not None:
            logger.warning("spout %s: `next` failed while the run ended: %r", self._component, error)
            return None
        given: Given = self._asking.result()[0]
        return None if given is _END else given

    def _give_back(self, given: Given) -> None:
        batch = given if isinstance(given, Sequence) else [given]
        stopped = Failure(
            kind=FailureKind.STOPPED, component=self._component, error="the topology stopped before it accepted this"
        )
        for one in batch:
            if one is not None and one.message_id is not None:
                self.fail(one.message_id, stopped)


class LeaseSpoutAdapter(AsyncSpoutAdapter, LeaseSpout[Any]):
    """An `AsyncLeaseSpout` as a `LeaseSpout`. Its calls are made in order, too; `next` is never called."""

    def __init__(self, spout: AsyncLeaseSpout[Any], loop: SpoutLoop, idle_wait_s: float) -> None:
        super().__init__(spout, loop, idle_wait_s)
        self._leases = spout

    def next(self) -> Any:
        return LeaseSpout.next(self)

    def plan(self, max_messages: int) -> int:
        self.flush()
        self.is_asked_first = False
        self._count_call()
        planned: int = self._loop.call((self._leases.plan, (max_messages,)))
        return planned

    def accept(self, leases: Sequence[Lease]) -> Sequence[int]:
        places: Sequence[int] = self._loop.call((self._leases.accept, (leases,)))
        return places

    def take(self, max_messages: int, max_bytes: int) -> Sequence[tuple[Lease, bytes]]:
        return self._leases.take(max_messages, max_bytes)

    def read(self, taken: bytes) -> Any:
        return self._leases.read(taken)


_END: Any = object()


def _no_listener() -> None:
    """No thread waits for this source."""


async def _in_order(calls: deque[Call]) -> Any:
    """Make these calls and take them out, but for one that meets an outage; the last result."""
    result = None
    while calls:
        function, arguments = calls.popleft()
        try:
            result = function(*arguments)
            if inspect.isawaitable(result):
                result = await _of(result)
        except (SystemExit, KeyboardInterrupt) as error:  # as in `_ask`
            raise RuntimeError(f"`{function.__name__}` raised {type(error).__name__}") from error
        except ConnectorError as error:
            if is_outage(error):
                calls.appendleft((function, arguments))
            raise
    return result


async def _of(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for one in others:
        one.cancel()
    if others:
        await asyncio.wait(others, timeout=END_TIMEOUT_S)
    await asyncio.get_running_loop().shutdown_asyncgens()
