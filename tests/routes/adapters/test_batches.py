"""embed and write_sql, which work on batches."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.routes.adapters.calls import closed, opened
from tupletree.errors import ConfigError, ConnectorError, PermanentError, ProcessingError
from tupletree.routes import AdapterResult, BatchAdapter, PipelineContext, RouteMessage
from tupletree.routes.adapters import find


def run(work: Any) -> Any:
    return asyncio.run(work)


async def batch(adapter: Any, messages: dict[str, Any]) -> list[AdapterResult]:
    assert isinstance(adapter, BatchAdapter)
    contexts = [PipelineContext(RouteMessage(payload, id=name)) for name, payload in messages.items()]
    made: Any = await asyncio.to_thread(adapter.process_batch, contexts)
    return list(made)


def embedded(*texts: str, **config: Any) -> list[list[float]]:
    async def work() -> Any:
        adapter = await opened("embed", **config)
        results = await batch(adapter, {str(index): {"text": text} for index, text in enumerate(texts)})
        await closed(adapter)
        return [result.message.payload["vector"] for result in results if result.message is not None]

    found: list[list[float]] = run(work())
    return found


def cosine(first: list[float], second: list[float]) -> float:
    return sum(a * b for a, b in zip(first, second))


def test_texts_become_unit_vectors_and_what_is_alike_is_near() -> None:
    lists, lists_too, floats, nothing = embedded(
        "A list is a sequence", "The list is a mutable sequence", "Floating point numbers", "!", dimensions=64
    )
    assert {len(vector) for vector in (lists, floats, nothing)} == {64}
    assert math.isclose(cosine(lists, lists), 1.0)
    assert cosine(lists, lists_too) > cosine(lists, floats)
    assert set(nothing) == {0.0}
    assert embedded("A list is a sequence", dimensions=64) == [lists]


def test_a_member_without_text_fails_its_batch_for_good() -> None:
    with pytest.raises(PermanentError, match="expected: text"):
        embedded("a", 5)  # type: ignore[arg-type]


def test_the_size_of_batches_is_a_setting() -> None:
    adapter: Any = find("embed")(find("embed").Config.model_validate({"size": 7, "max_age_s": 2, "max_bytes": 9}))
    assert (adapter.size, adapter.max_age_s, adapter.max_bytes) == (7, 2, 9)


def test_a_model_whose_package_is_missing_is_found_before_anything_runs() -> None:
    with pytest.raises(ValidationError, match="pip install 'tupletree\\[sentences\\]'"):
        find("embed").Config.model_validate({"model": "all-MiniLM-L6-v2"})


def test_heavy_packages_are_imported_only_when_they_are_used() -> None:
    program = (
        "import sys, tupletree, tupletree.routes, tupletree.routes.adapters as a; a.find('embed'); "
        "print({'sklearn', 'sentence_transformers', 'httpx', 'jinja2', 'sqlalchemy', 'duckdb'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


CREATE = "CREATE TABLE IF NOT EXISTS docs (id TEXT PRIMARY KEY, kind TEXT, size INTEGER, more TEXT, raw BLOB)"
COLUMNS = {
    "id": "message.id",
    "kind": "payload.kind",
    "size": "payload.size",
    "more": "payload.more",
    "raw": "payload.raw",
}


def written(path: Path, *batches: dict[str, Any], **config: Any) -> list[tuple[Any, ...]]:
    async def work() -> None:
        given = {"url": f"sqlite:///{path}", "table": "docs", "columns": COLUMNS, "setup": [CREATE], **config}
        adapter = await opened("write_sql", **given)
        try:
            for messages in batches:
                results = await batch(adapter, messages)
                assert [result.message.payload for result in results if result.message] == list(messages.values())
        finally:
            await closed(adapter)

    run(work())
    return rows(path)


def rows(path: Path) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT * FROM docs ORDER BY id").fetchall()
    finally:
        connection.close()


def test_a_row_is_written_for_each_message(tmp_path: Path) -> None:
    messages = {
        "m1": {"kind": "md", "size": 5, "more": {"a": [1, "é"]}, "raw": b"\x00"},
        "m2": {"kind": datetime(2026, 1, 1, tzinfo=UTC), "more": Decimal("1.10")},
    }
    assert written(tmp_path / "a.db", messages) == [
        ("m1", "md", 5, '{"a": [1, "é"]}', b"\x00"),
        ("m2", "2026-01-01 00:00:00+00:00", None, "1.10", None),
    ]


def test_a_message_that_comes_again_is_written_once(tmp_path: Path) -> None:
    first, second = {"m1": {"kind": "old"}}, {"m1": {"kind": "new"}, "m2": {"kind": "x"}}
    assert [row[:2] for row in written(tmp_path / "a.db", first, second)] == [("m1", "new"), ("m2", "x")]
    assert [row[:2] for row in written(tmp_path / "b.db", first, second, mode="ignore")] == [("m1", "old"), ("m2", "x")]


def test_two_rows_with_one_key_in_a_batch_are_one(tmp_path: Path) -> None:
    messages = {"m1": {"kind": "md", "size": 1}, "m2": {"kind": "md", "size": 2}}
    config = {"key": ["kind"], "setup": [CREATE, "CREATE UNIQUE INDEX IF NOT EXISTS one ON docs (kind)"]}
    assert [row[:3] for row in written(tmp_path / "a.db", messages, **config)] == [("m2", "md", 2)]
    assert [row[:3] for row in written(tmp_path / "b.db", messages, mode="ignore", **config)] == [("m1", "md", 1)]


def test_a_batch_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    setup = [CREATE.replace("size INTEGER", "size INTEGER CHECK (size > 0)")]
    with pytest.raises(PermanentError, match="refuses this row"):
        written(tmp_path / "a.db", {"m1": {"size": 1}, "m2": {"size": 0}}, setup=setup)
    assert rows(tmp_path / "a.db") == []


@pytest.mark.parametrize("payload", [{"size": 2**70}, {"more": {"x": b""}}, {"kind": "\ud800"}])
def test_values_that_no_column_can_hold_fail_for_good(tmp_path: Path, payload: Any) -> None:
    with pytest.raises(PermanentError):
        written(tmp_path / "a.db", {"m1": payload})


def test_a_row_without_a_key_fails_for_good(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="has no key"):
        written(tmp_path / "a.db", {"m1": {}}, columns={"id": "payload.id"}, key=["id"])


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"table": "doks"}, "did you mean 'docs'?"),
        ({"columns": {"id": "message.id", "knd": "payload.kind"}}, "has not these columns"),
        ({"columns": {"kind": "message.id"}}, "no unique constraint on kind"),
        ({"setup": ["CREATE TABEL x"]}, "refuses the setup"),
    ],
)
def test_what_does_not_fit_the_table_is_found_when_the_adapter_is_opened(
    tmp_path: Path, config: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        written(tmp_path / "a.db", **config)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"url": "mysql://me:secret@host/x"}, "sqlite or postgresql"),
        ({"url": "secret-nonsense"}, "a database URL"),
        ({"columns": {}}, "at least 1 item"),
        ({"columns": {"kind": "payload.kind"}}, "no column tells rows apart"),
        ({"columns": {"kind": "payload.kind"}, "key": ["id"]}, "key names id"),
    ],
)
def test_rows_that_nothing_tells_apart_are_refused(config: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        find("write_sql").Config.model_validate({"url": "sqlite://", "table": "t", **config})


def test_a_database_that_is_away_is_an_outage(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError):
        written(tmp_path / "away" / "a.db")
    # Locked by another process for longer than the driver waits.
    connection = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    connection.execute(CREATE)
    connection.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(ConnectorError, match="locked"):
            written(tmp_path / "a.db", {"m1": {}}, setup=[], url=f"sqlite:///{tmp_path}/a.db?timeout=0.01")
    finally:
        connection.close()


def test_a_table_that_was_removed_fails_the_attempt_only(tmp_path: Path) -> None:
    async def work() -> None:
        config: dict[str, Any] = {
            "url": f"sqlite:///{tmp_path}/a.db",
            "table": "docs",
            "columns": COLUMNS,
            "setup": [CREATE],
        }
        adapter = await opened("write_sql", **config)
        connection = sqlite3.connect(tmp_path / "a.db")
        connection.execute("DROP TABLE docs")
        connection.close()
        try:
            with pytest.raises(ProcessingError, match="no such table") as caught:
                await batch(adapter, {"m1": {}})
            assert not isinstance(caught.value, PermanentError)
        finally:
            await closed(adapter)

    run(work())
