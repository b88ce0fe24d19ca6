"""State files: exact round trips, refusals by name, and versions made of bases and deltas."""

from __future__ import annotations

import datetime as dt
import enum
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tupletree.durable import read_header
from tupletree.errors import CheckpointError, ProcessingError
from tupletree.hashing import KEY_GROUPS, key_group
from tupletree.state.cells import CLEARED
from tupletree.state.files import MAX_FILES, StateCodec, StateFile, VersionCache, _Header, fold, needs_base
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


def reload(path: Path, codec: StateCodec, *files: StateFile) -> dict[Any, Any]:
    """What a process that has never seen this version reads."""
    return dict(VersionCache().load(path, 0, files, codec))


def stored(path: Path, key_types: list[Any], value_type: Any, data: Mapping[Any, Any]) -> dict[Any, Any]:
    codec = StateCodec("count", key_types, value_type)
    file = codec.write(path / "one.base", 0, codec.as_stored(data), is_base=True)
    return reload(path, codec, file)


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
        codec.as_stored({"good": CLEARED, "bad": value})


def test_a_value_nested_in_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(ProcessingError):
        StateCodec("count", [str], list[Any]).as_stored({"a": loop})


def test_what_is_stored_shares_nothing_with_what_the_bolt_held() -> None:
    mine = [1]
    kept = StateCodec("count", [str], list[int]).as_stored({"a": mine, "b": CLEARED})
    mine.append(2)

    assert kept == {"a": [1], "b": CLEARED}


def test_a_cleared_key_is_gone_and_may_come_back(tmp_path: Path) -> None:
    codec = StateCodec("count", [str], int)
    base = codec.write(tmp_path / "1.base", 0, {"a": 1, "b": 2, "c": 3}, is_base=True)
    gone = codec.write(tmp_path / "2.delta", 0, {"a": CLEARED, "b": CLEARED, "never": CLEARED}, is_base=False)
    back = codec.write(tmp_path / "3.delta", 0, {"b": 9}, is_base=False)

    assert reload(tmp_path, codec, base, gone) == {"c": 3}
    assert reload(tmp_path, codec, base, gone, back) == {"c": 3, "b": 9}


def test_a_base_on_top_of_deltas_replaces_them(tmp_path: Path) -> None:
    codec = StateCodec("count", [str], int)
    files = [
        codec.write(tmp_path / "1.base", 0, {"a": 1}, is_base=True),
        codec.write(tmp_path / "2.delta", 0, {"b": 2}, is_base=False),
        codec.write(tmp_path / "3.base", 0, {"c": 3}, is_base=True),
    ]

    assert reload(tmp_path, codec, *files) == {"c": 3}
    assert [file.keys for file in files] == [1, 1, 1]


def test_an_empty_base_is_a_version_too(tmp_path: Path) -> None:
    codec = StateCodec("count", [str], int)

    assert reload(tmp_path, codec, codec.write(tmp_path / "1.base", 0, {}, is_base=True)) == {}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    codec = StateCodec("count", [str], int)

    with pytest.raises(CheckpointError, match=r"gone\.base") as caught:
        reload(tmp_path, codec, StateFile("gone.base", 1, True))
    assert "missing" in str(caught.value)


@given(position=st.integers(0, 10_000), flip=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_or_truncated_file_is_named(
    tmp_path_factory: pytest.TempPathFactory, position: int, flip: int, cut: bool
) -> None:
    folder = tmp_path_factory.mktemp("state")
    codec = StateCodec("count", [str], int)
    file = codec.write(folder / "1.base", 0, {"a": 1, "b": 2}, is_base=True)
    data = bytearray((folder / file.name).read_bytes())
    position %= len(data)
    if cut:
        del data[position:]
    else:
        data[position] ^= flip
    (folder / file.name).write_bytes(data)

    with pytest.raises(CheckpointError, match=r"1\.base"):
        reload(folder, codec, file)


def test_state_of_another_value_type_is_refused_with_both_types(tmp_path: Path) -> None:
    file = StateCodec("count", [str], int).write(tmp_path / "1.base", 0, {"a": 1}, is_base=True)

    with pytest.raises(CheckpointError, match="another value type") as caught:
        reload(tmp_path, StateCodec("count", [str], float), file)
    assert "got: int" in str(caught.value)
    assert "expected: float" in str(caught.value)
    assert "1.base" in str(caught.value)


def test_a_key_of_an_enum_that_lost_its_member_is_refused(tmp_path: Path) -> None:
    file = StateCodec("count", [Color], int).write(tmp_path / "1.base", 0, {Color.BLUE: 1}, is_base=True)
    smaller = enum.Enum("Color", {"RED": "r"})  # type: ignore[misc]  # the same name on purpose
    smaller.__qualname__ = "Color"

    with pytest.raises(CheckpointError, match="does not fit its declared types"):
        reload(tmp_path, StateCodec("count", [smaller], int), file)


def test_folding_a_change_gives_what_a_reload_gives(tmp_path: Path) -> None:
    codec = StateCodec("count", [str], int)
    before: dict[Any, Any] = {"a": 1, "b": 2}
    changed = {"a": CLEARED, "b": 3, "c": 4, "never": CLEARED}
    base = codec.write(tmp_path / "1.base", 0, before, is_base=True)
    delta = codec.write(tmp_path / "2.delta", 0, changed, is_base=False)

    fold(before, changed)

    assert before == reload(tmp_path, codec, base, delta) == {"b": 3, "c": 4}


@given(
    size=st.integers(1, 200),
    changes=st.lists(st.integers(1, 30), max_size=150),
)
def test_writing_stays_proportional_to_change(size: int, changes: list[int]) -> None:
    """Every delta is paid for once more by the base that absorbs it, and every MAX_FILES epochs by everything."""
    files: list[StateFile] = []
    written = 0
    for number, changed in enumerate([size, *changes]):
        is_base = needs_base(files, changed)
        keys = max(size, changed) if is_base else changed
        file = StateFile(str(number), keys, is_base)
        files = [file] if is_base else [*files, file]
        written += keys
        assert len(files) <= MAX_FILES
        assert sum(one.keys for one in files) <= 2 * files[0].keys, "reading stays proportional to size"

    total = size + sum(changes)
    assert written <= 3 * total + max(size, *changes, 0) * (len(changes) // MAX_FILES + 1)


def test_the_first_file_of_a_version_is_a_base() -> None:
    assert needs_base([], 1)


def test_keys_stand_in_the_files_by_key_group_so_that_they_can_be_dealt_anew(tmp_path: Path) -> None:
    keys = [f"key {number}" for number in range(200)]
    StateCodec("count", [str], int).write(tmp_path / "1.base", 3, dict.fromkeys(keys, 1), is_base=True)
    header, _ = read_header(tmp_path / "1.base", _Header)

    groups = [group for group, _, _ in header.groups]
    assert groups == sorted({key_group(key) for key in keys})
    assert (header.component, header.task_index, header.key_groups) == ("count", 3, KEY_GROUPS)
    ends = [offset + length for _, offset, length in header.groups]
    assert [offset for _, offset, _ in header.groups] == [0, *ends[:-1]]
    assert list(itertools.accumulate(length for *_, length in header.groups)) == ends


def test_the_canonical_nan_of_keys_is_the_one_that_files_give_back(tmp_path: Path) -> None:
    (key,) = stored(tmp_path, [float], int, {NAN: 1})

    assert key is NAN
