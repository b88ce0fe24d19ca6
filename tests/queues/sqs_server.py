"""A process that is moto's server of SQS on a port, until its standard input ends.

`python -m tests.queues.sqs_server PORT QUEUE…` makes these queues before it listens: it keeps all in memory, and a new
one has forgotten the old one's. It obeys lines, each answered with `0`: `advance SECONDS` moves its clock;
`fail OPERATION CODE STATUS COUNT` answers the next calls of an operation with an error; `lose ID CODE COUNT` does so
with one part of each of the next batches; `login KEY` takes all other keys as expired, `login` any key as good.

moto takes calls side by side without a lock, and loses messages by that: here it takes one at a time. It counts the
twelve hours for which a message can be hidden from its sending, the service from when it was received: so it does here.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

moto: Any = import_module("moto.moto_server.werkzeug_app")
models: Any = import_module("moto.sqs.models")
serving: Any = import_module("werkzeug.serving")

ACCOUNT, REGION = "123456789012", "eu-west-1"

_ONE_AT_A_TIME = threading.Lock()
_failing: dict[str, list[tuple[str, int]]] = {}
_losing: list[tuple[str, str]] = []
_login: list[str] = []
_ahead_s: list[float] = []


def now_s(*_: object) -> float:
    return time.time() + sum(_ahead_s)


def receive(self: Any, queue: str, count: int, wait_s: int, visibility: int, names: Any = None) -> list[Any]:
    """In the place of moto's own, which would wait while it keeps others waiting."""
    ends_s = time.monotonic() + wait_s
    while not (found := _receive(self, queue, count, 0, visibility, names)) and time.monotonic() < ends_s:
        _ONE_AT_A_TIME.release()
        time.sleep(0.02)  # another call may bring a message meanwhile
        _ONE_AT_A_TIME.acquire()
    return found


_receive: Callable[..., list[Any]] = models.SQSBackend.receive_message


def change_visibility(self: Any, queue_name: str, receipt_handle: str, visibility_timeout: int) -> None:
    """In the place of moto's own, with the service's limit."""
    for message in self.get_queue(queue_name)._messages:
        if message.had_receipt_handle(receipt_handle):
            sent, message.sent_timestamp = message.sent_timestamp, message.received_ms
            try:
                _change_visibility(self, queue_name, receipt_handle, visibility_timeout)
            finally:
                message.sent_timestamp = sent
            return
    _change_visibility(self, queue_name, receipt_handle, visibility_timeout)


def mark_received(self: Any, *given: Any, **named: Any) -> None:
    self.received_ms = now_s() * 1000
    _mark_received(self, *given, **named)


_change_visibility: Callable[..., None] = models.SQSBackend.change_message_visibility
_mark_received: Callable[..., None] = models.Message.mark_received


def application(real: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        operation = str(environ.get("HTTP_X_AMZ_TARGET", "")).rpartition(".")[2]
        with _ONE_AT_A_TIME:
            if _login and f"Credential={_login[-1]}" not in str(environ.get("HTTP_AUTHORIZATION")):
                _failing.setdefault(operation, []).append(("ExpiredToken", 403))
            if _failing.get(operation):
                code, status = _failing[operation].pop()
                start(f"{status} Failing", [("Content-Type", "application/x-amz-json-1.0"), ("X-Amzn-ErrorType", code)])
                return [json.dumps({"__type": code, "message": "as the test wants it"}).encode()]
            if not _losing or not operation.endswith("Batch"):
                return [b"".join(real(environ, start))]
            started: list[Any] = []
            body = without(b"".join(real(environ, lambda *given: started.extend(given))), *_losing.pop())
            status, headers = started[:2]
            start(status, [one for one in headers if one[0].lower() != "content-length"])
            return [body]

    return answer


def without(body: bytes, lost: str, code: str) -> bytes:
    """An answer in which one part failed."""
    said = json.loads(body)
    done = [one for one in said["Successful"] if one["Id"] != lost]
    failed = {"Id": lost, "SenderFault": False, "Code": code, "Message": "as the test wants it"}
    return json.dumps({"Successful": done, "Failed": [failed]}).encode()


def main() -> None:
    port, *queues = sys.argv[1:]
    models.unix_time = now_s
    models.unix_time_millis = lambda *_: now_s() * 1000
    models.SQSBackend.receive_message = receive
    models.SQSBackend.change_message_visibility = change_visibility
    models.Message.mark_received = mark_received
    handler = moto.MotoRequestHandler
    date = handler.date_time_string
    handler.date_time_string = lambda self, *_: date(self, int(now_s()))
    handler.log = lambda *_: None
    backend = models.sqs_backends[ACCOUNT][REGION]
    for name in queues:
        backend.create_queue(name, **({"FifoQueue": "true"} if name.endswith(".fifo") else {}))
    answering = application(moto.DomainDispatcherApplication(moto.create_backend_app))
    server = serving.make_server("127.0.0.1", int(port), answering, threaded=True, request_handler=handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for line in sys.stdin:
        match line.split():
            case ["advance", seconds]:
                _ahead_s.append(float(seconds))
            case ["login", *keys]:
                _login[:] = keys
            case ["fail", operation, code, status, count]:
                _failing[operation] = [(code, int(status))] * int(count)
            case ["lose", lost, code, count]:
                _losing.extend([(lost, code)] * int(count))
            case _:
                raise ValueError(line)
        print("0", flush=True)


if __name__ == "__main__":
    main()
