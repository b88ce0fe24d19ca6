"""Statements that are built with SQLAlchemy, compiled once for each dialect, and run with plain tuples.

Owns `Statement` and those that run for messages in bulk. Refuses to run any: that is `stores`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from tupletree.routes.ledger.tables import COUNTED, counts, dead, edges, executions, members, messages, outbox
from tupletree.routes.ledger.values import PENDING

Insert: TypeAlias = "sqlite.Insert | postgresql.Insert"
Arrange: TypeAlias = "Callable[[tuple[Any, ...]], tuple[Any, ...]]"

param = sa.bindparam
_POSTGRESQL = PGDialect_psycopg(paramstyle="format")  # type: ignore[no-untyped-call]  # SQLAlchemy's
_DIALECTS: dict[str, tuple[sa.Dialect, Callable[[sa.Table], Insert]]] = {
    "sqlite": (SQLiteDialect_pysqlite(), sqlite.insert),
    "postgresql": (_POSTGRESQL, postgresql.insert),
}


class Among(sa.ColumnElement[Any]):
    """`column` is one of a list, which is a single parameter: an array, or JSON where there are none."""

    inherit_cache = False
    type = sa.types.NullType()  # a Boolean would be compared with 1 in SQLite, and no index be used

    def __init__(self, column: sa.ColumnElement[Any], name: str) -> None:
        self.column = column
        self.bind = sa.bindparam(name, type_=sa.types.NullType())


@compiles(Among, "sqlite")
def _among_sqlite(element: Among, compiler: SQLCompiler, **options: Any) -> str:
    column = compiler.process(element.column, **options)
    # Without the cast it has no affinity, and no index of the column is used.
    kind = "TEXT" if isinstance(element.column.type, sa.Text) else "INTEGER"
    values = f"json_each({compiler.process(element.bind, **options)})"
    return f"{column} IN (SELECT CAST(value AS {kind}) FROM {values})"  # noqa: S608 - names of our own


@compiles(Among, "postgresql")
def _among_postgresql(element: Among, compiler: SQLCompiler, **options: Any) -> str:
    column = compiler.process(element.column, **options)
    kind = "text" if isinstance(element.column.type, sa.Text) else "bigint"
    return f"{column} = ANY(CAST({compiler.process(element.bind, **options)} AS {kind}[]))"


class Statement:
    """A statement whose parameters are a tuple.

    Args:
        built: it; or what builds it of a dialect's `insert`.
        names: of its parameters, in the order of the tuples; by default that of its text, which is fastest.
    """

    def __init__(self, built: sa.Executable | Callable[[Callable[[sa.Table], Insert]], sa.Executable], *names: str):
        self._built = built
        self._names = names
        self._compiled: dict[str, tuple[str, Arrange | None]] = {}

    def for_dialect(self, name: str) -> tuple[str, Arrange | None]:
        """Its text, and what brings a tuple into its order; None: it is in it."""
        found = self._compiled.get(name)
        if found is None:
            dialect, insert = _DIALECTS[name]
            built = self._built if isinstance(self._built, sa.Executable) else self._built(insert)
            assert isinstance(built, sa.ClauseElement)
            compiled = built.compile(dialect=dialect)
            assert isinstance(compiled, SQLCompiler)
            found = self._compiled[name] = str(compiled), self._arrange(compiled)
        return found

    def _arrange(self, compiled: SQLCompiler) -> Arrange | None:
        order = tuple(compiled.positiontup or ())
        given = self._names or tuple(dict.fromkeys(name for name in order if compiled.binds[name].required))
        if order == given:
            return None
        literals = [name for name in compiled.params if name not in given]
        fixed = tuple(compiled.params[name] for name in literals)
        names = (*given, *literals)
        places = [names.index(name) for name in order]
        if not places:
            return lambda _: ()
        pick = itemgetter(*places)
        if len(places) == 1:
            return lambda values: (pick((*values, *fixed)),)
        return lambda values: pick((*values, *fixed))  # two and more give a tuple


def insert_or_ignore(table: sa.Table, *columns: str) -> Statement:
    """Insert a row, unless one of its key is there; quickest with the columns in the table's order."""
    values: dict[str, Any] = {name: param(name) for name in columns}
    return Statement(lambda insert: insert(table).values(values).on_conflict_do_nothing().inline(), *columns)


