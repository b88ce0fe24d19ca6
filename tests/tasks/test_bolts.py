from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tests.tasks.driving import Driver
from tests.tasks.streams import Gathering, Line, Script, Word, lines
from tupletree import Bolt, Collector, Resource, TaskContext, Tick, Topology, batch_bolt, bolt
from tupletree.config import Options
from tupletree.tasks.async_bolt import AsyncBoltMachine
from tupletree.tasks.bolt import BoltMachine
from tupletree.tasks.mail import Finished
from tupletree.tasks.ticks import SystemMachine


def topology(function: Any, script: Script, sink: Gathering | None = None, **resources: Any) -> Topology:
    t = Topology("batches")
    made = t.bolt("made", function, resources=resources).shuffle(t.spout("lines", script))
    if sink is not None:
        t.sink("out", sink).shuffle(made)
    return t


def batches_of(size: int, seen: list[list[str]], max_age_s: float = 60.0) -> Any:
    @batch_bolt(size=size, max_age_s=max_age_s)
    def gather(rows: list[Line]) -> list[Word]:
        seen.append([row.text for row in rows])
        if any(row.text == "bad" for row in rows):
            raise ValueError("bad")
        return [Word(row.text) for row in rows]

    return gather


def test_seven_messages_make_two_batches_of_three_and_the_last_goes_out_at_its_age() -> None:
    seen: list[list[str]] = []
    script, sink = Script([lines(*"abcdefg")]), Gathering()
    driver = Driver(topology(batches_of(3, seen, max_age_s=5.0), script, sink))
    started_s = driver.now_s
    driver.settle()
    assert seen == [["a", "b", "c"], ["d", "e", "f"]]
    driver.run()
    assert seen[2:] == [["g"]]
    assert driver.now_s - started_s >= 5.0
    assert sorted(script.acked) == list(range(7))
    assert len(sink.rows) == 7


def test_a_flush_works_a_batch_that_is_not_full() -> None:
    seen: list[list[str]] = []
    script = Script([lines(*"ab")], ends=False)
    driver = Driver(topology(batches_of(10, seen), script, Gathering()))
    driver.settle()
    assert seen == []
    (machine,) = [one for one in driver.machines.values() if isinstance(one, BoltMachine)]
    assert machine.is_busy
    assert machine.flush(driver.now, driver.out)
    driver.carry_out()
    driver.settle()
    assert seen == [["a", "b"]]
    assert script.acked == [0, 1]
    assert not machine.flush(driver.now, driver.out)


def test_members_of_a_failed_batch_are_tried_one_by_one_so_only_the_bad_one_fails() -> None:
    seen: list[list[str]] = []
    script, sink = Script([lines("a", "bad", "c")]), Gathering()
    driver = Driver(topology(batches_of(3, seen), script, sink), Options(max_attempts=1))
    driver.run()
    assert seen == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]
    assert [one.message_id for one in driver.died] == [1]
    assert sorted(script.acked) == [0, 2]
    assert sorted(row.word for row in sink.rows) == ["a", "c"]


def test_results_as_many_as_members_anchor_one_by_one_and_none_keeps_a_place() -> None:
    @batch_bolt(size=3)
    def some(rows: list[Line]) -> list[Word | None]:
        return [None if row.text == "b" else Word(row.text) for row in rows]

    script, sink = Script([lines(*"abc")]), Gathering()
    driver = Driver(topology(some, script, sink))
    driver.run()
    assert sorted(row.word for row in sink.rows) == ["a", "c"]
    assert len(script.acked) == 3


def test_any_other_number_of_results_is_anchored_to_the_whole_batch() -> None:
    @batch_bolt(size=3)
    def joined(rows: list[Line], context: TaskContext) -> list[Word]:
        assert context.attempt == 1
        return [Word("+".join(row.text for row in rows))]

    script, sink = Script([lines(*"abc")]), Gathering()
    driver = Driver(topology(joined, script, sink))
    driver.run()
    assert [row.word for row in sink.rows] == ["a+b+c"]
    assert len(script.acked) == 3


def test_a_wrong_result_of_a_batch_fails_the_member_it_belongs_to() -> None:
    @batch_bolt(size=2)
    def wrong(rows: list[Line], prefix: Resource[str]) -> list[Word]:
        return [Line("no word") if row.text == "b" else Word(prefix + row.text) for row in rows]  # type: ignore[misc]

    script, sink = Script([lines(*"ab")]), Gathering()
    driver = Driver(topology(wrong, script, sink, prefix="-"), Options(max_attempts=1))
    driver.run()
    assert [row.word for row in sink.rows] == ["-a"]
    assert [one.message_id for one in driver.died] == [1]


