"""The streams and consumers that queues are at a NATS server, and what the server's API answers.

Owns the settings of a queue at the server, and which answers mean that something is not there. Refuses to know who
holds a lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from tupletree.errors import ConnectorError
from tupletree.queues.contract import UnknownQueueError
from tupletree.queues.messages import Stored
from tupletree.queues.nats.client import Answer, NatsClient, Request
from tupletree.queues.nats.wire import (
    LETTERS,
    MESSAGES,
    Handle,
    body_and_headers,
    decoded,
    message_of,
    stream_of,
    token_of,
    told_of,
)

CHUNK = 500
"""Requests that are on their way together."""

CONSUMER = "tupletree"
_NO_STREAM, _NO_CONSUMER, _NO_MESSAGE, _OTHER_SETTINGS, _REFUSED = 10059, 10014, 10037, 10058, 10077


class Streams:
    """Of one connection.

    Every method may raise ConnectorError; those that take a queue, UnknownQueueError.
    """

    def __init__(self, client: NatsClient) -> None:
        self._client = client
        self._where = client.server.where
        self._server_s: dict[str, float] = {}  # queue → how long the server lets a lease last

    def declare(self, queue: str, *, remembers_acked_s: float, lease_s: float, replicas: int) -> None:
        """Make what is not there; what is there stays as it is."""
        token = token_of(queue)
        common: dict[str, Any] = {"storage": "file", "num_replicas": replicas, "description": queue}
        common |= {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 1}
        self._make(
            f"STREAM.CREATE.{stream_of(queue)}",
            **common,
            name=stream_of(queue),
            subjects=[f"{MESSAGES}.{token}.*"],
            retention="workqueue",
            duplicate_window=nanoseconds(remembers_acked_s),
        )
        letters = stream_of(queue, LETTERS)
        self._make(f"STREAM.CREATE.{letters}", **common, name=letters, subjects=[f"{LETTERS}.{token}.*"])
        if self.consumer(queue) is not None:
            return  # creating it again would change it for those who lease now
        self._make(
            f"CONSUMER.DURABLE.CREATE.{stream_of(queue)}.{CONSUMER}",
            stream_name=stream_of(queue),
            config={
                "durable_name": CONSUMER,
                "deliver_policy": "all",
                "ack_policy": "explicit",
                "replay_policy": "instant",
                "ack_wait": nanoseconds(lease_s),
                "max_deliver": -1,
                "max_ack_pending": -1,
                "max_waiting": 10_000,
            },
        )

    def names(self) -> Sequence[str]:
        """Of all queues, sorted."""
        names: list[str] = []
        total = 1
        while len(names) < total:
            page = self.api("STREAM.LIST", offset=len(names), subject=f"{MESSAGES}.>")
            found = page.get("streams") or []
            names += [one["config"].get("description", "") for one in found]
            total = page.get("total", 0) if found else 0
        return sorted(names)

    def forget(self, queue: str) -> None:
        """Ask again what a queue is: it may have been deleted and made anew."""
        self._server_s.pop(queue, None)

    def stored(self, queue: str, requests: Sequence[Request]) -> list[bool]:
        """Publish; for each whether it was new.

        Raises:
            UnknownQueueError, ConnectorError: what was answered for one of them.
        """
        new = []
        for answer in self.ask(requests):
            if answer.is_unheard:
                self.info(queue)
                raise ConnectorError(f"{self._where}: nobody stores messages of queue {queue!r} now")
            told = decoded(answer)
            if error := told.get("error"):
                # One code stands for all that a stream refuses, such as a full disk: the text tells them apart.
                if error.get("err_code") != _REFUSED or "per subject" not in error["description"]:
                    raise ConnectorError(f"{self._where}, queue {queue!r}: {error['description']}")
                new.append(False)
            else:
                new.append(not told.get("duplicate", False))
        return new

    def letters(self, queue: str, most: int) -> list[tuple[int, Stored]]:
        """Dead letters in their order, with their places in the stream; `most` 0 means all."""
        found: list[tuple[int, Stored]] = []
        stream = stream_of(queue, LETTERS)
        sequence = 0
        while not most or len(found) < most:
            asked = msgspec.json.encode({"seq": sequence + 1, "next_by_subj": f"{LETTERS}.>"})
            [answer] = self.ask([Request(f"$JS.API.STREAM.MSG.GET.{stream}", asked)])
            one = self.message_in(answer)
            if one is None:
                break
            sequence = one["seq"]
            body, headers = body_and_headers(one)
            reason, deliveries, published_s = told_of(headers)
            found.append(
                (
                    sequence,
                    Stored(
                        message=message_of(body, headers, sequence),
                        state="dead",
                        deliveries=deliveries,
                        due_s=datetime.fromisoformat(one["time"]).timestamp(),
                        published_s=published_s,
                        reason=reason,
                    ),
                )
            )
        return found

    def message_in(self, answer: Answer) -> dict[str, Any] | None:
        """The message that was asked for; None: there is none. Raises ConnectorError: it is not known."""
        told = decoded(answer)
        if answer.is_unheard or "error" in told:
            if told.get("error", {}).get("err_code") == _NO_MESSAGE:
                return None
            raise self._fault("", told.get("error", {"description": "nobody answers for a stream now"}))
        found: dict[str, Any] = told["message"]
        return found

    def consumer(self, queue: str) -> dict[str, Any] | None:
        """What the server says of a queue's consumer; None: there is none. Raises UnknownQueueError."""
        what = f"$JS.API.CONSUMER.INFO.{stream_of(queue)}.{CONSUMER}"
        [answer] = self.ask([Request(what)])
        told = self._heard(answer)
        if error := told.get("error"):
            if error.get("err_code") == _NO_CONSUMER:
                return None
            raise self._fault(queue, error)
        return told

    def lease_of(self, queue: str) -> float:
        """Seconds that the server lets a lease of this queue last. Raises UnknownQueueError."""
        if queue not in self._server_s:
            told = self.consumer(queue)
            if told is None:
                raise UnknownQueueError.of(queue, self._where)
            self._server_s[queue] = told["config"]["ack_wait"] / 1e9
        return self._server_s[queue]

    def by_queue(self, handles: Sequence[str]) -> dict[str, list[str]]:
        """Handles by the queue of their messages."""
        streams = {stream_of(queue): queue for queue in self._server_s}
        found: dict[str, list[str]] = {}
        for one in handles:
            stream = Handle.of(one).stream
            if stream not in streams:  # another connection leased it
                streams[stream] = self.api(f"STREAM.INFO.{stream}")["config"]["description"]
            found.setdefault(streams[stream], []).append(one)
        return found

    def info(self, queue: str, prefix: str = MESSAGES) -> dict[str, Any]:
        """Of its stream. Raises UnknownQueueError."""
        return self.api(f"STREAM.INFO.{stream_of(queue, prefix)}", queue=queue)

    def _make(self, what: str, **settings: Any) -> None:
        [answer] = self.ask([Request(f"$JS.API.{what}", msgspec.json.encode(settings))])
        error = self._heard(answer).get("error")
        if error and error.get("err_code") != _OTHER_SETTINGS and "already in use" not in error["description"]:
            raise self._fault("", error)

    def api(self, _what: str, *, queue: str = "", **asked: Any) -> dict[str, Any]:
        """Ask the API for something. `queue`: the one that an absent stream would be."""
        [answer] = self.ask([Request(f"$JS.API.{_what}", msgspec.json.encode(asked) if asked else b"")])
        told = self._heard(answer)
        if error := told.get("error"):
            raise self._fault(queue, error)
        return told

    def _heard(self, answer: Answer) -> dict[str, Any]:
        """What the API said, which may be an error. Raises ConnectorError: nobody was there to say it."""
        if answer.is_unheard:
            raise ConnectorError(f"{self._where}: the server has no JetStream, or it is not ready")
        return decoded(answer)

    def _fault(self, queue: str, error: Mapping[str, Any]) -> ConnectorError:
        if error.get("err_code") == _NO_STREAM and queue:
            return UnknownQueueError.of(queue, self._where)
        return ConnectorError(f"{self._where}: {error.get('description')}")

    def ask(self, requests: Sequence[Request]) -> list[Answer]:
        """Send requests, some at a time, and wait for all answers."""
        return [answer for chunk in chunks(requests) for answer in self._client.ask(chunk)]


def nanoseconds(seconds: float) -> int:
    """As the API takes a time."""
    return max(1, round(seconds * 1e9))


def chunks(rows: Sequence[Any]) -> list[Sequence[Any]]:
    """What is on its way together."""
    return [rows[first : first + CHUNK] for first in range(0, len(rows), CHUNK)]
