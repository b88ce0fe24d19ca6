"""`tupletree queues`: check, look into, fill and empty the queues that a URL names."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tupletree.cli.arguments import Json
from tupletree.cli.output import print_json, print_table
from tupletree.cli.parameters import url_from
from tupletree.errors import ConfigError, ConnectorError
from tupletree.escaping import escape, escape_json
from tupletree.texts import moment_text

if TYPE_CHECKING:
    from tupletree.queues import Broker, Message, QueueUrl, Stored
    from tupletree.queues.messages import State

BATCH = 1000
MOST_SHOWN = 200
SHOWN_CHARACTERS = 100

app = typer.Typer(no_args_is_help=True, help="Check, look into, fill and empty message queues.")

Url = Annotated[
    str, typer.Argument(metavar="URL", help="Such as sqlite:///orders.db?queue=orders; @FILE and '$VARIABLE' hold one.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="At most so many messages.")]
NoLimit = Annotated[int | None, typer.Option("--limit", min=1, help="At most so many messages. \\[default: all]")]
Create = Annotated[bool, typer.Option("--create", help="Make the queue (and its file) if it is not there.")]


@app.command("check")
def check_command(url: Url, create: Create = False, as_json: Json = False) -> None:
    """Connect, and publish, lease and ack a probe in a queue of its own."""
    import secrets
    import time

    from tupletree.queues import Message

    started_s = time.perf_counter()
    with _connect(url, create=create) as (broker, parts):
        queue = "tupletree-check"
        broker.declare(queue)
        probe = Message(id=f"probe-{secrets.token_hex(8)}", body=b"probe")
        broker.publish(queue, [probe])
        found = False
        while not found:
            leased = broker.lease(queue, BATCH, wait_s=5.0)
            found = any(delivery.message.id == probe.id for delivery in leased)
            broker.ack([delivery.handle for delivery in leased])  # others are probes of checks that were interrupted
            if not leased:
                raise ConnectorError(
                    "the probe was published and did not come back within 5 s",
                    where=parts.shown,
                    next_step=f"see whether another consumer reads the queue {queue!r}",
                )
        took_ms = (time.perf_counter() - started_s) * 1000
        capabilities = broker.capabilities
    if as_json:
        print_json({"url": parts.shown, "ok": True, "ms": round(took_ms, 1), "capabilities": capabilities})
        return
    print(f"ok: {escape(parts.shown)}, a probe was published, leased and acked ({took_ms:.0f} ms with connecting)")
    lacking = [name for name in capabilities.__struct_fields__ if getattr(capabilities, name) in (False, ())]
    print(f"  cannot: {', '.join(lacking) or 'nothing, it declares every capability'}")


@app.command("depth")
def depth_command(url: Url, as_json: Json = False) -> None:
    """Show how many messages are ready, leased, delayed and dead, in one queue or in all of the broker."""
    with _connect(url, looks=True) as (broker, parts):
        depths = {name: broker.depth(name) for name in ([parts.queue] if parts.queue else broker.queues())}
    if as_json:
        print_json({"url": parts.shown, "queues": depths})
        return
    rows = [
        (name, *(f"{number:,}" for number in (depth.ready, depth.leased, depth.delayed, depth.dead)))
        for name, depth in depths.items()
    ]
    numbers = ("ready", "leased", "delayed", "dead")
    print_table(("queue", *numbers), rows, numbers=numbers, whole=("queue", *numbers), none="no queues")


@app.command("peek")
def peek_command(
    url: Url,
    state: Annotated[str, typer.Option("--state", help="ready, delayed, leased or dead.")] = "ready",
    limit: Limit = 10,
    as_json: Json = False,
) -> None:
    """Show the next messages of a queue, without leasing them."""
    with _connect(url, looks=True) as (broker, parts):
        _show(broker.peek(_queue_of(parts), _state(state), limit), as_json=as_json)


@app.command("dead")
def dead_command(url: Url, limit: Limit = 10, as_json: Json = False) -> None:
    """Show the dead letters of a queue, with their reasons. `move --dead` makes them ready again."""
    with _connect(url, looks=True) as (broker, parts):
        _show(broker.peek(_queue_of(parts), "dead", limit), as_json=as_json)


@app.command("publish")
def publish_command(
    url: Url,
    body: Annotated[str | None, typer.Option("--body", help="Text. \\[default: a message per line of stdin]")] = None,
    message_id: Annotated[str | None, typer.Option("--id", help="Its id. \\[default: drawn at random]")] = None,
    key: Annotated[
        str, typer.Option("--key", help="Messages with the same key keep their order, if the queue supports it.")
    ] = "",
    headers: Annotated[list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="Repeat it.")] = None,
    id_field: Annotated[
        str, typer.Option("--id-field", metavar="NAME", help="Each body is JSON; the id is this field of it.")
    ] = "",
    key_field: Annotated[str, typer.Option("--key-field", metavar="NAME", help="The same for the key.")] = "",
    content_type: Annotated[
        str | None,
        typer.Option(
            "--content-type",
            help="Of the body. \\[default: text/plain; charset=utf-8, or application/json where it is taken for JSON]",
        ),
    ] = None,
    delay_s: Annotated[float, typer.Option("--delay-s", help="Seconds until it may be leased.")] = 0.0,
    create: Create = False,
    as_json: Json = False,
) -> None:
    """Publish one message, or one for each line of standard input.

    With --id-field what was published by a call that failed is left as it is when it is made again.
    """
    from tupletree.queues import Message

    if body is None and message_id is not None:
        next_step = "give its --body too, or name with --id-field what each line has its id in"
        raise ConfigError("--id names one message", got="no --body", next_step=next_step)
    for one, field, given_both in (("id", id_field, message_id is not None), ("key", key_field, bool(key))):
        if field and given_both:
            raise ConfigError(f"the {one} is given twice", got=f"--{one} and --{one}-field", expected="one of the two")
    fields = {name: field for name, field in (("id", id_field), ("key", key_field)) if field}
    common: dict[str, Any] = {
        "key": key,
        "headers": dict(_header(text) for text in headers or ()),
        "content_type": content_type or ("application/json" if fields else "text/plain; charset=utf-8"),
        "delay_s": delay_s,
    }
    if message_id is not None:
        common["id"] = message_id
    bodies = [body.encode()] if body is not None else (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
    messages = (
        Message(body=one, **{**common, **_fields_of(one, fields, number)}) for number, one in enumerate(bodies, 1)
    )
    given, new = 0, 0
    with _connect(url, create=create) as (broker, parts):
        queue = _queue_of(parts)
        if create:
            broker.declare(queue)
        for batch in _batches(messages):
            new += broker.publish(queue, batch)
            given += len(batch)
    if as_json:
        print_json({"queue": queue, "published": new, "known": given - new})
    else:
        print(f"published: {new}" + (f" ({given - new} had an id that is in the queue already)" if new < given else ""))


@app.command("drain")
def drain_command(url: Url, limit: NoLimit = None, as_json: Json = False) -> None:
    """Take messages out of a queue and print them, one line each. They are acked when they are printed."""
    with _connect(url) as (broker, parts):
        queue = _queue_of(parts)
        left = limit
        while left is None or left > 0:
            leased = broker.lease(queue, BATCH if left is None else min(BATCH, left))
            if not leased:
                break
            for delivery in leased:
                print(_line_of(delivery.message, as_json=as_json))
            # What could not be written (a full disk, a closed pipe) must not be acked.
            sys.stdout.flush()
            if refused := broker.ack([delivery.handle for delivery in leased]):
                print(
                    f"  {len(refused)} will be delivered again: their leases ended before they were acked",
                    file=sys.stderr,
                )
            left = None if left is None else left - len(leased)


@app.command("move")
def move_command(
    url: Url,
    target: Annotated[str | None, typer.Argument(metavar="[TARGET]", help="Name of the queue to move to.")] = None,
    state: Annotated[str, typer.Option("--state", help="ready, delayed or dead.")] = "ready",
    dead: Annotated[
        bool, typer.Option("--dead", help="As --state dead; without a TARGET they become ready again.")
    ] = False,
    limit: NoLimit = None,
    ids: Annotated[list[str] | None, typer.Option("--message", metavar="ID", help="Only these; repeat it.")] = None,
    create: Create = False,
    as_json: Json = False,
) -> None:
    """Move messages to the end of another queue of the broker; dead letters also to their own."""
    state = "dead" if dead else state
    with _connect(url) as (broker, parts):
        source = _queue_of(parts)
        target = target or (source if state == "dead" else None)
        if target is None:
            raise ConfigError(
                "name the queue to move to", where=parts.shown, expected="tupletree queues move URL TARGET"
            )
        if create:
            broker.declare(target)
        moved = broker.move(source, target, state=_state(state), limit=limit or 0, ids=ids or ())
    if as_json:
        print_json({"source": source, "target": target, "moved": moved})
    else:
        print(f"moved: {moved}, from {escape(source)} to {escape(target)}")


@contextlib.contextmanager
def _connect(url: str, *, create: bool = False, looks: bool = False) -> Iterator[tuple[Broker, QueueUrl]]:
    """A broker and its URL's parts. A file that does not exist is only made with `create`.

    Who only `looks` is not warned of what may become of messages that are published.
    """
    from tupletree.queues.registry import connect
    from tupletree.queues.urls import parse_url

    url = url_from(url)
    parts = parse_url(url)
    if parts.scheme == "sqlite" and parts.path and not create and not Path(parts.path).exists():
        way_out = "check the path; `tupletree queues publish URL --create` makes it"
        raise ConfigError("there is no such queue file", where=parts.shown, next_step=way_out)
    with _quiet() if looks else contextlib.nullcontext(), connect(url) as broker:
        yield broker, parts


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("tupletree.queues")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _queue_of(parts: QueueUrl) -> str:
    if not parts.queue:
        raise ConfigError("name the queue", where=parts.shown, expected=f"{parts.shown}?queue=NAME")
    return parts.queue


def _state(text: str) -> State:
    from tupletree.queues.messages import STATES

    for state in STATES:
        if text == state:
            return state
    raise ConfigError("there is no such state", got=text, expected=f"one of {', '.join(STATES)}")


def _header(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark:
        raise ConfigError("this is not a header", got=text, expected="NAME=VALUE")
    return name, value


def _fields_of(body: bytes, fields: Mapping[str, str], number: int) -> dict[str, str]:
    """Part of a message → its text, from the field of the body that has it. Raises ConfigError: it has none."""
    if not fields:
        return {}
    import json

    try:
        value = json.loads(body)
    except ValueError as error:
        raise _no_field(body, number, f"no JSON: {error}") from error
    found = {}
    for part, field in fields.items():
        text = value.get(field) if isinstance(value, dict) else None
        if isinstance(text, bool) or not isinstance(text, str | int):
            raise _no_field(body, number, f"no text or whole number in {field!r}")
        found[part] = str(text)
    return found


def _no_field(body: bytes, number: int, what: str) -> ConfigError:
    shown = body.decode("utf-8", "replace")
    return ConfigError(
        what,
        where=f"line {number:,}",
        got=shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}…",
        expected="a JSON object with that field",
        next_step=f"correct the line, and publish all again: what is published of the {number - 1:,} before it is "
        "known by its id, if the broker knows ids",
    )


def _batches(messages: Iterator[Message]) -> Iterator[Sequence[Message]]:
    import itertools

    while batch := list(itertools.islice(messages, BATCH)):
        yield batch


def _show(found: Sequence[Stored], *, as_json: bool) -> None:
    if as_json:
        print_json(*map(_plain, found))
        return
    names = ("id", "deliveries", "due", "reason", "body")
    rows = []
    for stored in found:
        due = moment_text(stored.due_s) if stored.due_s else "–"
        rows.append((stored.message.id, str(stored.deliveries), due, stored.reason or "–", _body(stored.message)))
    print_table(names, rows, numbers=("deliveries",), whole=names, none="no messages")


def _line_of(message: Message, *, as_json: bool) -> str:
    if not as_json:
        return _body(message, len(message.body) + 1)
    import msgspec

    return escape_json(msgspec.json.encode(_plain_message(message)).decode())


def _plain(stored: Stored) -> dict[str, Any]:
    import msgspec

    plain = msgspec.structs.asdict(stored)
    return {**_plain_message(plain.pop("message")), **plain}


def _plain_message(message: Message) -> dict[str, Any]:
    """For JSON: the body as text where it is, else in base64."""
    import base64

    plain: dict[str, Any] = {
        "id": message.id,
        "content_type": message.content_type,
        "headers": dict(message.headers),
        "key": message.key,
    }
    try:
        plain["body"] = message.body.decode()
    except UnicodeDecodeError:
        plain["body_base64"] = base64.b64encode(message.body).decode()
    return plain


def _body(message: Message, most: int = SHOWN_CHARACTERS) -> str:
    """A body as one line of text."""
    head = message.body[: most * 4]
    try:
        text = head.decode(errors="strict" if len(head) == len(message.body) else "ignore")
    except UnicodeDecodeError:
        return f"{len(message.body):,} bytes: {message.body[:16].hex(' ')}" + (" …" if len(message.body) > 16 else "")
    return escape(text[:most]) + (" …" if len(text) > most or len(head) < len(message.body) else "")
