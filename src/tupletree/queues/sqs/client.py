"""A connection to SQS, for callers of any thread.

Owns the library's client, which queues there are, the service's time, and how many requests go out side by side.
Refuses to know messages and capabilities: they are in `broker`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import boto3
import msgspec
from botocore.config import Config

from tupletree.errors import ConfigError, ConnectorError
from tupletree.queues.contract import RefusedConnectionError, RefusedRequestError, UnknownQueueError
from tupletree.queues.sqs.codes import (
    FAULTS,
    RECEIPT_IS_OVER,
    TOKEN_IS_OVER,
    ReceiptIsOverError,
    code_of,
    error_name,
    fault_of,
    meaning_of,
)
from tupletree.queues.sqs.wire import dead_name, fifo_name, is_fifo, name_of

T = TypeVar("T")
R = TypeVar("R")

BATCH = 10
"""Messages of one request, at most."""

SIDE_BY_SIDE = 8
"""Requests that a call makes at a time."""

MOST_BYTES = 1_048_576
"""Of any message, with its attributes."""

_KEPT = {"MessageRetentionPeriod": "1209600"}
"""Of queues that are made: 14 days, the longest that there is."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Where the service is.

    Attributes:
        where: the URL for errors and logs.
        region, endpoint, profile: empty where the library is to find them.
        timeout_s: seconds until a connection, or an answer, is given up.
    """

    where: str
    region: str = ""
    endpoint: str = ""
    profile: str = ""
    timeout_s: float = 10.0


class QueueAddress(msgspec.Struct, frozen=True):
    """A queue at the service: its name there, and its address."""

    name: str
    url: str

    @property
    def is_fifo(self) -> bool:
        """Whether the service keeps it in order."""
        return is_fifo(self.name)


class SqsClient:
    """Makes requests, each once: what may have happened or not is repeated by the caller, who knows what that means.

    Raises, in every method: ConnectorError, the service cannot be reached, or does not let this user do it.

    Args:
        server: where it is.
        clock: monotonic seconds, for leases.
    """

    def __init__(self, server: Server, clock: Callable[[], float]) -> None:
        self.server = server
        self.clock = clock
        self._changing = threading.Lock()
        self._client: Any = None
        self._is_closed = False
        self._places: dict[str, QueueAddress] = {}  # by the service's name
        self._most_bytes: dict[str, int] = {}
        self._ahead_s: float | None = None
        self._threads = ThreadPoolExecutor(SIDE_BY_SIDE, "tupletree-sqs")

    # --- requests ---------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Read the settings and the login; no request is made. Raises ConfigError: they do not do."""
        self._connected()

    def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Make one request."""
        client = self._connected()
        try:
            answer: dict[str, Any] = getattr(client, operation)(**arguments)
        except FAULTS as error:
            if error_name(error) in TOKEN_IS_OVER:
                self._forget(client)
            raise self._closed() if self._is_closed else fault_of(error, self.server.where) from error
        if self._is_closed:
            raise self._closed()
        if date := answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date"):
            self._ahead_s = parsedate_to_datetime(date).timestamp() - self.clock()
        return answer

    def ask_of(self, operation: str, place: QueueAddress, **arguments: Any) -> dict[str, Any]:
        """Make one request of a queue. Raises UnknownQueueError: it is not there any more."""
        try:
            return self.ask(operation, QueueUrl=place.url, **arguments)
        except UnknownQueueError as error:
            with self._changing:
                self._places.pop(place.name, None)
            raise UnknownQueueError.of(place.name, self.server.where) from error

    def tell(
        self, operation: str, place: QueueAddress, batches: Sequence[Sequence[Mapping[str, Any]]]
    ) -> list[ConnectorError | None]:
        """Make a request for each batch. Returns for each part of all of them why it is not known to be done."""

        def ask(batch: Sequence[Mapping[str, Any]]) -> list[ConnectorError | None]:
            answer = self.ask_of(
                operation, place, Entries=[{**part, "Id": str(number)} for number, part in enumerate(batch)]
            )
            faults: list[ConnectorError | None] = [None] * len(batch)
            for failed in answer.get("Failed", ()):
                number, code, said = int(failed["Id"]), code_of(failed.get("Code", "")), str(failed.get("Message", ""))
                if code in RECEIPT_IS_OVER and "ReceiptHandle" in batch[number]:
                    faults[number] = ReceiptIsOverError(f"{self.server.where}: {code}: {said}")
                else:
                    faults[number] = meaning_of(code, said, self.server.where)
            return faults

        told: list[ConnectorError | None] = []
        for batch, result in zip(batches, self.side_by_side(ask, batches), strict=True):
            told += [result] * len(batch) if isinstance(result, ConnectorError) else result
        return told

    def side_by_side(self, work: Callable[[T], R], parts: Iterable[T]) -> list[R | ConnectorError]:
        """Do this for all parts, some at a time; each result, or why there is none, in their order."""
        todo = [*parts]

        def tried(part: T) -> R | ConnectorError:
            try:
                return work(part)
            except ConnectorError as error:
                return error

        if len(todo) < 2:
            return [tried(one) for one in todo]
        try:
            return [*self._threads.map(tried, todo)]
        except RuntimeError as error:  # its threads were ended
            raise self._closed() from error

    def now_s(self) -> float:
        """Unix time by the service's clock, a second behind it at most; by this host's, if no answer had a date."""
        return time.time() if self._ahead_s is None else self.clock() + self._ahead_s

    def close(self) -> None:
        """Disconnect. Harmless if repeated."""
        with self._changing:
            client, self._client, self._is_closed = self._client, None, True
        self._threads.shutdown(wait=False)
        if client is not None:
            client.close()

    def _connected(self) -> Any:
        with self._changing:
            if self._is_closed:
                raise self._closed()
            if self._client is None:
                self._client = self._made()
            return self._client

    def _made(self) -> Any:
        server = self.server
        settings = Config(
            connect_timeout=server.timeout_s,
            read_timeout=server.timeout_s,
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=SIDE_BY_SIDE + 4,
        )
        try:
            # One of its own: the library's common one keeps a login that is over.
            session = boto3.session.Session(profile_name=server.profile or None, region_name=server.region or None)
            return session.client("sqs", endpoint_url=server.endpoint or None, config=settings)
        except ValueError as error:  # an address that is none
            raise ConfigError("the address of the service is none", where=server.where, got=str(error)) from error
        except FAULTS as error:
            raise fault_of(error, server.where) from error

    def _forget(self, client: Any) -> None:
        with self._changing:
            if self._client is client:
                self._client = None

    def _closed(self) -> ConnectorError:
        return ConnectorError(f"the connection to {self.server.where} was closed")

    # --- queues -----------------------------------------------------------------------------------------------

    def place(self, queue: str) -> QueueAddress:
        """Where a queue's messages are: under its name, or under that with `.fifo`.

        Raises:
            UnknownQueueError: there is none.
        """
        name = name_of(queue)
        found = self._look(name) or (None if is_fifo(name) else self._look(fifo_name(name)))
        if found is None:
            raise UnknownQueueError.of(queue, self.server.where)
        return found

    def dead_place(self, place: QueueAddress) -> QueueAddress:
        """Where the dead letters of a queue are; made if it is not there, as of a queue that another program made."""
        return self._look(dead_name(place.name)) or self._make(dead_name(place.name))

    def declare(self, queue: str, *, ordered: bool) -> None:
        """Make a queue and that of its dead letters, if they are not there.

        Raises:
            ConfigError: it is there, and not ordered.
        """
        name = name_of(queue)
        found = self._look(name)
        if found is not None and ordered and not found.is_fifo:
            raise ConfigError(
                "the queue is there, and not ordered",
                where=f"{self.server.where}, queue {queue!r}",
                next_step="declare another queue with ordered=True, and move the messages to it",
            )
        if found is None and not is_fifo(name):
            found = self._look(fifo_name(name))
        if found is None:
            found = self._make(fifo_name(name) if ordered else name)
        self.dead_place(found)

    def names(self) -> list[str]:
        """The service's names of all queues that have one for dead letters."""
        found: set[str] = set()
        token: dict[str, str] = {}
        while True:
            answer = self.ask("list_queues", MaxResults=1000, **token)
            found.update(url.rpartition("/")[2] for url in answer.get("QueueUrls", ()))
            if not answer.get("NextToken"):
                return sorted(one for one in found if dead_name(one) in found)
            token = {"NextToken": answer["NextToken"]}

    def most_bytes(self, place: QueueAddress) -> int:
        """Of one message that this queue takes, with its attributes."""
        if place.name not in self._most_bytes:
            wanted = "MaximumMessageSize"
            try:
                found = self.ask_of("get_queue_attributes", place, AttributeNames=[wanted]).get("Attributes", {})
            except (RefusedConnectionError, RefusedRequestError):
                found = {}  # who may send may not always ask
            self._most_bytes[place.name] = int(found.get(wanted, MOST_BYTES))
        return self._most_bytes[place.name]

    def count(self, place: QueueAddress) -> int:
        """About how many messages a queue holds, in any state."""
        names = [f"ApproximateNumberOfMessages{one}" for one in ("", "NotVisible", "Delayed")]
        answer = self.ask_of("get_queue_attributes", place, AttributeNames=names)
        return sum(int(one) for name, one in answer.get("Attributes", {}).items() if name in names)

    def _look(self, name: str) -> QueueAddress | None:
        with self._changing:
            known = self._places.get(name)
        if known is not None and not self._is_closed:
            return known
        try:
            return self._known(name, self.ask("get_queue_url", QueueName=name)["QueueUrl"])
        except UnknownQueueError:
            return None

    def _make(self, name: str) -> QueueAddress:
        attributes = {**_KEPT, "FifoQueue": "true"} if is_fifo(name) else _KEPT
        return self._known(name, self.ask("create_queue", QueueName=name, Attributes=attributes)["QueueUrl"])

    def _known(self, name: str, url: str) -> QueueAddress:
        with self._changing:
            made = self._places[name] = QueueAddress(name, url)
        return made


def in_batches(parts: Iterable[T], size_of: Callable[[T], int] | None = None, most: int = 0) -> list[list[T]]:
    """In lists of ten at most, and of no more bytes than `most` together but for one that is larger."""
    batches: list[list[T]] = []
    size = 0
    for part in parts:
        own = size_of(part) if size_of is not None else 0
        if not batches or len(batches[-1]) == BATCH or (size_of is not None and size + own > most):
            batches.append([])
            size = 0
        batches[-1].append(part)
        size += own
    return batches
