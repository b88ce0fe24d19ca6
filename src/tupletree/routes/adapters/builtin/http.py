"""`http_request`: asks a service over HTTP.

Owns the request, the limits of its answer, and what each failure means: an outage, a failed attempt, a pause that was
asked for, or no use in trying again. It refuses to send anything to a host that the settings do not name.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NoReturn
from urllib.parse import quote

import httpx
from markupsafe import Markup
from pydantic import Field, SecretStr, model_validator

from tupletree.errors import ConnectorError, PermanentError, ProcessingError, RetryAfter
from tupletree.queues.urls import without_secrets
from tupletree.routes.adapters.builtin.texts import TemplateText, Text
from tupletree.routes.adapters.contract import (
    Adapter,
    AdapterConfig,
    AdapterContext,
    AdapterResult,
    PipelineContext,
)
from tupletree.routes.adapters.paths import Path, PathText, TargetText, value_at

MAX_REDIRECTS = 5
STATUS_HEADER = "http-status"
_WORTH_A_RETRY = frozenset({408, 425, 429})
_FIXED = re.compile(r"(?P<origin>https?://[^/?#{}\s\\]+)(?=[/?#]|$)")


class _WithoutSecrets(logging.Filter):
    """httpx logs each address that it asks, with its query."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record through, without what is secret in it."""
        if isinstance(record.args, tuple):
            record.args = tuple(without_secrets(text) if "://" in (text := str(one)) else one for one in record.args)
        return True


logging.getLogger("httpx").addFilter(_WithoutSecrets())


class HttpConfig(AdapterConfig):
    """What is asked, of whom, and what is done with the answer.

    Attributes:
        url: a template. What a payload puts into it is escaped; `| safe` lets it be. Scheme and host must be text, or
            `allowed_hosts` names the hosts.
        method: of the request.
        params: of the query, templates by name.
        headers: by name. They are not shown in errors and explanations.
        send: path of the body: bytes as they are, text as it is if `headers` give a content type, otherwise JSON.
        into: where the answer's body is put; its status is in the header `http-status`.
        response: `json`, `text` or `bytes`; `auto`: by the answer's content type.
        allowed_hosts: `host` or `host:port`, or `*` for all of them.
        timeout_s: for all of it.
        connect_timeout_s: until the connection is there.
        max_bytes: a longer answer fails the message for good.
        max_retry_after_s: longest pause that a service may ask for.
        idempotency_key: whether requests that change something have the header `Idempotency-Key`, the message's id.
        verify: whether the service's certificate is checked.
    """

    url: TemplateText
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"] = "GET"
    params: Mapping[str, TemplateText] = {}
    headers: Mapping[str, SecretStr] = {}
    send: PathText | None = None
    into: TargetText = "payload.response"
    response: Literal["auto", "json", "text", "bytes"] = "auto"
    allowed_hosts: Sequence[str] = ()
    timeout_s: float = Field(default=30.0, gt=0)
    connect_timeout_s: float = Field(default=10.0, gt=0)
    max_bytes: int = Field(default=10_000_000, ge=1)
    max_retry_after_s: float = Field(default=3600.0, ge=0)
    idempotency_key: bool = True
    verify: bool = True

    @model_validator(mode="after")
    def _has_a_host(self) -> HttpConfig:
        if not self.allowed_hosts and not _FIXED.match(self.url):
            shown = repr(without_secrets(self.url))
            raise ValueError(f"the host of {shown} depends on the message; expected https://host/… or allowed_hosts")
        return self


