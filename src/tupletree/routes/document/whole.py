"""Faults that only the document as a whole shows: names that lead nowhere, queues that no route reads.

Pure: the checked parts and their places in, faults out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from tupletree.errors import TupletreeError, nearest
from tupletree.queues.urls import parse_url
from tupletree.routes.document.cases import TestModel
from tupletree.routes.document.faults import FaultList
from tupletree.routes.document.model import UNKNOWN, DocumentModel, RouteModel
from tupletree.routes.document.nodes import MappingNode, Place, Step, node_at
from tupletree.routes.document.spec import MOST_HELD, AdapterSpec, PipelineSpec, RouteSpec


def check_whole(
    document: DocumentModel, root: MappingNode, faults: FaultList, schemes: Collection[str], *, complete: bool = True
) -> None:
    """Judge the document's parts against each other.

    Args:
        document: with every key and value allowed where it stands.
        root: its places.
        faults: gets what is found.
        schemes: of queues, that can be opened here.
        complete: whether all routes are in it; if not, a name may lead to one that could not be read.
    """
    check = _Whole(document, root, faults)
    check.urls(schemes)
    check.names()
    check.readers(complete=complete)
    check.loops()
    if complete:
        check.start()


def check_fit(document: DocumentModel, spec: PipelineSpec, root: MappingNode, faults: FaultList) -> None:
    """Judge what the adapters need against what their routes allow. Routes with faulty parts are left out."""
    for route in spec.routes.values():
        whole = len(route.adapters) == len(document.routes[route.name].adapters) and UNKNOWN not in route.outbound
        for position, adapter in enumerate(route.adapters if whole else ()):
            _fits(route, adapter, ("routes", route.name, "adapters", position, "config"), root, faults)


def check_tests(document: DocumentModel, spec: PipelineSpec, root: MappingNode, faults: FaultList) -> None:
    """Judge the names that unit tests use."""
    named: dict[str, int] = {}
    queues = {queue for route in spec.routes.values() for queue in route.queues}
    for number, test in enumerate(document.tests):
        path: tuple[Step, ...] = ("tests", number)

        def unknown(at: tuple[Step, ...], what: str, got: str, known: Collection[str], path: Any = path) -> None:
            node, _, key_place = node_at(root, (*path, *at))
            place = key_place if at[-1] == got else node.place
            expected = f"one of {', '.join(sorted(filter(None, known)))}"
            faults.add("R409", place, (*path, *at), what, got=got, expected=expected, nearest=nearest(got, known))

        if named.setdefault(test.name, number) != number:
            at = (*path, "name")
            hint = f"tests[{named[test.name]}] has it already"
            faults.add("R410", node_at(root, at)[0].place, at, "two tests have one name", got=test.name, next_step=hint)
        name = tested_route(test, spec)
        route = spec.routes.get(name)
        if route is None:
            unknown(("route",), "there is no such route", name or "no route", spec.routes)
            continue
        followed = spec.routes.values() if test.follow else (route,)
        adapters = {adapter.name for one in followed for adapter in one.adapters}
        for mock in test.mocks:
            if mock not in adapters and _is_whole(document, spec):
                unknown(("mocks", mock), "there is no adapter of this name", mock, adapters)
        for queue in test.expect.outputs or ():
            if queue not in queues:
                unknown(("expect", "outputs", queue), "no route sends to this queue", queue, queues)
        outcomes = test.expect.outcomes
        if outcomes is not None and len(outcomes) != len(test.input):
            at = (*path, "expect", "outcomes")
            expected = f"{len(test.input)}, one for each input"
            place = node_at(root, at)[0].place
            faults.add("R409", place, at, "outcomes without inputs", got=f"{len(outcomes)}", expected=expected)


def tested_route(test: TestModel, spec: PipelineSpec) -> str:
    """The name of the route that gets a test's input; empty if the document does not say which one."""
    if test.route is not None:
        return test.route
    if spec.init_message is not None:
        return spec.init_message.route
    return next(iter(spec.routes)) if len(spec.routes) == 1 else ""


