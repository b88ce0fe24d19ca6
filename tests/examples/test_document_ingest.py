"""The adapters of the example, called in order by hand; `tests/routes` has pipelines that run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from examples.document_ingest.documents import DAMAGED, make_documents
from examples.document_ingest.search import PIPELINE, search
from examples.document_ingest.steps import convert
from tupletree.errors import PermanentError
from tupletree.routes import AdapterContext, AdapterResult, BatchAdapter, PipelineContext, RouteMessage
from tupletree.routes.document import load
from tupletree.routes.document.spec import RouteSpec


class Failures:
    def __init__(self) -> None:
        self.dead: dict[str, str] = {}
        self.retried: list[str] = []


async def worked(route: RouteSpec, messages: Sequence[RouteMessage], failures: Failures) -> list[RouteMessage]:
    """What these messages come to at the end of a route, each attempt tried again once."""
    for position, spec in enumerate(route.adapters):
        adapter: Any = spec.adapter(spec.config)
        opening = adapter.open(AdapterContext(route.name, spec.name, position))
        if inspect.isawaitable(opening):
            await opening
        if isinstance(adapter, BatchAdapter):
            results = list(adapter.process_batch([PipelineContext(message) for message in messages]))  # type: ignore[arg-type]
        else:
            results = [await called(adapter, message, failures) for message in messages]
        closing = adapter.close()
        if inspect.isawaitable(closing):
            await closing
        messages = [one for result, message in zip(results, messages) for one in outputs(result, message)]
    return list(messages)


async def called(adapter: Any, message: RouteMessage, failures: Failures) -> AdapterResult | None:
    for attempt in (1, 2):
        try:
            result = adapter.process(PipelineContext(message, attempt=attempt))
            found: AdapterResult | None = await result if inspect.isawaitable(result) else result
        except PermanentError as error:
            failures.dead[message.payload["path"]] = str(error)
            return None
        except OSError:
            failures.retried.append(message.payload["path"])
        else:
            return found
    return None


def outputs(result: AdapterResult | None, message: RouteMessage) -> list[RouteMessage]:
    if result is None:
        return []
    passed = [result.message] if result.message is not None else []
    return [*passed, *(message.with_payload(piece.payload) for piece in result.emitted)]


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Failures]:
    folder = tmp_path_factory.mktemp("ingest")
    make_documents(folder / "documents")
    pipeline = load(PIPELINE, {"DOCUMENTS": str(folder / "documents"), "INDEX": f"sqlite:///{folder}/index.db"})
    failures = Failures()

    async def work() -> None:
        names = sorted(path.name for path in (folder / "documents").iterdir())
        messages: list[RouteMessage] = [RouteMessage({"path": name}, id=name) for name in names]
        for route in pipeline.routes.values():
            messages = await worked(route, messages, failures)

    asyncio.run(work())
    return folder / "index.db", failures


@pytest.mark.parametrize(
    ("question", "document"),
    [
        ("raise an exception again", "raise.txt"),
        ("how do I delete a variable", "del.txt"),
        ("format a floating point number with two digits", "formatstrings.txt"),
        ("anonymous function lambda", "lambda.txt"),
        ("breakpoint debugger commands", "debugger.txt"),
    ],
)
def test_the_search_finds_the_right_topic(ingested: tuple[Path, Failures], question: str, document: str) -> None:
    found = search(str(ingested[0]), question)
    assert found[0].document == document
    assert found[0].score > 0.1
    assert len(found) == 5


def test_the_damaged_document_is_dead_with_its_reason_and_the_flaky_step_was_tried_again(
    ingested: tuple[Path, Failures],
) -> None:
    failures = ingested[1]
    assert list(failures.dead) == [DAMAGED]
    assert "this file is no text" in failures.dead[DAMAGED]
    assert 2 <= len(failures.retried) <= 20


def test_marks_are_taken_out_of_a_text() -> None:
    content = 'The "assert" statement\n******\n\nIt is *very* short.\n'
    made = convert({"path": "a", "content": content})
    assert made == {"path": "a", "title": "The assert statement", "text": "The assert statement\n\nIt is very short."}
    assert convert({"path": "a", "content": "\n***\n"}) is None
