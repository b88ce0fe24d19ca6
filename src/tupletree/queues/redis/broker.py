"""Queues on a Redis server: a stream each, with leases, delays and dead letters beside it.

Owns the connection and what its errors mean. What happens to a message happens at the server: `scripts`,
`operating`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tupletree.errors import ConfigError, ConnectorError, InternalError
from tupletree.queues.contract import (
    Broker,
    Capabilities,
    RefusedConnectionError,
    UnknownQueueError,
    check_messages,
    check_name,
)
from tupletree.queues.messages import (
    DEFAULT_LEASE_S,
    STATES,
    Delivery,
    Depth,
    Failure,
    Letter,
    Message,
    State,
    Stored,
)
from tupletree.queues.redis import operating, scripts
from tupletree.queues.urls import MOST, QueueUrl, without_secrets

CAPABILITIES = Capabilities(
    idempotent_publish=True,
    remembers_acked_s=300.0,
    delay=True,
    retry_delay=True,
    absolute_time=True,
    extend=True,
    fencing=True,
    uncounted=True,
    dead_letters=True,
    find=True,
    peek=STATES,
    move=("ready", "delayed", "dead"),
    purge=STATES,
    atomic_move=True,
    ack_anywhere=True,
    several_hosts=True,
    max_body_bytes=100_000_000,
)

CHUNK = 500
"""Messages per script: a script keeps the server from all else."""

CHUNK_BYTES = 16_000_000
"""Of bodies per script, but for one that is larger: a server drops a client whose call does not fit its buffer."""

NAMES = "tupletree:queues"

# The server is there, and waiting does not help.
_REFUSALS = (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError)
_OUTAGE_WORDS = ("OOM", "MISCONF", "READONLY", "LOADING", "MASTERDOWN", "NOREPLICAS", "UNKILLABLE", "BUSY")
_REFUSAL_WORDS = ("NOAUTH", "WRONGPASS", "NOPERM", "CROSSSLOT", "WRONGTYPE")

_HEAD = msgspec.msgpack.Decoder(tuple[str, str, dict[str, str]])
_TAKEN = msgspec.msgpack.Decoder(tuple[str, list[str], list[int], list[float], list[str], list[int]])

logger = logging.getLogger("tupletree.queues")


def open_redis(url: QueueUrl) -> RedisBroker:
    """`redis://user:password@host:6379/0`, `rediss://` with TLS; options remembers_acked_s, timeout_s, ca_file."""
    settings = url.settings(remembers_acked_s=(float, 0, MOST), timeout_s=(float, 0, MOST), ca_file=str)
    if url.path and not url.path.isdecimal():
        raise ConfigError("the path is the number of a database", where=url.shown, got=url.path, expected="0 or more")
    tls: dict[str, Any] = {"ssl": True, "ssl_ca_certs": settings.get("ca_file")} if url.scheme == "rediss" else {}
    timeout_s = settings.get("timeout_s", 10.0) or None
    client = redis.Redis(
        host=url.host or "127.0.0.1",
        port=url.port or 6379,
        db=int(url.path or 0),
        username=url.user or None,
        password=url.password or None,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        health_check_interval=30,
        # A call that was sent may have happened: it is repeated by the caller, who knows what that means.
        retry=Retry(NoBackoff(), 0),
        **tls,
    )
    return RedisBroker(client, where=url.shown, remembers_acked_s=settings.get("remembers_acked_s", 300.0))


class RedisBroker(Broker):
    """See `Broker`. Made by `tupletree.queues.connect`.

    A message is as durable as the server makes it: with `appendonly yes` and `appendfsync always` it is on the disk
    when `publish` returns. Any other setting is named in the log.

    Args:
        client: the connection; it is closed with the broker.
        where: its URL without secrets.
        remembers_acked_s: seconds for which the id of an acked message is known.

    Raises:
        ConnectorError: the server cannot be reached.
    """

    offset_ms = 0
    """Added to the server's time; for tests."""

    def __init__(self, client: redis.Redis, *, where: str, remembers_acked_s: float = 300.0) -> None:
        self.capabilities = msgspec.structs.replace(CAPABILITIES, remembers_acked_s=remembers_acked_s)
        self.where = where
        self._client = client
        self._password = str(client.get_connection_kwargs().get("password") or "")
        # Of all connections: who has a message is known by its lease. One per connection would stay in the group.
        self._consumer = "tupletree"
        self._remembers_ms = int(remembers_acked_s * 1000)
        self._scripts: dict[str, Any] = {}
        self._is_closed = False
        self._ask(client.ping)
        self._warn_if_volatile()

    def declare(self, queue: str, *, ordered: bool = False) -> None:
        check_name(queue, self.where)
        if ordered:
            raise self.not_capable("keep the order of keys")
        self._run(scripts.DECLARE, queue)
        self._ask(lambda: self._client.sadd(NAMES, queue))

    def queues(self) -> Sequence[str]:
        return sorted(name.decode() for name in self._ask(lambda: self._client.smembers(NAMES)))

    def publish(self, queue: str, messages: Sequence[Message]) -> int:
        """See `Broker.publish`. Several scripts for many messages: repeat it with the same ids if it fails."""
        check_messages(messages, self.capabilities, self.where)
        new = 0
        for batch in _by_size(messages):
            arguments: list[Any] = []
            for one in batch:
                head = _head_of(one.content_type, one.key, one.headers)
                arguments += (one.id, one.body, head, math.ceil(one.delay_s * 1000), math.ceil(one.not_before_s * 1000))
            new += self._run(scripts.PUBLISH, queue, *arguments)
        if not messages:
            self._run(scripts.PUBLISH, queue)
        return new

    def take(self, queue: str, limit: int, *, lease_s: float, max_bytes: int) -> list[Delivery]:
        """See `Broker.take`. Several scripts for many messages."""
        lease_ms = max(1, math.ceil(lease_s * 1000))
        found: list[Delivery] = []
        while (room := min(limit - len(found), CHUNK)) > 0 and max_bytes > 0:
            try:
                answer = self._run(scripts.TAKE, queue, room, lease_ms, max_bytes, self._consumer, 0 if found else 1)
            except ConnectorError:
                if not found:
                    raise
                break  # what is leased is the caller's; the next call meets the same
            taken = _deliveries_of(answer[0], answer[1], queue, lease_s) if answer else []
            found += taken
            max_bytes -= sum([len(one.message.body) for one in taken])
            if len(taken) < room:
                break
        return found

    def ack(self, handles: Sequence[str]) -> Sequence[str]:
        return self._settle_leases(scripts.ACK, handles, self._remembers_ms)

    def fail(self, failures: Sequence[Failure]) -> Sequence[str]:
        rows = [(one.handle, math.ceil(one.delay_s * 1000), one.reason, 0 if one.counts else 1) for one in failures]
        return self._settle(scripts.FAIL, rows)

    def extend(self, handles: Sequence[str], lease_s: float = DEFAULT_LEASE_S) -> Sequence[str]:
        return self._settle_leases(scripts.EXTEND, handles, max(1, math.ceil(lease_s * 1000)))

    def dead_letter(self, letters: Sequence[Letter]) -> Sequence[str]:
        return self._settle(scripts.DEAD_LETTER, [(one.handle, one.reason) for one in letters])

    def depth(self, queue: str) -> Depth:
        ready, leased, delayed, dead = self._run(operating.DEPTH, queue)
        return Depth(ready=ready, leased=leased, delayed=delayed, dead=dead)

    def peek(self, queue: str, state: State = "ready", limit: int = 10, *, after: int = 0) -> Sequence[Stored]:
        return [
            Stored(
                message=_message(_fields(flat)),
                state=state,
                deliveries=deliveries,
                due_s=float(due_ms) / 1000,
                published_s=float(_fields(flat).get(b"at") or 0) / 1000,
                reason=reason.decode(errors="replace"),
            )
            for flat, deliveries, due_ms, reason in self._run(operating.PEEK, queue, state, limit, after)
        ]

    def find(self, queue: str, ids: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for batch in _chunks(ids):
            known = self._run(operating.FIND, queue, *batch)
            found.update(one for one, is_known in zip(batch, known, strict=True) if is_known)
        return found

    def move(self, source: str, target: str, *, state: State = "ready", limit: int = 0, ids: Sequence[str] = ()) -> int:
        """See `Broker.move`; a message leaves one queue and enters the other in one script."""
        if state == "leased":
            raise ConfigError("leased messages cannot be moved", where=f"{self.where}, queue {source!r}")
        if source == target and state != "dead":
            return 0
        moved = 0
        for batch in _chunks(ids) if ids else iter(lambda: (), None):
            room = min(CHUNK, limit - moved) if limit else CHUNK
            done = self._run(operating.MOVE, source, state, room, *batch, target=target) if room > 0 else 0
            moved += done
            if room <= 0 or (not ids and done < room):
                break
        return moved

    def purge(self, queue: str, *, states: Sequence[State] = ("ready", "delayed")) -> int:
        gone = 0
        for state in states:
            while (done := self._run(operating.PURGE, queue, state, CHUNK)) > 0:
                gone += done
        return gone

    def close(self) -> None:
        self._is_closed = True
        self._client.close()

    # --- the server -------------------------------------------------------------------------------------------

    def _settle_leases(self, script: str, handles: Sequence[str], milliseconds: int) -> Sequence[str]:
        """Run a script on handles; the refused ones."""
        by_queue: dict[str, list[tuple[str, str, str]]] = {}
        for handle in handles:
            token, entry, queue = _parts(handle)
            by_queue.setdefault(queue, []).append((entry, token, handle))
        refused: list[str] = []
        for queue, those in by_queue.items():
            for batch in _chunks(those):
                entries, tokens, shown = zip(*batch)
                packed = msgspec.msgpack.encode((entries, tokens))
                refused += [shown[int(number)] for number in self._run(script, queue, packed, milliseconds)]
        return refused

    def _settle(self, script: str, rows: Sequence[tuple[Any, ...]]) -> Sequence[str]:
        """Run a script on handles, (handle, more…) each; the refused ones."""
        by_queue: dict[str, list[tuple[Any, ...]]] = {}
        for row in rows:
            by_queue.setdefault(_parts(row[0])[2], []).append(row)
        refused: list[str] = []
        for queue, those in by_queue.items():
            for batch in _chunks(those):
                arguments: list[Any] = []
                for handle, *more in batch:
                    token, entry, _ = _parts(handle)
                    arguments += (entry, token, *more)
                refused += [batch[int(number)][0] for number in self._run(script, queue, *arguments)]
        return refused

    def _run(self, script: str, queue: str, *arguments: Any, target: str = "") -> Any:
        """Run a script on a queue.

        Raises:
            UnknownQueueError: it is not declared.
            ConnectorError: the server cannot be reached, or cannot write.
        """
        made = self._scripts.get(script)
        if made is None:
            text = script.replace("OFFSET", str(self.offset_ms), 1)
            made = self._scripts[script] = self._client.register_script(text)
        keys = [*scripts.keys_of(queue), *(scripts.keys_of(target) if target else ())]
        try:
            return self._ask(lambda: made(keys=keys, args=arguments))
        except redis.exceptions.ResponseError as error:
            text = str(error)
            if "NOQUEUE" in text or "NOTARGET" in text:
                raise UnknownQueueError.of(target if "NOTARGET" in text else queue, self.where) from error
            raise

    def _ask(self, call: Callable[[], Any]) -> Any:
        if self._is_closed:
            raise ConnectorError(f"the connection to {self.where} was closed")
        try:
            return call()
        except _REFUSALS as error:
            raise RefusedConnectionError(f"{self.where}: {without_secrets(str(error), self._password)}") from error
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
            raise ConnectorError(
                f"{self.where} cannot be reached: {without_secrets(str(error), self._password)}"
            ) from error
        except redis.exceptions.ResponseError as error:
            text = str(error)
            if "NOQUEUE" in text or "NOTARGET" in text:
                raise
            if "user_script" in text and not any(word in text for word in _OUTAGE_WORDS):
                raise InternalError(f"a script of the Redis broker failed at {self.where}: {text}") from error
            kind = RefusedConnectionError if any(word in text for word in _REFUSAL_WORDS) else ConnectorError
            raise kind(f"{self.where}: {text}") from error
        except (ValueError, AttributeError) as error:  # of a socket that was closed meanwhile
            if not self._is_closed:
                raise
            raise ConnectorError(f"the connection to {self.where} was closed") from error

    def _warn_if_volatile(self) -> None:
        try:
            told = self._ask(lambda: self._client.config_get("append*"))
        except ConnectorError:
            return  # this user may not ask
        if told.get("appendonly") != "yes" or told.get("appendfsync") != "always":
            logger.warning(
                "%s: a crash of the server may lose what was published last (appendonly %s, appendfsync %s); "
                "`appendonly yes` with `appendfsync always` loses nothing",
                self.where,
                told.get("appendonly", "?"),
                told.get("appendfsync", "?"),
            )


def _chunks(rows: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (rows[first : first + CHUNK] for first in range(0, len(rows), CHUNK))


def _by_size(messages: Sequence[Message]) -> Iterable[Sequence[Message]]:
    batch: list[Message] = []
    size = 0
    for one in messages:
        if batch and (len(batch) == CHUNK or size + len(one.body) > CHUNK_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += len(one.body)
    if batch:
        yield batch


def _parts(handle: str) -> tuple[str, str, str]:
    """(token, entry, queue) of a handle."""
    parts = str(handle).split(".", 2)
    if len(parts) != 3 or not parts[0].isdecimal():
        raise ConfigError("this is no handle of a lease", got=repr(handle)[:80], expected="what `lease` gave")
    return parts[0], parts[1], parts[2]


def _head_of(content_type: str, key: str, headers: Mapping[str, str]) -> bytes:
    return msgspec.msgpack.encode((content_type, key, dict(headers)))


def _deliveries_of(packed: bytes, data: bytes, queue: str, lease_s: float) -> list[Delivery]:
    """What `TAKE` gave."""
    token, entries, counts, times_ms, ids, sizes = _TAKEN.decode(packed)
    heads: list[tuple[str, str, dict[str, str]]] = []
    coming, start, found = iter(sizes), 0, []

    def cut() -> bytes:
        nonlocal start
        first, start = start, start + next(coming)
        return data[first:start]

    for entry, deliveries, at_ms, name in zip(entries, counts, times_ms, ids, strict=True):
        number = next(coming)
        if number < 0:
            message = _message(_fields([cut() for _ in range(-number)]))
        else:
            if number == len(heads):
                heads.append(_HEAD.decode(cut()))
            content_type, key, headers = heads[number]
            message = Message(id=name, body=cut(), content_type=content_type, key=key, headers=headers)
        found.append(
            Delivery(
                message=message,
                handle=f"{token}.{entry}.{queue}",
                deliveries=deliveries,
                lease_s=lease_s,
                published_s=(at_ms or float(entry.partition("-")[0])) / 1000,
            )
        )
    return found


def _fields(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


OWN = frozenset({b"id", b"n", b"tupletree", b"at"})


def _message(fields: dict[bytes, bytes]) -> Message:
    """A message of the stream. One that another program added has its field `body`, or all of them as JSON."""
    head = fields.get(b"tupletree")
    if head is not None:
        content_type, key, headers = _HEAD.decode(head)
        name, body = fields[b"id"].decode(), fields[b"body"]
        return Message(id=name, body=body, content_type=content_type, key=key, headers=headers)
    name = fields[b"id"].decode(errors="replace")
    if b"body" in fields or not fields.keys() - OWN:
        return Message(id=name, body=fields.get(b"body", b""))
    shown = {
        one.decode(errors="replace"): value.decode(errors="replace") for one, value in fields.items() if one not in OWN
    }
    return Message(id=name, body=msgspec.json.encode(shown), content_type="application/json")
