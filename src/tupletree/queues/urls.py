"""URLs of brokers: taken apart, and shown without their secrets.

A password may hold any character, and is never shown. Refuses to know what a scheme means.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from tupletree.errors import ConfigError, Finding, did_you_mean, one_of

MOST = 1e9
"""No number of an option is larger."""

HIDDEN = "***"
_LEAST_SECRET = 4
"""A shorter one would hide parts of words."""
_SECRETS = (
    *("password", "passwd", "passphrase", "pwd", "secret", "token", "credential", "authorization", "cookie"),
    *("api_key", "apikey", "api-key", "access_key", "private_key"),
)
_URL = re.compile(r"://\S+")
_SETTING = re.compile(r"""(?P<name>[\w.-]{1,64})(?P<mark>['"]?\s?[=:]\s?)""")
_VALUE = re.compile(r"""'[^']*'|"[^"]*"|(?:(?:bearer|basic|token)\s)?[^\s&;,'"]+""", re.IGNORECASE)
"""Of a query, a connection string, JSON or a header."""
_HEADERS = {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key"}


class QueueUrl(msgspec.Struct, frozen=True):
    """A URL in its parts, decoded. Its text and `repr` hide the password and every option that is named like a secret.

    Attributes:
        scheme: in lower case.
        user, password, host, port: empty or 0 where the URL has none.
        path: what comes after the host, without the slash in between: `sqlite:////var/q.db` has `/var/q.db`.
        options: what comes after `?`, without `queue`.
        queue: the option of this name.
    """

    scheme: str
    user: str = ""
    password: str = ""
    host: str = ""
    port: int = 0
    path: str = ""
    options: dict[str, str] = {}
    queue: str = ""

    @property
    def shown(self) -> str:
        """The URL without secrets, for errors and logs."""
        user = quote(self.user, safe="") + (f":{HIDDEN}" if self.password else "")
        place = f"{user}@{self.host}" if user else self.host
        port = f":{self.port}" if self.port else ""
        options = {name: HIDDEN if is_secret(name) else value for name, value in self.options.items()}
        if self.queue:
            options["queue"] = self.queue
        ending = "&".join(f"{name}={value}" for name, value in options.items())
        path = f"/{self.path}" if self.path or not place else ""
        return f"{self.scheme}://{place}{port}{path}" + (f"?{ending}" if ending else "")

    def __repr__(self) -> str:
        return f"QueueUrl({self.shown!r})"

    __str__ = __repr__

    def settings(self, **known: type | tuple[type, float, float]) -> dict[str, Any]:
        """The options as values of these types; only what the URL gives.

        Args:
            known: option → its type; of a number also the least and the most that it may be, at most MOST.

        Raises:
            ConfigError: unknown options and wrong values, all of them.
        """
        found: dict[str, Any] = {}
        findings = []
        for name, text in self.options.items():
            if name not in known:
                names = [*known, "queue"]
                way_out = did_you_mean(name, names) or f"known are {one_of(names)}"
                findings.append(Finding("unknown option of a queue", self.shown, name, next_step=way_out))
                continue
            declared = known[name]
            kind, least, most = declared if isinstance(declared, tuple) else (declared, None, None)
            try:
                found[name] = msgspec.convert(text, kind, strict=False)
            except msgspec.ValidationError:
                expected = {float: "a number", int: "a whole number", bool: "true or false"}[kind]
                findings.append(Finding(f"wrong value for {name}", self.shown, repr(text), expected))
                continue
            if least is not None and most is not None and not least <= found[name] <= most:
                expected = f"{least:,} or more" if most == MOST else f"{least:,} to {most:,.0f}"
                findings.append(Finding(f"wrong value for {name}", self.shown, text, expected))
        if findings:
            raise ConfigError("the queue's URL is wrong", findings=findings)
        return found


def is_secret(name: str) -> bool:
    """Whether an option of this name is a secret, by its name."""
    return any(part in name.lower() for part in _SECRETS)


def without_secrets(text: str, *known: str) -> str:
    """A text that others made, such as an error of a driver's, without logins of URLs, secret settings and these.

    >>> without_secrets("cannot open redis://me:pw@host/0?ssl_password=x&db=1")
    'cannot open redis://***@host/0?ssl_password=***&db=1'
    """
    for secret in sorted({*known} - {""}, key=len, reverse=True):
        if len(secret) >= _LEAST_SECRET:
            text = text.replace(secret, HIDDEN)
    text = _URL.sub(_without_login, text)
    return _without_values(text)


def _without_values(text: str) -> str:
    """The text with secret settings hidden. What is no secret is looked into: `url=https://host/?token=x`."""
    kept: list[str] = []
    done = at = 0
    while setting := _SETTING.search(text, at):
        at = setting.end()
        if _is_secret_setting(setting) and (value := _VALUE.match(text, at)):
            quotes = value[0][0] if value[0][0] in "'\"" else ""
            kept += [text[done:at], f"{quotes}{HIDDEN}{quotes}"]
            done = at = value.end()
    return "".join([*kept, text[done:]])


def _is_secret_setting(setting: re.Match[str]) -> bool:
    name, mark = setting["name"], setting["mark"]
    # A colon alone is prose, as in `token: expected a name`.
    return is_secret(name) and ("=" in mark or mark[0] in "'\"" or name.lower() in _HEADERS)


def _without_login(url: re.Match[str]) -> str:
    place, mark, query = url[0].removeprefix("://").partition("?")
    login, place = _split_login(place)
    return f"://{HIDDEN}@{place}{mark}{query}" if login else url[0]


def parse_url(text: str) -> QueueUrl:
    """Take a URL apart. A user and password may be percent-encoded, and may as well hold `@`, `:` and `/` as they are.

    Raises:
        ConfigError: this is no URL. The error shows nothing of it but the scheme.
    """
    scheme, mark, rest = text.partition("://")
    if not mark or not scheme or not scheme.replace("+", "").replace("-", "").isalnum():
        raise ConfigError(
            "this is no URL of a queue",
            got=repr(scheme if mark else text.partition(":")[0])[:40],
            expected="such as sqlite:///orders.db?queue=orders",
        )
    place, _, query = rest.partition("?")
    login, place = _split_login(place)
    user, _, password = login.partition(":")
    address, _, path = place.partition("/")
    host, port = _host_and_port(address, scheme)
    options = {name: value for name, value in parse_qsl(query, keep_blank_values=True) if name != "queue"}
    queue = dict(parse_qsl(query, keep_blank_values=True)).get("queue", "")
    return QueueUrl(scheme.lower(), unquote(user), unquote(password), host, port, unquote(path), options, queue)


def url_of(broker: str, queue: str) -> str:
    """The URL of a queue of this broker, whose own URL may have options already.

    Example:
        >>> url_of("nats://127.0.0.1?lease_s=5", "orders")
        'nats://127.0.0.1?lease_s=5&queue=orders'
    """
    return f"{broker}{'&' if '?' in broker else '?'}queue={quote(queue, safe='')}"


def _split_login(place: str) -> tuple[str, str]:
    """What comes before the last `@`, if that is a login and no part of the path."""
    login, mark, rest = place.rpartition("@")
    if not mark or place.startswith("/"):
        return "", place
    first, slash, _ = login.partition("/")
    # In `host:9092/topic@1` the `@` is the path's; in `user:a/b@host` the password's.
    if slash and (":" not in first or first.rpartition(":")[2].isdigit()):
        return "", place
    return login, rest


def _host_and_port(address: str, scheme: str) -> tuple[str, int]:
    host, mark, port = address.rpartition(":")
    if not mark or address.endswith("]"):
        return address, 0
    if not port.isdigit() or int(port) > 65_535:
        raise ConfigError(
            "the port of a queue's URL is none",
            where=f"{scheme}://…",
            expected="a number up to 65535; encode @ : / in a password as %40 %3A %2F",
        )
    return host, int(port)
