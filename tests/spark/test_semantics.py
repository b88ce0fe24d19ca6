"""What a count, a sink and a verdict must be, whatever fails and wherever: the guarantee, end to end."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from examples import word_count
from tests.spark.conftest import SPARK_NIGHTLY, RunTopology
from tests.spark.helpers_semantics import HEARD, Feed, finish
from tupletree import Collector, KeyedState, PermanentError, TaskContext, Topology, bolt
from tupletree.sinks import jsonl, parquet
from tupletree.testing.conformance.messages import numbered


class Line(msgspec.Struct, frozen=True):
    text: str


class Word(msgspec.Struct, frozen=True):
    word: str


class Count(msgspec.Struct, frozen=True):
    word: str
    count: int


def every_count(texts: list[str]) -> Counter[tuple[str, int]]:
    """Each running count of each word of these texts, once."""
    totals = Counter(word for text in texts for word in text.split())
    return Counter((word, number) for word, total in totals.items() for number in range(1, total + 1))


@pytest.mark.spark
def test_poisoned_lines_are_dead_flaky_ones_acked_and_the_counts_are_those_of_counter(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    lines = [f"w{number % 13} w{number % 5} w{number % 5} end" for number in range(1000)]
    lines[::100] = [f"poison {line}" for line in lines[::100]]
    lines[7::90] = [f"hiccup {line}" for line in lines[7::90]]
    (tmp_path / "text").write_text("\n".join(lines))
    topology = word_count.topology([tmp_path / "text"], tmp_path / "out", poison="poison", flaky="hiccup")
    result = finish(run_topology, topology, tmp_path, epoch_max_messages=300)
    poisoned = {number for number, line in enumerate(lines, 1) if line.startswith("poison")}
    assert {number for _, number in result.dead} == poisoned
    assert {letter.attempts for letter in result.letters} == {5}
    assert {letter.failure.error_type for letter in result.letters} == {"ValueError"}
    assert result.letters[0].payload["text"].startswith("poison")
    living = [line for line in lines if not line.startswith("poison")]
    assert result.tally("out", "word", "count") == every_count(living)
    flaky = sum(line.startswith("hiccup") for line in lines)
    assert (result.summary.failed, result.summary.retried) == (5 * 10 + 2 * flaky, 4 * 10 + 2 * flaky)
    assert result.summary.outputs == {"out": sum(len(line.split()) for line in living)}


@bolt
def stumble_before(line: Line) -> Line:
    if random.random() < 0.02:
        raise ConnectionError("before the count")
    return line


@bolt
def split(line: Line) -> Iterator[Word]:
    return map(Word, line.text.split())


@bolt(state=int)
def stumbling_count(word: Word, total: KeyedState[int]) -> Count:
    if random.random() < 0.002:
        raise ConnectionError("in the count, before it")
    total.value += 1
    if random.random() < 0.002:
        raise ConnectionError("in the count, after it")
    return Count(word.word, total.value)


@bolt
def stumble_behind(counted: Count) -> Count:
    if random.random() < 0.01:
        raise ConnectionError("behind the count")
    return counted


@pytest.mark.spark
def test_what_was_acked_is_counted_exactly_when_bolts_before_in_and_behind_the_count_fail_at_random(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    lines = [f"w{number % 7} all" for number in range(200)]
    t = Topology("random-failures")
    source = t.spout("source", Feed("random-failures", Line, numbered([Line(text) for text in lines])))
    before = t.bolt("before", stumble_before, parallelism=2).shuffle(source)
    words = t.bolt("split", split, parallelism=2).shuffle(before)
    counts = t.bolt("count", stumbling_count, parallelism=2).fields(words, "word")
    behind = t.bolt("behind", stumble_behind, parallelism=3).shuffle(counts)
    t.sink("lines", jsonl(tmp_path / "lines")).shuffle(behind)
    t.sink("columns", parquet(tmp_path / "columns"), parallelism=1).shuffle(behind)
    result = finish(run_topology, t, tmp_path, epoch_max_messages=100, max_attempts=2)
    living = every_count([text for number, text in enumerate(lines) if number not in result.dead])
    assert result.tally("lines", "word", "count") == living
    assert result.tally("columns", "word", "count") == living
    heard = HEARD["random-failures"]
    assert Counter(heard.acked) == Counter(set(range(200)) - result.dead.keys())
    assert Counter(number for number, _ in heard.failed) == Counter(result.dead.keys())


class Number(msgspec.Struct, frozen=True):
    number: int


class Total(msgspec.Struct, frozen=True):
    key: int
    total: int


class Passed(msgspec.Struct, frozen=True):
    number: int


@bolt
def relay(value: Number) -> Number:
    return value


@bolt
def failing_branch(value: Number, context: TaskContext) -> Passed:
    if value.number % 10 == 0:
        raise ValueError("never passes")
    if value.number % 7 == 0 and context.attempt == 1:
        raise ConnectionError("passes later")
    return Passed(value.number)


@bolt(state=int)
def add(value: Number, total: KeyedState[int]) -> Total:
    total.value += value.number
    return Total(value.number, total.value)


@SPARK_NIGHTLY
@pytest.mark.parametrize("with_state", [False, True])
def test_a_message_that_fails_in_one_branch_leaves_nothing_of_the_others(
    run_topology: RunTopology, tmp_path: Path, with_state: bool
) -> None:
    name = f"diamond-{with_state}"
    t = Topology(name)
    source = t.spout("source", Feed(name, Number, numbered([Number(number) for number in range(100)])))
    near = t.bolt("near", relay, parallelism=2).shuffle(source)
    t.sink("at-once", jsonl(tmp_path / "at-once")).shuffle(near)
    # The branch that fails is one exchange behind the one that writes.
    failing = t.bolt("failing", failing_branch, parallelism=2).fields(near, "number")
    t.sink("late", parquet(tmp_path / "late")).shuffle(failing)
    if with_state:
        totals = t.bolt("add", add, parallelism=2).fields(source, "number")
        t.sink("totals", jsonl(tmp_path / "totals")).shuffle(totals)
    result = finish(run_topology, t, tmp_path, max_attempts=2)
    assert result.dead.keys() == set(range(0, 100, 10))
    living = Counter(number for number in range(100) if number % 10)
    assert result.tally("at-once", "number") == living
    assert result.tally("late", "number") == living
    if with_state:
        assert result.tally("totals", "key", "total") == Counter((number, number) for number in living)


class Member(msgspec.Struct, frozen=True):
    group: int
    number: int
    closes: bool


class Joint(msgspec.Struct, frozen=True):
    members: list[int]


held: dict[int, list[Member]] = {}


@bolt(auto_ack=False)
def join_group(member: Member, out: Collector[Joint]) -> None:
    """Hold the members of a group; the one that closes it emits one tuple that is anchored to all of them."""
    group = held.setdefault(member.group, [])
    if not group or group[-1].number > member.number:
        group.clear()  # what an earlier run of the epoch left in this process
    group.append(member)
    if member.closes:
        out.emit(Joint([one.number for one in group]), anchors=group)
        for one in group:
            out.ack(one)
        group.clear()


@bolt
def judge(member: Member) -> None:
    if member.number % 10 in {0, 3}:
        raise PermanentError("a member of this number fails in another branch")


@SPARK_NIGHTLY
def test_a_tuple_anchored_to_a_failed_and_a_live_message_is_published_once_for_the_live_one(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    members = [Member(number // 5, number, closes=number % 5 == 4) for number in range(60)]
    t = Topology("anchors")
    source = t.spout("source", Feed("anchors", Member, numbered(members)))
    joints = t.bolt("join", join_group, parallelism=2).fields(source, "group")
    t.sink("joints", jsonl(tmp_path / "joints")).shuffle(joints)
    t.bolt("judge", judge, parallelism=2).shuffle(source)
    result = finish(run_topology, t, tmp_path)
    failing = {number for number in range(60) if number % 10 in {0, 3}}
    assert result.dead.keys() == failing
    published = Counter(number for row in result.rows("joints") for number in row["members"])
    assert published == Counter(set(range(60)) - failing)


@bolt
def refuse_some(joint: Joint) -> Joint:
    if 7 in joint.members:
        raise PermanentError("every member of this one fails")
    return joint


@SPARK_NIGHTLY
def test_a_tuple_that_fails_behind_the_join_fails_every_message_that_it_is_anchored_to(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    members = [Member(number // 5, number, closes=number % 5 == 4) for number in range(20)]
    t = Topology("anchors-behind")
    source = t.spout("source", Feed("anchors-behind", Member, numbered(members)))
    joints = t.bolt("join", join_group).fields(source, "group")
    kept = t.bolt("refuse", refuse_some, parallelism=2).shuffle(joints)
    t.sink("joints", jsonl(tmp_path / "joints")).shuffle(kept)
    result = finish(run_topology, t, tmp_path)
    assert result.dead.keys() == {5, 6, 7, 8, 9}
    assert sorted(row["members"][0] for row in result.rows("joints")) == [0, 10, 15]


@pytest.mark.spark
def test_the_session_of_the_process_is_used_as_it_is_and_left_running(
    spark: Any, run_topology: RunTopology, tmp_path: Path
) -> None:
    assert spark.range(3).count() == 3  # the first plan of a session adds a setting of its own
    before = spark.sparkContext.getConf().getAll()
    t = Topology("guest")
    source = t.spout("source", Feed("guest", Number, numbered([Number(1)])))
    t.sink("out", jsonl(tmp_path / "out")).shuffle(source)
    finish(run_topology, t, tmp_path)
    assert spark.range(3).count() == 3
    assert sorted(spark.sparkContext.getConf().getAll()) == sorted(before)
    assert spark.streams.active == []
