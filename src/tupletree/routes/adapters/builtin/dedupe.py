"""`dedupe`: of messages that say the same, one goes on.

Owns what is remembered, and the promise: a message is dropped only if another one with its key, within the window, got
through the rest of the route. A copy that comes while the first is under way waits for it; if the first fails, the next
copy goes on. What is forgotten (beyond the window, after a restart without a store, in another process without one)
passes: there may be a duplicate, and never a loss.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from pydantic import Field, SecretStr
from sqlalchemy import exc

from tupletree.durable import claim_private
from tupletree.errors import ConfigError, ConnectorError
from tupletree.queues.urls import without_secrets
from tupletree.routes import payloads
from tupletree.routes.adapters.contract import Adapter, AdapterConfig, AdapterContext, AdapterResult, PipelineContext
from tupletree.routes.adapters.paths import Path, PathText
from tupletree.sinks.databases import file_of, make_engine

_GOT_THROUGH = frozenset({"done", "filtered", "unrouted"})
_MISSING = object()
_METADATA = sa.MetaData()
_TABLE = sa.Table(
    "tupletree_dedupe",
    _METADATA,
    sa.Column("scope", sa.String(300), primary_key=True),
    sa.Column("key", sa.String(16), primary_key=True),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("seen_s", sa.Float, nullable=False, index=True),
)


class DedupeConfig(AdapterConfig):
    """What makes two messages the same, and how long that is remembered.

    Attributes:
        key: path of the value that is the same. A message that has none passes.
        window_s: seconds for which a message that got through is remembered.
        max_keys: that are remembered at most; the oldest are forgotten first.
        max_wait_s: seconds that a copy waits for the first one, at most; then it passes.
        store: URL of a database (SQLAlchemy's) in which they are remembered beyond a restart; empty: in memory.
    """

    key: PathText = "payload"
    window_s: float = Field(default=3600.0, gt=0, allow_inf_nan=False)
    max_keys: int = Field(default=100_000, ge=1)
    max_wait_s: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    store: SecretStr = SecretStr("")


@dataclass(frozen=True, slots=True)
class _Claim:
    """A message that is under way, for its key."""

    message: str
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Dedupe(Adapter[DedupeConfig]):
    """Drops a message (*filtered*) if another one with the same key got through, not longer ago than the window.

    It drops nothing else: if the first copy fails, the next one goes on. Another attempt of the same message always
    passes. "Through" is the end of the route, or the next adapter that holds messages.
    """

    Config = DedupeConfig
    _store: _Store | None = None

    async def open(self, context: AdapterContext) -> None:
        """Connect to the store, if there is one.

        Raises:
            ConfigError: this is no database.
            RuntimeUnavailableError: its driver is not installed.
            ConnectorError: it cannot be reached.
        """
        self._under_way: dict[str, _Claim] = {}
        self._through: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._key_of: dict[str, str] = {}
        self._now_s = 0.0
        if url := self.config.store.get_secret_value():
            self._store = _Store(url, f"{context.route}/{context.adapter}", self.config.window_s)
            await asyncio.to_thread(self._store.open)

    async def close(self) -> None:
        """Save what is not saved yet."""
        if self._store is not None:
            await asyncio.to_thread(self._store.close)

    async def process(self, context: PipelineContext) -> AdapterResult:
        """Decide, after waiting for the first copy if need be."""
        message = context.message
        value = Path(self.config.key).get(message, _MISSING)
        key = "" if value is _MISSING else payloads.canonical_hash(value)
        if not key:
            return AdapterResult(message)
        if not await self._is_first(key, context):
            return AdapterResult(continue_pipeline=False, reason=f"a duplicate of message {self._through[key][0]}")
        return AdapterResult(message)

    def ended(self, message: str, outcome: str) -> None:
        """Remember the key, or let the next copy have it."""
        key = self._key_of.pop(message, "")
        claim = self._under_way.pop(key, None)
        if claim is None:
            return
        if outcome in _GOT_THROUGH:
            self._remember(key, message, self._now_s)
            if self._store is not None:
                self._store.add(key, message, self._now_s)
        claim.ended.set()

    async def _is_first(self, key: str, context: PipelineContext) -> bool:
        """Whether the message goes on: it has the key now, or had it before, or has waited long enough for another."""
        message = context.message.id
        while True:
            oldest_s = self._forget(context.now_s())
            if (known := self._through.get(key)) is not None:
                if known[1] >= oldest_s:
                    return known[0] == message
                del self._through[key]  # the store remembered it, so it stood behind newer ones
            claim = self._under_way.get(key)
            if claim is None:
                stored = await self._stored(key)
                if key in self._under_way or key in self._through:
                    continue  # taken meanwhile
                if stored is not None and stored[0] != message:
                    self._remember(key, *stored)
                    return False
                self._under_way[key] = _Claim(message)
                self._key_of[message] = key
                return True
            if claim.message == message or not await _ended(claim, self.config.max_wait_s):
                return True

    async def _stored(self, key: str) -> tuple[str, float] | None:
        return None if self._store is None else await asyncio.to_thread(self._store.find, key, self._now_s)

    def _remember(self, key: str, message: str, seen_s: float) -> None:
        self._through[key] = (message, seen_s)
        self._through.move_to_end(key)
        while len(self._through) > self.config.max_keys:
            self._through.popitem(last=False)

    def _forget(self, now_s: float) -> float:
        """Forget what is beyond the window; returns when that begins."""
        self._now_s = max(self._now_s, now_s)
        oldest_s = self._now_s - self.config.window_s
        while self._through:
            key, (_, seen_s) = next(iter(self._through.items()))
            if seen_s >= oldest_s:
                break
            del self._through[key]
        return oldest_s


async def _ended(claim: _Claim, timeout_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await claim.ended.wait()
    return claim.ended.is_set()


class _Store:
    """Keys in a database. Its calls block, and several may go on at a time."""

    def __init__(self, url: str, scope: str, window_s: float) -> None:
        self._scope = scope
        self._window_s = window_s
        self._lock = threading.Lock()
        self._unsaved: list[dict[str, Any]] = []
        self._url = url
        self._engine: sa.Engine | None = None

    def open(self) -> None:
        """Connect, and make the table if it is not there."""
        try:
            url = sa.make_url(self._url)
        except (exc.ArgumentError, ValueError) as error:  # not shown: it may quote the URL
            raise ConfigError(
                "the store is no database that can be used here", where="dedupe: store", got=type(error).__name__
            ) from None
        self._engine = engine = make_engine(url, "dedupe: store")
        try:
            if file := file_of(url):
                claim_private(file, "the file of seen keys", "dedupe: store")
            with self._connected():
                try:
                    _METADATA.create_all(engine)
                except (exc.IntegrityError, exc.ProgrammingError, exc.OperationalError):
                    _METADATA.create_all(engine)  # another task may have made it at the same time
        except BaseException:
            engine.dispose()
            raise

    def add(self, key: str, message: str, seen_s: float) -> None:
        """Save it with the next call; lost with the process if none comes, and then a copy passes."""
        with self._lock:
            self._unsaved.append({"scope": self._scope, "key": key, "message": message, "seen_s": seen_s})

    def find(self, key: str, now_s: float) -> tuple[str, float] | None:
        """The message that got through with this key within the window, and when."""
        assert self._engine is not None, "opened before it is asked"
        with self._connected():
            self._save(self._engine, now_s)
            with self._engine.connect() as connection:
                row = connection.execute(
                    sa.select(_TABLE.c.message, _TABLE.c.seen_s).where(
                        _TABLE.c.scope == self._scope, _TABLE.c.key == key, _TABLE.c.seen_s >= now_s - self._window_s
                    )
                ).first()
        return None if row is None else (row.message, row.seen_s)

    def close(self) -> None:
        """Save the rest, and disconnect."""
        if self._engine is None:
            return
        try:
            with self._connected():
                self._save(self._engine, 0.0)
        finally:
            self._engine.dispose()

    def _save(self, engine: sa.Engine, now_s: float) -> None:
        with self._lock:
            saved, self._unsaved = self._unsaved, []
        if not saved:
            return
        keys = [row["key"] for row in saved]
        mine = _TABLE.c.scope == self._scope
        try:
            with engine.begin() as connection:
                connection.execute(sa.delete(_TABLE).where(mine, _TABLE.c.seen_s < now_s - self._window_s))
                connection.execute(sa.delete(_TABLE).where(mine, _TABLE.c.key.in_(keys)))
                connection.execute(sa.insert(_TABLE), list({row["key"]: row for row in saved}.values()))
        except exc.IntegrityError:
            pass  # another process saved one of them meanwhile: it is remembered
        except exc.SQLAlchemyError:
            with self._lock:
                self._unsaved = [*saved, *self._unsaved]
            raise

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except exc.SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            text = without_secrets(f"{type(cause).__name__}: {cause}")
            raise ConnectorError("the store of seen keys failed", where="dedupe: store", got=text) from error
