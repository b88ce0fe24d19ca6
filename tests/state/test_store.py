"""State files: exact round trips, refusals by name, and versions made of bases and deltas."""

from __future__ import annotations

import datetime as dt
import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tupletree.errors import CheckpointError, ProcessingError
from tupletree.routing.hashing import KEY_GROUPS, key_group
from tupletree.state.cells import CLEARED
from tupletree.state.contents import entries
from tupletree.state.paged import PAGE
from tupletree.state.segments import Segment
from tupletree.state.store import OpenSegments, StateCodec, TaskStore
from tupletree.state.versions import StateFile, files_of, groups_of_task, version_after
from tupletree.topology.keys import NAN, coercion_of
from tupletree.topology.streams import Schema


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


class Level(enum.Enum):
    LOW = (1, "low")
    HIGH = (2, "high")


class Kind(enum.StrEnum):
    PLAIN = "plain"


class Basket(msgspec.Struct):
    items: list[str]
    paid: bool = False


class Gift(Basket):
    note: str = ""


@dataclass
class Box:
    width: int


class Point(NamedTuple):
    x: float
    y: float


def store_of(folder: Path, codec: StateCodec, files: Sequence[StateFile], *, task: int = 0, of: int = 1) -> TaskStore:
    """The store as a process opens it that has never seen this version."""
    groups = groups_of_task(task, of)
    return TaskStore(
        folder,
        files_of(files, groups),
        groups,
        codec,
        now_s=0.0,
        ttl_s=None,
        segments=OpenSegments(),
    )


def write(folder: Path, codec: StateCodec, data: Mapping[Any, Any], *files: StateFile) -> list[StateFile]:
    """The version after these changes to the one of `files`."""
    store = store_of(folder, codec, files)
    written = store.write(f"{len(list(folder.iterdir()))}.state", store.encode(data))
    return version_after(files, written.file, written.merged)


def read(folder: Path, codec: StateCodec, files: Sequence[StateFile], keys: Iterable[Any]) -> dict[Any, Any]:
    """What a task finds of these keys."""
    return store_of(folder, codec, files).load(list(keys))


def segments_of(folder: Path, files: Sequence[StateFile]) -> dict[str, Segment]:
    return {file.name: Segment(folder / file.name) for file in files}


def stored(path: Path, key_types: list[Any], value_type: Any, data: Mapping[Any, Any]) -> dict[Any, Any]:
    """What comes back of everything that was written, found by key and listed."""
    codec = StateCodec("count", key_types, value_type)
    files = write(path, codec, data)
    found = read(path, codec, files, data)
    listed = {
        entry.key: entry.value
        for entry in entries(
            segments_of(path, files),
            files,
            now_s=0.0,
            decode_key=codec.keys.decode,
            decode_value=lambda value: codec.decode(pa.array([value], type=pa.binary()), "")[0],
        )
    }
    assert list(map(repr, (listed[key] for key in found))) == list(map(repr, found.values()))
    assert len(listed) == len(found)
    return listed


BERLIN = ZoneInfo("Europe/Berlin")
NOON = dt.datetime(2026, 7, 1, 12, 0, 0, 5)  # noqa: DTZ001 - naive moments are legal values

KEYS: list[tuple[Any, list[Any]]] = [
    (str, ["", "a", "ä", "\0", None]),
    (str | None, ["a", None]),
    (int, [0, -1, 2**63 - 1, -(2**63), None]),
    (float, [0.0, 1.5, -math.inf, 5e-324, None]),
    (bool, [True, False, None]),
    (bytes, [b"", b"\xff", None]),
    (Decimal, [Decimal("1.5"), Decimal(0), Decimal("1E+400"), Decimal("-Infinity"), None]),
    (dt.datetime, [NOON, NOON.replace(tzinfo=dt.UTC), None]),
    (dt.date, [NOON.date(), None]),
    (dt.time, [dt.time(1, 2, 3, 4), None]),
    (dt.timedelta, [dt.timedelta(days=-3, microseconds=7), None]),
    (UUID, [UUID(int=7), None]),
    (Color, [Color.RED, Color.BLUE, None]),
    (Level, [Level.LOW, None]),
    (Kind, [Kind.PLAIN, None]),
    (str | bytes | UUID | Decimal, ["a", b"a", UUID(int=7), Decimal(2), None]),
    (dt.date | dt.datetime, [NOON.date(), NOON]),
]


