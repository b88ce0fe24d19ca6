"""The ledger's tables.

Owns their columns and indexes, and the format's number. Refuses to know what is done with them. Rows are joined by
numbers, so that an index grows at its end; ids are texts for people and brokers.
"""

from __future__ import annotations

import sqlalchemy as sa

FORMAT = "2"
METADATA = sa.MetaData()
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

COUNTED = (
    "pending", "processing", "held", "retrying", "done", "filtered", "unrouted", "dead", "cancelled", "failed", "lost",
)  # fmt: skip
"""Columns of `counts`: the states by code, then attempts that failed and that never ended."""


def _table(name: str, *columns: sa.schema.SchemaItem) -> sa.Table:
    return sa.Table(f"tupletree_route_{name}", METADATA, *columns)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default="")


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False, server_default="0")


meta = _table("meta", sa.Column("name", sa.Text, primary_key=True), _text("value"))

documents = _table(
    "documents",
    sa.Column("number", _NUMBER, primary_key=True),
    sa.Column("hash", sa.Text, nullable=False, unique=True),
    _text("document"),
    _text("versions"),  # JSON
)

executions = _table(
    "executions",
    sa.Column("number", _NUMBER, primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    _text("pipeline"),
    sa.Column("document", _NUMBER, nullable=False),
    _text("state"),
    _count("paused"),
    _count("open"),
    _count("total"),
    _count("dead"),
    _text("init"),
    _count("init_dead"),
    sa.Column("run", sa.Integer, nullable=False, server_default="1"),
    _text("on_complete"),
    sa.Column("created_s", sa.Double, nullable=False),
    sa.Column("ended_s", sa.Double),
    _count("told"),
    _text("reason"),
)
sa.Index(
    "tupletree_route_not_told",
    executions.c.number,
    sqlite_where=sa.text("ended_s IS NOT NULL AND told = 0"),
    postgresql_where=sa.text("ended_s IS NOT NULL AND told = 0"),
)

messages = _table(
    "messages",
    sa.Column("seq", _NUMBER, primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    # Nearly every message has one execution and one parent; the others have rows in `members` and `edges`, all of them.
    sa.Column("execution", _NUMBER, nullable=False, index=True),
    sa.Column("parent", _NUMBER, index=True),
    _count("merged"),
    _text("route"),
    _text("queue"),
    sa.Column("state", sa.SmallInteger, nullable=False),
    _count("failures"),
    _count("lost"),
    _count("replays"),
    _text("name"),  # its id at its broker, where that is another: of messages that others published, and of replays
    _text("reason"),
    _text("error"),
    _text("adapter"),
    sa.Column("created_s", sa.Double, nullable=False),
    sa.Column("changed_s", sa.Double, nullable=False),
    sa.Column("due_s", sa.Double, nullable=False, server_default="0"),
)
sa.Index(
    "tupletree_route_dead_letters",
    messages.c.execution,
    sqlite_where=sa.text("state = 7"),
    postgresql_where=sa.text("state = 7"),
)

sa.Index(
    "tupletree_route_names", messages.c.name, sqlite_where=sa.text("name <> ''"), postgresql_where=sa.text("name <> ''")
)

members = _table(
    "members",
    sa.Column("message", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("execution", _NUMBER, primary_key=True, autoincrement=False, index=True),
)

edges = _table(
    "edges",
    sa.Column("child", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("parent", _NUMBER, primary_key=True, autoincrement=False, index=True),
)

counts = _table(
    "counts",
    sa.Column("execution", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("route", sa.Text, primary_key=True),
    *[_count(name) for name in COUNTED],
)

outbox = _table(
    "outbox",
    sa.Column("seq", _NUMBER, primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    _text("queue"),
    sa.Column("body", sa.LargeBinary, nullable=False),
    _text("headers"),  # JSON
    sa.Column("due_s", sa.Double, nullable=False, server_default="0"),
    _text("pipeline"),  # whose queue it is for
)

dead = _table(
    "dead",
    sa.Column("message", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    _text("headers"),  # JSON
    _text("traceback"),
)
