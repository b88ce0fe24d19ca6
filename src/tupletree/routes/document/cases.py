"""The format of unit tests in a document: messages in, what mocked adapters give, and what is expected.

Owns keys and types. Refuses to run anything: `routes/testing` does.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tupletree.routes.document.parts import Count, Name, Part, QueueName, Seconds, SomeSeconds

TestOutcome = Literal["done", "filtered", "unrouted", "dead", "held"]


class InputModel(Part):
    """A message that the route gets."""

    payload: Any = Field(default=None, description="any value")
    headers: dict[str, str] = Field(default_factory=dict, description="text by name")


class EmittedModel(Part):
    """A message that a mock emits."""

    payload: Any = Field(default=None, description="any value")
    queue: QueueName | None = Field(default=None, description="an outbound queue; null: those that the message is for")
    headers: dict[str, str] = Field(default_factory=dict, description="added to those of the message")


class MockModel(Part):
    """What an adapter gives instead of being called. Without a key the message passes unchanged."""

    payload: Any = Field(default=None, description="the message goes on with this payload")
    headers: dict[str, str] = Field(default_factory=dict, description="and with these headers")
    queue: QueueName | None = Field(default=None, description="it is published to this outbound queue only")
    emitted: list[EmittedModel] = Field(default_factory=list, description="messages that it emits")
    filtered: str | None = Field(default=None, description="it ends here, for this reason")
    unrouted: str | None = Field(default=None, description="it ends here: no queue takes it, for this reason")
    raises: str | None = Field(default=None, description="the call raises this text")
    permanent: bool = Field(default=False, description="no further attempt helps")
    outage: bool = Field(default=False, description="a service is away: no attempt counts")
    retry_after_seconds: SomeSeconds | None = Field(default=None, description="the next attempt comes after this pause")
    takes_seconds: Seconds = Field(default=0.0, description="before it gives anything")

    @model_validator(mode="after")
    def _one_end(self) -> MockModel:
        ends = [name for name in ("payload", "filtered", "unrouted", "raises") if name in self.model_fields_set]
        if len(ends) > 1:
            raise ValueError(f"one of payload, filtered, unrouted and raises, not {' and '.join(ends)}")
        if self.raises is None and {"permanent", "outage", "retry_after_seconds"} & self.model_fields_set:
            raise ValueError("raises, for permanent, outage and retry_after_seconds")
        return self


class OutputModel(Part):
    """A message that is expected in a queue."""

    payload: Any = Field(default=None, description="equal to this")
    headers: dict[str, str] = Field(default_factory=dict, description="these are among its headers")


class ExpectModel(Part):
    """What must come of it. What is not named is not looked at."""

    outcome: TestOutcome | None = Field(
        default=None, description="of every input: `done`, `filtered`, `unrouted`, `dead`, `held`; null: `done`"
    )
    outcomes: list[TestOutcome] | None = Field(default=None, description="of each input, in order")
    outputs: dict[QueueName, list[OutputModel]] | None = Field(
        default=None, description="queue → its messages, in order; no other queue gets any"
    )
    partial: bool = Field(default=False, description="mappings in payloads may hold more keys")
    children: Annotated[int, Field(ge=0)] | None = Field(default=None, description="messages published in all")
    attempts: Count | None = Field(default=None, description="of the first input")
    called: list[str] | None = Field(default=None, description="adapters called for the first input, in order")
    reason: str | None = Field(default=None, description="is part of the first input's reason or error")
    error: str | None = Field(default=None, description="class of what the last attempt of the first input raised")


def _listed(value: Any) -> Any:
    """One thing stands for a list of it."""
    return [value] if isinstance(value, dict) else value


class TestModel(Part):
    """A unit test of a route."""

    name: str = Field(min_length=1, description="unique; what it shows")
    route: Name | None = Field(default=None, description="null: that of `init_message`, or the only one")
    input: Annotated[list[InputModel], BeforeValidator(_listed)] = Field(
        min_length=1, description="a message, or a list of them"
    )
    mocks: dict[str, Annotated[list[MockModel], BeforeValidator(_listed)]] = Field(
        default_factory=dict,
        description="adapter → what it gives: always, or a list, one for each call; the last repeats",
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="laid over the pipeline's `settings`")
    follow: bool = Field(default=False, description="what it publishes goes on through the routes that read it")
    expect: ExpectModel = Field(description="what must come of it")

    __test__ = False  # nothing that pytest collects
