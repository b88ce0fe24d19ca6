"""How the routes of a pipeline stand: messages by state, what waits in their queues, and how quickly it goes."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from tupletree.routes.running.services import Services


class RouteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One route.

    Attributes:
        route: its name.
        ready: messages in its queue that may be leased now.
        in_flight: that are worked.
        held: that its adapters hold.
        waiting: that are delayed, or wait for their next attempt.
        done: that ended well, with or without children.
        filtered: that were filtered, or that no queue took.
        dead: dead letters.
        cancelled: of cancelled executions.
        failed: attempts that failed.
        rate_per_s: messages that ended, since the last look.
        p95_s: from lease to settlement, in this process; None: none yet.
        concurrency: slots as they are now, in this process.
        eta_s: when all that is open has ended, at this rate; None: not known.
    """

    route: str
    ready: int = 0
    in_flight: int = 0
    held: int = 0
    waiting: int = 0
    done: int = 0
    filtered: int = 0
    dead: int = 0
    cancelled: int = 0
    failed: int = 0
    rate_per_s: float = 0.0
    p95_s: float | None = None
    concurrency: int = 0
    eta_s: float | None = None


class StatusReader:
    """Reads the status of a pipeline, again and again.

    Args:
        services: of the pipeline.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._ended: dict[str, tuple[float, int]] = {}

    def read(self) -> Sequence[RouteStatus]:
        """Each route as it stands now, in the document's order."""
        services, spec = self._services, self._services.run.spec
        counts = {one.route: one for one in services.ledger.counts(pipeline=spec.name)}
        gates = services.gates.status()
        now_s = time.monotonic()
        found = []
        for name, route in spec.routes.items():
            states = counts[name].states if name in counts else {}
            of = {state: states.get(state, 0) for state in ("done", "filtered", "unrouted", "dead", "cancelled")}
            depth = services.broker(route.inbound.queue).depth(route.inbound.queue)
            ended = sum(of.values())
            before_s, before = self._ended.get(name, (now_s, ended))
            rate = (ended - before) / (now_s - before_s) if now_s > before_s else 0.0
            self._ended[name] = now_s, ended
            processing, retrying = states.get("processing", 0), states.get("retrying", 0)
            # The ledger is told within a second; of other processes it alone knows.
            held = max(states.get("held", 0), gates[name].held)
            left = states.get("pending", 0) + processing + states.get("held", 0) + retrying
            found.append(
                RouteStatus(
                    route=name,
                    ready=depth.ready,
                    in_flight=max(processing + states.get("held", 0) - held, 0),
                    held=held,
                    waiting=max(depth.delayed, retrying),
                    done=of["done"],
                    filtered=of["filtered"] + of["unrouted"],
                    dead=of["dead"],
                    cancelled=of["cancelled"],
                    failed=counts[name].failed_attempts if name in counts else 0,
                    rate_per_s=round(rate, 1),
                    p95_s=gates[name].p95_s,
                    concurrency=gates[name].limit,
                    eta_s=left / rate if rate > 0 and left else None,
                )
            )
        return found
