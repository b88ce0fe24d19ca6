"""A service over HTTP that is away, slow, or answers 429 or 503: what a user would write with httpx holds.

The service is a real one on the loopback interface; time is virtual where no runtime is needed.
"""

from __future__ import annotations

import asyncio
import http.client
import http.server
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import httpx
import pytest
import sqlalchemy as sa

from tests.local.running import run as run_locally
from tests.ordinary.conftest import InProcess
from tests.tasks.streams import Line, Word
from tupletree import Retry, RetryAfter, TaskContext, Topology, bolt, testing
from tupletree.bolts.service_errors import is_of_service
from tupletree.sinks import foreach
from tupletree.sources import items

TIMEOUT = httpx.Timeout(30.0, read=0.3)
"""Only an answer may be slow: on a machine with much to do, a connection takes its time, too."""
PATIENCE_S = 2.0
"""How long a slow answer of the service waits for the end of its test."""


class Service:
    """A service that is troubled for its first calls: `away`, `slow`, or a status."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.trouble: list[str] = []
        self.asked = 0
        self.over = threading.Event()
        self._server: http.server.ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def begin(self, trouble: list[str]) -> None:
        self.trouble, self.asked = trouble, 0

    def before_call(self) -> str:
        """It is there, or it is not, as the next call is to find it."""
        self.asked += 1
        kind = self.trouble[self.asked - 1] if self.asked <= len(self.trouble) else ""
        if kind == "away":
            self.stop()
        elif self._server is None:
            self._start()
        self.now = kind
        return kind

    def _start(self) -> None:
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                kind = service.now
                if kind == "slow":
                    service.over.wait(PATIENCE_S)
                    return
                self.send_response(int(kind or 200))
                if kind == "429":
                    self.send_header("Retry-After", "30" if self.path == "/long" else "0.2")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nothing on stderr."""

        http.server.ThreadingHTTPServer.allow_reuse_address = True
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


SERVICE = Service()
CALLS: list[float] = []


@pytest.fixture(autouse=True)
def service() -> Iterator[Service]:
    CALLS.clear()
    SERVICE.over.clear()
    yield SERVICE
    SERVICE.over.set()
    SERVICE.stop()


def url_of(line: Line) -> str:
    return SERVICE.url + ("long" if line.text == "long" else "")


def understood(answer: httpx.Response, line: Line) -> Word:
    if answer.status_code == 429:
        raise RetryAfter(float(answer.headers["Retry-After"]))
    answer.raise_for_status()
    return Word(line.text)


@bolt
def plain(line: Line, context: TaskContext) -> Word:
    CALLS.append(context.epoch_time_s)
    SERVICE.before_call()
    with httpx.Client(timeout=TIMEOUT, trust_env=False) as client:
        return understood(client.get(url_of(line)), line)


@bolt(concurrency=4)
async def waits(line: Line, context: TaskContext) -> Word:
    CALLS.append(time.monotonic())
    SERVICE.before_call()
    async with httpx.AsyncClient(timeout=TIMEOUT, trust_env=False) as client:
        return understood(await client.get(url_of(line)), line)


def of(work: Any, retry: Retry | None, line: str = "") -> Topology:
    t = Topology("asks")
    done = t.bolt("work", work, retry=retry).shuffle(t.spout("lines", items([Line(line)])))
    t.sink("out", foreach(lambda _: None)).shuffle(done)
    return t


@pytest.mark.parametrize(
    ("trouble", "pauses"),
    [
        (["away"] * 3, [0.5, 3, 18]),
        (["slow"] * 2, [0.5, 3]),
        (["503"] * 3, [0.5, 3, 18]),
        (["404"] * 9, [0.1, 0.2, 0.4, 0.8]),
    ],
)
def test_a_service_that_is_away_slow_or_answers_with_an_error_is_waited_for(
    trouble: list[str], pauses: list[float]
) -> None:
    SERVICE.begin(trouble)
    ended = testing.run(of(plain, None), {"lines": [Line("")]}, options={"backoff_jitter": 0.0})
    [message] = ended.messages["lines"]
    assert message.acked is (trouble[0] != "404")
    assert [round(later - before, 1) for before, later in pairwise(CALLS)] == pauses


def test_a_pause_that_it_asks_for_is_kept() -> None:
    SERVICE.begin(["429", "429"])
    ended = testing.run(of(plain, None), {"lines": [Line("long")]}, options={"backoff_jitter": 0.0})
    [message] = ended.messages["lines"]
    assert (message.acked, message.attempts) == (True, 3)
    assert [round(later - before) for before, later in pairwise(CALLS)] == [30, 30]


