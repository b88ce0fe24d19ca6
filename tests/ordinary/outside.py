"""A topology whose ids, errors, positions and values come from outside, and hold lone surrogates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tupletree import Emit, EndOfInput, KeyedState, Reject, Spout, Topology, bolt
from tupletree.ids import MessageId
from tupletree.sinks import jsonl
from tupletree.topology.components import TaskContext

ODD = "caf\udce9"
"""How Python has the bytes `caf\\xe9` of a file name."""


class Item(msgspec.Struct, frozen=True):
    kind: str
    number: int


class Row(msgspec.Struct, frozen=True):
    text: str


class OddError(Exception):
    """An error whose text cannot be encoded."""


class OddIds(Spout[Item]):
    """Gives one message of each kind, and remembers what it hears. Its position is a text like its ids."""

    kinds = ("good", "raises", "returns", "keyed", "rejected", "names")

    def __init__(self, heard: list[tuple[str, Any]]) -> None:
        self.heard = heard

    def open(self, context: TaskContext) -> None:
        self.at = 0

    def next(self) -> Emit[Item] | Reject:
        if self.at == len(self.kinds):
            raise EndOfInput
        kind = self.kinds[self.at]
        self.at += 1
        if kind == "rejected":
            return Reject(b"caf\xe9", (ODD, self.at), f"{ODD}: not readable")
        return Emit(Item(kind, self.at), (ODD, self.at))

    def ack(self, message_id: MessageId) -> None:
        self.heard.append(("ack", message_id))

    def fail(self, message_id: MessageId, failure: Any) -> None:
        self.heard.append(("fail", message_id))

    def snapshot(self) -> dict[str, Any]:
        return {"file": ODD, "parts": [ODD, b"\xe9", {ODD: 1}], "at": self.at}

    def restore(self, position: dict[str, Any]) -> None:
        assert position == {"file": ODD, "parts": [ODD, b"\xe9", {ODD: 1}], "at": position["at"]}
        self.at = position["at"]


@bolt
def work(item: Item) -> Row:
    if item.kind == "raises":
        raise OddError(f"{ODD}: no such file")
    if item.kind == "names":
        raise FileNotFoundError(2, "No such file", ODD)
    return Row(ODD if item.kind in {"returns", "keyed"} else item.kind)


@bolt(state=int)
def count(row: Row, total: KeyedState[int]) -> Row:
    total.value += 1
    return row


def topology(heard: list[tuple[str, Any]], out: Path) -> Topology:
    t = Topology("outside")
    rows = t.bolt("work", work).shuffle(t.spout("odd", OddIds(heard)))
    t.sink("out", jsonl(out)).shuffle(t.bolt("count", count).fields(rows, "text"))
    return t
