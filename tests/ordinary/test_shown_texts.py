"""What a log and an error show can be used: ids that commands take, tracebacks that keep their shape."""

from __future__ import annotations

import traceback

import pytest

from tupletree.escaping import escape_block
from tupletree.tracking.attempt_notes import AttemptNotes
from tupletree.tracking.outcomes import Failure, FailureKind


def test_a_log_names_a_message_as_why_takes_it() -> None:
    failure = Failure(kind=FailureKind.ERROR, error="no", component="parse")
    told = AttemptNotes().of(("logs/a.log", 7), 1, failure, 0.0)
    assert told is not None
    assert 'attempt 1 of message ["logs/a.log", 7] failed (error)' in told
    told = AttemptNotes().of("order-7", 1, failure, 0.0)
    assert told is not None
    assert "attempt 1 of message order-7 failed" in told


def test_a_traceback_keeps_its_shape_where_it_is_shown() -> None:
    with pytest.raises(ValueError, match="no") as raised:
        int("no")
    text = "".join(traceback.format_exception(raised.value)).rstrip()
    first, *others = escape_block(text).split("\n")
    assert [first, *(line.removeprefix("    ") for line in others)] == text.split("\n")
    assert escape_block(escape_block(text)) == escape_block(text)
