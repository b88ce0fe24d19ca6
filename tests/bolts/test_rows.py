"""Filter, project and explode: what comes out, what it is anchored to, and what is told before anything runs."""

from __future__ import annotations

import datetime as dt
import sys
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bolts.workbench import Bench, built
from tupletree import TopologyError
from tupletree.bolts import explode, filter_rows, project


class Row(msgspec.Struct, frozen=True):
    text: str
    number: int
    maybe: float | None = None
    tags: list[str] = []
    bag: tuple[int, ...] | None = None
    amount: Decimal = Decimal(0)
    moment: dt.datetime | None = None


class Word(msgspec.Struct, frozen=True):
    word: str


class Tagged(msgspec.Struct, frozen=True):
    number: int
    moment: dt.datetime | None
    tag: str


class Part(msgspec.Struct, frozen=True):
    bag: int


class Other(msgspec.Struct, frozen=True):
    moment: dt.datetime | None
    size: int
    amount: Decimal
    is_large: bool


MOMENT = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
ROWS = [
    Row("a", 1, 0.5, moment=MOMENT),
    Row("b", 2),
    Row("c", 3, float("nan"), amount=Decimal("1.10")),
    Row("d", 4, 2.0),
]
SEGMENTS: list[Any] = [(1, ROWS[:2]), ((1, 2), ROWS[2:3]), (0, ROWS[3:])]


def test_filter_lets_through_what_is_true_and_drops_what_is_null() -> None:
    bench = Bench(Row, filter_rows(Row, pc.field("maybe") < 3))
    assert bench.rows(*SEGMENTS) == [(1, ROWS[0]), (0, ROWS[3])]
    assert Bench(Row, filter_rows(Row, pc.field("number") > 9)).rows(*SEGMENTS) == []
    assert len(Bench(Row, filter_rows(Row, pc.scalar(True))).rows(*SEGMENTS)) == 4


def test_project_makes_one_row_of_each() -> None:
    bolt = project(Row, Other, size=pc.field("number").cast(pa.int32()) * 2, is_large=pc.field("number") > 2)
    assert Bench(Row, bolt).rows(*SEGMENTS) == [
        (1, Other(MOMENT, 2, Decimal(0), False)),
        (1, Other(None, 4, Decimal(0), False)),
        ((1, 2), Other(None, 6, Decimal("1.10"), True)),
        (0, Other(None, 8, Decimal(0), True)),
    ]


WHITE = "".join(filter(str.isspace, map(chr, range(sys.maxunicode + 1))))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.sampled_from("ab\u00e9\U0001f600" + WHITE), max_size=12), min_size=1, max_size=5))
def test_text_is_split_as_python_splits_it(texts: list[str]) -> None:
    segments: list[Any] = [(number + 1, [Row(text, number)]) for number, text in enumerate(texts)]
    for split, method in ((None, None), (" ", " "), ("a", "a")):
        got = Bench(Row, explode(Row, "text", into=Word, split=split)).rows(*segments)
        assert got == [(n + 1, Word(word)) for n, text in enumerate(texts) for word in text.split(method)]


def test_no_word_comes_of_white_space_at_the_end_whatever_lies_behind_it() -> None:
    bench = Bench(Row, explode(Row, "text", into=Word))
    texts = ["\u200a\x0b\u2004b\u2004\x1e\x1f\u00e9\r\x0b\u2004\x1f"] * 2
    texts.append("\u200a\x1f\x1e\x85\u202f\x0b \u202f\u00e9\r\n\u2005")
    rows: list[Any] = [(number + 1, [Row(text, number)]) for number, text in enumerate(texts)]
    wanted = [(n + 1, Word(word)) for n, text in enumerate(texts) for word in text.split()]
    for length in range(300):
        left_in_memory = pa.array(["\u00e9\u2005" * (length % 7 + 1)])
        del left_in_memory
        assert bench.rows(*rows) == wanted


def letters(text: str) -> list[str]:
    if text == "boom":
        raise ValueError("boom")
    return list(text)


def test_a_function_may_split_and_a_text_that_it_refuses_fails_alone() -> None:
    bench = Bench(Row, explode(Row, "text", into=Word, split=letters))
    worked = bench.work((1, [Row("ab", 1)]), (2, [Row("boom", 2)]), (3, [Row("", 3), Row("c", 4)]))
    assert set(worked.failures) == {2}
    (output,) = worked.outputs
    assert (output.values, output.roots, output.ends) == ([Word("a"), Word("b"), Word("c")], [1, 3], [2, 3])
    odd = Bench(Row, explode(Row, "text", into=Word, split=lambda text: [1])).work((1, [Row("a", 1)]))
    assert "Word.word" in odd.failures[1].error


def test_items_come_out_with_the_other_fields_of_their_tuple() -> None:
    rows = [Row("", 1, tags=["x", "y"], moment=MOMENT), Row("", 2), Row("", 3, tags=["z"])]
    assert Bench(Row, explode(Row, "tags", into=Tagged)).rows((1, rows[:1]), (2, rows[1:])) == [
        (1, Tagged(1, MOMENT, "x")),
        (1, Tagged(1, MOMENT, "y")),
        (2, Tagged(3, None, "z")),
    ]
    bags = [Row("", 1, bag=(1, 2)), Row("", 2), Row("", 3, bag=())]
    assert Bench(Row, explode(Row, "bag", into=Part)).rows((1, bags)) == [(1, Part(1)), (1, Part(2))]


FAULTS: list[tuple[Any, str]] = [
    (lambda: filter_rows(Row, pc.field("nothing") > 1), "the expression cannot be used"),
    (lambda: filter_rows(Row, pc.field("text") > 1), "the expression cannot be used"),
    (lambda: filter_rows(Row, pc.field("number") + 1), "the expression cannot be used"),
    (lambda: project(Row, Other), "there is no value for Other.size"),
    (lambda: project(Row, Word, word=pc.field("text"), words=pc.field("text")), "did you mean 'word'"),
    (lambda: project(Row, Word, word=pc.field("number") > 1), "the expression cannot be used"),
    (lambda: project(Row, Word, word=pc.field("nothing")), "the expression cannot be used"),
    (lambda: explode(Row, "txt", into=Word), "did you mean 'text'"),
    (lambda: explode(Row, "number", into=Word), "number has no parts"),
    (lambda: explode(Row, "text", into=Other), "does not say where the parts go"),
    (lambda: explode(Row, "bag", into=Word), "Word.word has another type"),
    (lambda: explode(Row, "tags", into=Word, split=","), "tags is not split"),
    (lambda: explode(Row, "text", into=Word, split=""), "the separator is empty"),
]


@pytest.mark.parametrize(("make", "words"), FAULTS)
def test_what_does_not_fit_is_told_when_the_topology_is_built(make: Any, words: str) -> None:
    with pytest.raises(TopologyError) as caught:
        built(Row, make())
    assert words in str(caught.value)
