"""What people write and what a route calls: `Adapter`, its context and its result.

Owns the calling contract. Refuses to run anything: `running/chain` does.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict

C = TypeVar("C", bound="AdapterConfig")

Logger: TypeAlias = "logging.Logger | logging.LoggerAdapter[logging.Logger]"
_LOGGER = logging.getLogger("tupletree.routes")


class AdapterConfig(BaseModel):
    """Base of an adapter's settings: a frozen pydantic model in which unknown keys are faults."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RouteMessage(msgspec.Struct, frozen=True):
    """A message, as adapters see it.

    Attributes:
        payload: any JSON value (also NaN, integers of any size, and bytes).
        headers: text by name.
        id: of the message that was delivered; what adapters make of it keeps it until it is published.
        parents: ids of the messages that it came of.
        executions: that it belongs to, nearly always one.
    """

    payload: Any
    headers: Mapping[str, str] = {}
    id: str = ""
    parents: tuple[str, ...] = ()
    executions: tuple[str, ...] = ()

    @property
    def execution(self) -> str:
        """The first of its executions."""
        return self.executions[0] if self.executions else ""

    def with_payload(self, payload: Any) -> RouteMessage:
        """The same message with another payload."""
        return RouteMessage(payload, self.headers, self.id, self.parents, self.executions)

    def with_headers(self, /, **headers: str) -> RouteMessage:
        """The same message with these headers changed or added."""
        return msgspec.structs.replace(self, headers={**self.headers, **headers})


class Emitted(msgspec.Struct, frozen=True):
    """A message of its own that an adapter emits.

    Attributes:
        payload: its payload.
        queue: one of the route's outbound queues, by name; empty: those that the message in hand is for: the one that
            an adapter before chose (`switch`), or all of them.
        headers: added to those of the message in hand.
        delay_s: seconds until it may be delivered.
    """

    payload: Any
    queue: str = ""
    headers: Mapping[str, str] = {}
    delay_s: float = 0.0


class AdapterResult(msgspec.Struct, frozen=True):
    """What a call gives.

    Attributes:
        message: the input of the next adapter, and after the last one what is published; None ends the chain.
        emitted: further messages; published when the attempt has succeeded, whichever adapter emitted them.
        continue_pipeline: False ends the chain here: the message is *filtered* (or, of a `StatefulAdapter`, *held*).
        reason: why it ends here, for ledger and lineage.
        queue: publish `message` to this outbound queue only.
        unrouted: no queue takes it: with `continue_pipeline=False` the message is *unrouted* instead of filtered.
    """

    message: RouteMessage | None = None
    emitted: Sequence[Emitted] = ()
    continue_pipeline: bool = True
    reason: str = ""
    queue: str = ""
    unrouted: bool = False


class PipelineContext(msgspec.Struct):
    """One call.

    Attributes:
        message: in hand.
        attempt: from 1.
        route: name of the route.
        adapter: name of the adapter.
        settings: the pipeline's settings (`settings:` of the document), read only.
        resources: what the caller gave for adapters, by name (`Pipeline.run(resources=…)`).
        logger: names route and adapter.
        is_cancelled: whether the execution was cancelled; long work looks at it.
        now_s: Unix time by the run's clock.
        queue: the only outbound queue that the message is for, as an adapter before chose it; empty: all of them.
    """

    message: RouteMessage
    attempt: int = 1
    route: str = ""
    adapter: str = ""
    settings: Mapping[str, Any] = {}
    resources: Mapping[str, Any] = {}
    logger: Logger = _LOGGER
    is_cancelled: Callable[[], bool] = bool
    now_s: Callable[[], float] = float
    queue: str = ""

    @property
    def cancelled(self) -> bool:
        """Whether to stop: the execution was cancelled."""
        return self.is_cancelled()


@dataclass(frozen=True, slots=True)
class AdapterContext:
    """Where an adapter is opened: its route, name and position, the pipeline's settings and resources, a logger."""

    route: str
    adapter: str
    position: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    logger: Logger = _LOGGER


