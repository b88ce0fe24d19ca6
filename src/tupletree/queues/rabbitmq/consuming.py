"""Taking messages of one queue off a RabbitMQ server, and their leases.

Owns which deliveries of a channel are out and until when. Everything here runs on the connection's event loop.

AMQP pushes: it has no request for n messages. For each call a consumer is made whose window is what is asked for, and
cancelled when they are here; so a connection holds what it leased, and in three cases more, for its next lease: what
exceeded `max_bytes`, what was under way when the consumer was cancelled, and what a caller that is quick has sent
ahead. A delivery that nobody acked goes back to the queue when its lease is over, by this connection, or when the
channel closes, by the server.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from tupletree.queues.rabbitmq.channels import Requests

UNKNOWN_WINDOW = 32
"""Messages asked for at first, while nobody knows how large they are."""

WIDEST_WINDOW = 10_000

AHEAD, LEAST_AHEAD, QUICK_S = 4, 50, 0.25
"""Who leases this many, finds them, and comes again so soon, has as many batches sent at a time: a consumer costs the
server two writes to its disk."""

KEPT_S = 2.0
"""How long what was sent beyond a lease waits here for the next one."""

GRACE_S = 0.005
"""How long deliveries are waited for before the queue is asked whether there are more."""


class Lease(msgspec.Struct, gc=False):
    """A delivery that is not settled.

    Attributes:
        tag: of the delivery, on its channel.
        body, properties: as they came.
        came_s: when, by the connection's clock.
        ends_s: until when it is leased, by the same clock.
        is_given: to a caller; others wait for the next lease.
        is_settling: it is out until that is done, however long ago it ended.
    """

    tag: int
    body: bytes
    properties: Any
    came_s: float
    ends_s: float
    is_given: bool = False
    is_settling: bool = False


# More than 12 attributes: one channel: its consumers, what is out by it, and what the next lease must know.
class QueueChannel:
    """The channel that leases messages of one queue.

    Args:
        requests: the channel.
        queue: the server's name of the queue.
        clock: monotonic seconds.
        longest_s: that a lease may last, however often it is extended.
        watch: is told until when something is held, so that `end_leases` is called then.
    """

    def __init__(
        self,
        requests: Requests,
        queue: str,
        clock: Callable[[], float],
        longest_s: float,
        watch: Callable[[float], None],
    ) -> None:
        self.requests = requests
        self.number = int(requests.channel.channel_number)
        self.queue = queue
        self._clock = clock
        self._longest_s = longest_s
        self._watch = watch
        self._names = itertools.count()
        self._arriving: dict[str, _Arrivals] = {}
        self._unsettled: dict[int, Lease] = {}  # in the order of their tags
        self._spare: deque[Lease] = deque()
        self._lease_s = 0.0
        self._quick_until_s = 0.0
        self._window = 0
        self._largest = 0
        self._is_idle = False
        self._has_given_back = False  # since a consumer was made
        # pika gives back by itself what comes after a consumer is cancelled, and that counts as a delivery; and it
        # leaves out what comes after the answer to that. Both are taken here.
        requests.channel._on_deliver = self._hear  # noqa: SLF001 - pika has no public word for it
        # The queue is gone, or has no leader: who takes from it next is told which.
        requests.channel.add_on_cancel_callback(lambda _: requests.close())
        requests.on_end(self._hear_end)

    @property
    def spare(self) -> int:
        """How many messages are here for the next lease."""
        return len(self._spare)

    # --- taking -----------------------------------------------------------------------------------------------

    async def take(self, limit: int, max_bytes: int, lease_s: float, wait_s: float = 0.0) -> list[Lease]:
        """Lease up to `limit` messages; wait so long for the first."""
        self._lease_s = lease_s
        ahead = AHEAD if limit >= LEAST_AHEAD and time.monotonic() < self._quick_until_s else 1
        taken = self._take_spare(limit, max_bytes, lease_s)
        room = max_bytes - sum(len(one.body) for one in taken)
        is_empty = False
        while len(taken) < limit and room > 0 and not is_empty:
            wanted = limit - len(taken)
            window = self._window_for(wanted * ahead, room)
            if not taken and wait_s > 0:
                window = 1
            elif await self._is_known_empty():
                break
            await self._consume(window, 0.0 if taken else wait_s)
            more = self._take_spare(limit - len(taken), room, lease_s, is_first=not taken)
            is_empty = len(more) < min(window, wanted)
            taken += more
            room -= sum(len(one.body) for one in more)
        self._is_idle = not taken
        self._quick_until_s = time.monotonic() + QUICK_S if len(taken) == limit else 0.0
        self._keep_spare()
        return taken

    async def _is_known_empty(self) -> bool:
        """A look costs the server less than a consumer does; what was just given back here it would not see yet."""
        if not self._is_idle:
            return False
        answer = await self.requests.send("queue_declare", self.queue, passive=True)
        return int(answer.message_count) == 0

    def _window_for(self, limit: int, room: int) -> int:
        if not self._largest:
            return min(limit, UNKNOWN_WINDOW)
        return max(1, min(limit, room // self._largest, WIDEST_WINDOW))

    async def _consume(self, window: int, wait_s: float) -> None:
        """Have up to `window` messages sent: afterwards they are among the spare ones."""
        self._has_given_back = False
        if window != self._window:
            self._window = window
            qos = self.requests.send("basic_qos", prefetch_count=window)
            qos.add_done_callback(_heard)
        name = f"tupletree-{next(self._names)}"
        arrivals = self._arriving[name] = _Arrivals(self.requests.future(), window)
        arrivals.all_here.add_done_callback(_heard)
        try:
            await self.requests.send("basic_consume", self.queue, _never, consumer_tag=name)
            if not arrivals.count and wait_s > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(arrivals.all_here), wait_s)
            if arrivals.count < window:
                await asyncio.wait([arrivals.all_here], timeout=GRACE_S if arrivals.count or wait_s <= 0 else 0.0)
            if arrivals.count < window:
                # The queue answers after it has sent what there is. Cancelled earlier, the server would give that back.
                counted = self.requests.send("queue_declare", self.queue, passive=True)
                counted.add_done_callback(_heard)
                await asyncio.wait([counted, arrivals.all_here], return_when=asyncio.FIRST_COMPLETED)
        finally:
            cancelled = self.requests.send("basic_cancel", name)
            cancelled.add_done_callback(_heard)
            cancelled.add_done_callback(lambda _: self._arriving.pop(name, None))
        if arrivals.count < window:
            await cancelled
        sizes = arrivals.sizes
        self._largest = max(1, max(sizes, default=self._largest))

    async def count_all(self) -> None:
        """From now on the server counts what was given back here.

        Counting does not wait for what was said before; a consumer does. What it gets is for the next lease.
        """
        if self._has_given_back:
            await self._consume(1, 0.0)
            self._keep_spare()

    def _take_spare(self, limit: int, max_bytes: int, lease_s: float, *, is_first: bool = True) -> list[Lease]:
        taken: list[Lease] = []
        now_s = self._clock()
        while self._spare and len(taken) < limit:
            one = self._spare[0]
            if (taken or not is_first) and len(one.body) > max_bytes:
                break
            max_bytes -= len(one.body)
            self._spare.popleft()
            if one.tag not in self._unsettled:
                continue  # it went back meanwhile
            one.is_given = True
            one.ends_s = min(now_s + lease_s, one.came_s + self._longest_s)
            taken.append(one)
        return taken

    def _keep_spare(self) -> None:
        """What nobody leased goes back soon."""
        ends_s = self._clock() + min(self._lease_s, KEPT_S)
        for one in self._spare:
            one.ends_s = ends_s
        if self._spare:
            self._watch(ends_s)

    def _hear(self, frame: Any, header: Any, body: bytes) -> None:
        method = frame.method
        now_s = self._clock()
        ends_s = now_s + self._lease_s
        tag = method.delivery_tag
        lease = Lease(tag, body, header.properties, now_s, ends_s)
        self._unsettled[tag] = lease
        self._spare.append(lease)
        self._watch(ends_s)
        arrivals = self._arriving.get(method.consumer_tag)
        if arrivals is not None:
            arrivals.add(len(body))
        else:
            self._keep_spare()

    def _hear_end(self, _: BaseException) -> None:
        self._unsettled.clear()
        self._spare.clear()

    # --- settling ---------------------------------------------------------------------------------------------

    def held(self, tag: int) -> Lease | None:
        """The lease, if a caller holds it still, and nobody settles it."""
        lease = self._unsettled.get(tag)
        if lease is None or not lease.is_given or lease.is_settling:
            return None
        return lease if lease.ends_s > self._clock() else None

    def is_out(self, lease: Lease) -> bool:
        """Whether its message is not settled, and not with the server again."""
        return lease.tag in self._unsettled

    @contextmanager
    def settling(self, leases: Sequence[Lease]) -> Iterator[None]:
        """Keep them from ending meanwhile."""
        for one in leases:
            one.is_settling = True
        try:
            yield
        finally:
            for one in leases:
                one.is_settling = False
                if one.tag in self._unsettled:
                    self._watch(one.ends_s)

    def extend(self, lease: Lease, lease_s: float) -> None:
        """Let it last so long from now."""
        lease.ends_s = min(self._clock() + lease_s, lease.came_s + self._longest_s)

    def ack(self, tags: Iterable[int]) -> set[int]:
        """Their messages are done. Returns the tags that are not out any more: the channel closed."""
        return self._settle(tags, lambda tag, multiple: self.requests.tell("basic_ack", tag, multiple=multiple))

    def give_back(self, tags: Iterable[int]) -> set[int]:
        """Their messages are ready again. Returns the tags that were not out any more."""
        self._is_idle, self._has_given_back = False, True
        return self._settle(
            tags, lambda tag, multiple: self.requests.tell("basic_nack", tag, multiple=multiple, requeue=True)
        )

    def give_back_all(self) -> None:
        """What is not settled is ready again."""
        if self._unsettled:
            self.give_back([*self._unsettled])

    async def told(self) -> None:
        """When the server has heard all of this."""
        await self.requests.send("basic_qos", prefetch_count=self._window or 1)

    def _settle(self, tags: Iterable[int], tell: Callable[[int, bool], None]) -> set[int]:
        asked = {*tags}
        wanted = asked & self._unsettled.keys()
        last = 0
        for tag in self._unsettled:  # the first ones by one frame
            if tag not in wanted:
                break
            last = tag
        for tag in sorted(wanted):
            del self._unsettled[tag]
            if tag > last:
                tell(tag, False)
        if last:
            tell(last, True)
        return asked - wanted

    def end_leases(self) -> float:
        """Give back what is no longer leased. Returns when the next lease ends, by the clock; inf if there is none."""
        now_s = self._clock()
        over = [one.tag for one in self._unsettled.values() if one.ends_s <= now_s and not one.is_settling]
        if over:
            self.give_back(over)
        return min([one.ends_s for one in self._unsettled.values() if not one.is_settling], default=float("inf"))


class _Arrivals:
    """What came for one consumer."""

    def __init__(self, all_here: asyncio.Future[Any], expected: int) -> None:
        self.all_here = all_here
        self.sizes: list[int] = []
        self._expected = expected

    @property
    def count(self) -> int:
        return len(self.sizes)

    def add(self, size: int) -> None:
        self.sizes.append(size)
        if len(self.sizes) >= self._expected and not self.all_here.done():
            self.all_here.set_result(None)


def _never(*_: Any) -> None:
    """Deliveries come by `QueueChannel._hear`."""


def _heard(answer: asyncio.Future[Any]) -> None:
    """What failed here is told by the request that is awaited, which is of the same channel."""
    if not answer.cancelled():
        answer.exception()
