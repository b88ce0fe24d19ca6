"""Questions to lineage: the tree of a message or an execution, failures, statistics. One layer for all stores.

Owns the statements. Every one of them uses an index, and every answer has a limit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from tupletree.errors import ConfigError
from tupletree.routes.lineage.answers import Call, StepStats, Tree, TreeMessage
from tupletree.routes.lineage.reading import Reader, open_reader
from tupletree.routes.lineage.rows import seconds_of_class, split_cell

MAX_MESSAGES = 1_000
MAX_BELOW = 100_000
_AT_ONCE = 500

_CALL = (
    "message, position, attempt, started_s, ended_s, execution, pipeline, route, adapter, status, input_hash, "
    "output_hash, error, batch, trace"
)
_CALLS = "tupletree_lineage_calls"
_EDGES = "tupletree_lineage_edges"
_STEPS = "tupletree_lineage_steps"
_TIMED = {"completed", "failed", "filtered"}


class Lineage:
    """Answers from one store. Use it as a context manager.

    Args:
        reader: of the store.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @classmethod
    def open(cls, url: str) -> Lineage:
        """The lineage that this URL names: see `open_store`.

        Raises:
            ConfigError: there is none.
        """
        return cls(open_reader(url))

    def close(self) -> None:
        """Release everything. Harmless if repeated."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tree(self, asked: str, limit: int = MAX_MESSAGES) -> Tree:
        """Where a message came from, up to the first ones, and all that came of it; or an execution's messages.

        Args:
            asked: id of a message or an execution.
            limit: messages in each direction at most.

        Raises:
            ConfigError: lineage knows no such id.
        """
        is_execution = False
        if self._is_message(asked):
            parents, roots = self._above([asked], limit)
            start = [asked]
        else:
            first = self._a_message_of(asked)
            if first is None:
                raise self._unknown(asked)
            is_execution = True
            _, tops = self._above([first], limit)
            own = {one for one, calls in self._calls(tops).items() if calls and calls[0].execution == asked}
            parents, roots = {}, [one for one in tops if one in own] or tops
            start = roots
        children, more = self._below(start, limit)
        ids = dict.fromkeys([*parents, *start, *(child for many in children.values() for child in many)])
        for child, above in self._edges_up([*ids]).items():
            parents[child] = above
        calls = self._calls([*ids])
        messages = {
            one: TreeMessage(
                id=one,
                calls=calls.get(one, []),
                parents=parents.get(one, []),
                children=children.get(one, []),
                more_children=more.get(one, 0),
            )
            for one in ids
        }
        for one in messages.values():  # on the way down to `asked`
            for parent in one.parents:
                if parent in messages and one.id not in messages[parent].children and parent not in children:
                    messages[parent].children.append(one.id)
        return Tree(asked=asked, is_execution=is_execution, roots=roots, messages=messages)

    def calls(self, message: str) -> list[Call]:
        """Every call for a message, in the order of their starts."""
        return self._calls([message]).get(message, [])

    def failures(self, asked: str = "", *, route: str = "", limit: int = 100) -> list[Call]:
        """Calls that failed, the latest first.

        Args:
            asked: an execution, or a message: then also of all that came of it. Empty: all.
            route: only of this one.
            limit: at most so many.

        Raises:
            ConfigError: lineage knows no such id.
        """
        condition = "status = 'failed'" + (" AND route = :route" if route else "")
        order = "ORDER BY started_s DESC LIMIT :limit"
        found: list[Call] = []
        for where, parameters in self._scopes(asked):
            statement = f"SELECT {_CALL} FROM {_CALLS} WHERE {condition}{where} {order}"  # noqa: S608 - our own text
            route_of = {"route": route} if route else {}
            found += _to_calls(self._reader.rows(statement, limit=limit, **route_of, **parameters))
        found = list({(call.message, call.position, call.attempt, call.started_s): call for call in found}.values())
        return sorted(found, key=lambda call: -call.started_s)[:limit]

    def stats(self, asked: str = "", *, since_s: float = 0.0) -> list[StepStats]:
        """Numbers per route and adapter, in the order of routes and positions.

        Args:
            asked: an execution, or a message: then also of all that came of it. Empty: all.
            since_s: only calls that started at this Unix time or later.

        Raises:
            ConfigError: lineage knows no such id.
        """
        cells: Counter[int] = Counter()
        first_s, last_s = float("inf"), float("-inf")
        since = " AND started_s >= :since" if since_s else ""
        for where, parameters in self._scopes(asked):
            if since_s:
                parameters["since"] = since_s
            # By execution first: in this order the index has them, so that only the few that are left are sorted.
            statement = (
                "SELECT cell, sum(calls), min(first_s), max(last_s) FROM ("  # noqa: S608 - our own text
                "SELECT cell, count(*) AS calls, min(started_s) AS first_s, max(started_s) AS last_s "
                f"FROM {self._reader.calls_once} WHERE 1 = 1{where}{since} GROUP BY execution, cell"
                ") AS of_execution GROUP BY cell"
            )
            for cell, count, first, last in self._reader.rows(statement, **parameters):
                cells[cell] += int(count)
                first_s, last_s = min(first_s, first), max(last_s, last)
        steps = {
            step: tuple(place)
            for step, *place in self._reader.rows(f"SELECT step, pipeline, route, adapter, position FROM {_STEPS}")  # noqa: S608 - our own text
        }
        counts: dict[int, Counter[tuple[str, int]]] = defaultdict(Counter)
        for cell, count in cells.items():
            step, status, duration = split_cell(cell)
            counts[step][status, duration] += count
        found = [
            _stats_of(steps.get(step, ("", "?", "?", 0)), one, max(last_s - first_s, 0.0))
            for step, one in counts.items()
        ]
        return sorted(found, key=lambda one: (one.pipeline, one.route, one.position, one.adapter))

    def _scopes(self, asked: str) -> Iterator[tuple[str, dict[str, object]]]:
        """Conditions, with parameters, that together cover what was asked for."""
        if not asked:
            yield "", {}
        elif self._is_message(asked):
            children, _ = self._below([asked], MAX_BELOW)
            ids = list(dict.fromkeys([asked, *(child for many in children.values() for child in many)]))
            for part in _parts(ids):
                yield " AND message IN :ids", {"ids": part}
        elif self._a_message_of(asked) is not None:
            yield " AND execution = :execution", {"execution": asked}
        else:
            raise self._unknown(asked)

    def _is_message(self, asked: str) -> bool:
        return any(
            self._reader.rows(f"SELECT 1 FROM {table} WHERE {column} = :asked LIMIT 1", asked=asked)  # noqa: S608 - our own text
            for table, column in (
                (_CALLS, "message"),
                (self._reader.edges_by_child, "child"),
                (_EDGES, "parent"),
            )
        )

    def _a_message_of(self, execution: str) -> str | None:
        statement = f"SELECT message FROM {_CALLS} WHERE execution = :execution LIMIT 1"  # noqa: S608 - our own text
        found = self._reader.rows(statement, execution=execution)
        return found[0][0] if found else None

    def _above(self, start: Sequence[str], limit: int) -> tuple[dict[str, list[str]], list[str]]:
        """The parents of these, of their parents, and so on; and those that have none."""
        parents: dict[str, list[str]] = {}
        roots: list[str] = []
        level = list(start)
        while level and len(parents) < limit:
            found = self._edges_up(level)
            for child in level:
                parents[child] = found.get(child, [])
                if child not in found:
                    roots.append(child)
            level = [one for one in dict.fromkeys(up for many in found.values() for up in many) if one not in parents]
        return parents, roots or list(start)

    def _edges_up(self, ids: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, dict[str, None]] = defaultdict(dict)
        for part in _parts(ids):
            edges = self._reader.edges_by_child
            statement = f"SELECT child, parent FROM {edges} WHERE child IN :ids ORDER BY child, parent"  # noqa: S608 - our own text
            for child, parent in self._reader.rows(statement, ids=part):
                found[child][parent] = None
        return {child: list(parents) for child, parents in found.items()}

    def _below(self, start: Sequence[str], limit: int) -> tuple[dict[str, list[str]], dict[str, int]]:
        """The children of these, of their children, and so on; and how many are left out, by parent."""
        children: dict[str, list[str]] = {one: [] for one in start}
        more: dict[str, int] = {}
        level = list(start)
        left = limit
        while level:
            following: dict[str, None] = {}
            for part in _parts(level):
                statement = (
                    f"SELECT parent, child FROM {_EDGES} WHERE parent IN :ids "  # noqa: S608 - our own text
                    "ORDER BY parent, child LIMIT :limit"
                )
                room = max(left, 0)
                rows = self._reader.rows(statement, ids=part, limit=room + 1)
                for parent, child in dict.fromkeys(map(tuple, rows[:room])):
                    children[parent].append(child)
                    if child not in children and child not in following:
                        following[child] = None
                        left -= 1
                if len(rows) > room:
                    more |= self._left_out(part, children)
            level = list(following)
            children |= {one: [] for one in level}
        return children, more

    def _left_out(self, ids: Sequence[str], shown: Mapping[str, Sequence[str]]) -> dict[str, int]:
        statement = f"SELECT parent, count(DISTINCT child) FROM {_EDGES} WHERE parent IN :ids GROUP BY parent"  # noqa: S608 - our own text
        counts = self._reader.rows(statement, ids=list(ids))
        return {parent: count - len(shown[parent]) for parent, count in counts if count > len(shown[parent])}

    def _calls(self, ids: Sequence[str]) -> dict[str, list[Call]]:
        found: dict[str, list[Call]] = defaultdict(list)
        for part in _parts(ids):
            statement = f"SELECT {_CALL} FROM {_CALLS} WHERE message IN :ids ORDER BY started_s, position"  # noqa: S608 - our own text
            calls: dict[tuple[object, ...], Call] = {}
            for call in _to_calls(self._reader.rows(statement, ids=part)):
                key = call.message, call.position, call.attempt, call.started_s
                # In a folder a call may be there again, and pending before it ended.
                if key not in calls or call.ended_s >= calls[key].ended_s:
                    calls[key] = call
            for call in calls.values():
                found[call.message].append(call)
        return dict(found)

    def _unknown(self, asked: str) -> ConfigError:
        return ConfigError(
            "lineage knows no such message or execution",
            where=self._reader.where,
            got=asked,
            next_step="it may be too old, not sampled, or not worked yet: the ledger knows every message",
        )


def _parts(ids: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), _AT_ONCE):
        yield list(ids[start : start + _AT_ONCE])


def _to_calls(rows: Sequence[Sequence[object]]) -> list[Call]:
    names = Call.__struct_fields__
    return [Call(**dict(zip(names, row))) for row in rows]  # type: ignore[arg-type]  # the columns of the statement


def _stats_of(place: Sequence[object], counts: Counter[tuple[str, int]], span_s: float) -> StepStats:
    pipeline, route, adapter, position = place
    by_status: Counter[str] = Counter()
    timed: Counter[int] = Counter()
    for (status, duration), count in counts.items():
        by_status[status] += count
        if status in _TIMED:
            timed[duration] += count
    calls = counts.total() - by_status["skipped"] - by_status["pending"]
    return StepStats(
        pipeline=str(pipeline),
        route=str(route),
        adapter=str(adapter),
        position=int(str(position)),
        calls=calls,
        failed=by_status["failed"],
        filtered=by_status["filtered"],
        skipped=by_status["skipped"],
        cancelled=by_status["cancelled"],
        p50_s=_quantile(timed, 0.5),
        p95_s=_quantile(timed, 0.95),
        rate_per_s=calls / span_s if span_s else 0.0,
    )


def _quantile(classes: Counter[int], share: float) -> float | None:
    wanted = share * classes.total()
    seen = 0
    for number in sorted(classes):
        seen += classes[number]
        if seen >= wanted:
            return seconds_of_class(number)
    return None