class Ticking(Bolt[Line]):
    tick_interval_s = 10.0
    auto_ack = False

    def open(self, context: TaskContext) -> None:
        self.held: list[Line] = []

    def process(self, value: Line, collector: Collector[Word]) -> None:
        self.held.append(value)

    def tick(self, collector: Collector[Word]) -> None:
        collector.emit(Word(f"{len(self.held)} held"), anchors=self.held)
        for line in self.held:
            collector.ack(line)
        self.held = []


def test_a_class_bolt_settles_what_it_holds_at_its_tick() -> None:
    script, sink = Script([lines(*"ab")]), Gathering()
    driver = Driver(topology(Ticking, script, sink))
    driver.settle()
    assert script.acked == []
    (machine,) = [one for one in driver.machines.values() if isinstance(one, BoltMachine)]
    machine.tick(driver.now, driver.out)
    driver.carry_out()
    driver.settle()
    assert [row.word for row in sink.rows] == ["2 held"]
    assert len(script.acked) == 2
    machine.tick(driver.now, driver.out)
    driver.carry_out()
    driver.settle()
    assert [row.word for row in sink.rows] == ["2 held", "0 held"]


def test_a_function_bolt_gets_ticks_among_its_tuples() -> None:
    got: list[float] = []

    @bolt(tick_interval_s=1.0)
    def clocked(value: Line | Tick) -> Word | None:
        if isinstance(value, Tick):
            got.append(value.time_s)
            return Word("tick")
        return None

    script, sink = Script([lines("a")]), Gathering()
    driver = Driver(topology(clocked, script, sink))
    (machine,) = [one for one in driver.machines.values() if isinstance(one, BoltMachine)]
    machine.tick(driver.now, driver.out)
    driver.carry_out()
    driver.run()
    assert got == [driver.now.wall_s]
    assert [row.word for row in sink.rows] == ["tick"]
    assert script.acked == [0]


def test_the_system_task_says_when_ticks_are_due_and_skips_those_it_missed() -> None:
    script = Script([], ends=False)
    driver = Driver(topology(Ticking, script, Gathering()))
    system = SystemMachine(driver.plan.tasks[0], driver.plan, driver.options)
    system.start(driver.now, driver.out)
    started_s = driver.now_s
    assert system.next_due_s() == started_s + 10.0
    assert not system.poll(driver.now, driver.out)
    driver.now_s += 35.0
    assert system.poll(driver.now, driver.out)
    assert driver.out.ticks == [*driver.plan.task_ids_of("made")]
    assert system.next_due_s() == started_s + 40.0


def async_driver(function: Any, script: Script, sink: Gathering, options: Options | None = None) -> Driver:
    driver = Driver(topology(function, script, sink), options)
    task = driver.plan.tasks_of("made")[0]
    driver.machines[task.task_id] = AsyncBoltMachine(
        driver.plan, task, driver.options, random_bits=driver.random.getrandbits, attempts=driver.attempts
    )
    return driver


def end_call(driver: Driver, which: int) -> None:
    """Run one of the calls that are asked for, and deliver its end."""
    task, number, call = driver.out.calls.pop(which)
    try:
        finished = Finished(number, asyncio.run(call()))
    except Exception as error:  # noqa: BLE001 - the bolt's
        finished = Finished(number, [], error)
    driver.machines[task].receive([finished], driver.now, driver.out)
    driver.carry_out()
    driver.settle()


def test_an_async_bolt_has_so_many_calls_at_a_time_and_settles_them_as_they_end() -> None:
    @bolt(concurrency=2)
    async def fetch(line: Line, context: TaskContext) -> Word:
        assert context.attempt == 1
        if line.text == "bad":
            raise TimeoutError("bad")
        return Word(line.text)

    script, sink = Script([lines("a", "b", "bad")]), Gathering()
    driver = async_driver(fetch, script, sink, Options(max_attempts=1))
    driver.settle()
    assert len(driver.out.calls) == 2
    end_call(driver, 1)
    assert script.acked == [1]
    assert len(driver.out.calls) == 2
    end_call(driver, 1)
    end_call(driver, 0)
    assert script.acked == [1, 0]
    assert [one.failure.error for one in driver.died] == ["bad"]
    assert sorted(row.word for row in sink.rows) == ["a", "b"]
    assert not driver.machines[driver.plan.task_ids_of("made")[0]].is_busy


def test_an_async_generator_emits_all_that_it_yields() -> None:
    @bolt
    async def letters(line: Line) -> AsyncIterator[Word]:
        for letter in line.text:
            yield Word(letter)

    script, sink = Script([lines("abc")]), Gathering()
    driver = async_driver(letters, script, sink)
    driver.settle()
    end_call(driver, 0)
    assert [row.word for row in sink.rows] == ["a", "b", "c"]
    assert script.acked == [0]
