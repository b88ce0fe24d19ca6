import dataclasses
import datetime as dt
import os
import re
from pathlib import Path

import pytest

from examples.log_watch import FailedLogin, Failures, attacks, count, moment, parse, synthetic_log, topology
from tests.places import Place
from tupletree import EndOfInput, Outcome, PermanentError, Spout, testing
from tupletree.sources import Line, text_lines

SAMPLE_LOGS = os.environ.get("TUPLETREE_SAMPLE_LOGS", "")


@dataclasses.dataclass
class Total:
    value: int = 0
    key: object = ""

    def clear(self) -> None:
        self.value = 0


def sshd(message: str) -> Line:
    return Line(f"Jan  1 10:00:00 gateway sshd[77]: {message}", "auth.log", 5)


@pytest.mark.parametrize(
    ("message", "address", "user", "times"),
    [
        ("Failed password for root from 203.0.113.5 port 22 ssh2", "203.0.113.5", "root", 1),
        ("Failed password for invalid user  0101 from 203.0.113.5 port 22 ssh2", "203.0.113.5", " 0101", 1),
        ("Failed none for invalid user a from 2001:db8::1 port 9 ssh2", "2001:db8::1", "a", 1),
        ("message repeated 5 times: [ Failed password for b from 203.0.113.9 port 22 ssh2]", "203.0.113.9", "b", 5),
        (
            "Failed password for invalid user x from 192.0.2.1 port 22 ssh2 from 203.0.113.5 port 22 ssh2",
            "203.0.113.5",
            "x from 192.0.2.1 port 22 ssh2",
            1,
        ),
    ],
)
def test_failed_logins_are_read(message: str, address: str, user: str, times: int) -> None:
    assert parse(sshd(message)) == FailedLogin(address, user, "Jan  1 10:00:00", times)


@pytest.mark.parametrize(
    "line",
    [
        sshd("Accepted publickey for ada from 203.0.113.5 port 22 ssh2"),
        sshd("reverse mapping checking getaddrinfo for a.example [203.0.113.5] failed - POSSIBLE BREAK-IN ATTEMPT!"),
        Line("2026-01-01T10:00:00.5+02:00 gateway cron[1]: Failed password for root from 203.0.113.5 port 22 ssh2"),
    ],
)
def test_everything_else_in_a_log_is_left_out(line: Line) -> None:
    assert parse(line) is None


@pytest.mark.parametrize("text", ["", "Jan  1 10", "no log at all"])
def test_a_malformed_line_is_dead_at_once_and_says_where_it_stands(text: str) -> None:
    with pytest.raises(PermanentError, match=r"auth\.log:5: not a syslog line"):
        parse(Line(text, "auth.log", 5))


def test_failures_add_up_per_address() -> None:
    total = Total()
    logins = [FailedLogin("203.0.113.5", "root", "t1"), FailedLogin("203.0.113.5", "ada", "t2", times=5)]
    assert [count(login, total) for login in logins] == [
        Failures("203.0.113.5", 1, "root", "t1"),
        Failures("203.0.113.5", 6, "ada", "t2"),
    ]


def test_the_synthetic_log_says_so_and_holds_malformed_lines() -> None:
    spout = synthetic_log(100)
    spout.open(Place())
    batch = spout.next()
    assert isinstance(batch, list)
    assert {message.value.path for message in batch} == {"synthetic"}
    malformed = []
    for message in batch:
        try:
            parse(message.value)
        except PermanentError:
            malformed.append(message.message_id)
    assert malformed == [("synthetic", 50), ("synthetic", 100)]


@pytest.mark.skipif(not SAMPLE_LOGS, reason="TUPLETREE_SAMPLE_LOGS names no OpenSSH log")
def test_a_real_log_gives_as_many_failures_as_a_plain_search_finds() -> None:
    content = Path(SAMPLE_LOGS).read_text(encoding="utf-8")
    logins = [parse(line) for line in lines_of(text_lines(SAMPLE_LOGS))]
    repeated = sum(int(times) - 1 for times in re.findall(r"repeated (\d+) times: \[ Failed ", content))
    assert sum(login.times for login in logins if login) == len(re.findall(r"Failed \w+ for", content)) + repeated


def test_the_topology_builds(tmp_path: Path) -> None:
    assert list(topology(out=tmp_path).build().components) == ["lines", "parse", "count", "out"]


def lines_of(spout: Spout[Line]) -> list[Line]:
    spout.open(Place())
    lines: list[Line] = []
    while True:
        try:
            batch = spout.next()
        except EndOfInput:
            return lines
        assert isinstance(batch, list)
        lines += [emit.value for emit in batch]


def parsed(line: Line) -> FailedLogin | None:
    try:
        return parse(line)
    except PermanentError:
        return None


def test_attacks_are_windows_of_five_minutes_in_which_an_address_failed_ten_times() -> None:
    run = testing.run(attacks())
    logins = [login for line in lines_of(synthetic_log()) if (login := parsed(line)) is not None]
    expected: dict[tuple[str, dt.datetime], int] = {}
    for login in logins:
        start = moment(login).replace(minute=moment(login).minute // 5 * 5, second=0)
        expected[login.address, start] = expected.get((login.address, start), 0) + login.times
    found = {(row.address, row.start): row.failures for row in run.outputs["out"]}
    assert found == {place: failures for place, failures in expected.items() if failures >= 10}
    assert len(found) > 2
    outcomes = [message.outcome for message in run.messages["lines"]]
    assert (outcomes.count(Outcome.ACKED), outcomes.count(Outcome.DEAD)) == (490, 10)


def test_stamps_with_and_without_a_zone_are_moments() -> None:
    def at(time: str) -> dt.datetime:
        return moment(FailedLogin("a", "u", time))

    assert at("Feb 29 23:59:59") == dt.datetime(2024, 2, 29, 23, 59, 59, tzinfo=dt.UTC)
    assert at("2026-01-01T10:00:00.5+02:00") == dt.datetime(2026, 1, 1, 8, 0, 0, 500_000, tzinfo=dt.UTC)