@pytest.mark.parametrize(("kind", "keys"), KEYS, ids=lambda value: str(value)[:30])
def test_keys_of_every_type_come_back_as_they_were(tmp_path: Path, kind: Any, keys: list[Any]) -> None:
    data = {key: number for number, key in enumerate(keys)}

    found = stored(tmp_path, [kind], int, data)

    assert found == data
    assert sorted(map(repr, found)) == sorted(map(repr, data))


def test_keys_of_several_fields_come_back_as_tuples(tmp_path: Path) -> None:
    data = {("a", 1, Color.RED): 1, (None, None, None): 2, ("b", 2, Color.BLUE): 3, ("c", 3, None): 4}

    assert stored(tmp_path, [str, int, Color], int, data) == data


def test_keys_of_plain_fields_come_back_as_tuples_too(tmp_path: Path) -> None:
    data = {("a", 1): 1, ("", -1): 2}

    assert stored(tmp_path, [str, int], int, data) == data


class Reading(msgspec.Struct):
    rate: float
    amount: Decimal | None = None


@pytest.mark.parametrize("nan", [math.nan, float("-nan"), float("inf") - float("inf")])
def test_a_nan_key_finds_its_value_again_after_a_reload(tmp_path: Path, nan: float) -> None:
    key_of = Schema.of(Reading).key_of(("rate",))
    pair_of = Schema.of(Reading).key_of(("rate", "amount"))

    single = stored(tmp_path, [float], int, {key_of(Reading(nan)): 5})
    pair = stored(tmp_path, [float, Decimal | None], int, {pair_of(Reading(nan, Decimal("NaN"))): 6})

    assert single[key_of(Reading(float("nan")))] == 5
    assert pair[pair_of(Reading(float("nan"), Decimal("-NaN")))] == 6


def test_negative_zero_is_the_key_zero(tmp_path: Path) -> None:
    coerce = coercion_of(float)
    assert coerce is not None

    found = stored(tmp_path, [float], int, {coerce(-0.0): 1})

    assert found[coerce(0.0)] == 1
    assert str(*found) == "0.0"


VALUES: list[tuple[Any, list[Any]]] = [
    (int, [0, -(2**63), 2**63 - 1]),
    (float, [0.5, math.inf, 3]),
    (str, ["", "ä"]),
    (bytes, [b"\0"]),
    (bool | None, [True, False, None]),
    (list[int], [[], [1, 2]]),
    (dict[str, list[int]], [{"a": [1]}]),
    (dict[int, str], [{1: "a"}]),
    (set[str], [{"a"}, set()]),
    (tuple[int, str], [(1, "a")]),
    (Basket, [Basket(["a"], True)]),
    (Box, [Box(3)]),
    (Point, [Point(1.0, 2.0)]),
    (Basket | None, [None, Basket([])]),
    (Basket | Box, [Basket(["a"]), Box(2)]),
    (str | bytes | UUID, ["a", b"a", UUID(int=1)]),
    (dt.datetime, [NOON, NOON.replace(tzinfo=BERLIN), NOON.replace(tzinfo=dt.UTC, fold=1)]),
    (dict[str, dt.datetime], [{"$x": NOON.replace(tzinfo=BERLIN)}]),
    (Decimal, [Decimal("1.50"), Decimal("-0")]),
    (Level, [Level.HIGH]),
    (Any, [(1, 2), {"a": {1}}, NOON, b"x", None]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda value: str(value)[:30])
def test_values_of_every_type_come_back_as_they_were(tmp_path: Path, kind: Any, values: list[Any]) -> None:
    data = dict(enumerate(values))

    found = stored(tmp_path, [int], kind, data)

    assert found == data
    if kind is not float:
        assert [repr(found[number]) for number in data] == list(map(repr, values))


def test_nan_may_be_a_value(tmp_path: Path) -> None:
    assert math.isnan(stored(tmp_path, [str], float, {"a": math.nan})["a"])
    assert stored(tmp_path, [str], Decimal, {"a": Decimal("NaN")})["a"].is_nan()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, "text"),
        (int, 1.5),
        (int, True),
        (int, 2**64),
        (str, 1),
        (str, "\ud800"),
        (list[int], ["a"]),
        (Basket, Gift([], note="the subclass would lose its note")),
        (Basket, {"items": []}),
        (dt.datetime, "2026-07-01"),
        (Any, object()),
        (Any, Box(1)),
    ],
)
def test_a_value_that_would_not_come_back_as_it_is_is_refused_when_it_is_written(kind: Any, value: Any) -> None:
    codec = StateCodec("count", [str], kind)

    with pytest.raises(ProcessingError, match="state of 'count' cannot be stored"):
        codec.encode(["good", value] if kind is Any else [value])


