"""A connection to a RabbitMQ server, for callers of any thread.

Owns the event loop and its thread, connecting again, which channels there are, how queues and delays are made at the
server, and what the errors of pika mean.
Refuses to know messages and capabilities: they are in `broker`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from pika import ConnectionParameters, PlainCredentials, SSLOptions
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelClosedByBroker,
    ConnectionClosed,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from tupletree.errors import ConnectorError
from tupletree.queues.contract import RefusedConnectionError, RefusedRequestError, UnknownQueueError
from tupletree.queues.rabbitmq.channels import Confirmed, Requests, answered, opened
from tupletree.queues.rabbitmq.consuming import QueueChannel
from tupletree.queues.rabbitmq.wire import Parcel, delay_name
from tupletree.queues.urls import without_secrets

T = TypeVar("T")

NOT_FOUND, PRECONDITION_FAILED = 404, 406
REFUSALS = frozenset({403, 405, 530})
"""No right to it, locked by another connection, no such virtual host."""

LOGIN_ERRORS = (
    AuthenticationError,
    ProbableAuthenticationError,
    ProbableAccessDeniedError,
    ssl.SSLCertVerificationError,
)

LEAST_VERSION = (3, 10)
"""Since it, quorum queues have times to live, and dead-letter without loss."""

KEEPS_SOON, KEEPING_S = (4, 0), 2.0
"""Before it, the list of quorum queues is written half a second later (github.com/rabbitmq/ra, pull request 443): a
server that was killed came back without its newest queues, and with none of their messages."""

LEAST_PAUSE_S = 0.02
"""Between two looks at which leases are over."""

if (_of_pika := logging.getLogger("pika")).level == logging.NOTSET:
    _of_pika.setLevel(logging.CRITICAL)  # what it reports of an outage comes as an error of ours, once


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server is and who asks.

    Attributes:
        host, port, vhost: of the server.
        where: the URL for errors and logs.
        user, password: the login.
        timeout_s: seconds until a connection, or an answer, is given up.
        heartbeat_s: seconds after whose double the server takes a silent connection for gone.
        tls: whether the connection is encrypted; `ca_file` has certificates to trust.
    """

    host: str
    port: int
    vhost: str
    where: str
    user: str
    password: str
    timeout_s: float = 10.0
    heartbeat_s: float = 30.0
    tls: bool = False
    ca_file: str | None = None


class ServerLink:
    """One connection that is open, or was.

    Attributes:
        name: unlike that of any other; the first part of handles.
        consuming: the server's queue → the channel that leases from it.
        over: it is no longer open.
        blocked: why the server takes no messages now; empty if it does.
    """

    def __init__(self, connection: Any) -> None:
        self.name = secrets.token_hex(6)
        self.connection = connection
        self.consuming: dict[str, QueueChannel] = {}
        self.known: set[str] = set()  # what was declared on this connection
        self.over = asyncio.Event()
        self.blocked = ""
        self.publishing: Confirmed | None = None
        self.control: Requests | None = None
        self.opening = asyncio.Lock()
        self.controlling = asyncio.Lock()
        connection.add_on_connection_blocked_callback(self._hear_blocked)
        connection.add_on_connection_unblocked_callback(self._hear_unblocked)

    def _hear_blocked(self, _: Any, frame: Any) -> None:
        self.blocked = frame.method.reason or "an alarm of memory or disk"

    def _hear_unblocked(self, *_: Any) -> None:
        self.blocked = ""

    def forget(self, queue: str, _: BaseException) -> None:
        """Its channel closed."""
        self.consuming.pop(queue, None)

    @property
    def version(self) -> tuple[int, ...]:
        """Of the server."""
        said = str((self.connection.server_properties or {}).get("version", ""))
        return tuple(int(part) for part in said.split("-", maxsplit=1)[0].split(".") if part.isdecimal())

    async def confirmed(self) -> Confirmed:
        """The channel that publishes."""
        async with self.opening:
            if self.publishing is None or self.publishing.requests.closed is not None:
                self.publishing = await Confirmed.on(await opened(self.connection))
            return self.publishing

    async def request(self, method: str, *arguments: Any, **named: Any) -> Any:
        """A request on a channel of its own, one at a time: the server closes it at an error."""
        async with self.controlling:
            if self.control is None or self.control.closed is not None:
                self.control = Requests(await opened(self.connection))
            return await self.control.send(method, *arguments, **named)


