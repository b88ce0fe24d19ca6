"""What commands say of messages that can never be delivered, and where they look for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tupletree.cli.pipelines import Places, existing
from tupletree.errors import ConfigError
from tupletree.escaping import escape

if TYPE_CHECKING:
    from tupletree.queues import Broker
    from tupletree.routes.ledger import Ledger
    from tupletree.routes.lost import LostReport

NAMED = 20


class KnownQueues:
    """Where the queues of a pipeline are, by its document, or by what its last run noted.

    Args:
        place: of the pipeline.
        ledger: its ledger.
        pipeline: its name.
        closing: closes the connections.
    """

    def __init__(self, place: Places, ledger: Ledger, pipeline: str, closing: ExitStack) -> None:
        self._place = place
        self._closing = closing
        self._brokers: dict[str, Broker] = {}
        noted = ledger.noted(pipeline)
        self._elsewhere = frozenset(noted["elsewhere"]) if noted is not None else None
        self.readers: Mapping[str, str] | None = noted["readers"] if noted is not None else None
        if place.spec is not None:
            self.readers = {route.inbound.queue: name for name, route in place.spec.routes.items()}

    def broker(self, queue: str) -> Broker | None:
        """See `QueuePlaces`."""
        from tupletree.queues import connect

        spec, url = self._place.spec, self._place.queue_file
        if spec is not None:
            url = spec.queues.get(queue, url)
        elif self._elsewhere is None or queue in self._elsewhere:
            return None
        if not url:
            return None
        if url not in self._brokers:
            try:
                existing(url)  # looking must not make an empty file
            except ConfigError:
                return None
            self._brokers[url] = self._closing.enter_context(connect(url))
        return self._brokers[url]


@contextmanager
def known_queues(place: Places, ledger: Ledger, pipeline: str) -> Iterator[KnownQueues]:
    """The queues of a pipeline, for `find_lost`."""
    with ExitStack() as closing:
        yield KnownQueues(place, ledger, pipeline, closing)


def lost_lines(report: LostReport) -> Iterator[str]:
    """What is lost, a line for each message up to 20, and what could not be asked."""
    for one in report.messages[:NAMED]:
        route = f" of route {one.route}" if one.route else ""
        yield escape(f"  lost: {one.id}{route}, {one.state}: {one.reason}")
    if len(report.messages) > NAMED:
        yield f"  lost: {len(report.messages) - NAMED:,} more"
    if report.messages:
        yield "  next: tupletree routes settle-lost ends them as dead; cancel ends the execution"
    for queue, why in report.not_asked.items():
        yield escape(f"  not known whether messages are lost from {queue}: {why}")
