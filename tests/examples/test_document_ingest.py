from __future__ import annotations

import contextlib
import io
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.document_ingest.__main__ import ingest
from examples.document_ingest.documents import DAMAGED, make_documents
from examples.document_ingest.search import search
from examples.document_ingest.steps import convert
from tupletree.routes.ledger import Ledger


@dataclass
class Ingested:
    index: Path
    home: Path
    exit_code: int
    lines: list[str]


def ingested_on(runtime: str, folder: Path) -> Ingested:
    documents, index, home = folder / "documents", folder / "index.db", folder / "home"
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        exit_code = ingest(documents, index, home, runtime)
    return Ingested(index, home, exit_code, written.getvalue().splitlines())


pytestmark = pytest.mark.xdist_group("document ingest")
"""They share what is ingested."""


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Ingested:
    return ingested_on("local", tmp_path_factory.mktemp("ingest"))


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
def test_the_search_finds_the_right_topic(ingested: Ingested, question: str, document: str) -> None:
    found = search(str(ingested.index), question)
    assert found[0].document == document
    assert found[0].score > 0.1
    assert len(found) == 5


def test_each_document_is_told_once_and_the_damaged_one_with_its_reason(ingested: Ingested) -> None:
    check(ingested)


@pytest.mark.nightly
@pytest.mark.spark
def test_the_example_runs_on_spark(tmp_path: Path) -> None:
    ingested = ingested_on("spark", tmp_path)
    check(ingested)
    assert search(str(ingested.index), "how do I delete a variable")[0].document == "del.txt"


def check(ingested: Ingested) -> None:
    *told, last = ingested.lines
    names = [line.partition(":")[0] for line in told]
    assert len(names) == len(set(names)) > 70
    assert last.startswith(f"{len(names) - 1} of {len(names)} documents are indexed")
    assert ingested.exit_code == 3
    [damaged] = [line for line in told if "not indexed" in line]
    assert damaged.startswith(f"{DAMAGED}: not indexed: read_file: ")
    assert "this file is no text" in damaged
    with contextlib.closing(sqlite3.connect(ingested.index)) as connection:
        counted = "SELECT document, COUNT(*), MIN(number), MAX(number) FROM segments GROUP BY document"
        rows = connection.execute(counted).fetchall()
    assert {row[0] for row in rows} == set(names) - {DAMAGED}
    assert all((first, last) == (0, count - 1) for _, count, first, last in rows)
    # The ledger has it the same way: a document, its text and its segments.
    segments = {name: count for name, count, _, _ in rows}
    assert {line for line in told if line != damaged} == {
        line
        for line in told
        for name in [line.partition(":")[0]]
        if name in segments and f": indexed, {segments[name] + 2} messages, " in line
    }
    message = damaged.rpartition(" ")[2]
    ledger = Ledger.open(f"sqlite:///{ingested.home}/pipeline.db")
    try:
        account = ledger.message(message)
        assert account is not None
        assert (account.message.state, account.message.adapter) == ("dead", "read_file")
        retried = sum(
            one.failures > 0 and one.state == "done"
            for execution in ledger.executions(limit=1000)
            for one in ledger.messages(execution.id, route="convert")
        )
        assert 2 <= retried <= 20
    finally:
        ledger.close()


def test_documents_are_the_topics_and_one_that_is_no_text(tmp_path: Path) -> None:
    make_documents(tmp_path)
    assert len(list(tmp_path.iterdir())) > 70
    with pytest.raises(UnicodeDecodeError):
        (tmp_path / DAMAGED).read_text(encoding="utf-8")


def test_marks_are_taken_out_of_a_text() -> None:
    content = 'The "assert" statement\n******\n\nIt is *very* short.\n'
    made = convert({"path": "a", "content": content})
    assert made == {"path": "a", "title": "The assert statement", "text": "The assert statement\n\nIt is very short."}
    assert convert({"path": "a", "content": "\n***\n"}) is None
