"""Watch server logs: count the failed SSH logins of every address.

    tupletree run examples/log_watch.py --set paths=/var/log/auth.log --set out=failures
    tupletree run examples/log_watch.py:attacks --set paths=/var/log/auth.log --set out=attacks

The second looks at windows of five minutes instead, and tells who failed at least ten times in one.

Reads syslog lines (OpenSSH's among others). A line that is none is malformed: it goes to the dead letters at once, with
its path and line number, and the rest goes on. Without paths it reads a sample that it makes up itself: its addresses
are those reserved for documentation, and its path says "synthetic".
"""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tupletree import KeyedState, PermanentError, Spout, Topology, Window, bolt, window_bolt
from tupletree.sinks import jsonl
from tupletree.sources import Line, items, text_lines

SYSLOG = re.compile(
    r"(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) \S+ (?P<program>[^\s:\[]+)(?:\[\d+\])?: "
    r"(?P<message>.*)"
)
# The user name is the attacker's choice and may itself hold " from 192.0.2.1 port 22": only the last one counts.
FAILED_LOGIN = re.compile(
    r"(?:message repeated (?P<times>\d+) times: \[ )?"
    r"Failed \S+ for (?:invalid user )?(?P<user>.*) from (?P<address>\S+) port \d+(?: ssh2)?.*"
)


class FailedLogin(msgspec.Struct, frozen=True, gc=False):
    """One report of a failed login; `times` says how often it happened."""

    address: str
    user: str
    time: str
    times: int = 1


class Failures(msgspec.Struct, frozen=True, gc=False):
    """What an address did so far: how many logins failed, and the last of them."""

    address: str
    failures: int
    user: str
    time: str


class Attack(msgspec.Struct, frozen=True, gc=False):
    """Five minutes in which logins from an address failed again and again."""

    address: str
    start: dt.datetime
    failures: int
    users: list[str]


@bolt
def parse(line: Line) -> FailedLogin | None:
    """Read a log line; only failed logins go on."""
    entry = SYSLOG.fullmatch(line.text)
    if entry is None:
        raise PermanentError(
            "not a syslog line",
            where=f"{line.path}:{line.number}",
            got=repr(line.text[:200]),
            expected="time host program: …",
        )
    failed = FAILED_LOGIN.fullmatch(entry["message"]) if entry["program"] == "sshd" else None
    if failed is None:
        return None
    return FailedLogin(failed["address"], failed["user"], entry["time"], int(failed["times"] or 1))


@bolt(state=int)
def count(login: FailedLogin, total: KeyedState[int]) -> Failures:
    """Count per address; the grouping brings equal addresses to the same task."""
    total.value += login.times
    return Failures(login.address, total.value, login.user, login.time)


def moment(login: FailedLogin) -> dt.datetime:
    """When it happened. Stamps of the old kind name neither year nor zone: they are taken for those of 2024, in UTC."""
    if login.time[0].isdigit():
        return dt.datetime.fromisoformat(login.time)
    return dt.datetime.strptime(f"2024 {login.time} +0000", "%Y %b %d %H:%M:%S %z")


@window_bolt(length_s=300, per_key=True, timestamp=moment, lag_s=60, extend_timeout=True)
def attack(logins: Window[FailedLogin]) -> Attack | None:
    """Ten failures or more, with the users that were tried; all in one window per address."""
    failures = sum(login.times for login in logins)
    if failures < 10:
        return None
    return Attack(logins.key, logins.start, failures, sorted({login.user for login in logins}))


def topology(paths: Sequence[Path] = (), out: Path = Path("out")) -> Topology:
    """Count failed logins per address.

    Args:
        paths: log files; none means a synthetic sample.
        out: folder for JSON Lines of {"address", "failures", "user", "time"}, one per update.
    """
    t = Topology("log-watch")
    lines = t.spout("lines", text_lines(paths, encoding="utf-8") if paths else synthetic_log())
    logins = t.bolt("parse", parse, parallelism=2).shuffle(lines)
    failures = t.bolt("count", count, parallelism=2).fields(logins, "address")
    t.sink("out", jsonl(out)).shuffle(failures)
    return t


def attacks(paths: Sequence[Path] = (), out: Path = Path("out")) -> Topology:
    """Find attacks. Arguments as for `topology`; the rows are {"address", "start", "failures", "users"}."""
    t = Topology("log-watch-attacks")
    lines = t.spout("lines", text_lines(paths, encoding="utf-8") if paths else synthetic_log())
    logins = t.bolt("parse", parse, parallelism=2).shuffle(lines)
    t.sink("out", jsonl(out)).shuffle(t.bolt("attack", attack, parallelism=2).fields(logins, "address"))
    return t


def synthetic_log(lines: int = 500) -> Spout[Line]:
    """A made-up log, the same in every run: mostly failed logins, some successes, one line in fifty cut off."""
    chance = random.Random(20)
    made = []
    for number in range(1, lines + 1):
        stamp = f"Jan  1 {number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}"
        origin = f"from 203.0.113.{chance.choice((5, 5, 5, 17, 99))} port {chance.randrange(1024, 65536)} ssh2"
        user = chance.choice(("root", "invalid user admin", "invalid user oracle"))
        message = (
            f"Failed password for {user} {origin}" if chance.random() < 0.8 else f"Accepted publickey for ada {origin}"
        )
        text = f"{stamp} gateway sshd[{1000 + number}]: {message}"
        made.append(Line(text[:9] if number % 50 == 0 else text, "synthetic", number))
    return items(made, ids=[(line.path, line.number) for line in made])
