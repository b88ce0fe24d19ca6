from __future__ import annotations

import asyncio
import base64
import json
import logging
import socket
import threading
import traceback
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import pytest
from pydantic import ValidationError

from tests.routes.adapters.calls import called, closed, opened, payload_of, process
from tests.routes.adapters.service import Answer, Asked, Service, serving
from tupletree.errors import ConnectorError, PermanentError, ProcessingError
from tupletree.routes import RetryAfter, RouteMessage
from tupletree.routes.adapters import find

JSON = {"Content-Type": "application/json; charset=utf-8"}


def run(work: Any) -> Any:
    return asyncio.run(work)


def echo(asked: Asked) -> Answer:
    told = {"method": asked.method, "path": asked.path, "body": asked.body.decode("latin-1")}
    return Answer(body=json.dumps(told).encode(), headers=JSON)


@pytest.fixture
def service() -> Iterator[Service]:
    with serving(echo) as service:
        yield service


def failed(service: Service, answer: Answer, **config: Any) -> BaseException:
    service.answer = lambda asked: answer
    with pytest.raises((ProcessingError, ConnectorError)) as caught:
        run(called("http_request", {}, **{"url": f"{service.url}/a", **config}))
    return caught.value


def test_the_answer_is_put_into_the_message(service: Service) -> None:
    result = run(
        called("http_request", {"id": "a/b c"}, url=service.url + "/doc/{{ payload.id }}?x=1", into="payload.r")
    )
    assert result.message.payload["r"] == {"method": "GET", "path": "/doc/a%2Fb%20c?x=1", "body": ""}
    assert result.message.payload["id"] == "a/b c"
    assert result.message.headers["http-status"] == "200"


def test_body_headers_and_query_are_sent(service: Service) -> None:
    config = {
        "url": f"{service.url}/",
        "method": "POST",
        "send": "payload.doc",
        "params": {"q": "{{ payload.q }}"},
        "headers": {"Authorization": "Bearer secret"},
    }
    told = run(payload_of("http_request", {"doc": {"a": [1]}, "q": "x & y"}, **config))["response"]
    assert told == {"method": "POST", "path": "/?q=x+%26+y", "body": '{"a": [1]}'}
    headers = service.asked[0].headers
    assert headers["authorization"] == "Bearer secret"
    assert headers["content-type"] == "application/json"
    assert headers["idempotency-key"] == "m1"
    assert "secret" not in repr(find("http_request").Config.model_validate(config))


def test_bytes_and_text_with_a_content_type_are_sent_as_they_are(service: Service) -> None:
    base = {"url": service.url, "method": "PUT", "send": "payload"}
    told = run(payload_of("http_request", b"\xff", into="payload", **base))
    assert told["body"] == "\xff"
    assert service.asked[0].headers["content-type"] == "application/octet-stream"
    told = run(payload_of("http_request", "a", into="payload", headers={"content-type": "text/plain"}, **base))
    assert told["body"] == "a"
    assert run(payload_of("http_request", "a", into="payload", **base))["body"] == '"a"'
    with pytest.raises(PermanentError, match="cannot be sent as JSON"):
        run(called("http_request", float("nan"), **base))


@pytest.mark.parametrize(
    ("kind", "body", "config", "value"),
    [
        ("application/json", b"[1]", {}, [1]),
        ("application/problem+json", b"[1]", {}, [1]),
        ("application/json", b"", {}, None),
        ("text/plain; charset=latin-1", b"\xe9", {}, "é"),
        ("image/png", b"\x00", {}, b"\x00"),
        ("image/png", b"[1]", {"response": "json"}, [1]),
        ("application/json", b"[1]", {"response": "bytes"}, b"[1]"),
    ],
)
def test_an_answer_is_read_by_its_type(service: Service, kind: str, body: bytes, config: Any, value: Any) -> None:
    service.answer = lambda asked: Answer(body=body, headers={"Content-Type": kind})
    assert run(payload_of("http_request", {}, url=service.url, into="payload", **config)) == value


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422, 304])
def test_a_refused_request_fails_for_good(service: Service, status: int) -> None:
    error = failed(service, Answer(status, b"why not"))
    assert isinstance(error, PermanentError)
    assert str(status) in str(error)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_service_that_may_answer_later_fails_the_attempt_only(service: Service, status: int) -> None:
    error = failed(service, Answer(status, b"busy"))
    assert type(error) is ProcessingError
    assert "busy" in str(error)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7.0), ("0", 0.0), ("999999", 3600.0), ("9" * 400, 3600.0), (formatdate(1_700_000_009, usegmt=True), 9.0)],
)
def test_the_pause_that_a_service_asks_for_is_made(service: Service, text: str, seconds: float) -> None:
    service.answer = lambda asked: Answer(503, b"", {"Retry-After": text})

    async def work() -> None:
        adapter = await opened("http_request", url=service.url)
        try:
            await process(adapter, RouteMessage({}), now_s=lambda: 1_700_000_000.0)
        finally:
            await closed(adapter)

    with pytest.raises(RetryAfter) as caught:
        run(work())
    if text.endswith("GMT"):  # by the service's own clock, which is that of this machine
        assert caught.value.seconds == 0.0
    else:
        assert caught.value.seconds == seconds


@pytest.mark.parametrize("text", ["soon", "-5", "", "1.5"])
def test_a_pause_that_cannot_be_read_is_the_routes_own(service: Service, text: str) -> None:
    assert type(failed(service, Answer(429, b"", {"Retry-After": text}))) is ProcessingError


