"""A sink that publishes rows to a queue.

Owns which message a row becomes, and its id: a batch that comes again is published again, with the same ids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from tupletree.errors import ConfigError
from tupletree.queues.access import shut_out_is_outage
from tupletree.queues.bodies import CONTENT_TYPES, check_body, encoder_of
from tupletree.queues.contract import RefusedMessagesError, UnknownQueueError
from tupletree.queues.messages import DEFAULT_CONTENT_TYPE, Message
from tupletree.queues.registry import check_url, open_queue
from tupletree.sinks.files import RowError, SinkRowsError
from tupletree.texts import text_by
from tupletree.topology.components import Sink, SinkBatch, SinkContext

T = TypeVar("T")

logger = logging.getLogger("tupletree.sinks")


class QueueSink(Sink[T], Generic[T]):
    """Publish each row as a message, once the messages that it comes of are done.

    On Spark a row is in the queue exactly once where the broker knows an id again (`idempotent_publish`): a batch that
    comes again has the same ids. A row whose message was acked longer than `remembers_acked_s` before a crashed run is
    started again may come twice. Locally, and with other brokers, at least once: give `id`, and consumers can tell. A
    row that the broker refuses (too large, say) is a dead letter.

    Args:
        url: such as `sqlite:///shop.db?queue=invoices`; the queue is declared if it is not there.
        body: how a row becomes a body: "json", "msgpack", or a function of the row that gives bytes, or a whole
            `Message`. A `QueueMessage` is published as it is.
        id: a field of the row, or a function of it, that names the message; by default the batch and the row's number.
        key: the same for the message's key, see `Message`.
        ordered: see `Broker.declare`.

    Raises:
        ConfigError: a wrong URL or format.
    """

    gathers = True
    promise = "exactly_once"  # with a broker that knows ids again, see `open`

    def __init__(
        self,
        url: str,
        *,
        body: str | Callable[[T], bytes | Message] = "json",
        id: str | Callable[[T], str] = "",  # noqa: A002 - the queue's word for it
        key: str | Callable[[T], str] = "",
        ordered: bool = False,
    ) -> None:
        self.shown = check_url(url).shown
        check_body(body, self.shown)
        for name, given in (("id", id), ("key", key)):
            if not (callable(given) or isinstance(given, str)):
                raise ConfigError(
                    f"wrong value for {name}",
                    where=self.shown,
                    got=repr(given),
                    expected="the name of a field, or a function of the row",
                )
        self._url = url
        self._body = body
        self._id = id
        self._key = key
        self._ordered = ordered

    def __repr__(self) -> str:
        return f"queue_sink({self.shown!r})"

    def open(self, context: SinkContext) -> None:
        self._where = f"sink {context.component!r}"
        self._queue = open_queue(self._url, ordered=self._ordered)
        if not self._queue.broker.capabilities.idempotent_publish:
            self.promise = "at_least_once"
        self._message_of = self._body if callable(self._body) else encoder_of(self._body)

    def write(self, batch: SinkBatch[T]) -> None:
        """Publish the rows, all or none."""
        messages: list[Message] = []
        refused: list[RowError] = []
        for position, row in enumerate(batch.rows):
            try:
                messages.append(self._message(row, f"{batch.id}/{position}"))
            except BaseException as error:  # noqa: BLE001 - the user's functions; such a row must not stop the others
                reason = f"{type(error).__name__}: {text_by(str, error)}"
                refused.append(RowError(position, reason, type(error).__name__))
        if refused:
            raise SinkRowsError(self._where, refused)
        try:
            self._publish(messages)
        except RefusedMessagesError as error:
            rows = [RowError(one.position, one.reason, type(error).__name__) for one in error.refused]
            raise SinkRowsError(self._where, rows) from error

    def _publish(self, messages: list[Message]) -> None:
        """Publish them. No message is to blame for a queue that is gone, or a user who was shut out, since `open`."""
        with shut_out_is_outage(self._where):
            self._publish_or_declare(messages)

    def _publish_or_declare(self, messages: list[Message]) -> None:
        try:
            self._queue.publish(messages)
        except UnknownQueueError:
            logger.warning(
                "%s: the queue %s is not there any more (a broker that was set up anew?); it is declared again, and "
                "what was in it is gone",
                self._where,
                self.shown,
            )
            self._queue.broker.declare(self._queue.name, ordered=self._ordered)
            self._queue.publish(messages)

    def close(self) -> None:
        if hasattr(self, "_queue"):
            self._queue.close()

    def _message(self, row: T, own_id: str) -> Message:
        made = self._message_of(row)
        if isinstance(made, bytes):
            content_type = CONTENT_TYPES.get(str(self._body), DEFAULT_CONTENT_TYPE)
            made = Message(id="", body=made, content_type=content_type)
        if self._id:
            made = replace(made, id=_text(self._id, row))
        elif not made.id:
            made = replace(made, id=own_id)
        return replace(made, key=_text(self._key, row)) if self._key else made


queue_sink = QueueSink


def _text(of: str | Callable[[Any], str], row: Any) -> str:
    return str(of(row) if callable(of) else getattr(row, of))