@pytest.mark.parametrize("work", [plain, waits])
@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_both_runtimes_wait_as_it_asks_and_take_its_absence_for_an_outage_where_that_is_said(
    tmp_path: Path, in_process: InProcess, work: Any, runtime: str
) -> None:
    run: Callable[[Topology, Path], Any] = run_locally if runtime == "local" else in_process
    SERVICE.begin(["away", "away", "429", "slow"])
    policy = Retry(attempts=3, backoff_s=0.01, on={httpx.ConnectError: Retry.OUTAGE})
    summary = run(of(work, policy), tmp_path / "state")
    assert (summary.acked, summary.dead, summary.failed) == (1, 0, 2)
    assert SERVICE.asked == 5
    assert CALLS[3] - CALLS[2] >= 0.2


def raised_from(cause: BaseException) -> BaseException:
    error = RuntimeError("a client's own class")
    error.__cause__ = cause
    return error


def answered(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://localhost/")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionResetError(), True),
        (OSError(), True),
        (FileNotFoundError(), False),
        (FileExistsError(), False),
        (IsADirectoryError(), False),
        (NotADirectoryError(), False),
        (PermissionError(), False),
        (raised_from(raised_from(TimeoutError())), True),
        (raised_from(PermissionError()), False),
        (RuntimeError(), False),
        (answered(500), True),
        (answered(503), True),
        (answered(408), True),
        (answered(425), True),
        (answered(429), True),
        (answered(404), False),
        (answered(499), False),
        (HTTPError("http://localhost/", 404, "no", {}, None), False),  # type: ignore[arg-type]  # an OSError all the same
        (HTTPError("http://localhost/", 500, "no", {}, None), True),  # type: ignore[arg-type]
        (SystemExit(500), False),
        (None, False),
    ],
)
def test_which_exceptions_tell_of_a_service(error: BaseException | None, expected: bool) -> None:
    assert is_of_service(error) is expected


ENDS_EARLY = {
    "before its answer": b"",
    "within the body": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
    "within a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    "after what is no answer": b"\x00\x01 no answer\r\n\r\n",
}


@pytest.fixture(scope="module", params=ENDS_EARLY.values(), ids=[*ENDS_EARLY])
def ends_early(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a server that ends each connection in order, too early: as one does that is restarted."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            self.request.sendall(request.param)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()


async def by_httpx_async(port: int) -> None:
    async with httpx.AsyncClient() as client:
        await client.get(f"http://127.0.0.1:{port}/")


def by_http_client(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    finally:
        connection.close()


def by_urllib(port: int) -> None:
    with urlopen(f"http://127.0.0.1:{port}/") as answer:
        answer.read()


def by_redis(port: int) -> None:
    redis = pytest.importorskip("redis")
    with redis.Redis(port=port, retry=None) as client:
        client.ping()


def by_sqlalchemy(port: int) -> None:
    pytest.importorskip("psycopg")
    sa.create_engine(f"postgresql+psycopg://ada@127.0.0.1:{port}/").connect()


CLIENTS: dict[str, Callable[[int], Any]] = {
    "httpx": lambda port: httpx.get(f"http://127.0.0.1:{port}/"),
    "httpx-async": lambda port: asyncio.run(by_httpx_async(port)),
    "http.client": by_http_client,
    "urllib": by_urllib,
    "requests": lambda port: pytest.importorskip("requests").get(f"http://127.0.0.1:{port}/"),
    "urllib3": lambda port: pytest.importorskip("urllib3").request("GET", f"http://127.0.0.1:{port}/", retries=0),
    "sqlalchemy": by_sqlalchemy,
    "redis": by_redis,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_connection_that_the_service_ends_too_early_tells_of_the_service(ends_early: int, client: str) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each client has its own class
        CLIENTS[client](ends_early)
    if client == "redis" and "protocol" in str(raised.value).lower():
        return  # what is no answer of a Redis is no outage of one
    assert is_of_service(raised.value), repr(raised.value)


@pytest.mark.parametrize(
    ("package", "name", "expected"),
    [
        ("aiohttp.client_exceptions", "ClientConnectionError", True),
        ("aiohttp.client_exceptions", "ClientPayloadError", True),
        ("pymongo.errors", "ConnectionFailure", True),
        ("botocore.exceptions", "HTTPClientError", True),
        ("aiohttp.client_exceptions", "InvalidURL", False),
        ("mine", "ConnectionFailure", False),
    ],
)
def test_clients_that_are_not_installed_here_are_known_by_the_names_of_their_classes(
    package: str, name: str, expected: bool
) -> None:
    base = type(name, (Exception,), {"__module__": package})
    assert is_of_service(type("OneOfIt", (base,), {"__module__": package})()) is expected
