"""CloudEvents: attributes on messages, both ways.

Owns which header holds which attribute: `ce_NAME`, as in the binding for Kafka, `traceparent` as in W3C Trace Context;
the content type is the message's own. `to_event` and `from_event` need the extra `cloudevents`; the headers do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from tupletree.errors import ConfigError, needing
from tupletree.queues.messages import DEFAULT_CONTENT_TYPE, MAX_ID_BYTES, Message
from tupletree.routes.lineage.interop.traces import HEADER as TRACEPARENT

if TYPE_CHECKING:
    from cloudevents.core.v1.event import CloudEvent

PREFIX = "ce_"
DEFAULT_TYPE = "tupletree.message"
JSON = "application/json"


def event_headers(
    headers: Mapping[str, str],
    *,
    id: str,  # noqa: A002 - the attribute's name
    source: str,
    time_s: float,
    type: str = DEFAULT_TYPE,  # noqa: A002 - the attribute's name
    subject: str = "",
    correlation: str = "",
    causation: str = "",
) -> dict[str, str]:
    """Headers of a message with the attributes of its own event; those of another event in them are replaced.

    Args:
        headers: such as those of the message that it came of. Further attributes (extensions) in them stay.
        id: of the message.
        source: which pipeline and route made it, as a URI reference: `/pipeline/route`.
        time_s: when, Unix time.
        type: of the event.
        subject: of the event; empty: none.
        correlation: what belongs together: the execution.
        causation: the message that it came of.
    """
    time = datetime.fromtimestamp(time_s, UTC).isoformat().replace("+00:00", "Z")
    own = {
        "specversion": "1.0",
        "id": id,
        "source": source,
        "type": type,
        "time": time,
        "subject": subject,
        "correlationid": correlation,
        "causationid": causation,
    }
    kept = {name: value for name, value in headers.items() if name.removeprefix(PREFIX) not in own}
    return kept | {PREFIX + name: value for name, value in own.items() if value}


def attributes_of(message: Message) -> dict[str, str]:
    """The attributes that a message's headers hold; empty if they hold none."""
    found = {name[len(PREFIX) :]: text for name, text in message.headers.items() if name.startswith(PREFIX)}
    if found and TRACEPARENT in message.headers:
        found["traceparent"] = message.headers[TRACEPARENT]
    if found and message.content_type != DEFAULT_CONTENT_TYPE:
        found["datacontenttype"] = message.content_type
    return found


def to_event(message: Message, *, source: str = "", type: str = DEFAULT_TYPE, content_type: str = "") -> CloudEvent:  # noqa: A002 - the attribute's name
    """A message as an event.

    Args:
        message: whose headers may hold attributes.
        source: for a message whose headers name none.
        type: likewise.
        content_type: of the body, if the message does not say it; that of messages in pipelines is `application/json`.

    Raises:
        ConfigError: it has no source, or an attribute is wrong, or its body is no JSON although it is said to be.
        RuntimeUnavailableError: the SDK is not installed.
    """
    event_class, invalid = _sdk()
    given: dict[str, Any] = attributes_of(message)
    attributes: dict[str, Any] = {"id": message.id, "source": source, "type": type, "specversion": "1.0", **given}
    known = content_type if message.content_type == DEFAULT_CONTENT_TYPE else message.content_type
    if known:
        attributes["datacontenttype"] = known
    if TRACEPARENT in message.headers:
        attributes["traceparent"] = message.headers[TRACEPARENT]
    try:
        if "time" in attributes:
            attributes["time"] = datetime.fromisoformat(attributes["time"])
        data: Any = message.body
        if _is_json(attributes.get("datacontenttype", "")):
            data = msgspec.json.decode(message.body) if message.body else None
        event: CloudEvent = event_class(attributes, data)
    except (ValueError, invalid) as error:
        raise ConfigError(
            "this message is no event",
            where=f"message {message.id}",
            got=str(error),
            expected="attributes as CloudEvents 1.0",
        ) from error
    return event


def from_event(event: CloudEvent, *, key: str = "") -> Message:
    """An event as a message, to be published. The same event gives the same id: publishing it again changes nothing.

    Its data is the body as it is, if it is bytes; else as JSON.

    Args:
        event: of any source.
        key: of the message.
    """
    attributes = event.get_attributes()
    headers: dict[str, str] = {}
    for name, value in attributes.items():
        if value is None or name == "datacontenttype":
            continue
        text = value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else str(value)
        headers[TRACEPARENT if name == "traceparent" else PREFIX + name] = text
    data = event.get_data()
    content_type = attributes.get("datacontenttype") or ("" if isinstance(data, bytes) else JSON)
    is_text = isinstance(data, str) and not _is_json(content_type)
    body = data if isinstance(data, bytes) else data.encode() if is_text and isinstance(data, str) else _json_of(data)
    return Message(
        id=_message_id(event.get_source(), event.get_id()),
        body=body,
        content_type=content_type or DEFAULT_CONTENT_TYPE,
        headers=headers,
        key=key,
    )


def _message_id(source: str, id: str) -> str:  # noqa: A002 - the attribute's name
    """An event is named by both: another source may use the same id."""
    name = f"{source}#{id}"
    return name if len(name.encode()) <= MAX_ID_BYTES else hashlib.sha256(name.encode()).hexdigest()


def _json_of(data: object) -> bytes:
    return b"" if data is None else msgspec.json.encode(data)


def _is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == JSON or media_type.endswith("+json")


def _sdk() -> tuple[Any, type[Exception]]:
    """The class of events, and what it raises of wrong attributes."""
    with needing("events need the CloudEvents SDK", "cloudevents"):
        from cloudevents.core.exceptions import CloudEventValidationError
        from cloudevents.core.v1.event import CloudEvent
    return CloudEvent, CloudEventValidationError
