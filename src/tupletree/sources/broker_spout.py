"""A queue as a source: messages are leased, and acked one by one when their trees are complete.

Owns which deliveries are out, their leases, and what is still to be told to the broker. Refuses to decide what became
of a message: `ack` and `fail` say so.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from tupletree.errors import ConfigError, ConnectorError, EndOfInput
from tupletree.ids import MessageId
from tupletree.queues.access import shut_out_is_outage
from tupletree.queues.bodies import QueueMessage, check_body, decoder_of
from tupletree.queues.contract import LeaseLostError
from tupletree.queues.messages import Delivery, Failure, Letter, Message
from tupletree.queues.named import Queue
from tupletree.queues.registry import check_url, open_queue
from tupletree.topology.components import AsyncSpout, Emit, Reject, TaskContext
from tupletree.tracking.outcomes import Failure as TupleFailure
from tupletree.tracking.outcomes import FailureKind

T = TypeVar("T")
R = TypeVar("R")

WAIT_S = 0.25
"""How long a lease waits for a first message; a stop waits for it."""

AHEAD, LEAST_AHEAD, QUICK_S = 3, 50, 0.25
"""A run that works batches of so many messages so soon has as many batches leased ahead, not one, and gets them
together: what a batch costs from thread to thread is shared by more messages. It does not wait for messages that the
broker does not have."""

KEEP_PART = 1 / 3
"""Of a lease: how often what is out is extended."""

LONGEST_PAUSE_S = 60.0

ROUNDED_UP = 4 / 3
"""Of a delay: as long a broker may make it."""

RETURN_S = 10.0
"""How long after its delay a message that failed is expected, where the broker cannot say that it waits."""

MAX_SETTLED = 100_000
"""Outcomes that are kept for messages whose delivery is not at hand, and acks that the broker may forget; the oldest is
forgotten beyond that."""

TOGETHER_S = 0.01
"""How long messages that are leased wait for a lease that goes on, to be worked together with what it brings."""

SAME_S = 0.001
"""Messages of one id whose times of publishing are nearer to each other are the same."""

OTHER_S = 1.0
"""Those whose times are farther from each other, and which are counted anew as well, are not: see `_is_other`."""

LOOKED_AT, MOST_LOOKED_AT = 1_000, 10_000
"""Dead letters that are looked at: in one call, and at the most."""

NO_ATTEMPT = frozenset({FailureKind.STOPPED, FailureKind.LOST})

logger = logging.getLogger("tupletree.queues")


# More than 12 attributes: one lease loop: its settings, what is leased, and what waits to be told.
class BrokerSpout(AsyncSpout[T]):
    """See `queue`."""

    def __init__(
        self,
        url: str,
        message_type: type[T],
        body: str | Callable[[Message], T],
        *,
        follow: bool,
        prefetch: int,
        lease_s: float,
        max_deliveries: int,
        ordered: bool,
    ) -> None:
        self.message_type = message_type
        self.shown = check_url(url).shown
        check_body(body, self.shown)
        if prefetch < 1 or max_deliveries < 1 or not 1 <= lease_s < 1e6:
            raise ConfigError(
                "these numbers of a queue's spout cannot be",
                where=self.shown,
                got=f"prefetch={prefetch}, max_deliveries={max_deliveries}, lease_s={lease_s}",
                expected="at least 1 each",
            )
        self._url = url
        self._body = body
        self._follow = follow
        self._prefetch = prefetch
        self._lease_s = lease_s
        self._max_deliveries = max_deliveries
        self._ordered = ordered
        self._queue: Queue | None = None
        self._leasing: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"queue({self.shown!r})"

    # --- life -------------------------------------------------------------------------------------------------

    async def open(self, context: TaskContext) -> None:
        """Connect, and keep leases alive from now on."""
        # One thread may wait in a lease while the other one settles.
        self._threads = ThreadPoolExecutor(2, f"tupletree-queue-{context.component}")
        self._component = context.component
        self._telling = asyncio.Lock()
        self._leased: deque[Delivery] = deque()  # and not given yet
        self._kept_s = 0.0  # when the leases of what is not given yet began, or were extended
        self._refused: set[str] = set()  # handles of these whose leases had ended then
        self._awaited: asyncio.Future[None] | None = None  # by a `next`: that a lease has returned
        self._is_full = self._is_quick = False  # the last lease; this run, see `QUICK_S`
        self._given_s = -math.inf
        self._out: dict[str, Delivery] = {}
        self._acks: dict[str, Delivery] = {}  # by message, until `flush`
        self._failures: dict[str, Failure] = {}
        self._letters: dict[str, tuple[Delivery, str]] = {}  # with the reasons
        self._settled: OrderedDict[str, _Settled] = OrderedDict()  # see `_remember`
        self._unsure: set[str] = set()  # of these: whether the broker has them still
        self._acked: OrderedDict[str, float] = OrderedDict()  # when that had been published, see `_remember_ack`
        self._coming: dict[str, float] = {}  # given back, in no number of the broker's → until when it is expected
        self._decode = self._decoder()
        try:
            connecting = partial(open_queue, self._url, ordered=self._ordered)
            self._queue = await asyncio.get_running_loop().run_in_executor(self._threads, connecting)
        except BaseException:
            self._threads.shutdown(wait=False)
            raise
        self._can = self._queue.broker.capabilities
        if self._can.extend:
            self._keeper = asyncio.get_running_loop().create_task(self._keep(self._queue))

    async def close(self) -> None:
        """Tell what is left to be told, give back what is out, and disconnect."""
        queue, self._queue = self._queue, None
        if queue is None:
            return
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        if self._leasing is not None:
            await asyncio.wait([self._leasing])
        self._drop_late()
        for delivery in self._leased:
            if not self._is_ended(delivery):
                self._out[delivery.message.id] = delivery
        self._leasing = None
        for message_id, delivery in self._out.items():
            self._failures[message_id] = self._given_back(delivery)
        self._out.clear()
        try:
            await self._tell_broker(queue)
        except ConnectorError as error:
            logger.warning("%s: what is out comes back when its leases end: %s", self._component, error.what)
        finally:
            try:
                await self._in_thread(queue.close)
            finally:
                self._threads.shutdown(wait=False)

    # --- messages ---------------------------------------------------------------------------------------------

    async def next(self) -> Sequence[Emit[T] | Reject] | None:
        """Lease messages, and wait a moment for the first. While a full batch is worked others are leased."""
        queue = self._connected()
        since_s = asyncio.get_running_loop().time() - self._given_s
        self._is_quick = self._prefetch >= LEAST_AHEAD and since_s < QUICK_S
        if not self._leased or self._leasing is not None:
            await self._lease_next(queue)
        self._drop_late()
        has_leased = bool(self._leased)
        messages: list[Emit[T] | Reject] = []
        while self._leased:
            try:
                emit = self._emit(self._leased[0])
            except ConnectorError:
                if not messages:
                    raise
                break  # the same one is tried again by the next call
            self._leased.popleft()
            if emit is not None:
                messages.append(emit)
        if self._is_full and self._leasing is None:
            self._lease_ahead(queue)
        if messages:
            self._given_s = asyncio.get_running_loop().time()
            return messages
        if has_leased:
            await self.flush()
        elif not self._follow and await self._is_over(queue):
            raise EndOfInput
        return None

    async def _is_over(self, queue: Queue) -> bool:
        # Asked twice: a failure may be told while the broker counts.
        return (
            not self._is_awaited() and await self._in_thread(partial(self._is_empty, queue)) and not self._is_awaited()
        )

    def _is_awaited(self) -> bool:
        """Whether a message that went back from here, or is about to, is still to be delivered again."""
        now_s = asyncio.get_running_loop().time()
        self._coming = {message_id: until_s for message_id, until_s in self._coming.items() if until_s > now_s}
        return bool(self._failures or self._coming)

    def _await(self, message_id: str, delay_s: float) -> None:
        if not self._can.counts_open:
            until_s = asyncio.get_running_loop().time() + delay_s * ROUNDED_UP + RETURN_S
            self._coming[message_id] = until_s

    async def _lease_next(self, queue: Queue) -> None:
        """Wait for the lease that goes on, or a new one; no longer than a moment where there are messages.

        If this is cancelled, `close` gives back what comes.
        """
        if self._leasing is None:
            self._lease_ahead(queue)
        leasing = self._leasing
        assert leasing is not None
        while not leasing.done() and not self._leased:
            self._awaited = asyncio.get_running_loop().create_future()
            await self._awaited
        if not leasing.done():
            await asyncio.wait([leasing], timeout=TOGETHER_S)
        if not self._leased and leasing.done():
            self._leasing = None
            leasing.result()  # raises what an outage raised

    def _drop_late(self) -> None:
        """Give nothing whose lease ended while it waited here: the broker gives it again, to another consumer maybe.

        It is not given back: without fencing, the handle of an old lease may settle it for its new holder.
        """
        is_late = asyncio.get_running_loop().time() - self._kept_s >= self._lease_s
        if not is_late and not self._refused:
            return
        held: deque[Delivery] = deque()
        for delivery in self._leased:
            message_id = delivery.message.id
            is_dropped = is_late or delivery.handle in self._refused
            if not is_dropped or message_id in self._out or self._is_ended(delivery):
                held.append(delivery)
            else:
                self._await(message_id, 0.0)
        self._leased = held
        self._refused.clear()

    def _lease_ahead(self, queue: Queue) -> None:
        self._leasing = asyncio.get_running_loop().create_task(self._lease_batches(queue))
        self._leasing.add_done_callback(_note_outage)

    async def _lease_batches(self, queue: Queue) -> None:
        """Lease a batch, and others if they are taken quickly. A thread that leases does so to its end."""
        try:
            is_wanted = True
            while is_wanted:
                wait_s = WAIT_S if self._follow and not self._leased else 0.0
                began_s = asyncio.get_running_loop().time()
                deliveries = await self._in_thread(
                    partial(queue.lease, self._prefetch, lease_s=self._lease_s, wait_s=wait_s)
                )
                self._kept_s = min(self._kept_s, began_s) if self._leased else began_s
                self._leased += deliveries
                self._wake()
                self._is_full = len(deliveries) >= self._prefetch
                is_wanted = self._is_full and self._is_quick and len(self._leased) < AHEAD * self._prefetch
                is_wanted = is_wanted and self._queue is queue
            self._leasing = None
        finally:
            self._wake()

    def _wake(self) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    def _connected(self) -> Queue:
        if self._queue is None:
            raise ConnectorError(f"{self.shown} is not connected")
        return self._queue

    def _is_empty(self, queue: Queue) -> bool:
        """Whether nothing will be delivered any more, but for what is out here."""
        depth = queue.depth()
        if not self._can.counts_open:  # what is out, here or elsewhere, is in no number
            return depth.open == 0
        if "leased" not in self._can.states:  # what is out here is among the others, until its ack has arrived
            return depth.open <= len(self._out)
        here = len(self._out) + len(self._failures) + len(self._acks) + len(self._letters)
        return depth.ready + depth.delayed == 0 and depth.leased <= here

    def _decoder(self) -> Callable[[Message], Any] | None:
        if callable(self._body):
            return self._body
        return None if self.message_type is cast(Any, QueueMessage) else decoder_of(self._body, self.message_type)

    def _emit(self, delivery: Delivery) -> Emit[T] | Reject | None:
        if not self._is_new(delivery):
            return None
        try:
            value = self._value_of(delivery)
        except ConnectorError:
            del self._out[delivery.message.id]
            raise
        return value if isinstance(value, Reject) else Emit(value, delivery.message.id)

    def _is_new(self, delivery: Delivery) -> bool:
        """Whether a message is to be worked, which is out from now on."""
        message = delivery.message
        if self._is_ended(delivery):
            return False
        is_out = message.id in self._out
        self._out[message.id] = delivery
        return not is_out  # else its lease ended too early: the attempt that is worked counts, with the new handle

    def _value_of(self, delivery: Delivery) -> T | Reject:
        """The value of a delivery. Raises ConnectorError if what makes it is not available."""
        message = delivery.message
        if delivery.deliveries > self._max_deliveries:
            reason = f"delivered {delivery.deliveries} times without an end: processes died of it, or were too slow"
            return Reject(message.body, message.id, reason)
        if self._decode is None:
            value: Any = QueueMessage(
                id=message.id,
                body=message.body,
                content_type=message.content_type,
                headers=dict(message.headers),
                key=message.key,
                deliveries=delivery.deliveries,
            )
            return cast("T", value)
        try:
            return cast("T", self._decode(message))
        except ConnectorError:
            raise
        except Exception as error:  # noqa: BLE001 - a body that does not fit must not stop the others
            return Reject(message.body, message.id, f"{type(error).__name__}: {error}")

    def _is_ended(self, delivery: Delivery) -> bool:
        """Whether this message is over. Its lease ended before the broker was told so: it is told with the new one."""
        message_id = delivery.message.id
        is_told = message_id in self._acks or message_id in self._acked
        if not is_told and not (self._failures or self._coming or self._letters or self._settled):
            return False  # as most are
        self._failures.pop(message_id, None)  # it is here again already
        self._coming.pop(message_id, None)
        if _is_other(self._known(message_id), delivery):
            for table in (self._acks, self._letters, self._settled):
                table.pop(message_id, None)
        letter = self._letters.get(message_id)
        if message_id in self._acks:
            self._acks[message_id] = delivery
        elif letter is not None:
            self._letters[message_id] = delivery, letter[1]
        elif message_id in self._settled:
            self._tell(delivery, self._settled.pop(message_id).failure)
        elif abs(self._acked.get(message_id, -math.inf) - delivery.published_s) <= SAME_S:
            self._tell(delivery, None)
        else:
            return False
        return True

    def _known(self, message_id: str) -> Delivery | _Settled | None:
        """What is known of a message that is over, and of which the broker is to be told."""
        letter = self._letters.get(message_id)
        return self._acks.get(message_id) or (letter[0] if letter else self._settled.get(message_id))

    # --- outcomes ---------------------------------------------------------------------------------------------

    def ack(self, message_id: MessageId) -> None:
        """The message is done: `flush` acks it at the broker."""
        delivery = self._out.get(str(message_id))
        if delivery is None:
            self._end(str(message_id), None)
        else:
            del self._out[delivery.message.id]
            self._acks[delivery.message.id] = delivery
            self._remember_ack(delivery.message.id, delivery.published_s)

    def fail(self, message_id: MessageId, failure: TupleFailure) -> None:
        """The message is dead, or goes back to the queue."""
        self._end(str(message_id), failure)

    def _end(self, message_id: str, failure: TupleFailure | None) -> None:
        delivery = self._out.pop(message_id, None)
        if delivery is not None:
            self._tell(delivery, failure)
        elif failure is None or failure.permanent:
            self._coming.pop(message_id, None)
            self._remember(message_id, failure)
        else:  # an earlier process gave it back, with a delay that is not known here, or died with its lease
            self._await(message_id, LONGEST_PAUSE_S)

    def _remember(self, message_id: str, failure: TupleFailure | None, delivery: Delivery | None = None) -> None:
        """What is told when the message is delivered again, if the broker has it still: `flush` asks."""
        known = (delivery.deliveries, delivery.published_s) if delivery is not None else ()
        _keep_newest(self._settled, message_id, _Settled(failure, *known))
        self._unsure.add(message_id)

    def _remember_ack(self, message_id: str, published_s: float) -> None:
        """A killed server may forget the ack, also of a message that is dead, and deliver it again.

        One that is published under its id later, or is moved back to work, has another time of publishing. Without any
        none can be told from it: it had better be worked twice than not at all.
        """
        if published_s and not self._can.durable_acks:
            _keep_newest(self._acked, message_id, published_s)

    def _tell(self, delivery: Delivery, failure: TupleFailure | None) -> None:
        message_id = delivery.message.id
        if failure is None:
            self._acks[message_id] = delivery
            self._remember_ack(message_id, delivery.published_s)
        elif failure.permanent and failure.kind not in NO_ATTEMPT:
            self._letters[message_id] = delivery, _text_of(failure)
        elif failure.kind in NO_ATTEMPT:
            self._failures[message_id] = self._given_back(delivery)
        else:
            delay_s = min(LONGEST_PAUSE_S, 2.0 ** min(delivery.deliveries - 1, 6)) if self._can.retry_delay else 0.0
            self._failures[message_id] = Failure(handle=delivery.handle, delay_s=delay_s, reason=_text_of(failure))

    def _given_back(self, delivery: Delivery) -> Failure:
        return Failure(handle=delivery.handle, reason="given back", counts=not self._can.uncounted)

    async def flush(self) -> None:
        """Tell the broker what became of messages, in one call for each kind of outcome."""
        if self._acks or self._failures or self._letters or self._unsure:
            await self._tell_broker(self._connected())

    def not_told(self) -> Collection[MessageId]:
        """See `AsyncSpout.not_told`: those whose lease was over, until they are delivered again and told."""
        return {*self._settled, *self._acks, *self._letters}

    async def _tell_broker(self, queue: Queue) -> None:
        # One at a time: what is told twice is refused. What is told is taken out only then; others are added meanwhile.
        async with self._telling:
            if acks := dict(self._acks):
                refused = set(await self._in_thread(partial(queue.ack, [one.handle for one in acks.values()])))
                lost = {id_ for id_, delivery in acks.items() if delivery.handle in refused}
                for message_id in _told(self._acks, acks, lost):
                    self._remember(message_id, None, acks[message_id])
            if letters := dict(self._letters):
                if self._can.dead_letters:
                    written = [Letter(handle=one.handle, reason=reason) for one, reason in letters.values()]
                    refused = set(await self._in_thread(partial(queue.dead_letter, written)))
                else:  # they are dead letters of the run
                    handles = [one.handle for one, _ in letters.values()]
                    refused = set(await self._in_thread(partial(queue.ack, handles)))
                lost = {id_ for id_, (delivery, _) in letters.items() if delivery.handle in refused}
                for message_id in letters.keys() - lost:
                    self._remember_ack(message_id, letters[message_id][0].published_s)
                for message_id in _told(self._letters, letters, lost):
                    delivery, reason = letters[message_id]
                    self._remember(message_id, _dead(reason, self._component), delivery)
            if failures := dict(self._failures):
                await self._in_thread(partial(queue.fail, [*failures.values()]))
                for message_id in _told(self._failures, failures, {*failures}):
                    self._await(message_id, failures[message_id].delay_s)
            if self._unsure:
                await self._forget_others(queue)

    async def _forget_others(self, queue: Queue) -> None:
        """Forget what is over and will not be delivered again: another consumer has settled it, or it was deleted.

        Else a message that is published under its id later would be acked, and not worked. A dead letter may have been
        told though the call raised, or a process ended: were it told again, one that is moved back would not be worked.
        """
        unsure = [*self._unsure]
        held = {*unsure}
        if self._can.find:
            held = await self._in_thread(partial(queue.find, unsure))
        died = {one for one in held if (known := self._settled.get(one)) is not None and known.failure is not None}
        if died and "dead" in self._can.peek:
            dead = await self._in_thread(partial(_dead_among, queue, died))
            held -= dead
            for message_id in dead:
                self._remember_ack(message_id, self._settled[message_id].published_s)
        self._unsure.difference_update(unsure)
        for message_id in {*unsure} - held:
            self._settled.pop(message_id, None)

    # --- leases -----------------------------------------------------------------------------------------------

    async def _keep(self, queue: Queue) -> None:
        """Extend the leases of what is out."""
        while True:
            await asyncio.sleep(self._lease_s * KEEP_PART)
            waiting = {delivery.handle for delivery in self._leased}
            handles = [*(delivery.handle for delivery in self._out.values()), *waiting]
            handles += [delivery.handle for delivery in self._acks.values()]
            handles += [delivery.handle for delivery, _ in self._letters.values()]
            if not handles:
                continue
            began_s = asyncio.get_running_loop().time()
            try:
                refused = await self._in_thread(partial(queue.extend, handles, self._lease_s))
            except (ConnectorError, LeaseLostError) as error:
                logger.warning("%s: leases cannot be extended now: %s", self._component, error.what)
            except Exception:
                # Ended, it would let every lease end.
                logger.exception("%s: leases cannot be extended now", self._component)
            else:
                held = {delivery.handle for delivery in self._out.values()}  # others were acked meanwhile
                self._refused |= waiting.intersection(refused)
                if all(delivery.handle in waiting for delivery in self._leased):  # else a lease came meanwhile
                    self._kept_s = max(self._kept_s, began_s)
                if early := held.intersection(refused):
                    logger.warning("%s: %d leases had ended early", self._component, len(early))

    async def _in_thread(self, call: Callable[[], R]) -> R:
        """Make a call of the broker, which has let this spout connect."""
        with shut_out_is_outage(self._component):
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)


class _Settled(NamedTuple):
    """What became of a message, None if it was acked; and of the delivery that came to it, as far as it is known."""

    failure: TupleFailure | None
    deliveries: int = 0
    published_s: float = 0.0


def _is_other(known: Delivery | _Settled | None, delivery: Delivery) -> bool:
    """Whether what was known by this id is gone, and another message is published under it.

    One that is delivered again is counted on; one that was moved is counted anew, but keeps its time; and all times
    change with a clock that is set.
    """
    if known is None or delivery.deliveries > known.deliveries or not (known.published_s and delivery.published_s):
        return False
    return abs(known.published_s - delivery.published_s) > OTHER_S


def _dead_among(queue: Queue, ids: Collection[str]) -> set[str]:
    """Those of these messages that are dead letters of the queue, among the first `MOST_LOOKED_AT`."""
    found: set[str] = set()
    for after in range(0, MOST_LOOKED_AT, LOOKED_AT):
        letters = queue.peek("dead", LOOKED_AT, after=after)
        found.update(one.message.id for one in letters if one.message.id in ids)
        if len(letters) < LOOKED_AT or len(found) == len(ids):
            break
    return found


def _told(table: dict[str, R], told: dict[str, R], refused: set[str]) -> list[str]:
    """Take out what was told; the refused messages, which are delivered again, to this consumer or another one."""
    lost = []
    for message_id, one in told.items():
        if table.get(message_id) is one:  # else it was delivered again meanwhile, and is told with its new lease
            del table[message_id]
            if message_id in refused:
                lost.append(message_id)
    return lost


def _keep_newest(table: OrderedDict[str, R], message_id: str, one: R) -> None:
    table[message_id] = one
    table.move_to_end(message_id)
    if len(table) > MAX_SETTLED:
        table.popitem(last=False)


def _note_outage(leasing: asyncio.Task[None]) -> None:
    """An outage is raised by the next `next` that finds nothing leased; if there is none, it does not matter."""
    if not leasing.cancelled():
        leasing.exception()


def _text_of(failure: TupleFailure) -> str:
    where = f"{failure.component}: " if failure.component else ""
    kind = failure.error_type or failure.kind.value
    return f"{where}{kind}: {failure.error}" if failure.error else f"{where}{kind}"


def _dead(reason: str, component: str) -> TupleFailure:
    return TupleFailure(kind=FailureKind.ERROR, error=reason, component=component, permanent=True)
