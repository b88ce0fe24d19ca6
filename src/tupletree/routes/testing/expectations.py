"""What a test expects against what came of it: every difference, in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tupletree.escaping import escape
from tupletree.routes.document.cases import ExpectModel, OutputModel
from tupletree.routes.payloads import encode
from tupletree.routes.testing.playing import Play, PlayedMessage, PlayedOutput

SHOWN_CHARACTERS = 200


def differences(expected: ExpectModel, came: Play) -> list[str]:
    """Every difference; none if all is as expected."""
    return [escape(difference) for difference in _differences(expected, came)]


def _differences(expected: ExpectModel, came: Play) -> Iterator[str]:
    outcomes = expected.outcomes or [expected.outcome or "done"] * len(came.inputs)
    for number, (outcome, message) in enumerate(zip(outcomes, came.inputs)):
        if message.outcome != outcome:
            which = f"input {number}: " if len(came.inputs) > 1 else ""
            yield f"{which}outcome: expected {outcome}, got {message.outcome}{_why(message)}"
    first = came.inputs[0]
    for name in ("attempts", "called", "error"):
        value, got = getattr(expected, name), getattr(first, name)
        if value is not None and value != got:
            yield f"{name}: expected {_text(value)}, got {_text(got)}{_why(first) if name != 'called' else ''}"
    if expected.reason is not None and expected.reason not in first.reason:
        yield f"reason: expected {_text(expected.reason)} to be part of it, got {_text(first.reason)}"
    if expected.children is not None and expected.children != came.children:
        yield f"children: expected {expected.children}, got {came.children}"
    if expected.outputs is not None:
        for queue in dict.fromkeys([*expected.outputs, *came.outputs]):
            yield from _of_queue(queue, expected.outputs.get(queue, ()), came.outputs.get(queue, ()), expected.partial)


def _of_queue(queue: str, expected: Sequence[OutputModel], got: Sequence[PlayedOutput], partial: bool) -> Iterator[str]:
    if len(expected) != len(got):
        shown = f": {', '.join(_text(one.payload) for one in got)}" if got else ""
        yield f"{queue}: expected {_count(len(expected))}, got {_count(len(got))}{shown}"
        return
    for number, (one, output) in enumerate(zip(expected, got)):
        at = f"{queue}[{number}]"
        if not _equal(one.payload, output.payload, partial=partial):
            yield f"{at}: expected payload {_text(one.payload)}, got {_text(output.payload)}"
        for name, value in one.headers.items():
            if output.headers.get(name) != value:
                got_header = _text(output.headers[name]) if name in output.headers else "none"
                yield f"{at}: expected header {name} {_text(value)}, got {got_header}"


def _equal(expected: Any, got: Any, *, partial: bool) -> bool:
    """Whether two values are equal as JSON: 1 is 1.0, true is not 1, and NaN is itself."""
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        keys = expected.keys() <= got.keys() if partial else expected.keys() == got.keys()
        return keys and all(_equal(value, got[key], partial=partial) for key, value in expected.items())
    if isinstance(expected, list) and isinstance(got, list | tuple):
        return len(expected) == len(got) and all(_equal(*pair, partial=partial) for pair in zip(expected, got))
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, float) and isinstance(got, float) and math.isnan(expected):
        return math.isnan(got)
    return bool(expected == got)


def _why(message: PlayedMessage) -> str:
    if not message.reason and not message.error:
        return ""
    return f" ({': '.join(filter(None, [message.error, message.reason]))})"


def _count(number: int) -> str:
    return "no message" if not number else "1 message" if number == 1 else f"{number} messages"


def _text(value: Any) -> str:
    try:
        text = encode(value).decode()
    except Exception:  # noqa: BLE001 - it is only shown
        text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
