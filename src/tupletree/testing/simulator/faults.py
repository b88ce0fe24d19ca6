"""Faults: what the simulator does to a topology, and which of it is legal for what.

| What travels | held back, overtaken | comes twice | gets lost |
|---|---|---|---|
| frames | yes | yes: costs the attempt; a sink may keep rows of it | yes: the tree times out |
| `Track` to an acker | yes | yes: costs the attempt, never acks it | while its trees are open, which then time out |
| `TreeVerdicts` to a spout | yes | yes: the first one counts | no: only together with their acker |
| `WriteRequest`, `Written` | yes | yes | yes: asked for again after the message timeout |
| `DropRoots`, `SinkReset` | yes | yes | no: the control lane loses nothing by itself |
| `HighWater` | held back only, in order | no | no |
| ends of async calls, letters that are durable | held back only | no | only with their task |

A task that dies loses its memory, and half of the time what was on its way to it. Keyed state survives, as it does
when the local runtime restarts a topology.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from random import Random


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How likely each fault is.

    A run does not have all of them: the seed leaves out about half, because some bugs only show while others do not
    get in the way (swarm testing: Groce, Zhang, Eide, Chen, Regehr, "Swarm testing", ISSTA 2012).

    Attributes:
        lose_frames, repeat_frames: per frame.
        lose_tracks, repeat_tracks: per message to an acker.
        lose_mail, repeat_mail: per other message, where it is legal.
        hold_back: per message, for up to twice the message timeout.
        refuse_rows: per batch that a sink writes.
        outage: per step, what a bolt or a sink calls is unavailable, for up to twice the message timeout; no attempt
            fails.
        kill_bolts, kill_ackers, kill_sinks, kill_spouts: per step, one task of the kind; a spout's messages are
            carried over.
        restart: per step, the whole topology, as a supervisor does it: messages are carried over.
        crash: per step, the whole process: all memory is lost, and sources deliver again what they were not told of.
        jump: per step, the clock, by up to the message timeout.
        pause: per step, all spouts, for a while.
        drain: per run, a stop in the middle of it.
    """

    lose_frames: float = 0.02
    repeat_frames: float = 0.02
    lose_tracks: float = 0.01
    repeat_tracks: float = 0.02
    lose_mail: float = 0.03
    repeat_mail: float = 0.05
    hold_back: float = 0.04
    refuse_rows: float = 0.05
    outage: float = 0.004
    kill_bolts: float = 0.01
    kill_ackers: float = 0.004
    kill_sinks: float = 0.006
    kill_spouts: float = 0.004
    restart: float = 0.002
    crash: float = 0.002
    jump: float = 0.01
    pause: float = 0.01
    drain: float = 0.6

    def __post_init__(self) -> None:
        for one in fields(self):
            if not 0.0 <= getattr(self, one.name) <= 1.0:
                raise ValueError(f"{one.name} is a probability, got {getattr(self, one.name)}")

    @classmethod
    def none(cls) -> Faults:
        """No faults at all: only the order of things is left to the seed."""
        return cls(**{one.name: 0.0 for one in fields(cls)})

    @property
    def any(self) -> bool:
        """Whether anything may happen at all."""
        return any(getattr(self, one.name) for one in fields(self))

    def some(self, random: Random) -> Faults:
        """These faults, each left out with probability one half."""
        return Faults(**{one.name: getattr(self, one.name) * random.getrandbits(1) for one in fields(self)})

    def without_loss(self) -> Faults:
        """Nothing goes missing: for topologies without a message timeout, where lost messages would never end."""
        losing = ("lose_frames", "repeat_frames", "lose_tracks", "repeat_tracks", "lose_mail", "kill_bolts")
        kept = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in losing}
        return Faults(**kept, **dict.fromkeys(losing, 0.0))
