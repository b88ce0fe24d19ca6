"""Which broker a URL names: `connect` and `open_queue`, and how packages add a scheme of their own.

Owns the table of schemes and the errors of a wrong one. A broker's module is imported when its scheme is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path

import msgspec

from tupletree.errors import ConfigError, RuntimeUnavailableError, nearest
from tupletree.queues.contract import Broker
from tupletree.queues.named import Queue
from tupletree.queues.urls import MOST, QueueUrl, parse_url

ENTRY_POINTS = "tupletree.queues"
"""Group of entry points by which an installed package adds a scheme: its name is the scheme, its value the function."""

OWN_SCHEME = (
    "for a broker of your own call register_scheme in this process, or install a package with an entry point of the "
    f"group {ENTRY_POINTS}, which the command line and other processes find, too; see docs/queues.md, "
    "A broker of your own"
)

Opening = Callable[[QueueUrl], Broker]


class _Scheme(msgspec.Struct, frozen=True):
    """How a scheme is opened: a function, or `module:function`; `extra` is what brings its packages."""

    opening: Opening | str
    extra: str = ""


def open_sqlite(url: QueueUrl) -> Broker:
    """`sqlite:///relative.db`, `sqlite:////absolute.db`; options remembers_acked_s, busy_timeout_s."""
    from tupletree.queues.sqlite import SqliteBroker

    if url.host or url.user or not url.path or url.path == ":memory:":
        raise ConfigError(
            "the embedded queue is a file",
            where=url.shown,
            expected="sqlite:///orders.db, or sqlite:////var/lib/orders.db for a path from the root",
        )
    settings = url.settings(remembers_acked_s=(float, 0, MOST), busy_timeout_s=(float, 0, MOST))
    return SqliteBroker(Path(url.path), **settings)


_RABBITMQ = _Scheme("tupletree.queues.rabbitmq:open_rabbitmq", "rabbitmq")
_REDIS = _Scheme("tupletree.queues.redis:open_redis", "redis")
_schemes: dict[str, _Scheme] = {
    "sqlite": _Scheme(open_sqlite),
    "redis": _REDIS,
    "rediss": _REDIS,
    "nats": _Scheme("tupletree.queues.nats:open_nats", "nats"),
    "amqp": _RABBITMQ,
    "amqps": _RABBITMQ,
    "kafka": _Scheme("tupletree.queues.kafka:open_kafka", "kafka"),
    "sqs": _Scheme("tupletree.queues.sqs:open_sqs", "sqs"),
}


def register_scheme(scheme: str, opening: Opening | str, *, extra: str = "") -> None:
    """Let `connect` open URLs of this scheme, in this process.

    Other processes (the command line, Spark's executors) do not know of it: for them an installed package has an entry
    point of the group `tupletree.queues`.

    Args:
        scheme: what is before `://`, in lower case.
        opening: takes the URL in its parts and returns the broker; or `module:function`, imported on first use.
        extra: of Tupletree's extras that brings the packages of the function; named when one is missing.
    """
    _schemes[scheme] = _Scheme(opening, extra)


def schemes() -> Sequence[str]:
    """The schemes that can be opened here, sorted."""
    return sorted({*_schemes, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def connect(url: str) -> Broker:
    """Connect to a broker, which holds any number of queues. Close it when you are done, or use `with`.

    Raises:
        ConfigError: no URL, an unknown scheme, a wrong option.
        RuntimeUnavailableError: the scheme needs packages that are not installed.
        ConnectorError: the broker cannot be reached.
    """
    return _open(parse_url(url))


def open_queue(url: str, *, ordered: bool = False) -> Queue:
    """Connect to the queue that the URL's option `queue` names, and declare it. Closing it closes the connection.

    Args:
        url: such as `sqlite:///orders.db?queue=orders`; without the option the queue is called `default`.
        ordered: see `Broker.declare`.

    Raises:
        ConfigError, RuntimeUnavailableError, ConnectorError: as `connect`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from tupletree.queues import Message, open_queue
        >>> with TemporaryDirectory() as folder, open_queue(f"sqlite:///{folder}/orders.db?queue=orders") as orders:
        ...     orders.publish([Message(id="order-1", body=b"3 pears")])
        ...     [delivery] = orders.lease()
        ...     delivery.message.body, orders.ack([delivery.handle])
        1
        (b'3 pears', [])
    """
    parts = parse_url(url)
    broker = _open(parts)
    try:
        name = parts.queue or "default"
        broker.declare(name, ordered=ordered)
    except BaseException:
        broker.close()
        raise
    return Queue(broker, name)


def check_url(url: str) -> QueueUrl:
    """The URL in its parts, if a broker is known for it. Nothing is connected.

    Raises:
        ConfigError: no URL, or an unknown scheme.
    """
    parts = parse_url(url)
    _scheme_of(parts)
    return parts


def _scheme_of(url: QueueUrl) -> _Scheme:
    scheme = _schemes.get(url.scheme)
    if scheme is not None:
        return scheme
    points = entry_points(group=ENTRY_POINTS, name=url.scheme)
    if not points:
        raise _unknown(url.scheme)
    return _Scheme(next(iter(points)).value)


def _open(url: QueueUrl) -> Broker:
    scheme = _scheme_of(url)
    try:
        return _function(scheme.opening)(url)
    except ImportError as error:
        extra = f"pip install 'tupletree[{scheme.extra}]'" if scheme.extra else f"install the package of {error.name}"
        raise RuntimeUnavailableError(
            "the packages of this broker are not installed", where=url.shown, got=str(error), next_step=extra
        ) from error


def _function(opening: Opening | str) -> Opening:
    if not isinstance(opening, str):
        return opening
    module, _, name = opening.partition(":")
    found: Opening = getattr(importlib.import_module(module), name)
    return found


def _unknown(scheme: str) -> ConfigError:
    known = schemes()
    near = nearest(scheme, known)
    return ConfigError(
        "no broker is known for the scheme of this URL",
        got=f"{scheme}://…",
        expected=f"one of {', '.join(f'{name}://' for name in known)}",
        next_step=f"did you mean {near}://?" if near else OWN_SCHEME,
    )
