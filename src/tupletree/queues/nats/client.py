"""A connection to a NATS server, for callers of any thread: requests in batches, and pulls.

Owns the event loop and its thread, connecting again, and what the client's errors mean. Refuses to know queues: what is
asked for, and what answers say, is in `broker` and `streams`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import AuthorizationError, Error

from tupletree.errors import ConnectorError
from tupletree.queues.contract import RefusedConnectionError
from tupletree.queues.urls import without_secrets

T = TypeVar("T")

STATUS = "Status"
"""Header of a message that is an answer of the server itself and not one of a stream."""

NO_RESPONDERS = "503"

SILENT_S = 2.0
"""So long a server is waited for that is only asked whether it is there, after it has not answered in time."""

logger = logging.getLogger("tupletree.queues")


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server is and who asks.

    Attributes:
        url: without user and password.
        where: the URL for errors and logs.
        login: arguments of the client's `connect` that name the user.
        timeout_s: seconds until a connection, or an answer, is given up.
        ca_file: certificates to trust, with `tls`.
    """

    url: str
    where: str
    login: Mapping[str, Any] = {}
    timeout_s: float = 10.0
    tls: bool = False
    ca_file: str | None = None


class Request(msgspec.Struct, frozen=True, gc=False):
    """One message that is answered."""

    subject: str
    body: bytes = b""
    headers: dict[str, str] | None = None


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What came back.

    Attributes:
        reply: where to answer; the handle of a delivery.
        headers: empty where there are none.
        status: of the server itself; empty for a message.
    """

    body: bytes
    reply: str = ""
    headers: Mapping[str, str] = {}

    @property
    def status(self) -> str:
        return self.headers.get(STATUS, "")

    @property
    def is_unheard(self) -> bool:
        """Whether nobody listens to the subject: there is no such stream, or it has no leader now."""
        return self.status == NO_RESPONDERS


class NatsClient:
    """Connects when it is first asked, and again with the first call after a connection broke.

    Raises, in every method: ConnectorError, the server cannot be reached or did not answer in time.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tupletree-nats", daemon=True)
        self._thread.start()
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[str, _Answers] = {}
        self._ending: set[asyncio.Future[None]] = set()
        self._secrets = [str(one) for name, one in server.login.items() if name in {"password", "token"}]
        self._inbox = ""
        self._is_closed = False

    def max_payload(self) -> int:
        """Bytes of the largest message, headers included."""
        return self._call(self._connected()).max_payload

    def ask(self, requests: Sequence[Request]) -> Sequence[Answer]:
        """Send requests and wait for all of their answers, in the order of the requests."""
        return self._call(self._ask(requests)) if requests else []

    def pull(self, subject: str, body: bytes, most: int, wait_s: float = 0.0) -> list[Answer]:
        """Send one request that up to `most` messages answer, and then a status unless all came.

        Returns:
            The messages, and as last one the status if it came.
        """
        return self._call(self._pull(subject, body, most, wait_s))

    def soon(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run this on the event loop, beside all else. It must not raise; calls of it are made in order."""
        if not self._is_closed:
            asyncio.run_coroutine_threadsafe(function(), self._loop)

    async def send(self, requests: Sequence[Request]) -> Sequence[Answer]:
        """`ask`, on the event loop."""
        return await self._checked(self._ask(requests))

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

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._is_closed:
            coroutine.close()
            raise ConnectorError(f"the connection to {self.server.where} was closed")
        return asyncio.run_coroutine_threadsafe(self._checked(coroutine), self._loop).result()

    async def _checked(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return await coroutine
        except AuthorizationError as error:
            raise RefusedConnectionError(f"{self.server.where}: {self._text(error)}") from error
        except (Error, OSError, TimeoutError) as error:
            if "authorization" in str(error).lower():
                raise RefusedConnectionError(f"{self.server.where}: {self._text(error)}") from error
            raise ConnectorError(f"{self.server.where} cannot be reached: {self._text(error)}") from error

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._client is not None and self._client.is_connected:
                return self._client
            if self._client is not None:
                await self._client.close()
            if self._is_closed:
                raise ConnectorError(f"the connection to {self.server.where} was closed")
            server = self.server
            tls = ssl.create_default_context(cafile=server.ca_file) if server.tls else None
            self._client = None
            client = Client()
            try:
                connecting = client.connect(
                    server.url,
                    tls=tls,
                    # A call that was sent may have happened: it is repeated by the caller, who knows what that means.
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=max(1, round(server.timeout_s)),
                    error_cb=self._hear_error,
                    closed_cb=partial(self._hear_end, client),
                    skip_subject_validation=True,  # subjects are made of hashes, and of what the server itself gave
                    **server.login,
                )
                await asyncio.wait_for(connecting, server.timeout_s)
                self._inbox = client.new_inbox()
                await client.subscribe(f"{self._inbox}.>", cb=self._hear)
            except BaseException:
                await client.close()
                raise
            self._client = client
            return client

    async def _ask(self, requests: Sequence[Request]) -> Sequence[Answer]:
        client = await self._connected()
        name = str(next(self._numbers))
        answers = self._waiting[name] = _Answers(client, len(requests))
        try:
            for number, one in enumerate(requests):
                reply = f"{self._inbox}.{name}.{number}"
                await client.publish(one.subject, one.body, reply=reply, headers=one.headers)
            return await self._all_of(answers, self.server.timeout_s)
        finally:
            del self._waiting[name]

    async def _pull(self, subject: str, body: bytes, most: int, wait_s: float) -> list[Answer]:
        client = await self._connected()
        name = str(next(self._numbers))
        answers = self._waiting[name] = _Answers(client, most, ends_at_status=True)

        async def hear(message: Msg) -> None:
            answers.add(_answer_of(message))

        # A subscription of its own: messages of a stream come with their own subject, which does not tell who asked.
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox, cb=hear)
        try:
            await client.publish(subject, body, reply=inbox)
            return await self._all_of(answers, wait_s + self.server.timeout_s)
        finally:
            del self._waiting[name]
            if client.is_connected and client is self._client:
                await subscription.unsubscribe()

    async def _all_of(self, answers: _Answers, within_s: float) -> list[Answer]:
        try:
            return await asyncio.wait_for(answers.all_here, within_s)
        except TimeoutError:
            await self._leave_if_silent(answers.client)
            raise

    async def _leave_if_silent(self, client: Client) -> None:
        """Give a connection up on which nothing comes any more; the next call makes another one.

        A firewall that has forgotten a connection tells neither end, and what is sent on one that lost packets for a
        minute is sent again a minute later.
        """
        if client is not self._client:
            return
        try:
            await client.flush(timeout=min(SILENT_S, self.server.timeout_s))  # type: ignore[arg-type]  # any number of seconds
        except (Error, OSError, TimeoutError):
            if client is self._client:
                self._client = None
                self._ending.add(ending := asyncio.ensure_future(self._end(client)))
                ending.add_done_callback(self._ending.discard)
                await self._hear_end(client)

    async def _end(self, client: Client) -> None:
        """Close a connection; what it still has to send is not waited for."""
        with contextlib.suppress(Error, OSError, TimeoutError):
            await asyncio.wait_for(client.close(), SILENT_S)

    async def _hear(self, message: Msg) -> None:
        name, _, number = message.subject[len(self._inbox) + 1 :].partition(".")
        answers = self._waiting.get(name)
        if answers is not None:
            answers.add(_answer_of(message), int(number))

    async def _hear_error(self, error: Exception) -> None:
        logger.debug("%s: %s", self.server.where, self._text(error))

    async def _hear_end(self, client: Client | None = None) -> None:
        """Of a connection; the next one may be up already."""
        for answers in self._waiting.values():
            if client is None or answers.client is client:
                text = f"the connection to {self.server.where} ended before the answer came"
                answers.give_up(ConnectorError(text))

    def _text(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError) and not str(error):
            return "it did not answer in time"
        return without_secrets(str(error) or type(error).__name__, *self._secrets)

    async def _close(self) -> None:
        if self._client is not None:
            await self._client.close()
        await self._hear_end()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:  # calls that waited have their error now, and end by themselves; what sleeps does not
            await asyncio.wait(others, timeout=0.05)
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class _Answers:
    """Answers that are waited for.

    Args:
        client: the connection that they come by.
        expected: how many.
        ends_at_status: an answer of the server itself is the last one.
    """

    def __init__(self, client: Client, expected: int, *, ends_at_status: bool = False) -> None:
        self.all_here: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self.client = client
        self._expected = expected
        self._ends_at_status = ends_at_status
        self._by_number: dict[int, Answer] = {}

    def add(self, answer: Answer, number: int | None = None) -> None:
        """An answer has come; `number` is that of its request where there are several."""
        self._by_number[len(self._by_number) if number is None else number] = answer
        is_last = len(self._by_number) >= self._expected or (self._ends_at_status and answer.status)
        if is_last and not self.all_here.done():
            self.all_here.set_result([self._by_number[one] for one in sorted(self._by_number)])

    def give_up(self, error: Exception) -> None:
        """No more will come."""
        if not self.all_here.done():
            self.all_here.set_exception(error)


def _answer_of(message: Msg) -> Answer:
    return Answer(bytes(message.data), message.reply, message.headers or {})