class RabbitClient:
    """Connects when it is first asked, and again with the first call after a connection broke.

    Raises, in every method: ConnectorError, the server cannot be reached or did not answer in time.

    Args:
        server: where it is.
        longest_s: that a lease may last.
    """

    def __init__(self, server: Server, *, longest_s: float) -> None:
        self.server = server
        self.clock = time.monotonic
        self._longest_s = longest_s
        self._link: ServerLink | None = None
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = float("inf")
        self._loop = asyncio.new_event_loop()
        self._connecting = asyncio.Lock()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tupletree-rabbitmq", daemon=True)
        self._thread.start()

    # --- for callers of any thread ----------------------------------------------------------------------------

    def call(self, work: Callable[[ServerLink], Coroutine[Any, Any, T]], *, wait_s: float = 0.0, queue: str = "") -> T:
        """Do this on the event loop, with a connection that is open.

        Args:
            work: what is done.
            wait_s: seconds that it may wait beyond the timeout.
            queue: whose, for the error when the server has none of this name.
        """
        if self._is_closed:
            raise ConnectorError(f"the connection to {self.server.where} was closed")
        return asyncio.run_coroutine_threadsafe(self._checked(work, wait_s, queue), self._loop).result()

    def look_after_leases(self) -> None:
        """Give back what is no longer leased, now; the event loop does so by itself when the time has come."""

        async def look(_: ServerLink) -> None:
            self._end_leases()

        if not self._is_closed and self._link is not None:
            self.call(look)

    def close(self) -> None:
        """Disconnect. Calls that wait raise ConnectorError. Harmless if repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(self.server.timeout_s + 5.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(self.server.timeout_s)
        self._loop.close()

    # --- on the event loop ------------------------------------------------------------------------------------

    async def consuming(self, link: ServerLink, queue: str) -> QueueChannel:
        """The channel that leases from a queue of the server's."""
        async with link.opening:
            channel = link.consuming.get(queue)
            if channel is None:
                requests = Requests(await opened(link.connection))
                channel = link.consuming[queue] = QueueChannel(requests, queue, self.clock, self._longest_s, self.watch)
                requests.on_end(partial(link.forget, queue))
            return channel

    async def publish(self, link: ServerLink, parcels: Sequence[Parcel], queue: str) -> None:
        """Hand over messages for one queue, and wait until the server has all of them."""
        channel = await link.confirmed()
        try:
            lost = await channel.publish(parcels, self.server.timeout_s, self.server.where)
        except TimeoutError:
            if link.blocked:
                raise ConnectorError(f"{self.server.where}: the server takes no messages now: {link.blocked}") from None
            raise
        if lost:
            raise UnknownQueueError.of(queue, self.server.where)

    async def declare_delay(self, link: ServerLink, step_ms: int) -> None:
        """Make the place where messages wait so long for any queue; idempotent.

        Each has its own time to live, so that no message waits behind one with a longer delay. From it they go to the
        queue that their routing key names.
        """
        name = delay_name(step_ms)
        if name in link.known:
            return
        arguments = {
            "x-message-ttl": step_ms,
            "x-dead-letter-exchange": "",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }
        await link.request("exchange_declare", name, "fanout", durable=True)
        is_new = await self.make(link, name, arguments)
        await link.request("queue_bind", name, name)
        await self.keep(is_new=is_new)
        link.known.add(name)

    async def make(self, link: ServerLink, name: str, arguments: dict[str, Any]) -> bool:
        """Make a quorum queue if it is not there; whether it is to be kept (`keep`) before messages are in it."""
        try:
            await link.request("queue_declare", name, passive=True)
        except ChannelClosedByBroker as error:
            if error.reply_code != NOT_FOUND:
                raise
            await link.request("queue_declare", name, durable=True, arguments={"x-queue-type": "quorum", **arguments})
            return link.version < KEEPS_SOON
        return False

    async def keep(self, *, is_new: bool) -> None:
        """Wait until a server that is killed would know its new queue again."""
        if is_new:
            await asyncio.sleep(KEEPING_S)

    def watch(self, ends_s: float) -> None:
        """Leases are to be looked at no later than then, by the clock."""
        if ends_s < self._timer_at_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at_s = ends_s
            self._timer = self._loop.call_later(max(LEAST_PAUSE_S, ends_s - self.clock()), self._end_leases)

    def _end_leases(self) -> None:
        self._timer_at_s, self._timer = float("inf"), None
        if self._link is not None:
            ends = [channel.end_leases() for channel in [*self._link.consuming.values()]]
            if (first := min(ends, default=float("inf"))) < float("inf"):
                self.watch(first)

    async def _checked(self, work: Callable[[ServerLink], Coroutine[Any, Any, T]], wait_s: float, queue: str) -> T:
        link: ServerLink | None = None
        try:
            async with asyncio.timeout(self.server.timeout_s * 2 + wait_s):
                link = await self._connected()
                return await work(link)
        except (AMQPError, AMQPConnectorException, OSError, TimeoutError) as error:
            if self._is_closed:
                raise ConnectorError(f"the connection to {self.server.where} was closed") from error
            raise self._fault(error, queue) from error

    async def _connected(self) -> ServerLink:
        async with self._connecting:
            if self._link is not None and self._link.connection.is_open:
                return self._link
            if self._is_closed:
                raise ConnectorError(f"the connection to {self.server.where} was closed")
            opening: asyncio.Future[Any] = self._loop.create_future()

            def fail(_: Any, error: BaseException) -> None:
                if not opening.done():
                    opening.set_exception(error)

            connection = AsyncioConnection(
                self._parameters(),
                on_open_callback=partial(answered, opening),
                on_open_error_callback=fail,
                on_close_callback=self._hear_end,
                custom_ioloop=self._loop,
            )
            try:
                async with asyncio.timeout(self.server.timeout_s):
                    await opening
            except BaseException:
                with contextlib.suppress(AMQPError):
                    connection.close()
                raise
            link = ServerLink(connection)
            if link.version < LEAST_VERSION:
                connection.close()
                raise RefusedConnectionError(
                    f"{self.server.where} is no server that this broker works with",
                    got=f"version {'.'.join(map(str, link.version)) or 'unknown'}",
                    expected="RabbitMQ 3.10 or newer",
                )
            self._link = link
            return link

    def _parameters(self) -> ConnectionParameters:
        server = self.server
        context = ssl.create_default_context(cafile=server.ca_file) if server.tls else None
        return ConnectionParameters(
            host=server.host,
            port=server.port,
            virtual_host=server.vhost,
            credentials=PlainCredentials(server.user, server.password, erase_on_connect=False),
            heartbeat=max(1, round(server.heartbeat_s)),
            socket_timeout=server.timeout_s,
            stack_timeout=server.timeout_s,
            connection_attempts=1,
            ssl_options=SSLOptions(context, server.host) if context else None,
            client_properties={"connection_name": "tupletree"},
        )

    def _hear_end(self, connection: Any, _: BaseException) -> None:
        link = self._link
        if link is not None and link.connection is connection:
            link.over.set()

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        link = self._link
        if link is not None and not link.over.is_set():
            with contextlib.suppress(AMQPError):
                link.connection.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(link.over.wait(), self.server.timeout_s)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:  # calls that waited have their error now, and end by themselves
            await asyncio.wait(others, timeout=0.05)
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # --- errors -----------------------------------------------------------------------------------------------

    def _fault(self, error: BaseException, queue: str) -> ConnectorError:
        where, text = self.server.where, self._text(error)
        for one in _causes(error):
            code = one.reply_code if isinstance(one, ChannelClosedByBroker | ConnectionClosed) else 0
            if code == NOT_FOUND and isinstance(one, ChannelClosedByBroker):
                return UnknownQueueError.of(queue, self.server.where)
            if code == PRECONDITION_FAILED and "larger than" in text:
                return RefusedRequestError(
                    f"{where} refuses it: {text}", next_step="name its limit in the URL: max_body_bytes="
                )
            if code in REFUSALS or isinstance(one, LOGIN_ERRORS):
                return RefusedConnectionError(f"{where} refuses it: {text}")
        return ConnectorError(f"{where} cannot be reached: {text}")

    def _text(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError) and not str(error):
            return "it did not answer in time"
        texts = [str(one) or type(one).__name__ for one in _causes(error)]
        return without_secrets(texts[-1] if texts else "", self.server.password)


def _causes(error: BaseException) -> list[BaseException]:
    """An error and those that it came of: pika wraps what happened while it connected."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting:
        one = waiting.pop(0)
        found.append(one)
        inner = [*getattr(one, "exceptions", ()), getattr(one, "exception", None), *one.args]
        waiting += [each for each in inner if isinstance(each, BaseException) and each not in found]
    return found
