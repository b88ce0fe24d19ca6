"""Fingerprints of windows and joins: what comes together in them must stay, how long it is waited for may change."""

from __future__ import annotations

from typing import Any

import msgspec

from tupletree import Emit, EndOfInput, Spout, Topology, Window, join_bolt, window_bolt
from tupletree.topology.changes.fingerprint import differences, fingerprint


class Line(msgspec.Struct, frozen=True):
    text: str
    at: float


class Lines(Spout[Line]):
    def next(self) -> Emit[Line]:
        raise EndOfInput


class Reply(msgspec.Struct, frozen=True):
    text: str
    at: float


class Replies(Spout[Reply]):
    def next(self) -> Emit[Reply]:
        raise EndOfInput


def by_length(line: Line) -> float:
    return float(len(line.text))


def windowed(**settings: Any) -> dict[str, Any]:
    @window_bolt(**settings)
    def last(window: Window[Line]) -> Line:
        return window.tuples[-1]

    t = Topology("windows")
    t.bolt("last", last, unconsumed=(Line,)).global_(t.spout("lines", Lines()))
    return fingerprint(t.build())


def joined(**settings: Any) -> dict[str, Any]:
    @join_bolt(timestamp="at", **settings)
    def both(line: Line, reply: Reply) -> Line:
        return line

    t = Topology("joins")
    lines, replies = t.spout("lines", Lines()), t.spout("replies", Replies())
    t.bolt("both", both, unconsumed=(Line,)).fields(lines, "text").fields(replies, "text")
    return fingerprint(t.build())


BASE: dict[str, Any] = {"length_s": 10.0, "timestamp": by_length}


def test_what_a_window_waits_for_and_what_is_late_may_change() -> None:
    before = windowed(**BASE)
    for same in ({"lag_s": 5.0}, {"late": "drop"}, {"slide_s": 10.0}, {"idle_s": 3.0}, {"retry_hold_s": 1.0}):
        assert differences(before, windowed(**{**BASE, **same})) == [], same
    assert differences(joined(within_s=3), joined(within_s=3, lag_s=1)) == []


def test_what_comes_together_in_a_window_or_join_may_not() -> None:
    before = windowed(**BASE)
    for other in ({"length_s": 20.0}, {"slide_s": 5.0}, {"timestamp": "at"}):
        (found,) = differences(before, windowed(**{**BASE, **other}))
        assert str(found).startswith("last: holding changed from window(length_s=10, slide_s=10, timestamp=by_length, ")
    assert len(differences(windowed(count=3), windowed(count=4))) == 1
    sessions = windowed(gap_s=5.0, timestamp="at")
    for other in ({"gap_s": 6.0}, {"gap_s": 5.0, "max_length_s": 60.0}, {"length_s": 5.0}):
        (found,) = differences(sessions, windowed(timestamp="at", **other))
        assert str(found).startswith(
            "last: holding changed from window(gap_s=5, timestamp=at, per_key=False) to window("
        )
    assert differences(sessions, windowed(gap_s=5.0, timestamp="at", lag_s=9.0)) == []
    assert list(map(str, differences(joined(within_s=3), joined(within_s=4)))) == [
        "both: holding changed from join(within_s=3, timestamp=at) to join(within_s=4, timestamp=at)"
    ]


def test_what_an_earlier_version_did_not_write_down_is_not_known_to_differ() -> None:
    before = windowed(**BASE)
    earlier = {name: {part: one[part] for part in one if part != "holding"} for name, one in before.items()}
    assert differences(earlier, before) == []