def test_a_service_that_is_not_there_is_an_outage() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        with pytest.raises(ConnectorError, match="cannot be reached"):
            run(called("http_request", {}, url=url))
        # Where the message names the host, the message may be to blame.
        with pytest.raises(ProcessingError, match="the request failed"):
            run(called("http_request", {"url": url}, url="{{ payload.url | safe }}", allowed_hosts=["127.0.0.1"]))


def test_an_answer_that_takes_too_long_fails_the_attempt(service: Service) -> None:
    release = threading.Event()

    def slow(asked: Asked) -> Answer:
        release.wait(20)
        return Answer()

    service.answer = slow
    try:
        with pytest.raises(ProcessingError, match=r"no answer within|ReadTimeout") as caught:
            run(called("http_request", {}, url=service.url, timeout_s=0.05))
        assert not isinstance(caught.value, PermanentError)
    finally:
        release.set()


def test_an_answer_that_is_cut_off_fails_the_attempt_and_one_that_is_too_long_for_good(service: Service) -> None:
    assert type(failed(service, Answer(body=b"half", cut=True))) is ProcessingError
    error = failed(service, Answer(body=b"x" * 1000), max_bytes=999)
    assert isinstance(error, PermanentError)
    assert type(failed(service, Answer(body=b"{", headers=JSON))) is ProcessingError


def test_redirects_stay_on_their_host_and_headers_never_leave_it(service: Service) -> None:
    with serving(echo) as other:
        service.answer = lambda asked: Answer(302, b"", {"Location": "/new"}) if asked.path == "/old" else echo(asked)
        config = {"url": f"{service.url}/old", "headers": {"Authorization": "secret"}}
        assert run(payload_of("http_request", {}, **config))["response"]["path"] == "/new"
        assert service.asked[-1].headers["authorization"] == "secret"
        service.answer = lambda asked: Answer(307, b"", {"Location": f"{other.url}/steal"})
        with pytest.raises(PermanentError, match="redirected to another host"):
            run(called("http_request", {}, **config))
        assert other.asked == []
        service.answer = lambda asked: Answer(302, b"", {"Location": "/old"})
        with pytest.raises(PermanentError, match="more than 5 times"):
            run(called("http_request", {}, **config))


@pytest.mark.parametrize(
    ("url", "payload"),
    [
        ("http://127.0.0.1{{ payload }}", "@evil.example/"),
        ("{{ payload | safe }}", "http://evil.example/"),
        ("{{ payload | safe }}", "file:///etc/passwd"),
        ("{{ payload | safe }}", "http://127.0.0.1:1/"),
        ("{{ payload | safe }}", "http://127.0.0.1\\@evil.example/"),
        ("{{ payload | safe }}", "http://[::1"),
        ("{{ payload | safe }}", "nonsense"),
    ],
)
def test_no_payload_leads_to_another_host(url: str, payload: str) -> None:
    with pytest.raises(PermanentError):
        run(called("http_request", payload, url=url, allowed_hosts=["127.0.0.1:9"]))


def test_a_host_that_depends_on_the_message_needs_allowed_hosts() -> None:
    for url in (
        "http://{{ payload.host }}/",
        "{{ payload.url }}",
        "http://a{{ payload }}/",
        "ftp://host/",
        "host/path",
    ):
        with pytest.raises(ValidationError, match="depends on the message"):
            find("http_request").Config.model_validate({"url": url})
    for url in ("http://host", "https://host:8443/{{ payload }}", "http://host?{{ payload }}"):
        find("http_request").Config.model_validate({"url": url})


def test_a_cancelled_request_leaves_the_client_usable(service: Service) -> None:
    release = threading.Event()

    def slow(asked: Asked) -> Answer:
        if asked.path == "/slow":
            arrived.set()
            release.wait(20)
        return echo(asked)

    service.answer = slow
    arrived = threading.Event()

    async def work() -> None:
        adapter = await opened("http_request", url=service.url + "/{{ payload }}", into="payload")
        call = asyncio.ensure_future(process(adapter, RouteMessage("slow")))
        await asyncio.to_thread(arrived.wait, 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        result = await process(adapter, RouteMessage("quick"))
        assert result is not None
        assert result.message is not None
        assert result.message.payload["path"] == "/quick"
        await closed(adapter)

    try:
        run(work())
    finally:
        release.set()


def test_a_login_in_an_address_is_used_and_shown_nowhere(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    host = service.url.removeprefix("http://")
    run(called("http_request", {}, url=f"http://me:hunter2@{host}/a"))
    assert service.asked[0].headers["authorization"] == "Basic " + base64.b64encode(b"me:hunter2").decode()
    errors = [failed(service, Answer(500, b"why"), url=f"http://me:hunter2@{host}/a")]
    for url in ("http://me:hunter2@127.0.0.1:1/", "http://me:hun/ter2@host", "http://me:hunter2@host:port/"):
        with pytest.raises((ProcessingError, ConnectorError)) as caught:
            run(called("http_request", {"url": url}, url="{{ payload.url | safe }}", allowed_hosts=["127.0.0.1"]))
        errors.append(caught.value)
    with pytest.raises(ValidationError) as refused:
        find("http_request").Config.model_validate({"url": "http://me:hunter2@{{ payload.host }}/"})
    texts = [str(refused.value.errors()[0]["msg"]), caplog.text]
    texts += ["".join(traceback.format_exception(one)) for one in errors]
    for text in texts:
        assert "hunter2" not in text
        assert "ter2" not in text
