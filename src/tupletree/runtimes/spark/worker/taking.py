"""Takes messages from a broker in a worker, and makes them durable as a segment.

Owns one attempt of it. It works on nothing: the driver first makes the log of an epoch of what attempts report.
"""

from __future__ import annotations

from array import array
from pathlib import Path

import msgspec

from tupletree.errors import ConnectorError
from tupletree.logs import follow_environment
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.program import load_program
from tupletree.runtimes.spark.format.segments import Taken, TakeRequest, write_segment
from tupletree.texts import msgpack_bytes


def take(blob: bytes, request: TakeRequest, unique: int) -> bytes:
    """Take what a request says; returns an encoded `Taken`.

    Args:
        blob: what `pack_program` made.
        request: of the driver.
        unique: a number that no other attempt has within one start of the run.
    """
    with follow_environment():
        program = load_program(blob)
    component = program.component(request.component)
    try:
        taken = component.body.take(request.max_messages, request.max_bytes)
        if not taken:
            return msgspec.msgpack.encode(Taken())
        file = f"{request.name}-{unique}.segment"
        messages = [message for _, message in taken]
        write_segment(Path(request.directory) / file, messages)
    except ConnectorError as error:
        return msgspec.msgpack.encode(Taken(fault=msgpack_bytes(wire.Unreadable.of(error, component.name))))
    lengths = array("I", map(len, messages)).tobytes()
    return msgspec.msgpack.encode(Taken(file, [lease for lease, _ in taken], lengths))
