"""A broker as the suite sees it, a scenario, and how the one is checked against the other."""

from __future__ import annotations

import contextlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tupletree.queues import Broker, Capabilities, Delivery, Message, NotCapableError
from tupletree.testing.conformance.runtime import NotConformingError

Outcome = Literal["held", "refused", "not asked"]


class BrokerUnderTest(ABC):
    """One broker.

    Scenarios make queues with names of their own and leave them behind, empty or not. They may follow each other on one
    broker; still, give the suite a database, or a server, that you can throw away.

    Attributes:
        name: in test names and messages.
        lease_s: seconds of the scenarios' leases and delays: as short as the broker allows where time is real. One
            scenario lets `remembers_acked_s` go by as well, and one 1.2 times `max_lease_s`, if that is at most 20
            times this: connect with short ones where time is real.
        large_bytes: body of the large message, if the broker takes that much.
    """

    name: str
    lease_s: float = 30.0
    large_bytes: int = 20_000_000

    @abstractmethod
    def connect(self, *, skew_s: float = 0.0) -> Broker:
        """A new connection, as from another process: all of a scenario lead to the same broker.

        Args:
            skew_s: how far the wall clock of that process is from the broker's. A broker that never reads the caller's
                clock may ignore it.
        """

    @abstractmethod
    def advance(self, seconds: float) -> None:
        """Let the broker's time go by: move its clock, or sleep."""

    def __str__(self) -> str:
        return self.name


class Bench:
    """What a scenario works with.

    Attributes:
        broker: a connection.
        can: its capabilities.
        lease_s: of its leases.
        queue: a queue that is declared and empty.
        large_bytes: see `BrokerUnderTest`.
    """

    def __init__(self, under_test: BrokerUnderTest, closing: contextlib.ExitStack) -> None:
        self._under_test = under_test
        self._closing = closing
        self.lease_s = under_test.lease_s
        self.large_bytes = under_test.large_bytes
        self.broker = self.connect()
        self.can: Capabilities = self.broker.capabilities
        self.queue = self.another()

    def connect(self, *, skew_s: float = 0.0) -> Broker:
        """Another connection, which is closed at the end."""
        return self._closing.enter_context(self._under_test.connect(skew_s=skew_s))

    def another(self, *, ordered: bool = False) -> str:
        """Another queue, declared and empty."""
        name = f"conformance-{secrets.token_hex(6)}"
        self.broker.declare(name, ordered=ordered)
        return name

    def advance(self, seconds: float) -> None:
        """Let the broker's time go by."""
        self._under_test.advance(seconds)

    def publish(self, *bodies: bytes, queue: str = "") -> Sequence[Message]:
        """Publish messages with these bodies."""
        made = messages(*bodies)
        self.broker.publish(queue or self.queue, made)
        return made

    def lease(self, limit: int = 100, *, queue: str = "", broker: Broker | None = None) -> list[Delivery]:
        """Lease what is there, without waiting, in as many calls as the broker needs."""
        found: list[Delivery] = []
        while len(found) < limit:
            taken = (broker or self.broker).lease(queue or self.queue, limit - len(found), lease_s=self.lease_s)
            if not taken:
                break
            found += taken
        return found

    def let_leases_end(self) -> None:
        """Until every lease of now is over."""
        self.advance(self.lease_s * 1.05)


def messages(*bodies: bytes) -> list[Message]:
    """Messages with these bodies and ids drawn at random."""
    return [Message(body=body) for body in bodies]


def must(condition: object, text: str, got: object = None) -> None:
    """Raise NotConformingError unless the condition holds."""
    if not condition:
        raise NotConformingError(text if got is None else f"{text}; got {got!r:.500}")


def equal(got: object, expected: object, text: str) -> None:
    """Raise NotConformingError, with both, unless they are equal."""
    if got != expected:
        raise NotConformingError(f"{text}; got {got!r:.500}; expected {expected!r:.500}")


def empty(got: object, text: str) -> None:
    """Raise NotConformingError, with what was got, unless there is none of it. None is no answer."""
    if got is None or got:
        raise NotConformingError(f"{text}; got {got!r:.500}")


Play = Callable[[Bench], None]


@dataclass(frozen=True)
class QueueScenario:
    """Something that a broker must do.

    Attributes:
        name: as a sentence.
        play: does it; raises NotConformingError.
        needs: fields of `Capabilities` without which it is not asked; `move:dead` is a state that the field names.
        otherwise: asks for it all the same; must raise NotCapableError where one of them is missing.
    """

    name: str
    play: Play
    needs: tuple[str, ...] = ()
    otherwise: Play | None = None

    def __str__(self) -> str:
        return self.name


def scenario(*needs: str, otherwise: Play | None = None) -> Callable[[Play], QueueScenario]:
    """Make a scenario of a function, whose name is the sentence."""

    def make(play: Play) -> QueueScenario:
        return QueueScenario(play.__name__.replace("_", " "), play, needs, otherwise)

    return make


def check(one: QueueScenario, under_test: BrokerUnderTest) -> Outcome:
    """Check one scenario on one broker.

    Returns:
        `held`; or, of a broker that declares that it cannot: `refused` if it says so when asked, `not asked` if there
        is no way to ask.

    Raises:
        NotConformingError: it is not met.
    """
    with _benched(under_test) as bench:
        lacking = [need for need in one.needs if not _has(bench.can, need)]
        if not lacking:
            try:
                one.play(bench)
            except NotCapableError as error:
                raise NotConformingError(
                    f"{one}: {under_test} declares all that this needs; got NotCapableError: {error}"
                ) from error
            return "held"
        if one.otherwise is None:
            return "not asked"
        try:
            one.otherwise(bench)
        except NotCapableError:
            return "refused"
        raise NotConformingError(
            f"{under_test} declares that it lacks {', '.join(lacking)}, but takes it without NotCapableError"
        )


def _has(can: Capabilities, need: str) -> bool:
    name, _, state = need.partition(":")
    value = getattr(can, name)
    return state in value if state else bool(value)


@contextlib.contextmanager
def _benched(under_test: BrokerUnderTest) -> Iterator[Bench]:
    with contextlib.ExitStack() as closing:
        yield Bench(under_test, closing)
