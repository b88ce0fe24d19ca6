import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from examples.word_count import Count, Faults, Word, count, python_documentation, split, stumble, topology
from tests.places import Place
from tupletree.sources import Line


@dataclasses.dataclass
class Total:
    value: int = 0
    key: object = ""

    def clear(self) -> None:
        self.value = 0


def test_a_line_is_split_the_way_str_split_does() -> None:
    assert list(split(Line(" the  cat, The\tcat "), Place(), Faults())) == [*map(Word, ["the", "cat,", "The", "cat"])]
    assert list(split(Line(""), Place(), Faults())) == []


def test_a_poison_line_fails_on_every_attempt() -> None:
    for attempt in (1, 2, 7):
        with pytest.raises(ValueError, match=r"a\.txt:3 is poison"):
            split(Line("a bo0m b", "a.txt", 3), Place(attempt=attempt), Faults(poison=r"bo\dm"))


def test_a_flaky_line_fails_twice_and_then_goes_through() -> None:
    faults = Faults(flaky="hic+up")
    for attempt in (1, 2):
        with pytest.raises(RuntimeError, match=f"attempt {attempt}"):
            split(Line("hiccup"), Place(attempt=attempt), faults)
    assert list(split(Line("hiccup"), Place(attempt=3), faults)) == [Word("hiccup")]


def test_counts_go_up_by_one() -> None:
    total = Total()
    assert [count(Word("a"), total) for _ in range(2)] == [Count("a", 1), Count("a", 2)]


def test_about_the_ordered_fraction_of_counts_stumbles_and_only_on_the_first_attempt() -> None:
    faults = Faults(behind=0.2)
    fallen = 0
    for number in range(1000):
        counted = Count("word", number)
        try:
            stumble(counted, Place(attempt=1), faults)
        except RuntimeError:
            fallen += 1
            assert stumble(counted, Place(attempt=2), faults) == counted
    assert 150 < fallen < 250


def test_the_python_documentation_is_a_text_with_ids_of_its_own() -> None:
    spout = python_documentation()
    spout.open(Place())
    batch = spout.next()
    assert isinstance(batch, list)
    assert [message.message_id for message in batch[:2]] == [("topics", 1), ("topics", 2)]
    words = Counter(word for message in batch for word in message.value.text.split())
    assert words["the"] > 100


def test_the_topology_builds_with_and_without_stumbling(tmp_path: Path) -> None:
    assert list(topology(out=tmp_path).build().components) == ["lines", "split", "count", "out"]
    spec = topology(out=tmp_path, fail_behind=0.1).build()
    assert list(spec.components) == ["lines", "split", "count", "stumble", "out"]
