"""Options: which place wins, what is parsed how, and every fault at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tupletree.config import Options, describe_options, resolve_options
from tupletree.errors import ConfigError, Finding


def findings_of(caught: pytest.ExceptionInfo[ConfigError]) -> tuple[Finding, ...]:
    return caught.value.findings


def settings_file(folder: Path, text: str) -> Path:
    file = folder / "settings.toml"
    file.write_text(text)
    return file


def test_without_settings_the_defaults_hold() -> None:
    assert resolve_options() == Options()


def test_each_place_wins_over_the_ones_before_it(tmp_path: Path) -> None:
    file = settings_file(tmp_path, "[tupletree]\nmax_attempts = 13\nring_size = 3\nacker_tasks = 3\n")
    resolved = resolve_options(
        code={"timeout_buckets": 5, "max_attempts": 12, "ring_size": 2, "acker_tasks": 2},
        file=file,
        environment={"TUPLETREE_RING_SIZE": "4", "TUPLETREE_ACKER_TASKS": "4", "HOME": "/"},
        command_line=["acker_tasks=5"],
    )
    assert (resolved.timeout_buckets, resolved.max_attempts, resolved.ring_size, resolved.acker_tasks) == (5, 13, 4, 5)


def test_of_the_same_option_given_again_the_last_wins() -> None:
    assert resolve_options(command_line=["max_attempts=2", "max_attempts=7"]).max_attempts == 7


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("max_spout_pending=none", "max_spout_pending", None),
        ("max_spout_pending=1_000", "max_spout_pending", 1000),
        ("message_timeout_s=None", "message_timeout_s", None),
        ("message_timeout_s=2", "message_timeout_s", 2.0),
        ("backoff_factor=1.5", "backoff_factor", 1.5),
        ("topology.max.spout.pending=9", "max_spout_pending", 9),
        ("TOPOLOGY_ACKER_TASKS=0", "acker_tasks", 0),
        ("topology.message.timeout.secs=60", "message_timeout_s", 60.0),
    ],
)
def test_text_becomes_the_type_of_the_option(text: str, name: str, value: object) -> None:
    resolved = getattr(resolve_options(command_line=[text]), name)
    assert resolved == value
    assert type(resolved) is type(value)


def test_storm_names_work_in_every_place(tmp_path: Path) -> None:
    assert resolve_options(code={"topology.acker.tasks": 2}).acker_tasks == 2
    assert resolve_options(environment={"TUPLETREE_TOPOLOGY_ACKER_TASKS": "2"}).acker_tasks == 2
    for line in ("topology.acker.tasks = 2", '"topology.acker.tasks" = 2'):
        assert resolve_options(file=settings_file(tmp_path, f"[tupletree]\n{line}\n")).acker_tasks == 2


def test_storm_s_older_names_and_its_way_to_turn_tracking_off_are_understood() -> None:
    assert resolve_options(code={"topology.ackers": 2}).acker_tasks == 2
    assert resolve_options(code={"topology.acker.executors": 3}).acker_executors == 3
    for off in (0, "0"):
        options = resolve_options(code={"topology.acker.executors": off})
        assert (options.acker_tasks, options.acker_executors) == (0, 1)
    with pytest.raises(ConfigError):
        resolve_options(code={"acker_executors": 0})  # our name, so our meaning


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("topology.stats.sample.rate", "counted, not sampled"),
        ("topology.executor.send.buffer.size", "ring_size"),
        ("topology.backpressure.enable", "max_spout_pending"),
        ("topology.transfer.buffer.size", "ring_size"),
        ("topology.worker.max.heap.size.mb", "spark.executor.memory"),
        ("topology.bolts.tuple.timestamp.max.lag.ms", "window"),
        ("topology.state.checkpoint.interval.ms", "epoch_min_interval_ms"),
        ("topology.debug", "tupletree why"),
        ("nimbus.seeds", "Spark session"),
        ("TOPOLOGY_STATS_SAMPLE_RATE", "counted, not sampled"),
        ("topology.max.spout.pendng", "did you mean topology.max.spout.pending?"),
        ("topology.executor.receive.bufer.size", "did you mean topology.executor.receive.buffer.size?"),
    ],
)
def test_a_storm_setting_without_a_counterpart_names_what_to_do(key: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_options(code={key: 1})
    (finding,) = caught.value.findings
    assert named in finding.next_step


def test_a_whole_number_is_good_where_a_number_is_wanted() -> None:
    timeout = resolve_options(code={"message_timeout_s": 5}).message_timeout_s
    assert timeout == 5.0
    assert isinstance(timeout, float)


def test_every_fault_of_every_place_is_reported_at_once(tmp_path: Path) -> None:
    file = settings_file(tmp_path, '# settings\n[tupletree]\nmax_attempts = 3\nring_size = "big"\n')
    with pytest.raises(ConfigError) as caught:
        resolve_options(
            code={"max_spot_pending": 3},
            file=file,
            environment={"TUPLETREE_TIMEOUT_BUCKETS": "1"},
            command_line=["backoff_jitter=1.5", "acker_tasks", "topology.workers=3"],
        )
    assert [(finding.where, finding.got) for finding in findings_of(caught)] == [
        ("code, option max_spot_pending", "max_spot_pending"),
        (f"{file}:4", "'big'"),
        ("environment variable TUPLETREE_TIMEOUT_BUCKETS", "'1'"),
        ("--option backoff_jitter=1.5", "'1.5'"),
        ("--option acker_tasks", "acker_tasks"),
        ("--option topology.workers=3", "topology.workers"),
    ]
    text = str(caught.value)
    assert "did you mean max_spout_pending?" in text
    assert "a whole number at least 2" in text
    assert "a number at least 0 and at most 1" in text
    assert "parallelism" in text


@pytest.mark.parametrize(
    "text",
    [
        "max_attempts=0",
        "max_attempts=2.5",
        "max_attempts=none",
        "max_attempts=",
        "max_attempts=true",
        "max_spout_pending=0",
        "message_timeout_s=0",
        "message_timeout_s=nan",
        "message_timeout_s=inf",
        "backoff_factor=0.5",
        "backoff_jitter=-0.1",
        "timeout_buckets=1",
        "epoch_max_messages=0",
    ],
)
def test_values_out_of_range_or_of_another_type_are_faults(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_options(command_line=[text])
    [finding] = findings_of(caught)
    assert finding.where == f"--option {text}"
    assert finding.expected


@pytest.mark.parametrize("value", [True, 2.0, [], {}])
def test_code_may_not_pass_another_type(value: object) -> None:
    with pytest.raises(ConfigError):
        resolve_options(code={"max_attempts": value})


def test_options_built_in_code_are_checked_too() -> None:
    with pytest.raises(ConfigError) as caught:
        Options(timeout_buckets=1, backoff_jitter=2.0)
    assert [finding.where for finding in findings_of(caught)] == ["option timeout_buckets", "option backoff_jitter"]


def test_an_option_and_its_alias_in_one_place_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="not right") as caught:
        resolve_options(code={"acker_tasks": 1, "topology.acker.tasks": 2})
    assert "set twice" in findings_of(caught)[0].what


def test_a_settings_file_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as missing:
        resolve_options(file=tmp_path / "gone.toml")
    assert str(tmp_path / "gone.toml") in str(missing.value)
    with pytest.raises(ConfigError) as broken:
        resolve_options(file=settings_file(tmp_path, "[tupletree]\nmax_attempts = \n"))
    assert "line 2" in str(broken.value)
    with pytest.raises(ConfigError):
        resolve_options(file=settings_file(tmp_path, "tupletree = 3\n"))


def test_settings_above_the_table_of_the_file_are_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_options(file=settings_file(tmp_path, "max_attempts = 3\n\n[tupletree]\nring_size = 4\n"))
    (finding,) = findings_of(caught)
    assert "[tupletree]" in finding.what
    assert finding.got == "max_attempts"
    assert finding.next_step


def test_other_tables_of_the_file_are_left_alone(tmp_path: Path) -> None:
    assert resolve_options(file=settings_file(tmp_path, "[tool.other]\nmax_attempts = 'x'\n")) == Options()


def test_the_table_describes_every_option() -> None:
    table = describe_options()
    assert [row.name for row in table] == [described.name for described in dataclasses.fields(Options)]
    assert all(row.meaning and row.unit and row.type and row.default for row in table)
    by_name = {row.name: row for row in table}
    assert by_name["message_timeout_s"].type == "float or none"
    assert by_name["message_timeout_s"].expected == "a number above 0 and at most 31,536,000 or none"
    assert by_name["max_spout_pending"].default == "none"
    assert by_name["acker_tasks"].storm_alias == "topology.acker.tasks"


def test_every_described_default_is_what_the_option_accepts() -> None:
    assert resolve_options(command_line=[f"{row.name}={row.default}" for row in describe_options()]) == Options()