def test_a_value_nested_in_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(ProcessingError):
        StateCodec("count", [str], list[Any]).encode([loop])


def test_a_cleared_key_is_gone_and_may_come_back(tmp_path: Path) -> None:
    codec = StateCodec("count", [str], int)
    base = write(tmp_path, codec, dict.fromkeys("abcdefghijkl", 1))
    gone = write(tmp_path, codec, {"a": CLEARED, "b": CLEARED, "never": CLEARED}, *base)
    back = write(tmp_path, codec, {"b": 9}, *gone)

    assert read(tmp_path, codec, gone, ["a", "b", "c", "never"]) == {"c": 1}
    assert read(tmp_path, codec, back, ["a", "b", "c", "never"]) == {"c": 1, "b": 9}
    assert {entry.key for entry in entries(segments_of(tmp_path, back), back, now_s=0.0)} == set("bcdefghijkl")


def test_an_older_version_stays_readable_when_newer_ones_are_written(tmp_path: Path) -> None:
    codec = StateCodec("count", [str], int)
    first = write(tmp_path, codec, {"a": 1})
    write(tmp_path, codec, {"a": 2}, *first)

    assert read(tmp_path, codec, first, ["a"]) == {"a": 1}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    codec = StateCodec("count", [str], int)

    with pytest.raises(CheckpointError, match=r"gone\.state") as caught:
        read(tmp_path, codec, [StateFile("gone.state", 0, KEY_GROUPS, 1)], ["a"])
    assert "missing" in str(caught.value)
    assert "restore it from a backup" in str(caught.value)