class Adapter(ABC, Generic[C]):
    """A step of a route. Subclass it, name its settings in `Config`, write `process`.

    One instance per task: `open`, then any number of `process`, then `close`. `process` may be `async def`, and several
    calls go on at a time (`inbound.concurrency`); a plain `def` runs in a thread, one at a time per route unless
    `parallel` is set. A call may be cancelled at any `await` (stop, timeout, cancelled execution); the message comes
    again.

    Attributes:
        Config: the class of its settings; the document's `config:` is checked against it before anything runs.
        version: kept with executions; change it when what the adapter makes changes.
        parallel: several calls of a plain `process` may run at a time, in threads.
    """

    Config: type[AdapterConfig] = AdapterConfig
    version: str = "1"
    parallel: bool = False

    def __init__(self, config: C) -> None:
        self.config = config

    @classmethod
    def queues(cls, config: C) -> Collection[str]:  # noqa: ARG003 - for those that need it
        """Outbound queues that its settings name. The document is checked: its route must have each of them."""
        return ()

    def open(self, context: AdapterContext) -> Awaitable[None] | None:  # noqa: ARG002 - for those that need it
        """Acquire what is needed, before the first message."""
        return None

    @abstractmethod
    def process(self, context: PipelineContext) -> Awaitable[AdapterResult | None] | AdapterResult | None:
        """Work on one message.

        Returns:
            The result; None ends the chain (*filtered*).

        Raises:
            PermanentError: no further attempt can help.
            RetryAfter: the attempt failed, and the next one comes after this pause at the earliest.
            ConnectorError: a service is away: no attempt counts, it is tried again until it is back.
            Exception: anything else fails the attempt.
        """

    def ended(self, message: str, outcome: str) -> None:
        """An attempt in which `process` was called has ended; called on the thread or event loop that calls `process`.

        Args:
            message: its id.
            outcome: as `Settlement.outcome`; `done` where it went on to an adapter that holds messages.
        """

    def close(self) -> Awaitable[None] | None:
        """Release everything. Called once, also after an error."""
        return None


class StatefulAdapter(Adapter[C]):
    """An adapter that holds messages: `process` gives `continue_pipeline=False` while it waits.

    What it holds stays open: it is not acked until a `Release` names it. After a restart a fresh instance gets what was
    held again, through `process`, with the same attempt. One call at a time. What `check` or `flush` raises is a failed
    attempt of all that is held.

    Attributes:
        check_interval_s: seconds between calls of `check`.
    """

    check_interval_s: float = 5.0

    @abstractmethod
    def check(self, now_s: float) -> Sequence[Release]:
        """Time passed: what is released now. Also called after `process` (once for messages that came together)."""

    def flush(self, now_s: float) -> Sequence[Release]:
        """The input has ended, or the run stops: release what can be released. The rest is given back to its queue."""
        return self.check(now_s)


@dataclass(frozen=True, slots=True)
class Release:
    """Held messages that go on.

    Attributes:
        messages: ids of held messages.
        results: as many as messages: one result each. Any other number: what they made together.
        dropped: they end here, for this reason; `results` is empty then.
    """

    messages: Sequence[str]
    results: Sequence[AdapterResult] = ()
    dropped: str = ""


class BatchAdapter(Adapter[C]):
    """An adapter that works on batches: members stay open until their batch's outputs are settled.

    A batch goes out with `size` members or `max_bytes` of payload, when its oldest member has waited for `max_age_s`,
    at the end of the input and at a stop. One that fails is tried member by member.

    Attributes:
        size: members of a full batch.
        max_bytes: of the members' encoded payloads; 0: no limit.
        max_age_s: seconds.
    """

    size: int = 100
    max_bytes: int = 0
    max_age_s: float = 5.0

    def process(self, context: PipelineContext) -> AdapterResult | None:
        """Not called: a route calls `process_batch`."""
        raise NotImplementedError("a batch adapter is called by process_batch")

    @abstractmethod
    def process_batch(
        self, contexts: Sequence[PipelineContext]
    ) -> Awaitable[Sequence[AdapterResult | None] | AdapterResult] | Sequence[AdapterResult | None] | AdapterResult:
        """Work on a batch.

        Returns:
            As many results as contexts: one for each, in order (None: filtered). One result, or another number: what
            the members made together; each of these has all of them as parents.
        """
