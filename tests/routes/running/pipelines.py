"""Adapters and routes for the tests of this folder."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from tupletree.errors import ConnectorError, PermanentError
from tupletree.routes import (
    Adapter,
    AdapterConfig,
    AdapterContext,
    AdapterResult,
    BatchAdapter,
    Emitted,
    PipelineContext,
    Release,
    RouteSpec,
    StatefulAdapter,
)
from tupletree.routes.document.spec import AdapterSpec, Inbound
from tupletree.routes.messages import Standing, Work
from tupletree.routes.payloads import encode

__all__ = [
    "Asked",
    "Batch",
    "Config",
    "Gathering",
    "adapter",
    "route",
    "work",
]


class Config(AdapterConfig):
    """What an adapter of these tests is to do."""

    say: str = ""
    seconds: float = 0.0
    size: int = 3
    queue: str = ""


class Asked(Adapter[Config]):
    """Does what the payload's `do` says where its `say` is the config's; appends `say` to the payload's `seen`."""

    calls: list[str] = []  # noqa: RUF012 - shared on purpose: what happened, in order
    parallel = True

    def open(self, context: AdapterContext) -> None:
        self.calls.append(f"open {context.adapter}")

    async def process(self, context: PipelineContext) -> AdapterResult | None:  # noqa: C901 - a case each
        payload = context.message.payload
        do = payload.get("do", {}).get(self.config.say, "")
        self.calls.append(f"{self.config.say} {context.message.id}")
        seen = {**payload, "seen": [*payload.get("seen", []), self.config.say]}
        message = context.message.with_payload(seen)
        match do:
            case "raise":
                raise ValueError(self.config.say)
            case "permanent":
                raise PermanentError(self.config.say)
            case "away":
                raise ConnectorError(self.config.say)
            case "cancel":
                raise asyncio.CancelledError
            case "exit":
                raise SystemExit(3)
            case "none":
                return None
            case "stop":
                return AdapterResult(message, continue_pipeline=False, reason="enough")
            case "nowhere":
                return AdapterResult(message, continue_pipeline=False, unrouted=True)
            case "wrong":
                return "no result"  # type: ignore[return-value]  # the fault under test
            case "emit":
                return AdapterResult(message, [Emitted({"of": self.config.say}, self.config.queue)])
            case "split":
                return AdapterResult(None, [Emitted({"part": one}) for one in range(3)])
            case "unpublishable":
                return AdapterResult(context.message.with_payload(object()))
            case "wait":
                await asyncio.sleep(self.config.seconds)
            case "for ever":
                while True:
                    try:
                        await asyncio.sleep(3600)
                    except asyncio.CancelledError:
                        self.calls.append("swallowed")
        return AdapterResult(message)

    def close(self) -> None:
        self.calls.append("close")


class Plain(Adapter[Config]):
    """A plain function that notes how many of its calls run at a time."""

    running = most = 0
    stuck = threading.Event()

    def process(self, context: PipelineContext) -> AdapterResult:
        Plain.running += 1
        Plain.most = max(Plain.most, Plain.running)
        if context.message.payload.get("do") == "block":
            self.stuck.wait(60)
        Plain.running -= 1
        return AdapterResult(context.message)


class Batch(BatchAdapter[Config]):
    """Gives what the first payload's `do` says."""

    max_age_s = 0.4
    batches: list[list[Any]] = []  # noqa: RUF012 - shared on purpose

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.size = config.size

    def process_batch(self, contexts: Sequence[PipelineContext]) -> Any:
        payloads = [one.message.payload for one in contexts]
        self.batches.append(payloads)
        numbers = [one["number"] for one in payloads]
        do = payloads[0].get("do", "")
        if any(one.get("do") == "raise" for one in payloads):
            raise ValueError("in a batch")
        if any(one.get("do") == "away" for one in payloads):
            raise ConnectorError("away")
        if do == "together":
            return AdapterResult(contexts[0].message.with_payload({"numbers": numbers}))
        if do == "two":
            return [AdapterResult(contexts[0].message.with_payload({"half": one})) for one in range(2)]
        if do == "none":
            return [None for _ in contexts]
        return [AdapterResult(one.message.with_payload({"batched": one.message.payload["number"]})) for one in contexts]


class Gathering(StatefulAdapter[Config]):
    """Holds messages until the one that says so."""

    check_interval_s = 5.0

    def open(self, context: AdapterContext) -> None:
        self.held: list[PipelineContext] = []
        self.is_ready = False

    def process(self, context: PipelineContext) -> AdapterResult:
        do = context.message.payload.get("do", "")
        if do == "pass":
            return AdapterResult(context.message)
        self.held.append(context)
        self.is_ready = self.is_ready or do == "release"
        return AdapterResult(context.message, continue_pipeline=False, reason="gathering")

    def check(self, now_s: float) -> Sequence[Release]:
        return self.flush(now_s) if self.is_ready else []

    def flush(self, now_s: float) -> Sequence[Release]:
        held, self.held, self.is_ready = self.held, [], False
        if not held:
            return []
        numbers = [one.message.payload["number"] for one in held]
        if 99 in numbers:
            return [Release([one.message.id for one in held], dropped="99 is not wanted")]
        message = held[0].message.with_payload({"numbers": numbers})
        return [Release([one.message.id for one in held], [AdapterResult(message)])]


def adapter(cls: type[Adapter[Any]] = Asked, say: str = "", condition: Any = None, **config: Any) -> AdapterSpec:
    """One adapter, named by what it says."""
    name = say or cls.__name__.lower()
    return AdapterSpec(name, name, cls, Config(say=say, **config), condition)


def route(*adapters: AdapterSpec, outbound: Sequence[str] = ("out",), **settings: Any) -> RouteSpec:
    """A route of these adapters."""
    return RouteSpec("r", Inbound(queue="in"), adapters, tuple(outbound), **settings)


def work(payload: Any, name: str = "m", attempt: int = 1) -> Work:
    """A delivery."""
    standing = Standing(id=name, route="r", queue="in", handle=f"h-{name}", executions=("e",), attempt=attempt)
    return Work(messages=[standing], body=encode(payload), headers={"h": "1"})