def _is_whole(document: DocumentModel, spec: PipelineSpec) -> bool:
    """Whether no adapter had to be left out."""
    return all(len(route.adapters) == len(document.routes[name].adapters) for name, route in spec.routes.items())


def _fits(route: RouteSpec, adapter: AdapterSpec, path: tuple[Step, ...], root: MappingNode, faults: FaultList) -> None:
    place = node_at(root, path)[0].place
    try:
        queues = set(adapter.adapter.queues(adapter.config))
    except Exception as error:  # noqa: BLE001 - code of the adapter, which may raise anything
        got = f"{type(error).__name__}: {error}"
        faults.add("R302", place, path, f"asking {adapter.name} for its queues failed", got=got)
        return
    for queue in sorted(queues.difference(route.outbound)):
        faults.add(
            "R304",
            place,
            path,
            f"{adapter.name} sends to a queue that is none of its route's outbound queues",
            got=queue,
            expected=f"one of {', '.join(route.outbound)}" if route.outbound else "",
            nearest=nearest(queue, route.outbound),
            next_step=f"add it: outbound: [{{queue: {queue}}}]",
        )
    if adapter.batch_size > MOST_HELD:
        what = f"the batches of {adapter.name} are larger than what a route may hold"
        hint = "otherwise no batch is ever full, and each waits for its age"
        expected = f"at most {MOST_HELD:,} messages"
        faults.add("R303", place, path, what, got=f"{adapter.batch_size:,}", expected=expected, next_step=hint)


