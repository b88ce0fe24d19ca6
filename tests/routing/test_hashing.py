"""Hashes of keys: the same everywhere, equal for equal keys, different for different types."""

from __future__ import annotations

import enum
import itertools
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tupletree.routing.hashing import KEY_GROUPS, key_group, pack_key, stable_hash, task_of_group


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: float


PLUS_TWO = timezone(timedelta(hours=2))
NAIVE = datetime(2026, 7, 1, 12, tzinfo=UTC).replace(tzinfo=None)

KEYS: list[Any] = [
    None,
    True,
    False,
    1,
    0,
    1.0,
    0.0,
    float("nan"),
    float("inf"),
    "",
    "1",
    "None",
    b"1",
    b"",
    2**63,
    -(2**63),
    Decimal(1),
    Decimal("0.1"),
    Decimal("NaN"),
    Decimal("Infinity"),
    Decimal("1E+10"),
    NAIVE,
    NAIVE.replace(tzinfo=UTC),
    NAIVE.date(),
    NAIVE.time(),
    NAIVE.time().replace(tzinfo=UTC),
    timedelta(1),
    timedelta.max,
    UUID(int=1),
    Color.RED,
    Color.BLUE,
    Access.READ | Access.WRITE,
    Point(1, 2.0),
    (),
    (1, "a"),
    ("1", "a"),
    ("1a",),
    ((1,), "a"),
    frozenset({1}),
    frozenset({1, 2}),
    {"a": 1},
]


def test_different_keys_have_different_bytes() -> None:
    packed = [pack_key(key) for key in KEYS]
    for (left, one), (right, other) in itertools.combinations(zip(KEYS, packed, strict=True), 2):
        assert one != other, f"{left!r} and {right!r} are one key"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (float("nan"), -float("nan")),
        (0.0, -0.0),
        ((1, -0.0), (1, 0.0)),
        (Decimal("1.0"), Decimal("1.00")),
        (Decimal(10), Decimal("1E+1")),
        (Decimal("-0"), Decimal("0.00")),
        (Decimal("NaN"), Decimal("-sNaN7")),
        (NAIVE.replace(tzinfo=UTC), NAIVE.replace(hour=14, tzinfo=PLUS_TWO)),
        (NAIVE, NAIVE.replace(fold=1)),
        (time(12, tzinfo=UTC), time(14, tzinfo=PLUS_TWO)),
        (datetime(1, 1, 1, tzinfo=PLUS_TWO), datetime(1, 1, 1, tzinfo=timezone(timedelta(seconds=7200), "named"))),
        (frozenset("abc"), frozenset("cba")),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([1, 2], (1, 2)),
    ],
)
def test_equal_keys_have_equal_hashes(left: Any, right: Any) -> None:
    assert stable_hash(left) == stable_hash(right)


@given(st.datetimes(timezones=st.sampled_from([UTC, PLUS_TWO, ZoneInfo("Europe/Berlin")])), st.integers(0, 1))
def test_equal_instants_are_one_key(moment: datetime, fold: int) -> None:
    moment = moment.replace(fold=fold)
    same_zone = moment.replace(fold=1 - fold)
    assert moment == same_zone
    assert pack_key(moment) == pack_key(same_zone)


def test_a_hash_has_64_bits_and_never_changes() -> None:
    # Key groups are recorded in checkpoints: a change of these numbers loses state.
    assert [f"{stable_hash(key):016x}" for key in ("tupletree", 7, ("a", 1), None, Decimal("1.5"))] == [
        "fac34205c96b98f5",
        "4c5cca45d0f4811f",
        "33c4cec2c5b7e73d",
        "05264b395baf644c",
        "b2e4cc959c672557",
    ]
    assert all(0 <= stable_hash(key) < 2**64 for key in KEYS)


def test_hashes_do_not_depend_on_the_process() -> None:
    code = "from tupletree.routing.hashing import stable_hash; print(stable_hash(('a', 1, frozenset('abc'))))"
    paths = ":".join(sys.path)
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": paths},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert answers == {f"{stable_hash(('a', 1, frozenset('abc')))}\n"}


@pytest.mark.parametrize("key", [object(), "\ud800", ("a", "\udfff"), 2**64, -(2**63) - 1, bytearray(b"a")])
def test_what_is_no_key_is_refused(key: Any) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        stable_hash(key)


def test_key_groups_spread_over_tasks_in_runs() -> None:
    for parallelism in (1, 2, 3, 5, 16, 32):
        tasks = [task_of_group(group, parallelism) for group in range(KEY_GROUPS)]
        assert tasks == sorted(tasks)
        assert set(tasks) == set(range(parallelism))
        sizes = [tasks.count(task) for task in range(parallelism)]
        assert max(sizes) - min(sizes) <= 1


def test_keys_spread_over_key_groups() -> None:
    groups = [key_group(f"word{number}") for number in range(32_000)]
    assert all(800 < groups.count(group) < 1200 for group in range(KEY_GROUPS))


def test_a_date_is_not_the_midnight_that_starts_it() -> None:
    assert stable_hash(date(2026, 7, 1)) != stable_hash(NAIVE.replace(hour=0))