def _count(insert: Callable[[sa.Table], Insert]) -> sa.Executable:
    built = insert(counts).values(
        execution=param("execution_"), route=param("route_"), **{name: param(f"{name}_") for name in COUNTED}
    )
    return built.on_conflict_do_update(
        index_elements=["execution", "route"],
        set_={name: counts.c[name] + built.excluded[name] for name in COUNTED},
    )


_m, _e = messages.c, executions.c

_ENTRY = (
    _m.seq, _m.id, _m.execution, _m.merged, _m.parent, _m.route, _m.queue, _m.state, _m.failures, _m.lost, _m.reason,
    _m.replays, _m.name,
)  # fmt: skip
LOCK_MESSAGES = Statement(sa.select(*_ENTRY).where(Among(_m.id, "ids")).order_by(_m.seq + 0).with_for_update())
"""`+ 0`, as SQLite would read the whole table in its order else. Ordered, so that two processes that lock
the same rows do not wait for each other."""

_EXECUTION = (
    _e.number, _e.id, _e.pipeline, _e.state, _e.paused, _e.open, _e.total, _e.dead, _e.init, _e.init_dead, _e.run,
    _e.on_complete, _e.created_s, _e.ended_s,
)  # fmt: skip
LOCK_EXECUTIONS = Statement(
    sa.select(*_EXECUTION).where(Among(_e.number, "numbers")).order_by(_e.number + 0).with_for_update()
)
EXECUTION_NUMBERS = Statement(sa.select(_e.id, _e.number).where(Among(_e.id, "ids")))
MESSAGE_NUMBERS = Statement(sa.select(_m.id, _m.seq).where(Among(_m.id, "ids")))
MEMBERS = Statement(
    sa.select(members.c.message, members.c.execution)
    .where(Among(members.c.message, "seqs"))
    .order_by(members.c.message, members.c.execution)
)
PARENTS = Statement(
    sa.select(edges.c.child, _m.id)
    .join_from(edges, messages, _m.seq == edges.c.parent)
    .where(Among(edges.c.child, "seqs"))
    .order_by(edges.c.child, edges.c.parent)
)
IDS = Statement(sa.select(_m.seq, _m.id).where(Among(_m.seq, "seqs")))

INSERT_MESSAGE = insert_or_ignore(
    messages,
    *("id", "execution", "parent", "merged", "route", "queue", "state", "name", "reason", "created_s", "changed_s"),
)
INSERT_EXECUTION = insert_or_ignore(
    executions, "id", "pipeline", "document", "state", "open", "total", "init", "on_complete", "created_s"
)
INSERT_MEMBER = insert_or_ignore(members, "message", "execution")
INSERT_EDGE = insert_or_ignore(edges, "child", "parent")
INSERT_OUTBOX = insert_or_ignore(outbox, "id", "queue", "body", "headers", "due_s", "pipeline")
INSERT_DEAD = insert_or_ignore(dead, "message", "body", "headers", "traceback")
COUNT = Statement(_count)


def _set(update: sa.Update, *columns: str, **constants: Any) -> sa.Update:
    """Set columns to parameters, in this order, and others to constants."""
    parameters: list[tuple[str, Any]] = [(name, param(f"{name}_")) for name in columns]
    return update.ordered_values(*parameters, *constants.items())


_OF_MESSAGES = sa.update(messages).where(Among(_m.seq, "seqs"))
_OF_MESSAGE = sa.update(messages).where(_m.seq == param("seq_"))

CLOSE = Statement(_set(_OF_MESSAGES, "state", "reason", "adapter", "changed_s"))
FAIL = Statement(_set(_OF_MESSAGE, "state", "failures", "reason", "error", "adapter", "changed_s", "due_s"))
MARK = Statement(_set(_OF_MESSAGES, "state", "lost", "changed_s"))
REOPEN = Statement(_set(_OF_MESSAGE, "replays", "name", "changed_s", state=PENDING, failures=0, lost=0, due_s=0.0))
UPDATE_EXECUTION = Statement(
    _set(
        sa.update(executions).where(_e.number == param("number_"), _e.open == param("was_"), _e.ended_s.is_(None)),
        *("state", "open", "total", "dead", "init_dead", "ended_s"),
    )
)
"""The compare-and-set: it changes nothing if another transaction changed the count, or completed the execution."""

PUBLISHED = Statement(sa.delete(outbox).where(Among(outbox.c.id, "ids")))

REOPEN_EXECUTION = Statement(
    sa.update(executions)
    .where(_e.number == param("number_"), _e.ended_s.is_not(None))
    .values(state=param("state_"), ended_s=None, told=0, run=_e.run + 1)
)