class HttpRequest(Adapter[HttpConfig]):
    """Sends a request and puts the answer into the message.

    A status of 2xx is success. 408, 425, 429 and 5xx fail the attempt, with the pause that `Retry-After` asks for;
    other statuses fail the message for good. A service that cannot be reached is an outage: no attempt counts.
    Redirects are followed within the same host only.
    """

    Config = HttpConfig
    _client: httpx.AsyncClient | None = None

    async def open(self, context: AdapterContext) -> None:  # noqa: ARG002 - the contract's
        """Make the client: its connections are kept between messages."""
        config = self.config
        self._url = Text(config.url, "http_request: url", escape=_escaped)
        self._params = {name: Text(text, f"http_request: params: {name}") for name, text in config.params.items()}
        self._headers = {name: value.get_secret_value() for name, value in config.headers.items()}
        fixed = None if config.allowed_hosts else _FIXED.match(config.url)
        self._origin = _origin(httpx.URL(fixed["origin"])) if fixed else None
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(config.timeout_s, connect=config.connect_timeout_s, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            follow_redirects=False,
            verify=config.verify,
        )

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def process(self, context: PipelineContext) -> AdapterResult:
        request = self._request(context)
        where = f"{request.method} {request.url.copy_with(query=None, userinfo=b'')}"
        try:
            async with asyncio.timeout(self.config.timeout_s):
                response, body = await self._exchange(request, where)
        except TimeoutError as error:
            raise ProcessingError(f"no answer within {self.config.timeout_s:g} s", where=where) from error
        except httpx.HTTPError as error:
            raise self._transport_fault(error, where) from error
        if not response.is_success:
            self._refuse(response, body, where, context.now_s())
        message = Path(self.config.into).put(context.message, self._value(response, body, where))
        return AdapterResult(message.with_headers(**{STATUS_HEADER: str(response.status_code)}))

    def _request(self, context: PipelineContext) -> httpx.Request:
        config = self.config
        text = self._url.render(context)
        headers = dict(self._headers)
        if config.idempotency_key and config.method in {"POST", "PATCH"}:
            headers.setdefault("Idempotency-Key", context.message.id)
        content = None
        if config.send is not None:
            content, kind = _body(config.send, context, any(name.lower() == "content-type" for name in headers))
            headers = {"Content-Type": kind, **headers} if kind else headers
        try:
            url = httpx.URL(text)
            if url.userinfo:  # httpx logs the addresses that it asks
                login = base64.b64encode(f"{url.username}:{url.password}".encode()).decode()
                if not any(name.lower() == "authorization" for name in headers):
                    headers["Authorization"] = f"Basic {login}"
                url = url.copy_with(userinfo=b"")
            params = {name: text.render(context) for name, text in self._params.items()}
            assert self._client is not None, "opened before it is called"
            request = self._client.build_request(
                config.method, url.copy_merge_params(params) if params else url, headers=headers, content=content
            )
        except (httpx.InvalidURL, UnicodeError, ValueError) as error:
            raise PermanentError(
                "this request cannot be made",
                got="an address that cannot be read" if "@" in text else str(error),
                where=without_secrets(text.partition("?")[0])[:200],
            ) from None  # what it quotes may be a part of a password
        if request.url.scheme not in {"http", "https"} or not self._may_ask(request.url):
            raise PermanentError(
                "this host is not one of the adapter's",
                where=str(request.url.copy_with(query=None, userinfo=b"")),
                expected=", ".join(config.allowed_hosts) or "the host of the setting url",
            )
        return request

    def _may_ask(self, url: httpx.URL) -> bool:
        if self._origin is not None:
            return _origin(url) == self._origin
        return any(one in {"*", url.host, f"{url.host}:{_origin(url)[2]}"} for one in self.config.allowed_hosts)

    async def _exchange(self, request: httpx.Request, where: str) -> tuple[httpx.Response, bytes]:
        """The answer, after redirects, and its body."""
        assert self._client is not None, "opened before it is called"
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._client.send(request, stream=True)
            try:
                following = response.next_request
                if following is None:
                    return response, await self._read(response, where)
            finally:
                await response.aclose()
            if not _stays(request.url, following.url):
                raise PermanentError(
                    "redirected to another host",
                    where=where,
                    got=str(following.url.copy_with(query=None, userinfo=b"")),
                    next_step="name that host in the setting url",
                )
            request = following
        raise PermanentError(f"redirected more than {MAX_REDIRECTS} times", where=where)

    async def _read(self, response: httpx.Response, where: str) -> bytes:
        most, parts, size = self.config.max_bytes, [], 0
        async for part in response.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > most:
                raise PermanentError(
                    "the answer is too long", where=where, expected=f"at most {most} bytes (max_bytes)"
                )
        return b"".join(parts)

    def _transport_fault(self, error: httpx.HTTPError, where: str) -> Exception:
        text = without_secrets(f"{type(error).__name__}: {error}")
        if isinstance(error, httpx.UnsupportedProtocol):
            return PermanentError("this request cannot be made", where=where, got=text)
        away = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError)
        if away and self._origin is not None:
            return ConnectorError("the service cannot be reached", where=where, got=text)
        return ProcessingError("the request failed", where=where, got=text)

    def _refuse(self, response: httpx.Response, body: bytes, where: str, now_s: float) -> NoReturn:
        status = response.status_code
        got = f"{status} {response.reason_phrase}: {body[:300].decode('utf-8', 'replace')}"
        if status in _WORTH_A_RETRY or status >= 500:
            pause = _pause(response.headers, now_s)
            if pause is not None:
                raise RetryAfter(
                    min(pause, self.config.max_retry_after_s), f"{where}: the service asks for a pause: {got}"
                )
            raise ProcessingError("the service failed", where=where, got=got)
        raise PermanentError("the service refuses this request", where=where, got=got)

    def _value(self, response: httpx.Response, body: bytes, where: str) -> Any:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        wanted: str = self.config.response
        if wanted == "auto":
            is_text = kind.startswith("text/") or kind.endswith("xml")
            wanted = "json" if kind.endswith(("/json", "+json")) else "text" if is_text else "bytes"
        try:
            if wanted == "json":
                return json.loads(body) if body or self.config.response == "json" else None
            return body.decode(response.charset_encoding or "utf-8", "replace") if wanted == "text" else body
        except (ValueError, LookupError, RecursionError) as error:
            raise ProcessingError(
                f"the answer is no {wanted}", where=where, got=f"{body[:200]!r} ({error})", expected=kind
            ) from error


def _escaped(value: Any) -> str:
    return value if isinstance(value, Markup) else quote(str(value), safe="")


def _origin(url: httpx.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


def _stays(old: httpx.URL, new: httpx.URL) -> bool:
    """Whether a redirect leads to the same place, or to the same host under TLS."""
    upgraded = old.scheme == "http" and new.scheme == "https" and old.port is None and new.port is None
    return _origin(old) == _origin(new) or (upgraded and old.host == new.host)


def _body(field: str, context: PipelineContext, has_type: bool) -> tuple[bytes, str]:
    """The body, and the content type that it is given; empty if the headers have one, or it is not known."""
    value = value_at(Path(field), context.message)
    if isinstance(value, bytes):
        return value, "" if has_type else "application/octet-stream"
    try:
        if isinstance(value, str) and has_type:
            return value.encode(), ""
        return json.dumps(value, allow_nan=False).encode(), "" if has_type else "application/json"
    except (TypeError, ValueError, RecursionError) as error:
        raise PermanentError("this cannot be sent as JSON", where=field, got=str(error)) from error


def _pause(headers: httpx.Headers, now_s: float) -> float | None:
    """Seconds that `Retry-After` asks for: a number, or a date, by the service's own clock where it gives one."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    try:
        until = parsedate_to_datetime(text).timestamp()
        now_s = parsedate_to_datetime(headers["date"]).timestamp() if "date" in headers else now_s
    except (ValueError, TypeError, OverflowError):
        return None
    return max(until - now_s, 0.0)