@given(position=st.integers(0, 10_000), flip=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_or_truncated_file_is_named(
    tmp_path_factory: pytest.TempPathFactory, position: int, flip: int, cut: bool
) -> None:
    folder = tmp_path_factory.mktemp("state")
    codec = StateCodec("count", [str], int)
    files = write(folder, codec, {"a": 1, "b": 2, "c": CLEARED})
    path = folder / files[0].name
    data = bytearray(path.read_bytes())
    position %= len(data)
    if cut:
        del data[position:]
    else:
        data[position] ^= flip
    path.write_bytes(data)

    with pytest.raises(CheckpointError, match=r"0\.state"):
        read(folder, codec, files, ["a", "b", "c", "d"])


@given(position=st.integers(0, 10**6), flip=st.integers(1, 255), key=st.integers(0, 6_000))
@settings(max_examples=60)
def test_a_key_is_found_as_it_was_written_or_the_damage_is_named(
    tmp_path_factory: pytest.TempPathFactory, position: int, flip: int, key: int
) -> None:
    """Pages that a lookup does not touch may be damaged; what it gives is right all the same."""
    folder = tmp_path_factory.mktemp("state")
    codec = StateCodec("count", [int], int)
    files = write(folder, codec, {number: number + 1 for number in range(5_000)})
    path = folder / files[0].name
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= flip
    path.write_bytes(data)

    found: object
    try:
        found = read(folder, codec, files, [key])
    except CheckpointError as error:
        found = str(error)
    assert found == ({key: key + 1} if key < 5_000 else {}) or "0.state" in str(found)


def test_state_of_another_value_type_is_refused_with_both_types(tmp_path: Path) -> None:
    files = write(tmp_path, StateCodec("count", [str], int), {"a": 1})

    with pytest.raises(CheckpointError, match="another value type") as caught:
        read(tmp_path, StateCodec("count", [str], float), files, ["a"])
    assert "got: int" in str(caught.value)
    assert "expected: float" in str(caught.value)
    assert "0.state" in str(caught.value)


def test_a_value_of_an_enum_that_lost_its_member_is_refused(tmp_path: Path) -> None:
    files = write(tmp_path, StateCodec("count", [str], Color), {"a": Color.BLUE})
    smaller = enum.Enum("Color", {"RED": "r"})  # type: ignore[misc]  # the same name on purpose
    smaller.__qualname__ = "Color"

    with pytest.raises(CheckpointError, match=r"Color\.BLUE: a member of the enum"):
        read(tmp_path, StateCodec("count", [str], smaller), files, ["a"])


def test_keys_of_one_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tupletree.state.encoding._hash", len)
    codec = StateCodec("count", [str], int)
    keys = ["a", "b", "c", "dd", "ee"]
    files = write(tmp_path, codec, dict.fromkeys(keys, 1))
    files = write(tmp_path, codec, {"b": 2, "dd": CLEARED}, *files)

    assert read(tmp_path, codec, files, [*keys, "f", "gg"]) == {"a": 1, "b": 2, "c": 1, "ee": 1}
    files = write(tmp_path, codec, dict.fromkeys("abcdefghijk", 3), *files)
    assert len(files) == 1, "all of it was merged"
    assert read(tmp_path, codec, files, [*keys, "f", "gg"]) == {**dict.fromkeys("abcf", 3), "ee": 1}


def test_times_of_one_instant_in_two_zones_are_one_key(tmp_path: Path) -> None:
    codec = StateCodec("count", [dt.time], int)
    one = dt.time(12, 0, tzinfo=dt.UTC)
    other = dt.time(13, 0, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    files = write(tmp_path, codec, {one: 1})

    assert read(tmp_path, codec, files, [other]) == {other: 1}
    files = write(tmp_path, codec, {other: 2}, *files)
    assert [entry.value for entry in entries(segments_of(tmp_path, files), files, now_s=0.0)] == [2]


def test_keys_are_in_the_files_by_key_group_so_that_they_can_be_redistributed(tmp_path: Path) -> None:
    keys = [f"key {number}" for number in range(2_000)]
    codec = StateCodec("count", [str], int)
    files = write(tmp_path, codec, dict.fromkeys(keys, 1))
    segment = Segment(tmp_path / files[0].name)

    for group in range(KEY_GROUPS):
        found = segment.records(range(group, group + 1)).keys.to_pylist()
        assert {key_group(codec.keys.decode(key)) for key in found} == {group}
    for parallelism in (1, 3, 5, 40):
        met = [
            key
            for task in range(parallelism)
            for key in store_of(tmp_path, codec, files, task=task, of=parallelism).load(
                [key for key in keys if key_group(key) in groups_of_task(task, parallelism)]
            )
        ]
        assert sorted(met) == sorted(keys)


def test_reading_and_writing_cost_by_the_keys_that_are_touched(tmp_path: Path) -> None:
    codec = StateCodec("count", [int], int)
    files = write(tmp_path, codec, {number: number for number in range(200_000)})
    store = store_of(tmp_path, codec, files)
    keys = list(range(0, 200_000, 20_000))
    store.load(keys)
    written = store.write("delta.state", store.encode(dict.fromkeys(keys, 0)))

    assert files[0].size_bytes > 4_000_000
    assert store.bytes_read <= len(keys) * 10 * PAGE
    assert written.file.size_bytes < 1_000
    assert not written.merged


def test_the_canonical_nan_of_keys_is_the_one_that_files_give_back(tmp_path: Path) -> None:
    (key,) = stored(tmp_path, [float], int, {NAN: 1})

    assert key is NAN
