"""What stands in names, bodies and attributes of messages at SQS, and how it is read again.

Owns the form of names, and what of a message is its body there and what an attribute. Refuses to know a connection.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tupletree.queues.messages import DEFAULT_CONTENT_TYPE, Message, Stored

FIFO, DEAD = ".fifo", "-dead"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,70}")
_GRAPHIC = re.compile(r"[!-~]{1,128}")
_TEXT = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")
_NO_TEXT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ATTRIBUTE = re.compile(r"(?=.{1,256}\Z)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.DOTALL)

_OWN, _PACK, _REASON = "tupletree", "tupletree", "tupletree-reason"
_RESERVED = ("aws.", "amazon.", _OWN)
_MOST_HEADERS = 8
"""Of the ten attributes that a message may have, two are ours."""

_EMPTY = "="
"""The service has no message without a body."""

LONGEST_NATIVE_DELAY_S = 900
"""The service delays no message for longer; one that is to wait longer comes, and is hidden for the rest."""

LONGEST_HIDDEN_S = 43_000
"""The service hides no message for longer than 43,200 s from when it was received. A call needs its time, too."""

REASON_BYTES = 8_000
"""Room that a message leaves for the reason why it is dead."""


class _Pack(msgspec.Struct, omit_defaults=True):
    """What the attribute `tupletree` says of a message, as JSON.

    Attributes:
        id, type, key: of the message; `headers` where they cannot all be attributes.
        body: how the bytes are text there: "" as they are, or "base64".
        delay_ms: from when it was sent until it may be leased, beyond what the service keeps by itself.
        not_before_ms: Unix time before which it may not be leased.
        published_ms, deliveries: of a dead letter, whose own would be those of the copy.
    """

    id: str = ""
    type: str = DEFAULT_CONTENT_TYPE
    key: str = ""
    headers: dict[str, str] | None = None
    body: str = ""
    delay_ms: int = 0
    not_before_ms: int = 0
    published_ms: int = 0
    deliveries: int = 0


_PACKED = msgspec.json.Decoder(_Pack)


class Parcel(msgspec.Struct, frozen=True, gc=False):
    """A message as it is handed to the service.

    Attributes:
        id: of the message, for errors.
        body: text that the service takes.
        attributes: name → text.
        delay_s: for which the service keeps it back.
        group, deduplication: for a FIFO queue; else empty.
    """

    id: str
    body: str
    attributes: dict[str, str]
    delay_s: int = 0
    group: str = ""
    deduplication: str = ""

    @property
    def size(self) -> int:
        """Bytes, as the service counts them."""
        texts = (len(name) + len("String") + len(text.encode()) for name, text in self.attributes.items())
        return len(self.body.encode()) + sum(texts)

    def entry(self) -> dict[str, Any]:
        """What stands for it in a request."""
        made: dict[str, Any] = {"MessageBody": self.body}
        if self.attributes:
            made["MessageAttributes"] = {
                name: {"DataType": "String", "StringValue": text} for name, text in self.attributes.items()
            }
        if self.group:
            made["MessageGroupId"], made["MessageDeduplicationId"] = self.group, self.deduplication
        else:
            made["DelaySeconds"] = self.delay_s
        return made


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message that the service handed out.

    Attributes:
        message: the message.
        receipt: names this receipt to the service.
        service_id: what the service calls the message.
        sent_s, first_s: when it was sent, and first received, by the service's clock; 0 if it does not say.
        count: how often it was received.
        due_s: Unix time before which it may not be leased; 0 means none that the service does not keep.
        dead_deliveries, published_s, reason: what a dead letter says of its message.
    """

    message: Message
    receipt: str
    service_id: str
    sent_s: float
    first_s: float
    count: int
    due_s: float
    dead_deliveries: int
    published_s: float
    reason: str

    @property
    def deliveries(self) -> int:
        """How often it was received when it might be leased: not counted is when it came only to be hidden again."""
        early = math.ceil((self.due_s - self.first_s) / LONGEST_HIDDEN_S) if 0 < self.first_s < self.due_s else 0
        return max(1, self.count - early)


