"""Messages as events of CloudEvents' own SDK, and events as messages."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary, to_binary
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from tupletree.errors import ConfigError
from tupletree.queues import Message
from tupletree.routes.lineage.interop.cloudevents import attributes_of, event_headers, from_event, to_event

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def made() -> Message:
    headers = event_headers(
        {"traceparent": TRACE, "lang": "en"},
        id="piece-1",
        source="/ingest/segment",
        type="org.example.piece",
        subject="doc.md",
        time_s=1_700_000_000.25,
        correlation="e1",
        causation="doc",
    )
    return Message(id="piece-1", body=b'{"text":"h\xc3\xa9"}', content_type="application/json", headers=headers)


def test_a_message_becomes_an_event_with_all_its_attributes() -> None:
    event = to_event(made())
    assert (event.get_id(), event.get_source(), event.get_type()) == ("piece-1", "/ingest/segment", "org.example.piece")
    assert event.get_subject() == "doc.md"
    assert event.get_time() == datetime.fromtimestamp(1_700_000_000.25, UTC)
    assert event.get_datacontenttype() == "application/json"
    assert event.get_extension("correlationid") == "e1"
    assert event.get_extension("causationid") == "doc"
    assert event.get_extension("traceparent") == TRACE
    assert event.get_data() == {"text": "hé"}


def test_an_event_becomes_a_message_that_becomes_the_same_event() -> None:
    event = to_event(made())
    message = from_event(event)
    assert message.headers["traceparent"] == TRACE
    assert to_event(message).get_attributes() == event.get_attributes()
    assert to_event(message).get_data() == event.get_data()
    assert from_event(to_event(message)) == message


def test_the_headers_are_those_of_the_sdks_binding_for_kafka() -> None:
    message = made()
    bound = to_binary(to_event(message), JSONFormat())
    theirs = {name: value.decode() for name, value in bound.headers.items()}
    ours = {name: value for name, value in message.headers.items() if name not in {"lang", "traceparent"}}
    assert theirs == {**ours, "ce_traceparent": TRACE, "content-type": "application/json"}
    received = from_binary(KafkaMessage(bound.headers, None, bound.value), JSONFormat())
    assert from_event(received).headers == {name: value for name, value in message.headers.items() if name != "lang"}  # type: ignore[arg-type]


def test_a_child_has_attributes_of_its_own_and_keeps_what_else_its_parent_had() -> None:
    parent = made()
    headers = event_headers(
        {**parent.headers, "ce_tenant": "t1"}, id="child", source="/ingest/index", time_s=0.0, causation=parent.id
    )
    child = attributes_of(Message(id="child", headers=headers))
    assert child == {
        "specversion": "1.0",
        "id": "child",
        "source": "/ingest/index",
        "type": "tupletree.message",
        "time": "1970-01-01T00:00:00Z",
        "causationid": "piece-1",
        "tenant": "t1",
        "traceparent": TRACE,
    }


def test_events_of_two_sources_with_the_same_id_are_two_messages() -> None:
    def event(source: str) -> Message:
        return from_event(CloudEvent({"id": "1", "source": source, "type": "t"}, b"x"))

    assert event("/a").id != event("/b").id
    assert event("/a").id == event("/a").id
    assert len(event("/" + "a" * 2000).id) == 64


@pytest.mark.parametrize(
    ("data", "content_type", "body"),
    [
        (b"\x00\x01", None, b"\x00\x01"),
        ("text", "text/plain", b"text"),
        ("text", "application/json", b'"text"'),
        ({"a": 1}, None, b'{"a":1}'),
        (None, None, b""),
    ],
)
def test_data_of_any_kind_becomes_a_body(data: object, content_type: str | None, body: bytes) -> None:
    attributes = {"id": "1", "source": "/a", "type": "t"}
    if content_type:
        attributes["datacontenttype"] = content_type
    assert from_event(CloudEvent(attributes, data)).body == body  # type: ignore[arg-type]


def test_a_message_that_is_no_event_says_what_is_missing() -> None:
    plain = Message(id="m", body=b"{}")
    assert attributes_of(plain) == {}
    assert to_event(plain, source="/orders", content_type="application/json").get_data() == {}
    with pytest.raises(ConfigError, match="source"):
        to_event(plain)
    with pytest.raises(ConfigError, match="no event"):
        to_event(Message(id="m", body=b"{", content_type="application/json"), source="/orders")
    with pytest.raises(ConfigError, match="no event"):
        to_event(Message(id="m", headers={"ce_time": "yesterday"}), source="/orders")
