import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tupletree.errors import CheckpointError, ConnectorError
from tupletree.sinks import jsonl, read_rows
from tupletree.sinks.files import SinkRowsError
from tupletree.topology.components import SinkBatch


class Count(msgspec.Struct, frozen=True, gc=False):
    word: str
    count: int


class Measured(msgspec.Struct):
    value: float | None


class Place(NamedTuple):
    row: int
    name: str


class Renamed(msgspec.Struct, rename="camel", tag="kind-a"):
    at_place: Place


class AsArray(msgspec.Struct, array_like=True):
    x: int


class Seat(msgspec.Struct):
    at: Place


@dataclasses.dataclass
class Holder:
    inside: Any


def written_lines(tmp_path: Path, rows: list[Any]) -> list[Any]:
    candidate = tmp_path / "_tt-1.jsonl"
    jsonl(tmp_path).write_candidate(candidate, rows)
    return [json.loads(line) for line in candidate.read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (Count("a", 1), {"word": "a", "count": 1}),
        (Holder([1, None]), {"inside": [1, None]}),
        (Place(3, "x"), {"row": 3, "name": "x"}),
        (Seat(Place(3, "x")), {"at": {"row": 3, "name": "x"}}),
        (Renamed(Place(3, "x")), {"type": "kind-a", "atPlace": {"row": 3, "name": "x"}}),
        (AsArray(1), {"x": 1}),
        ({"free": {"form": [AsArray(2)]}}, {"free": {"form": [{"x": 2}]}}),
        (Measured(None), {"value": None}),
        (Holder("null"), {"inside": "null"}),
        (Count("line\nfeed\u2028{", 2**62), {"word": "line\nfeed\u2028{", "count": 2**62}),
    ],
)
def test_every_kind_of_row_becomes_an_object_with_field_names(tmp_path: Path, row: Any, expected: Any) -> None:
    assert written_lines(tmp_path, [row]) == [expected]
    assert written_lines(tmp_path, [Count("b", 2), row]) == [{"word": "b", "count": 2}, expected]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (Measured(float("nan")), "value is nan"),
        (Measured(float("-inf")), "value is -inf"),
        (Holder({"deep": [1.0, float("inf")]}), r"inside\.deep\[1\] is inf"),
        (Count("bad\ud800", 1), "lone surrogate"),
        (Holder(object()), "object"),
        (Holder(1 + 2j), "complex"),
        ("a bare text", "a row must be an object"),
        ([Count("a", 1)], "a row must be an object"),
        (msgspec.Raw(b"{\n}"), "a row must be an object"),
        (None, "a row must be an object"),
    ],
)
def test_a_row_that_json_cannot_hold_is_refused_by_position_and_nothing_is_written(
    tmp_path: Path, row: Any, reason: str
) -> None:
    candidate = tmp_path / "_tt-1.jsonl"
    rows = [Measured(None), row, Count("fine", 1), row]
    with pytest.raises(SinkRowsError, match=reason) as caught:
        jsonl(tmp_path).write_candidate(candidate, rows)
    assert [fault.position for fault in caught.value.rows] == [1, 3]
    assert not candidate.exists()


def test_the_error_shows_some_rows_and_keeps_all(tmp_path: Path) -> None:
    with pytest.raises(SinkRowsError, match="and 90 more") as caught:
        jsonl(tmp_path).write_candidate(tmp_path / "_tt-1.jsonl", [Measured(float("nan"))] * 100)
    assert len(caught.value.rows) == 100


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=10,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.builds(Holder, json_values)))
def test_what_json_can_hold_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, rows: list[Holder]) -> None:
    expected = [{"inside": row.inside} for row in rows]
    assert written_lines(tmp_path_factory.mktemp("rows"), rows) == expected


def test_filtering_keeps_the_very_bytes_of_the_rows_that_stay(tmp_path: Path) -> None:
    source, destination = tmp_path / "_tt-1.jsonl", tmp_path / "_tt-2.jsonl"
    source.write_bytes(b'{"a": 1 }\n{"a":2}\n{"a":"\\r\xc3\xa9"}\n')
    assert jsonl(tmp_path).filter_candidate(source, destination, [True, False, True]) == 2
    assert destination.read_bytes() == b'{"a": 1 }\n{"a":"\\r\xc3\xa9"}\n'


def test_filtering_refuses_a_file_that_is_gone_or_has_another_number_of_rows(tmp_path: Path) -> None:
    sink, source = jsonl(tmp_path), tmp_path / "_tt-1.jsonl"
    with pytest.raises(CheckpointError, match="gone"):
        sink.filter_candidate(source, tmp_path / "_tt-2.jsonl", [])
    sink.write_candidate(source, [Count("a", 1)])
    with pytest.raises(CheckpointError, match="wrong number of rows"):
        sink.filter_candidate(source, tmp_path / "_tt-2.jsonl", [True, True])


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match="nowhere"):
        jsonl(tmp_path).write_candidate(tmp_path / "nowhere" / "_tt-1.jsonl", [Count("a", 1)])


def test_a_sink_crosses_process_boundaries(tmp_path: Path) -> None:
    sink = pickle.loads(pickle.dumps(jsonl(tmp_path, message_type=Count)))
    assert (sink.directory, sink.message_type, sink.promise) == (tmp_path, Count, "exactly_once")


def test_writing_a_batch_again_changes_nothing(tmp_path: Path) -> None:
    sink = jsonl(tmp_path / "out")
    for _ in range(2):
        sink.write(SinkBatch("t/out/0/7", [Count("a", 1)]))
    sink.write(SinkBatch("t/out/0/8", []))
    assert list(read_rows(tmp_path / "out")) == [{"word": "a", "count": 1}]


def test_a_row_that_does_not_fit_its_class_is_refused_whether_or_not_it_crossed_an_exchange(tmp_path: Path) -> None:
    rows = [Seat(Place(1, "a")), Seat("no place"), Measured(float("inf")), AsArray(2**63)]  # type: ignore[arg-type]  # the point
    with pytest.raises(SinkRowsError) as refused:
        jsonl(tmp_path).write_candidate(tmp_path / "_tt-1.jsonl", rows)
    assert sorted(row.position for row in refused.value.rows) == [1, 2, 3]


def test_rows_say_how_new_they_are_if_asked_with_any_content(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{}, {"a": "100% {\n}"}, {"b": {}}, {}, {"c": "%d,{,"}]
    path = tmp_path / "_tt-1.jsonl"
    jsonl(tmp_path, made=True).write_candidate(path, rows, range(7, 12))
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines == [{**row, "_made": number} for row, number in zip(rows, range(7, 12))]
    with pytest.raises(SinkRowsError) as caught:
        jsonl(tmp_path, made=True).write_candidate(path, [{"x": '"_made":'}, {"_made": 1}], [1, 2])
    assert [row.position for row in caught.value.rows] == [1]
