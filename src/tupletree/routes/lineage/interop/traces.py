"""Trace context of messages: W3C `traceparent`, and ids of spans that are the same in every process.

Pure. The trace of a message is that of the header that it came with; else that of its execution. The span of a
delivery is a hash of message and attempt, so that a child can name it before it is sent, and no context travels beside
the messages.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import xxhash

HEADER = "traceparent"

_FORM = re.compile(r"(?:[0-9a-f]{2}-)?([0-9a-f]{32})(?:-([0-9a-f]{16})(?:-[0-9a-f]{2}\S*)?)?")


class Context(NamedTuple):
    """A span in a trace, as numbers; 0 for what is not known."""

    trace: int
    span: int = 0

    def header(self) -> str:
        """As the value of a `traceparent` header.

        >>> Context(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331).header()
        '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
        """
        return f"00-{self.trace:032x}-{self.span:016x}-01"


def parse(text: str) -> Context | None:
    """Read a `traceparent`, or the first parts of one: TRACE, TRACE-SPAN. None: it is none.

    >>> parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").span == 0xb7ad6b7169203331
    True
    >>> parse("none") is None
    True
    """
    found = _FORM.fullmatch(text)
    if found is None or text.startswith("ff-"):
        return None
    trace = int(found[1], 16)
    return Context(trace, int(found[2] or "0", 16)) if trace else None


def trace_of(execution: str) -> int:
    """The trace of an execution whose messages brought none."""
    return xxhash.xxh3_128_intdigest(b"trace\0" + execution.encode("utf-8", "surrogatepass")) or 1


def span_of(*parts: str | int) -> int:
    """A span's id, of what names it."""
    text = "\0".join(map(str, parts))
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) or 1


def delivery_context(message: str, attempt: int, execution: str, trace: str = "") -> Context:
    """The span of a delivery; its header goes with the messages that come of it.

    Args:
        message: its id.
        attempt: from 1.
        execution: the first of its executions.
        trace: what the message's `traceparent` says; empty: nothing.
    """
    given = parse(trace) if trace else None
    return Context(given.trace if given else trace_of(execution), span_of("delivery", message, attempt))