def is_fifo(name: str) -> bool:
    """Whether this is the name of a queue that the service keeps in order."""
    return name.endswith(FIFO)


def name_of(queue: str) -> str:
    """The service's name of a queue: its own, or one made of a hash where that is none there."""
    base = queue.removesuffix(FIFO)
    if not _NAME.fullmatch(base) or base.endswith(DEAD):
        base = f"tupletree-{hashlib.sha256(base.encode()).hexdigest()[:40]}"
    return base + (FIFO if is_fifo(queue) else "")


def fifo_name(name: str) -> str:
    """The service's name of the same queue, kept in order."""
    return name if is_fifo(name) else name + FIFO


def dead_name(name: str) -> str:
    """The service's name of the queue that has the dead letters."""
    return name.removesuffix(FIFO) + DEAD + (FIFO if is_fifo(name) else "")


def group_of(message: Message) -> str:
    """The group in which the service keeps a message in order: of its key, or one of its own."""
    if not message.key:
        return f"{_OWN}.id.{_hash(message.id)}"
    if _GRAPHIC.fullmatch(message.key) and not message.key.startswith(_OWN):
        return message.key
    return f"{_OWN}.key.{_hash(message.key)}"


def deduplication_of(message_id: str, copy_of: str = "") -> str:
    """By what the service knows a message again, for five minutes; `copy_of` tells a copy from what was published."""
    if _GRAPHIC.fullmatch(message_id) and not message_id.startswith(_OWN) and not copy_of:
        return message_id
    return f"{_OWN}.{_hash(message_id + chr(0) + copy_of)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def parcel_of(name: str, message: Message, *, now_s: float = 0.0, copy_of: str = "") -> Parcel:
    """What stores a message in a queue.

    Args:
        name: the service's, of the queue.
        message: the message, with its delay.
        now_s: Unix time by the service's clock, for a time of day.
        copy_of: names the dead letter that it was.
    """
    pack = _Pack(message.id, message.content_type, message.key)
    body, pack.body = _text_of(message.body)
    delay_s = 0
    if message.delay_s or message.not_before_s:
        wait_s = max(message.delay_s, message.not_before_s - now_s, 0.0)
        delay_s = 0 if is_fifo(name) else min(math.ceil(wait_s), LONGEST_NATIVE_DELAY_S)
        pack.not_before_ms = math.ceil(message.not_before_s * 1000)
        pack.delay_ms = math.ceil(message.delay_s * 1000) if message.delay_s > delay_s else 0
    attributes = _attributes(pack, message.headers)
    if not is_fifo(name):
        return Parcel(message.id, body, attributes, delay_s)
    return Parcel(message.id, body, attributes, 0, group_of(message), deduplication_of(message.id, copy_of))


def letter_of(name: str, received: Received, reason: str, *, most_bytes: int) -> Parcel:
    """What stores a dead letter, in a queue for them.

    Args:
        name: the service's, of that queue.
        received: the message, as it was handed out.
        reason: why it is dead.
        most_bytes: that fit; the reason is cut to what is left, and not kept where nothing is.
    """
    message = received.message
    pack = _Pack(message.id, message.content_type, message.key)
    pack.published_ms, pack.deliveries = round(received.published_s * 1000), received.deliveries
    body, pack.body = _text_of(message.body)
    attributes = _attributes(pack, message.headers)
    group, deduplication = "", ""
    if is_fifo(name):  # each in a group of its own: none waits for another one that is looked at
        group = deduplication = deduplication_of(received.service_id, "dead")
    parcel = Parcel(message.id, body, attributes, 0, group, deduplication)
    room = min(REASON_BYTES, most_bytes - parcel.size - len(_REASON) - len("String"))
    if room < 0 and message.id == received.service_id:  # another program's: it says the same without us
        del attributes[_PACK]
    elif room > 0:
        attributes[_REASON] = _cut(reason, room) or "no reason was given"
    return parcel


