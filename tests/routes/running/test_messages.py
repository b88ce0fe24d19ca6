"""What pipelines send between processes: values of known types, as anything else costs a hundred times as much."""

from __future__ import annotations

import msgspec
import pytest

from tupletree.data.codec import FORM, ArrowCodec
from tupletree.routes.messages import CallRecord, CallRecords, Child, Settlement, Standing, Work
from tupletree.topology.streams import Schema

STANDING = Standing(id="m", route="r", queue="q", handle="h", executions=("e", "f"), attempt=2, headers={"a": "b"})
CHILD = Child(id="c", queue="out", body=b"{}", headers={"a": "b"}, delay_s=0.5)
RECORD = CallRecord(
    execution="e", route="r", adapter="a", position=0, message="m", attempt=1, status="completed", parents=("p",)
)


@pytest.mark.parametrize(
    "value",
    [
        Work(messages=[STANDING, STANDING], body=b"1", headers={"x": "y"}, parents=("p",), emitted=[CHILD]),
        Settlement(messages=[STANDING], outcome="done", children=[CHILD, CHILD]),
        RECORD,
        CallRecords(calls=[RECORD, RECORD]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_messages_of_pipelines_are_sent_as_values_of_known_types(value: msgspec.Struct) -> None:
    codec = ArrowCodec.of(Schema.of(type(value)))
    assert codec.decode(codec.encode([value])) == [value]
    assert b"tagged" not in {(field.metadata or {}).get(FORM) for field in codec.arrow_schema}