class _Whole:
    def __init__(self, document: DocumentModel, root: MappingNode, faults: FaultList) -> None:
        self.document = document
        self.root = root
        self.faults = faults
        self.inbound: dict[str, str] = {}
        for name, route in document.routes.items():
            self.inbound.setdefault(route.inbound.queue, name)

    def place(self, *path: Step) -> Place:
        """Where a value stands."""
        return node_at(self.root, path)[0].place

    def key_place(self, *path: Step) -> Place:
        """Where a key stands."""
        return node_at(self.root, path)[2]

    def urls(self, schemes: Collection[str]) -> None:
        """Queues whose brokers cannot be opened."""
        for name, queue in self.document.queues.items():
            if queue.url:
                path: tuple[Step, ...] = ("queues", name)
                path = (*path, "url") if self._is_mapping(*path) else path
                self._url(queue.url, path, schemes)
        if self.document.queue_file:
            self._url(self.document.queue_file, ("queue_file",), ("sqlite",))
        databases: dict[tuple[Step, ...], str] = {
            ("ledger",): self.document.ledger,
            ("lineage", "store"): self.document.lineage.store,
        }
        for path, url in databases.items():
            if url and "://" not in url:
                expected = "such as sqlite:///ledger.db or postgresql+psycopg://host/name"
                self.faults.add("R401", self.place(*path), path, "this is no URL of a database", expected=expected)

    def _is_mapping(self, *path: Step) -> bool:
        return isinstance(node_at(self.root, path)[0], MappingNode)

    def _url(self, url: str, path: tuple[Step, ...], schemes: Collection[str]) -> None:
        try:
            scheme = parse_url(url).scheme
        except TupletreeError as error:
            [finding, *_] = error.findings
            what, got, expected = finding.what, finding.got, finding.expected
            self.faults.add("R401", self.place(*path), path, what, got=got, expected=expected)
            return
        if scheme not in schemes:
            self.faults.add(
                "R401",
                self.place(*path),
                path,
                "no broker is known for the scheme of this URL",
                got=f"{scheme}://",
                expected=f"one of {', '.join(f'{one}://' for one in sorted(schemes))}",
                nearest=nearest(scheme, schemes) and f"{nearest(scheme, schemes)}://",
            )

    def mentions(self) -> Iterator[tuple[str, tuple[Step, ...]]]:
        """Every name of a queue, with the path at which it stands."""
        for name in self.document.queues:
            yield name, ("queues", name)
        for name, route in self.document.routes.items():
            yield route.inbound.queue, ("routes", name, "inbound", "queue")
            for position, outbound in enumerate(route.outbound):
                yield outbound.queue, ("routes", name, "outbound", position, "queue")
            if (dead := route.error_handling.dead_letter_queue) is not None:
                yield dead, ("routes", name, "error_handling", "dead_letter_queue")
        if self.document.on_complete is not None:
            yield self.document.on_complete, ("on_complete",)

    def names(self) -> None:
        """Names that differ only in case."""
        first: dict[str, tuple[str, tuple[Step, ...]]] = {}
        for queue, path in self.mentions():
            known, at = first.setdefault(queue.casefold(), (queue, path))
            if known != queue:
                place = self.key_place(*path) if path[0] == "queues" else self.place(*path)
                self._differs("queues", queue, place, path, known, at)
        seen: dict[str, str] = {}
        for name in self.document.routes:
            known = seen.setdefault(name.casefold(), name)
            if known != name:
                path = ("routes", name)
                self._differs("routes", name, self.key_place(*path), path, known, ("routes", known))

    def _differs(
        self, what: str, name: str, place: Place, path: tuple[Step, ...], known: str, at: tuple[Step, ...]
    ) -> None:
        hint = f"{self.key_place(*at)} says {known}; use one of them everywhere"
        self.faults.add("R404", place, path, f"names of {what} differ only in case", got=name, next_step=hint)

    def readers(self, *, complete: bool) -> None:
        """Queues that two routes read, or that none reads."""
        for name, route in self.document.routes.items():
            queue = route.inbound.queue
            if (first := self.inbound[queue]) != name:
                path = ("routes", name, "inbound", "queue")
                hint = f"routes.{first} reads it (line {self.place('routes', first, 'inbound', 'queue').line})"
                what = "two routes read one queue"
                self.faults.add("R402", self.place(*path), path, what, got=queue, next_step=hint)
            self._outbound(name, route, complete=complete)

    def _outbound(self, name: str, route: RouteModel, *, complete: bool) -> None:
        met: set[str] = set()
        cases = {queue.casefold(): queue for queue in self.inbound}
        for position, outbound in enumerate(route.outbound):
            path = ("routes", name, "outbound", position, "queue")
            queue = outbound.queue
            if queue == UNKNOWN:
                continue
            if queue in met:
                what = "an outbound queue is named twice"
                self.faults.add("R408", self.place(*path), path, what, got=queue)
                continue
            met.add(queue)
            if not complete or queue in self.inbound or queue in self.document.queues:
                continue
            if cases.get(queue.casefold(), queue) != queue:
                continue  # said by `names`
            self.faults.add(
                "R403",
                self.place(*path),
                path,
                "no route reads this queue",
                got=queue,
                nearest=nearest(queue, [*self.inbound, *self.document.queues]),
                next_step=f"if others read it, declare it: queues: {{{queue}: {{sink: true}}}}",
            )

    def start(self) -> None:
        """The route that gets the first message."""
        document = self.document
        start = document.init_message
        if start is not None and start.route not in document.routes:
            path = ("init_message", "route")
            near = nearest(start.route, document.routes)
            known = f"one of {', '.join(document.routes)}"
            place = self.place(*path)
            self.faults.add(
                "R405", place, path, "there is no such route", got=start.route, expected=known, nearest=near
            )

    def loops(self) -> None:
        """Messages that would come back for ever."""
        document = self.document
        if document.on_complete in self.inbound:
            reader = self.inbound[document.on_complete]
            self.faults.add(
                "R407",
                self.place("on_complete"),
                ("on_complete",),
                "the completion event would start another execution, and its completion the next",
                got=document.on_complete,
                expected=f"a queue that no route reads; routes.{reader} reads this one",
            )
        for name, route in document.routes.items():
            dead = route.error_handling.dead_letter_queue
            if dead is not None and dead == route.inbound.queue:
                path = ("routes", name, "error_handling", "dead_letter_queue")
                what = "dead letters would come back to the route that gave them up"
                expected = "another queue than its inbound queue"
                self.faults.add("R406", self.place(*path), path, what, got=dead, expected=expected)