def _attributes(pack: _Pack, headers: Mapping[str, str]) -> dict[str, str]:
    attributes: dict[str, str] = {}
    if len(headers) <= _MOST_HEADERS and all(_can_be_attribute(*one) for one in headers.items()):
        attributes.update(headers)
    else:
        pack.headers = dict(headers)
    # With escapes for all that is not ASCII, of which the service would refuse some.
    return {**attributes, _PACK: json.dumps(msgspec.to_builtins(pack), separators=(",", ":"))}


def _can_be_attribute(name: str, text: str) -> bool:
    """Whether other programs can find a header as an attribute."""
    is_free = _ATTRIBUTE.fullmatch(name) and not name.lower().startswith(_RESERVED)
    return bool(is_free and text and _TEXT.fullmatch(text))


def _text_of(body: bytes) -> tuple[str, str]:
    """A body as text that the service takes, and how it was made."""
    if body:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            text = "\0"
        if _TEXT.fullmatch(text):
            return text, ""
    return base64.b64encode(body).decode("ascii") or _EMPTY, "base64"


def _cut(text: str, most_bytes: int) -> str:
    """Its beginning, as the service takes it."""
    allowed = _NO_TEXT.sub("\N{REPLACEMENT CHARACTER}", text)
    return allowed.encode(errors="replace")[:most_bytes].decode(errors="ignore")


def received_of(raw: Mapping[str, Any]) -> Received:
    """What a message says that the service handed out, also one of another program: its id is the service's then."""
    theirs = {name: _text(value) for name, value in raw.get("MessageAttributes", {}).items()}
    reason = theirs.pop(_REASON, "")
    pack = _Pack()
    if _PACK in theirs:
        try:
            pack = _PACKED.decode(theirs[_PACK])
        except msgspec.MsgspecError:
            pass  # an attribute of this name that is not ours is one of theirs
        else:
            del theirs[_PACK]
    system = raw.get("Attributes", {})
    sent_s = _number(system.get("SentTimestamp")) / 1000
    due_s = max(sent_s + pack.delay_ms / 1000 if pack.delay_ms else 0.0, pack.not_before_ms / 1000)
    return Received(
        message=Message(
            id=pack.id or raw["MessageId"],
            body=_bytes_of(raw["Body"], pack.body),
            content_type=pack.type,
            headers=theirs if pack.headers is None else pack.headers,
            key=pack.key or ("" if pack.id else system.get("MessageGroupId", "")),
        ),
        receipt=raw["ReceiptHandle"],
        service_id=raw["MessageId"],
        sent_s=sent_s,
        first_s=_number(system.get("ApproximateFirstReceiveTimestamp")) / 1000,
        count=_number(system.get("ApproximateReceiveCount")),
        due_s=due_s,
        dead_deliveries=pack.deliveries,
        published_s=pack.published_ms / 1000 or sent_s,
        reason=reason,
    )


def stored_of(received: Received) -> Stored:
    """A dead letter, as `peek` shows it."""
    is_ours = bool(received.dead_deliveries)
    return Stored(
        message=received.message,
        state="dead",
        deliveries=received.dead_deliveries,
        due_s=received.sent_s if is_ours else 0.0,
        published_s=received.published_s,
        reason=received.reason if is_ours else "the service put it here: its redrive policy, or another program",
    )


def _bytes_of(text: str, how: str) -> bytes:
    if how == "base64":
        try:
            return base64.b64decode("" if text == _EMPTY else text, validate=True)
        except binascii.Error:
            return text.encode()
    return text.encode()


def _number(text: Any) -> int:
    return int(text) if isinstance(text, str) and text.isdecimal() else 0


def _text(value: Mapping[str, Any]) -> str:
    """Of an attribute: text, a number as text, or bytes."""
    binary = value.get("BinaryValue")
    if isinstance(binary, bytes):
        return binary.decode(errors="replace")
    return str(value.get("StringValue", ""))
