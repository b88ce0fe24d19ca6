"""Which exceptions tell of a network or a service, so that another attempt needs more time than after any other.

Owns the list of what counts. It imports no client: what a client raises is known by its cause, by the status of the
answer that it carries, and by the names of its classes.
"""

from __future__ import annotations

from collections.abc import Iterator

OF_PATHS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors of the operating system that no service or network is the cause of."""

COMES_BACK = frozenset({408, 425, 429})
"""Statuses of HTTP below 500 after which the same request may succeed."""

OF_CLIENTS = frozenset(
    {
        ("aiohttp", "ClientConnectionError"),
        ("aiohttp", "ClientPayloadError"),
        ("botocore", "HTTPClientError"),
        ("http", "BadStatusLine"),
        ("http", "IncompleteRead"),
        ("httpcore", "NetworkError"),
        ("httpcore", "RemoteProtocolError"),
        ("httpx", "NetworkError"),
        ("httpx", "RemoteProtocolError"),
        ("httpx", "TimeoutException"),
        ("psycopg", "OperationalError"),
        ("pymongo", "ConnectionFailure"),
        ("redis", "ConnectionError"),
        ("redis", "TimeoutError"),
        ("urllib3", "ProtocolError"),
        ("urllib3", "TimeoutError"),
    }
)
"""(package, class) of what clients raise without an `OSError` where a connection ended too early or took too long: a
service that is restarted, or a proxy in front of it, closes connections in order, which no call of the operating
system reports as an error."""

MAX_CAUSES = 10


def is_of_service(error: BaseException | None) -> bool:
    """Whether a network or service is the cause: an `OSError` that is not about a path, or what such a one led to.

    An exception that carries the status of an answer over HTTP (of requests, httpx, aiohttp, urllib) is judged by that:
    408, 425, 429 and from 500 on. `OF_CLIENTS` are clients' own classes for a connection that ended too early.
    """
    for step in _causes(error):
        status = _status_of(step)
        if status is not None:
            return status in COMES_BACK or status >= 500
        if isinstance(step, OSError):
            return not isinstance(step, OF_PATHS)
        if any((kind.__module__.partition(".")[0], kind.__name__) in OF_CLIENTS for kind in type(step).__mro__):
            return True
    return False


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(MAX_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__  # also where `from None` hides it, as httpcore does


def _status_of(error: BaseException) -> int | None:
    """The status that the exception of an HTTP client carries: in its response, or, as `status` or `code`, itself."""
    try:
        response = getattr(error, "response", None)
        found = getattr(response, "status_code", None)
        if found is None and isinstance(error, Exception):  # SystemExit has a code, too
            found = getattr(error, "status", None) or getattr(error, "code", None)
    except Exception:  # noqa: BLE001 - an attribute of the user's may raise anything
        return None
    return found if type(found) is int and 100 <= found <= 599 else None
