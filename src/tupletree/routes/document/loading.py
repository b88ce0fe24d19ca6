"""A document from its text to a `PipelineSpec`: read, typed, its adapters found, judged as a whole.

Owns the order of these steps. Every fault of every file is found before any is told.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tupletree.queues.registry import schemes
from tupletree.routes.document.faults import DocumentError, FaultList
from tupletree.routes.document.frozen import frozen
from tupletree.routes.document.model import DocumentModel, RouteModel
from tupletree.routes.document.nodes import MappingNode
from tupletree.routes.document.reading import read_document
from tupletree.routes.document.spec import AdapterSpec, PipelineSpec, RouteSpec
from tupletree.routes.document.stages import adapters_of, check_modules
from tupletree.routes.document.typed import inherited, typed_document
from tupletree.routes.document.whole import check_fit, check_tests, check_whole

TEXT_NAME = "<text>"


@dataclass(frozen=True)
class Document:
    """A document without faults.

    Attributes:
        spec: what runs.
        model: the document, typed.
        root: with its places; routes hold what they inherit.
    """

    spec: PipelineSpec
    model: DocumentModel
    root: MappingNode


def load(source: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> PipelineSpec:
    """Read and check a document.

    Args:
        source: path of a file; a text with a line break is the document itself.
        environ: for `${NAME}`; the process's own by default.

    Raises:
        DocumentError: with every fault.
    """
    return read(source, environ).spec


def read(source: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> Document:
    """As `load`, with places.

    The document's folder is put on `sys.path`, for the modules of its adapters.
    """
    text = source if isinstance(source, str) and "\n" in source else None
    file = TEXT_NAME if text is not None else os.fspath(source)
    faults = FaultList()
    environ = os.environ if environ is None else environ
    reading = read_document(file, environ, faults, text)
    if reading.root is None:
        raise DocumentError([*faults])
    root = inherited(reading.root)
    typed = typed_document(root, faults, complete=reading.complete)
    if typed.model is None:
        raise DocumentError([*faults])
    folder = "" if text is not None else str(Path(file).resolve().parent)
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    adapters = adapters_of(typed.model, root, faults)
    check_modules(typed.model, root, folder, faults)
    check_whole(typed.model, root, faults, schemes(), complete=typed.complete)
    settings = [adapter.config for route in adapters.values() for adapter in route]
    spec = _spec_of(typed.model, adapters, frozen(reading.sources, root, environ, settings), folder)
    check_fit(typed.model, spec, root, faults)
    if typed.complete:
        check_tests(typed.model, spec, root, faults)
    faults.refuse()
    return Document(spec, typed.model, root)


def _spec_of(
    document: DocumentModel, adapters: Mapping[str, tuple[AdapterSpec, ...]], source: str, search_path: str
) -> PipelineSpec:
    """What runs, put together: `adapters` are those of every route, `source` is the text that is kept of it."""
    return PipelineSpec(
        name=document.pipeline,
        routes={name: _route(name, route, adapters[name]) for name, route in document.routes.items()},
        queues={name: queue.url for name, queue in document.queues.items() if queue.url},
        sinks=frozenset(name for name, queue in document.queues.items() if queue.sink),
        queue_file=document.queue_file,
        ledger=document.ledger,
        limits=document.limits,
        lineage=document.lineage,
        settings=document.settings,
        init_message=document.init_message,
        on_complete=document.on_complete or "",
        tests=tuple(test.model_dump(exclude_unset=True) for test in document.tests),
        source=source,
        description=document.description,
        search_path=search_path,
    )


def _route(name: str, route: RouteModel, adapters: tuple[AdapterSpec, ...]) -> RouteSpec:
    return RouteSpec(
        name=name,
        inbound=route.inbound,
        adapters=adapters,
        outbound=tuple(outbound.queue for outbound in route.outbound),
        description=route.description,
        error_handling=route.error_handling,
        timeout_seconds=route.timeout_seconds,
        backpressure=route.backpressure,
        lease_seconds=route.lease_seconds,
    )
