"""The SQL sink, on every database there is: what a batch does, what a table must be, what is refused."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
import sqlalchemy as sa

from tests.sinks.conftest import Rows
from tupletree.bolts.effects import TaskPlace
from tupletree.errors import ConfigError, ConnectorError, RuntimeUnavailableError
from tupletree.sinks import SinkRowsError, sql
from tupletree.sinks.sql import SqlSink
from tupletree.topology.components import SinkBatch


class Count(msgspec.Struct, frozen=True):
    word: str
    count: int


@contextmanager
def opened(sink: SqlSink, cls: type = Count) -> Iterator[SqlSink]:
    sink.open(TaskPlace("t", "out", 1, 0, 1, input_types=(cls,)))
    try:
        yield sink
    finally:
        sink.close()


def batch(number: int, *rows: Any, writer: str = "run-out-0000") -> SinkBatch[Any]:
    return SinkBatch(f"{writer}-{number:08d}", rows, writer, number)


def test_a_batch_is_written_once_however_often_it_comes(url: str, rows: Rows) -> None:
    with opened(sql(url, "counts")) as sink:
        for _ in range(3):
            sink.write(batch(4, Count("a", 1), Count("b", 1)))
        sink.write(batch(5, Count("a", 2)))
        with pytest.raises(ConnectorError, match="later batch"):  # two processes are at work
            sink.write(batch(4, Count("late", 1)))
    with opened(sql(url, "counts")) as sink:  # as after a restart
        sink.write(batch(5, Count("a", 2)))
        sink.write(batch(5, Count("a", 2), writer="another"))
    assert sorted(rows("SELECT word, count FROM counts")) == [("a", 1), ("a", 2), ("a", 2), ("b", 1)]
    assert sorted(rows("SELECT writer, number FROM tupletree_batches")) == [("another", 5), ("run-out-0000", 5)]


def test_rows_that_the_database_refuses_are_named_all_of_them_and_nothing_is_written(
    url: str, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    rows("CREATE TABLE counts (word VARCHAR(20) PRIMARY KEY, count INTEGER CHECK (count < 100))")
    good = [Count(f"w{number}", number) for number in range(50)]
    bad = {7: Count("big", 100), 20: Count("w3", 1), 51: Count("bigger", 1000)}
    values: list[Count] = list(good)
    for position, row in bad.items():
        values.insert(position, row)
    with opened(sql(url, "counts")) as sink:
        with pytest.raises(SinkRowsError) as caught:
            sink.write(batch(1, *values))
        assert [row.position for row in caught.value.rows] == [7, 20, 51]
        assert all("constraint" in row.reason for row in caught.value.rows)
        assert caplog.messages == []  # psycopg would warn of each of them
        assert rows("SELECT * FROM counts") == rows("SELECT * FROM tupletree_batches") == []
        sink.write(batch(1, *good))
    assert len(rows("SELECT * FROM counts")) == 50


def test_a_key_puts_later_rows_in_the_place_of_earlier_ones(url: str, rows: Rows) -> None:
    with opened(sql(url, "counts", key="word")) as sink:
        sink.write(batch(1, Count("a", 1), Count("b", 1), Count("a", 2)))
        sink.write(batch(2, Count("b", 2)))
    assert sorted(rows("SELECT word, count FROM counts")) == [("a", 2), ("b", 2)]
    with opened(sql(url, "words", key=("word", "count"))) as sink:
        sink.write(batch(3, Count("a", 1), Count("a", 1), Count("a", 2)))
    assert sorted(rows("SELECT word, count FROM words")) == [("a", 1), ("a", 2)]


class Colour(enum.Enum):
    RED = 1


class Everything(msgspec.Struct, frozen=True):
    flag: bool
    number: int
    rate: float
    text: str
    raw: bytes
    day: date
    moment: datetime
    clock: time
    span: timedelta
    amount: Decimal
    ident: UUID
    colour: Colour
    inner: dict[str, list[int]]
    nothing: int | None = None
    no_list: list[int] | None = None


def test_every_type_of_field_has_a_column_that_holds_it_exactly(url: str, rows: Rows) -> None:
    moments = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)]
    moments.append(datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1))
    base = Everything(
        True, 2**63 - 1, 0.1, "é\n'", b"\0\xff", date(1, 1, 1), moments[0], time(1, 2, 3),
        timedelta(days=-1, seconds=1), Decimal("1.10"), UUID(int=7), Colour.RED, {"a": [1]},
    )  # fmt: skip
    values = [msgspec.structs.replace(base, moment=moment) for moment in moments]
    with opened(sql(url, "everything"), Everything) as sink:
        sink.write(batch(1, *values))
    with opened(sql(url, "everything"), Everything) as sink:  # the table that was made fits
        sink.write(batch(2, *values))
    found = rows('SELECT flag, number, rate, text, raw, day, clock, "nothing", no_list FROM everything')
    assert len(found) == 6
    flag, number, rate, text, raw, day, clock, nothing, no_list = found[0]
    assert (bool(flag), number, rate, text, raw) == (True, 2**63 - 1, 0.1, "é\n'", b"\0\xff")
    assert (str(day), clock, nothing, no_list) == ("0001-01-01", "01:02:03", None, None)
    assert str(rows("SELECT amount FROM everything")[0][0]) == "1.10"
    assert str(rows("SELECT ident FROM everything")[0][0]) == str(UUID(int=7))
    assert [row[0] for row in rows("SELECT colour FROM everything")] == ["RED"] * 6
    if url.startswith("postgresql"):
        assert [row[0] for row in rows("SELECT moment FROM everything")][2] == moments[2].astimezone(UTC)
        assert rows("SELECT inner FROM everything".replace("inner", '"inner"'))[0][0] == {"a": [1]}
    else:
        assert rows("SELECT moment FROM everything")[2][0] == "2026-10-25T02:30:00+01:00[Europe/Berlin][fold=1]"


class Moment(msgspec.Struct, frozen=True):
    at: datetime
    rate: float | None = None


def test_values_that_a_column_would_bend_are_refused_with_their_row(url: str, rows: Rows) -> None:
    aware, naive = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1)  # noqa: DTZ001 - naive on purpose
    if url.startswith("postgresql"):
        rows("CREATE TABLE local (at TIMESTAMP, rate REAL)")
        with opened(sql(url, "local"), Moment) as sink, pytest.raises(SinkRowsError, match="time zone") as caught:
            sink.write(batch(1, Moment(naive), Moment(aware)))
        assert [row.position for row in caught.value.rows] == [1]
        with opened(sql(url, "zoned"), Moment) as sink, pytest.raises(SinkRowsError, match="no time zone") as caught:
            sink.write(batch(1, Moment(naive), Moment(aware)))
        assert [row.position for row in caught.value.rows] == [0]
    else:
        with opened(sql(url, "rates"), Moment) as sink, pytest.raises(SinkRowsError, match="NaN") as caught:
            sink.write(batch(1, Moment(aware, 1.0), Moment(naive, float("nan"))))
        assert [row.position for row in caught.value.rows] == [1]


def test_a_table_that_does_not_fit_is_refused_at_the_start_for_all_reasons_at_once(url: str, rows: Rows) -> None:
    rows("CREATE TABLE counts (count TEXT, id INTEGER NOT NULL)")
    with pytest.raises(ConfigError) as caught:
        sql(url, "counts", key="count").open(TaskPlace("t", "out", 1, 0, 1, input_types=(Count,)))
    text = str(caught.value)
    for words in (
        "no column for the field 'word'",
        "'count' does not hold int",
        "'id' needs a value",
        "UNIQUE (count)",
        "ALTER TABLE counts ADD COLUMN _made BIGINT",
    ):
        assert words in text
    assert len(caught.value.findings) == 5


def test_columns_are_matched_by_name_and_further_ones_may_do_without_a_value(url: str, rows: Rows) -> None:
    key = "INTEGER PRIMARY KEY" if url.startswith("sqlite") else "SERIAL PRIMARY KEY"
    rows(f"CREATE TABLE counts (count INTEGER, note TEXT DEFAULT 'none', id {key}, word TEXT)")
    with opened(sql(url, "counts")) as sink:
        sink.write(batch(1, Count("a", 1)))
    assert rows("SELECT id, note, word, count FROM counts") == [(1, "none", "a", 1)]


def test_two_tasks_may_write_at_once_and_the_same_batch_is_there_once(url: str, rows: Rows) -> None:
    with opened(sql(url, "counts")) as one, opened(sql(url, "counts")) as other:
        one.write(batch(1, Count("a", 1), writer="one"))
        other.write(batch(1, Count("b", 1), writer="other"))
        other.write(batch(1, Count("a", 1), writer="one"))
    assert sorted(rows("SELECT word, count FROM counts")) == [("a", 1), ("b", 1)]


def test_a_database_that_fails_is_no_fault_of_the_rows_and_passwords_are_never_shown(url: str, rows: Rows) -> None:
    with opened(sql(url, "counts")) as sink:
        rows("DROP TABLE counts")
        with pytest.raises(ConnectorError) as caught:
            sink.write(batch(1, Count("a", 1)))
        assert not isinstance(caught.value, SinkRowsError)
    assert rows("SELECT * FROM tupletree_batches") == []
    secret = sql("postgresql+psycopg://me:secret@127.0.0.1:1/none", "counts")
    with pytest.raises(ConnectorError) as unreachable:
        secret.open(TaskPlace("t", "out", 1, 0, 1, input_types=(Count,)))
    assert "secret" not in repr(secret) + str(unreachable.value)


def test_what_cannot_be_used_is_refused_before_anything_is_written() -> None:
    with pytest.raises(ConfigError, match="no database URL"):
        sql("nonsense", "counts")
    place = TaskPlace("t", "out", 1, 0, 1, input_types=(Count, Moment))
    with pytest.raises(ConfigError, match="rows of one class"):
        sql("sqlite://", "counts").open(place)
    with pytest.raises(ConfigError, match="no field 'wrod'"):
        sql("sqlite://", "counts", key="wrod", message_type=Count).open(place)
    with pytest.raises(RuntimeUnavailableError, match="driver"):
        sql("mysql+nothing://localhost/x", "counts", message_type=Count).open(place)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_constraints_that_wait_for_the_commit_name_their_row_too(url: str, rows: Rows) -> None:
    rows("CREATE TABLE words (word TEXT PRIMARY KEY)")
    rows("INSERT INTO words VALUES ('a')")
    rows("CREATE TABLE counts (word TEXT REFERENCES words DEFERRABLE INITIALLY DEFERRED, count SMALLINT)")
    with opened(sql(url, "counts")) as sink, pytest.raises(SinkRowsError) as caught:
        sink.write(batch(1, Count("a", 1), Count("stranger", 1), Count("a", 40_000), Count("\0", 1)))
    assert [row.position for row in caught.value.rows] == [1, 2, 3]


def test_a_write_to_a_table_that_another_transaction_holds_is_given_up_as_the_databases_fault(
    url: str, rows: Rows
) -> None:
    # Both databases wait; for how long is part of the URL.
    hold, patience = {
        "sqlite": ("INSERT INTO counts VALUES ('held', 1)", "?timeout=0.01"),
        "postgresql": ("LOCK TABLE counts IN EXCLUSIVE MODE", "&options=-c%20lock_timeout%3D10"),
    }[sa.make_url(url).get_backend_name()]
    with opened(sql(url + patience, "counts")) as sink:
        holder = sa.create_engine(url)
        with holder.connect() as connection:
            connection.execute(sa.text(hold))
            with pytest.raises(ConnectorError, match="lock"):
                sink.write(batch(1, Count("a", 1)))
        holder.dispose()
        sink.write(batch(1, Count("a", 1)))
    assert rows("SELECT word FROM counts") == [("a",)]


@pytest.mark.parametrize("gone", ["counts", "tupletree_batches"])
def test_a_table_that_is_gone_is_an_outage_that_the_next_start_ends(url: str, rows: Rows, gone: str) -> None:
    """As after a failover to a server that was set up anew."""
    sink = sql(url, "counts", message_type=Count)
    with opened(sink):
        sink.write(batch(1, Count("a", 1)))
        rows(f"DROP TABLE {gone}")
        with pytest.raises(ConnectorError, match="a start makes the tables that are missing"):
            sink.write(batch(2, Count("b", 1)))
    with opened(sink):
        sink.write(batch(2, Count("b", 1)))
    assert ("b",) in rows("SELECT word FROM counts")


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_after_a_failure_a_new_session_is_made_for_the_old_one_may_be_wrong_for_ever(url: str, rows: Rows) -> None:
    with opened(sql(url, "counts")) as sink:
        try:
            # As after a failover: the session is that of a server which only reads now, and it answers.
            rows("ALTER ROLE CURRENT_USER SET default_transaction_read_only = on")
            rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            for _ in range(2):
                with pytest.raises(ConnectorError, match="read-only"):
                    sink.write(batch(1, Count("a", 1)))
        finally:
            rows("SET TRANSACTION READ WRITE; ALTER ROLE CURRENT_USER RESET default_transaction_read_only")
        sink.write(batch(1, Count("a", 1)))
    assert rows("SELECT word FROM counts") == [("a",)]


def made(number: int, *rows: tuple[Any, int], run: str = "first") -> SinkBatch[Any]:
    numbers = [one for _, one in rows]
    return SinkBatch(f"{run}-{number:08d}", [row for row, _ in rows], f"{run}-out-0000", number, run, numbers)


def test_the_newest_row_of_a_key_stays_in_whatever_order_rows_come(url: str, rows: Rows) -> None:
    with opened(sql(url, "counts", key="word")) as sink:
        sink.write(made(1, (Count("a", 3), 3), (Count("b", 1), 9), (Count("a", 2), 2)))
        sink.write(made(2, (Count("a", 1), 1), (Count("b", 2), 10)))
    with opened(sql(url, "counts", key="word")) as sink:  # as after a restart
        sink.write(made(3, (Count("b", 0), 8), (Count("c", 1), 4)))
    assert sorted(rows("SELECT word, count FROM counts")) == [("a", 3), ("b", 2), ("c", 1)]


def test_what_a_later_run_makes_is_newer_and_of_equal_numbers_the_later_row(url: str, rows: Rows) -> None:
    with opened(sql(url, "counts", key="word")) as first, opened(sql(url, "counts", key="word")) as second:
        first.write(made(1, (Count("a", 1), 1_000), (Count("b", 1), 7)))
        second.write(made(1, (Count("a", 2), 1), (Count("c", 1), 1), (Count("c", 2), 1), run="second"))
        first.write(made(2, (Count("a", 3), 999), (Count("b", 2), 7)))
    assert sorted(rows("SELECT word, count FROM counts")) == [("a", 2), ("b", 2), ("c", 2)]
    assert sorted(rows("SELECT table_name, run, base FROM tupletree_runs")) == [
        ("counts", "first", 0),
        ("counts", "second", 1_000),
    ]


def test_a_table_of_before_takes_the_column_that_the_error_names(url: str, rows: Rows) -> None:
    rows("CREATE TABLE counts (word VARCHAR(20) PRIMARY KEY, count INTEGER)")
    rows("INSERT INTO counts VALUES ('a', 5)")
    with pytest.raises(ConfigError) as caught, opened(sql(url, "counts", key="word")):
        pass
    (finding,) = caught.value.findings
    rows(finding.next_step)
    with opened(sql(url, "counts", key="word")) as sink:
        sink.write(made(1, (Count("a", 6), 1)))
    assert rows("SELECT word, count FROM counts") == [("a", 6)]


def test_a_table_of_a_schema_has_a_name_of_any_kind_and_takes_the_column_that_the_error_names(
    url: str, rows: Rows
) -> None:
    schema = "Shop" if url.startswith("postgresql") else "main"
    rows(f'CREATE SCHEMA "{schema}"' if schema == "Shop" else "SELECT 1")
    there = f'"{schema}"."Counts of words"'
    rows(f"CREATE TABLE {there} (word VARCHAR(20) PRIMARY KEY, count INTEGER)")
    with pytest.raises(ConfigError) as caught, opened(sql(url, "Counts of words", key="word", schema=schema)):
        pass
    (finding,) = caught.value.findings
    rows(finding.next_step)
    with opened(sql(url, "Counts of words", key="word", schema=schema)) as sink:
        for _ in range(2):
            sink.write(made(1, (Count("a", 6), 1)))
        assert sink.newest_batch("first-out-0000") == 1
    with opened(sql(url, "Counts of words", key="word", schema=schema, add_columns=True), Wider) as sink:
        sink.write(made(2, (Wider("b", 7, "en"), 1)))
    assert sorted(rows(f"SELECT word, count, lang FROM {there}")) == [("a", 6, None), ("b", 7, "en")]
    assert len(rows(f'SELECT * FROM "{schema}".tupletree_runs')) == 1


class Wider(msgspec.Struct, frozen=True):
    word: str
    count: int
    lang: str = "?"
    at: datetime | None = None


def test_a_table_without_the_column_of_a_new_field_takes_the_statements_that_the_error_shows(
    url: str, rows: Rows
) -> None:
    with opened(sql(url, "counts", key="word")) as sink:
        sink.write(made(1, (Count("a", 5), 1)))
    with pytest.raises(ConfigError) as caught, opened(sql(url, "counts", key="word"), Wider):
        pass
    assert all("add_columns=True" in finding.expected for finding in caught.value.findings)
    for finding in caught.value.findings:
        rows(finding.next_step)
    with opened(sql(url, "counts", key="word"), Wider) as sink:
        sink.write(made(2, (Wider("b", 6, "en"), 1)))
    assert sorted(rows("SELECT word, count, lang FROM counts")) == [("a", 5, None), ("b", 6, "en")]


def test_columns_of_new_fields_are_added_where_that_is_asked_for(url: str, rows: Rows) -> None:
    for number, cls in enumerate((Count, Wider, Wider), 1):
        with opened(sql(url, "counts", key="word", add_columns=True), cls) as sink:
            sink.write(made(number, (cls("a" * number, number), number)))
    found = sorted(rows("SELECT word, count, lang, at FROM counts"))
    assert found == [("a", 1, None, None), ("aa", 2, "?", None), ("aaa", 3, "?", None)]


def test_the_name_of_the_column_is_taken(url: str) -> None:
    odd = msgspec.defstruct("Odd", [("word", str), ("_made", int)], frozen=True)
    with pytest.raises(ConfigError, match="give the field another name"), opened(sql(url, "odd", key="word"), odd):
        pass


def test_a_row_without_a_number_is_older_than_any_other(url: str, rows: Rows) -> None:
    with opened(sql(url, "counts", key="word")) as sink:
        sink.write(made(1, (Count("a", 1), 1)))
        rows("UPDATE counts SET _made = NULL")
        sink.write(made(2, (Count("a", 2), 1)))
    assert rows("SELECT word, count FROM counts") == [("a", 2)]
