"""How a run ended, as text for people and as one line of JSON for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tupletree.escaping import escape

if TYPE_CHECKING:
    from tupletree.runtimes.api import Summary

__all__ = ["open_text", "summary_json", "summary_text"]


def summary_json(summary: Summary) -> str:
    """One line, one object; keys are added in later versions, never renamed."""
    return json.dumps(
        {
            "topology": summary.topology,
            "runtime": summary.runtime,
            "emitted": summary.emitted,
            "acked": summary.acked,
            "failed": summary.failed,
            "retried": summary.retried,
            "dead": summary.dead,
            "open": summary.open,
            "open_in_flight": summary.left.in_flight,
            "open_waiting": summary.left.waiting,
            "open_awaited": summary.left.awaited,
            "untracked": summary.untracked,
            "untracked_failed": summary.untracked_failed,
            "joined": summary.joined,
            "seconds": round(summary.seconds, 3),
            "reason": summary.reason,
            "outputs": dict(summary.outputs),
            "state_dir": str(summary.state_dir),
        }
    )


def open_text(summary: Summary) -> str:
    """The text about messages that a stopped run leaves open, and what happens to them next."""
    if summary.runtime == "local":
        then = "they were failed to their sources; a local run cannot be resumed"
    else:
        then = f"start it again with --state-dir {summary.state_dir}: it goes on with them"
    return f"{summary.open:,} messages are open: {summary.left.text() or 'in flight'}\n  next: {then}"


def summary_text(summary: Summary) -> str:
    """A few lines that account for every message."""
    lines = [
        f"{summary.topology} on {summary.runtime}: {summary.emitted:,} messages in {summary.seconds:.1f} s",
        f"  acked  {summary.acked:>12,}",
        f"  dead   {summary.dead:>12,}",
        f"  open   {summary.open:>12,}",
        f"  failed attempts {summary.failed:,}, retried {summary.retried:,}",
    ]
    if summary.reason:
        lines.append(f"  ended early: {summary.reason}")
    if summary.untracked or summary.untracked_failed:
        lines.append(f"  untracked {summary.untracked:,}, failed tuples of no message {summary.untracked_failed:,}")
    if summary.joined:
        lines.append(f"  delivered again while they were open {summary.joined:,}")
    if summary.outputs:
        width = max(map(len, summary.outputs))
        lines += [f"  sink {name:<{width}}  {rows:,} rows" for name, rows in summary.outputs.items()]
    lines.append(f"  state in {summary.state_dir}")
    if summary.dead:
        lines.append(f"  next: tupletree dead list --state-dir {summary.state_dir}")
    return "\n".join(map(escape, lines))
